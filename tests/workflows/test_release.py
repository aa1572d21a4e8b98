"""A tag is released where version, changelog, branch and tests agree with it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.workflows.github import GitHub, Runner, workflow

pytestmark = pytest.mark.process

CHECK = workflow("release").script("check", "Version, changelog, branch and tests")
GIT = ("git", "-c", "user.name=a", "-c", "user.email=a@example.org")


@pytest.fixture
def github(tmp_path: Path) -> GitHub:
    """Return a job after the tag v1.2.0, in a clone of a repository whose main has that version."""
    runner = Runner(tmp_path)
    runner.scripts_of_ours()
    folder = runner.workspace
    (folder / "pytest_mlperf").mkdir()
    version = '"""Doc."""\n\n__version__ = "1.2.0"\n'
    (folder / "pytest_mlperf" / "__init__.py").write_text(version, "utf-8")
    text = "# Changelog\n\n## 1.2.0 (2026-11-21)\n\n- All.\n"
    (folder / "CHANGELOG.md").write_text(text, "utf-8")
    for words in (
        ("init", "--quiet", "--initial-branch=main"),
        ("add", "CHANGELOG.md", "pytest_mlperf"),
        ("commit", "--quiet", "-m", "all"),
        ("update-ref", "refs/remotes/origin/main", "HEAD"),
    ):
        subprocess.run([*GIT, *words], cwd=folder, check=True)
    runner.env |= {"GITHUB_REF_NAME": "v1.2.0", "GITHUB_SHA": head(folder)}
    found = GitHub(runner)
    found.answers({passed(head(folder)): {"total_count": 1}})
    return found


def head(folder: Path) -> str:
    command = ["git", "rev-parse", "HEAD"]
    return subprocess.check_output(command, cwd=folder, text=True).strip()


def passed(sha: str) -> str:
    path = "GET repos/lab/bench/actions/workflows/ci.yml/runs"
    return f"{path}?head_sha={sha}&event=push&status=success"


def test_only_what_agrees_is_released(github: GitHub) -> None:
    done = github.runner.run(CHECK)
    assert (done.returncode, done.stdout) == (0, "1.2.0 may be released\n")

    for tag in ("v1.2.1", "1.2.0", "v1.2.0rc1", "v1.2"):
        done = github.runner.run(CHECK, GITHUB_REF_NAME=tag)
        message = f"::error::the tag is {tag}, and the package is version 1.2.0\n"
        assert (done.returncode, done.stdout) == (1, message)

    sha = github.runner.env["GITHUB_SHA"]
    github.answers({passed(sha): {"total_count": 0}})
    assert f"ci.yml has not passed for {sha}" in github.runner.run(CHECK).stdout

    folder = github.runner.workspace
    subprocess.run([*GIT, "commit", "--quiet", "--allow-empty", "-m", "x"], cwd=folder, check=True)
    github.answers({passed(head(folder)): {"total_count": 1}})
    done = github.runner.run(CHECK, GITHUB_SHA=head(folder))
    assert (done.returncode, "is not on main" in done.stdout) == (1, True)

    (folder / "CHANGELOG.md").write_text("## Unreleased\n\n## 1.2.01\n", "utf-8")
    assert "no section '## 1.2.0'" in github.runner.run(CHECK).stdout


def test_it_is_published_without_a_token_after_all_that() -> None:
    jobs = workflow("release").jobs

    assert (jobs["build"]["needs"], jobs["publish"]["needs"]) == ("check", "build")
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert jobs["publish"]["environment"] == "pypi"
    assert "password" not in str(jobs["publish"])
    assert not any("cache" in str(step.get("with", {})) for step in jobs["build"]["steps"])

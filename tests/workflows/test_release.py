"""A tag is released where version, changelog, branch and tests agree with it."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.workflows.github import ROOT, GitHub, Runner, scripts, workflow

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
    fake_github = GitHub(runner)
    fake_github.answers({passed(head(folder)): {"total_count": 1}})
    return fake_github


def head(folder: Path) -> str:
    command = ["git", "rev-parse", "HEAD"]
    return subprocess.check_output(command, cwd=folder, text=True).strip()


def passed(sha: str) -> str:
    path = "GET repos/lab/bench/actions/workflows/ci.yml/runs"
    return f"{path}?head_sha={sha}&event=push&status=success"


def test_only_consistent_versions_are_released(github: GitHub) -> None:
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

    needs = {name: job.get("needs") for name, job in jobs.items()}
    assert needs == {"check": None, "build": "check", "try": "build", "publish": ["build", "try"]}
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert jobs["publish"]["environment"] == "pypi"
    assert "password" not in str(jobs["publish"])
    assert not any("cache" in str(step.get("with", {})) for step in jobs["build"]["steps"])


def test_nothing_unpinned_runs_where_the_package_is_built() -> None:
    """Each build tool is one file; the wheel is tried out elsewhere, after it was uploaded."""
    jobs = workflow("release").jobs
    scripts = [str(step["run"]) for step in jobs["build"]["steps"] if "run" in step]
    numbers = [
        step["with"]["artifact-ids"]
        for job in ("try", "publish")
        for step in jobs[job]["steps"]
        if "download-artifact" in str(step.get("uses"))
    ]

    assert scripts == [
        "python -m pip install --require-hashes -r .github/requirements/build.txt",
        "python -m build --no-isolation",
    ]
    assert "upload-artifact" in jobs["build"]["steps"][-1]["uses"]
    assert numbers == ["${{ needs.build.outputs.artifact }}"] * 2
    assert "upload" not in str(jobs["try"])
    lines = (ROOT / ".github/requirements/build.txt").read_text("utf-8").replace("\\\n", "")
    pins = [line for line in lines.splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z-]+==[0-9.]+ +--hash=sha256:[0-9a-f]{64}", pin) for pin in pins)
    required = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["build-system"]
    assert {"build", *required["requires"]} <= {pin.partition("==")[0] for pin in pins}


def test_workflows_install_only_pinned_versions() -> None:
    """By hash, by constraints.txt, by ==, or from this repository itself."""
    unpinned = [
        (name, line.strip())
        for name, script in scripts()
        for line in script.replace("\\\n", " ").splitlines()
        if re.search(r"pip\"? install", line)
        if not re.search(r"--require-hashes|-c constraints\.txt|\"\$@\"|==", line)
    ]

    assert unpinned == []


def test_reviewers_and_the_reporting_address_are_stated_and_versions_are_updated() -> None:
    owned = {
        line.split()[0]
        for line in (ROOT / ".github/CODEOWNERS").read_text("utf-8").splitlines()
        if not line.startswith("#")
    }
    bot = yaml.safe_load((ROOT / ".github/dependabot.yml").read_text("utf-8"))

    assert {"/.github/", "/baselines/", "/constraints.txt"} <= owned
    assert all((ROOT / path.strip("/")).exists() for path in owned)
    for update in bot["updates"]:
        assert update["cooldown"]["default-days"] >= 7
        assert all((ROOT / folder.strip("/")).is_dir() for folder in update["directories"])
    assert {"github-actions", "pip"} == {one["package-ecosystem"] for one in bot["updates"]}
    assert "Report a vulnerability" in (ROOT / "SECURITY.md").read_text("utf-8")

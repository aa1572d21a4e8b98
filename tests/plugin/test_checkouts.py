"""A project as git or an administrator may leave it: the table in docs/pytest.md."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.reports.sentences import sentence
from pytest_mlperf.stores.results import read_results
from tests.plugin.project import RATE, Project, near

pytestmark = pytest.mark.process

JUDGED = {Outcome.OK, Outcome.IMPROVED, Outcome.PROVISIONAL, Outcome.INCONCLUSIVE, Outcome.INVALID}
"""Outcomes against a baseline; load of the machine may make each of them."""


def git(folder: Path, *words: str) -> str:
    settings = ("-c", "user.email=a@example.org", "-c", "user.name=A", "-c", "commit.gpgsign=false")
    command = ["git", *settings, "-c", "protocol.file.allow=always", *words]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(project: Project) -> Project:
    """A project in git, of two commits, whose suite has a baseline."""
    project.suite()
    project.baseline(near(RATE))
    git(project.path, "init", "--quiet")
    for number in ("1", "2"):
        (project.path / "code.py").write_text(f"NUMBER = {number}\n")
        git(project.path, "add", "--all")
        git(project.path, "commit", "--quiet", "--message", number)
    return project


def outcome(project: Project, *arguments: str | Path) -> tuple[Outcome, str, str | None]:
    """Return outcome, headline and commit of the suite's one test in a new session."""
    file = project.path / "r.json"
    project.run(*arguments, f"--mlperf-json={file}")
    results = read_results(file)
    (result,) = results.cases
    return result.verdict.outcome, sentence(result.verdict.headline), results.commit


def test_a_sparse_checkout_without_the_baseline_says_how_to_get_it(repository: Project) -> None:
    top = repository.path
    git(top, "sparse-checkout", "set", "--cone", "suites")
    assert not (top / "baselines").exists()
    for update in ((), ("--mlperf-update=missing",)):
        kind, headline, _ = outcome(repository, "suites", *update)
        assert kind is Outcome.ERROR
        cause, _, command = headline.partition("; run: ")
        assert cause == (
            "baseline: baselines/cpu/quick/first/Offline.null.fp32.json is in git, but this sparse "
            "checkout leaves it out"
        )
    subprocess.run(shlex.split(command), cwd=top, check=True, capture_output=True)
    assert outcome(repository, "suites")[0] in JUDGED
    # A baseline that git does not have is only missing.
    git(top, "rm", "-r", "--quiet", "baselines")
    assert outcome(repository, "suites")[0] is Outcome.NO_BASELINE


def test_a_sparse_worktree_is_recognised_as_such(repository: Project, tmp_path: Path) -> None:
    top = tmp_path / "worktree"
    git(repository.path, "worktree", "add", "--quiet", str(top))
    assert outcome(repository, "--rootdir", top, top / "suites")[0] in JUDGED
    git(top, "sparse-checkout", "set", "--cone", "suites")
    assert outcome(repository, "--rootdir", top, top / "suites")[0] is Outcome.ERROR


def test_a_shallow_clone_has_the_same_verdict(repository: Project, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", "--depth=1", repository.path.as_uri(), str(clone))
    kind, _, commit = outcome(repository, "--rootdir", clone, clone / "suites")
    assert kind in JUDGED
    assert commit == git(clone, "rev-parse", "--short=12", "HEAD")


def test_a_submodule_has_its_own_baselines(repository: Project, tmp_path: Path) -> None:
    outer = tmp_path / "outer"
    git(tmp_path, "init", "--quiet", str(outer))
    git(outer, "submodule", "--quiet", "add", str(repository.path), "inner")
    git(outer, "commit", "--quiet", "--message", "1")
    commit = git(outer, "rev-parse", "--short=12", "HEAD")
    suites = outer / "inner" / "suites"
    kind, _, first = outcome(repository, "--rootdir", outer, suites)
    assert (kind in JUDGED, first) == (True, commit)
    (outer / "inner" / "code.py").write_text("NUMBER = 3\n")
    append = ("--mlperf-update=append", "--mlperf-reason=more", "-omlperf_baseline_runs=1")
    _, _, changed = outcome(repository, "--rootdir", outer, suites, *append)
    assert changed == f"{commit}+"
    assert "baselines" not in [path.name for path in outer.iterdir()]


def test_a_linked_folder_of_suites_has_the_baselines_of_its_target(
    repository: Project, tmp_path: Path
) -> None:
    for link in (repository.path / "linked", tmp_path / "elsewhere" / "suites"):
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(repository.path / "suites")
        assert outcome(repository, "--rootdir", link.parent, link)[0] in JUDGED
        assert not (link.parent / "suites" / "baselines").exists()
    assert git(repository.path, "status", "--porcelain", "baselines") == ""


def test_a_project_that_cannot_be_written_is_measured_into_another_folder(
    repository: Project, tmp_path: Path
) -> None:
    rows = [
        ([], 3, ".mlperf cannot be written"),
        ([f"--mlperf-runs-dir={tmp_path}/runs"], 0, "results: "),
        ([f"--mlperf-runs-dir={tmp_path}/runs", "--mlperf-update=replace"], 1, "nothing was"),
    ]
    for options, code, text in rows:
        reason = ["--mlperf-reason=x"] if len(options) == 2 else []
        command = [sys.executable, "-m", "pytest", "suites", *options, *reason]
        done = read_only(repository.path, [*command, "-omlperf_control=off", "-pno:cacheprovider"])
        assert text in done.stdout, done.stdout + done.stderr
        assert done.returncode in {code, 1 if code == 0 else code}
    assert git(repository.path, "status", "--porcelain") == ""


def read_only(folder: Path, command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder on a read-only mount."""
    if os.geteuid() or not (program := shutil.which("unshare")):
        pytest.skip("needs root and unshare for a read-only mount")
    mounts = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && cd "$0" && exec "$@"'
    words = [program, "--mount", "sh", "-c", mounts, str(folder), *command]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if "mount:" in done.stderr:
        pytest.skip(f"cannot mount here: {done.stderr.strip()}")
    return done

"""Which commit was measured, and whether another one holds the same code."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_mlperf.run.project import code_differs, commit_of
from tests.stores.killed import git


@pytest.mark.process
def test_a_changed_file_whose_name_is_no_utf8_costs_no_commit(tmp_path: Path) -> None:
    file = tmp_path / os.fsdecode(b"model-\xff.bin")
    file.write_text("first")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "config", "core.quotePath", "false")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message=first")
    before = commit_of(tmp_path)
    file.write_text("changed")

    assert before
    assert commit_of(tmp_path) == f"{before}+"


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """Return a repository, and its commits by what each of them changed."""
    folder = tmp_path_factory.mktemp("project")
    git(folder, "init", "--quiet")
    commits = {}
    for what, name in (
        ("suite", "suites/a.mlperf.toml"),
        ("baseline", "baselines/cpu/quick/a/Offline.null.fp32.json"),
        ("elsewhere", "accepted/cpu.json"),
        ("code", "service.py"),
    ):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(what)
        git(folder, "add", ".")
        git(folder, "commit", "--quiet", f"--message={what}")
        found = commit_of(folder)
        assert found
        commits[what] = found
    return folder, commits


@pytest.mark.process
@pytest.mark.parametrize(
    ("then", "now", "recorded", "differs"),
    [
        ("suite", "suite", (), None),
        ("suite", "baseline", (), None),
        ("baseline", "elsewhere", (), "commit {baseline} → {elsewhere}"),
        ("baseline", "elsewhere", ("accepted",), None),
        ("elsewhere", "code", ("accepted",), "commit {elsewhere} → {code}"),
        ("code", "suite", (), "commit {code} → {suite}"),
    ],
)
def test_a_commit_of_baselines_holds_the_same_code(
    history: tuple[Path, dict[str, str]],
    then: str,
    now: str,
    recorded: tuple[str, ...],
    differs: str | None,
) -> None:
    folder, commits = history
    others = [folder / name for name in recorded]

    found = code_differs(folder, commits[then], commits[now], others)

    assert found == (differs and differs.format(**commits))


@pytest.mark.process
@pytest.mark.parametrize(
    ("then", "now", "differs"),
    [
        (None, None, None),
        (None, "0123456789ab", "commit unknown → 0123456789ab"),
        ("0123456789ab", None, "commit 0123456789ab → unknown"),
        ("0123456789ab+", "0123456789ab+", "files were changed and not committed (0123456789ab+)"),
        ("0123456789ab", "{code}", "commit 0123456789ab is not in this clone"),
        ("--output=a", "{code}", "commit --output=a is not in this clone"),
    ],
)
def test_what_is_not_known_to_be_the_same_differs(
    history: tuple[Path, dict[str, str]], then: str | None, now: str | None, differs: str | None
) -> None:
    folder, commits = history

    assert code_differs(folder, then, now and now.format(**commits)) == differs
    assert not (folder / "a").exists()


@pytest.mark.process
def test_a_baseline_that_was_written_is_no_change_of_the_code(
    history: tuple[Path, dict[str, str]],
) -> None:
    folder, commits = history
    (folder / "baselines/cpu/quick/a/Offline.null.fp32.json").write_text("grown")
    (folder / "accepted/cpu.json").write_text("grown")

    assert commit_of(folder, [folder / "accepted"]) == commits["code"]
    assert commit_of(folder) == f"{commits['code']}+"

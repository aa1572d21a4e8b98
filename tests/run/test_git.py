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
    commit = commit_of(tmp_path)
    file.write_text("changed")

    assert commit
    assert commit_of(tmp_path) == f"{commit}+"


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """Return a repository, and its commits by the file that each of them changed."""
    folder = tmp_path_factory.mktemp("project")
    git(folder, "init", "--quiet")
    commits = {}
    for message, name in (
        ("suite", "suites/a.mlperf.toml"),
        ("baseline", "baselines/cpu/quick/a/Offline.null.fp32.json"),
        ("elsewhere", "accepted/cpu.json"),
        ("code", "service.py"),
    ):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(message)
        git(folder, "add", ".")
        git(folder, "commit", "--quiet", f"--message={message}")
        commit = commit_of(folder)
        assert commit
        commits[message] = commit
    return folder, commits


@pytest.mark.process
def test_a_commit_of_baselines_holds_the_same_code(history: tuple[Path, dict[str, str]]) -> None:
    folder, commits = history
    cases: list[tuple[str, str, tuple[str, ...], bool]] = [
        ("suite", "suite", (), False),
        ("suite", "baseline", (), False),
        ("baseline", "elsewhere", (), True),
        ("baseline", "elsewhere", ("accepted",), False),
        ("elsewhere", "code", ("accepted",), True),
        ("code", "suite", (), True),
    ]
    for then, current, recorded, differs in cases:
        others = [folder / name for name in recorded]
        expected = f"commit {commits[then]} → {commits[current]}" if differs else None
        assert code_differs(folder, commits[then], commits[current], others) == expected

    a, code = "0123456789ab", commits["code"]
    unknown: dict[tuple[str | None, str | None], str | None] = {
        (None, None): None,
        (None, a): f"commit unknown → {a}",
        (a, None): f"commit {a} → unknown",
        (f"{a}+", f"{a}+"): f"{a} was measured with uncommitted changes",
        (a, code): f"commit {a} is not in this clone",
        ("--output=a", code): "commit --output=a is not in this clone",
    }
    assert {case: code_differs(folder, *case) for case in unknown} == unknown
    assert not (folder / "a").exists()

    (folder / "baselines/cpu/quick/a/Offline.null.fp32.json").write_text("grown")
    (folder / "accepted/cpu.json").write_text("grown")
    assert commit_of(folder, [folder / "accepted"]) == commits["code"]
    assert commit_of(folder) == f"{commits['code']}+"

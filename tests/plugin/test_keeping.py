"""What a session keeps at its end is written each by itself."""

from __future__ import annotations

from pathlib import Path

from pytest_mlperf.keeping import Keeping
from pytest_mlperf.stores import suspects
from tests.plugin.project import Project


def test_one_that_fails_keeps_no_other_from_being_written(tmp_path: Path) -> None:
    keeping = Keeping()
    (tmp_path / "folder").mkdir()

    def breaks() -> None:
        raise UnicodeError("odd \x1b[2J")

    kept = [
        keeping.keep("the suspects", lambda: suspects.save(tmp_path / "folder", ["a"])),
        keeping.keep("the results", breaks, "results: never"),
        keeping.keep("the results", lambda: suspects.save(tmp_path / "file", ["a"]), "results: f"),
    ]

    assert kept == [False, False, True]
    assert keeping.lines == [
        f"ERROR {tmp_path}/folder: the suspects cannot be written: Is a directory",
        "ERROR the results could not be written: UnicodeError: odd \\x1b[2J; please report this",
        "results: f",
    ]


def test_results_are_written_where_the_others_cannot_be(project: Project) -> None:
    project.suite()
    (project.path / "folder.json").mkdir()

    result = project.run("suites", "--mlperf-json=folder.json")

    assert result.ret == 3
    assert len(project.results().cases) == 1
    result.stdout.fnmatch_lines(
        ["ERROR *folder.json: the results cannot be written: Is a directory*"]
    )

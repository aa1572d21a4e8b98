"""Which pairs were SUSPECT: a file of the tool's own, and results of other machines."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.results import Suspect
from pytest_mlperf.stores import suspects
from pytest_mlperf.stores.results import write_results
from tests.reports.verdicts import session
from tests.stores.killed import exit_codes, started

A = Suspect(
    test="suites/x.toml::test_performance[a]",
    metrics=("throughput",),
    date="2026-11-20T10:11:12+00:00",
    profile="quick",
    identity={"gpu.name": "H200", "gpu.count": 8, "mig": None},
)
B = replace(A, test="b")


def put(path: Path, *suspect_list: Suspect) -> None:
    suspects.update(path, lambda _: suspect_list)


def test_suspects_are_read_back_and_a_damaged_file_is_replaced(tmp_path: Path) -> None:
    """An empty list makes a file as well: it records that there was a session."""
    file = tmp_path / "new" / "suspects.json"
    assert suspects.load(file) == suspects.Remembered()
    put(file)
    assert suspects.load(file) == suspects.Remembered(is_any=True)

    put(file, B, A)
    assert suspects.load(file).suspects == (B, A)
    assert not (file.parent / ".writing").exists()
    damaged = ["", "{", "[]", "3", '{"schema": 1, "tests": ["a"]}', '{"schema": 2, "suspects": 3}']
    for content in (*damaged, "\udc80"):
        file.write_bytes(content.encode("utf-8", "surrogateescape"))
        left = suspects.load(file)
        assert (left.is_any, left.defect.startswith(str(file))) == (False, True), content
        put(file, A)
        assert suspects.load(file).suspects == (A,)
    with pytest.raises(MlperfError, match="the suspects cannot be written: "):
        put(file / "suspects.json", A)


def _add(path: Path, number: int) -> None:
    suspects.update(path, lambda there: (*there, replace(A, test=str(number))))


@pytest.mark.process
def test_sessions_that_end_at_once_lose_none(tmp_path: Path) -> None:
    file = tmp_path / "suspects.json"

    assert exit_codes(started(_add, *((file, number) for number in range(12)))) == [0] * 12
    assert {one.test for one in suspects.load(file).suspects} == {
        str(number) for number in range(12)
    }


def test_results_of_the_last_session_tell_as_well(tmp_path: Path) -> None:
    """A file of them, or a folder, such as CI keeps; the newest verdict counts.

    A path that is not a file is not read.
    """
    newer = replace(A, date="2026-11-21T10:11:12+00:00")
    write_results(tmp_path / "one.json", session(suspects=(A, B)))
    write_results(tmp_path / "two.json", session(suspects=(newer,)))
    put(tmp_path / "kept" / "suspects.json", A)
    (tmp_path / "plan.json").write_text(json.dumps({"kind": "mlperf-plan", "schema": 1}), "utf-8")

    def named(path: Path) -> tuple[Suspect, ...]:
        return tuple(replace(one, seen="") for one in suspects.load(path).suspects)

    assert named(tmp_path / "one.json") == (A, B)
    assert named(tmp_path) == (newer, B)
    assert named(tmp_path / "kept" / "suspects.json") == (A,)
    assert suspects.load(tmp_path / "absent") == suspects.Remembered()

    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "folder.json").mkdir()

    assert named(tmp_path) == (newer, B)
    defect = suspects.load(tmp_path / "pipe.json").defect
    assert "cannot be read as a results file: it is a pipe" in defect


def test_damaged_results_that_are_named_tell_nothing_and_say_why(tmp_path: Path) -> None:
    for text, wrong in (
        ("{", "not a results file"),
        ("", "not a results file"),
        ("null", "must be an object, not None"),
        ("[" * 100_000, "not a results file"),
        (json.dumps({"schema": 99, "kind": suspects.SUSPECTS_KIND, "suspects": []}), "schema 99"),
        (json.dumps({"schema": 2, "kind": suspects.SUSPECTS_KIND, "suspects": [{}]}), "damaged"),
    ):
        (tmp_path / "results.json").write_text(text, "utf-8")
        for named in (tmp_path / "results.json", tmp_path):
            read = suspects.load(named)
            assert (read.suspects, read.is_any) == ((), False)
            assert wrong in read.defect
            assert str(tmp_path / "results.json") in read.defect

"""Files that the first version of each schema left are read as long as they last."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.stores import accuracy_baselines, baselines, results
from pytest_mlperf.stores.documents import Document
from pytest_mlperf.stores.results import read_results, read_whole, write_results

KEPT = Path(__file__).parents[1] / "data" / "version1"
RESULTS, BASELINE = KEPT / "results.json", KEPT / "Offline.null.fp32.json"
ACCURACY = KEPT / "null.fp32.json"


def test_results_are_read() -> None:
    read = read_results(RESULTS)

    assert read == read_whole(RESULTS)
    assert [one.verdict.outcome for one in read.cases] == [Outcome.OK, Outcome.PROVISIONAL]
    assert read.cases[1].verdict.runs[0].metrics["throughput"] > 0
    assert read.cases[1].rests_on == {}


def test_a_baseline_is_read() -> None:
    baseline = baselines.load(BASELINE)

    assert baseline is not None
    assert len(baseline.records[0].runs) == 5
    assert baseline.records[0].history[0].reason == "first baseline"


def test_accepted_scores_are_read() -> None:
    read = accuracy_baselines.load(ACCURACY)

    assert read is not None
    assert read[1] == {"top1": [100.0] * 32}


def to_two(old: dict[str, Any]) -> dict[str, Any]:
    """Return what a second version could make of either: a field under another name."""
    return {**old, "run_2" if "run" in old else "round_2": old.get("run", old.get("round"))}


def from_two(old: dict[str, Any]) -> dict[str, Any]:
    names = {"run_2": "run", "round_2": "round"}
    return {names.get(key, key): value for key, value in old.items()}


def test_results_come_up_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "SCHEMA", 3)
    monkeypatch.setattr(results, "MIGRATIONS", {1: to_two, 2: from_two})

    read = read_results(RESULTS)

    assert read.schema == 3
    assert read.run == json.loads(RESULTS.read_text("utf-8"))["run"]


def test_results_without_a_way_up_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "SCHEMA", 2)

    with pytest.raises(MlperfError, match="schema 1 is unknown; this release reads up to 2"):
        read_results(RESULTS)


@pytest.mark.parametrize("path", [BASELINE, ACCURACY])
def test_baselines_come_up_step_by_step(path: Path, tmp_path: Path) -> None:
    of = baselines.FILE if path == BASELINE else accuracy_baselines.FILE
    file: Document[Any] = Document(of.kind, schema=3, title="baseline")
    old = of.load(path)
    renamed = {"round_2": "round", "workload_2": "workload"}

    def up(held: dict[str, Any]) -> dict[str, Any]:
        return {f"{key}_2" if key in renamed.values() else key: v for key, v in held.items()}

    def down(held: dict[str, Any]) -> dict[str, Any]:
        return {renamed.get(key, key): value for key, value in held.items()}

    file.migrations = {1: up, 2: down}
    shutil.copy(path, tmp_path / "baseline.json")

    read = file.load(tmp_path / "baseline.json")

    assert read is not None
    assert read.schema == 3
    assert read.workload == old.workload  # type: ignore[union-attr]


def test_a_file_that_was_changed_says_so(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    write_results(path, read_results(RESULTS))
    assert read_whole(path) == read_results(path)
    content = json.loads(path.read_text("utf-8"))
    content["cases"][1]["failed"] = True
    path.write_text(json.dumps(content), "utf-8")

    assert read_results(path).cases[1].failed
    with pytest.raises(MlperfError, match="changed since it was written"):
        read_whole(path)

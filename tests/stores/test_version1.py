"""Files that the first version of each schema left are read as long as they last."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.stores import accuracy_baselines, baselines, results
from pytest_mlperf.stores.documents import Document
from pytest_mlperf.stores.results import read_results, write_results
from tests.core.made import present

KEPT = Path(__file__).parents[1] / "data" / "version1"
RESULTS, BASELINE = KEPT / "results.json", KEPT / "Offline.null.fp32.json"
ACCURACY = KEPT / "null.fp32.json"


def test_each_is_read() -> None:
    read = read_results(RESULTS)
    baseline, accepted = baselines.load(BASELINE), accuracy_baselines.load(ACCURACY)
    (record,) = present(baseline).records

    assert read == read_results(RESULTS)
    assert [one.verdict.outcome for one in read.cases] == [Outcome.OK, Outcome.PROVISIONAL]
    assert read.cases[1].verdict.runs[0].metrics["throughput"] > 0
    assert read.cases[1].rests_on == {}
    assert (len(record.runs), record.history[0].reason) == (5, "first baseline")
    assert present(accepted)[1] == {"top1": [100.0] * 32}


def renamed(suffix: str, *keys: str) -> dict[int, Callable[[dict[str, Any]], dict[str, Any]]]:
    """Return what a second version could do to a file, fields under other names, and a third."""
    to = {key: f"{key}{suffix}" for key in keys}
    back = {new: old for old, new in to.items()}
    return {
        1: lambda held: {to.get(key, key): value for key, value in held.items()},
        2: lambda held: {back.get(key, key): value for key, value in held.items()},
    }


def test_results_come_up_step_by_step_or_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "SCHEMA_VERSION", 2)
    with pytest.raises(MlperfError, match="schema 1 is unknown; this release reads up to 2"):
        read_results(RESULTS)

    monkeypatch.setattr(results, "SCHEMA_VERSION", 3)
    monkeypatch.setattr(results, "MIGRATIONS", renamed("_2", "run"))
    read = read_results(RESULTS)
    assert read.schema == 3
    assert read.run == json.loads(RESULTS.read_text("utf-8"))["run"]


@pytest.mark.parametrize("path", [BASELINE, ACCURACY])
def test_baselines_come_up_step_by_step(path: Path, tmp_path: Path) -> None:
    of = baselines.BASELINE_DOCUMENT if path == BASELINE else accuracy_baselines.ACCURACY_DOCUMENT
    file: Document[Any] = Document(of.kind, schema=3, title="baseline")
    old = of.load(path)
    file.migrations = renamed("_2", "round", "workload")
    shutil.copy(path, tmp_path / "baseline.json")

    read = present(file.load(tmp_path / "baseline.json"))

    assert read.schema == 3
    assert read.workload == old.workload  # type: ignore[union-attr]


def test_a_file_that_was_changed_says_so(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    write_results(path, read_results(RESULTS))
    assert read_results(path) == read_results(RESULTS)
    content = json.loads(path.read_text("utf-8"))
    content["cases"][1]["failed"] = True
    path.write_text(json.dumps(content), "utf-8")

    with pytest.raises(MlperfError, match="changed since it was written"):
        read_results(path)

"""Files that the first version of each schema left are read as long as they last."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.addons.exports import csv_table
from pytest_mlperf.core.energy import Source
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.results import SCHEMA_VERSION
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.stores import accuracy_baselines, baselines, results
from pytest_mlperf.stores.documents import Document
from pytest_mlperf.stores.foreign import Migration
from pytest_mlperf.stores.migrations import MIGRATIONS
from pytest_mlperf.stores.results import as_text, from_bytes, read_results, write_results
from tests.core.made import present
from tests.reports.verdicts import reported

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


EVERY = tuple(KEPT.parent / f"version{schema}" / "every.json" for schema in (1, 2))
"""Each outcome, and a run with each energy and all that was grouped since."""

DERIVED = {"mean_w", "steady", "schema", "digest"}
"""Keys whose values follow from others now."""


def leaves(content: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value that says something, with the key that it stands under."""
    if isinstance(content, dict | list):
        items = content.items() if isinstance(content, dict) else ((key, one) for one in content)
        for name, value in items:
            yield from leaves(value, name)
    elif content not in (None, "", 0, False):
        yield key, content


def test_older_schemas_lose_nothing() -> None:
    """A file of the second schema was written from that of the first one."""
    first, second = map(read_results, EVERY)
    assert first == second
    assert first.schema == SCHEMA_VERSION == 3

    values_read = Counter(repr(value) for _, value in leaves(json.loads(as_text(first))))
    for file in EVERY:
        content = leaves(json.loads(file.read_text("utf-8")))
        then = Counter(repr(value) for key, value in content if key not in DERIVED)
        assert not then - values_read

    full = first.cases[-1].verdict
    run = full.runs[0]
    assert [run.energy[source].joules for source in Source] == [142_731.5, 187e3, 146e3, 9e3]
    assert [run.energy[source].source for source in Source] == [*Source]
    assert run.energy[Source.NVML].mean_w == pytest.approx(2378.858, rel=1e-6)
    assert run.energy[Source.EXPORTER].parts == {"GPU-a": 73_000.0, "GPU-b": None}
    assert run.energy[Source.EXPORTER].method == "counter"
    assert full.runs[1].energy == {}
    assert (run.hardware.ids, run.load.waited_s) == ("0a1b2c3d 4e5f6071", 28.0)
    assert (run.serving.server["waiting"], run.serving.salt) == (3.5, "amber")
    assert (full.steady, full.baseline.id, full.logs.tail) == (True, "0123456789ab", ("one", "two"))
    (metric,) = full.metrics
    assert (metric.direction, metric.robust_to, metric.robust) == ("drop", 0.014, True)
    assert (metric.baseline.value, metric.baseline.days, metric.baseline.lacks) == (
        24_118,
        4,
        "old",
    )
    assert [analysis.session for analysis in metric.baseline.sessions] == ["s1", "s2"]


@pytest.mark.parametrize("file", EVERY)
def test_reports_of_older_schemas_stay_as_they_were(file: Path) -> None:
    """The table of every figure is that of the release that wrote the file."""
    table = (KEPT / "every.csv").read_text("utf-8")
    assert csv_table.report(reported(read_results(file))) == table


DEFECTS: tuple[Any, ...] = (3, "x", [1], {"nvml": 1, "x": {}}, [[]], [{"power": [2]}])


@pytest.mark.parametrize(
    "key", ["runs", "metrics", "baseline", "exported", "energy", "baseline_set"]
)
def test_a_defect_of_an_older_file_is_named(key: str) -> None:
    """Nothing of an untrusted file ends in a traceback while it is migrated."""
    named = []
    for file, value in product(EVERY, DEFECTS):
        content = json.loads(file.read_text("utf-8"))
        (case,) = content["cases"] = content["cases"][-1:]
        verdict = case["verdict"]
        for table in (verdict, *verdict["metrics"], *verdict["runs"]):
            table[key] = value
            if key == "energy":  # that of the present schema, and none of the older one
                for name in ("power", "wall", "exported", "host"):
                    table.pop(name, None)
        with suppress(MlperfError):
            from_bytes("r.json", json.dumps(content).encode())
            continue
        with pytest.raises(MlperfError, match=r"^r\.json: not a results file: cases\[0\]"):
            from_bytes("r.json", json.dumps(content).encode())
        named.append(value)
    assert named


def renamed(first: int, suffix: str, *keys: str) -> dict[int, Migration]:
    """Return possible migrations of later versions: fields under other names, and one more."""
    to = {key: f"{key}{suffix}" for key in keys}
    back = {new: old for old, new in to.items()}
    return {
        first: lambda held: {to.get(key, key): value for key, value in held.items()},
        first + 1: lambda held: {back.get(key, key): value for key, value in held.items()},
    }


def test_results_come_up_step_by_step_or_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "SCHEMA_VERSION", 4)
    with pytest.raises(MlperfError, match="schema 3 is unknown; this release reads up to 4"):
        read_results(RESULTS)

    monkeypatch.setattr(results, "SCHEMA_VERSION", 5)
    monkeypatch.setattr(results, "MIGRATIONS", {**MIGRATIONS, **renamed(3, "_2", "run")})
    read = read_results(RESULTS)
    assert read.schema == 5
    assert read.run == json.loads(RESULTS.read_text("utf-8"))["run"]


@pytest.mark.parametrize("path", [BASELINE, ACCURACY])
def test_baselines_come_up_step_by_step(path: Path, tmp_path: Path) -> None:
    of = baselines.BASELINE_DOCUMENT if path == BASELINE else accuracy_baselines.ACCURACY_DOCUMENT
    file: Document[Any] = Document(of.kind, schema=3, title="baseline")
    old = of.load(path)
    file.migrations = renamed(1, "_2", "round", "workload")
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

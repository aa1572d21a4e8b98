"""Read criterion.rs's folders and asv's results."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_mlperf.addons.judge.files import Reader, ResultFile, has_keys, read_text, run_of
from pytest_mlperf.addons.judge.model import Fact, Quantity, ToolPoint, ToolRun
from pytest_mlperf.addons.judge.readers.fields import JsonObject, Values, moment, plain


def _estimates(folder: Path) -> list[Path]:
    """Return the `new` folder (results of the latest run) of each benchmark."""
    return sorted(file.parent for file in folder.rglob("new/estimates.json") if file.is_file())


def _is_criterion(document: ResultFile) -> bool:
    """Return whether a folder holds criterion.rs results with unique benchmark names."""
    names = [_name(folder, document.path) for folder in _estimates(document.path)]
    return 0 < len(names) == len(set(names))


def _name(folder: Path, root: Path) -> str:
    about = folder / "benchmark.json"
    described = read_text(about).head if about.is_file() else {}
    return str(described.get("full_id") or folder.parent.relative_to(root))


def _criterion(document: ResultFile) -> Iterator[ToolRun]:
    points, texts_read = [], []
    for folder in _estimates(document.path):
        estimates = read_text(folder / "estimates.json")
        texts_read.append(estimates.text)
        values = Values()
        for key, metric in (("mean", "time_mean"), ("median", "time_p50")):
            values.add(metric, estimates.head.at(key).get("point_estimate"), 1e-9)
        points.append(values.point(_name(folder, document.path)))
    whole = ResultFile(path=document.path, text="\n".join(texts_read))
    run = run_of(whole, "criterion", points=tuple(points))
    note = "criterion: samples of one process count as one run"
    yield replace(run, folder=str(document.path), notes=(note,))


CRITERION = Reader(title="criterion.rs", recognise=_is_criterion, read=_criterion, of_folders=True)


def _asv(document: ResultFile) -> Iterator[ToolRun]:
    raw = document.head
    columns = raw.get("result_columns") or ["result", "params", "version"]
    about = document.path.parents[1] / "benchmarks.json"
    definitions = read_text(about).head if about.is_file() else JsonObject()
    machine, rows = raw.at("params"), raw.at("results")
    machine_facts = machine.facts({"CPU": "cpu", "CPUs": "num_cpu", "architecture": "arch"})
    points = [
        point
        for name, row in rows.items()
        for point in _asv_points(name, row, columns, definitions.at(name), machine_facts)
    ]
    clock = columns.index("started_at") if "started_at" in columns else len(columns)
    starts = (
        moment(row[clock]) for row in rows.values() if isinstance(row, list) and len(row) > clock
    )
    yield run_of(
        document,
        "asv",
        points=tuple(points),
        # Its date is that of the commit, not of the run.
        started=min(filter(None, starts), default=None),
        host=machine.text("machine"),
        commit=(raw.text("commit_hash") or "")[:12] or None,
        details=raw.texts("env_name", "python"),
        notes=("asv: samples of one result count as one run",),
    )


CALLS_TOLERANCE = 0.5
"""asv chooses the calls of a sample by the speed of the code; up to half as many are alike."""

_ASV_METRICS = {"time": "time_p50", "timeraw": "time_p50", "mem": "memory", "peakmem": "memory"}


def _asv_points(
    name: str, row: Any, columns: list[str], definition: JsonObject, machine: Mapping[str, Fact]
) -> Iterator[ToolPoint]:
    cells = dict(zip(columns, row, strict=False)) if isinstance(row, list) else {"result": row}
    results, params = cells.get("result"), cells.get("params") or []
    combinations = list(itertools.product(*params))
    unit = str(definition.get("unit", "seconds"))
    kind = name.rpartition(".")[2].partition("_")[0]
    metric = _ASV_METRICS.get(kind, "track")
    for number, combination in enumerate(combinations):
        value = _cell(results, number)
        shown = f"({', '.join(map(str, combination))})" if combination else ""
        values = Values()
        calls = plain(_cell(cells.get("stats_number"), number))
        values.facts |= {
            **machine,
            "benchmark version": Fact(plain(cells.get("version"))),
            "calls per sample": Fact(calls, tolerance=CALLS_TOLERANCE),
        }
        if value is None:
            yield values.point(f"{name}{shown}", broken="the benchmark failed: asv recorded null")
            continue
        if isinstance(value, float) and math.isnan(value):
            values.absent[metric] = "skipped"
        else:
            values.add(metric, value)
        quantity = Quantity(f"tracked value [{unit}]", unit)
        quantities = {"track": quantity} if metric == "track" else {}
        yield values.point(f"{name}{shown}", quantities=quantities)


def _cell(values: Any, number: int) -> Any:
    return values[number] if isinstance(values, list) and number < len(values) else None


ASV = Reader(
    title="asv",
    recognise=has_keys("results", marks=("result_columns", "env_name")),
    read=_asv,
)

"""What the page draws of one case: its history, its latencies, its GPUs. Packed, to stay small."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from statistics import geometric_mean
from typing import Any

from pytest_mlperf.core.baseline import HistoryEntry, Record
from pytest_mlperf.core.metrics import METRICS
from pytest_mlperf.core.numbers import limit, percent, quantity
from pytest_mlperf.core.results import CaseResult
from pytest_mlperf.core.verdict import MetricVerdict
from pytest_mlperf.reports.cells import title
from pytest_mlperf.reports.html.model import Beside, Grouped, Moment, PowerTrace, rounded

Packed = dict[str, Any]

TOLD = 10
"""Accepted baselines, the newest, whose reason is told; of those before them only the value."""

LONGEST = 160
"""Characters of a reason."""

SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}

_TONES = {"fault": "fail", "cap": "open", "plain": "note"}

_DAY_S = 86_400


def figures_of(one: Grouped, beside: Beside, most: int) -> list[Packed]:
    """Return what is drawn when a case is opened.

    Args:
        one: The case.
        beside: What lies beside the results file.
        most: Accepted baselines of a metric that are shown, the newest.
    """
    found: list[Packed] = []
    seen: set[str] = set()
    for result in one.results:
        record = beside.records.get(result.test)
        for metric in _gated(result):
            marks = beside.versions.get(result.test, ())
            found += _history(metric, result, record, marks, most)
        found += _latencies(result, record, beside)
        if moments := beside.moments.get(result.test):
            found.append(_moments(moments))
        runs = result.verdict.runs
        trace = beside.power.get(result.test)
        if trace and runs[-1].folder not in seen:
            found.append(_power(trace, len(runs)))
            seen.add(runs[-1].folder)
    return found


def _gated(result: CaseResult) -> list[MetricVerdict]:
    verdict = result.verdict
    if verdict.kind not in {"performance", "efficiency"}:
        return []
    return [m for m in verdict.metrics if m.outcome is not None and m.metric in METRICS]


# --- history ---------------------------------------------------------------------------------


def _history(
    metric: MetricVerdict,
    result: CaseResult,
    record: Record | None,
    versions: Sequence[tuple[str, str]],
    most: int,
) -> Iterator[Packed]:
    """Yield the accepted baselines of a metric, the runs of the last one, and those of now."""
    name, verdict = metric.metric, result.verdict
    runs = [run for run in verdict.runs if not run.invalid and run.metrics.get(name, 0) > 0]
    if not runs:
        return
    unit, factor = _unit(name, runs[-1].metrics[name])
    entries = [e for e in record.history if e.new.get(name, 0) > 0][-most:] if record else []
    days = [_days(entry.date) for entry in entries]
    if record and entries and record.runs[-1].started.startswith(entries[-1].date):
        days[-1] = _days(record.runs[-1].started)  # the hour of that day is known
    known = {entry.date: day for entry, day in zip(entries, days, strict=True)}
    marks = [(known.get(date, _days(date)), text) for date, text in versions]
    if record and (version := engine_version(record.fingerprint)) and days and not marks:
        marks.append((days[-1], version))
    if verdict.changed:
        marks.append((_days(runs[0].started), "; ".join(verdict.changed)))
    yield {
        "plot": "history",
        "title": title(name),
        "unit": unit,
        "mean": rounded((metric.baseline or 0.0) * factor),
        "step": _steps(days),
        "value": [rounded(entry.new[name] * factor) for entry in entries],
        "told": [[entry.runs, _reason(entry)] for entry in entries[-TOLD:]],
        "base": [
            [_days(run.started), rounded(run.metrics[name] * factor)]
            for run in (record.runs if record else ())
            if run.metrics.get(name, 0) > 0
        ],
        "now": [[_days(run.started), rounded(run.metrics[name] * factor)] for run in runs],
        "marks": [[day, text[:LONGEST]] for day, text in marks],
    }


def _reason(entry: HistoryEntry) -> str:
    return f"{entry.action} at {entry.commit or 'no commit'}: {entry.reason}"[:LONGEST]


def _unit(metric: str, value: float) -> tuple[str, float]:
    """Return the unit that a time is best read in, and how many of it a second is."""
    if METRICS[metric].unit != "s":
        return "", 1.0
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if value * factor >= 1:
            return unit, factor
    return "µs", 1e6


@lru_cache(maxsize=10_000)
def _days(moment: str) -> float | int:
    """Return days since 1970, UTC; of what is no date, 0."""
    try:
        found = dt.datetime.fromisoformat(moment)
    except ValueError:
        return 0
    if found.tzinfo is None:
        found = found.replace(tzinfo=dt.UTC)
    days = found.timestamp() / _DAY_S
    return int(days) if len(moment) <= len("2026-11-20") else round(days, 4)


def _steps(days: Sequence[float]) -> list[float | int]:
    """Return the first day, then how many days each is after the whole one before."""
    before, found = 0, list[float | int]()
    for day in days:
        found.append(round(day - before, 4))
        before = int(day)
    return found


def engine_version(fingerprint: Mapping[str, str]) -> str:
    """Return the engine with its version, as far as a fingerprint says."""
    engine = fingerprint.get("engine.engine") or fingerprint.get("engine", "").rpartition(":")[2]
    version = fingerprint.get("engine.version") or fingerprint.get(f"engine.{engine}", "")
    return f"{engine} {version}".strip()[:LONGEST]


# --- latencies -------------------------------------------------------------------------------


def _latencies(result: CaseResult, record: Record | None, beside: Beside) -> Iterator[Packed]:
    """Yield the distribution of each time that a run of queries has, now and in the baseline."""
    verdict = result.verdict
    runs = [run.metrics for run in verdict.runs if not run.invalid]
    if verdict.kind != "performance" or not runs:
        return
    logged = {each.what: each for each in beside.percentiles.get(result.test, ())}
    for what, words in (("latency", "latency"), ("ttft", "TTFT"), ("tpot", "TPOT")):
        now = list(logged[what].points) if what in logged else _points(what, [runs[-1]])
        before = _points(what, [run.metrics for run in record.runs]) if record else []
        if not now:
            continue
        rows = [
            _row(when, *point) for when, p in (("baseline", before), ("now", now)) for point in p
        ]
        if what in logged:
            told = logged[what]
            if told.limit_s is not None and told.limit_share:
                rows.append(_row("limit", told.limit_share, told.limit_s, "LoadGen's limit"))
        for metric in verdict.metrics:
            name, _, percentile = metric.metric.rpartition("_")
            if name == what and metric.limit and metric.baseline and percentile in SHARES:
                most = metric.baseline * (1 + metric.limit)
                said = f"{limit(metric.metric, metric.limit)} of the baseline"
                rows.append(_row("limit", SHARES[percentile], most, said))
        yield {"plot": "latency", "title": f"{words}, now and in the baseline", "rows": rows}


def _points(what: str, runs: Sequence[Mapping[str, float]]) -> list[tuple[float, float]]:
    found = []
    for name, share in SHARES.items():
        values = [run[f"{what}_{name}"] for run in runs if run.get(f"{what}_{name}", 0) > 0]
        if values:
            found.append((share, geometric_mean(values)))
    return found


def _row(when: str, share: float, seconds: float, why: str = "") -> list[Any]:
    """Return a point with the rank that stretches the tail: log10 of 1 / (1 - share)."""
    rank = round(-math.log10(max(1 - share, 1e-9)), 3) + 0.0
    text = quantity("latency_p50", seconds)
    shown = percent(share) if share < 0.9995 else f"{100 * share:.5g} %"
    return [when, shown if share > 0 else "fastest", rank, rounded(seconds * 1e3), text, why]


# --- over the run ----------------------------------------------------------------------------


def _moments(moments: Sequence[Moment]) -> Packed:
    return {
        "plot": "moments",
        "title": "Latency over time",
        "says": f"Of the queries that ended in each of {len(moments)} parts of the last run.",
        "rows": [
            [
                round(each.time_s, 2),
                rounded(each.p50_s * 1e3),
                rounded(each.p99_s * 1e3),
                each.outstanding,
            ]
            for each in moments
        ],
    }


def _power(trace: PowerTrace, number: int) -> Packed:
    def packed(readings: Sequence[tuple[float, float]]) -> list[list[float]]:
        return [[round(s, 2) for s, _ in readings], [round(value, 1) for _, value in readings]]

    return {
        "plot": "power",
        "title": f"Power, clock and temperature, run {number}",
        "says": _held_back(trace),
        "window": round(trace.window_s, 2),
        "gpus": [
            {
                "name": gpu.name,
                "limit": gpu.limit_w,
                "power": packed(gpu.power),
                "clock": packed(gpu.clock),
                "temperature": packed(gpu.temperature),
            }
            for gpu in trace.gpus
        ],
        "held": [
            [reason, _TONES.get(kind, "note"), [[round(a, 2), round(b, 2)] for a, b in spans]]
            for reason, kind, spans in trace.held
        ],
    }


def _held_back(trace: PowerTrace) -> str:
    """Return what is shaded, in words."""
    held = [reason for reason, _, spans in trace.held if spans]
    said = "LoadGen's window is shaded"
    return f"{said}; so is where clocks were held back: {', '.join(held)}." if held else f"{said}."

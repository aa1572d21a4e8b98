"""Build the sections of the HTML page on each case: tests with tables, reasons and commands."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from statistics import geometric_mean
from typing import Any

from pytest_mlperf.addons.html.model import Grouped, Packed, RunFiles, judged_metrics, rounded, tone
from pytest_mlperf.core.baseline import Record
from pytest_mlperf.core.history import CaseHistory
from pytest_mlperf.core.measurement import moment_of
from pytest_mlperf.core.metrics import RATES, at_point, point_of, title
from pytest_mlperf.core.numbers import change, interval, limit, quantity
from pytest_mlperf.extension import (
    METRICS,
    CaseResult,
    Kind,
    MetricVerdict,
    Scenario,
    Subject,
    percent,
    plural,
    some,
)
from pytest_mlperf.reports.rows import all_tables, facts_of, notes_of
from pytest_mlperf.reports.terminal.advice import commands

MAX_TOLD_BASELINES = 10
"""Number of newest accepted baselines shown with their reason; older ones have only the value."""

MAX_REASON_CHARACTERS = 160
MAX_LISTED_VALUES = 8
SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}

_DAY_S = 86_400


def figures_of(group: Grouped, files: RunFiles, most: int) -> list[Packed]:
    """Return the plots of a case; plots over time have at most `most` points."""
    figures: list[Packed] = []
    seen: set[str] = set()
    for result in group.results:
        record = files.records.get(result.test)
        for metric in judged_metrics(result):
            figures += _history(metric, result, record, files.versions.get(result.test, ()), most)
            figures += _sessions(metric.metric, result, files, most)
        figures += _curve(result, record)
        figures += _latencies(result, record, files)
        if moments := files.moments.get(result.test):
            figures.append(_moments(moments))
        runs = result.verdict.runs
        power = files.power.get(result.test)
        if power and runs[-1].folder not in seen:
            figures.append({"title": f"Power, clock and temperature, run {len(runs)}", **power})
            seen.add(runs[-1].folder)
    return figures


def _history(
    metric: MetricVerdict,
    result: CaseResult,
    record: Record | None,
    versions: Sequence[tuple[str, str]],
    most: int,
) -> Iterator[Packed]:
    name, verdict = metric.metric, result.verdict
    runs = [run for run in verdict.runs if not run.invalid and run.metrics.get(name, 0) > 0]
    if not runs:
        return
    unit, factor = _unit(name, runs[-1].metrics[name])
    entries = [e for e in record.history if e.new.get(name, 0) > 0][-most:] if record else []
    days = [_days(entry.date) for entry in entries]
    if record and entries and record.runs[-1].started.startswith(entries[-1].date):
        days[-1] = _days(record.runs[-1].started)  # the hour of that day is known
    day_of = {entry.date: day for entry, day in zip(entries, days, strict=True)}
    marks = [(day_of.get(date, _days(date)), text) for date, text in versions]
    if record and (version := engine_version(record.fingerprint)) and days and not marks:
        marks.append((days[-1], version))
    if verdict.baseline.changed:
        marks.append((_days(runs[0].started), "; ".join(verdict.baseline.changed)))
    yield {
        "plot": "pairs" if verdict.other_runs else "history",
        "title": title(name),
        "unit": unit,
        "mean": rounded((metric.baseline.value or 0.0) * factor),
        "step": _steps(days),
        "value": [rounded(entry.new[name] * factor) for entry in entries],
        "told": [
            [e.runs, f"{e.action} at {e.commit or 'no commit'}: {e.reason}"[:MAX_REASON_CHARACTERS]]
            for e in entries[-MAX_TOLD_BASELINES:]
        ],
        "base": [
            [_days(run.started), rounded(run.metrics[name] * factor)]
            for run in (record.runs if record else verdict.other_runs)
            if run.metrics.get(name, 0) > 0
        ],
        "now": [[_days(run.started), rounded(run.metrics[name] * factor)] for run in runs],
        "marks": [[day, text[:MAX_REASON_CHARACTERS]] for day, text in marks],
    }


def _sessions(metric: str, result: CaseResult, files: RunFiles, most: int) -> Iterator[Packed]:
    case, kind = result.verdict.case.id, result.verdict.kind
    for history in files.sessions.get(case, ()):
        if (history.series.metric, history.series.kind) != (metric, kind):
            continue
        unit, factor = _unit(metric, history.values[-1])
        changed = {one.index: f"{change(one.change)} from here on" for one in history.changes}
        marks = [
            "; ".join(filter(None, ["baseline accepted" * accepted, changed.get(place, "")]))
            for place, accepted in enumerate(history.accepted)
        ]
        rows = [
            [
                _days(point.started),
                rounded(point.value * factor),
                rounded(point.baseline * factor) if point.baseline else None,
                "failed" if point.failed else "session",
                (point.commit or "")[:12],
                text,
            ]
            for point, text in zip(history.points, marks, strict=True)
        ][-most:]
        yield {
            "plot": "sessions",
            "title": title(metric),
            "unit": unit,
            "says": _level(history),
            "rows": rows,
        }


def _level(history: CaseHistory) -> str:
    many = plural(len(history.points), "session")
    texts = [
        f"{change(one.change)} ({interval(one.low, one.high)}) from "
        f"{history.points[one.index].started[:10]} on"
        for one in history.changes
    ]
    return f"{many}; {'; '.join(texts)}" if texts else f"{many}; no change of level is proven"


def _unit(metric: str, value: float) -> tuple[str, float]:
    """Return (readable unit, its factor from seconds) for a time; ("", 1) for other metrics."""
    if METRICS[metric].unit != "s":
        return "", 1.0
    units = (("s", 1.0), ("ms", 1e3))
    return next(((unit, factor) for unit, factor in units if value * factor >= 1), ("µs", 1e6))


@lru_cache(maxsize=10_000)
def _days(moment: str) -> float | int:
    """Return a date or time as days since 1970 in UTC; 0 if it is invalid."""
    when = moment_of(moment)
    if when is None:
        return 0
    days = when.timestamp() / _DAY_S
    return int(days) if len(moment) <= len("2026-11-20") else round(days, 4)


def _steps(days: Sequence[float]) -> list[float | int]:
    """Encode days compactly: the first, then each minus the whole part of the previous one."""
    before, steps = 0, list[float | int]()
    for day in days:
        steps.append(round(day - before, 4))
        before = int(day)
    return steps


def engine_version(fingerprint: Mapping[str, str]) -> str:
    """Return the engine's name and version as text, without those that the fingerprint lacks."""
    engine = fingerprint.get("engine.engine") or fingerprint.get("engine", "").rpartition(":")[2]
    version = fingerprint.get("engine.version") or fingerprint.get(f"engine.{engine}", "")
    return f"{engine} {version}".strip()[:MAX_REASON_CHARACTERS]


def _curve(result: CaseResult, record: Record | None) -> Iterator[Packed]:
    """Yield a plot of total throughput against speed per user, one point per concurrency.

    It shows the baseline too. For OpenLoop, plots over request rates are yielded instead.
    """
    verdict = result.verdict
    if verdict.case.scenario == Scenario.OPEN_LOOP:
        yield from _over_rates(result, record)
        return
    rates = [m for m in judged_metrics(result) if m.metric.partition("@")[0] in RATES]
    judged = {point: m for m in rates if (point := point_of(m.metric))}
    runs = [run.metrics for run in verdict.runs if not run.invalid]
    if verdict.kind != Kind.PERFORMANCE or not judged or not runs:
        return
    before = [run.metrics for run in record.runs] if record else []
    rate = next(iter(judged.values())).metric.partition("@")[0]
    of_tokens = all(at_point("tps_per_user", point) in run for point in judged for run in runs)
    rows: list[list[Any]] = []
    for when, measured in (("baseline", before), ("now", runs)):
        for point, metric in sorted(judged.items()):
            # What one of the users at the point sees.
            speed, users = ("tps_per_user", 1.0) if of_tokens else (rate, point)
            x = [run.get(at_point(speed, point), 0.0) / users for run in measured]
            y = [run.get(at_point(rate, point), 0.0) for run in measured]
            if not (all(x) and all(y) and x):
                continue
            rows.append([when, point, *map(rounded, map(geometric_mean, (x, y)))])
            rows[-1] += _ends(metric) if when == "now" else [None, None, "note", ""]
    unit = METRICS[rate].title
    yield {
        "plot": "curve",
        "title": f"{unit}, all users together and each user",
        "says": (
            "Each point is a number of concurrent requests. Higher: more throughput of the server. "
            "Further to the right: faster for each user. The vertical line through a point is the "
            "interval of its change. The steps are drawn as in MLPerf Endpoints, and not judged."
        ),
        "unit": f"{unit} of all users",
        "over": f"{unit if of_tokens else 'requests/s'} of one user",
        "rows": [[*row, int(_is_pareto_optimal(row, rows))] for row in rows],
    }


def _over_rates(result: CaseResult, record: Record | None) -> Iterator[Packed]:
    """Yield a plot over request rates for each judged metric of OpenLoop, with the baseline."""
    judged = [m for m in judged_metrics(result) if point_of(m.metric)]
    runs = [run.metrics for run in result.verdict.runs if not run.invalid]
    before = [run.metrics for run in record.runs] if record else []
    for base in dict.fromkeys(metric.metric.partition("@")[0] for metric in judged):
        scale, unit = (1e3, ", milliseconds") if METRICS[base].unit == "s" else (1.0, "")
        rows: list[list[Any]] = []
        for when, measured in (("baseline", before), ("now", runs)):
            for metric in judged:
                values = [run.get(metric.metric, 0.0) * scale for run in measured]
                if metric.metric.partition("@")[0] != base or not (values and all(values)):
                    continue
                point = point_of(metric.metric)
                ends: list[Any] = [None, None, "note", ""]
                if when == "now":
                    low, high, *rest = _ends(metric)
                    ends = [None if e is None else rounded(e * scale) for e in (low, high)] + rest
                rows.append([when, point, point, rounded(geometric_mean(values)), *ends, 1])
        if rows:
            yield {
                "plot": "rates",
                "title": f"{METRICS[base].title} over the rate at which requests arrive",
                "says": "The vertical line through a point is the interval of its change.",
                "unit": f"{METRICS[base].title}{unit}",
                "rows": rows,
            }


def _is_pareto_optimal(row: Sequence[Any], rows: Sequence[Sequence[Any]]) -> bool:
    """Return whether no other row of the same build is as good in total and per-user speed."""
    (when, point, user, rate, *_) = row
    return not any(
        other[0] == when and other[1] != point and other[2] >= user and other[3] >= rate
        for other in rows
    )


def _ends(metric: MetricVerdict) -> list[Any]:
    low, high = (
        None
        if share is None or not metric.baseline.value
        else rounded(metric.baseline.value * (1 + share))
        for share in (metric.low, metric.high)
    )
    word = str(metric.outcome)
    text = word if metric.change is None else f"{word} {change(metric.change)}"
    return [low, high, tone(metric.outcome, failed=metric.fails), text]


def _latencies(result: CaseResult, record: Record | None, files: RunFiles) -> Iterator[Packed]:
    verdict = result.verdict
    runs = [run.metrics for run in verdict.runs if not run.invalid]
    if verdict.kind != Kind.PERFORMANCE or not runs:
        return
    logged = {each.timed: each for each in files.percentiles.get(result.test, ())}
    for timed, words in (("latency", "latency"), ("ttft", "TTFT"), ("tpot", "TPOT")):
        logs = logged.get(timed)
        now = list(logs.points) if logs else _points(timed, [runs[-1]])
        before = _points(timed, [run.metrics for run in record.runs]) if record else []
        if not now:
            continue
        rows = [
            _percentile_row(when, *point)
            for when, p in (("baseline", before), ("now", now))
            for point in p
        ]
        if logs and logs.limit_s is not None and logs.limit_share:
            rows.append(_percentile_row("limit", logs.limit_share, logs.limit_s, "LoadGen's limit"))
        for metric in verdict.metrics:
            name, _, percentile = metric.metric.rpartition("_")
            if name == timed and metric.limit and metric.baseline.value and percentile in SHARES:
                most = metric.baseline.value * (1 + metric.limit)
                text = f"{limit(metric.metric, metric.limit)} of the baseline"
                rows.append(_percentile_row("limit", SHARES[percentile], most, text))
        yield {"plot": "latency", "title": f"{words}, now and in the baseline", "rows": rows}


def _points(timed: str, runs: Sequence[Mapping[str, float]]) -> list[tuple[float, float]]:
    points = []
    for name, share in SHARES.items():
        values = [run[f"{timed}_{name}"] for run in runs if run.get(f"{timed}_{name}", 0) > 0]
        if values:
            points.append((share, geometric_mean(values)))
    return points


def _percentile_row(series: str, share: float, latency_s: float, limit_text: str = "") -> list[Any]:
    """Return a plot row for a percentile: [series, label, x, milliseconds, text, limit text].

    Its x coordinate is log10(1 / (1 - share)), which spreads out the tail.
    """
    rank = round(-math.log10(max(1 - share, 1e-9)), 3) + 0.0
    text = quantity("latency_p50", latency_s)
    shown = percent(share) if share < 0.9995 else f"{100 * share:.5g} %"
    return [
        series,
        shown if share > 0 else "fastest",
        rank,
        rounded(latency_s * 1e3),
        text,
        limit_text,
    ]


def _moments(moments: Sequence[Sequence[float]]) -> Packed:
    return {
        "plot": "moments",
        "title": "Latency over time",
        "says": f"Latency of queries that ended in each of {len(moments)} parts of the last run.",
        "rows": [
            [round(time_s, 2), rounded(p50_s * 1e3), rounded(p99_s * 1e3), outplacing]
            for time_s, p50_s, p99_s, outplacing in moments
        ],
    }


def template_cases(
    cases: Sequence[Grouped], causes: Mapping[str, Sequence[str]]
) -> tuple[list[Packed], dict[str, list[Subject]]]:
    """Return template data of each case, and by description the measured systems of all cases.

    `causes` has the common causes of a failure, by test.
    """
    environments: dict[str, list[Subject]] = defaultdict(list)
    listed = []
    for group in cases:
        subject = next((r.verdict.subject for r in group.results if r.verdict.subject), None)
        machine = in_words(subject) if subject else ""
        if subject:
            environments[machine].append(subject)
        tests = [
            _test(result, causes.get(result.test, ()))
            for result in sorted(group.results, key=lambda result: not result.failed)
        ]
        listed.append(
            {
                "grouped": group,
                "outcome": str(group.worst.verdict.outcome),
                "headline": group.worst.verdict.headline,
                "tests": tests,
                "environment": list(environments).index(machine) + 1 if subject else 0,
                "words": "|".join(dict.fromkeys(str(r.verdict.outcome) for r in group.results)),
            }
        )
    return listed, environments


def common_facts(subjects: Sequence[Subject]) -> list[tuple[str, str]]:
    """Return (name, value) of hardware and software facts; if tests differ, all their values."""
    values: dict[str, dict[str, None]] = defaultdict(dict)
    for one in subjects:
        for name, value in {**one.identity, **one.fingerprint, **one.surroundings}.items():
            values[name]["unknown" if value is None else str(value)] = None
    return [(name, some(list(texts), MAX_LISTED_VALUES)) for name, texts in values.items()]


def in_words(subject: Subject) -> str:
    """Describe in one line what was measured: engine, version and machine."""
    parts = [f"{name} {value}" for name, value in subject.identity.items() if value is not None]
    return ", ".join([*filter(None, [engine_version(subject.fingerprint)]), *parts])


def _test(result: CaseResult, causes: Sequence[str]) -> Packed:
    verdict = result.verdict
    return {
        "verdict": verdict,
        "tone": tone(verdict.outcome, failed=result.failed),
        "tables": [(*table.filled, table.left) for table in all_tables(verdict)],
        "causes": causes,
        "notes": notes_of(verdict),
        "facts": list(facts_of(result).items()),
        "commands": list(commands(result)),
    }

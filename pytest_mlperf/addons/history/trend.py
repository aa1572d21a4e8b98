"""Compute and format the changes of a case between accepted baselines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from pytest_mlperf.core.baseline import differences
from pytest_mlperf.core.metrics import title
from pytest_mlperf.core.numbers import change, interval, quantity
from pytest_mlperf.core.rulings.ruling import rule_values
from pytest_mlperf.core.rulings.sides import SPARE_SESSIONS, Pooled, pooled
from pytest_mlperf.core.search import other_condition
from pytest_mlperf.core.trend import TrendPoint, version_labels
from pytest_mlperf.extension import METRICS, plural
from pytest_mlperf.hardware.machine import split
from pytest_mlperf.judge import Direction, RuleR
from pytest_mlperf.judge.formulas import to_relative_change
from pytest_mlperf.judge.robustness import MAX_SPREAD_RATIO
from pytest_mlperf.judge.rule_a import holm
from pytest_mlperf.reports.terminal.layout import fold, paragraphs, table

CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True)
class TrendStep:
    """Hold the change of a metric from one accepted baseline to a later one.

    Values that are not known are None.

    Attributes:
        low, high: Two-sided 95 % confidence interval of the change.
        better: True if proven better, False if proven worse, None if neither.
        by_sessions: Whether there are enough sessions to estimate the variance between sessions.
        refused: Reasons why the baselines are not comparable; empty if they are.
    """

    change: float | None = None
    low: float | None = None
    high: float | None = None
    better: bool | None = None
    p: float | None = None
    by_sessions: bool | None = None
    refused: tuple[str, ...] = ()


def step(a: TrendPoint, b: TrendPoint, metric: str, rule: RuleR) -> TrendStep:
    """Return a metric's change from accepted baseline `a` to a later one, `b`."""
    if refused := why_no_ratio(a, b, metric):
        return TrendStep(refused=refused)
    ratio = ratio_of(a, b, metric, rule)
    if ratio is None:
        return TrendStep(change=b.means[metric] / a.means[metric] - 1)
    half, d = ratio.reach((1 - CONFIDENCE) / 2), ratio.change
    low, change, high = (to_relative_change(x, Direction.HIGHER) for x in (d - half, d, d + half))
    better = None
    if (low > 0 or high < 0) and METRICS[metric].direction is not Direction.NEITHER:
        better = (d > 0) is (METRICS[metric].direction is Direction.HIGHER)
    p = min(1.0, 2 * ratio.p(1 if d > 0 else -1))
    return TrendStep(
        change=change, low=low, high=high, better=better, p=p, by_sessions=ratio.by_sessions
    )


def ratio_of(a: TrendPoint, b: TrendPoint, metric: str, rule: RuleR) -> Pooled | None:
    """Return the ratio of a metric in baseline `b` to baseline `a`; None if not comparable."""
    if why_no_ratio(a, b, metric):
        return None
    old, new = (rule_values(runs, metric, by_day=False) for runs in (a.runs, b.runs))
    return pooled(old, new, rule=rule) if old and new else None


def holm_adjusted(steps: Sequence[TrendStep]) -> list[TrendStep]:
    """Return the steps; set `better` to None if not significant by Holm's method.

    The probability that an unchanged metric shows any better or worse change is at most 5 %.
    """
    p_values = {place: step.p for place, step in enumerate(steps) if step.p is not None}
    stay = holm(p_values, 1 - CONFIDENCE)
    return [
        step if step.p is None or place in stay else replace(step, better=None)
        for place, step in enumerate(steps)
    ]


def why_no_ratio(a: TrendPoint, b: TrendPoint, metric: str) -> tuple[str, ...]:
    """Return every reason why two accepted baselines are not comparable; () if they are."""
    (old_count, old_class), (new_count, new_class) = (
        split(point.case.accelerator) for point in (a, b)
    )
    pairs: dict[str, tuple[object, object]] = {
        "workload": (a.case.workload, b.case.workload),
        "scenario": (a.case.scenario, b.case.scenario),
        "precision": (a.case.precision, b.case.precision),
        "number of accelerators": (old_count, new_count),
        "accelerator": (old_class, new_class),
        "profile": (a.profile, b.profile),
    }
    if a.fingerprint and b.fingerprint:
        pairs["division"] = (a.division, b.division)
    reasons = [f"{name} differs: {old} → {new}" for name, (old, new) in pairs.items() if old != new]
    same_accelerator = (old_count, old_class) == (new_count, new_class)
    if same_accelerator and (apart := differences(a.identity, b.identity)):
        listing = ", ".join(f"{d.name} {d.theirs} → {d.ours}" for d in apart)
        reasons.append(f"other hardware: {listing}")
    if a.rate != b.rate:
        reasons.append(f"offered rate differs: {_rate(a)} → {_rate(b)}")
    if a.fingerprint and b.fingerprint:
        reasons += filter(None, [other_condition(a.fingerprint, b.fingerprint)])
    data = [point.fingerprint.get("dataset") for point in (a, b)]
    if None not in data and data[0] != data[1]:
        reasons.append(f"data set differs: {str(data[0])[:8]}… → {str(data[1])[:8]}…")
    return (*reasons, *_metrics(a, b, metric))


def _metrics(a: TrendPoint, b: TrendPoint, metric: str) -> list[str]:
    return [
        f"metric differs: the baseline of {point.date} has no {title(metric)}; it has "
        + ", ".join(title(name) for name in point.means if name in METRICS)
        for point in (a, b)
        if metric not in point.means
    ]


def _rate(point: TrendPoint) -> str:
    return "not known" if point.rate is None else f"{point.rate:g}/s"


def grouped(points: Sequence[TrendPoint]) -> list[TrendPoint]:
    """Return baselines grouped by case and machine; the group with the newest one is last."""
    groups: dict[str, list[TrendPoint]] = {}
    for point in sorted(points, key=lambda point: point.date):
        case = (point.case.workload, point.case.scenario, point.case.precision)
        where = (point.case.accelerator, point.profile, sorted(point.identity.items()))
        groups.setdefault(repr((case, where)), []).append(point)
    return [p for group in sorted(groups.values(), key=lambda group: group[-1].date) for p in group]


TREND_COLUMNS = ("date", "commit", "engine", "case", "runs", "value", "change", "interval", "says")


@dataclass(frozen=True, kw_only=True)
class Trend:
    """Hold the changes of a metric between accepted baselines.

    Attributes:
        points: Accepted baselines, oldest first; at least one.
        steps: Change from each baseline to the next one; one fewer than baselines.
        since: Index of the oldest baseline that is comparable with the last one; None if there is
            none.
        total: Change from that baseline to the last one.
        noise: Where the expected noise comes from, as text.
    """

    metric: str
    points: Sequence[TrendPoint]
    steps: Sequence[TrendStep]
    since: int | None
    total: TrendStep
    notes: Sequence[str]
    noise: str


def trend_of(
    points: Sequence[TrendPoint], metric: str | None, rule: RuleR, notes: Sequence[str], noise: str
) -> Trend:
    """Return the changes from baseline to baseline, oldest first, and the total change.

    Better and worse changes are adjusted for multiple testing, see `holm_adjusted`. `metric` None
    selects the first known metric of the last baseline.
    """
    last = points[-1]
    name = metric or next((name for name in last.means if name in METRICS), "throughput")
    totals = [step(point, last, name, rule) for point in points[:-1]]
    since = next((i for i, total in enumerate(totals) if not total.refused), None)
    steps = [step(a, b, name, rule) for a, b in pairwise(points)]
    if since is None:
        steps, total = holm_adjusted(steps), TrendStep()
    elif since == len(steps) - 1:
        steps = holm_adjusted(steps)
        total = steps[-1]  # one and the same: not to be counted twice
    else:
        *steps, total = holm_adjusted([*steps, totals[since]])
    return Trend(
        metric=name,
        points=points,
        steps=steps,
        since=since,
        total=total,
        notes=notes,
        noise=noise,
    )


def trend(history: Trend, width: int) -> list[str]:
    """Return lines with a table of a metric's changes, reasons for gaps, and the total change."""
    cases = dict.fromkeys(point.case.id for point in history.points)
    rows = _trend_rows(history, several=len(cases) > 1)
    columns = [name if name != "value" else title(history.metric) for name in TREND_COLUMNS]
    left = ["date", "commit", "engine", "case", "says"]
    lines = [line for case in cases for line in fold(case, width)]
    lines += [
        "",
        *table(
            rows,
            width,
            left=left,
            spare=["runs", "commit", "case", "interval"],
            columns=columns,
        ),
        "",
    ]
    for number, later in enumerate(history.steps, start=1):
        if later.refused:
            ends = f"{history.points[number - 1].date} to {history.points[number].date}"
            lines += paragraphs("no ratio", [f"{ends}: {text}" for text in later.refused], width)
    lines += paragraphs("note", [*_trend_notes(history), *history.notes], width)
    return [*lines, *paragraphs("total", [_total(history)], width)]


def _trend_rows(history: Trend, *, several: bool) -> list[dict[str, str]]:
    steps, names = (None, *history.steps), version_labels(history.points)
    return [
        {
            "date": point.date,
            "commit": point.commit[:9] if point.commit != "not committed" else point.commit,
            "engine": version,
            "case": f"{point.case.engine}-{point.case.accelerator}" if several else "",
            "runs": str(len(point.runs) or ""),
            title(history.metric): quantity(history.metric, point.means[history.metric])
            if history.metric in point.means
            else "",
            **(_step_cells(step) if step else {}),
        }
        for point, version, step in zip(history.points, names, steps, strict=True)
    ]


def _step_cells(step: TrendStep) -> dict[str, str]:
    if step.change is None:
        return {"says": "no ratio"}
    bounds = "" if step.low is None or step.high is None else interval(step.low, step.high)
    return {"change": change(step.change), "interval": bounds, "says": _says(step)}


def _says(step: TrendStep) -> str:
    if step.low is None:
        return "runs missing"
    return {True: "better", False: "worse", None: "not proven"}[step.better]


def _trend_notes(history: Trend) -> list[str]:
    steps = [step for step in history.steps if step.low is not None]
    if not steps:
        return []
    notes = ["95 % confidence intervals, from all runs of both baselines"]
    if len(history.points) > 2:
        notes.append(
            "better and worse are corrected for the number of changes shown: if nothing "
            "changed, 1 history of 20 contains one of these words"
        )
    if any(step.by_sessions is False for step in (*steps, history.total)):
        notes.append(
            f"with fewer than {SPARE_SESSIONS + 2} sessions in both baselines the variation "
            f"between sessions is unknown: {MAX_SPREAD_RATIO:g} times that of runs is "
            "assumed, so these intervals are wide"
        )
    return [*notes, history.noise]


def _total(history: Trend) -> str:
    if len(history.points) == 1:
        return "one accepted baseline: nothing to compare it with yet"
    if history.since is None:
        return "the newest baseline cannot be compared with an earlier one"
    names = version_labels(history.points)
    ends = f"{names[history.since]} → {names[-1]}"
    days = f"{history.points[history.since].date} to {history.points[-1].date}"
    text = f"{title(history.metric)} {change(history.total.change or 0.0)}"
    if history.total.low is not None and history.total.high is not None:
        text += f" ({interval(history.total.low, history.total.high)}), {_says(history.total)}"
    left = f"; not comparable: {plural(history.since, 'earlier baseline')}" if history.since else ""
    return f"{text}: {ends}, {days}{left}"

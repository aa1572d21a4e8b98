"""Compute a case's changes between accepted baselines, if they are comparable."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_mlperf.core.baseline import BaselineRun, Property, differences
from pytest_mlperf.core.case import Case
from pytest_mlperf.core.metrics import METRICS
from pytest_mlperf.core.rulings.ruling import is_worse, values
from pytest_mlperf.core.rulings.sides import Pooled, pooled
from pytest_mlperf.core.search import other_condition
from pytest_mlperf.judge.formulas import raw
from pytest_mlperf.judge.inputs import Direction
from pytest_mlperf.judge.rule_a import holm
from pytest_mlperf.judge.rule_r import RuleR

CONFIDENCE = 0.95

_VERSION = re.compile(r"v?\d+(\.\d+)+\S*")


@dataclass(frozen=True, kw_only=True)
class TrendPoint:
    """Hold one accepted baseline of a case.

    Attributes:
        commit: Commit with this baseline, "not committed", or "" if git lacks the commit.
        fingerprint: Engine, versions, weights, options, data; empty if unknown.
        rate: Offered rate, per second; None if it is not a condition of the runs.
        means: Geometric means by metric, SI units.
    """

    date: str
    commit: str
    reason: str
    case: Case
    profile: str
    identity: Mapping[str, Property]
    fingerprint: Mapping[str, str]
    rate: float | None
    means: Mapping[str, float]
    runs: tuple[BaselineRun, ...] = ()

    @property
    def division(self) -> str:
        """Division of the baseline; fingerprints name only the open division."""
        return self.fingerprint.get("division", "closed")


@dataclass(frozen=True, kw_only=True)
class TrendStep:
    """Hold the change from one point to a later one; None for unknown figures.

    Attributes:
        low, high: Two-sided 95 % interval of the change.
        better: True if proven better, False if proven worse, None if neither.
        by_sessions: Whether there are enough sessions to estimate their variance.
        refused: Reasons why the points are not comparable; empty if they are.
    """

    change: float | None = None
    low: float | None = None
    high: float | None = None
    better: bool | None = None
    p: float | None = None
    by_sessions: bool | None = None
    refused: tuple[str, ...] = ()


def step(a: TrendPoint, b: TrendPoint, metric: str, rule: RuleR) -> TrendStep:
    """Return the change of a metric from a point to a later point, by all runs of both."""
    if refused := why_no_ratio(a, b, metric):
        return TrendStep(refused=refused)
    ratio = ratio_of(a, b, metric, rule)
    if ratio is None:
        return TrendStep(change=b.means[metric] / a.means[metric] - 1)
    half, d = ratio.reach((1 - CONFIDENCE) / 2), ratio.change
    low, change, high = (raw(x, Direction.HIGHER) for x in (d - half, d, d + half))
    better = None
    if (low > 0 or high < 0) and METRICS[metric].direction is not Direction.NEITHER:
        better = not is_worse(metric, 1.0, 1.0 + change)
    p = min(1.0, 2 * ratio.p(1 if d > 0 else -1))
    return TrendStep(
        change=change, low=low, high=high, better=better, p=p, by_sessions=ratio.by_sessions
    )


def ratio_of(a: TrendPoint, b: TrendPoint, metric: str, rule: RuleR) -> Pooled | None:
    """Return the ratio of two points by all their runs, or None if it cannot be formed."""
    if why_no_ratio(a, b, metric):
        return None
    old, new = (values(runs, metric, by_day=False) for runs in (a.runs, b.runs))
    return pooled(old, new, rule=rule) if old and new else None


def proven(steps: Sequence[TrendStep]) -> list[TrendStep]:
    """Return the steps of one trend, with `better` adjusted for their number.

    The probability that an unchanged trend shows a better or worse step is at most 1/20.
    """
    p_values = {place: step.p for place, step in enumerate(steps) if step.p is not None}
    stay = holm(p_values, 1 - CONFIDENCE)
    return [
        step if step.p is None or place in stay else replace(step, better=None)
        for place, step in enumerate(steps)
    ]


def why_no_ratio(a: TrendPoint, b: TrendPoint, metric: str) -> tuple[str, ...]:
    """Return every reason why two points are not comparable; empty if they are."""
    pairs: dict[str, tuple[object, object]] = {
        "workload": (a.case.workload, b.case.workload),
        "scenario": (a.case.scenario, b.case.scenario),
        "precision": (a.case.precision, b.case.precision),
        "number of accelerators": (_split(a)[0], _split(b)[0]),
        "accelerator": (_split(a)[1], _split(b)[1]),
        "profile": (a.profile, b.profile),
        "division": (a.division, b.division),
    }
    reasons = [
        f"{what} differs: {one} → {other}"
        for what, (one, other) in pairs.items()
        if one != other and not (what == "division" and not (a.fingerprint and b.fingerprint))
    ]
    if apart := [] if _split(a) != _split(b) else differences(a.identity, b.identity):
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
    title = METRICS[metric].title
    return [
        f"metric differs: the baseline of {point.date} has no {title}; it has "
        + ", ".join(METRICS[name].title for name in point.means if name in METRICS)
        for point in (a, b)
        if metric not in point.means
    ]


def _split(point: TrendPoint) -> tuple[int, str]:
    match = re.fullmatch(r"(\d+)x(.+)", point.case.accelerator)
    return (int(match[1]), match[2]) if match else (1, point.case.accelerator)


def _rate(point: TrendPoint) -> str:
    return "not known" if point.rate is None else f"{point.rate:g}/s"


# --- versions --------------------------------------------------------------------------------


def versions(points: Sequence[TrendPoint]) -> list[str]:
    """Return the distinguishing versions of each point's engine, see `engine_versions`."""
    return engine_versions([(point.fingerprint, point.case.engine) for point in points])


def engine_versions(engines: Sequence[tuple[Mapping[str, str], str]]) -> list[str]:
    """Return the versions that distinguish engines: "onnxruntime 1.20.1".

    The texts have all versions that differ between the fingerprints, or the engine's version if
    none differs. "not known" without a fingerprint.
    """
    keys = dict.fromkeys(
        key
        for fingerprint, _ in engines
        for key, value in fingerprint.items()
        if key.startswith("engine.") and _VERSION.fullmatch(value)
    )
    recorded = [fingerprint for fingerprint, _ in engines if fingerprint]
    moving = [key for key in keys if len({one.get(key) for one in recorded}) > 1]
    selected = moving or [next((k for k in keys if k == "engine.version"), next(iter(keys), ""))]
    return [_version(*one, selected) if one[0] else "not known" for one in engines]


def _version(fingerprint: Mapping[str, str], name: str, keys: Sequence[str]) -> str:
    engine = fingerprint.get("engine", name).rpartition(":")[2]
    parts = []
    for key in filter(None, keys):
        part = engine if key == "engine.version" else key.removeprefix("engine.")
        if key in fingerprint:
            parts.append(f"{part} {fingerprint[key]}")
    return ", ".join(parts) or engine


def distinct(points: Sequence[TrendPoint]) -> list[TrendPoint]:
    """Return one point per measurement, oldest first; appended runs belong to their record."""
    kept: list[TrendPoint] = []
    for point in points:
        runs = _runs(point)
        shared = [i for i, one in enumerate(kept) if runs & _runs(one) and not _apart(one, point)]
        if not shared:
            kept.append(point)
        elif runs > _runs(kept[shared[-1]]):
            kept[shared[-1]] = point
    return kept


def grouped(points: Sequence[TrendPoint]) -> list[TrendPoint]:
    """Return points grouped by machine, the newest machine's last."""
    groups: dict[str, list[TrendPoint]] = {}
    for point in sorted(points, key=lambda point: point.date):
        case = (point.case.workload, point.case.scenario, point.case.precision)
        where = (point.case.accelerator, point.profile, sorted(point.identity.items()))
        groups.setdefault(repr((case, where)), []).append(point)
    return [p for group in sorted(groups.values(), key=lambda group: group[-1].date) for p in group]


def _apart(a: TrendPoint, b: TrendPoint) -> bool:
    same = a.case.accelerator == b.case.accelerator and a.profile == b.profile
    return not same or bool(differences(a.identity, b.identity))


def _runs(point: TrendPoint) -> set[tuple[object, ...]]:
    return {
        (run.session, run.started, run.samples, tuple(sorted(run.metrics.items())))
        for run in point.runs
    }

"""How a case moved from one accepted baseline to the next, and when that may not be said."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from pytest_mlperf.core.baseline import BaselineRun, Property, differences
from pytest_mlperf.core.case import Case
from pytest_mlperf.core.judge.quantiles import t_isf
from pytest_mlperf.core.judge.rule_r import RuleR, Value
from pytest_mlperf.core.judge.ruling import is_worse, values
from pytest_mlperf.core.metrics import METRICS, Direction

CONFIDENCE = 0.95
"""Of the two-sided interval of a change."""

_VERSION = re.compile(r"v?\d+(\.\d+)+\S*")


@dataclass(frozen=True, kw_only=True)
class Point:
    """One accepted baseline of a case.

    Attributes:
        date: Day it was accepted.
        commit: Commit that holds it, "not committed", or "" where git no longer has it.
        reason: Why it was accepted, in the user's words.
        case: What was measured.
        profile: "quick" or "official".
        identity: The hardware.
        fingerprint: Engine, versions, weights, options, data; empty where not known.
        rate: Offered rate, per second; None where it is no condition of the measurement.
        means: Geometric means by metric, SI units.
        runs: The runs; empty where only the means are known.
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
        """The division; only the open one is recorded."""
        return self.fingerprint.get("division", "closed")


@dataclass(frozen=True, kw_only=True)
class Step:
    """The change from one point to a later one.

    Attributes:
        change: Relative change of the value; None where no ratio may be formed.
        low, high: Its two-sided interval of 95 %; None where the runs of a side are not known.
        better: It is proven better (True) or worse (False); None: neither, or not known.
        refused: Why no ratio may be formed; empty where it may.
    """

    change: float | None = None
    low: float | None = None
    high: float | None = None
    better: bool | None = None
    refused: tuple[str, ...] = ()


def step(a: Point, b: Point, metric: str, rule: RuleR) -> Step:
    """Return how a metric changed from one point to a later one.

    The noise is rule R's: one run differs from the next by s, moderated by what is expected, and
    the runs of a session share a part of it. Here all runs of both sides are looked at, once.

        d ± t(0.025, ν) · s · sqrt(v(a) + v(b)),  v = φ · Σ (m_j/n)² + (1−φ)/n
        ν s² = ν0 (s0² + w²) + SS(a) + SS(b),     ν = ν0 + n(a) − 1 + n(b) − 1

    Args:
        a: The earlier point.
        b: The later one.
        metric: Metric name.
        rule: Settings of rule R on the accelerator.
    """
    if refused := why_no_ratio(a, b, metric):
        return Step(refused=refused)
    before, now = values(a.runs, metric), values(b.runs, metric)
    change = b.means[metric] / a.means[metric] - 1
    if not before or not now:
        return Step(change=change)
    d = _middle(now) - _middle(before)
    df = rule.prior_df + len(before) + len(now) - 2
    within = fmean(run.within_se**2 for run in (*before, *now))
    squares = _squares(before) + _squares(now)
    variance = (rule.prior_df * (rule.prior_sd**2 + within) + squares) / df
    sd = max(math.sqrt(variance), rule.floor_sd)
    half = (
        t_isf((1 - CONFIDENCE) / 2, df) * sd * math.sqrt(_share(before, rule) + _share(now, rule))
    )
    low, high = math.expm1(d - half), math.expm1(min(d + half, 700.0))
    better = None
    if (low > 0 or high < 0) and METRICS[metric].direction is not Direction.NEITHER:
        better = not is_worse(metric, 1.0, 1.0 + d)
    return Step(change=change, low=low, high=high, better=better)


def why_no_ratio(a: Point, b: Point, metric: str) -> tuple[str, ...]:
    """Return every reason why one point says nothing about the other; none: they compare."""
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
        f"another {what}: {one} → {other}"
        for what, (one, other) in pairs.items()
        if one != other and not (what == "division" and not (a.fingerprint and b.fingerprint))
    ]
    if found := [] if _split(a) != _split(b) else differences(a.identity, b.identity):
        shown = ", ".join(f"{d.name} {d.theirs} → {d.ours}" for d in found)
        reasons.append(f"other hardware: {shown}")
    if a.rate != b.rate:
        reasons.append(f"offered rate differs: {_rate(a)} → {_rate(b)}")
    if a.fingerprint and b.fingerprint:
        one, other = (point.fingerprint.get("find", "offered") for point in (a, b))
        if one != other:
            reasons.append(f"the condition of the rate differs: {one} → {other}")
    data = [point.fingerprint.get("dataset") for point in (a, b)]
    if None not in data and data[0] != data[1]:
        reasons.append(f"other data: dataset {str(data[0])[:8]}… → {str(data[1])[:8]}…")
    return (*reasons, *_metrics(a, b, metric))


def _metrics(a: Point, b: Point, metric: str) -> list[str]:
    """Return where a metric is missing, and what was measured instead."""
    title = METRICS[metric].title
    return [
        f"another metric: {title} is not in the baseline of {point.date}, which has "
        + ", ".join(METRICS[name].title for name in point.means if name in METRICS)
        for point in (a, b)
        if metric not in point.means
    ]


def _split(point: Point) -> tuple[int, str]:
    """Return count and class of an accelerator: 8 and "H200" of "8xH200"."""
    found = re.fullmatch(r"(\d+)x(.+)", point.case.accelerator)
    return (int(found[1]), found[2]) if found else (1, point.case.accelerator)


def _rate(point: Point) -> str:
    return "not known" if point.rate is None else f"{point.rate:g}/s"


def _middle(sample: Sequence[Value]) -> float:
    return fmean(math.log(run.value) for run in sample)


def _squares(sample: Sequence[Value]) -> float:
    middle = _middle(sample)
    return math.fsum((math.log(run.value) - middle) ** 2 for run in sample)


def _share(sample: Sequence[Value], rule: RuleR) -> float:
    """Return the variance of a side's mean over that of one run."""
    n, phi = len(sample), rule.session_share
    sessions = Counter(run.session for run in sample).values()
    return phi * math.fsum((m / n) ** 2 for m in sessions) + (1 - phi) / n


# --- versions --------------------------------------------------------------------------------


def versions(points: Sequence[Point]) -> list[str]:
    """Return what tells each point's engine from the others': "onnxruntime 1.20.1".

    Of all versions in the fingerprints, those that are not the same everywhere; where all are the
    same, the engine's own. "not known" where there is no fingerprint.
    """
    keys = dict.fromkeys(
        key
        for point in points
        for key, value in point.fingerprint.items()
        if key.startswith("engine.") and _VERSION.fullmatch(value)
    )
    known = [point for point in points if point.fingerprint]
    moving = [key for key in keys if len({point.fingerprint.get(key) for point in known}) > 1]
    shown = moving or [next((k for k in keys if k == "engine.version"), next(iter(keys), ""))]
    return [_version(point, shown) if point.fingerprint else "not known" for point in points]


def _version(point: Point, keys: Sequence[str]) -> str:
    own = point.fingerprint.get("engine", point.case.engine).rpartition(":")[2]
    told = []
    for key in filter(None, keys):
        name = own if key == "engine.version" else key.removeprefix("engine.")
        if key in point.fingerprint:
            told.append(f"{name} {point.fingerprint[key]}")
    return ", ".join(told) or own


def distinct(points: Sequence[Point]) -> list[Point]:
    """Return one point per measurement: runs that were appended belong to what they extend.

    A record that stands unchanged in several commits is that of the first.

    Args:
        points: Oldest first.
    """
    kept: list[Point] = []
    for point in points:
        own = {_run(run) for run in point.runs}
        shared = [i for i, one in enumerate(kept) if own & _runs(one) and not _apart(one, point)]
        if not shared:
            kept.append(point)
        elif own > _runs(kept[shared[-1]]):
            kept[shared[-1]] = point
    return kept


def grouped(points: Sequence[Point]) -> list[Point]:
    """Return points so that those of one machine follow each other, the newest machine's last."""
    groups: dict[str, list[Point]] = {}
    for point in sorted(points, key=lambda point: point.date):
        case = (point.case.workload, point.case.scenario, point.case.precision)
        where = (point.case.accelerator, point.profile, sorted(point.identity.items()))
        groups.setdefault(repr((case, where)), []).append(point)
    return [p for group in sorted(groups.values(), key=lambda group: group[-1].date) for p in group]


def _apart(a: Point, b: Point) -> bool:
    """Whether two points are of different cases or machines."""
    same = a.case.accelerator == b.case.accelerator and a.profile == b.profile
    return not same or bool(differences(a.identity, b.identity))


def _runs(point: Point) -> set[tuple[object, ...]]:
    return {_run(run) for run in point.runs}


def _run(run: BaselineRun) -> tuple[object, ...]:
    return run.session, run.started, run.samples, tuple(sorted(run.metrics.items()))

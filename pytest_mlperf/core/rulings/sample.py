"""Determine which runs have a value of a metric, and report those without."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from pytest_mlperf.core.baseline import BaselineRun, Record, geometric_means
from pytest_mlperf.core.measurement import Run
from pytest_mlperf.core.metrics import (
    DRAFT_ACCEPTANCE,
    DRAFT_LENGTH,
    METRICS,
    PREFIX_HIT_SHARE,
    point_of,
)
from pytest_mlperf.core.numbers import quantity
from pytest_mlperf.core.reason import SignKey
from pytest_mlperf.core.verdict import MetricBaseline, MetricVerdict, Outcome
from pytest_mlperf.judge.rule_r import GATING_RUNS, RuleR

Judge = Callable[[Sequence[Run]], tuple[MetricVerdict, bool]]
"""Returns the verdict on runs that all have a metric, and whether one more could decide it."""

ZERO = {
    "goodput": "no request met its limits",
    DRAFT_ACCEPTANCE: "no drafted token was accepted",
    DRAFT_LENGTH: "nothing was drafted",
    PREFIX_HIT_SHARE: "no token of a prompt was in the cache",
}
"""Metrics that may be 0, with the meaning. 0 has no logarithm: it is the worst result, not a
missing one."""

ZEROS_PROVE = 2
"""Runs of 0 that prove a drop, because rule R never fails on one run alone."""


def absent(runs: Sequence[Run], metric: str) -> list[int]:
    """Return the numbers, from 1, of the runs without a metric; 0 is a value."""
    return [
        place
        for place, run in enumerate(runs, start=1)
        if metric not in run.metrics and metric not in run.zero
    ]


def places(these: Sequence[int], of: int) -> str:
    """Return run numbers as text: "run 2 of 3", "runs 2 and 3 of 5", "every run"."""
    if len(these) == of:
        return "every run"
    named = [str(place) for place in these]
    listing = ", ".join(named[:-1]) + f" and {named[-1]}" if len(named) > 1 else named[0]
    return f"run{'s' if len(named) > 1 else ''} {listing} of {of}"


def missing(runs: Sequence[Run], metric: str) -> str:
    """Return which runs lack a metric: "not known in run 2 of 3"; "" if none does."""
    lacking = absent(runs, metric)
    if not lacking:
        return ""
    reason = f": {BUFFERED}" if buffered(runs, metric) else ""
    if len(lacking) == len(runs):
        return f"not measured{reason}"
    return f"not known in {places(lacking, len(runs))}{reason}"


BUFFERED = "answers came in one read, or in few, as through a proxy that buffers"


def buffered(runs: Sequence[Run], metric: str) -> bool:
    """Check whether a run lacks a metric because the messages of its answers came together."""
    lacking = [runs[place - 1] for place in absent(runs, metric)]
    return any(sign.key is SignKey.ANSWERS_BUFFERED for run in lacking for sign in run.signs)


def ungated(runs: Sequence[Run], limits: Collection[str], record: Record | None) -> set[str]:
    """Return metrics not gated because answers were buffered; never all, nor the baseline's."""
    recorded = {name for run in (record.runs if record else ()) for name in run.metrics}
    held = {name for name in limits if name not in recorded and buffered(runs, name)}
    return held if len(held) < len(limits) else set()


def in_zeros(runs: Sequence[Run], metric: str) -> str:
    """Return the number of runs with a 0: "no request met its limits in 2 of 2 runs"."""
    count = sum(metric in run.zero for run in runs)
    return f"{ZERO[metric.partition('@')[0]]} in {count} of {len(runs)} runs" if count else ""


def countable(
    runs: Sequence[Run], limits: Mapping[str, float], record: Record | None = None
) -> dict[str, float]:
    """Return the limits of metrics with enough queries, now or when recorded."""
    counted = {
        name: limit
        for name, limit in limits.items()
        if fewest(runs, name) >= METRICS[name].min_queries or _stays(runs, name, record)
    }
    held = ungated(runs, counted, record)
    return {name: limit for name, limit in counted.items() if name not in held}


def too_few(runs: Sequence[Run], metric: str, record: Record | None) -> str:
    """Return a note on too few queries of a metric; "" if it has enough."""
    count, needed = fewest(runs, metric), METRICS[metric].min_queries
    if count >= needed:
        return ""
    if record is None or not _stays(runs, metric, record):
        return f"under {needed:,} queries a run, only reported"
    recorded = _before(runs, metric, record)
    behind = "" if recorded is None else f"; the baseline {recorded:,}"
    return f"{count:,} queries a run of {needed:,}{behind}"


def only_reported(
    runs: Sequence[Run], limits: Mapping[str, float], record: Record | None = None
) -> tuple[str, ...]:
    """Return a note for each limit for which these runs have too few queries."""
    gated = countable(runs, limits, record)
    left_out = [name for name in limits if name not in gated]
    held = _titles([name for name in left_out if buffered(runs, name)])
    few = (
        f"{METRICS[name].title} is only reported: to be gated it needs "
        f"{METRICS[name].min_queries:,} queries a run"
        for name in left_out
        if not buffered(runs, name)
    )
    return (*([f"{held}: not gated, {BUFFERED}"] if held else []), *few)


def _titles(names: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(METRICS[name.partition("@")[0]].title for name in names))


def unrecordable(runs: Sequence[Run], limits: Mapping[str, float], record: Record | None) -> str:
    """Return why runs cannot be a baseline for the gated metrics; "" if they can."""
    for name in countable(runs, limits, record):
        counted = record is not None and _before(runs, name, record) is not None
        few = too_few(runs, name, record) if counted else ""
        if reason := missing(runs, name) or few or in_zeros(runs, name):
            return f"{METRICS[name].title}: {reason}"
    return ""


def in_part(record: Record | None, limits: Mapping[str, float]) -> tuple[str, ...]:
    """Return a note for each gated metric that some runs of a record lack."""
    runs = record.runs if record else ()
    counts = {name: sum(name in run.metrics for run in runs) for name in limits}
    return tuple(
        f"{METRICS[name].title}: {count} of the baseline's {len(runs)} runs have it; it is judged "
        "by those"
        for name, count in counts.items()
        if 0 < count < len(runs)
    )


def remedies(
    runs: Sequence[Run], limits: Mapping[str, float], record: Record | None
) -> tuple[str, ...]:
    """Return a remedy for each gated metric by which these runs cannot be judged."""
    sentences, gated = [], countable(runs, limits, record)
    if held := _titles([name for name in gated if buffered(runs, name)]):
        sentences.append(
            f"{held}: gated and not measured, {BUFFERED}; let each event pass at once, or gate "
            'what is known, as limits = { latency_p50 = { max_rise = "5%" } }'
        )
    for name in limits:
        if buffered(runs, name):  # reported above, or not gated
            continue
        title = METRICS[name].title
        if lacking := absent(runs, name):
            folder = runs[lacking[0] - 1].folder
            sentences.append(
                f"{title} is gated and {missing(runs, name)} ({folder}): the notes of that run "
                "and its log say why; mend that, or take it from the limits"
            )
        elif _stays(runs, name, record) and (few := too_few(runs, name, record)):
            sentences.append(
                f"{title} is left out unless its drop is proven: {few}. A run that is bounded by "
                "time has fewer queries when it is slower; raise min_query_count or min_duration, "
                "or record anew with --mlperf-update=replace"
            )
    return tuple(sentences)


# --- verdicts ------------------------------------------------------------------------------------


def unmeasured(metric: str, limit: float, note: str) -> MetricVerdict:
    """Return the verdict if some runs lack a metric."""
    return MetricVerdict(metric=metric, outcome=Outcome.INVALID, now=None, limit=limit, note=note)


def of_few(verdict: MetricVerdict, few: str, failing: Outcome) -> MetricVerdict:
    """Return a decision with too few queries on a metric of the record: a drop, or undecided."""
    if verdict.outcome is failing or verdict.direction == "drop":
        return replace(verdict, note=verdict.note or few)
    gates = verdict.baseline.runs >= GATING_RUNS
    outcome = Outcome.INVALID if gates else Outcome.INCONCLUSIVE
    return replace(verdict, outcome=outcome, low=None, high=None, direction=None, note=few, p=None)


def with_zeros(
    metric: str,
    limit: float,
    runs: Sequence[Run],
    record: Record,
    judge: Judge,
    failing: Outcome,
    max_runs: int,
) -> tuple[MetricVerdict, bool]:
    """Return the verdict if a metric is 0 in some runs, which is a drop in two runs."""
    first = next(index for index, run in enumerate(runs) if metric in run.zero)
    others = [run for run in runs if metric in run.metrics]
    count = len(runs) - len(others)
    if first > 0 and count == 1:
        decided, more = judge(runs[:first])
        if not more:
            return decided, False
    dropped = count >= ZEROS_PROVE or (bool(others) and judge(others)[0].outcome is failing)
    having = sum(metric in run.metrics for run in record.runs)
    more = not dropped and len(runs) < max_runs
    unproven = Outcome.INCONCLUSIVE if more or having < GATING_RUNS else Outcome.INVALID
    baseline = geometric_means(record.runs)[metric]
    per_second = "/s" if METRICS[metric].unit == "1/s" else ""
    verdict = MetricVerdict(
        metric=metric,
        outcome=failing if dropped and having >= GATING_RUNS else unproven,
        baseline=MetricBaseline(value=baseline, runs=having),
        now=0.0,
        change=-1.0,
        limit=limit,
        runs=len(runs),
        note=f"{in_zeros(runs, metric)}; the baseline {quantity(metric, baseline)}{per_second}",
        p=0.0 if dropped else 1.0,
    )
    return verdict, more


# --- queries -------------------------------------------------------------------------------------


def _stays(runs: Sequence[Run], metric: str, record: Record | None) -> bool:
    if record is None or metric not in record.minimum_detectable_change:
        return False
    recorded = _before(runs, metric, record)
    return recorded is None or recorded >= METRICS[metric].min_queries


def _before(runs: Sequence[Run], metric: str, record: Record) -> int | None:
    """Return the fewest queries of the baseline's runs, counted as for these runs; or None."""
    counts = [count for run in record.runs if (count := _queries(run, metric)) is not None]
    if counts or any(run.serving.requests for run in runs):
        return min(counts, default=None)
    least = min(runs, key=lambda run: run.queries, default=None)
    samples = min(run.samples for run in record.runs)
    return 0 if least is None else round(samples * least.queries / max(1, least.samples))


def _queries(run: Run | BaselineRun, metric: str) -> int | None:
    if run.serving.requests:
        return run.serving.requests.get(
            metric.partition("@")[2], min(run.serving.requests.values())
        )
    return run.queries if isinstance(run, Run) else None


def fewest(runs: Sequence[Run], metric: str) -> int:
    """Return the fewest queries of a run for a metric, or for its point of a curve."""
    return min((_queries(run, metric) or 0 for run in runs), default=0)


def sharing(rule: RuleR, metric: str, limits: Collection[str]) -> RuleR:
    """Return the rule for one metric of a curve, which fails by its mean or any of its points.

    The mean gets half of the false alarms, and the points share the second half equally.
    """
    points = [name for name in limits if point_of(name) is not None]
    if not points:
        return rule
    alike = len(points) if point_of(metric) is not None else len(limits) - len(points)
    return rule.shared(2 * alike)

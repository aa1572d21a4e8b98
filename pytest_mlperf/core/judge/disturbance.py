"""Whether a drop is the machine's load: what a busy machine took is given back, at most."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median

from pytest_mlperf.core.baseline import BaselineRun
from pytest_mlperf.core.contention import in_words
from pytest_mlperf.core.judge.formulas import squares, t_isf
from pytest_mlperf.core.judge.rule_r import RuleR, Value, moderated_sd
from pytest_mlperf.core.judge.ruling import values
from pytest_mlperf.core.judge.sample import countable
from pytest_mlperf.core.judge.together import may_fall
from pytest_mlperf.core.measurement import Run
from pytest_mlperf.core.metrics import METRICS, Direction
from pytest_mlperf.core.numbers import percent
from pytest_mlperf.core.verdict import MetricVerdict, Outcome

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
"""The quantile that a metric's name ends in."""

LENIENT = 0.6
"""Of half an interval at rule R's 1 %: what is left of it at the 5 % at which many cases judged
together let the first one fall (Student's t with 4 degrees of freedom: 0.57, with many: 0.71)."""

FALLEN = {Outcome.PERF_DROP, Outcome.POWER_DROP}


def excess(runs: Sequence[Run], baseline: Sequence[BaselineRun]) -> float:
    """Return the share of speed that the machine's load took from runs, beyond its baseline's.

    What is not known took nothing.
    """
    now = [run.contention.share or 0.0 for run in runs if run.contention]
    return max(0.0, (fmean(now) if now else 0.0) - usual_share(baseline))


def usual_share(baseline: Sequence[BaselineRun]) -> float:
    """Return the share of speed that a baseline's runs lost to their machine's load; unknown: 0."""
    before = [run.busy for run in baseline if run.busy is not None]
    return median(before) if before else 0.0


def busy_drop(
    metrics: Sequence[MetricVerdict], runs: Sequence[Run], baseline: Sequence[BaselineRun]
) -> str | None:
    """Return what the machine's load did, in words, where no drop would be left without it."""
    share = excess(runs, baseline)
    down = [m for m in metrics if m.outcome in FALLEN or m.leans == "drop" or may_fall([m])]
    if not down or not all(explains(metric, share) for metric in down):
        return None
    return _words(share, runs)


def busy_miss(
    missed: Sequence[Run], limits: Mapping[str, float], baseline: Sequence[BaselineRun]
) -> str | None:
    """Return what the load did where runs would have met their latency limits without it."""
    share = excess(missed, baseline)
    rises = [
        (name, run.metrics[name] / limit - 1)
        for run in missed
        for name, limit in limits.items()
        if run.metrics.get(name, 0.0) > limit
    ]
    if not rises or not all(_given_back(name, rise, share) for name, rise in rises):
        return None
    return _words(share, missed)


def explains(metric: MetricVerdict, share: float) -> bool:
    """Whether a drop is not proven any more once the share that the load took is given back."""
    best = metric.low if METRICS[metric.metric].direction is Direction.LOWER else metric.high
    if best is None or metric.change is None:
        return False
    if metric.outcome is Outcome.INCONCLUSIVE:
        best = metric.change + LENIENT * (best - metric.change)
    return _given_back(metric.metric, best, share)


def _given_back(name: str, change: float, share: float) -> bool:
    """Whether a change for the worse is no larger than what a share of the time explains.

    A percentile of times may have had all of it: what a run waits in its window, the slowest 1 - q
    of its queries may have waited alone, so that it counts 1 / (1 - q) times.
    """
    if not share > 0:
        return False
    if METRICS[name].direction is Direction.HIGHER:
        return change >= -share
    quantile = QUANTILES.get(name.rpartition("_")[2], 0.0)
    return share >= 1 or change <= share / (1 - share) / (1 - quantile)


def _words(share: float, runs: Sequence[Run]) -> str:
    busiest = max((run.contention for run in runs if run.contention), key=lambda c: c.share or 0.0)
    return f"the machine was busy, which explains up to {percent(share)}: {in_words(busiest)}"


_OUTLIER = 0.01


def outlier(baseline: Sequence[Value], *, rule: RuleR) -> int | None:
    """Return the index of the one run that does not belong to the others, or None.

    A single bad baseline run hides every later drop, so it is refused when it is recorded: each
    run is compared with the mean of the others. Below three runs nothing can be told.
    """
    n0 = len(baseline)
    if n0 < 3:
        return None
    logs = [math.log(run.value) for run in baseline]
    df = rule.prior_df + n0 - 2
    scores = []
    for i, x in enumerate(logs):
        others = logs[:i] + logs[i + 1 :]
        sd = moderated_sd([*baseline[:i], *baseline[i + 1 :]], squares(others), df, rule)
        scores.append(abs(x - fmean(others)) / (sd * math.sqrt(1 + 1 / (n0 - 1))))
    worst = max(range(n0), key=scores.__getitem__)
    return worst if scores[worst] > t_isf(_OUTLIER / (2 * n0), df) else None


def outlying(runs: Sequence[Run], limits: Mapping[str, float], rule: RuleR) -> str | None:
    """Return which run the leave-one-out screen rejects, in words.

    A metric that is only reported, for want of queries, rejects none.
    """
    for metric in countable(runs, limits):
        sample = values(runs, metric)
        index = outlier(sample, rule=rule) if len(sample) > 2 else None
        if index is not None:
            return f"run {index + 1} of {len(sample)} is an outlier in {METRICS[metric].title}"
    return None

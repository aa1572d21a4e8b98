"""The last word on verdicts that depend on all others of a session."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pytest_mlperf.core.case import Kind
from pytest_mlperf.core.judge.many import FALSE_SHARE, Among, among
from pytest_mlperf.core.judge.rule_r import GATING_RUNS, RuleR
from pytest_mlperf.core.judge.ruling import ruling_of
from pytest_mlperf.core.verdict import MetricVerdict, Outcome, Verdict

FALLS: Mapping[Kind, Outcome] = {
    "performance": Outcome.PERF_DROP,
    "efficiency": Outcome.POWER_DROP,
}
"""The kinds that are judged together, with the word for a proven drop."""

INTERRUPTED = "the session ended before it was decided"

_UNJUDGED = {Outcome.INVALID, Outcome.ERROR}


def is_open(verdict: Verdict) -> bool:
    """Whether a verdict may still change: rule R neither passed it nor failed it for certain."""
    return (
        verdict.kind in FALLS
        and verdict.outcome is Outcome.INCONCLUSIVE
        and any(map(_undecided, verdict.metrics))
    )


def may_fall(metrics: Sequence[MetricVerdict]) -> bool:
    """Whether an undecided metric may turn out as a drop, depending on the others."""
    return any(_undecided(m) and _gates(m) and (m.p or 0.0) < FALSE_SHARE for m in metrics)


def interrupted(verdict: Verdict) -> Verdict:
    """Return an open verdict that gets no more runs, saying why."""
    metrics = tuple(replace(m, note=INTERRUPTED) if _undecided(m) else m for m in verdict.metrics)
    return _with(verdict, metrics)


def reopened(verdict: Verdict, pairs: int) -> Verdict:
    """Return a verdict as it was before a word that depends on others, to be judged among more.

    A drop that is one among `pairs` whatever the others say stays, and so does one that runs in
    turns with the baseline's own build proved as well.

    Args:
        verdict: What was found among fewer.
        pairs: Gated pairs that it is judged with now.
    """
    depends = {*FALLS.values(), Outcome.SUSPECT}

    def again(metric: MetricVerdict) -> bool:
        certain = metric.confirmed or metric.p is None or metric.p < FALSE_SHARE / pairs
        return metric.outcome in depends and _gates(metric) and not certain

    if verdict.kind not in FALLS or not any(map(again, verdict.metrics)):
        return verdict
    metrics = tuple(
        replace(m, outcome=Outcome.INCONCLUSIVE, note="") if again(m) else m
        for m in verdict.metrics
    )
    return _with(verdict, metrics)


def settle(
    open_: Sequence[Verdict], final: Sequence[Verdict], pairs: int, rule: RuleR
) -> list[Verdict]:
    """Judge all pairs of a session together and return the open verdicts with their last word.

    A metric whose p value Benjamini and Hochberg's procedure rejects is a drop; one that would be
    a drop only if it were alone is SUSPECT; of any other none is proven. Whatever passed, could
    not be judged or was not measured counts with 1, and so do baselines of too few runs.

    Args:
        open_: Verdicts that waited; one that is not open is returned as it is.
        final: The other verdicts that were judged among many.
        pairs: Gated pairs of the session.
        rule: The settings for a pair alone.
    """
    verdicts = [*open_, *final]
    p_values = {
        (index, metric.metric): metric.p or 0.0
        for index, verdict in enumerate(verdicts)
        for metric in verdict.metrics
        if verdict.kind in FALLS and verdict.outcome not in _UNJUDGED and _counts(metric)
    }
    missing = {(-1, str(n)): 1.0 for n in range(pairs - len(p_values))}
    words = among({**p_values, **missing}, rule)
    drops = sum(word is Among.FAIL for word in words.values())
    total = max(pairs, len(p_values))
    settled = []
    for index, verdict in enumerate(open_):
        metrics = tuple(
            _settled(m, words[index, m.metric], FALLS[verdict.kind], drops, total)
            if is_open(verdict) and _undecided(m) and (index, m.metric) in words
            else m
            for m in verdict.metrics
        )
        settled.append(_with(verdict, metrics) if metrics != verdict.metrics else verdict)
    return settled


def _settled(
    metric: MetricVerdict, word: Among, falls: Outcome, drops: int, pairs: int
) -> MetricVerdict:
    p = f"p={metric.p:.1g}"
    if word is Among.FAIL:
        which = "the only drop" if drops == 1 else f"one of {drops} drops"
        return replace(
            metric, outcome=falls, note=f"{which} among {pairs} pairs judged together, {p}"
        )
    if word is Among.SUSPECT:
        note = f"alone it would be a drop, among {pairs} pairs judged together it is none, {p}"
        return replace(metric, outcome=Outcome.SUSPECT, note=note)
    return metric


def _undecided(metric: MetricVerdict) -> bool:
    return metric.outcome is Outcome.INCONCLUSIVE and metric.p is not None


def _gates(metric: MetricVerdict) -> bool:
    return metric.runs_baseline >= GATING_RUNS


def _counts(metric: MetricVerdict) -> bool:
    """Whether a metric takes part with its own p value."""
    failed = metric.outcome in FALLS.values()
    known = metric.p is not None and math.isfinite(metric.p)
    return known and _gates(metric) and (failed or _undecided(metric))


def _with(verdict: Verdict, metrics: tuple[MetricVerdict, ...]) -> Verdict:
    """Return a verdict with other words for its metrics; what the headline adds stays."""
    before, after = ruling_of(verdict.metrics), ruling_of(metrics)
    added = verdict.headline.removeprefix(before.headline)
    added = "" if added == verdict.headline else added
    return replace(verdict, outcome=after.outcome, headline=after.headline + added, metrics=metrics)

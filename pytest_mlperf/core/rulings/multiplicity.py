"""Decide the verdicts that depend on all other verdicts of a session."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from pytest_mlperf.core.case import Kind
from pytest_mlperf.core.notes import Note
from pytest_mlperf.core.rulings.outcomes import outcome_of
from pytest_mlperf.core.rulings.ruling import ruling_of
from pytest_mlperf.core.verdict import (
    InterimAnalysis,
    MetricVerdict,
    Outcome,
    Verdict,
    with_unchecked_note,
)
from pytest_mlperf.judge.decision import Answer, Decision
from pytest_mlperf.judge.multiplicity import (
    FALSE_SHARE,
    Null,
    estimate,
    judge_jointly,
    repeat_level,
)
from pytest_mlperf.judge.rule_r import GATING_RUNS, RuleR

DROP_OUTCOMES: Mapping[Kind, Outcome] = {
    Kind.PERFORMANCE: Outcome.PERF_DROP,
    Kind.EFFICIENCY: Outcome.POWER_DROP,
}
"""The kinds that are judged together, with the outcome of a proven drop."""

MISSED_TWICE = 2
"""Runs that miss their latency limit from which the verdict rests on it, not on rule R."""

_UNJUDGED = {Outcome.INVALID, Outcome.ERROR}


class MachineSession(NamedTuple):
    """Identify a session on one accelerator; a change of its machine may shift all its results."""

    session: str
    accelerator: str


class SuspectSince(NamedTuple):
    """Hold the day since which a test is SUSPECT (a drop only if judged alone), and its metrics."""

    date: str
    metrics: Collection[str]


def is_open(verdict: Verdict) -> bool:
    """Check whether multiplicity correction over all pairs (case, metric) may change a verdict."""
    return (
        verdict.kind in DROP_OUTCOMES
        and verdict.outcome in {Outcome.INCONCLUSIVE, Outcome.PROVISIONAL, *DROP_OUTCOMES.values()}
        and not _fails_otherwise(verdict)
        and any(map(_undecided, verdict.metrics))
    )


def _fails_otherwise(verdict: Verdict) -> bool:
    """Check if a verdict fails for a non-metric reason, e.g. 2 runs missed a latency limit."""
    missed = sum(run.limit_missed for run in verdict.runs) >= MISSED_TWICE
    metrics_fail = any(metric.fails for metric in verdict.metrics)
    return missed or (verdict.outcome in DROP_OUTCOMES.values() and not metrics_fail)


def is_certain(
    verdict: Verdict, nulls: Mapping[MachineSession, Null], pairs: int, rule: RuleR
) -> bool:
    """Check whether a drop is significant with Bonferroni's correction for `pairs` comparisons."""
    null = nulls.get(machine_of(verdict), Null())
    drops = [m for m in verdict.metrics if m.outcome in DROP_OUTCOMES.values() and _counts(m)]
    return any(session_p_value(m, null, rule) < FALSE_SHARE / pairs for m in drops)


def may_fall(metrics: Sequence[MetricVerdict]) -> bool:
    """Check whether an undecided metric may become a drop if all cases are judged jointly."""
    undecided = [m for m in metrics if m.outcome is Outcome.INCONCLUSIVE and m.p is not None]
    return any(_gates(m) and (m.p or 0.0) < FALSE_SHARE for m in undecided)


def interrupted(verdict: Verdict) -> Verdict:
    """Mark the undecided metrics of a verdict as interrupted by the end of the session."""
    metrics = tuple(
        replace(m, note=Note.of("interrupted"), interrupted=True)
        if m.outcome is Outcome.INCONCLUSIVE and _undecided(m)
        else m
        for m in verdict.metrics
    )
    return with_metrics(verdict, metrics)


def reset_outcomes(verdict: Verdict, pairs: int) -> Verdict:
    """Reset unproven drops and SUSPECT metrics to INCONCLUSIVE, to judge them among more pairs.

    `pairs` is the number of pairs (case, metric). A drop that interleaved runs proved stays a drop,
    as does one with p < FALSE_SHARE / `pairs` in old results, which have no interim analyses.
    """
    depends = {*DROP_OUTCOMES.values(), Outcome.SUSPECT}

    def again(metric: MetricVerdict) -> bool:
        old = not metric.analyses and (metric.p or 0.0) < FALSE_SHARE / pairs
        certain = metric.confirmed or metric.p is None or old
        return metric.outcome in depends and _gates(metric) and not certain

    is_last = verdict.kind not in DROP_OUTCOMES or _fails_otherwise(verdict)
    if is_last or not any(map(again, verdict.metrics)):
        return verdict
    metrics = tuple(
        replace(m, outcome=Outcome.INCONCLUSIVE, note=None) if again(m) else m
        for m in verdict.metrics
    )
    return with_metrics(verdict, metrics)


def machine_of(verdict: Verdict) -> MachineSession:
    """Return the session and accelerator of a verdict's runs."""
    session = verdict.runs[0].session if verdict.runs else ""
    return MachineSession(session, verdict.case.accelerator)


def null_distributions(verdicts: Iterable[Verdict], rule: RuleR) -> dict[MachineSession, Null]:
    """Estimate each machine's null distribution: log changes of metrics without a regression."""
    seen: dict[MachineSession, list[MetricVerdict]] = {}
    for verdict in verdicts:
        if verdict.kind in DROP_OUTCOMES and verdict.outcome not in _UNJUDGED:
            judged = [m for m in verdict.metrics if m.analyses and _gates(m)]
            seen.setdefault(machine_of(verdict), []).extend(judged)
    by_machine = {}
    for machine, metrics in seen.items():
        sessions: dict[str, list[tuple[float, float, float]]] = {}
        for look in (look for metric in metrics for look in metric.baseline.sessions):
            sessions.setdefault(look.session, []).append(_plain(look))
        by_machine[machine] = estimate([_plain(m.analyses[0]) for m in metrics], sessions, rule)
    return by_machine


def session_p_value(metric: MetricVerdict, null: Null, rule: RuleR) -> float:
    """Return the larger p value of a drop: by rule R, or by the empirical null distribution."""
    looks = [_plain(look) for look in metric.analyses]
    return max(metric.p or 0.0, null.p_value(looks, rule) if looks and null.pairs else 0.0)


@dataclass(frozen=True, kw_only=True)
class _Settling:
    drops: int
    pairs: int
    again: float
    falls: Outcome
    null: Null


def judge_pairs_jointly(
    open_: Sequence[Verdict],
    final: Sequence[Verdict],
    pairs: int,
    rule: RuleR,
    suspects: Mapping[int, SuspectSince] | None = None,
) -> list[Verdict]:
    """Judge all pairs (case, metric) of a session jointly; return `open_` with final outcomes.

    A metric is a drop if the Benjamini-Hochberg procedure rejects its p value given all pairs. A
    metric that would be a drop only if judged alone is SUSPECT. Passed and unmeasured pairs have p
    = 1. `suspects`, earlier SUSPECT tests by index in `open_`, are judged at a level of their own.
    """
    verdicts = [*open_, *final]
    by_machine = null_distributions(verdicts, rule)
    p_values = {
        (index, metric.metric): session_p_value(
            metric, by_machine.get(machine_of(verdict), Null()), rule
        )
        for index, verdict in enumerate(verdicts)
        for metric in verdict.metrics
        if verdict.kind in DROP_OUTCOMES and verdict.outcome not in _UNJUDGED and _counts(metric)
    }
    absent = {(-1, str(n)): 1.0 for n in range(pairs - len(p_values))}
    decisions = judge_jointly({**p_values, **absent}, rule)
    seen, again = (suspects or {}).items(), repeat_level(rule, len(decisions))
    dates = {(index, metric): one.date for index, one in seen for metric in one.metrics}
    for key in dates:
        decision = decisions.get(key)
        if decision and decision.outcome is Answer.SUSPECT and decision.p < again:
            decisions[key] = replace(decision, outcome=Answer.FAIL)
    drops = sum(decision.outcome is Answer.FAIL for decision in decisions.values())
    settled = []
    for index, verdict in enumerate(open_):
        settling = _Settling(
            drops=drops,
            pairs=max(pairs, len(p_values)),
            again=again,
            falls=DROP_OUTCOMES.get(verdict.kind, verdict.outcome),
            null=by_machine.get(machine_of(verdict), Null()),
        )
        metrics = tuple(
            _settled(m, decisions[key], settling, dates.get(key))
            if is_open(verdict) and _undecided(m) and (key := (index, m.metric)) in decisions
            else m
            for m in verdict.metrics
        )
        settled.append(with_metrics(verdict, metrics) if metrics != verdict.metrics else verdict)
    return settled


def _settled(
    metric: MetricVerdict, decision: Decision, settling: _Settling, since: str | None
) -> MetricVerdict:
    among, p = settling.pairs, decision.p
    outcome = outcome_of(decision, settling.falls)
    if outcome is settling.falls:
        if not (metric.robust or settling.null.shows_sessions or not metric.analyses):
            # The variance between sessions is unknown.
            note = Note.of("few_sessions", since=since)
            open_ = replace(metric, outcome=Outcome.PROVISIONAL, note=note, direction="drop")
            return metric if metric.outcome is Outcome.PROVISIONAL else open_
        note = Note.of("drop_among", drops=settling.drops, among=among, p=p)
        if since:
            note = Note.of("suspect_again", since=since, p=p)
        return replace(metric, outcome=outcome, note=note, direction=None)
    if outcome is Outcome.SUSPECT:
        note = Note.of("suspect_among", among=among, p=p)
        if since:
            note = Note.of("still_suspect", since=since, needed=settling.again, p=p)
        return replace(metric, outcome=outcome, note=note, direction=None)
    if metric.outcome is Outcome.INCONCLUSIVE:
        return metric
    note = Note.of("scatter", p=p)
    return replace(metric, outcome=Outcome.INCONCLUSIVE, note=note, direction=None)


def _undecided(metric: MetricVerdict) -> bool:
    if metric.p is None or metric.confirmed:
        return False
    falls = metric.outcome in DROP_OUTCOMES.values() and bool(metric.analyses)
    return metric.outcome is Outcome.INCONCLUSIVE or falls or metric.seems_drop


def _gates(metric: MetricVerdict) -> bool:
    return metric.baseline.runs >= GATING_RUNS


def _counts(metric: MetricVerdict) -> bool:
    failed = metric.outcome in DROP_OUTCOMES.values() and metric.p is not None
    return _gates(metric) and (failed or _undecided(metric))


def _plain(look: InterimAnalysis) -> tuple[float, float, float]:
    return look.change, look.se, look.df


def with_metrics(verdict: Verdict, metrics: tuple[MetricVerdict, ...]) -> Verdict:
    """Return a verdict with other metrics, and the outcome and headline derived from them."""
    ruling = ruling_of(metrics)
    headline = with_unchecked_note(ruling.headline, verdict.unchecked)
    return replace(verdict, outcome=ruling.outcome, headline=headline, metrics=metrics)

"""The last word on verdicts that depend on all others of a session."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from pytest_mlperf.core.case import Kind
from pytest_mlperf.core.rulings.outcomes import outcome_of
from pytest_mlperf.core.rulings.ruling import ruling_of
from pytest_mlperf.core.verdict import (
    InterimAnalysis,
    MetricVerdict,
    Outcome,
    Verdict,
    beside_accuracy,
)
from pytest_mlperf.judge.decision import Answer, Decision
from pytest_mlperf.judge.multiplicity import FALSE_SHARE, Null, among, estimate, level_again
from pytest_mlperf.judge.rule_r import GATING_RUNS, RuleR

DROP_OUTCOMES: Mapping[Kind, Outcome] = {
    "performance": Outcome.PERF_DROP,
    "efficiency": Outcome.POWER_DROP,
}
"""The kinds that are judged together, with the word for a proven drop."""

INTERRUPTED = "the session ended before it was decided"

SCATTER = "no more than unchanged pairs differ by here"
"""Of what would be a drop, were what all pairs show left aside."""

FEW_SESSIONS_NOTE = "beside all others, with baselines of too few sessions"

MISSED_TWICE = 2
"""Runs that miss their latency limit: the verdict rests on the limit, not on rule R."""

_UNJUDGED = {Outcome.INVALID, Outcome.ERROR}


class MachineSession(NamedTuple):
    """What pairs share what a session has in common: one session on one kind of accelerator."""

    session: str
    accelerator: str


class Before(NamedTuple):
    """A pair that is SUSPECT since `date`, in the last session that could decide it."""

    date: str
    metrics: Collection[str]


def is_open(verdict: Verdict) -> bool:
    """Whether a verdict among many may still change: it neither passed nor is certain to fail."""
    return (
        verdict.kind in DROP_OUTCOMES
        and verdict.outcome in {Outcome.INCONCLUSIVE, Outcome.PROVISIONAL, *DROP_OUTCOMES.values()}
        and not _fails_beside(verdict)
        and any(map(_undecided, verdict.metrics))
    )


def _fails_beside(verdict: Verdict) -> bool:
    """Whether a verdict fails for more than rule R says of a metric, which no other pair excuses.

    That is a latency limit that was missed, or what accepted baselines lost in all.
    """
    missed = sum(run.limit_missed for run in verdict.runs) >= MISSED_TWICE
    metrics_fail = any(metric.fails for metric in verdict.metrics)
    return missed or (verdict.outcome in DROP_OUTCOMES.values() and not metrics_fail)


def is_certain(
    verdict: Verdict, nulls: Mapping[MachineSession, Null], pairs: int, rule: RuleR
) -> bool:
    """Whether an open verdict is a drop whatever the other pairs still do."""
    null = nulls.get(machine_of(verdict), Null())
    drops = [m for m in verdict.metrics if m.outcome in DROP_OUTCOMES.values() and _counts(m)]
    return any(p_among(m, null, rule) < FALSE_SHARE / pairs for m in drops)


def may_fall(metrics: Sequence[MetricVerdict]) -> bool:
    """Whether an undecided metric may turn out as a drop, depending on the others."""
    undecided = [m for m in metrics if m.outcome is Outcome.INCONCLUSIVE and m.p is not None]
    return any(_gates(m) and (m.p or 0.0) < FALSE_SHARE for m in undecided)


def interrupted(verdict: Verdict) -> Verdict:
    """Return an open verdict that gets no more runs, saying why."""
    metrics = tuple(
        replace(m, note=INTERRUPTED, interrupted=True)
        if m.outcome is Outcome.INCONCLUSIVE and _undecided(m)
        else m
        for m in verdict.metrics
    )
    return with_metrics(verdict, metrics)


def reopened(verdict: Verdict, pairs: int) -> Verdict:
    """Return a verdict as it was before a word that depends on others, to be judged among more.

    What runs in turns with the baseline's own build proved stays, and of results of older releases,
    which do not tell what each look saw, a drop that is one among `pairs` whatever the others say.
    """
    depends = {*DROP_OUTCOMES.values(), Outcome.SUSPECT}

    def again(metric: MetricVerdict) -> bool:
        old = not metric.analyses and (metric.p or 0.0) < FALSE_SHARE / pairs
        certain = metric.confirmed or metric.p is None or old
        return metric.outcome in depends and _gates(metric) and not certain

    is_last = verdict.kind not in DROP_OUTCOMES or _fails_beside(verdict)
    if is_last or not any(map(again, verdict.metrics)):
        return verdict
    metrics = tuple(
        replace(m, outcome=Outcome.INCONCLUSIVE, note="") if again(m) else m
        for m in verdict.metrics
    )
    return with_metrics(verdict, metrics)


def machine_of(verdict: Verdict) -> MachineSession:
    """Return where and when a verdict's runs were made."""
    session = verdict.runs[0].session if verdict.runs else ""
    return MachineSession(session, verdict.case.accelerator)


def nulls(verdicts: Iterable[Verdict], rule: RuleR) -> dict[MachineSession, Null]:
    """Return how unchanged pairs look on each machine, by all verdicts of a session."""
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


def p_among(metric: MetricVerdict, null: Null, rule: RuleR) -> float:
    """Return the p value of a metric in the light of all others; never below its own."""
    looks = [_plain(look) for look in metric.analyses]
    return max(metric.p or 0.0, null.p_value(looks, rule) if looks and null.pairs else 0.0)


@dataclass(frozen=True, kw_only=True)
class _Settling:
    """What settles a pair: how many drops among how many, and what unchanged ones look like."""

    drops: int
    pairs: int
    again: float
    falls: Outcome
    null: Null


def settle(
    open_: Sequence[Verdict],
    final: Sequence[Verdict],
    pairs: int,
    rule: RuleR,
    suspects: Mapping[int, Before] | None = None,
) -> list[Verdict]:
    """Judge all pairs of a session together and return the open verdicts with their last word.

    A metric whose p value Benjamini and Hochberg's procedure rejects is a drop; one that would be a
    drop only if it were alone is SUSPECT; of any other none is proven. p values are those of rule R
    in the light of what all pairs show. Whatever passed, could not be judged or was not measured
    counts with 1, and so do baselines of too few runs. For those that were SUSPECT before see
    `level_again`; a verdict that is not open is returned as it is.
    """
    verdicts = [*open_, *final]
    shown = nulls(verdicts, rule)
    p_values = {
        (index, metric.metric): p_among(metric, shown.get(machine_of(verdict), Null()), rule)
        for index, verdict in enumerate(verdicts)
        for metric in verdict.metrics
        if verdict.kind in DROP_OUTCOMES and verdict.outcome not in _UNJUDGED and _counts(metric)
    }
    absent = {(-1, str(n)): 1.0 for n in range(pairs - len(p_values))}
    decisions = among({**p_values, **absent}, rule)
    seen, again = (suspects or {}).items(), level_again(rule, len(decisions))
    before = {(index, metric): one.date for index, one in seen for metric in one.metrics}
    for key in before:
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
            null=shown.get(machine_of(verdict), Null()),
        )
        metrics = tuple(
            _settled(m, decisions[key], settling, before.get(key))
            if is_open(verdict) and _undecided(m) and (key := (index, m.metric)) in decisions
            else m
            for m in verdict.metrics
        )
        settled.append(with_metrics(verdict, metrics) if metrics != verdict.metrics else verdict)
    return settled


def _settled(
    metric: MetricVerdict, decision: Decision, settling: _Settling, before: str | None
) -> MetricVerdict:
    chance, pairs = f"p={decision.p:.1g}", settling.pairs
    outcome = outcome_of(decision, settling.falls)
    if outcome is settling.falls:
        if not (metric.robust or settling.null.shows_sessions or not metric.analyses):
            return _provisional(metric, before)
        which = "the only drop" if settling.drops == 1 else f"one of {settling.drops} drops"
        note = f"{which} among {pairs} pairs judged together, {chance}"
        if before:
            note = f"SUSPECT since {before} and again now, {chance}"
        return replace(metric, outcome=outcome, note=note, direction=None)
    if outcome is Outcome.SUSPECT:
        note = f"alone it would be a drop, among {pairs} pairs judged together it is none, {chance}"
        if before:
            note = f"SUSPECT since {before}, a drop where p is below {settling.again:.2g}: {chance}"
        return replace(metric, outcome=outcome, note=note, direction=None)
    if metric.outcome is Outcome.INCONCLUSIVE:
        return metric
    return replace(
        metric, outcome=Outcome.INCONCLUSIVE, note=f"{SCATTER}, {chance}", direction=None
    )


def _provisional(metric: MetricVerdict, before: str | None) -> MetricVerdict:
    """Return a drop that neither its own baseline nor those of all pairs show to be none's.

    Nor does a second session: the baseline that it is compared with is the same.
    """
    if metric.outcome is Outcome.PROVISIONAL:
        return metric
    note = f"{FEW_SESSIONS_NOTE}, SUSPECT since {before}" if before else FEW_SESSIONS_NOTE
    return replace(metric, outcome=Outcome.PROVISIONAL, note=note, direction="drop")


def _undecided(metric: MetricVerdict) -> bool:
    """Whether a metric's word depends on the others: not proven, or proven by rule R alone."""
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
    """Return a verdict with other words for its metrics; what it does not vouch for stays."""
    ruling = ruling_of(metrics)
    headline = beside_accuracy(ruling.headline, verdict.unchecked)
    return replace(verdict, outcome=ruling.outcome, headline=headline, metrics=metrics)

"""Judge a claim that one engine entry beats another, by interleaved runs of both."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from pytest_mlperf.bench.case import CaseRuns
from pytest_mlperf.bench.interleaved import Interleaved, NotComparable
from pytest_mlperf.bench.policy import Policy
from pytest_mlperf.bench.runner import Unjudgeable
from pytest_mlperf.core.case import Kind
from pytest_mlperf.core.metrics import METRICS
from pytest_mlperf.core.notes import Note, Words
from pytest_mlperf.core.numbers import quantity, times
from pytest_mlperf.core.rulings.outcomes import outcome_of
from pytest_mlperf.core.rulings.sample import fewest_queries
from pytest_mlperf.core.verdict import Logs, Outcome, RatioVerdict, Verdict
from pytest_mlperf.judge.decision import Answer
from pytest_mlperf.run.conditions import Conditions
from pytest_mlperf.suite.pairs import PlannedPair

DECISION_WORDS = {Answer.PASS: "proven", Answer.FAIL: "refuted", Answer.INCONCLUSIVE: "undecided"}


def judge_pair(
    pair: PlannedPair, conditions: Conditions, policy: Policy, show: Callable[[str], None]
) -> Verdict:
    """Run both engine entries in interleaved pairs, in fresh processes; judge the speed ratio."""
    policy = dataclasses.replace(policy, update=None)
    a, b = (CaseRuns(side, conditions, policy, show) for side in (pair.a, pair.b))
    noisier = max((a, b), key=lambda case: case.rule.prior_sd)
    sides = Interleaved(
        new=a,
        old=b,
        rule=noisier.rule,
        least=pair.least,
        one_rate=False,
        done=partial(_require_comparable, pair, a, b),
    )
    try:
        ratio = sides.judge({pair.metric: 0.0})[pair.metric]
    except Unjudgeable as error:
        return _unjudgeable(pair, a, b, error)
    except NotComparable as error:
        return _verdict(pair, a, b, error.outcome, error.reason)
    outcome = outcome_of(ratio, Outcome.PAIR_FAIL)
    title = METRICS[pair.metric].title
    headline = (
        f"{title} {times(ratio.ratio)} ({times(ratio.low)} to {times(ratio.high)}); "
        f"claim >= {pair.least:g}x {DECISION_WORDS[ratio.outcome]}"
    )
    notes = list(filter(None, [noisier.noise, sides.left_out]))
    verdict = _verdict(pair, a, b, outcome, headline, notes)
    value_b, value_a = sides.means(pair.metric, ratio.pairs)
    claim = RatioVerdict(
        metric=pair.metric,
        outcome=outcome,
        a=pair.a.case.id,
        b=pair.b.case.id,
        value_a=value_a,
        value_b=value_b,
        ratio=ratio.ratio,
        low=ratio.low,
        high=ratio.high,
        least=pair.least,
        pairs=ratio.pairs,
    )
    return dataclasses.replace(verdict, ratio=claim)


def _unjudgeable(pair: PlannedPair, a: CaseRuns, b: CaseRuns, error: Unjudgeable) -> Verdict:
    first, *notes = (reason.text for reason in error.run.invalid)
    case, other = (a, b) if any(run is error.run for run in a.invalid_runs) else (b, a)
    headline = Note.of("of_case", case=_name(case), note=first)
    return dataclasses.replace(
        _verdict(pair, a, b, Outcome.INVALID, headline, notes),
        invalid_runs=(*other.invalid_runs, *case.invalid_runs),
        reasons=case.reasons,
    )


def _require_comparable(pair: PlannedPair, a: CaseRuns, b: CaseRuns) -> None:
    if a.runs and (reason := _not_comparable(pair, a) or _not_comparable(pair, b)):
        raise NotComparable(reason)


def _not_comparable(pair: PlannedPair, case: CaseRuns) -> Words | None:
    metric, name = METRICS[pair.metric], _name(case)
    if any(pair.metric not in run.metrics for run in case.runs):
        return f"{metric.title} is not measured with {name}"
    count = fewest_queries(case.runs, pair.metric)
    if count < metric.min_queries:
        return (
            f"{metric.title} needs {metric.min_queries:,} queries per run, {name} had {count:,}: "
            "raise min_query_count"
        )
    if sum(run.limit_missed for run in case.runs) > 1:
        return f"{name} missed its latency limit twice at {case.rate:.4g}/s: lower target_qps"
    if len(case.runs) > 1:
        return None
    accuracy = case.find_accuracy(required=case.planned.suite.profile == "official")
    answer = case.judge_accuracy() if accuracy else None
    if answer and answer.failed:
        return answer.quoted("accuracy_of_failed", case=name)
    return None


def _name(case: CaseRuns) -> str:
    return f"{case.of_suite.engine.full_label}-{case.planned.case.accelerator}"


def _verdict(
    pair: PlannedPair,
    a: CaseRuns,
    b: CaseRuns,
    outcome: Outcome,
    headline: Words,
    notes: Sequence[Words] = (),
) -> Verdict:
    runs = [run for both in zip(a.runs, b.runs, strict=False) for run in both]
    if outcome is not Outcome.INVALID:
        left_out = [(case, case.unchecked) for case in (a, b)]
        values = [{"case": _name(case), "note": why.note} for case, why in left_out if why]
        notes = [*notes, *(Note.of("of_case", **value) for value in values)]
    else:
        name, title = pair.metric, METRICS[pair.metric].title
        every = [(c, r.metrics.get(name)) for c in (a, b) for r in (*c.runs, *c.invalid_runs)]
        notes = [*notes, *(f"{_name(c)}: {title} {quantity(name, v)}" for c, v in every if v)]
    return Verdict(
        case=pair.case,
        kind=Kind.PAIR,
        outcome=outcome,
        headline=headline,
        runs=tuple(runs),
        invalid_runs=(*a.invalid_runs, *b.invalid_runs),
        subject=a.subject,
        notes=tuple(notes),
        logs=Logs(folder=a.policy.shown(Path(runs[-1].folder)) if runs else None),
    )

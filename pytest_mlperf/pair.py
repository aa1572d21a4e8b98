"""Answer for a pair: run two engine entries in turns until the claim about them is decided."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path

from pytest_mlperf.accuracy import answer_for, unchecked
from pytest_mlperf.calibrated import rule_for
from pytest_mlperf.case_runs import CaseRuns, Policy
from pytest_mlperf.core.judge.ratio import Ratio, judge_ratio
from pytest_mlperf.core.judge.rule_r import Decision, Value
from pytest_mlperf.core.judge.ruling import values
from pytest_mlperf.core.metrics import METRICS
from pytest_mlperf.core.numbers import times
from pytest_mlperf.core.verdict import Outcome, RatioVerdict, Verdict
from pytest_mlperf.run.conditions import Conditions
from pytest_mlperf.run.tries import Unjudgeable
from pytest_mlperf.suite.pairs import PlannedPair

OUTCOMES = {
    Decision.PASS: Outcome.OK,
    Decision.FAIL: Outcome.PAIR_FAIL,
    Decision.INCONCLUSIVE: Outcome.INCONCLUSIVE,
}

WORDS = {
    Decision.PASS: "proven",
    Decision.FAIL: "refuted",
    Decision.INCONCLUSIVE: "undecided",
}


def judge_pair(
    pair: PlannedPair, conditions: Conditions, policy: Policy, show: Callable[[str], None]
) -> Verdict:
    """Run both sides in turns, A B, B A, A B, …, each run a fresh process, and judge their ratio.

    Raises:
        UnavailableError: Model or data set is not here.
        RunError: A process broke.
        BaselineError: A side's baseline, which may hold its rate, is damaged.
    """
    policy = dataclasses.replace(policy, update=None)
    a, b = (CaseRuns(side, conditions, policy, show) for side in (pair.a, pair.b))
    rule = rule_for(pair.case.accelerator, policy.max_runs)
    found: Ratio | None = None
    while found is None or found.decision is Decision.MORE:
        for case in (b, a) if len(a.runs) % 2 else (a, b):
            try:
                case.add_run()
            except Unjudgeable as error:
                first, *notes = map(str, error.run.invalid)
                why = f"{_name(case)}: {first}"
                other = b if case is a else a
                return dataclasses.replace(
                    _verdict(pair, a, b, policy, Outcome.INVALID, why, notes),
                    invalid_runs=(*other.invalid_runs, *case.invalid_runs),
                    reasons=case.reasons,
                )
        if reason := _not_comparable(pair, a) or _not_comparable(pair, b):
            return _verdict(pair, a, b, policy, Outcome.INVALID, reason)
        found = judge_ratio(
            values(a.runs, pair.metric),
            values(b.runs, pair.metric),
            direction=METRICS[pair.metric].direction,
            least=pair.least,
            rule=rule,
        )
    title = METRICS[pair.metric].title
    headline = (
        f"{title} {times(found.ratio)} ({times(found.low)} to {times(found.high)}); "
        f">= {pair.least:g}x {WORDS[found.decision]}"
    )
    verdict = _verdict(pair, a, b, policy, OUTCOMES[found.decision], headline)
    ratio = RatioVerdict(
        metric=pair.metric,
        outcome=verdict.outcome,
        a=pair.a.case.id,
        b=pair.b.case.id,
        value_a=_mean(values(a.runs, pair.metric)[: found.pairs]),
        value_b=_mean(values(b.runs, pair.metric)[: found.pairs]),
        ratio=found.ratio,
        low=found.low,
        high=found.high,
        least=pair.least,
        pairs=found.pairs,
    )
    return dataclasses.replace(verdict, ratio=ratio)


def _not_comparable(pair: PlannedPair, case: CaseRuns) -> str | None:
    """Return why the runs of a side may not be compared: a fast wrong answer proves nothing."""
    metric, name = METRICS[pair.metric], _name(case)
    if any(pair.metric not in run.metrics for run in case.runs):
        return f"{metric.title} is not measured with {name}"
    fewest = min(run.queries for run in case.runs)
    if fewest < metric.min_queries:
        return (
            f"{metric.title} needs {metric.min_queries:,} queries a run, {name} had {fewest:,}: "
            "raise min_query_count"
        )
    if sum(run.limit_missed for run in case.runs) > 1:
        return f"{name} missed its latency limit twice at {case.rate:.4g}/s: lower target_qps"
    if len(case.runs) > 1:
        return None
    accuracy = case.find_accuracy(required=case.planned.suite.profile == "official")
    answer = answer_for(case, accuracy) if accuracy else None
    if answer and answer.failed:
        return f"not judged: accuracy of {name} failed, {answer.outcome} {answer.headline}"
    return None


def _name(case: CaseRuns) -> str:
    """Return what messages call a side."""
    return f"{case.planned.engine.full_label}-{case.planned.case.accelerator}"


def _verdict(
    pair: PlannedPair,
    a: CaseRuns,
    b: CaseRuns,
    policy: Policy,
    outcome: Outcome,
    headline: str,
    notes: Sequence[str] = (),
) -> Verdict:
    runs = [run for both in zip(a.runs, b.runs, strict=False) for run in both]
    if outcome is not Outcome.INVALID:
        left_out = [(case, unchecked(case).removeprefix(", ")) for case in (a, b)]
        notes = [*notes, *(f"{_name(case)}: {text}" for case, text in left_out if text)]
    return Verdict(
        case=pair.case,
        kind="pair",
        outcome=outcome,
        headline=headline,
        runs=tuple(runs),
        invalid_runs=(*a.invalid_runs, *b.invalid_runs),
        subject=a.subject,
        notes=tuple(notes),
        folder=policy.shown(Path(runs[-1].folder)) if runs else None,
    )


def _mean(sample: Sequence[Value]) -> float:
    """Return the geometric mean: ratios are judged on logarithms."""
    return math.exp(math.fsum(math.log(run.value) for run in sample) / len(sample))

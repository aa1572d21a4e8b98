"""The last word on many pairs, and what rule R measures them by."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.core.case import Case, Kind
from pytest_mlperf.core.judge.many import benjamini_hochberg
from pytest_mlperf.core.judge.rule_r import RuleR
from pytest_mlperf.core.judge.ruling import ruling_of
from pytest_mlperf.core.judge.together import INTERRUPTED, interrupted, is_open, may_fall, settle
from pytest_mlperf.core.verdict import MetricVerdict, Outcome, Verdict

CASE = Case(workload="w", scenario="Offline", engine="e", precision="fp32", accelerator="cpu")
RULE = RuleR()
ADDED = ", accuracy not checked"


def metric(
    p: float | None, outcome: Outcome = Outcome.INCONCLUSIVE, runs_baseline: int = 8
) -> MetricVerdict:
    return MetricVerdict(
        metric="throughput",
        outcome=outcome,
        now=90.0,
        baseline=100.0,
        change=-0.1,
        low=-0.2,
        high=0.01,
        limit=0.05,
        runs=5,
        runs_baseline=runs_baseline,
        p=p,
    )


def verdict(*metrics: MetricVerdict, kind: Kind = "performance") -> Verdict:
    ruling = ruling_of(metrics)
    return Verdict(
        case=CASE,
        kind=kind,
        outcome=ruling.outcome,
        headline=ruling.headline + ADDED,
        metrics=metrics,
    )


def words(p_values: list[float], pairs: int, final: list[float] = []) -> list[Outcome]:  # noqa: B006
    drops = [verdict(metric(p, Outcome.PERF_DROP)) for p in final]
    return [v.outcome for v in settle([verdict(metric(p)) for p in p_values], drops, pairs, RULE)]


@pytest.mark.parametrize(
    ("p", "final", "word"),
    [
        (0.0019, [], Outcome.PERF_DROP),  # below 5 % / 25
        (0.0021, [], Outcome.SUSPECT),
        (0.0039, [1e-9], Outcome.PERF_DROP),  # below 5 % x 2 / 25, with a drop beside it
        (0.0041, [1e-9], Outcome.SUSPECT),
        (0.0099, [], Outcome.SUSPECT),
        (0.0101, [], Outcome.INCONCLUSIVE),
        (0.0119, [1e-9] * 5, Outcome.PERF_DROP),  # though alone it would have failed nothing
        (1.0, [1e-9] * 24, Outcome.INCONCLUSIVE),
    ],
)
def test_a_pair_falls_beside_others_or_is_suspected(
    p: float, final: list[float], word: Outcome
) -> None:
    """25 pairs; what is not named passed, or was not measured."""
    assert words([p], 25, final) == [word]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40), st.integers(21, 60))
def test_those_that_fall_are_the_procedures(p_values: list[float], pairs: int) -> None:
    """Benjamini and Hochberg's step-up over all pairs, the others counting with 1."""
    pairs = max(pairs, len(p_values))
    padded = dict(enumerate([*p_values, *[1.0] * (pairs - len(p_values))]))

    found = words(p_values, pairs)

    assert {n for n, word in enumerate(found) if word is Outcome.PERF_DROP} == {
        n for n in benjamini_hochberg(padded, 0.05) if n < len(p_values)
    }


def test_the_message_says_among_how_many_and_keeps_what_was_added() -> None:
    first, second = settle(
        [verdict(metric(0.0001)), verdict(metric(0.0002), kind="efficiency")], [], 25, RULE
    )

    assert first.headline == (
        "samples/s −10.0 % (−20.0 to +1.0 %); one of 2 drops among 25 pairs judged together, "
        "p=0.0001, accuracy not checked"
    )
    assert second.outcome is Outcome.POWER_DROP
    (alone,) = settle([verdict(metric(0.0001))], [], 25, RULE)
    assert "; the only drop among 25 pairs judged together, p=0.0001" in alone.headline
    (suspect,) = settle([verdict(metric(0.004))], [], 25, RULE)
    assert "; alone it would be a drop, among 25 pairs judged together it is none" in (
        suspect.headline
    )


def test_what_is_advice_or_invalid_lifts_nobody_and_does_not_fall() -> None:
    """A baseline of 4 runs gates nothing, and a measurement that may not be judged is none."""
    advice = verdict(metric(1e-9, runs_baseline=4))
    invalid = replace(verdict(metric(1e-9)), outcome=Outcome.INVALID)
    doubt = verdict(metric(0.0039))

    settled = settle([advice, doubt], [invalid], 25, RULE)

    assert [v.outcome for v in settled] == [Outcome.INCONCLUSIVE, Outcome.SUSPECT]
    assert settled[0] == advice


def test_what_is_final_stays_as_it_is() -> None:
    final = [
        verdict(metric(1.0, Outcome.OK)),
        verdict(metric(1e-9, Outcome.PERF_DROP)),
        verdict(metric(None, Outcome.NO_BASELINE)),
        replace(verdict(metric(0.001)), outcome=Outcome.ERROR),
    ]

    assert settle(final, [], 25, RULE) == final
    assert not any(map(is_open, final))


def test_an_interrupted_verdict_says_so() -> None:
    found = interrupted(verdict(metric(1.0)))

    assert found.outcome is Outcome.INCONCLUSIVE
    assert found.headline == f"samples/s −10.0 % (−20.0 to +1.0 %); {INTERRUPTED}{ADDED}"


@pytest.mark.parametrize(
    ("found", "falls"),
    [
        (metric(0.049), True),
        (metric(0.051), False),
        (metric(0.049, runs_baseline=4), False),
        (metric(0.0, Outcome.PERF_DROP), False),
    ],
)
def test_only_what_may_still_fall_asks_whether_the_machine_is_slow(
    found: MetricVerdict, falls: bool
) -> None:
    assert may_fall([found]) is falls

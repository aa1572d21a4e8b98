"""Which outcome decides, and which outcomes fail."""

from __future__ import annotations

from itertools import permutations

import pytest

from pytest_mlperf.core.verdict import SEVERITY, Outcome, worst

FAILING = {
    Outcome.PERF_DROP,
    Outcome.PAIR_FAIL,
    Outcome.ACC_DROP,
    Outcome.POWER_DROP,
    Outcome.GATE_FAIL,
    Outcome.INVALID,
    Outcome.ERROR,
    Outcome.UNEXPECTED_PASS,
}


@pytest.mark.parametrize("outcome", Outcome)
def test_an_outcome_alone_fails_or_passes(outcome: Outcome) -> None:
    assert outcome.fails is (outcome in FAILING)


def test_every_outcome_has_one_place_in_the_order() -> None:
    assert sorted(SEVERITY) == sorted(Outcome)


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ([Outcome.OK], Outcome.OK),
        ([Outcome.OK, Outcome.IMPROVED], Outcome.OK),
        ([Outcome.OK, Outcome.INCONCLUSIVE], Outcome.INCONCLUSIVE),
        ([Outcome.OK, Outcome.NO_BASELINE], Outcome.NO_BASELINE),
        ([Outcome.NO_BASELINE, Outcome.INCONCLUSIVE], Outcome.INCONCLUSIVE),
        ([Outcome.INCONCLUSIVE, Outcome.PERF_DROP, Outcome.OK], Outcome.PERF_DROP),
        ([Outcome.PERF_DROP, Outcome.ACC_DROP], Outcome.ACC_DROP),
        ([Outcome.ACC_DROP, Outcome.GATE_FAIL], Outcome.GATE_FAIL),
        ([Outcome.GATE_FAIL, Outcome.INVALID], Outcome.INVALID),
        ([Outcome.INVALID, Outcome.ERROR], Outcome.ERROR),
    ],
)
def test_the_worst_metric_decides_whatever_the_order(
    outcomes: list[Outcome], expected: Outcome
) -> None:
    assert {worst(list(order)) for order in permutations(outcomes)} == {expected}

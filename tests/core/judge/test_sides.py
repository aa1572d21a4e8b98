"""All metrics of a comparison together: how often an unchanged one shows a drop."""

from __future__ import annotations

import random

import pytest

from pytest_mlperf.core.judge.sides import judge_together
from pytest_mlperf.core.verdict import MetricVerdict, Outcome


def metric(p: float, name: str = "throughput") -> MetricVerdict:
    """Return what a metric says alone."""
    outcome = Outcome.PERF_DROP if p < 0.01 else Outcome.INCONCLUSIVE
    return MetricVerdict(metric=name, outcome=outcome, now=1.0, p=p)


def words(*p: float) -> list[Outcome | None]:
    return [one.outcome for (one,) in judge_together([[metric(each)] for each in p], 0.01)]


def test_a_drop_must_stand_out_among_all() -> None:
    drop, suspect = Outcome.PERF_DROP, Outcome.SUSPECT

    assert words(0.009) == [drop]
    assert words(0.009, 0.009) == [drop, drop]
    assert words(0.009, *[0.5] * 9) == [suspect, *[Outcome.INCONCLUSIVE] * 9]
    assert words(1e-6, 0.009, *[0.5] * 9)[:2] == [drop, drop]
    assert words(0.02) == [Outcome.INCONCLUSIVE]


def test_the_note_says_among_how_many() -> None:
    judged = judge_together([[metric(1e-6), metric(0.5, "latency_p50")], [metric(2e-6)]], 0.01)

    assert judged[0][0].note == "one of 2 drops among 3 metrics judged together, p=1e-06"
    assert judge_together([[metric(1e-6)]], 0.01)[0][0].note == ""
    assert judge_together([(), [metric(0.5)]], 0.01)[0] == ()


@pytest.mark.parametrize("count", [1, 5, 20, 50, 200])
def test_unchanged_comparisons_show_a_drop_at_most_once_in_twenty(count: int) -> None:
    """1,000 comparisons of each size, their p values uniform."""
    rng = random.Random(20261122)
    shown = sum(
        Outcome.PERF_DROP in words(*(rng.random() for _ in range(count))) for _ in range(1000)
    )

    assert shown <= (0.01 if count == 1 else 0.05) * 1000 + 14

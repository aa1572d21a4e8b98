"""Which outcome decides, and which outcomes fail."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Literal

import pytest

from pytest_mlperf.core.promise import Promise
from pytest_mlperf.core.verdict import SEVERITY, Outcome, final_word, worst
from tests.reports.verdicts import DROP, PROVISIONAL_DROP, metric

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


BUILD = (
    ", or name the baseline's build in the suite (baseline_engine): a drop is then measured again "
    "beside it, in turns"
)


APPEND = 'append a session of its build (--mlperf-update=append --mlperf-reason "...")'


@pytest.mark.parametrize(
    ("leans", "lacking", "sessions", "age", "words"),
    [
        (
            "ok",
            "few sessions",
            1,
            1.0,
            "the baseline has 1 of 4 sessions: run its build with --mlperf-update=missing, best "
            "on other days, and it grows",
        ),
        (
            "drop",
            "few sessions",
            3,
            1.0,
            "the baseline has 3 of 4 sessions: run its build with --mlperf-update=missing, best "
            f"on other days, and it grows{BUILD}",
        ),
        (
            "drop",
            "few sessions",
            5,
            1.0,
            "5 sessions of the baseline show too little of what sessions differ by: calibrate on "
            f"other days (pytest-mlperf calibrate){BUILD}",
        ),
        ("ok", "old", 4, 40.2, f"the baseline's last session was 40 days ago: {APPEND}"),
        ("drop", "old", 4, None, f"the baseline's last session was too long ago: {APPEND}{BUILD}"),
        ("ok", None, 4, 1.0, f"the baseline's sessions differ by too much: {APPEND}"),
        ("drop", None, 9, 1.0, f"the baseline's sessions differ by too much: {APPEND}{BUILD}"),
    ],
)
def test_what_settles_it_follows_from_what_is_lacking(
    leans: Literal["ok", "drop"],
    lacking: Literal["few sessions", "old"] | None,
    sessions: int,
    age: float | None,
    words: str,
) -> None:
    promised = Promise(lacks=lacking, runs=8, sessions=sessions, days=1, age_days=age, run_sd=0.01)
    judged = metric(
        outcome=Outcome.PROVISIONAL, leans=leans, lacking=lacking, sessions_baseline=sessions
    )
    found = replace(PROVISIONAL_DROP, metrics=(judged,), promise=promised)

    assert final_word(found) == words


def test_of_several_metrics_the_drop_says_it() -> None:
    ok, drop = (
        metric(outcome=Outcome.PROVISIONAL, leans=leans, lacking=lacks, sessions_baseline=1)
        for leans, lacks in (("ok", "few sessions"), ("drop", "old"))
    )
    found = replace(PROVISIONAL_DROP, metrics=(ok, drop), promise=None)

    assert (final_word(found) or "").startswith("the baseline's last session was too long ago: ")
    assert final_word(DROP) is None

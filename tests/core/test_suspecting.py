"""What remains suspect after a session, and what is judged alone in it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_mlperf.core.judge.together import Before
from pytest_mlperf.core.measurement import Subject
from pytest_mlperf.core.results import CaseResult, Suspect, again, remaining, suspected
from pytest_mlperf.core.verdict import Outcome
from tests.reports.verdicts import metric, result
from tests.reports.verdicts import verdict as made

FIRST, LATER = "2026-11-20T10:00:00+00:00", "2026-11-21T10:00:00+00:00"
HERE = {"gpu.name": "H200"}


def case(outcome: Outcome, identity: dict[str, Any] | None = None, **fields: Any) -> CaseResult:
    found = made(
        outcome,
        "throughput",
        metric(outcome=outcome),
        metric("ttft_p99", Outcome.OK),
        subject=Subject(identity=HERE if identity is None else identity, fingerprint={}),
    )
    return result(found, **fields)


(BEFORE,) = remaining([], [case(Outcome.SUSPECT)], date=FIRST)


def test_a_suspect_names_its_metrics_and_where_it_was_measured() -> None:
    assert Suspect(
        test=case(Outcome.OK).test,
        metrics=("throughput",),
        date=FIRST,
        profile="quick",
        identity=HERE,
    ) == (BEFORE)


@pytest.mark.parametrize("outcome", [Outcome.OK, Outcome.IMPROVED, Outcome.PERF_DROP])
def test_a_word_on_it_ends_it(outcome: Outcome) -> None:
    assert remaining([BEFORE], [case(outcome)], date=LATER) == ()


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome.NO_BASELINE,
        Outcome.RECORDED,
        Outcome.NOT_EVALUATED,
        Outcome.INCONCLUSIVE,
        Outcome.PROVISIONAL,
        Outcome.INVALID,
        Outcome.ERROR,
        Outcome.GATE_FAIL,
    ],
)
def test_what_decides_nothing_leaves_it(outcome: Outcome) -> None:
    assert remaining([BEFORE], [case(outcome)], date=LATER) == (BEFORE,)


@pytest.mark.parametrize("outcome", [Outcome.OK, Outcome.PERF_DROP, Outcome.SUSPECT])
@pytest.mark.parametrize(
    "fields",
    [
        {"handicap": 0.5},
        {"pretended": True},
        {"profile": "official"},
        {"identity": {"gpu.name": "H100"}},
        {"identity": {}},
    ],
    ids=str,
)
def test_another_profile_or_machine_or_a_demonstration_decides_nothing(
    outcome: Outcome, fields: dict[str, Any]
) -> None:
    found = remaining([BEFORE], [case(outcome, **fields)], date=LATER)

    assert BEFORE in found
    assert (len(found) == 2) is (
        outcome is Outcome.SUSPECT and not {"handicap", "pretended"} & {*fields}
    )


def test_deselected_leaves_it() -> None:
    assert remaining([BEFORE], [], date=LATER) == (BEFORE,)


def test_the_second_time_keeps_the_date_and_the_open_metrics_of_the_first() -> None:
    now = case(Outcome.SUSPECT)
    changed = replace(
        now.verdict,
        metrics=(metric(outcome=Outcome.INCONCLUSIVE), metric("ttft_p99", Outcome.SUSPECT)),
    )

    (found,) = remaining([BEFORE], [replace(now, verdict=changed)], date=LATER)

    assert (found.metrics, found.date) == (("throughput", "ttft_p99"), FIRST)


def test_another_metric_is_suspect_since_now() -> None:
    now = case(Outcome.SUSPECT)
    other = (metric(outcome=Outcome.OK), metric("ttft_p99", Outcome.SUSPECT))

    (found,) = remaining(
        [BEFORE], [replace(now, verdict=replace(now.verdict, metrics=other))], date=LATER
    )

    assert (found.metrics, found.date) == (("ttft_p99",), LATER)


def test_what_was_suspect_here_is_judged_alone() -> None:
    now = replace(case(Outcome.INCONCLUSIVE), suspected=BEFORE)

    assert suspected([BEFORE], now) == BEFORE
    assert suspected([BEFORE], case(Outcome.OK, {"gpu.name": "H100"})) is None
    assert again([case(Outcome.OK), now]) == {1: Before("2026-11-20", ("throughput",))}
    assert again([replace(now, handicap=0.5), replace(now, pretended=True)]) == {}

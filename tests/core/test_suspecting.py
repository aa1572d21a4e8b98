"""What remains suspect after a session, and what is judged alone in it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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


def test_a_word_on_it_ends_it_and_what_decides_nothing_leaves_it() -> None:
    names = "NO_BASELINE RECORDED NOT_EVALUATED INCONCLUSIVE PROVISIONAL INVALID ERROR GATE_FAIL"

    for outcome in (Outcome.OK, Outcome.IMPROVED, Outcome.PERF_DROP):
        assert remaining([BEFORE], [case(outcome)], date=LATER) == ()
    for outcome in (Outcome[name] for name in names.split()):
        assert remaining([BEFORE], [case(outcome)], date=LATER) == (BEFORE,)
    assert remaining([BEFORE], [], date=LATER) == (BEFORE,)


def test_another_profile_or_machine_or_a_demonstration_decides_nothing() -> None:
    elsewhere: list[dict[str, Any]] = [
        {"profile": "official"},
        {"identity": {"gpu.name": "H100"}},
        {"identity": {}},
    ]
    for fields in ({"handicap": 0.5}, {"pretended": True}, *elsewhere):
        for outcome in (Outcome.OK, Outcome.PERF_DROP, Outcome.SUSPECT):
            found = remaining([BEFORE], [case(outcome, **fields)], date=LATER)
            assert BEFORE in found
            is_new = outcome is Outcome.SUSPECT and fields in elsewhere
            assert (len(found) == 2) is is_new


def test_the_second_time_keeps_the_date_and_the_open_metrics_of_the_first() -> None:
    """Another metric is suspect since now."""
    now = case(Outcome.SUSPECT)
    for word, metrics, date in (
        (Outcome.INCONCLUSIVE, ("throughput", "ttft_p99"), FIRST),
        (Outcome.OK, ("ttft_p99",), LATER),
    ):
        judged = (metric(outcome=word), metric("ttft_p99", Outcome.SUSPECT))
        again_ = replace(now, verdict=replace(now.verdict, metrics=judged))
        (found,) = remaining([BEFORE], [again_], date=LATER)
        assert (found.metrics, found.date) == (metrics, date)


def test_what_was_suspect_here_is_judged_alone() -> None:
    now = replace(case(Outcome.INCONCLUSIVE), suspected=BEFORE)

    assert suspected([BEFORE], now) == BEFORE
    assert suspected([BEFORE], case(Outcome.OK, {"gpu.name": "H100"})) is None
    assert again([case(Outcome.OK), now]) == {1: Before("2026-11-20", ("throughput",))}
    assert again([replace(now, handicap=0.5), replace(now, pretended=True)]) == {}

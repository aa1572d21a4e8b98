"""What the parts of a plan say together, and what remains suspect after a session."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_mlperf.core.case import Kind
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.measurement import Subject
from pytest_mlperf.core.notes import Note
from pytest_mlperf.core.results import (
    Absent,
    CaseResult,
    KnownFailure,
    Results,
    Suspect,
    earlier_suspicions,
    merge,
    newest,
    next_suspects,
    second_day,
    suspected,
    unjudged_tests,
)
from pytest_mlperf.core.rulings.multiplicity import SuspectSince, is_open, judge_pairs_jointly
from pytest_mlperf.core.rulings.ruling import ruling_of
from pytest_mlperf.core.verdict import BaselineReference, Outcome, Verdict
from pytest_mlperf.judge.multiplicity import FALSE_SHARE, MAX_LONE_PAIRS
from pytest_mlperf.judge.rule_r import RuleR
from pytest_mlperf.reports.sentences import sentence
from tests.reports import verdicts
from tests.reports.verdicts import CASE, metric, session
from tests.reports.verdicts import verdict as made

TODAY = dt.date(2026, 11, 21)
ALONE = RuleR().alpha


def judged(p: float, number: int, pairs: int) -> Verdict:
    """Return rule R's verdict on a case with p value `p` among `pairs`; it is not final."""
    certain = p < (FALSE_SHARE / pairs if pairs > MAX_LONE_PAIRS else ALONE)
    passed = p == 1.0
    word = Outcome.OK if passed else Outcome.PERF_DROP if certain else Outcome.INCONCLUSIVE
    metric_verdict = metric(outcome=word, p=p)
    case = replace(CASE, workload=f"w{number:03}")
    ruling = ruling_of([metric_verdict])
    return Verdict(
        case=case,
        kind=Kind.PERFORMANCE,
        outcome=ruling.outcome,
        headline=ruling.headline,
        metrics=(metric_verdict,),
    )


def result(verdict: Verdict, **fields: Any) -> CaseResult:
    return verdicts.result(verdict, suite=f"{verdict.case.workload}.mlperf.toml", **fields)


def part(p_values: Mapping[int, float], pairs: int) -> Results:
    """Return a finished session of some cases, which were judged among `pairs`."""
    verdicts_of_part = [judged(p, number, pairs) for number, p in p_values.items()]
    if pairs > MAX_LONE_PAIRS:
        waiting = [v for v in verdicts_of_part if is_open(v)]
        last = iter(
            judge_pairs_jointly(
                waiting, [v for v in verdicts_of_part if not is_open(v)], pairs, RuleR()
            )
        )
        verdicts_of_part = [next(last) if is_open(v) else v for v in verdicts_of_part]
    return session(
        *(result(v, pairs=pairs if pairs > MAX_LONE_PAIRS else 0) for v in verdicts_of_part)
    )


def joined(parts: Sequence[Results], pairs: int = 0, **options: Any) -> Results:
    named = {f"part{number}.json": one for number, one in enumerate(parts)}
    return merge(named, run="merged", pairs=pairs, today=TODAY, **options)


def words(results: Results) -> dict[str, Outcome]:
    return {r.verdict.case.workload: r.verdict.outcome for r in results.cases}


P_VALUES = st.one_of(
    st.just(1.0), st.floats(1e-9, 1e-3), st.floats(1e-3, 0.02), st.floats(0.02, 0.9)
)


@settings(max_examples=40)
@given(
    p_values=st.lists(P_VALUES, min_size=2, max_size=60),
    data=st.data(),
    is_total_told=st.booleans(),
)
def test_merged_parts_have_the_verdict_of_one_session(
    p_values: list[float], data: st.DataObject, is_total_told: bool
) -> None:
    total = len(p_values)
    where = data.draw(st.lists(st.integers(0, 2), min_size=total, max_size=total))
    split = [{n: p for n, p in enumerate(p_values) if where[n] == k} for k in range(3)]
    parts = [part(own, total if is_total_told else len(own)) for own in split if own]

    merged = words(joined(parts))

    assert merged == words(part(dict(enumerate(p_values)), total))
    if is_total_told:
        drops = {w for one in parts for w, out in words(one).items() if out.fails}
        assert all(merged[workload].fails for workload in drops)


def test_a_drop_of_a_part_that_knew_nothing_of_the_others_may_be_only_suspect() -> None:
    """0.5 % is a drop alone; among 30 pairs it is none, and the merged result does not fail.

    Up to 20 pairs every verdict stays as it was. A plan of more pairs counts missing results.
    """
    few = part({0: 0.005}, 1)
    rest = part(dict.fromkeys(range(1, 30), 1.0), 29)

    merged = joined([few, rest])

    assert words(few)["w000"] is Outcome.PERF_DROP
    first = merged.cases[0]
    assert first.verdict.outcome is Outcome.SUSPECT
    assert not first.failed
    assert first.pairs == merged.pairs == 30
    note = first.verdict.metrics[0].note
    assert isinstance(note, Note)
    assert (note.key, note.values["among"]) == ("suspect_among", 30)

    parts = [part({0: 0.005, 1: 1.0}, 2), part({2: 0.4}, 1)]

    merged = joined(parts)

    assert merged.pairs == 0
    assert merged.cases == tuple(case for one in parts for case in one.cases)
    assert words(joined([part({0: 0.005}, 1)], pairs=30))["w000"] is Outcome.SUSPECT


def test_a_cumulative_drop_stays_a_drop_with_any_other_verdicts() -> None:
    """No metric of it fails, so no other pair excuses it.

    So does a drop that runs in turns confirmed: they are evidence of their own.
    """
    drop, rest = judged(0.005, 0, 1), part(dict.fromkeys(range(1, 30), 1.0), 30)
    sure = replace(drop, metrics=(replace(drop.metrics[0], confirmed=True),))
    for word in (Outcome.OK, Outcome.INCONCLUSIVE, Outcome.SUSPECT):
        of_one = replace(judged(0.004, 0, 30), metrics=(metric(outcome=word, p=0.004),))
        crept = replace(of_one, outcome=Outcome.PERF_DROP, headline="over 3 accepted baselines")
        merged = joined([session(result(crept, pairs=30, failed=True)), rest])
        assert (merged.cases[0].verdict, merged.cases[0].failed) == (crept, True)
    assert words(joined([session(result(sure)), rest]))["w000"] is Outcome.PERF_DROP


def test_suspects_of_several_machines_are_a_drop_together() -> None:
    """An expected failure covers a drop that only all together prove."""
    sure, quiet = (
        [part({10 * k + n: p if n else 0.004 for n in range(10)}, 30) for k in range(3)]
        for p in (1e-6, 1.0)
    )
    expected_failures = (KnownFailure(reason="issue 812", until=TODAY),)
    first = tuple(replace(case, expected_failures=expected_failures) for case in quiet[0].cases)
    expected = joined([replace(quiet[0], cases=first), *quiet[1:]])

    assert all(words(one)[f"w{10 * k:03}"] is Outcome.PERF_DROP for k, one in enumerate(sure))
    assert all(words(one)[f"w{10 * k:03}"] is Outcome.SUSPECT for k, one in enumerate(quiet))
    assert set(words(joined(quiet)).values()) == {Outcome.OK, Outcome.PERF_DROP}
    assert (words(expected)["w000"], expected.cases[0].failed) == (Outcome.EXPECTED, False)
    assert words(expected)["w010"] is Outcome.PERF_DROP


def test_times_versions_and_omitted_tests_are_joined() -> None:
    """One test in two parts and parts of two commits are refused.

    Strict mode fails undecided cases; a recorded case is not a pair.
    """
    quiet = part({0: 0.005, **dict.fromkeys(range(1, 30), 1.0)}, 30)
    recorded = verdicts.verdict(Outcome.RECORDED, "8 runs", metric(p=None))
    many = session(
        *(result(replace(recorded, case=replace(CASE, workload=f"r{n:03}"))) for n in range(40))
    )

    assert [case.failed for case in joined([quiet]).cases][:2] == [False, False]
    assert [case.failed for case in joined([quiet], fail_on={"inconclusive"}).cases][:2] == [
        True,
        False,
    ]
    assert joined([many, part({0: 0.005}, 1)]).pairs == 0

    first_part = replace(part({0: 1.0}, 1), deselected={"H200": 2}, skipped={"t": "no model"})
    versions = {"pytest": "9.2.0", "pytest-mlperf": "0.2"}
    other = replace(
        part({1: 1.0}, 1),
        started="2026-11-20T09:00:00+00:00",
        deselected={"H200": 1, "cpu": 4},
        versions=versions,
    )

    merged = joined([first_part, other])

    assert (merged.started, merged.seconds) == ("2026-11-20T09:00:00+00:00", 400.0)
    assert merged.deselected == {"H200": 3, "cpu": 4}
    assert (merged.versions, merged.skipped) == (versions, {"t": "no model"})
    with pytest.raises(MlperfError, match=r"is in part0\.json and in part1\.json: name each part"):
        joined([first_part, first_part])
    with pytest.raises(MlperfError, match=r"part0\.json measured commit 9d0e77a1b2c3, part1\.json"):
        joined([first_part, replace(other, commit="a" * 40)])


def test_a_planned_test_without_a_verdict_is_absent_with_its_known_reason() -> None:
    """What one part skipped and another judged is not skipped."""
    merged = joined([replace(part({0: 1.0}, 1), skipped={"skipped": "no model"})])
    there = merged.cases[0].test
    gone = "not in any results file: the test was deselected, or its session ended before it ran"
    skipping = replace(part({1: 1.0}, 1), skipped={there: "not here"})

    absences = [Absent(test="skipped", reason="no model"), Absent(test="gone", reason=gone)]
    assert unjudged_tests([there, "skipped", "gone"], merged) == absences
    assert joined([part({0: 1.0}, 1), skipping]).skipped == {}


FIRST, LATER = "2026-11-20T10:00:00+00:00", "2026-11-21T10:00:00+00:00"
HERE = {"gpu.name": "H200"}


def case(outcome: Outcome, identity: dict[str, Any] | None = None, **fields: Any) -> CaseResult:
    verdict = made(
        outcome,
        "throughput",
        metric(outcome=outcome),
        metric("ttft_p99", Outcome.OK),
        subject=Subject(identity=HERE if identity is None else identity, fingerprint={}),
    )
    return verdicts.result(verdict, **fields)


(BEFORE,) = next_suspects([], [case(Outcome.SUSPECT)], date=FIRST)


def test_a_verdict_on_a_suspect_ends_it_and_an_undecided_one_leaves_it() -> None:
    """Nor does another profile or machine, or a demonstration."""
    names = "NO_BASELINE RECORDED NOT_EVALUATED INCONCLUSIVE PROVISIONAL INVALID ERROR GATE_FAIL"
    fields: dict[str, Any] = {"metrics": ("throughput",), "profile": "quick", "identity": HERE}

    assert Suspect(test=case(Outcome.OK).test, date=FIRST, seen=FIRST, **fields) == BEFORE
    for outcome in (Outcome.OK, Outcome.IMPROVED, Outcome.PERF_DROP):
        assert next_suspects([BEFORE], [case(outcome)], date=LATER) == ()
    for outcome in (Outcome[name] for name in names.split()):
        (still,) = next_suspects([BEFORE], [case(outcome)], date=LATER)
        assert replace(still, seen=FIRST) == BEFORE
    assert next_suspects([BEFORE], [], date=LATER) == (BEFORE,)

    disqualified: list[dict[str, Any]] = [{"handicap": 0.5}, {"pretended": True}]
    elsewhere: list[dict[str, Any]] = [{"profile": "official"}, {"identity": {"gpu.name": "H100"}}]
    elsewhere += [{"identity": {}}]
    for fields in (*disqualified, *elsewhere):
        for outcome in (Outcome.OK, Outcome.PERF_DROP, Outcome.SUSPECT):
            suspects = next_suspects([BEFORE], [case(outcome, **fields)], date=LATER)
            assert BEFORE in suspects
            assert (len(suspects) == 2) is (outcome is Outcome.SUSPECT and fields in elsewhere)


def test_the_second_time_keeps_the_date_and_the_open_metrics_of_the_first() -> None:
    """Another metric is suspect since this session; the known suspect is judged alone."""
    second_case = case(Outcome.SUSPECT)
    for word, metrics, date in (
        (Outcome.INCONCLUSIVE, ("throughput", "ttft_p99"), FIRST),
        (Outcome.OK, ("ttft_p99",), LATER),
    ):
        judged = (metric(outcome=word), metric("ttft_p99", Outcome.SUSPECT))
        again_ = replace(second_case, verdict=replace(second_case.verdict, metrics=judged))
        (suspect,) = next_suspects([BEFORE], [again_], date=LATER)
        assert (suspect.metrics, suspect.date) == (metrics, date)

    second_case = replace(case(Outcome.INCONCLUSIVE), suspected=BEFORE)

    assert suspected([BEFORE], second_case) == BEFORE
    assert suspected([BEFORE], case(Outcome.OK, {"gpu.name": "H100"})) is None
    assert earlier_suspicions([case(Outcome.OK), second_case]) == {
        1: SuspectSince("2026-11-20", ("throughput",))
    }
    assert (
        earlier_suspicions(
            [replace(second_case, handicap=0.5), replace(second_case, pretended=True)]
        )
        == {}
    )


def drop(*, baseline: str = "b1", likely: bool = True, **fields: Any) -> CaseResult:
    """Return a test that is a PROVISIONAL drop from a baseline of four days."""
    seems = metric(outcome=Outcome.PROVISIONAL, direction="drop", likely=likely, days=4)
    verdict = made(
        Outcome.PROVISIONAL,
        "x",
        seems,
        subject=HERE_SUBJECT,
        baseline=BaselineReference(id=baseline),
    )
    return verdicts.result(verdict, **fields)


HERE_SUBJECT = Subject(identity=HERE, fingerprint={})
(DROPPED,) = next_suspects([], [drop()], date=FIRST)


def test_a_provisional_drop_fails_on_the_second_day_in_a_row_against_the_same_baseline() -> None:
    """Not on the same day, from another baseline, where days differ by as much, or after an ok."""
    assert (DROPPED.drops, DROPPED.baseline) == ({"throughput": FIRST}, "b1")
    same_day = FIRST[:11] + "23:59:59+00:00"
    for second_case, suspect, date, since in (
        (drop(), DROPPED, LATER, FIRST[:10]),
        (drop(), None, LATER, ""),
        (drop(), DROPPED, same_day, ""),
        (drop(), DROPPED, FIRST, ""),
        (drop(baseline="b2"), DROPPED, LATER, ""),
        (drop(baseline=""), replace(DROPPED, baseline=""), LATER, ""),
        (drop(likely=False), DROPPED, LATER, ""),
        (drop(), replace(DROPPED, drops={"ttft_p99": FIRST}), LATER, ""),
        (drop(), BEFORE, LATER, ""),
    ):
        last = second_day(second_case.verdict, suspect, date)
        assert (last.metrics[0].since, last.fails) == (since, bool(since))
        assert last.outcome is Outcome.PROVISIONAL
        assert ("second day in a row" in sentence(last.headline)) is bool(since)


def test_a_clock_that_was_set_back_makes_no_second_day() -> None:
    """The drop counts as the first then, and keeps the later date: the clock may be set again."""
    last = second_day(drop().verdict, replace(DROPPED, drops={"throughput": LATER}), FIRST)
    (after,) = next_suspects([replace(DROPPED, drops={"throughput": LATER})], [drop()], date=FIRST)

    assert not last.fails
    assert last.notes[-1] == Note.of("clock_set", day=LATER[:10])
    assert after.drops == {"throughput": LATER}


def test_another_verdict_of_a_session_ends_a_drop_and_an_unjudged_one_leaves_it() -> None:
    """A drop of the same day, or of a third one, keeps the date of the first."""
    for outcome, leaves in (
        *((word, False) for word in (Outcome.OK, Outcome.INCONCLUSIVE, Outcome.PERF_DROP)),
        *((word, True) for word in (Outcome.INVALID, Outcome.ERROR, Outcome.NO_BASELINE)),
        (Outcome.PROVISIONAL, False),
    ):
        assert (DROPPED in next_suspects([DROPPED], [case(outcome)], date=LATER)) is leaves
    (after,) = next_suspects([DROPPED], [drop()], date=LATER)
    assert after == replace(DROPPED, seen=LATER)
    (anew,) = next_suspects([DROPPED], [drop(baseline="b2")], date=LATER)
    assert (anew.drops, anew.baseline) == ({"throughput": LATER}, "b2")
    for disqualified in ({"handicap": 0.5}, {"pretended": True}):
        assert next_suspects([DROPPED], [case(Outcome.OK, **disqualified)], date=LATER) == (
            DROPPED,
        )


def test_merging_fails_the_second_day_and_on_request_the_first() -> None:
    second_case = replace(drop(), suspected=DROPPED)
    for case_result, fail_on, failed in (
        (second_case, (), True),
        (drop(), (), False),
        (drop(), {"provisional"}, True),
        (drop(), {"inconclusive"}, True),
        (replace(second_case, handicap=0.5), (), False),
    ):
        merged = joined([replace(session(case_result), started=LATER)], fail_on=fail_on)
        assert merged.cases[0].failed is failed
        assert merged.suspects[0].drops == {"throughput": FIRST if case_result.suspected else LATER}

    failure = KnownFailure(reason="known", until=TODAY)
    excused = session(replace(second_case, expected_failures=(failure,)))
    (expected,) = joined([replace(excused, started=LATER)]).cases
    assert (expected.verdict.outcome, expected.failed) == (Outcome.EXPECTED, False)


def test_a_later_session_clears_the_suspects_of_an_earlier_one_in_any_store() -> None:
    """Also a final drop ends the row; an invalid date is ignored."""
    (cleared,) = next_suspects([DROPPED], [case(Outcome.OK)], date=LATER, cleared=True)
    assert newest([DROPPED, cleared]) == newest([cleared, DROPPED]) == (cleared,)
    final = replace(drop(), verdict=replace(drop().verdict, outcome=Outcome.PERF_DROP))
    fell = replace(final.verdict.metrics[0], outcome=Outcome.PERF_DROP, direction=None)
    final = replace(final, verdict=replace(final.verdict, metrics=(fell,)))
    assert next_suspects([DROPPED], [final], date=LATER)[0].drops == {"throughput": FIRST}
    for text in ("0", "1999-99-99", " ::error::x"):
        with pytest.raises(ValueError, match=r"isoformat|month"):
            replace(DROPPED, drops={"throughput": text})

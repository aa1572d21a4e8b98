"""Test that MLPerf's compliance tests pass and fail as the reference's scripts do."""

from __future__ import annotations

from array import array

from pytest_mlperf.core.case import Scenario
from pytest_mlperf.core.compliance import (
    FAIL_LINE,
    PASS_LINE,
    LoggedAnswer,
    SpeedScore,
    check_accuracy,
    check_mean_length,
    check_token_counts,
    load_explains,
    other_seeds_speed,
    same_answers,
    same_predictions,
    same_speed,
    score_differences,
)
from tests.core.made import keys_of


def score(
    value: float, scenario: str = "Offline", *, valid: bool = True, limit_ns: int | None = None
) -> SpeedScore:
    return SpeedScore(scenario=Scenario(scenario), value=value, valid=valid, limit_ns=limit_ns)


def answers(*outputs: bytes) -> list[LoggedAnswer]:
    return [LoggedAnswer(index=index, data=data) for index, data in enumerate(outputs)]


def tokens(*ids: int, counted: int | None = None, first: int | None = None) -> LoggedAnswer:
    return LoggedAnswer(
        index=0,
        data=array("q", ids).tobytes(),
        tokens=len(ids) if counted is None else counted,
        first=None if first is None else array("q", [first]).tobytes(),
    )


SINGLE, MULTI = "SingleStream", "MultiStream"


def test_test01_is_as_fast_within_a_tenth_and_compares_answers_sample_by_sample() -> None:
    for reference, test, passed in (
        (score(100), score(109.9), True),
        (score(100), score(110.1), False),
        (score(100), score(90.1), True),
        (score(100), score(89.9), False),
        (score(2e5, SINGLE), score(2.39e5, SINGLE), True),
        (score(2.1e5, SINGLE), score(2.5e5, SINGLE), False),
        (score(100), score(100, valid=False), False),
        (score(100, valid=False), score(100), False),
        (score(100), score(100, "Server"), False),
        (score(100, "Server", limit_ns=1), score(100, "Server", limit_ns=2), False),
    ):
        finding = same_speed(reference, test)
        assert (finding.passed, PASS_LINE in finding.text) == (passed, passed)

    for timed, passed, noted in (
        (answers(b"ab", b"cd"), True, False),
        (answers(b"ab", b"xd"), False, False),
        (answers(b"ab", b"cx"), True, True),  # the first element alone decides, as there
        ([LoggedAnswer(index=9, data=b"ab")], False, False),
        ([*answers(b"ab"), LoggedAnswer(index=9, data=b"x")], True, False),
        ([], False, False),
        (answers(b"", b"cd"), False, False),
    ):
        finding = same_answers(answers(b"ab", b"cd"), timed)
        assert (finding.passed, bool(finding.notes)) == (passed, noted)
        assert finding.text.rstrip().endswith(PASS_LINE if passed else FAIL_LINE)


def test_test04_is_not_faster_with_one_sample_and_test05_not_slower_with_other_seeds() -> None:
    for reference, test, passed in (
        (score(100), score(109.9), True),
        (score(100), score(110.1), False),
        (score(100), score(10), True),  # slower shows nothing that is kept
        (score(1e7, SINGLE), score(8.4e6, SINGLE), True),  # 20 % under 200,000/s
        (score(1e7, SINGLE), score(8.3e6, SINGLE), False),
        (score(100), score(100, valid=False), False),
    ):
        assert same_speed(reference, test, one_sample=True).passed is passed

    for reference, test, passed in (
        (score(100), score(95.1), True),
        (score(100), score(94.9), False),
        (score(100), score(200), True),
        (score(1e6, MULTI), score(1.19e6, MULTI), True),
        (score(1e7, MULTI), score(1.06e7, MULTI), False),
    ):
        assert other_seeds_speed(reference, test).passed is passed


def test_load_explains_speeds_as_far_as_its_bound_reaches() -> None:
    """What load took from the slower run is given back, up to the speed of the other run."""
    for test, reference, timed, lost, explained in (
        ("TEST01", score(100), score(70), (0.0, 0.4), True),
        ("TEST01", score(100), score(70), (0.4, 0.0), False),
        ("TEST01", score(100), score(70), (0.0, 0.2), False),
        ("TEST01", score(70), score(100), (0.4, 0.0), True),
        ("TEST01", score(100), score(95), (0.0, 3.0), True),
        ("TEST01", score(100), score(70, valid=False), (0.0, 0.4), True),
        ("TEST01", score(100), score(70, valid=False), (0.0, 0.0), False),
        ("TEST01", score(1e5, SINGLE), score(2e5, SINGLE), (0.0, 0.8), True),
        ("TEST01", score(1e5, SINGLE), score(2e5, SINGLE), (0.8, 0.0), False),
        ("TEST01", score(100), score(0), (0.0, 0.8), False),
        ("TEST04", score(50), score(100), (0.7, 0.0), True),
        ("TEST04", score(10), score(100), (0.7, 0.0), False),
        ("TEST05", score(100), score(70), (0.0, 0.4), True),
        ("TEST05", score(1e6, MULTI), score(2e6, MULTI), (0.0, 0.7), True),
    ):
        is_explained = load_explains(test, (reference, timed), lost)
        assert is_explained is explained, (test, reference, timed, lost)


def test_test06_checks_lengths_ends_and_first_tokens() -> None:
    for answer, scenario, wrong in (
        (tokens(5, 6, 2), "Offline", ""),
        (tokens(5, 6, 2, counted=8), "Offline", "lengths_differ"),
        (tokens(5, 2, 2), "Offline", "answers_continue"),
        (tokens(2, 2), "Offline", ""),  # the very first token is never looked at, as there
        (tokens(5, 6, first=5), "Server", ""),
        (tokens(5, 6, first=7), "Server", "first_tokens_differ"),
        (tokens(5, 6, first=7), "Offline", ""),
        (tokens(5, 6), "Server", ""),
    ):
        finding = check_token_counts(
            [answer], scenario=Scenario(scenario), end_token=2, token_bytes=8
        )
        assert finding.passed is not bool(wrong)
        assert keys_of(finding.faults) == [wrong] * bool(wrong)
        assert ("verification complete" in finding.text) is not bool(wrong)
    assert check_token_counts(
        [tokens(5, 6)], scenario=Scenario.SERVER, end_token=2, token_bytes=8
    ).notes


def test_test09_asks_for_a_mean_length_test07_for_a_score_and_test08_for_entropies() -> None:
    """Answers that differ pass where their scores are alike; the suite says how wide a token is."""
    for lengths, passed in (((9, 11), True), ((8, 9), False), ((), False)):
        judgement = check_mean_length([tokens(*range(n)) for n in lengths], low=9, high=11, width=8)
        assert judgement.passed is passed
    assert check_accuracy(60.7, 60.698).passed
    assert not check_accuracy(60.6, 60.698).passed

    whole = array("f", [1, 3, 0.7, 0.2, 1, 0, 1, 1, 2]).tobytes()
    for prediction, sample, passed in ((0.7, 3, True), (0.7001, 3, True), (0.6, 3, False),
                                       (0.7, 4, False)):  # fmt: skip
        timed = array("f", [1, sample, prediction, 0.2]).tobytes()
        assert same_predictions(answers(whole), answers(timed)).passed is passed
    for row, fault in (
        ([1, 3, 0.7], "predictions_missing"),
        ([1, 3, 0.7, 0.2, 1, 0, 1, 1, 2], "predictions_missing"),
        ([], "samples_unknown"),
    ):
        finding = same_predictions(answers(whole), answers(array("f", row).tobytes()))
        assert fault in keys_of(finding.faults)
    assert not same_predictions(answers(whole[:-4]), answers(timed)).passed

    answer = LoggedAnswer(index=0, data=array("i", [5, 6]).tobytes(), tokens=2)

    assert score_differences({"top1": 99.5}, {"top1": 100.0}, {"top1": 0.01}) == ()
    assert score_differences({"top1": 98.5}, {"top1": 100.0}, {"top1": 0.01})
    assert score_differences({"top1": 98.5}, {}, {"top1": 0.01})
    assert check_token_counts(
        [answer], scenario=Scenario.OFFLINE, end_token=2, token_bytes=4
    ).passed
    assert not check_token_counts(
        [answer], scenario=Scenario.OFFLINE, end_token=2, token_bytes=8
    ).passed

"""Test the search for a rate: its next step, its end, and its error."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from statistics import fmean, pstdev
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_mlperf.core.search import (
    BASELINE_STEP_BOUNDS,
    CLAMP,
    FIRST_LOG_STEP,
    MAX_LOG_STEP,
    Condition,
    NoRate,
    SearchOutcome,
    SearchPlan,
    SearchRun,
    bracket,
    first_search_step,
    next_rate,
    search_entry,
    search_outcome,
)
from pytest_mlperf.judge.decision import Answer
from pytest_mlperf.reports import sentences
from tests.suites.tiny_twin import load_tool

TTFT = Condition(metric="ttft_p99", below=1.0)
TPOT = Condition(metric="tpot_p99", below=0.05)

Latency = Callable[[float], float]


def queue(capacity: float, service_s: float = 0.05, run_s: float = 60.0) -> Latency:
    """Return the latency of a server: steep near its capacity, and a matter of time beyond it."""

    def latency(rate: float) -> float:
        free = 1 - rate / capacity
        waiting = service_s / (free + math.sqrt(free * free + 0.04))
        return waiting + run_s * max(0.0, -free) / 2

    return latency


def step(at: float) -> Latency:
    return lambda rate: 0.001 if rate < at else 100.0


def truth(latency: Latency) -> float:
    low, high = 1e-6, 1e9
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if latency(middle) < TTFT.below else (low, middle)
    return low


def search(latency: Latency, plan: SearchPlan) -> list[SearchRun]:
    tries: list[SearchRun] = []
    while (rate := next_rate(tries, plan)) is not None:
        tries.append(search_entry(rate, {"ttft_p99": latency(rate)}, [TTFT]))
    return tries


def held(rate: float, value: float = 0.5) -> SearchRun:
    return SearchRun(rate=rate, metric="ttft_p99", value=value, limit=1.0, held=True)


def missed(rate: float, value: float = 2.0) -> SearchRun:
    return SearchRun(rate=rate, metric="ttft_p99", value=value, limit=1.0, held=False)


def test_it_steps_outwards_in_doubled_steps_that_at_most_double_the_rate() -> None:
    """A miss alone above rates that hold is measured again; a second miss is believed."""
    plan = SearchPlan(start=100.0, precision=0.02)
    tries = [missed(100), held(80), held(95), held(98.5)]

    assert next_rate(tries, plan) == 100.0
    assert next_rate([*tries, missed(100)], plan) is None
    again = next_rate([*tries, held(100)], plan)
    assert again == pytest.approx(125.0)

    cases = [
        ([], 1),
        ([held(100)], 1.25),
        ([missed(100)], 1 / 1.25),
        ([held(100), held(125)], 1.25 * 1.25**2),
        ([missed(100), missed(80)], 1 / (1.25 * 1.25**2)),
        ([held(100), held(125), held(100 * 1.25**3)], 1.25**3 * 2),
        ([held(100), held(1000)], 20),
    ]
    rates = [next_rate(tries, SearchPlan(start=100.0, step=FIRST_LOG_STEP)) for tries, _ in cases]

    assert rates == pytest.approx([100 * factor for _, factor in cases])


def test_between_two_ends_it_goes_beside_where_the_limit_should_be_met() -> None:
    """Excess -0.5 at 100 and +0.5 at 121: 0 is expected at 110, half a precision from the try.

    Just above 100 a miss one precision above it is all that is needed to end the search. Where two
    tries did not halve the bracket it is bisected.
    """
    plan = SearchPlan(start=100.0, precision=0.02)

    rate = next_rate([held(100, math.exp(-0.5)), missed(121, math.exp(0.5))], plan)

    assert rate is not None
    assert abs(math.log(rate / 110)) == pytest.approx(math.log(1.02) / 2, rel=1e-6)
    assert next_rate([held(100, 0.99), missed(121, 2.5)], plan) == pytest.approx(102.0)

    ends = [held(100, 0.4), missed(200, 1.01)]

    slow = next_rate([*ends, held(130, 0.4), held(138, 0.4)], SearchPlan(start=100.0))
    quick = next_rate([*ends, held(130, 0.4), held(145, 0.4)], SearchPlan(start=100.0))

    assert slow == pytest.approx(math.sqrt(138 * 200))
    assert quick == pytest.approx(200 / 1.02)
    assert missed(120, 30.0).excess == missed(120, 3000.0).excess == CLAMP
    assert held(120, 1e-6).excess == -CLAMP


def test_the_bracket_is_the_highest_rate_that_held_and_the_lowest_that_did_not() -> None:
    """The latency nearest its limit speaks for a run; what LoadGen calls late is not held."""
    for tries, low, high in (
        ([held(100)], 100, None),
        ([missed(100)], None, 100),
        ([held(100), missed(125), held(110)], 110, 125),
        ([held(100), missed(125), missed(110)], 100, 110),
        ([missed(100), held(80), held(100)], 100, None),
    ):
        assert [end.rate if end else None for end in bracket(tries)] == [low, high]

    for ttft, tpot, late, metric, holds in (
        (0.5, 0.01, False, "ttft_p99", True),
        (0.5, 0.04, False, "tpot_p99", True),
        (0.5, 0.06, False, "tpot_p99", False),
        (1.0, 0.01, False, "ttft_p99", False),
        (3.0, 0.10, False, "ttft_p99", False),
        (0.9, 0.01, True, "ttft_p99", False),
    ):
        attempt = search_entry(
            7.0, {"ttft_p99": ttft, "tpot_p99": tpot}, [TTFT, TPOT], is_invalid=late
        )
        assert (attempt.metric, attempt.held, attempt.excess < 0) == (metric, holds, holds)
    with pytest.raises(KeyError):
        search_entry(7.0, {"ttft_p99": 0.5}, [TPOT])


def test_a_plan_that_cannot_be_meant_is_refused() -> None:
    """The first step from a baseline is two limits, within bounds."""
    refused: list[tuple[dict[str, Any], str]] = [
        ({"start": 0.0}, "start is 0.0; it must be finite and above 0"),
        ({"step": 1.0}, "step is 1.0; it must be above 0 and at most log 2"),
        ({"precision": 0.0}, "precision is 0.0; it must be between 0 and 1"),
        ({"max_runs": 1}, "max_runs is 1; it must be at least 2, one on each side of the limit"),
    ]
    for change, message in refused:
        with pytest.raises(ValueError, match=f"^{message}$"):
            SearchPlan(**{"start": 1.0, **change})
    steps = [math.expm1(first_search_step(limit)) for limit in (0.03, 0.001, 0.4)]
    assert steps == pytest.approx([0.06, *BASELINE_STEP_BOUNDS])


def test_the_result_of_a_search_has_its_bracket() -> None:
    """A search whose runs were used up says how far it came, one without two ends finds nothing."""
    plan = SearchPlan(start=40.0, max_runs=2)
    search_result = search_outcome(
        [held(40.0, 0.8), missed(40.7, 1.25)], SearchPlan(start=40.0), TTFT.in_words
    )
    tries = [held(40.0, 0.8), missed(50.0, 1.25)]
    stopped = search_outcome(tries, plan, TTFT.in_words)

    assert (search_result.reached, stopped.reached, next_rate(tries, plan)) == (True, False, None)
    assert search_result.rate == pytest.approx(math.sqrt(40.0 * 40.7))
    assert search_result.resolution == pytest.approx(math.log(40.7 / 40) / math.sqrt(12))
    assert sentences.search_result(search_result) == (
        "40.35 samples/s at ttft_p99 < 1 s: limits met at 40/s, missed at 40.7/s (ttft_p99); 2 runs"
    )
    assert 40 < stopped.rate < 50
    assert sentences.search_result(stopped).endswith(
        "limits met at 40/s, missed at 50/s (ttft_p99); 2 runs; the precision of 2 % was not "
        "reached"
    )

    for tries in (
        [held(40.0, 0.8), missed(40.7, 1.25)],
        [held(38.0, 0.9), held(40.0, 0.9), missed(40.7, 30.0)],
        [held(38.0, 0.95), held(40.0, 0.8), held(40.3, 0.6), missed(40.7, 1.01)],
    ):
        search_result = search_outcome(tries, SearchPlan(start=40.0), TTFT.in_words)
        assert (search_result.scatter, search_result.standard_error) == (
            0,
            search_result.resolution,
        )

    for tries, message in (
        (
            [held(40.0), held(50.0, 0.75)],
            (
                "50/s, the highest of 2 tried, still meets ttft_p99 < 1 s (ttft_p99 750 ms); set "
                "start closer to the expected rate"
            ),
        ),
        (
            [missed(40.0), missed(32.0, 1.5)],
            (
                "32/s, the lowest of 2 tried, does not meet ttft_p99 < 1 s (ttft_p99 1.5 s); set "
                "a lower start, or a higher limit"
            ),
        ),
    ):
        with pytest.raises(NoRate) as caught:
            search_outcome(tries, SearchPlan(start=40.0, max_runs=2), TTFT.in_words)
        assert str(caught.value) == f"no rate found: {message}"


def test_the_standard_error_of_a_rate_is_its_actual_error() -> None:
    """A latency that grows by the fifth power of the rate, and differs from run to run.

    Over 200 searches: their true and their stated errors, as root mean
    squares; the bracket alone states about half of it or less.
    """
    plan = SearchPlan(start=100.0, step=first_search_step(0.03))
    for noise in (0.1, 0.2):
        rng = random.Random(5)

        def latency(rate: float, noise: float = noise, rng: random.Random = rng) -> float:
            return (rate / 100) ** 5 * math.exp(rng.gauss(0, noise))

        results = [search_outcome(search(latency, plan), plan, TTFT.in_words) for _ in range(200)]
        off = math.sqrt(fmean(math.log(one.rate / 100) ** 2 for one in results))
        stated = math.sqrt(fmean(one.standard_error**2 for one in results))
        assert stated == pytest.approx(off, rel=0.35)
        assert all(one.scatter <= math.log(2) for one in results)
        assert math.sqrt(fmean(one.resolution**2 for one in results)) < 0.6 * off


RATES = st.floats(min_value=0.01, max_value=1e5)
SHAPES = st.sampled_from([queue, step])


@settings(max_examples=60)
@given(
    capacity=RATES,
    off=st.floats(min_value=-3.0, max_value=3.0),
    shape=SHAPES,
    precision=st.floats(min_value=0.005, max_value=0.2),
    max_runs=st.integers(min_value=2, max_value=16),
    first=st.floats(min_value=0.02, max_value=MAX_LOG_STEP),
)
def test_without_noise_the_true_rate_lies_in_the_bracket(
    capacity: float, off: float, shape: Any, precision: float, max_runs: int, first: float
) -> None:
    """It ends within its runs, tries no rate twice but a doubtful miss, and keeps its word."""
    plan = SearchPlan(
        start=capacity * math.exp(off), step=first, precision=precision, max_runs=max_runs
    )
    latency = shape(capacity)

    tries = search(latency, plan)

    assert 2 <= len(tries) <= max_runs
    assert all(count <= 2 for count in Counter(one.rate for one in tries).values())
    try:
        search_result = search_outcome(tries, plan, "it")
    except NoRate:
        assert len(tries) == max_runs
        assert len({one.held for one in tries}) == 1
        return
    assert search_result.low <= truth(latency) * (1 + 1e-9)
    assert search_result.high >= truth(latency) * (1 - 1e-9)
    assert search_result.low <= search_result.rate <= search_result.high
    assert search_result.reached == (search_result.high / search_result.low <= 1 + precision + 1e-6)
    assert search_result.reached or len(tries) == max_runs


@given(data=st.data(), precision=st.sampled_from([0.001, 0.02, 0.2]), slope=st.floats(0.2, 20.0))
def test_for_requests_in_flight_the_search_equals_an_exhaustive_one(
    data: st.DataObject, precision: float, slope: float
) -> None:
    """Each number is whole, within the bounds and tried once; a narrow bracket has the true one.

    Without an end in the bounds, or with too few runs, nothing is found.
    """
    least = data.draw(st.integers(1, 300))
    most = data.draw(st.integers(least + 1, 400))
    limit = data.draw(st.integers(0, 450))
    start = data.draw(st.floats(1.0, 500.0))
    max_runs = data.draw(st.sampled_from([3, 8, 50]))
    plan = SearchPlan(start=start, precision=precision, max_runs=max_runs, bounds=(least, most))

    def latency(requests: float) -> float:
        return float(((requests + 0.5) / (limit + 1)) ** slope)

    tries = search(latency, plan)

    numbers = [one.rate for one in tries]
    held_numbers = [n for n in range(least, most + 1) if latency(n) < TTFT.below]
    again = Counter(numbers)
    assert len(tries) <= max_runs
    assert all(n == int(n) and least <= n <= most for n in numbers)
    assert all(count == 1 or (count == 2 and latency(n) >= 1) for n, count in again.items())
    if None in bracket(tries):
        assert len(tries) == max_runs or len(held_numbers) in {0, most - least + 1}
        with pytest.raises(NoRate, match=r"^no concurrency found: "):
            search_outcome(tries, plan, TTFT.in_words)
        return
    outcome = search_outcome(tries, plan, TTFT.in_words)
    assert outcome.rate == outcome.low <= max(held_numbers) < outcome.high
    assert outcome.reached == ((outcome.high - 1) / outcome.low <= 1 + precision + 1e-9)
    assert outcome.reached or len(tries) == max_runs
    if outcome.high == outcome.low + 1:
        assert (outcome.rate, outcome.resolution) == (max(held_numbers), 0)


def test_a_number_of_requests_is_described_as_such() -> None:
    """At the end of the bounds a search is over: there is nothing further to try."""
    plan = SearchPlan(start=32.0, bounds=(1, 64))
    search_result = search_outcome([held(32.0), missed(33.0)], plan, TTFT.in_words)

    assert next_rate([held(32.0), missed(33.0)], plan) is None
    assert (
        search_result.rate,
        search_result.whole,
        search_result.reached,
        search_result.resolution,
    ) == (32, True, True, 0)
    assert sentences.search_result(search_result) == (
        "32 requests in flight at ttft_p99 < 1 s: limits met at 32 requests in flight, "
        "missed at 33 requests in flight (ttft_p99); 2 runs"
    )
    for tries, message in (
        (
            [held(40.0), held(64.0, 0.75)],
            (
                "64 requests in flight, the highest of 2 tried, still meets ttft_p99 < 1 s "
                "(ttft_p99 750 ms); set start or bounds closer to the expected concurrency"
            ),
        ),
        (
            [missed(2.0), missed(1.0, 1.5)],
            (
                "1 request in flight, the lowest of 2 tried, does not meet ttft_p99 < 1 s "
                "(ttft_p99 1.5 s); set a lower start or bounds, or a higher limit"
            ),
        ),
    ):
        assert next_rate(tries, plan) is None
        with pytest.raises(NoRate) as caught:
            search_outcome(tries, plan, TTFT.in_words)
        assert str(caught.value) == f"no concurrency found: {message}"


@given(seed=st.integers(0, 2**32), noise=st.floats(0.0, 1.0), off=st.floats(-1.5, 1.5))
def test_under_any_noise_it_ends_within_its_runs_and_inside_its_bracket(
    seed: int, noise: float, off: float
) -> None:
    """Latencies that make no sense together cost precision, never the end of the search."""
    random_ = random.Random(seed)
    latency = queue(100.0)
    plan = SearchPlan(start=100 * math.exp(off))

    tries = search(lambda rate: latency(rate) * math.exp(random_.gauss(0, noise)), plan)

    assert len(tries) <= plan.max_runs
    low, high = bracket(tries)
    if low and high:
        search_result = search_outcome(tries, plan, "it")
        assert low.rate < search_result.rate < high.rate


def errors(
    noise: float, plan: Callable[[float], SearchPlan], seeds: int = 120
) -> list[SearchOutcome]:
    """Return the searches of many seeds, each on a server whose latency is off by chance."""
    latency, results = queue(100.0), []
    for seed in range(seeds):
        random_ = random.Random(seed)
        start = truth(latency) * math.exp(random_.uniform(-0.7, 0.7))
        search_plan = plan(start)
        tries = search(
            lambda rate, r=random_: latency(rate) * math.exp(r.gauss(0, noise)),  # type: ignore[misc]
            search_plan,
        )
        results.append(search_outcome(tries, search_plan, "it"))
    return results


def test_it_comes_within_a_few_per_cent_in_the_fewer_runs_the_nearer_it_starts() -> None:
    """5 % noise of the latency: 95 % of the searches are within 2 % of the truth, in 8 runs."""
    right = truth(queue(100.0))
    far = errors(0.05, lambda start: SearchPlan(start=start))
    near = errors(0.05, lambda _: SearchPlan(start=right, step=first_search_step(0.03)))

    for results in (far, near):
        away = sorted(abs(math.log(one.rate / right)) for one in results)
        assert away[int(0.95 * len(away))] < 0.02
    assert pstdev(math.log(one.rate) for one in far) < 0.01
    assert fmean(one.reached for one in far) > 0.9
    assert fmean(len(one.tried) for one in far) < 7.5
    assert fmean(len(one.tried) for one in near) < 4.5
    assert all(one.reached for one in near)


@pytest.mark.slow
def test_verdicts_on_rates_found_err_as_seldom_as_is_promised() -> None:
    """Rule R on searches: no change fails at most 1 % of the time, and a drop of 5 % shows.

    Thirty sessions here; `make searches` makes 500 on machines of several kinds.
    """
    lib = load_tool("searches")
    gpu = next(machine for machine in lib.MACHINES if machine.name == "GPU")

    row = lib.study(gpu, 30, (1.0, 0.97, 0.95))

    assert row.lost == 0
    assert row.words[1.0][Answer.FAIL] <= 1
    assert row.words[1.0][Answer.PASS] >= 27
    assert row.words[0.97][Answer.PASS] <= 3
    assert row.words[0.95][Answer.FAIL] >= 27
    assert row.further_runs < 4

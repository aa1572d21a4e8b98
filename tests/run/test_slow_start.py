"""Test the warm-up until an engine is at its speed, and the effect of a slow start."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.core.case import Scenario
from pytest_mlperf.core.job import Job, LoadGenSettings
from pytest_mlperf.core.reason import Key
from pytest_mlperf.run.figures import length_findings, start_findings
from pytest_mlperf.run.worker import worker
from pytest_mlperf.run.worker.clocks import slow_start
from pytest_mlperf.suite.plan import plan_suite
from tests.jobs import job_of
from tests.run.harness import settings
from tests.run.sentences import notes_of, reasons_of

WARMUP_S = 0.5


class TimedDriver:
    """Has its own clock: a list takes `list_s` of its size and of the lists before it."""

    def __init__(self, list_s: Callable[[int, int], float]) -> None:
        self.now_s, self.lists, self._list_s = 0.0, 0, list_s

    def submit(self, samples: int) -> float:
        took_s = self._list_s(samples, self.lists)
        self.now_s, self.lists = self.now_s + took_s, self.lists + 1
        return took_s


@pytest.fixture
def drive(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int, int], float]], Any]:
    """Return a driver whose clock is the worker's."""

    def make(list_s: Callable[[int, int], float]) -> TimedDriver:
        driver = TimedDriver(list_s)
        monkeypatch.setattr(worker, "perf_counter", lambda: driver.now_s)
        return driver

    return make


def loadgen_settings(scenario: str, rate: float | None, planned_s: float = 3.0) -> LoadGenSettings:
    more = {"latency_limit_ns": 10**9} if scenario == "Server" else {}
    made = settings(scenario, target_qps=rate, min_query_count=1, **more)
    return replace(made, fixed_work_s=planned_s, performance_samples=1024)


def test_a_warm_up_lasts_until_lists_become_no_faster(drive: Any) -> None:
    """Falling times, a plateau with and without a rate, noise, one list that takes too long."""

    def steady(size: int, done: int) -> float:
        return 0.01

    def falling(size: int, done: int) -> float:
        return max(0.1 * 0.9**done, 0.001)

    def plateau(size: int, done: int) -> float:
        return 0.06 if done < 40 else 0.0001

    def noise(size: int, done: int) -> float:
        return 0.01 * (1 + 0.3 * math.sin(done))

    def long(size: int, done: int) -> float:
        return 40.0

    for list_s, rate, least_s, most_s, reached in (
        (steady, 100.0, 0.5, 0.6, 100),
        (falling, 1000.0, 0.8, 1.8, 1000),
        (plateau, None, 3.0, 3.2, 10_000),
        (plateau, 17.0, 0.5, 0.7, 16.7),
        (noise, 100.0, 0.5, 1.5, 100),
        (long, 0.02, 40, 40, 0.025),
    ):
        driver = drive(list_s)
        took_s, rate_reached = worker.warm_up(
            driver, loadgen_settings("SingleStream", rate), WARMUP_S
        )
        assert least_s <= took_s <= most_s, list_s
        assert rate_reached == pytest.approx(reached, rel=0.3), list_s
    driver = drive(steady)
    worker.warm_up(driver, loadgen_settings("Offline", 1e4), WARMUP_S, min_queries=100)
    assert driver.lists >= 100
    driver = drive(falling)
    took_s, _ = worker.warm_up(driver, loadgen_settings("Offline", None, planned_s=600.0), WARMUP_S)
    assert 30.0 <= took_s <= 30.5


def test_an_engine_that_seems_too_slow_is_asked_for_more_before_it_is_refused(drive: Any) -> None:
    """What works on many samples at once needs longer lists, a slow beginning only time."""

    def parallel(size: int, done: int) -> float:
        return 2.0 if size <= 1024 else size / 512

    def serial(size: int, done: int) -> float:
        return 0.01 * size

    def slow_start(size: int, done: int) -> float:
        return size * (0.01 if done < 2 else 1e-5)

    for list_s, scenario, reached, enough, full in (
        (parallel, "Offline", 32.0, 1e6, 512.0),
        (parallel, "Server", 0.5, 300.0, 512.0),
        (serial, "Offline", 100.0, 5000.0, 100.0),
        (serial, "SingleStream", 100.0, 5000.0, 100.0),
        (slow_start, "Offline", 100.0, 5000.0, 1e5),
        (slow_start, "SingleStream", 100.0, 5000.0, 1e5),
    ):
        rate = worker.full_rate(
            drive(list_s), reached, enough, loadgen_settings(scenario, 1e5), 10**6
        )
        assert rate == pytest.approx(full), (list_s, scenario)


def test_a_beginning_unlike_the_second_half_is_named_with_its_effect() -> None:
    """Slow or fast, for up to half of a run; by hand: 100 of 1,000 queries at 5 in place of 1."""
    chance = random.Random(1)

    def costs(count: int, slow: int, factor: float, sd: float = 0.02) -> list[float]:
        return [
            (factor if n < slow else 1.0) * math.exp(chance.gauss(0.0, sd)) for n in range(count)
        ]

    exact = slow_start(costs(1000, 100, 5.0, sd=0.0), "latency")
    assert exact["latency"] == pytest.approx(math.log(5))
    assert exact["latency_mean"] == pytest.approx(math.log(1.4))
    assert exact["latency_p50"] == 0.0
    assert exact["latency_p99"] == pytest.approx(math.log(5))
    for count, slow, factor in (
        (64, 40, 600.0),
        (1000, 40, 60.0),
        (1000, 300, 1.5),
        (500, 50, 0.7),
    ):
        added = slow_start(costs(count, min(slow, count // 2), factor), "ttft")
        assert math.copysign(1, added["ttft_mean"]) == math.copysign(1, factor - 1)
    assert slow_start(costs(1000, 3, 1.5), "latency") == {}
    assert slow_start(costs(19, 2, 60.0), "latency") == slow_start([], "latency") == {}


@pytest.mark.parametrize("sd", [0.02, 0.3, 1.0])
def test_runs_of_one_distribution_have_no_slow_start(sd: float) -> None:
    """At most 3 in 100, of which few add much; also with bursts that last for a while."""
    chance, alarms = random.Random(7), 0
    for number in range(300):
        burst = chance.randrange(1000) if number % 2 else 1000
        costs = [
            math.exp(chance.gauss(0.0, sd)) * (2.0 if burst <= n < burst + 100 else 1.0)
            for n in range(1000)
        ]
        alarms += bool(slow_start(costs, "latency")) and burst > 100
    assert alarms <= 9


@pytest.fixture
def job(tmp_path: Path) -> Job:
    suite = tmp_path / "s.mlperf.toml"
    suite.write_text(
        'schema = 1\nround = "v4.1"\n[workload]\nname = "s"\n'
        'dataset = { use = "synthetic", samples = 8 }\n[[engines]]\nuse = "null"\n'
        'accelerators = ["cpu"]\n[[scenarios]]\nname = "SingleStream"\n',
        "utf-8",
    )
    (planned,) = plan_suite(suite)
    return replace(job_of(planned), limits={"latency_p90": 0.1, "tokens_per_second": 0.04})


def test_a_slow_start_is_noted_or_makes_a_run_invalid_by_its_effect(job: Job) -> None:
    """INVALID above half of a limit, a note above a tenth. A fast start is never INVALID."""
    for added, invalid, text in (
        ({}, False, ""),
        ({"latency_p90": 0.009}, False, ""),
        ({"latency_p90": 0.04}, False, "changes p90 latency by +4.1 % (limit 10 %)"),
        ({"latency_p90": -0.3}, False, "changes p90 latency by −25.9 %"),
        ({"latency_p90": 0.06}, True, "changes p90 latency by +6.2 % (limit 10 %)"),
        ({"latency_mean": 0.03}, True, "changes tokens/s by −3.0 % (limit 4 %)"),
        ({"latency_p99": 5.0}, False, ""),
    ):
        seen = start_findings(job, {"latency": math.log(3.0), **added} if added else {})
        assert [reason.key for reason in seen.invalid] == [Key.SLOW_START] * invalid
        texts = [*reasons_of(seen), *notes_of(seen)]
        assert [text in one for one in texts] == [True] * bool(text)
        assert all("took 3 × as long" in one for one in texts)
    server = replace(job, settings=replace(job.settings, scenario=Scenario.SERVER))
    assert notes_of(start_findings(server, {"latency": 1.0, "latency_mean": 1.0})) == ()


def test_a_run_far_shorter_or_longer_than_planned_is_named() -> None:
    quick, official = (
        loadgen_settings("Offline", 10.0),
        replace(loadgen_settings("Offline", 10.0), fixed_work_s=None),
    )
    for chosen, lasted_s, probed, keys, notes in (
        (quick, 1.4, True, [Key.TOO_SHORT], 0),
        (quick, 1.6, True, [], 0),
        (quick, 0.3, False, [], 0),
        (official, 0.01, True, [], 0),
        (quick, 11.9, False, [], 0),
        (quick, 12.1, False, [], 1),
        (replace(quick, min_query_count=240), 90.0, False, [], 0),
        (replace(quick, points=(1, 2)), 90.0, False, [], 0),
    ):
        seen = length_findings(chosen, lasted_s, probed=probed)
        assert [reason.key for reason in seen.invalid] == keys, (lasted_s, probed)
        assert len(notes_of(seen)) == notes

"""Test searches of a case: where each starts, how a run counts, and how one value is made."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from pytest_mlperf.bench.runner import (
    INVALID_TRIES,
    LASTING_REASONS,
    Searches,
    SearchState,
    Unjudgeable,
    condition_differs,
)
from pytest_mlperf.core.baseline import Record
from pytest_mlperf.core.case import Scenario
from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.job import Job
from pytest_mlperf.core.measurement import Run
from pytest_mlperf.core.metrics import at_point
from pytest_mlperf.core.reason import Key, Reason
from pytest_mlperf.hardware.machine import detect
from pytest_mlperf.reports.sentences import sentence
from pytest_mlperf.run.child.process import Patience
from pytest_mlperf.run.conditions import Conditions
from pytest_mlperf.run.logs import DETAIL
from pytest_mlperf.suite.plan import plan_suite
from tests.core.made import make_baseline_run, make_record, make_run, present
from tests.jobs import job_of

CAPACITY = 100.0

TOO_SHORT = Reason(key=Key.LOADGEN, text="LoadGen: the run was too short")
EARLY = Reason(
    key=Key.EARLY_STOPPING,
    text="LoadGen: too few queries for its percentile (early stopping): raise min_query_count",
)


SCENARIOS = {
    "Server": 'latency_limit = "2s"\nfind = { maximise = "target_qps"',
    "Concurrency": 'find = { maximise = "concurrency", bounds = [1, 200]',
}


def planned(
    folder: Path, find: str = "", accelerators: str = '["cpu"]', scenario: str = "Server"
) -> Job:
    file = folder / "s.mlperf.toml"
    file.write_text(
        'schema = 1\nround = "v4.1"\n[workload]\nname = "mine"\n'
        f'[[engines]]\nuse = "null"\naccelerators = {accelerators}\n'
        f'[[scenarios]]\nname = "{scenario}"\n'
        f'{SCENARIOS[scenario]}, subject_to = "latency_p90 < 1 s"{find} }}\n',
        "utf-8",
    )
    return job_of(plan_suite(file)[0])


@dataclass
class Bench:
    """A server whose latency doubles with each 5 % of its rate, and a log of its searches."""

    folder: Path
    job: Job
    invalid: Callable[[float], tuple[Reason, ...]] = lambda rate: ()
    metric: str = "latency_p90"
    rate: float | None = None
    states: list[SearchState] = field(default_factory=list)
    invalid_runs: list[Run] = field(default_factory=list)

    def add_clients(self) -> None:
        """Fail, because there are no clients to add."""

    @property
    def conditions(self) -> Conditions:
        return Conditions(
            folder=self.folder,
            session="now",
            commit=None,
            handicap=0.0,
            patience=Patience(),
            lease_limit_s=1.0,
            machine=detect(gpus=False),
        )

    @property
    def rates(self) -> list[float | None]:
        return [at.rate for at in self.states]

    def attempt(self, at: SearchState) -> Run:
        """Make one run; a rate that is not given is probed at 80 a second."""
        self.states.append(at)
        rate = at.rate or 80.0
        folder = at.conditions.folder / f"run-{len(self.states)}"
        folder.mkdir()
        latency_s = 2 ** ((rate / CAPACITY - 1) / 0.05)
        latencies = {self.metric: latency_s, "latency_p99": 1.01 * latency_s}
        metrics = {"throughput": 0.99 * rate, **latencies}
        if self.job.settings.points:
            metrics = {at_point(name, round(rate)): value for name, value in metrics.items()}
        return make_run(
            metrics=metrics,
            within_se={"throughput": 0.01},
            target_qps=rate,
            started=f"2026-11-21T12:00:{len(self.states):02d}+00:00",
            folder=str(folder),
            invalid=self.invalid(rate),
        )


def record(*rates: float, find: str | None = "latency_p90 < 1 s") -> Record:
    return make_record(
        *(make_baseline_run(metrics={"throughput": rate}) for rate in rates),
        target_qps=None if find else rates[0],
        fingerprint={"find": find} if find else {},
    )


def made(bench: Bench, record: Record | None = None) -> Searches:
    return Searches(bench.job, present(bench.job.find), bench.conditions, record)


def test_one_search_gives_one_value(tmp_path: Path) -> None:
    """The rate found is its throughput; the rest is that of the highest rate that held.

    Further searches start where the previous ones ended; each folder holds those of its runs.
    """
    bench = Bench(tmp_path, planned(tmp_path))
    own_searches = made(bench)

    run = own_searches.run(bench, bench.attempt)
    count, search = len(bench.states), present(run.search)
    second = own_searches.run(bench, bench.attempt)

    assert run.metrics["throughput"] == search.rate == pytest.approx(CAPACITY, rel=0.01)
    assert run.within_se == {"throughput": search.standard_error}
    assert run.target_qps == search.low < search.rate < search.high
    assert run.metrics["latency_p90"] == 2 ** ((search.low / CAPACITY - 1) / 0.05) < 1
    assert (run.started, run.limit_missed) == ("2026-11-21T12:00:01+00:00", False)
    assert len(search.tried) == count <= 8
    assert bench.rates[count] == pytest.approx(search.rate)
    assert len(bench.states) - count <= 4
    assert second.metrics["throughput"] == pytest.approx(CAPACITY, rel=0.01)
    for number, searched_run in enumerate((run, second), start=1):
        folder = tmp_path / f"{bench.job.case.id}.search-{number}"
        assert Path(searched_run.folder) == folder
        assert {Path(one.folder).parent for one in present(searched_run.search).tried} == {folder}


def test_a_search_starts_at_the_baseline_else_the_suites_start_else_a_probe(tmp_path: Path) -> None:
    """And steps by two limits from a rate that was found, by a quarter from any other."""
    for find, record_before, first, second in (
        ("", None, None, 100.0),
        (", start = 70", None, 70.0, 87.5),
        (", start = { cpu = 70 }", None, 70.0, 87.5),
        (", start = { H200 = 70 }", None, None, 100.0),
        (", start = 70", record(90.0, 90.0), 90.0, 95.4),
        (", start = 70", record(90.0, find="latency_p90 < 2 s"), 70.0, 87.5),
    ):
        shutil.rmtree(tmp_path)
        tmp_path.mkdir()
        bench = Bench(tmp_path, planned(tmp_path, find, '["cpu", "H200"]'))
        made(bench, record_before).run(bench, bench.attempt)
        assert bench.rates[0] == (first and pytest.approx(first))
        assert bench.rates[1] == pytest.approx(second)


def test_a_search_over_requests_in_flight_gives_the_figures_of_the_number_found(
    tmp_path: Path,
) -> None:
    """The latency of 99 is below the limit, that of 100 is at it; no figure names its point.

    The next search starts at that number.
    """
    bench = Bench(
        tmp_path,
        planned(tmp_path, ', precision = "0.1%", max_runs = 16', scenario=Scenario.CONCURRENCY),
    )
    own_searches = made(bench)

    run = own_searches.run(bench, bench.attempt)
    count, search = len(bench.states), present(run.search)
    own_searches.run(bench, bench.attempt)

    assert (search.rate, search.low, search.high, search.whole) == (99, 99, 100, True)
    assert run.metrics == {
        "concurrency": 99,
        "throughput": pytest.approx(0.99 * 99),
        "latency_p90": pytest.approx(2 ** (-0.01 / 0.05)),
        "latency_p99": pytest.approx(1.01 * 2 ** (-0.01 / 0.05)),
    }
    assert run.within_se == dict.fromkeys(("throughput", "concurrency"), search.standard_error)
    assert all(number == int(number or 0) for number in bench.rates)
    assert (bench.rates[:2], bench.rates[count]) == ([14, 28], 99)


def test_a_search_over_requests_in_flight_starts_at_the_baseline_else_the_suites_start(
    tmp_path: Path,
) -> None:
    """And steps by two limits of it, 10 %; the geometric mean of the bounds may be far off."""
    earlier = make_record(
        *(make_baseline_run(metrics={"concurrency": 90.0, "throughput": 7.0}) for _ in range(2)),
        fingerprint={"find": "latency_p90 < 1 s"},
    )
    for find, record, first, second in (
        ("", None, 14, 28),
        (", start = 70", None, 70, 88),
        (", start = 70", earlier, 90, 99),
    ):
        shutil.rmtree(tmp_path)
        tmp_path.mkdir()
        bench = Bench(tmp_path, planned(tmp_path, find, scenario=Scenario.CONCURRENCY))
        made(bench, record).run(bench, bench.attempt)
        assert bench.rates[:2] == [first, second]


def test_bounds_that_all_hold_or_do_not_are_invalid(tmp_path: Path) -> None:
    for bounds, words in (
        ("[8, 20]", "20 requests in flight, the highest of 2 tried, still meets latency_p90 "),
        ("[150, 180]", "150 requests in flight, the lowest of 2 tried, does not meet latency_p90 "),
    ):
        shutil.rmtree(tmp_path)
        tmp_path.mkdir()
        bench = Bench(tmp_path, planned(tmp_path, scenario=Scenario.CONCURRENCY))
        low, high = json.loads(bounds)
        assert bench.job.find is not None
        bench.job = replace(bench.job, find=replace(bench.job.find, bounds=(low, high)))

        with pytest.raises(Unjudgeable) as caught:
            made(bench).run(bench, bench.attempt)

        (reason,) = caught.value.run.invalid
        assert reason.key is Key.NO_RATE
        assert sentence(reason.text).startswith(f"no concurrency found: {words}")


def test_a_run_that_loadgen_doubts_only_for_late_queries_does_not_hold(tmp_path: Path) -> None:
    """Early stopping at a rate whose percentile is met by little: a miss, no INVALID run.

    No log is read for it: none is there.
    """
    bench = Bench(tmp_path, planned(tmp_path), lambda rate: (EARLY,) if rate > 90 else ())

    run = made(bench).run(bench, bench.attempt)

    search = present(run.search)
    assert search.low <= 90 < search.high
    assert run.metrics["throughput"] == pytest.approx(90, rel=0.02)
    assert not list(tmp_path.rglob(DETAIL))


def test_a_run_that_is_invalid_for_another_reason_ends_the_search(tmp_path: Path) -> None:
    """One that was too short says nothing about the rate, and is measured again first.

    What the next run would be INVALID for as well is not measured again.
    """
    lasting = [Reason(key=key, text="for good") for key in sorted(LASTING_REASONS)]
    for reasons, tries in (
        ((TOO_SHORT,), INVALID_TRIES),
        *(((TOO_SHORT, reason), 1) for reason in lasting),
    ):
        shutil.rmtree(tmp_path)
        tmp_path.mkdir()
        bench = Bench(tmp_path, planned(tmp_path), lambda _, reasons=reasons: reasons)  # type: ignore[misc]
        with pytest.raises(Unjudgeable) as caught:
            made(bench).run(bench, bench.attempt)
        assert caught.value.run.invalid == reasons
        assert len(bench.states) == len(bench.invalid_runs) == tries


def test_a_search_that_finds_no_rate_is_invalid(tmp_path: Path) -> None:
    bench = Bench(tmp_path, planned(tmp_path, ", start = 3000, max_runs = 4"))

    with pytest.raises(Unjudgeable) as caught:
        made(bench).run(bench, bench.attempt)

    (reason,) = caught.value.run.invalid
    assert reason.key is Key.NO_RATE
    assert sentence(reason.text).startswith(
        "no rate found: 768/s, the lowest of 4 tried, does not meet latency_p90 "
    )


def test_a_latency_that_the_engine_does_not_report_is_an_error(tmp_path: Path) -> None:
    bench = Bench(tmp_path, planned(tmp_path), metric="latency_p50")

    with pytest.raises(RunError, match=r"^find\.subject_to has latency_p90, which the engine "):
        made(bench).run(bench, bench.attempt)


def test_a_baseline_of_another_condition_says_nothing(tmp_path: Path) -> None:
    """Rates that are given are not searched."""
    job = planned(tmp_path)
    differs = "condition differs: the suite searches the highest rate with latency_p90 < 1 s"
    for record_before, words in (
        (record(90.0), None),
        (
            record(90.0, find="latency_p90 < 2 s"),
            f"{differs}, the baseline searched the highest rate with latency_p90 < 2 s",
        ),
        (record(90.0, find=None), f"{differs}, the baseline was measured at 90/s"),
    ):
        assert condition_differs(job, record_before) == words
    over = planned(tmp_path, scenario=Scenario.CONCURRENCY)
    curve = make_record(make_baseline_run(), fingerprint={"points": "1, 8"})
    assert condition_differs(over, curve) == (
        "condition differs: the suite searches the highest concurrency with latency_p90 < 1 s, "
        "the baseline was measured at fixed points"
    )
    planned(tmp_path)
    file = tmp_path / "s.mlperf.toml"
    text = file.read_text("utf-8")
    file.write_text(text[: text.index("find")] + "target_qps = 50\n", "utf-8")
    bench = Bench(tmp_path, job_of(plan_suite(file)[0]))
    assert bench.job.find is None

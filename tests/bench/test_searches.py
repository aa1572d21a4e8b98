"""Searches of a case: where each starts, what a run counts as, and what one value is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pytest_mlperf.bench.runner import (
    INVALID_TRIES,
    LASTING,
    Searches,
    SearchState,
    Unjudgeable,
    condition_differs,
    searches,
)
from pytest_mlperf.core.baseline import BaselineRun, Record
from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.job import Job
from pytest_mlperf.core.measurement import Run
from pytest_mlperf.core.reason import Key, Reason
from pytest_mlperf.hardware.machine import detect
from pytest_mlperf.run.child.process import Patience
from pytest_mlperf.run.conditions import Conditions
from pytest_mlperf.run.logs import DETAIL
from pytest_mlperf.suite.plan import plan_suite
from tests.jobs import job_of

CAPACITY = 100.0

TOO_SHORT = Reason(key=Key.LOADGEN, text="LoadGen: the run was too short")
EARLY = Reason(
    key=Key.EARLY_STOPPING,
    text="LoadGen: too few queries for its percentile (early stopping): raise min_query_count",
)


def planned(folder: Path, find: str = "", accelerators: str = '["cpu"]') -> Job:
    """Return a case that searches."""
    file = folder / "s.mlperf.toml"
    file.write_text(
        'schema = 1\nround = "v4.1"\n[workload]\nname = "mine"\n'
        f'[[engines]]\nuse = "null"\naccelerators = {accelerators}\n'
        '[[scenarios]]\nname = "Server"\nlatency_limit = "2s"\n'
        f'find = {{ maximise = "target_qps", subject_to = "latency_p90 < 1 s"{find} }}\n',
        "utf-8",
    )
    return job_of(plan_suite(file)[0])


@dataclass
class Bench:
    """A server whose latency doubles with each 5 % of its rate, and what it was asked to do."""

    folder: Path
    job: Job
    invalid: Callable[[float], tuple[Reason, ...]] = lambda rate: ()
    metric: str = "latency_p90"
    rate: float | None = None
    asked: list[SearchState] = field(default_factory=list)
    invalid_runs: list[Run] = field(default_factory=list)

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
        return [at.rate for at in self.asked]

    def attempt(self, at: SearchState) -> Run:
        """Make one run; a rate that is not given is probed at 80 a second."""
        self.asked.append(at)
        rate = at.rate or 80.0
        folder = at.conditions.folder / f"run-{len(self.asked)}"
        folder.mkdir()
        latency_s = 2 ** ((rate / CAPACITY - 1) / 0.05)
        return Run(
            metrics={
                "throughput": 0.99 * rate,
                self.metric: latency_s,
                "latency_p99": 1.01 * latency_s,
            },
            within_se={"throughput": 0.01},
            samples=1000,
            queries=1000,
            duration_s=10.0,
            target_qps=rate,
            session="now",
            started=f"2026-11-21T12:00:{len(self.asked):02d}+00:00",
            commit=None,
            folder=str(folder),
            invalid=self.invalid(rate),
        )


def record(*rates: float, find: str | None = "latency_p90 < 1 s") -> Record:
    """Return a baseline of these rates."""
    return Record(
        identity={},
        target_qps=None if find else rates[0],
        qps_source=None,
        fingerprint={"find": find} if find else {},
        runs=tuple(
            BaselineRun(
                metrics={"throughput": rate},
                within_se={},
                session="then",
                started="2026-11-20T12:00:00+00:00",
                samples=1000,
                duration_s=10.0,
                commit=None,
            )
            for rate in rates
        ),
        minimum_detectable_change={},
        history=(),
    )


def made(bench: Bench, before: Record | None = None) -> Searches:
    found = searches(bench.job, bench.conditions, before)
    assert found is not None
    return found


def test_one_search_gives_one_value(tmp_path: Path) -> None:
    """The rate found is its throughput; the rest is that of the highest rate that held."""
    bench = Bench(tmp_path, planned(tmp_path))

    run = made(bench).run(bench, bench.attempt)

    assert run.search is not None
    assert run.metrics["throughput"] == run.search.rate == pytest.approx(CAPACITY, rel=0.01)
    assert run.within_se == {"throughput": run.search.standard_error}
    assert run.target_qps == run.search.low < run.search.rate < run.search.high
    assert run.metrics["latency_p90"] == 2 ** ((run.search.low / CAPACITY - 1) / 0.05) < 1
    assert run.started == "2026-11-21T12:00:01+00:00"
    assert len(run.search.tried) == len(bench.asked) <= 8
    assert not run.limit_missed


def test_the_folder_of_a_search_holds_those_of_its_runs(tmp_path: Path) -> None:
    bench = Bench(tmp_path, planned(tmp_path))
    own = made(bench)

    runs = [own.run(bench, bench.attempt) for _ in range(2)]

    folders = [tmp_path / f"{bench.job.case.id}.search-{n}" for n in (1, 2)]
    assert [Path(run.folder) for run in runs] == folders
    for run in runs:
        assert run.search is not None
        assert {Path(one.folder).parent for one in run.search.tried} == {Path(run.folder)}


@pytest.mark.parametrize(
    ("find", "before", "first", "second"),
    [
        ("", None, None, 100.0),
        (", start = 70", None, 70.0, 87.5),
        (", start = { cpu = 70 }", None, 70.0, 87.5),
        (", start = { H200 = 70 }", None, None, 100.0),
        (", start = 70", record(90.0, 90.0), 90.0, 95.4),
        (", start = 70", record(90.0, find="latency_p90 < 2 s"), 70.0, 87.5),
    ],
)
def test_a_search_starts_at_the_baseline_else_the_suites_start_else_a_probe(
    tmp_path: Path, find: str, before: Record | None, first: float | None, second: float
) -> None:
    """And steps by two limits from a rate that was found, by a quarter from any other."""
    bench = Bench(tmp_path, planned(tmp_path, find, '["cpu", "H200"]'))

    made(bench, before).run(bench, bench.attempt)

    assert bench.rates[0] == (None if first is None else pytest.approx(first))
    assert bench.rates[1] == pytest.approx(second)


def test_further_searches_start_where_those_before_ended(tmp_path: Path) -> None:
    bench = Bench(tmp_path, planned(tmp_path))
    own = made(bench)
    first = own.run(bench, bench.attempt)
    done = len(bench.asked)

    second = own.run(bench, bench.attempt)

    assert bench.rates[done] == pytest.approx(first.metrics["throughput"])
    assert len(bench.asked) - done <= 4
    assert second.metrics["throughput"] == pytest.approx(CAPACITY, rel=0.01)


def test_what_loadgen_doubts_for_late_queries_alone_is_not_held(tmp_path: Path) -> None:
    """Early stopping at a rate whose percentile is met by little: a miss, no INVALID run.

    No log is read for it: none is there.
    """
    bench = Bench(tmp_path, planned(tmp_path), lambda rate: (EARLY,) if rate > 90 else ())

    run = made(bench).run(bench, bench.attempt)

    assert run.search is not None
    assert run.search.low <= 90 < run.search.high
    assert run.metrics["throughput"] == pytest.approx(90, rel=0.02)
    assert not list(tmp_path.rglob(DETAIL))


def test_a_run_that_is_invalid_for_another_reason_ends_the_search(tmp_path: Path) -> None:
    """It was too short: that says nothing about the rate, and is measured again first."""
    bench = Bench(tmp_path, planned(tmp_path), lambda _: (TOO_SHORT,))

    with pytest.raises(Unjudgeable) as caught:
        made(bench).run(bench, bench.attempt)

    assert caught.value.run.invalid == (TOO_SHORT,)
    assert len(bench.asked) == len(bench.invalid_runs) == INVALID_TRIES


@pytest.mark.parametrize("key", sorted(LASTING))
def test_what_the_next_run_would_be_invalid_for_as_well_is_not_measured_again(
    tmp_path: Path, key: Key
) -> None:
    reason = Reason(key=key, text="for good")
    bench = Bench(tmp_path, planned(tmp_path), invalid=lambda _: (TOO_SHORT, reason))

    with pytest.raises(Unjudgeable):
        made(bench).run(bench, bench.attempt)

    assert len(bench.asked) == len(bench.invalid_runs) == 1


def test_a_search_that_finds_no_rate_is_invalid(tmp_path: Path) -> None:
    bench = Bench(tmp_path, planned(tmp_path, ", start = 3000, max_runs = 4"))

    with pytest.raises(Unjudgeable) as caught:
        made(bench).run(bench, bench.attempt)

    (why,) = caught.value.run.invalid
    assert why.key is Key.NO_RATE
    assert why.text.startswith(
        "no rate found: 768/s, the lowest of 4 tried, does not hold latency_p90 "
    )


def test_a_latency_that_the_engine_does_not_report_is_an_error(tmp_path: Path) -> None:
    bench = Bench(tmp_path, planned(tmp_path), metric="latency_p50")

    with pytest.raises(RunError, match=r"^latency_p90 cannot be held to a limit: the engine does "):
        made(bench).run(bench, bench.attempt)


def test_rates_that_are_given_are_not_searched(tmp_path: Path) -> None:
    planned(tmp_path)
    file = tmp_path / "s.mlperf.toml"
    text = file.read_text("utf-8")
    file.write_text(text[: text.index("find")] + "target_qps = 50\n", "utf-8")
    bench = Bench(tmp_path, job_of(plan_suite(file)[0]))

    assert searches(bench.job, bench.conditions) is None


@pytest.mark.parametrize(
    ("before", "words"),
    [
        (record(90.0), None),
        (
            record(90.0, find="latency_p90 < 2 s"),
            "condition differs: suite finds a rate at latency_p90 < 1 s, baseline found one at "
            "latency_p90 < 2 s",
        ),
        (
            record(90.0, find=None),
            "condition differs: suite finds a rate at latency_p90 < 1 s, baseline was offered 90/s",
        ),
    ],
)
def test_a_baseline_of_another_condition_says_nothing(
    tmp_path: Path, before: Record, words: str | None
) -> None:
    assert condition_differs(planned(tmp_path), before) == words

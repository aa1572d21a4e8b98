"""What the worker's path costs beside a bare LoadGen loop: `make bench`.

Every figure is a median over runs in fresh processes that alternate with the loop they are
compared with, so that a drift of the machine meets both alike.
"""

from __future__ import annotations

import functools
import json
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from pytest_mlperf.core.case import Scenario
from pytest_mlperf.core.job import Factory, LoadGenSettings, Seeds
from pytest_mlperf.run.child.process import Patience, WorkerProcess
from pytest_mlperf.run.child.protocol import ReplicaSpec, WorkerSpec
from pytest_mlperf.run.logs import DETAIL, Detail, parse_detail

ROUNDS = 5
SEEDS = Seeds(qsl=11, sample_index=12, schedule=13)


@dataclass(frozen=True, kw_only=True)
class Row:
    what: str
    measured: str
    target: str
    met: bool


@dataclass(kw_only=True)
class Table:
    rows: list[Row] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [
            f"{row.what:<44} {row.measured:<52} {row.target:<30} {'met' if row.met else 'MISSED'}"
            for row in self.rows
        ]
        head = f"{'':<44} {'measured (medians)':<52} {'target':<30}"
        return "\n".join(["", head, *lines])


@pytest.fixture(scope="module")
def table(request: pytest.FixtureRequest) -> Iterator[Table]:
    collected = Table()
    yield collected
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print(collected)


@dataclass(frozen=True, kw_only=True)
class Bench:
    """One comparison: runs both sides in turn and keeps what LoadGen logged."""

    folder: Path
    numbers: Iterator[int] = field(default_factory=count)

    def worker(
        self, scenario: Scenario, options: Mapping[str, Any], *, replicas: int = 0, **settings: Any
    ) -> Detail:
        """Run the null engine through the whole worker path, or in so many replicas."""
        folder = self.folder / str(next(self.numbers))
        folder.mkdir()
        spec = WorkerSpec(
            folder=str(folder),
            engine=Factory(target="pytest_mlperf.builtin.null:NullEngine", options=options),
            dataset=Factory(target="pytest_mlperf.builtin.synthetic:SyntheticDataset"),
            model=None,
            precision="fp32",
            settings=LoadGenSettings(
                **{
                    "scenario": scenario,
                    "seeds": SEEDS,
                    "min_duration_ms": 1,
                    "min_query_count": 1000,
                    "performance_samples": 1024,
                    **settings,
                }
            ),
            warmup_s=0.2,
            replicas=[ReplicaSpec(name=f"replica {number}") for number in range(replicas)],
        )
        with WorkerProcess(spec, Patience(progress_s=60.0), lambda _: None) as worker:
            finished = worker.wait_for("finished")
            worker.send({"command": "stop"})
        assert not finished["result"]["faults"]
        return self._read(folder / "performance")

    def bare(self, scenario: Scenario, loop: str, **settings: Any) -> Detail:
        """Run a bare loop with the same seeds."""
        folder = self.folder / str(next(self.numbers))
        folder.mkdir()
        seeds = {"qsl_rng_seed": 11, "sample_index_rng_seed": 12, "schedule_rng_seed": 13}
        given = {"scenario": scenario, "loop": loop, "settings": {**seeds, **settings}}
        script = Path(__file__).with_name("bare.py")
        subprocess.run(
            [sys.executable, str(script), json.dumps(given), str(folder)], check=True, timeout=60
        )
        return self._read(folder)

    def _read(self, folder: Path) -> Detail:
        detail = parse_detail(folder / DETAIL)
        assert detail.num_errors == 0, detail.errors
        return detail


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(folder=tmp_path)


def alternate(
    benchmark: BenchmarkFixture, *sides: Callable[[], Detail], rounds: int = ROUNDS
) -> list[list[Detail]]:
    """Run all sides in turn, `rounds` times; pytest-benchmark times one turn of all of them."""
    found: list[list[Detail]] = [[] for _ in sides]

    def turn() -> None:
        for details, side in zip(found, sides, strict=True):
            details.append(side())

    benchmark.pedantic(turn, rounds=rounds, iterations=1)  # type: ignore[no-untyped-call]
    return found


def median(details: list[Detail], key: str) -> float:
    return statistics.median(float(detail.values[key]) for detail in details)


def report(
    benchmark: BenchmarkFixture, table: Table, row: Row, figures: Mapping[str, float]
) -> None:
    table.rows.append(row)
    benchmark.extra_info.update(figures)
    benchmark.extra_info.update({"target": row.target, "met": row.met})


def test_offline_is_faster_than_a_bare_loop(
    benchmark: BenchmarkFixture, bench: Bench, table: Table
) -> None:
    samples, key = 1_000_000, "result_samples_per_second"
    ours, bare = alternate(
        benchmark,
        lambda: bench.worker(
            Scenario.OFFLINE,
            {"batch_size": 1024},
            target_qps=samples,
            fixed_work_s=1.0,
        ),
        lambda: bench.bare(Scenario.OFFLINE, "inline", min_query_count=samples, min_duration_ms=0),
    )
    rate, bare_rate = median(ours, key), median(bare, key)
    ratio = rate / bare_rate
    row = Row(
        what="Offline, inline",
        measured=f"{rate / 1e6:.2f} M/s : {bare_rate / 1e6:.2f} M/s = {ratio:.2f}",
        target=">= 2 (3 wished)",
        met=ratio >= 2,
    )
    report(benchmark, table, row, {"samples_per_s": rate, "bare": bare_rate, "ratio": ratio})


@pytest.mark.parametrize(("loop", "threads"), [("inline", 0), ("queue", 1)])
@pytest.mark.parametrize("rate", [100_000, 200_000])
def test_server_keeps_up(
    benchmark: BenchmarkFixture, bench: Bench, table: Table, rate: int, loop: str, threads: int
) -> None:
    ours, bare = alternate(
        benchmark,
        lambda: bench.worker(
            Scenario.SERVER,
            {"threads": threads},
            target_qps=float(rate),
            fixed_work_s=2.0,
            latency_limit_ns=5_000_000,
        ),
        lambda: bench.bare(
            Scenario.SERVER,
            loop,
            server_target_qps=float(rate),
            server_target_latency_ns=5_000_000,
            min_query_count=1000,
            min_duration_ms=2000,
        ),
    )
    valid, bare_valid = (sum(detail.valid for detail in side) for side in (ours, bare))
    key = "result_99.00_percentile_latency_ns"
    p99_ms, bare_p99_ms = median(ours, key) / 1e6, median(bare, key) / 1e6
    row = Row(
        what=f"Server, {loop}, {rate:,} q/s offered",
        measured=f"VALID {valid}/{ROUNDS} (bare {bare_valid}), "
        f"p99 {p99_ms:.2f} ms : {bare_p99_ms:.2f} ms",
        target="VALID in most, p99 < 5 ms" + (" (wished)" if rate > 100_000 else ""),
        met=valid > ROUNDS / 2 and p99_ms < 5,
    )
    report(benchmark, table, row, {"valid": valid, "p99_ms": p99_ms, "bare_p99_ms": bare_p99_ms})


@pytest.mark.parametrize(
    ("loop", "options", "queries", "rounds", "limit"),
    [
        pytest.param("inline", {}, 200_000, 9, 1.0, id="inline"),
        pytest.param("queue", {"threads": 1}, 60_000, 9, 1.15, id="thread"),
    ],
)
def test_single_stream_adds_no_latency(
    benchmark: BenchmarkFixture,
    bench: Bench,
    table: Table,
    loop: str,
    options: dict[str, Any],
    queries: int,
    rounds: int,
    limit: float,
) -> None:
    key = "result_mean_latency_ns"
    ours, bare = alternate(
        benchmark,
        lambda: bench.worker(Scenario.SINGLE_STREAM, options, target_qps=queries, fixed_work_s=1.0),
        lambda: bench.bare(
            Scenario.SINGLE_STREAM, loop, min_query_count=queries, min_duration_ms=0
        ),
        rounds=rounds,
    )
    mean_us, bare_us = median(ours, key) / 1e3, median(bare, key) / 1e3
    ratio = mean_us / bare_us
    row = Row(
        what=f"SingleStream, {loop}",
        measured=f"mean {mean_us:.2f} us : {bare_us:.2f} us = {ratio:.2f}",
        target=f"<= {limit}",
        met=ratio <= limit,
    )
    report(benchmark, table, row, {"mean_us": mean_us, "bare_us": bare_us, "ratio": ratio})


def test_token_latencies_keep_up(benchmark: BenchmarkFixture, bench: Bench, table: Table) -> None:
    rate = 30_000.0
    ours, bare = alternate(
        benchmark,
        lambda: bench.worker(
            Scenario.SERVER,
            {"tokens": 8},
            target_qps=rate,
            fixed_work_s=2.0,
            tokens=True,
            ttft_limit_ns=5_000_000,
            tpot_limit_ns=5_000_000,
        ),
        lambda: bench.bare(
            Scenario.SERVER,
            "tokens",
            server_target_qps=rate,
            use_token_latencies=True,
            ttft_latency=5_000_000,
            tpot_latency=5_000_000,
            min_query_count=1000,
            min_duration_ms=2000,
        ),
    )
    key = "result_first_token_99.00_percentile_latency_ns"
    valid = sum(detail.valid for detail in ours)
    p99_ms, bare_p99_ms = median(ours, key) / 1e6, median(bare, key) / 1e6
    row = Row(
        what=f"Server with tokens, {rate:,.0f} q/s offered",
        measured=f"VALID {valid}/{ROUNDS}, TTFT p99 {p99_ms:.2f} ms : {bare_p99_ms:.2f} ms",
        target="VALID in most, TTFT p99 < 5 ms",
        met=valid > ROUNDS / 2 and p99_ms < 5,
    )
    report(benchmark, table, row, {"valid": valid, "ttft_p99_ms": p99_ms})


# --- several processes behind one LoadGen ---------------------------------------------------------


def processor_us(run: Callable[[], Detail], spent: list[float]) -> Callable[[], Detail]:
    """Return a run that adds the processor time of all its processes to `spent`, us a query.

    What a run costs before and after its queries is that of one with hardly any.
    """

    def timed() -> Detail:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        detail = run()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        spent.append(used_s * 1e6)
        return detail

    return timed


@pytest.mark.parametrize(("rate", "tokens"), [(20_000, 0), (10_000, 8)], ids=["queries", "tokens"])
def test_a_query_to_one_of_four_replicas_costs_little(
    benchmark: BenchmarkFixture, bench: Bench, table: Table, rate: int, tokens: int
) -> None:
    limits: dict[str, Any] = (
        {"tokens": True, "ttft_limit_ns": 5_000_000, "tpot_limit_ns": 5_000_000}
        if tokens
        else {"latency_limit_ns": 5_000_000}
    )

    def side(replicas: int, seconds: float, spent: list[float]) -> Callable[[], Detail]:
        return processor_us(
            lambda: bench.worker(
                Scenario.SERVER,
                {"tokens": tokens},
                replicas=replicas,
                target_qps=float(rate),
                fixed_work_s=seconds,
                **limits,
            ),
            spent,
        )

    spent: list[list[float]] = [[] for _ in range(4)]
    four, *_ = alternate(
        benchmark,
        side(4, 3.0, spent[0]),
        side(0, 3.0, spent[1]),
        side(4, 0.1, spent[2]),
        side(0, 0.1, spent[3]),
    )
    key = "result_99.00_percentile_latency_ns"
    if tokens:
        key = "result_first_token_99.00_percentile_latency_ns"
    valid, p99_ms = sum(detail.valid for detail in four), median(four, key) / 1e6
    costs = [statistics.median(each) for each in spent]
    four_us, one_us = ((costs[n] - costs[n + 2]) / (rate * 2.9) for n in (0, 1))
    row = Row(
        what=f"4 replicas, Server{', tokens' if tokens else ''}, {rate:,} q/s",
        measured=f"VALID {valid}/{ROUNDS}, p99 {p99_ms:.2f} ms, {four_us:.1f} us : {one_us:.1f} us",
        target="VALID, p99 < 5 ms" + ("" if tokens else ", <= 15 us more"),
        met=valid > ROUNDS / 2 and p99_ms < 5 and (bool(tokens) or four_us - one_us <= 15),
    )
    report(benchmark, table, row, {"us": four_us, "one_us": one_us, "p99_ms": p99_ms})


def test_replicas_of_an_engine_that_computes_nothing(
    benchmark: BenchmarkFixture, bench: Bench, table: Table
) -> None:
    key = "result_samples_per_second"
    four, one = alternate(
        benchmark,
        *(
            functools.partial(
                bench.worker,
                Scenario.OFFLINE,
                {"batch_size": 1024},
                replicas=replicas,
                target_qps=2_000_000.0,
                fixed_work_s=1.0,
            )
            for replicas in (4, 0)
        ),
    )
    rate, alone = median(four, key), median(one, key)
    row = Row(
        what="4 replicas, Offline",
        measured=f"{rate / 1e6:.2f} M/s : {alone / 1e6:.2f} M/s = {rate / alone:.2f}",
        target=">= 3 M/s",
        met=rate >= 3e6,
    )
    report(benchmark, table, row, {"samples_per_s": rate, "one": alone})


@pytest.mark.parametrize("replicas", [2, 4, 8])
def test_replicas_that_wait_scale(
    benchmark: BenchmarkFixture, bench: Bench, table: Table, replicas: int
) -> None:
    """An engine that takes 10 ms for a batch, whatever else computes."""
    batch, key = 16, "result_samples_per_second"

    def side(count: int) -> Callable[[], Detail]:
        return lambda: bench.worker(
            Scenario.OFFLINE,
            {"batch_size": batch, "latency_s": 0.01 / batch},
            replicas=count,
            target_qps=1600.0 * max(1, count),
            fixed_work_s=2.0,
        )

    several, one = alternate(benchmark, side(replicas), side(0), rounds=3)
    ratio = median(several, key) / median(one, key)
    row = Row(
        what=f"{replicas} replicas, 10 ms a batch",
        measured=f"{ratio:.3f} x = {ratio / replicas:.3f} of {replicas}",
        target=">= 0.97 of the count",
        met=ratio >= 0.97 * replicas,
    )
    report(benchmark, table, row, {"ratio": ratio})

"""What the worker's path costs beside a bare LoadGen loop: `make bench`.

Every figure is a median over runs in fresh processes that alternate with the loop they are
compared with, so that a drift of the machine meets both alike.
"""

from __future__ import annotations

import json
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

from pytest_mlperf.run.logs import DETAIL, Detail, parse_detail
from pytest_mlperf.run.protocol import Factory, LoadGenSettings, Scenario, Seeds, WorkerSpec
from pytest_mlperf.run.supervisor import Patience, Worker

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

    def worker(self, scenario: Scenario, options: Mapping[str, Any], **settings: Any) -> Detail:
        """Run the null engine through the whole worker path."""
        folder = self.folder / str(next(self.numbers))
        folder.mkdir()
        spec = WorkerSpec(
            folder=str(folder),
            engine=Factory(target="pytest_mlperf.engines.null:NullEngine", options=options),
            dataset=Factory(target="pytest_mlperf.datasets.synthetic:SyntheticDataset"),
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
        )
        with Worker(spec, Patience(progress_s=60.0), lambda _: None) as worker:
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
            "Offline",
            {"batch_size": 1024},
            target_qps=samples,
            fixed_work_s=1.0,
        ),
        lambda: bench.bare("Offline", "inline", min_query_count=samples, min_duration_ms=0),
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
            "Server",
            {"threads": threads},
            target_qps=float(rate),
            fixed_work_s=2.0,
            latency_limit_ns=5_000_000,
        ),
        lambda: bench.bare(
            "Server",
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
        lambda: bench.worker("SingleStream", options, target_qps=queries, fixed_work_s=1.0),
        lambda: bench.bare("SingleStream", loop, min_query_count=queries, min_duration_ms=0),
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
            "Server",
            {"tokens": 8},
            target_qps=rate,
            fixed_work_s=2.0,
            tokens=True,
            ttft_limit_ns=5_000_000,
            tpot_limit_ns=5_000_000,
        ),
        lambda: bench.bare(
            "Server",
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

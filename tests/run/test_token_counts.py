"""Tokens of workloads without token latencies (gptj): the engine's own counts, or none."""

from __future__ import annotations

import re
import threading
from functools import partial
from pathlib import Path
from typing import get_args

import mlperf_loadgen
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.job import Scenario
from pytest_mlperf.core.metrics import LOOPS
from pytest_mlperf.run.child.protocol import Event, WorkerSpec
from pytest_mlperf.run.figures import Figures, with_token_rate
from pytest_mlperf.run.logs import DETAIL, parse_detail
from pytest_mlperf.run.reading import read_figures
from pytest_mlperf.run.worker._delivery import PerformanceSink
from tests.run.harness import FEWER, NULL, error_of, only, run_to_end, settings, spec
from tests.run.test_sink import Received, give_up, in_threads

COUNTING = "tests.run.engines_that_count:"


def read(given: WorkerSpec, events: list[Event]) -> Figures:
    """Read the run as the parent does."""
    return read_figures(only(events, "finished"), given.settings.scenario, "cpu")[1]


@pytest.mark.process
@pytest.mark.parametrize("scenario", [n for n in get_args(Scenario) if n not in LOOPS])
def test_counts_of_the_engine_give_tokens_per_second_in_every_scenario(
    tmp_path: Path, scenario: str
) -> None:
    """Equal to the engine's own sum, in the run's own tokens per sample, never by 69."""
    given = spec(tmp_path, engine=f"{COUNTING}Counts", settings=settings(scenario))
    events, code = run_to_end(given)
    run = read(given, events)

    assert code == 0
    (said,) = (
        line.split()
        for line in (tmp_path / "engine.log").read_text("utf-8").splitlines()
        if line.startswith("counted ")
    )
    samples, tokens = int(said[1]), int(said[2])
    assert run.samples == samples
    assert run.metrics["tokens_per_sample"] == tokens / samples
    samples_per_s = run.metrics.get("throughput", samples / run.duration_s)
    assert run.metrics["tokens_per_second"] == pytest.approx(samples_per_s * tokens / samples)
    logged = parse_detail(tmp_path / "performance" / DETAIL).values
    assert not [key for key in logged if "tokens_per_second" in key]


@pytest.mark.process
@pytest.mark.parametrize(
    ("engine", "scenario"), [(NULL, "SingleStream"), (f"{COUNTING}Forgets", "Offline")]
)
def test_an_engine_that_leaves_out_counts_has_no_tokens(
    tmp_path: Path, engine: str, scenario: str
) -> None:
    """All counts, or those of the first batch."""
    given = spec(tmp_path, engine=engine, settings=settings(scenario))
    run = read(given, run_to_end(given)[0])

    assert run.metrics
    assert not [name for name in run.metrics if "token" in name]


@pytest.mark.process
def test_no_token_at_all_is_an_error(tmp_path: Path) -> None:
    given = spec(tmp_path, engine=f"{COUNTING}SaysNothing")
    events, _ = run_to_end(given)

    with pytest.raises(RunError, match=r"^tokens_per_sample is 0\.0 .* 0 for every sample"):
        read(given, events)


@pytest.mark.process
def test_a_count_too_few_ends_the_worker(tmp_path: Path) -> None:
    events, code = run_to_end(spec(tmp_path, engine=f"{COUNTING}Miscounts"))

    assert code != 0
    assert error_of(events)["layer"] == "engine"
    assert re.search(r"done\(\) was given (\d+) ids but \d+ n_tokens", error_of(events)["message"])


def test_counts_that_cannot_be_never_reach_loadgen() -> None:
    received = Received()
    sink = PerformanceSink(give_up, received.port)
    sink.expect([1, 2])
    for n_tokens, message in (
        ([3], "2 ids but 1 n_tokens"),
        ([3, -1], "n_tokens -1; a count of tokens is at least 0"),
    ):
        with pytest.raises(RunError, match=message):
            sink.done([1, 2], None, n_tokens)
    assert received.calls == []
    assert sink.token_metrics == {}


@FEWER
@given(st.lists(st.lists(st.integers(0, 3000), min_size=1, max_size=4), min_size=1, max_size=8))
def test_every_batch_size_is_counted(batches: list[list[int]]) -> None:
    received = Received()
    sink = PerformanceSink(give_up, received.port)
    first = 1
    for counts in batches:
        ids = list(range(first, first + len(counts)))
        first += len(counts)
        sink.expect(ids)
        sink.done(ids, None, counts)

    every = [count for counts in batches for count in counts]
    assert sink.token_metrics == {"tokens_per_sample": sum(every) / len(every)}
    assert received.ids == list(range(1, first))


def test_samples_that_are_refused_are_not_counted() -> None:
    sink = PerformanceSink(give_up, Received().port)
    sink.expect([1, 2])
    sink.done([1, 9, 2], None, [10, 1000, 20])
    sink.done([2], None, [500])

    assert sink.token_metrics == {"tokens_per_sample": 15.0}
    assert sink.faults.count == 2


def test_no_count_is_lost_between_threads() -> None:
    sink = PerformanceSink(give_up, Received().port)
    each, threads = 2000, 4
    sink.expect(range(each * threads))
    gate = threading.Barrier(threads)

    def complete(number: int) -> None:
        gate.wait()
        for sample in range(number * each, (number + 1) * each):
            sink.done([sample], None, [sample])

    in_threads(partial(complete, number) for number in range(threads))

    total = each * threads
    assert sink.token_metrics == {"tokens_per_sample": sum(range(total)) / total}


def test_responses_carry_no_count_into_a_run_without_token_latencies() -> None:
    """LoadGen would log nothing of it; what it is not told it cannot mistake."""
    received = Received()
    sink = PerformanceSink(give_up, received.port)
    sink.expect([1, 2])
    sink.done([1, 2], None, [40, 50])

    fresh = mlperf_loadgen.QuerySampleResponse(0, 0, 0).n_tokens
    assert [tokens for _, _, tokens in received.calls] == [fresh, fresh]


def test_the_token_rate_is_by_the_runs_own_counts() -> None:
    """LoadGen's own tokens/s stay; where it has none, samples/s times the run's tokens/sample."""
    for metrics, expected in (
        ({"throughput": 10.0, "tokens_per_sample": 64.5}, 645.0),
        ({"latency_p90": 0.5, "tokens_per_sample": 64.5}, 129.0),
        ({"throughput": 10.0, "tokens_per_sample": 64.5, "tokens_per_second": 644.0}, 644.0),
        ({"throughput": 10.0}, None),
        ({"latency_p90": 0.5}, None),
    ):
        found = with_token_rate(metrics, samples=100, duration_s=50.0)
        assert found.get("tokens_per_second") == expected
        assert {name: found[name] for name in metrics} == metrics

"""Tokens of workloads without token latencies (gptj): the engine's own counts, or none."""

from __future__ import annotations

from pathlib import Path

import mlperf_loadgen
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.run.child.protocol import Event, WorkerSpec
from pytest_mlperf.run.figures import Figures, with_token_rate
from pytest_mlperf.run.logs import DETAIL, parse_detail
from pytest_mlperf.run.reading import read_figures
from pytest_mlperf.run.worker._delivery import PerformanceSink
from tests.run.harness import FEWER, only, run_to_end, settings, spec
from tests.run.test_sink import Received, give_up

COUNTING = "tests.run.engines_that_count:"


def read(given: WorkerSpec, events: list[Event]) -> Figures:
    return read_figures(only(events, "finished"), given.settings.scenario, "cpu")[1]


@pytest.mark.process
@pytest.mark.parametrize(
    "scenario",
    [
        *("Offline", "SingleStream"),
        *(pytest.param(name, marks=pytest.mark.nightly) for name in ("Server", "MultiStream")),
    ],
)
def test_counts_of_the_engine_give_tokens_per_second_in_every_scenario(
    tmp_path: Path, scenario: str
) -> None:
    """Equal to the engine's own sum, in the run's own tokens per sample, never by 69."""
    given = spec(tmp_path, engine=f"{COUNTING}Counts", settings=settings(scenario))
    events, code = run_to_end(given)
    run = read(given, events)

    assert code == 0
    lines = (tmp_path / "engine.log").read_text("utf-8").splitlines()
    (said,) = (line.split() for line in lines if line.startswith("counted "))
    samples, tokens = int(said[1]), int(said[2])
    assert run.samples == samples
    assert run.metrics["tokens_per_sample"] == tokens / samples
    samples_per_s = run.metrics.get("throughput", samples / run.duration_s)
    assert run.metrics["tokens_per_second"] == pytest.approx(samples_per_s * tokens / samples)
    logged = parse_detail(tmp_path / "performance" / DETAIL).values
    assert not [key for key in logged if "tokens_per_second" in key]


@pytest.mark.process
def test_an_engine_that_leaves_out_counts_has_no_tokens_and_0_is_an_error(tmp_path: Path) -> None:
    """Those of its first batch."""
    forgets = tmp_path / "forgets"
    forgets.mkdir()
    given = spec(forgets, engine=f"{COUNTING}Forgets")
    run = read(given, run_to_end(given)[0])
    assert run.metrics
    assert not [name for name in run.metrics if "token" in name]

    given = spec(tmp_path, engine=f"{COUNTING}SaysNothing")
    events, _ = run_to_end(given)
    with pytest.raises(RunError, match=r"^tokens_per_sample is 0\.0 .* 0 for every sample"):
        read(given, events)


@FEWER
@given(st.lists(st.lists(st.integers(0, 3000), min_size=1, max_size=4), min_size=1, max_size=8))
def test_every_batch_size_is_counted(batches: list[list[int]]) -> None:
    """Samples that are refused are not counted, and what LoadGen is not told it cannot mistake."""
    received = Received()
    sink = PerformanceSink(give_up, received.port)
    first = 1
    for counts in batches:
        ids = list(range(first, first + len(counts)))
        first += len(counts)
        sink.expect(ids)
        sink.done([*ids, 0], None, [*counts, 1000])
    sink.done([1], None, [500])

    every = [count for counts in batches for count in counts]
    fresh = mlperf_loadgen.QuerySampleResponse(0, 0, 0).n_tokens
    assert sink.token_metrics == {"tokens_per_sample": sum(every) / len(every)}
    assert received.calls == [(sample, b"", fresh) for sample in range(1, first)]
    assert sink.faults.count == len(batches) + 1


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

"""Tokens of workloads without token latencies (gptj): the engine's own counts, or none."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from pathlib import Path

import mlperf_loadgen
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.run.answers import token_counts
from pytest_mlperf.run.child.protocol import Event, WorkerSpec
from pytest_mlperf.run.figures import Figures, with_token_rate
from pytest_mlperf.run.logs import DETAIL, parse_detail
from pytest_mlperf.run.reading import read_figures
from pytest_mlperf.run.worker._delivery import (
    AuditTokenSink,
    LimitedSink,
    OutputSink,
    PerformanceSink,
    TokenSink,
    ids_in,
)
from pytest_mlperf.run.worker._sink import GuardedSink
from pytest_mlperf.run.worker.clocks import TOKENS_FILE
from pytest_mlperf.stores.artefacts import ArtefactWriter
from tests.run.engines_that_count import tokens_of
from tests.run.harness import (
    FEWER,
    SYNTHETIC,
    RunningWorker,
    only,
    run_to_end,
    settings,
    spec,
)
from tests.run.test_sink import Received, give_up

COUNTING = "tests.run.engines_that_count:"


def read(worker_spec: WorkerSpec, events: list[Event]) -> Figures:
    return read_figures(only(events, "finished"), worker_spec.settings.scenario, "cpu")[1]


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
    worker_spec = spec(tmp_path, engine=f"{COUNTING}Counts", settings=settings(scenario))
    events, code = run_to_end(worker_spec)
    run = read(worker_spec, events)

    assert code == 0
    lines = (tmp_path / "engine.log").read_text("utf-8").splitlines()
    (counted_line,) = (line.split() for line in lines if line.startswith("counted "))
    samples, tokens = int(counted_line[1]), int(counted_line[2])
    assert run.samples == samples
    assert run.metrics["tokens_per_sample"] == tokens / samples
    samples_per_s = run.metrics.get("throughput", samples / run.duration_s)
    assert run.metrics["tokens_per_second"] == pytest.approx(samples_per_s * tokens / samples)
    counts = token_counts(tmp_path / "performance")
    assert {n for index, each in counts.items() for n in each if n != tokens_of(index)} == set()
    assert sum(map(len, counts.values())) == samples
    logged = parse_detail(tmp_path / "performance" / DETAIL).values
    assert not [key for key in logged if "tokens_per_second" in key]


@pytest.mark.process
def test_an_engine_that_leaves_out_counts_has_no_tokens_and_0_is_an_error(tmp_path: Path) -> None:
    """Those of its first batch."""
    forgets = tmp_path / "forgets"
    forgets.mkdir()
    worker_spec = spec(forgets, engine=f"{COUNTING}Forgets")
    run = read(worker_spec, run_to_end(worker_spec)[0])
    assert run.metrics
    assert not [name for name in run.metrics if "token" in name]

    worker_spec = spec(tmp_path, engine=f"{COUNTING}SaysNothing")
    events, _ = run_to_end(worker_spec)
    with pytest.raises(RunError, match=r"^tokens_per_sample is 0\.0 .* 0 for every sample"):
        read(worker_spec, events)


@FEWER
@given(st.lists(st.lists(st.integers(0, 3000), min_size=1, max_size=4), min_size=1, max_size=8))
def test_every_batch_size_is_counted(batches: list[list[int]]) -> None:
    """Refused samples are not counted, and neither are those withheld from LoadGen."""
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
    """LoadGen's own tokens/s stay; if missing, samples/s times the run's tokens/sample."""
    for metrics, expected in (
        ({"throughput": 10.0, "tokens_per_sample": 64.5}, 645.0),
        ({"latency_p90": 0.5, "tokens_per_sample": 64.5}, 129.0),
        ({"throughput": 10.0, "tokens_per_sample": 64.5, "tokens_per_second": 644.0}, 644.0),
        ({"throughput": 10.0}, None),
        ({"latency_p90": 0.5}, None),
    ):
        metrics_with_rate = with_token_rate(metrics, samples=100, duration_s=50.0)
        assert metrics_with_rate.get("tokens_per_second") == expected
        assert {name: metrics_with_rate[name] for name in metrics} == metrics


def packed(*ids: int, kind: str = "q") -> bytes:
    return struct.pack(f"<{len(ids)}{kind}", *ids)


def output_sink() -> OutputSink:
    return OutputSink(give_up, Received().port, ArtefactWriter(Path("/nowhere/artefacts.zip")))


def audit_sink() -> AuditTokenSink:
    return AuditTokenSink(give_up, Received().port, needs_first=False)


@pytest.mark.parametrize(
    ("output", "length"),
    [
        (packed(7, 8, 2), 3),
        (packed(0, 262_143), 2),
        (packed(7, 8, 2, kind="i"), 3),
        (packed(*range(5, 25)), 20),
        (packed(7), None),
        (b"", None),
        (b"an answer", None),
        ("zwölf Wörter".encode() + b"    ", None),
        (packed(7, -1), None),
        (packed(7, 2**62), None),
        (struct.pack("<4f", 1.0, 0.5, 0.0, 3.0), None),
        (b"\x00" * 3, None),
    ],
)
def test_an_output_of_token_ids_tells_how_many_it_has(output: bytes, length: int | None) -> None:
    """One number may be a class; text, floats and other bytes are not ids."""
    assert ids_in(output) == length


def test_a_count_that_is_not_its_outputs_length_is_an_error() -> None:
    outputs = [packed(7, 8, 2), packed(*range(5, 15))]
    for counts in ([3, 30], [3, 20], [3, 9], [4, 10], [2, 11]):
        sink = output_sink()
        sink.expect([1, 2])
        with pytest.raises(
            RunError, match=r"n_tokens \d+ and an output of (3|10) token ids; count"
        ):
            sink.done([1, 2], outputs, counts)
    with pytest.raises(RunError, match="2 ids but 1 n_tokens"):
        output_sink().done([1, 2], outputs, [3])
    for others in (False, True):
        sink = output_sink()
        sink.outputs_are_tokens = others
        sink.expect([1, 2])
        sink.done([1, 2], outputs if others else [b"some text", packed(7)], [3, 10])
        assert sink.completed == 2


def test_text_that_is_tokenised_again_may_have_another_length() -> None:
    sink = output_sink()
    sink.outputs_are_tokens = False
    sink.expect([1, 2])
    sink.answer_tokens.record_indices([1, 2], [5, 6])
    sink.done([1], [packed(7, 8, 2)], [30])
    sink.done([2], [packed(7, 8, 2)])
    assert sink.answer_tokens.by_index == {5: [30]}, "what the engine counts, or nothing"


@pytest.mark.parametrize(
    "make",
    [
        output_sink,
        audit_sink,
        lambda: PerformanceSink(give_up, Received().port),
        lambda: LimitedSink(give_up, Received().port, limit_s=math.inf),
        lambda: TokenSink(give_up, Received().port, needs_first=False),
    ],
)
def test_every_sink_keeps_the_tokens_of_each_answer_by_sample(
    make: Callable[[], GuardedSink],
) -> None:
    """Whatever asks again or is refused."""
    sink, lengths = make(), {11: 2, 12: 3, 13: 2, 14: 4, 15: 2}
    of = {11: 7, 12: 8, 13: 7, 14: 9, 15: 7}
    sink.expect([*lengths])
    sink.answer_tokens.record_indices([*of], [*of.values()])
    for ids in ([12], [11, 99, 13], [12, 14], [15]):
        counts = [lengths.get(one, 5) for one in ids]
        sink.done(ids, [packed(*range(3, 3 + n)) for n in counts], counts)
    assert sink.answer_tokens.by_index == {7: [2, 2, 2], 8: [3], 9: [4]}
    assert sink.faults.count == 2


def test_an_engine_whose_counts_contradict_its_outputs_is_counted_by_its_outputs() -> None:
    sink = output_sink()
    sink.counts_tokens = True
    sink.expect([1, 2, 3])
    sink.answer_tokens.record_indices([1, 2, 3], [5, 6, 7])
    sink.done([1, 2, 3], [packed(7, 8, 2), packed(4), b"text"])
    assert sink.answer_tokens.by_index == {5: [3]}


def test_counts_that_a_damaged_file_holds_are_an_error(tmp_path: Path) -> None:
    assert token_counts(tmp_path) == {}
    for content in ("", "[1]", '{"0": 3}', '{"a": [3]}', '{"0": [null]}', '{"0": ["x"]}'):
        (tmp_path / TOKENS_FILE).write_text(content, "utf-8")
        with pytest.raises(RunError, match=rf"cannot read .*{TOKENS_FILE}"):
            token_counts(tmp_path)
    (tmp_path / TOKENS_FILE).write_text('{"0": [3, 4], "12": [5]}', "utf-8")
    assert token_counts(tmp_path) == {0: [3, 4], 12: [5]}


@pytest.mark.process
@pytest.mark.parametrize(
    ("engine", "dataset", "problem"),
    [
        ("Spells", SYNTHETIC, "n_tokens 3 and an output of 20 token ids"),
        ("SpellsText", SYNTHETIC, None),
        ("Spells", f"{COUNTING}Clips", None),
    ],
)
def test_outputs_other_than_tokens_have_a_length_of_their_own(
    tmp_path: Path, engine: str, dataset: str, problem: str | None
) -> None:
    """Transcripts of sound, and outputs that an engine calls text; the counts are kept."""
    case = spec(tmp_path, engine=f"{COUNTING}{engine}", dataset=dataset, performance=False)
    with RunningWorker(case) as worker:
        worker.wait_for("ready")
        worker.send(command="accuracy", block=0, indices=[4, 2])
        event = worker.wait_for("error" if problem else "finished")
    if problem:
        assert problem in event["message"]
    else:
        assert token_counts(Path(event["folder"])) == {2: [3], 4: [3]}

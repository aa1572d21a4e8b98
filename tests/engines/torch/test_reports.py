"""Tokens are reported when they are made, in order, and counted right."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_mlperf.core.errors import RunError
from tests.engines.recording import Recorder, ask, unrefused
from tests.engines.torch.models import open_engine

STARTS = [30, 4, 12, 5, 9, 4, 20]
PROMPTS = [[3] * place + [start] for place, start in enumerate(STARTS)]
COUNTS = [start - 2 for start in STARTS]
"""The counting model says so many tokens, its end token included."""


def run(folder: Path, *, one_by_one: bool = False, **options: Any) -> Recorder:
    sink = Recorder(expected=len(PROMPTS))
    with open_engine(folder, PROMPTS, max_new_tokens=40, **options) as engine:
        ask(engine, sink, len(PROMPTS), one_by_one=one_by_one)
    return sink


@pytest.mark.parametrize("batching", ["auto", "static", "dynamic", "continuous"])
def test_each_token_is_reported_once_the_first_of_them_first_and_the_end_last(
    counting: Path, batching: str
) -> None:
    """first, next for each further token, done; nothing after the end token."""
    for one_by_one, batch_size in ((False, 3), (True, 3), (False, 32), (True, 32)):
        sink = run(counting, one_by_one=one_by_one, batching=batching, batch_size=batch_size)
        assert counts(sink) == COUNTS
        for place, tokens in enumerate(COUNTS):
            assert sink.reports(100 + place) == ["first", *["next"] * (tokens - 1), "done"]


def counts(sink: Recorder) -> list[int]:
    return [sink.n_tokens[100 + place] for place in range(len(COUNTS))]


def test_beams_report_first_tokens_before_the_end_and_no_others(counting: Path) -> None:
    for one_by_one in (False, True):
        sink = run(counting, one_by_one=one_by_one, num_beams=2)
        assert counts(sink) == COUNTS
        assert {tuple(sink.reports(100 + n)) for n in range(len(COUNTS))} == {("first", "done")}


def test_a_row_is_done_when_it_ends_not_when_its_batch_does(counting: Path) -> None:
    sink = run(counting, batching="static")
    done = [sample - 100 for kind, sample in sink.events if kind == "done"]

    assert sorted(done) == list(range(len(COUNTS)))
    assert [COUNTS[place] for place in done] == sorted(COUNTS)
    assert sink.events.index(("done", 101)) < sink.events.index(("done", 100)) - 20


def test_tokens_are_reported_only_where_they_are_timed(counting: Path) -> None:
    for batching, num_beams in (("static", 1), ("continuous", 1), ("dynamic", 2)):
        for wants_output in (False, True):
            sink = Recorder(expected=len(PROMPTS), times_tokens=False, wants_output=wants_output)
            with open_engine(counting, PROMPTS, batching=batching, num_beams=num_beams) as engine:
                ask(engine, sink, len(PROMPTS))

            assert {kind for kind, _ in sink.events} == {"done"}
            assert counts(sink) == COUNTS


def test_samples_are_completed_inline_or_by_one_thread_that_lives_on(counting: Path) -> None:
    for batching, num_beams, samples, inline in (
        ("static", 1, 1, True),
        ("static", 1, 2, True),
        ("static", 2, 1, True),
        ("dynamic", 1, 1, False),
        ("dynamic", 1, 2, False),
        ("continuous", 1, 1, False),
        ("continuous", 1, 2, False),
        ("auto", 1, 1, False),
        ("auto", 1, 2, True),
        ("auto", 2, 1, False),
        ("auto", 2, 2, True),
    ):
        before = set(threading.enumerate())
        with open_engine(counting, PROMPTS[1:3], batching=batching, num_beams=num_beams) as engine:
            sinks = [Recorder(expected=samples) for _ in range(2)]
            for sink in sinks:
                ask(engine, sink, samples)
            (completing,) = {*sinks[0].threads, *sinks[1].threads}
            assert (completing == threading.get_ident()) is inline, (batching, num_beams, samples)
            assert completing in {thread.ident for thread in threading.enumerate()}
        assert set(threading.enumerate()) <= before


def test_a_single_sample_returns_at_once_from_submit_where_threads_work(counting: Path) -> None:
    """The sample cannot be done before the test lets its report go."""

    class Held(Recorder):
        gate = threading.Event()

        def first_tokens(self, ids: Sequence[int], tokens: Sequence[bytes] | None = None) -> None:
            assert self.gate.wait(60)
            super().first_tokens(ids, tokens)

    for batching in ("dynamic", "continuous"):
        sink = Held(expected=1)
        sink.gate.clear()
        with open_engine(counting, PROMPTS, batching=batching) as engine:
            engine.load_samples([0])
            engine.submit([1], [0], sink)
            assert sink.events == []
            sink.gate.set()
            sink.wait()


@pytest.mark.parametrize("batching", ["static", "dynamic", "continuous"])
@pytest.mark.parametrize("report", ["first_tokens", "next_tokens", "done"])
def test_what_a_sink_raises_ends_the_run_and_not_the_thread(
    counting: Path, batching: str, report: str
) -> None:
    """The error reaches the caller or the sink, and the next sample is answered."""

    def fail(*_: Any) -> None:
        raise RuntimeError("example")

    with open_engine(counting, PROMPTS, batching=batching) as engine:
        engine.load_samples([0, 1])
        broken = Recorder(expected=1)
        setattr(broken, report, fail)
        if report == "first_tokens":  # the sample may go on before the run is over
            setattr(broken, "next_tokens", lambda *_: None)  # noqa: B010
        with pytest.raises(RuntimeError, match="example"):
            ask(engine, broken, 1)
        sink = Recorder(expected=1)
        engine.submit([5], [1], sink)
        sink.wait()

    assert sink.n_tokens == {5: COUNTS[1]}


def test_a_cache_too_small_for_all_makes_no_token_come_twice(counting: Path) -> None:
    """transformers then starts samples anew, with what they have said as part of the prompt."""
    starts = [60, 58, 56, 54, 52]
    prompts = [[3] * 235 + [start] for start in starts]
    options: dict[str, Any] = {"kv_blocks": 3, "batch_size": 5, "min_new_tokens": 40}
    sink = Recorder(expected=len(starts))
    with open_engine(counting, prompts, batching="continuous", **options) as engine:
        ask(engine, sink, len(starts))

    for place, start in enumerate(starts):
        assert sink.answers[100 + place] == list(range(start - 1, 1, -1))
        assert sink.reports(100 + place) == ["first", *["next"] * (start - 3), "done"]


def test_a_failure_inside_transformers_ends_the_run(counting: Path) -> None:
    """transformers itself only logs it; later samples are refused."""
    with open_engine(counting, PROMPTS, batching="continuous") as engine:
        engine.load_samples([0, 1, 2])
        model = engine._continuous._text.model  # type: ignore[union-attr]
        model.lm_head = None
        with pytest.raises(RunError, match=r"continuous batching failed: .*NoneType"):
            ask(engine, Recorder(expected=1), 1)
        with pytest.raises(RunError, match="continuous batching failed: it has stopped"):
            ask(engine, Recorder(expected=1), 1)


def test_an_option_that_is_too_low_or_too_high_is_named(counting: Path) -> None:
    class Full(Recorder):
        def first_tokens(self, ids: Sequence[int], tokens: Sequence[bytes] | None = None) -> None:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    def run_sink(sink_type: type[Recorder], max_new_tokens: int) -> None:
        with open_engine(
            counting, PROMPTS, batching="static", max_new_tokens=max_new_tokens
        ) as engine:
            ask(engine, sink_type(expected=1), 1)

    rows = [
        (Full, 40, "with batch_size = 32; lower batch_size "),
        (Full, 40, "2.00 GiB"),
        (Recorder, 1, "max_new_tokens is 1; set it to at least 2"),
    ]
    assert unrefused(run_sink, RunError, rows) == []


@pytest.mark.parametrize("batching", ["static", "continuous"])
def test_an_answer_too_short_to_be_timed_names_its_sample(mute: Path, batching: str) -> None:
    """LoadGen divides by the tokens after the first one."""
    options: dict[str, Any] = {"batching": batching, "min_new_tokens": 0}
    expected = r"sample 0 of the data set has 1 output token, .* set min_new_tokens to at least 1"

    with open_engine(mute, [[5]], **options) as engine:
        with pytest.raises(RunError, match=expected):
            ask(engine, Recorder(expected=1), 1)
        accuracy = Recorder(expected=1, times_tokens=False)
        ask(engine, accuracy, 1)
    assert accuracy.answers == {100: [2]}


@pytest.mark.parametrize("batching", ["static", "continuous"])
@pytest.mark.parametrize("samples", [3, 40])
def test_a_model_that_never_ends_is_an_error_after_the_first_samples(
    endless: Path, batching: str, samples: int
) -> None:
    """It is seen after 32 samples, or after all that are loaded."""
    first = min(32, samples)
    expected = (
        f"none of the first {first} samples ended within max_new_tokens = 5; set max_new_tokens "
        r"higher, check eos_token_id \(2\) of the model, or set ignore_eos = true"
    )
    with open_engine(
        endless, [[9]] * samples, batching=batching, max_new_tokens=5, batch_size=4
    ) as engine:
        sink = Recorder(expected=samples)
        sink.wants_output = False
        with pytest.raises(RunError, match=expected):
            ask(engine, sink, samples)

    assert len(sink.n_tokens) < first


@pytest.mark.parametrize("batching", ["static", "continuous"])
def test_one_sample_that_ends_shows_that_the_model_can(counting: Path, batching: str) -> None:
    prompts = [[4], *[[60]] * 40]
    options: dict[str, Any] = {"batching": batching, "max_new_tokens": 4, "batch_size": 4}
    with open_engine(counting, prompts, **options) as engine:
        engine.load_samples(range(41))
        first, others = Recorder(expected=1), Recorder(expected=40)
        first.wants_output = others.wants_output = False
        engine.submit([1], [0], first)
        first.wait()
        engine.submit(range(40), range(1, 41), others)
        others.wait()

    assert set(others.n_tokens.values()) == {4}


def test_accuracy_runs_fixed_lengths_and_random_weights_need_no_end(endless: Path) -> None:
    rows: list[tuple[dict[str, Any], bool]] = [
        ({}, False), ({"ignore_eos": True}, True), ({"weights": "dummy"}, True),
    ]  # fmt: skip
    for options, times_tokens in rows:
        sink = Recorder(expected=40, times_tokens=times_tokens, wants_output=not times_tokens)
        with open_engine(endless, [[9]] * 40, max_new_tokens=5, batch_size=4, **options) as engine:
            ask(engine, sink, 40)
        assert set(sink.n_tokens.values()) == {5}
        assert times_tokens or set(map(len, sink.answers.values())) == {5}


def test_nothing_is_printed_or_warned_about_while_samples_are_generated(
    counting: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The model's folder asks for sampling, which transformers would complain about."""
    for batching in ("static", "continuous"):
        with open_engine(counting, PROMPTS, batching=batching) as engine:
            engine.load_samples(range(len(PROMPTS)))
            sys.stderr.flush()
            capfd.readouterr()
            ask(engine, Recorder(expected=len(PROMPTS)), len(PROMPTS))
            said = capfd.readouterr()

        assert said.out + said.err == ""

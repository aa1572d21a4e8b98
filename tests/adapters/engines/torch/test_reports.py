"""Tokens are reported when they are made, in order, and counted right."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
import torch

from pytest_mlperf.adapters.engines.torch import _stages
from pytest_mlperf.core.errors import RunError
from tests.adapters.engines.recording import Recorder, ask
from tests.adapters.engines.torch.models import open_engine
from tests.refusals import unrefused

STARTS = [14, 4, 9, 5, 7, 4, 11]
PROMPTS = [[3] * place + [start] for place, start in enumerate(STARTS)]
COUNTS = [start - 2 for start in STARTS]
"""The counting model says so many tokens, its end token included."""

both_ways = pytest.mark.parametrize("batching", ["static", "continuous"])


def counts(sink: Recorder) -> list[int]:
    return [sink.n_tokens[100 + place] for place in range(len(COUNTS))]


@pytest.mark.parametrize(
    ("batching", "num_beams"),
    [("auto", 1), ("static", 1), ("dynamic", 1), ("continuous", 1), ("auto", 2)],
)
def test_each_timed_token_is_reported_once(counting: Path, batching: str, num_beams: int) -> None:
    """first, next for each further token, done; with beams nothing between first and done."""
    options: dict[str, Any] = {"batching": batching, "num_beams": num_beams, "max_new_tokens": 14}
    timed = [
        ["first", *["next"] * (tokens - 1 if num_beams == 1 else 0), "done"] for tokens in COUNTS
    ]
    for one_by_one, batch_size in ((False, 3), (True, 32)):
        with open_engine(counting, PROMPTS, batch_size=batch_size, **options) as engine:
            for wants_output, times_tokens in ((True, True), (True, False), (False, False)):
                sink = Recorder(len(PROMPTS), wants_output=wants_output, times_tokens=times_tokens)
                ask(engine, sink, len(PROMPTS), one_by_one=one_by_one)
                assert counts(sink) == COUNTS
                reports = [sink.reports(100 + place) for place in range(len(COUNTS))]
                assert reports == (timed if times_tokens else [["done"]] * len(COUNTS))


@pytest.mark.parametrize(
    ("batching", "num_beams", "stages"),
    [
        ("static", 1, {"prefill", "decode"}),
        ("dynamic", 1, {"prefill", "decode"}),
        ("auto", 2, {"prefill", "decode"}),
        ("continuous", 1, set()),
    ],
)
def test_the_stages_are_the_first_step_and_all_others(
    counting: Path, batching: str, num_beams: int, stages: set[str]
) -> None:
    """They fill the time of the work, are taken once, and continuous batching mixes them."""
    options: dict[str, Any] = {"batching": batching, "num_beams": num_beams}
    with open_engine(counting, PROMPTS, max_new_tokens=14, **options) as engine:
        begun_s = perf_counter()
        ask(engine, Recorder(expected=len(PROMPTS)), len(PROMPTS))
        took_s = perf_counter() - begun_s
        seconds = engine.stage_seconds()
        again = engine.stage_seconds()

    assert set(seconds) == stages
    assert again == {}
    assert all(each > 0 for each in seconds.values())
    assert sum(seconds.values()) <= took_s


@pytest.mark.parametrize(
    ("num_beams", "expected"),
    [(1, {"prefill": 2.0, "decode": 8.0 + 11.0}), (2, {"prefill": 2.0, "decode": 2 * 13.0})],
)
def test_each_step_counts_once_in_its_stage(
    counting: Path, monkeypatch: pytest.MonkeyPatch, num_beams: int, expected: dict[str, float]
) -> None:
    """Seven prompts in two batches, whose longest answers have 9 and 12 tokens: a step is 1 s."""
    clock = [0.0]
    monkeypatch.setattr(_stages, "perf_counter", lambda: clock[0])
    options: dict[str, Any] = {"batching": "static", "batch_size": 4, "num_beams": num_beams}
    with open_engine(counting, PROMPTS, max_new_tokens=14, **options) as engine:
        work: Any = engine._work
        model = work.__self__._text.model
        forward = model.forward

        def step(*args: Any, **keywords: Any) -> Any:
            clock[0] += 1.0
            return forward(*args, **keywords)

        monkeypatch.setattr(model, "forward", step)
        ask(engine, Recorder(expected=len(PROMPTS)), len(PROMPTS))
        assert engine.stage_seconds() == expected


def test_a_row_is_done_when_it_ends_not_when_its_batch_does(counting: Path) -> None:
    sink = Recorder(expected=len(PROMPTS))
    with open_engine(counting, PROMPTS, max_new_tokens=40, batching="static") as engine:
        ask(engine, sink, len(PROMPTS))
    done = [sample - 100 for kind, sample in sink.events if kind == "done"]

    assert sorted(done) == list(range(len(COUNTS)))
    assert [COUNTS[place] for place in done] == sorted(COUNTS)
    assert sink.events.index(("done", 101)) < sink.events.index(("done", 100)) - 20


def test_samples_are_completed_inline_or_by_one_thread_that_lives_on(counting: Path) -> None:
    for batching, num_beams, inline in (
        ("static", 1, {1: True, 2: True}),
        ("static", 2, {1: True}),
        ("dynamic", 1, {1: False, 2: False}),
        ("continuous", 1, {1: False, 2: False}),
        ("auto", 1, {1: False, 2: True}),
        ("auto", 2, {1: False, 2: True}),
    ):
        threads_at_start = set(threading.enumerate())
        options: dict[str, Any] = {"batching": batching, "num_beams": num_beams}
        with open_engine(counting, PROMPTS[1:3], max_new_tokens=9, **options) as engine:
            others = set()
            for samples in (*inline, *inline):
                ask(engine, sink := Recorder(expected=samples), samples)
                (completing,) = set(sink.threads)
                here = completing == threading.get_ident()
                assert here is inline[samples], (batching, num_beams, samples)
                others |= set() if here else {completing}
            assert len(others) == (False in inline.values())
            assert others <= {thread.ident for thread in threading.enumerate()}
        assert set(threading.enumerate()) <= threads_at_start


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
def test_an_exception_of_a_sink_ends_the_run_and_not_the_thread(
    counting: Path, batching: str
) -> None:
    """The error reaches the caller or the sink, and the next sample is answered."""

    def fail(*_: Any) -> None:
        raise RuntimeError("example")

    with open_engine(counting, PROMPTS, batching=batching) as engine:
        engine.load_samples([0, 1])
        for report in ("first_tokens", "next_tokens", "done"):
            broken, sink = Recorder(expected=1), Recorder(expected=1)
            setattr(broken, report, fail)
            if report == "first_tokens":  # the sample may go on before the run is over
                setattr(broken, "next_tokens", lambda *_: None)  # noqa: B010
            with pytest.raises(RuntimeError, match="example"):
                ask(engine, broken, 1)
            engine.submit([5], [1], sink)
            sink.wait()
            assert sink.n_tokens == {5: COUNTS[1]}, report


def test_a_cache_too_small_for_all_makes_no_token_come_twice(counting: Path) -> None:
    """transformers restarts samples, with the tokens generated so far as part of the prompt."""
    starts = [60, 58, 56, 54, 52]
    prompts = [[3] * 235 + [start] for start in starts]
    options: dict[str, Any] = {"kv_blocks": 3, "batch_size": 5, "min_new_tokens": 40}
    sink = Recorder(expected=len(starts))
    with open_engine(counting, prompts, batching="continuous", **options) as engine:
        ask(engine, sink, len(starts))

    for index, start in enumerate(starts):
        assert sink.answers[100 + index] == list(range(start - 1, 1, -1))
        assert sink.reports(100 + index) == ["first", *["next"] * (start - 3), "done"]


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


@both_ways
def test_an_answer_too_short_to_be_timed_names_its_sample(mute: Path, batching: str) -> None:
    """LoadGen divides by the tokens after the first one."""
    expected = r"sample 0 of the data set got an answer of 1 token, .* set min_new_tokens to at"
    accuracy = Recorder(expected=1, times_tokens=False)
    with open_engine(mute, [[5]], batching=batching, min_new_tokens=0) as engine:
        with pytest.raises(RunError, match=expected):
            ask(engine, Recorder(expected=1), 1)
        ask(engine, accuracy, 1)
    assert accuracy.answers == {100: [2]}


@both_ways
def test_a_model_that_never_ends_is_found_early(endless: Path, batching: str) -> None:
    """It is seen after 32 samples, or after all that are loaded."""
    options: dict[str, Any] = {"batching": batching, "max_new_tokens": 5, "batch_size": 4}
    with open_engine(endless, [[9]] * 40, **options) as engine:
        for samples, first in ((3, 3), (40, 32)):
            sink = Recorder(expected=samples, wants_output=False)
            expected = (
                f"none of the first {first} samples ended within max_new_tokens = 5; set "
                r"max_new_tokens higher, check eos_token_id \(2\) of the model, or set ignore_eos"
            )
            engine.unload_samples(range(40))
            with pytest.raises(RunError, match=expected):
                ask(engine, sink, samples)
            assert len(sink.n_tokens) < first


@both_ways
def test_a_sample_that_ends_shows_that_the_model_can(counting: Path, batching: str) -> None:
    prompts = [[4], *[[60]] * 40]
    options: dict[str, Any] = {"batching": batching, "max_new_tokens": 4, "batch_size": 4}
    with open_engine(counting, prompts, **options) as engine:
        engine.load_samples(range(41))
        for indices in (range(1), range(1, 41)):
            sink = Recorder(expected=len(indices), wants_output=False)
            engine.submit(range(len(indices)), indices, sink)
            sink.wait()

    assert set(sink.n_tokens.values()) == {4}


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


def test_generation_prints_nothing(counting: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The model's folder asks for sampling, which transformers would complain about."""
    for batching in ("static", "continuous"):
        with open_engine(counting, PROMPTS, batching=batching) as engine:
            engine.load_samples(range(len(PROMPTS)))
            sys.stderr.flush()
            capfd.readouterr()
            ask(engine, Recorder(expected=len(PROMPTS)), len(PROMPTS))
            captured = capfd.readouterr()

        assert captured.out + captured.err == ""

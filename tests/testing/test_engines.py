"""Test that `check_engine` passes a correct engine, and detects each defect."""

from __future__ import annotations

import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import pytest

from pytest_mlperf import Engine, Sink, SuiteError, WorkQueue
from pytest_mlperf.testing import check_engine

SAMPLES = list(range(30))


def answer(index: int) -> bytes:
    return index.to_bytes(8, "little")


class Right(Engine):
    """Answers each sample with its index, from a thread."""

    def __init__(self, *, dataset: Any, model: Any, precision: str, max_batch: int = 4) -> None:
        self.dataset = dataset
        self.max_batch = max_batch

    def __enter__(self) -> Self:
        self.queue = WorkQueue(self.work, max_batch=self.max_batch)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.queue.close()

    def submit(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        self.queue.put(ids, indices, sink)

    def work(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        outputs = [answer(self.dataset.input(index)) for index in indices]
        sink.done(ids, outputs if sink.wants_output else None)


def check(engine: type[Engine], **changes: Any) -> dict[int, bytes]:
    return check_engine(engine, SAMPLES, **{"limit_s": 0.3, **changes})


class Attaches(Right):
    """Gives more than a log has."""

    def work(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        if sink.wants_output:
            sink.attach(ids, self.artefacts(indices))
        super().work(ids, indices, sink)

    def artefacts(self, indices: Sequence[int]) -> list[dict[str, bytes]]:
        return [{"index": answer(index)} for index in indices]


def test_a_right_engine_passes_and_its_answers_come_back() -> None:
    """Also one that attaches an artefact for a scorer."""
    answers = {index: answer(index) for index in range(24)}

    assert check(Right, limit_s=30.0) == answers
    assert check(Attaches, limit_s=30.0, artefacts=["index"]) == answers


class AttachesOthers(Attaches):
    def artefacts(self, indices: Sequence[int]) -> list[dict[str, bytes]]:
        return [{"index": b"%d" % len(indices)} for _ in indices]


class AttachesTooFew(Attaches):
    def artefacts(self, indices: Sequence[int]) -> list[dict[str, bytes]]:
        return super().artefacts(indices)[1:]


class AttachesText(Attaches):
    def artefacts(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        return [{"index": str(index)} for index in indices]


class AttachesLate(Attaches):
    def work(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        Right.work(self, ids, indices, sink)
        if sink.wants_output:
            sink.attach(ids, self.artefacts(indices))


WRONG_ARTEFACTS: list[tuple[type[Engine], str]] = [
    (Right, r"sample 0 has no artefact index: give it to sink.attach\(\)"),
    (AttachesOthers, "the artefacts of sample . differ from those of an earlier"),
    (AttachesTooFew, r"attach\(\) was given \d ids but \d tables of artefacts"),
    (AttachesText, "'index' with a 'str' as content; it must be bytes"),
    (AttachesLate, r"(after done\(\), or twice|sample . has no artefact)"),
]


def test_artefacts_that_a_run_refuses_are_found() -> None:
    for engine, problem in WRONG_ARTEFACTS:
        with pytest.raises(AssertionError, match=problem):
            check(engine, limit_s=30.0, artefacts=["index"])


def returning(method: str, value: object) -> type[Engine]:
    """Return an engine of which a method returns something else."""
    return type("Returning", (Right,), {method: lambda _: value})


Work = Callable[[Right, Sequence[int], Sequence[int], Sink], object]


def working(work: Work) -> type[Engine]:
    """Return an engine that answers a batch in another way."""
    return type("Working", (Right,), {"work": work})


def answering(outputs: Callable[[Sequence[int]], Any]) -> type[Engine]:
    """Return an engine that gives other outputs for the samples it is asked for."""
    return working(
        lambda _, ids, indices, sink: sink.done(
            ids, outputs(indices) if sink.wants_output else None
        )
    )


TEXT = answering(lambda indices: [str(index) for index in indices])
BY_BATCH = answering(lambda indices: [answer(index + len(indices)) for index in indices])


def answer_twice(engine: Right, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
    Right.work(engine, ids, indices, sink)
    Right.work(engine, ids[:1], indices[:1], sink)


def forget_one(engine: Right, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
    kept = [n for n, index in enumerate(indices) if index != 3]
    Right.work(engine, [ids[n] for n in kept], [indices[n] for n in kept], sink)


def time_tokens(engine: Right, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
    sink.first_tokens(ids)
    Right.work(engine, ids, indices, sink)


class AnswersAfterExit(Right):
    """Does each list again when it is left."""

    def __enter__(self) -> Self:
        self.again: list[tuple[Sequence[int], Sequence[int], Sink]] = []
        return super().__enter__()

    def work(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        super().work(ids, indices, sink)
        self.again.append((ids, indices, sink))

    def __exit__(self, *error: object) -> None:
        super().__exit__(None, None, None)
        threading.Timer(0.02, super().work, self.again[-1]).start()


class LeaksAThread(Right):
    def __enter__(self) -> Self:
        self.never = threading.Event()
        threading.Thread(target=self.never.wait, name="leaked", daemon=True).start()
        return super().__enter__()


class ThreadsThatEnd(Right):
    """A thread for each list."""

    def submit(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        thread = threading.Thread(target=self.work, args=(ids, indices, sink), name="short")
        thread.start()
        thread.join()


class DescribesChance(Right):
    def describe(self) -> Mapping[str, str]:
        self.count = getattr(self, "count", 0) + 1
        return {"calls": str(self.count)}


class ForgetsItself(Right):
    def __enter__(self) -> Any:
        super().__enter__()


class HidesErrors(Right):
    def __exit__(self, *error: object) -> Any:
        super().__exit__(None, None, None)
        return True


class TakesAnything(Right):
    def __init__(self, *, dataset: Any, model: Any, precision: str, **options: Any) -> None:
        super().__init__(dataset=dataset, model=model, precision=precision)


ALWAYS = working(lambda _, ids, indices, sink: sink.done(ids, [answer(i) for i in indices]))
FAILS: Any = working(lambda _, ids, indices, sink: sink.failed("out of memory"))  # type: ignore[arg-type]
WRONG: list[tuple[type[Engine], str]] = [
    (working(answer_twice), r"done\(\) was given id \d+, which was completed before"),
    (working(forget_one), r"1 of 12 samples are not completed after 0\.3 s, first: ids \d+: give"),
    (AnswersAfterExit, r"done\(\) was called after __exit__"),
    (TEXT, r"the output of id \d+ is a str; bytes are needed"),
    (LeaksAThread, "thread leaked still run after __exit__: end and join in __exit__"),
    (ThreadsThatEnd, "short completed samples and ended: LoadGen can crash"),
    (
        working(lambda engine, _, indices, sink: Right.work(engine, indices, indices, sink)),
        "id 0, which was never submitted|samples are not completed",
    ),
    (answering(lambda _: [b"same"]), r"done\(\) was given 1 outputs for \d ids"),
    (ALWAYS, r"done\(\) takes no outputs if wants_output is False"),
    (
        working(lambda _, ids, indices, sink: sink.done(ids)),
        r"done\(\) needs outputs if wants_output is True",
    ),
    (BY_BATCH, r"the answer to sample \d+ is .+ before: answers must not depend"),
    (FAILS, "failed\\(\\) was given 'out of memory'; it takes an exception object"),
    (returning("metrics_pages", "http://a"), r"metrics_pages\(\) returned 'http://a': return addr"),
    (returning("accepted_drafts", 2.5), r"\(\) returned 2\.5: return a number of tokens, or None"),
    (returning("stage_seconds", {"unet": 1e6}), r"returns 1e\+06 s in all, of a run of .+ s"),
    (working(time_tokens), r"first_tokens\(\) was called although times_tokens is"),
    (returning("describe", {"version": 3}), r"returned \{'version': 3\}: return a dict of strings"),
    (DescribesChance, r"describe\(\) returned .+, then .+: return what stays the same"),
    (ForgetsItself, "__enter__ returned None: let it return self"),
    (HidesErrors, "__exit__ returned True, which hides errors"),
    (TakesAnything, "it takes any keyword, so a misspelt option"),
]


def test_a_wrong_engine_is_found() -> None:
    """By its own fault, and the message names the engine and what to do."""
    for engine, problem in WRONG:
        with pytest.raises(AssertionError, match=problem) as caught:
            check(engine)
        assert str(caught.value).startswith(f"engine {engine.__qualname__}")
    assert [t.name for t in threading.enumerate() if t.name.startswith("work-queue")] == []


@pytest.mark.process
def test_a_process_that_is_left_is_found() -> None:
    started: list[subprocess.Popen[bytes]] = []

    class LeaksAProcess(Right):
        def __enter__(self) -> Self:
            command = [sys.executable, "-c", "input()"]
            started.append(subprocess.Popen(command, stdin=subprocess.PIPE))
            return super().__enter__()

    with pytest.raises(AssertionError, match=r"process \d+ still run after __exit__: end and join"):
        check(LeaksAProcess)

    started[0].communicate(b"\n")


def breaks(engine: Right, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
    raise RuntimeError("out of memory")


def test_an_exception_of_an_engine_is_raised() -> None:
    """An option that is none is refused."""
    with pytest.raises(RuntimeError, match="out of memory"):
        check(working(breaks))
    with pytest.raises(SuiteError, match="Right has no option 'max_bach'; did you mean 'max_batch"):
        check(Right, options={"max_bach": 3})


class Speaks(Right):
    """A language model: it says each sample in 3 tokens."""

    tokens = (7, 8, 2)

    def work(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        for sample_id in ids:
            self.say(sample_id, sink)

    def say(self, sample_id: int, sink: Sink) -> None:
        if sink.times_tokens:
            sink.first_tokens([sample_id])
            for _ in self.tokens[1:]:
                sink.next_tokens([sample_id])
        self.end(sample_id, sink)

    def end(self, sample_id: int, sink: Sink) -> None:
        output = struct.pack(f"<{len(self.tokens)}q", *self.tokens)
        sink.done([sample_id], [output] if sink.wants_output else None, [len(self.tokens)])


class NoFirst(Speaks):
    def say(self, sample_id: int, sink: Sink) -> None:
        self.end(sample_id, sink)


class TooManyTokens(Speaks):
    def end(self, sample_id: int, sink: Sink) -> None:
        if sink.times_tokens:
            sink.next_tokens([sample_id])
        super().end(sample_id, sink)


class FirstAtLast(Speaks):
    def say(self, sample_id: int, sink: Sink) -> None:
        self.end(sample_id, sink)
        if sink.times_tokens:
            sink.first_tokens([sample_id])


class OneToken(Speaks):
    tokens = (2,)  # type: ignore[assignment]


class NarrowTokens(Speaks):
    def end(self, sample_id: int, sink: Sink) -> None:
        sink.done([sample_id], [struct.pack("<3i", 7, 8, 2)] if sink.wants_output else None, [3])


class CountsMoreWhenTimed(Speaks):
    """Count three tokens for each answered one if outputs are not wanted."""

    def end(self, sample_id: int, sink: Sink) -> None:
        output = [struct.pack("<3q", 7, 8, 2)] if sink.wants_output else None
        sink.done([sample_id], output, [3 if sink.wants_output else 9])


class CountsNothing(Speaks):
    def end(self, sample_id: int, sink: Sink) -> None:
        sink.done([sample_id], [struct.pack("<3q", 7, 8, 2)] if sink.wants_output else None)


def test_a_wrong_language_model_is_found() -> None:
    assert check(Speaks, tokens=True, limit_s=30.0)[0] == struct.pack("<3q", 7, 8, 2)
    wrong: list[tuple[type[Engine], str]] = [
        (NoFirst, r"3 tokens was reported as done: where times_tokens is true"),
        (TooManyTokens, "an answer of 3 tokens has 3 tokens after its first: call next_tokens"),
        (FirstAtLast, "which was completed before|was reported as"),
        (OneToken, "an answer has 2 tokens at least"),
        (NarrowTokens, "has 12 bytes and 3 tokens: return the generated token ids as little-"),
        (
            CountsMoreWhenTimed,
            r"n_tokens is not the length of the answers: 9 at sample 0, whose answer has 3",
        ),
        (CountsNothing, r"done\(\) needs n_tokens in this run, but was given None"),
    ]
    for engine, problem in wrong:
        with pytest.raises(AssertionError, match=problem):
            check(engine, tokens=True)
    with pytest.raises(
        AssertionError, match="have 9 tokens per sample, but answers of the accuracy pass have 3"
    ):
        check(CountsMoreWhenTimed, tokens=True, same_answers=False)

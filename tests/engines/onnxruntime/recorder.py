"""A sink that keeps what an engine reports, and a short way to run samples through an engine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from pytest_mlperf.engines.onnxruntime import OnnxRuntimeEngine


class Recorder:
    """Keeps what an engine reports."""

    def __init__(self, *, wants_output: bool = True, expected: int = 0) -> None:
        self.wants_output = wants_output
        self.times_tokens = False
        self.batches: list[list[int]] = []
        self.outputs: dict[int, bytes] = {}
        self.threads: set[int] = set()
        self.error: BaseException | None = None
        self.finished = threading.Event()
        self._expected = expected
        self._lock = threading.Lock()

    def first_tokens(self, ids: Sequence[int], tokens: Sequence[bytes] | None = None) -> None:
        raise AssertionError("these models give no tokens")

    def next_tokens(self, ids: Sequence[int]) -> None:
        raise AssertionError("no tokens are timed here")

    def done(
        self,
        ids: Sequence[int],
        outputs: Sequence[bytes] | None = None,
        n_tokens: Sequence[int] | None = None,
    ) -> None:
        assert (outputs is not None) is self.wants_output
        with self._lock:
            self.batches.append(list(ids))
            self.threads.add(threading.get_ident())
            self.outputs.update(zip(ids, outputs or [b""] * len(ids), strict=True))
            if len(self.outputs) == self._expected:
                self.finished.set()

    def failed(self, error: BaseException) -> None:
        self.error = error
        self.finished.set()


class Listed:
    """A data set of given inputs; a function is called with the index each time."""

    digest = "0" * 64

    def __init__(self, inputs: Sequence[Any] | Callable[[int], Any]) -> None:
        self._inputs = inputs

    def __len__(self) -> int:
        return 1000 if callable(self._inputs) else len(self._inputs)

    def input(self, index: int) -> Any:
        return self._inputs(index) if callable(self._inputs) else self._inputs[index]

    def reference(self, index: int) -> int:
        return index


def engine(model: str, inputs: Any, **options: Any) -> OnnxRuntimeEngine:
    """Return an engine for a list of inputs, not entered."""
    given = {"dataset": Listed(inputs), "model": model, "precision": "fp32", **options}
    return OnnxRuntimeEngine(**given)


def answers(model: str, inputs: Sequence[Any], **options: Any) -> list[bytes]:
    """Return the answers to all inputs, submitted as one list, in the order of the inputs."""
    sink = run(model, inputs, **options)
    return [sink.outputs[1000 + index] for index in range(len(inputs))]


def run(model: str, inputs: Sequence[Any], **options: Any) -> Recorder:
    """Submit all inputs as one list, sample i by the id 1000 + i, and wait for their answers."""
    sink, everything = Recorder(expected=len(inputs)), range(len(inputs))
    with engine(model, inputs, **options) as opened:
        opened.load_samples(everything)
        opened.submit([1000 + index for index in everything], everything, sink)
        assert sink.finished.wait(60)
    if sink.error is not None:
        raise sink.error
    assert sorted(number for batch in sink.batches for number in batch) == [
        1000 + index for index in everything
    ]
    return sink

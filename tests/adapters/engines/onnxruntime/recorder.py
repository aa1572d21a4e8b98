"""A short way to run samples through an engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pytest_mlperf.adapters.engines.onnxruntime import OnnxRuntimeEngine
from tests.adapters.engines.recording import Tokenless


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
    arguments = {"dataset": Listed(inputs), "model": model, "precision": "fp32", **options}
    return OnnxRuntimeEngine(**arguments)


def answers(model: str, inputs: Sequence[Any], **options: Any) -> list[bytes]:
    """Return the answers to all inputs, submitted as one list, in the order of the inputs."""
    sink = run(model, inputs, **options)
    return [sink.outputs[1000 + index] for index in range(len(inputs))]


def run(model: str, inputs: Sequence[Any], **options: Any) -> Tokenless:
    """Submit all inputs as one list, sample i by the id 1000 + i, and wait for their answers."""
    sink, everything = Tokenless(len(inputs)), range(len(inputs))
    with engine(model, inputs, **options) as opened:
        opened.load_samples(everything)
        opened.submit([1000 + index for index in everything], everything, sink)
        sink.wait()
    assert sorted(sink.ids) == [1000 + index for index in everything]
    return sink

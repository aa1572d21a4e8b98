"""Tasks of engines that run a graph of tensors: what suites call them, what each can do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Protocol

from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.engines.tasks.answer import Answer
from pytest_mlperf.engines.tasks.classify import Classify
from pytest_mlperf.engines.tasks.detect import Detect
from pytest_mlperf.engines.tasks.graph import Graph
from pytest_mlperf.engines.tasks.inputs import Sample
from pytest_mlperf.engines.tasks.segment import Segment
from pytest_mlperf.engines.tasks.tensor import RawTensor

PRECISIONS = ("fp64", "fp32", "bf16", "fp16", "fp8", "int8", "int4")
"""Words for what a graph computes in."""


class Runner(Protocol):
    """A task with its model."""

    @property
    def at_once(self) -> int:
        """Samples that are run together at most."""
        ...

    @property
    def sorts(self) -> bool:
        """Whether a list of samples is better put in the order of `key` first."""
        ...

    def prepare(self, given: Any, index: int) -> Sample:
        """Return what is kept of a data set's input, if the model takes it.

        Raises:
            RunError: The model does not.
        """
        ...

    def key(self, sample: Sample) -> Any:
        """Return what like samples have in common; the larger ones compare as greater."""
        ...

    def run(self, indices: Sequence[int], samples: Sequence[Sample]) -> list[bytes]:
        """Return the answer to each sample; callable from several threads.

        Raises:
            RunError: The model gave up, or gave something else than the task needs.
        """
        ...


class Task(Protocol):
    """The options of a task."""

    def bind(self, graph: Graph, batch_size: int) -> Runner:
        """Return the task with its model.

        Raises:
            RunError: The model is none for this task.
        """
        ...

    def describe(self) -> Mapping[str, str]:
        """Return what decides the answers, by the keys of `Engine.describe`."""
        ...


TASKS: Mapping[str, Any] = {
    "classify": Classify,
    "answer": Answer,
    "detect": Detect,
    "segment": Segment,
    "tensor": RawTensor,
}
"""Their fields are the options that only they have."""


def make_task(name: str, options: Mapping[str, Any]) -> Task:
    """Return a task with its options; those that are None are left to the task.

    Raises:
        SuiteError: There is no such task, it has no such option, or one is out of range. Which
            engine was asked for it is the caller's to add.
    """
    if name not in TASKS:
        raise SuiteError(f"task = {name!r} is not one of {', '.join(TASKS)}")
    given = {option: value for option, value in options.items() if value is not None}
    for option in given:
        owners = [task for task, kind in TASKS.items() if option in _options(kind)]
        if name not in owners:
            raise SuiteError(
                f"{option} is an option of task = {' or '.join(map(repr, owners))}, but task = "
                f"{name!r}; leave it out"
            )
    task: Task = TASKS[name](**given)
    return task


def _options(kind: Any) -> set[str]:
    return {each.name for each in fields(kind)}

"""A model as an engine has opened it: what it takes and gives, and how it is run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_mlperf.core.errors import RunError

if TYPE_CHECKING:
    from numpy.typing import NDArray

NUMPY = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(double)": "float64",
    "tensor(int8)": "int8",
    "tensor(uint8)": "uint8",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
    "tensor(bool)": "bool",
}
"""Types of a model's inputs, and their names in numpy."""

PRECISIONS = {"fp64": "tensor(double)", "fp32": "tensor(float)", "fp16": "tensor(float16)"}
"""Precisions that show in the types of a model's inputs."""

NO_PRECISION = {f"tensor({each})" for each in ("int8", "uint8", "int32", "int64", "bool")}
"""Numbers to look up, masks and images: their type is the same whatever the precision."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tensor:
    """An input or output of a model.

    Attributes:
        name: As the model calls it.
        type: As onnxruntime calls it, e.g. "tensor(float)".
        shape: The batch first; a length that may vary is a name or None.
    """

    name: str
    type: str
    shape: tuple[int | str | None, ...]


@dataclass(frozen=True, kw_only=True)
class Graph:
    """A model; each engine has its own way to run one.

    Attributes:
        where: What it is and where it lies, for messages.
        inputs: What it takes; all of it must be given.
        outputs: What it gives.
    """

    where: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    def run(
        self, outputs: Sequence[str], feed: Mapping[str, NDArray[Any]]
    ) -> Sequence[NDArray[Any]]:
        """Return these outputs for a batch of inputs by name.

        Raises:
            RunError: The model gave up, e.g. at a number that it cannot look up.
        """
        raise NotImplementedError

    def refuse(self, what: str) -> RunError:
        """Return the error that names the model and what is wrong."""
        return RunError("engine", f"{self.where}: {what}")

    def pick(self, name: str | None) -> Tensor:
        """Return the output of this name; None is the only one.

        Raises:
            RunError: There is no such output, or there are several and none is named.
        """
        found = [each for each in self.outputs if name in (None, each.name)]
        if len(found) == 1:
            return found[0]
        given = ", ".join(each.name for each in self.outputs)
        if name is None:
            raise self.refuse(
                f"gives {len(found)} outputs ({given}); say with the option output which one"
            )
        raise self.refuse(f"gives no output {name!r}, but {given}; correct the option output")


def check_inputs(graph: Graph, precision: str | None) -> None:
    """Refuse inputs that no data set can give, or that contradict the precision, if one is given.

    Raises:
        RunError: Says which input is wrong.
    """
    for tensor in graph.inputs:
        if tensor.type not in NUMPY:
            found = ", ".join(f"{each.name} {each.type}" for each in graph.inputs)
            raise graph.refuse(
                f"takes {found}; this engine runs models with inputs of type {', '.join(NUMPY)}"
            )
        if not tensor.shape:
            raise graph.refuse(
                f"its input {tensor.name!r} has no batch dimension; export the model with the "
                "batch as first dimension of every input"
            )
        expected = PRECISIONS.get(precision or "", tensor.type)
        if tensor.type not in NO_PRECISION and tensor.type != expected:
            raise graph.refuse(
                f"precision is {precision!r}, but the model's input {tensor.name!r} is "
                f"{tensor.type}, not {expected}; correct precision or the model"
            )


def check_batch(graph: Graph, batch_size: int) -> None:
    """Refuse a fixed batch dimension, since a batch may be partial, unless both are 1.

    Raises:
        RunError: Says what to set.
    """
    for tensor in graph.inputs:
        batch = tensor.shape[0]
        if isinstance(batch, int) and (batch, batch_size) != (1, 1):
            raise graph.refuse(
                f"the batch dimension is fixed at {batch}, which does not fit batch_size = "
                f"{batch_size}; export the model with a dynamic batch"
                + (", or set batch_size = 1" if batch == 1 else "")
            )

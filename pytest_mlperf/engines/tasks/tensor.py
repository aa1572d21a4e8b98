"""Task "tensor": an output as it is, for models of one's own and for recommenders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.engines.tasks.graph import Graph
from pytest_mlperf.engines.tasks.inputs import Sample, check_shape, take
from pytest_mlperf.engines.tasks.stacking import Stacking

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class RawTensor:
    """Answers are the sample's part of an output: the model's own type, little-endian.

    Attributes:
        output: Its name; None is the only one.
    """

    output: str | None = None

    def __post_init__(self) -> None:
        """Check the option.

        Raises:
            SuiteError: It is no name.
        """
        if self.output is not None and not isinstance(self.output, str):
            raise SuiteError(f"output = {self.output!r} is not the name of an output")

    def bind(self, graph: Graph, batch_size: int) -> TensorRunner:
        """Return what runs this model.

        Raises:
            RunError: It gives no such output, or does not take batches of this size.
        """
        for each in graph.inputs:
            if isinstance(each.shape[0], int) and batch_size != 1:
                raise graph.refuse(
                    f"the batch dimension is fixed at {each.shape[0]}, which does not fit "
                    f"batch_size = {batch_size}; export the model with a dynamic batch, or set "
                    "batch_size = 1"
                )
        return TensorRunner(graph=graph, at_once=batch_size, output=graph.pick(self.output).name)

    def describe(self) -> Mapping[str, str]:
        """Return what decides the answers."""
        facts = {"task": "tensor"}
        return facts if self.output is None else {**facts, "generation.output": self.output}


@dataclass(frozen=True, kw_only=True)
class TensorRunner(Stacking):
    """A model whose output is the answer.

    A sample is one row of the model's batch, or several, as the user-item pairs of a recommender:
    then its arrays have the batch dimension. In memory all have it.

    Attributes:
        output: Name of the answer.
    """

    output: str

    def prepare(self, given: Any, index: int) -> Sample:
        """Return the arrays of a sample as the model takes them, the rows first.

        Raises:
            RunError: Their names, types or shapes are not the model's, or their rows differ.
        """
        sample = take(self.graph, given, index)
        for each in self.graph.inputs:
            if sample[each.name].ndim != len(each.shape):
                check_shape(self.graph, each, sample[each.name], each.shape[1:], index)
                sample[each.name] = sample[each.name][None]
            check_shape(self.graph, each, sample[each.name], each.shape, index)
        if len({len(array) for array in sample.values()}) != 1:
            found = ", ".join(f"{name} {array.shape}" for name, array in sample.items())
            raise self.graph.refuse(
                f"takes inputs with as many rows each, but sample {index} of the data set has "
                f"{found}"
            )
        return sample

    def key(self, sample: Sample) -> Any:
        """Return the shapes of a row."""
        return tuple(array.shape[1:] for array in sample.values())

    def call(self, outputs: Sequence[str], samples: Sequence[Sample]) -> Sequence[NDArray[Any]]:
        """Run samples with rows of equal shape as one batch.

        Raises:
            RunError: The model gave up.
        """
        import numpy as np

        if len(samples) == 1:
            return self.graph.run(outputs, samples[0])
        feed = {name: np.concatenate([each[name] for each in samples]) for name in samples[0]}
        return self.graph.run(outputs, feed)

    def run(
        self,
        indices: Sequence[int],  # noqa: ARG002 - an answer does not name its sample
        samples: Sequence[Sample],
    ) -> list[bytes]:
        """Return the rows of the output that belong to each sample."""
        answers = [b""] * len(samples)
        for places in self.groups(samples):
            (result,) = self.call([self.output], [samples[place] for place in places])
            rows = [len(next(iter(samples[place].values()))) for place in places]
            if result.shape[:1] != (sum(rows),):
                raise self.graph.refuse(
                    f"output {self.output!r} has shape {result.shape} for a batch of {sum(rows)}; "
                    'task = "tensor" needs an output with the batch as first dimension'
                )
            result = result.astype(result.dtype.newbyteorder("<"), copy=False)
            ends = pairwise(accumulate(rows, initial=0))
            for place, (first, end) in zip(places, ends, strict=True):
                answers[place] = result[first:end].tobytes()
        return answers

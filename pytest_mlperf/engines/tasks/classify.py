"""Task "classify": the class with the highest score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_mlperf.engines.tasks.graph import Graph, Tensor, check_batch
from pytest_mlperf.engines.tasks.inputs import Sample
from pytest_mlperf.engines.tasks.stacking import Stacking

CLASS_TYPES = {"tensor(int32)", "tensor(int64)"}


@dataclass(frozen=True, kw_only=True)
class Classify:
    """Answers are class numbers: int64, little-endian.

    Attributes:
        class_offset: Added to the class.
    """

    class_offset: int = 0

    def bind(self, graph: Graph, batch_size: int) -> Classifier:
        """Return what runs this model, which gives scores (batch, classes) or classes (batch,).

        Raises:
            RunError: Its batch dimension is fixed.
        """
        check_batch(graph, batch_size)
        return Classifier(
            graph=graph,
            at_once=batch_size,
            output=pick_output(graph.outputs),
            offset=self.class_offset,
        )

    def describe(self) -> Mapping[str, str]:
        """Return what decides the answers."""
        return {"class_offset": str(self.class_offset)}


@dataclass(frozen=True, kw_only=True)
class Classifier(Stacking):
    """A model that classifies.

    Attributes:
        output: Classes, or scores.
        offset: Added to the class.
    """

    output: Tensor
    offset: int

    def run(
        self,
        indices: Sequence[int],  # noqa: ARG002 - an answer does not name its sample
        samples: Sequence[Sample],
    ) -> list[bytes]:
        """Return the class of each sample."""
        import numpy as np

        classes = np.empty(len(samples), "<i8")
        for places in self.groups(samples):
            (result,) = self.call([self.output.name], [samples[place] for place in places])
            found = result if self.output.type in CLASS_TYPES else result.argmax(axis=-1)
            classes[places] = found.reshape(len(places)) + self.offset
        return [number.tobytes() for number in classes]


def pick_output(outputs: Sequence[Tensor]) -> Tensor:
    """Prefer class numbers to scores, and among those an output named like argmax."""
    classes = [each for each in outputs if each.type in CLASS_TYPES]
    named = [each for each in classes if "argmax" in each.name.lower()]
    return (named or classes or list(outputs))[0]

"""Task "segment": the class of each voxel, from a model that is slid over the volume."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.engines.tasks.graph import Graph, check_batch
from pytest_mlperf.engines.tasks.inputs import Sample, check_shape, fits, take

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ROI_SHAPE = (128, 128, 128)
WIDTH = 0.125
"""Standard deviation of the weights in a window, as a share of its length."""


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Answers are the class of each voxel: uint8, shape (depth, height, width).

    Windows overlap; what the model gives for each is weighted, most in the middle, and added up.
    Source: inference_utils.py and base_SUT.py in vision/medical_imaging/3d-unet-kits19 of
    https://github.com/mlcommons/inference; the same logits give the same classes.

    Attributes:
        roi_shape: Depth, height and width of a window.
        overlap: Share of a window that the next one covers again.
        output: Name of the scores; None is the only output.
    """

    roi_shape: Sequence[int] = ROI_SHAPE
    overlap: float = 0.5
    output: str | None = None

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            SuiteError: One is out of range.
        """
        shape, overlap = self.roi_shape, self.overlap
        if (
            not isinstance(shape, list | tuple)
            or len(shape) != 3
            or any(type(length) is not int or length < 1 for length in shape)
        ):
            raise SuiteError(f"roi_shape = {shape!r} is not three lengths of a window")
        if type(overlap) not in (int, float) or not 0 <= overlap < 1 or 0 in self.strides:
            raise SuiteError(
                f"overlap = {overlap!r} is not a share of a window, from 0 to less than 1, that "
                "leaves a step"
            )

    @property
    def strides(self) -> tuple[int, ...]:
        """From the start of a window to that of the next, in voxels."""
        return tuple(int(length * (1 - self.overlap)) for length in self.roi_shape)

    def bind(self, graph: Graph, batch_size: int) -> Segmenter:
        """Return what runs this model: one input (batch, channels, *roi_shape), and scores.

        Raises:
            RunError: It takes other windows, or does not take batches of this size.
        """
        check_batch(graph, batch_size)
        taken = graph.inputs[0].shape
        if len(graph.inputs) != 1 or len(taken) != 5 or not fits(self.roi_shape, taken[2:]):
            found = ", ".join(f"{each.name} {each.shape}" for each in graph.inputs)
            raise graph.refuse(
                f'takes {found}; task = "segment" with roi_shape = {list(self.roi_shape)} needs '
                "one input (batch, channels, depth, height, width) for windows of this shape"
            )
        return Segmenter(
            graph=graph,
            windows=batch_size,
            output=graph.pick(self.output).name,
            shape=tuple(self.roi_shape),
            strides=self.strides,
            weights=importance(self.roi_shape),
        )

    def describe(self) -> Mapping[str, str]:
        """Return what decides the answers."""
        facts = {
            "task": "segment",
            "generation.roi_shape": ",".join(map(str, self.roi_shape)),
            "generation.overlap": str(float(self.overlap)),
        }
        return facts if self.output is None else {**facts, "generation.output": self.output}


@dataclass(frozen=True, kw_only=True)
class Segmenter:
    """A model that segments.

    Attributes:
        graph: The model.
        windows: Windows per call of the model at most, all of one sample.
        output: Name of the scores, (batch, classes, *shape).
        shape: Of a window.
        strides: From window to window.
        weights: Of the voxels of a window, float32.
    """

    graph: Graph
    windows: int
    output: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    weights: NDArray[np.float32]

    at_once = 1
    sorts = False

    def prepare(self, given: Any, index: int) -> Sample:
        """Return a sample as the model takes it, (channels, depth, height, width).

        Raises:
            RunError: Its type or shape is not the model's, or windows do not cover it exactly.
        """
        (tensor,) = self.graph.inputs
        sample = take(self.graph, given, index)
        array = sample[tensor.name]
        check_shape(self.graph, tensor, array, (tensor.shape[1], None, None, None), index)
        for length, window, stride in zip(array.shape[1:], self.shape, self.strides, strict=True):
            if length < window or (length - window) % stride:
                raise self.graph.refuse(
                    f"windows of {self.shape} at steps of {self.strides} do not cover sample "
                    f"{index} of the data set, which has shape {array.shape}; pad it so that they "
                    "do, as MLPerf's preprocess.py does"
                )
        return sample

    def key(self, sample: Sample) -> Any:
        """Return nothing: each sample is run by itself."""

    def run(
        self,
        indices: Sequence[int],  # noqa: ARG002 - an answer does not name its sample
        samples: Sequence[Sample],
    ) -> list[bytes]:
        """Return the classes of each sample."""
        return [self._segment(each[self.graph.inputs[0].name]).tobytes() for each in samples]

    def _segment(self, volume: NDArray[Any]) -> NDArray[np.uint8]:
        """Return the class of each voxel.

        In memory are, for a float32 volume, its size x (classes + 1), one batch of windows, and
        the answer.
        """
        import numpy as np

        total: NDArray[np.float32] | None = None
        weight = np.zeros(volume.shape[1:], np.float32)
        starts = self._starts(volume.shape[1:])
        for first in range(0, len(starts), self.windows):
            places = [self._place(start) for start in starts[first : first + self.windows]]
            scores = self._scores(np.stack([volume[(slice(None), *place)] for place in places]))
            if total is None:
                total = np.zeros((scores.shape[1], *volume.shape[1:]), np.float32)
            for window, place in zip(scores, places, strict=True):
                total[(slice(None), *place)] += np.multiply(window, self.weights, out=window)
                weight[place] += self.weights
        assert total is not None, "a volume holds at least one window"
        return highest(total, weight)

    def _scores(self, windows: NDArray[Any]) -> NDArray[np.float32]:
        """Return what the model gives for a batch of windows, to be written on."""
        import numpy as np

        (scores,) = self.graph.run([self.output], {self.graph.inputs[0].name: windows})
        if (
            scores.ndim != 5
            or scores.shape[::2] != windows.shape[::2]
            or (scores.shape[3] != windows.shape[3])
        ):
            raise self.graph.refuse(
                f"output {self.output!r} has shape {scores.shape} for windows of shape "
                f'{windows.shape}; task = "segment" needs scores (batch, classes, '
                f"{', '.join(map(str, self.shape))})"
            )
        return scores.astype(np.float32, copy=not scores.flags.writeable)

    def _starts(self, shape: Sequence[int]) -> list[tuple[int, ...]]:
        """Return where the windows start, the last axis running fastest."""
        steps = zip(shape, self.shape, self.strides, strict=True)
        return list(
            product(*(range(0, length - window + 1, stride) for length, window, stride in steps))
        )

    def _place(self, start: Sequence[int]) -> tuple[slice, ...]:
        return tuple(
            slice(first, first + length) for first, length in zip(start, self.shape, strict=True)
        )


def importance(shape: Sequence[int]) -> NDArray[np.float32]:
    """Return the weights of a window's voxels, at most 1: the geometric mean of three Gaussians."""
    import numpy as np

    lines = []
    for length in shape:
        distance = np.arange(length) - (length - 1.0) / 2.0
        deviation = WIDTH * length
        lines.append(np.exp(-(distance**2) / (2 * deviation * deviation)))
    solid = np.cbrt(np.outer(np.outer(lines[0], lines[1]), lines[2]).reshape(*shape))
    return np.asarray(solid / solid.max(), np.float32)


def highest(total: NDArray[np.float32], weight: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return the class of the highest mean, the first of equal ones; writes on `total`."""
    import numpy as np

    classes = np.empty(weight.shape, np.uint8)
    # Division rounds, and so decides between means that are nearly equal: it must not be left out.
    # One slice at a time, since argmax gives 8 bytes a voxel.
    for depth, divisor in enumerate(weight):
        total[:, depth] /= divisor
        classes[depth] = total[:, depth].argmax(axis=0)
    return classes

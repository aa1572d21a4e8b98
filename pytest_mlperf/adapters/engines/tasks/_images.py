"""Define tasks on images: classification, detection and segmentation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from pytest_mlperf.adapters.engines import count_rule, one_of
from pytest_mlperf.adapters.engines.tasks import graph as graphs
from pytest_mlperf.adapters.lazy import NDArray, np
from pytest_mlperf.extension import require_options

CLASS_TYPES = {"tensor(int32)", "tensor(int64)"}


@dataclass(kw_only=True)
class Classify(graphs.Task):
    """Answer with class numbers: int64, little-endian."""

    class_offset: int = 0

    def bind(self, graph: graphs.Graph, batch_size: int) -> None:
        """Store a model with scores (batch, classes) or classes (batch,) as output, or raise."""
        super().bind(graph, batch_size)
        self._output = pick_output(graph.outputs)

    def describe(self) -> Mapping[str, str]:
        return {"class_offset": str(self.class_offset)}

    def run_batch(
        self, _indices: Sequence[int], samples: Sequence[graphs.Sample]
    ) -> Iterable[bytes]:
        (result,) = self.call([self._output.name], samples)
        best = result if self._output.type in CLASS_TYPES else result.argmax(axis=-1)
        classes = np.empty(len(samples), "<i8")
        classes[:] = best.reshape(len(samples)) + self.class_offset
        return [number.tobytes() for number in classes]


def pick_output(outputs: Sequence[graphs.Tensor]) -> graphs.Tensor:
    """Return the output with class numbers (preferably one named argmax), else the first one."""
    classes = [each for each in outputs if each.type in CLASS_TYPES]
    named = [each for each in classes if "argmax" in each.name.lower()]
    return (named or classes or list(outputs))[0]


OUTPUT_NAMES = {
    "boxes": ("boxes", "detection_boxes"),
    "labels": ("labels", "detection_classes"),
    "scores": ("scores", "detection_scores"),
}

ORDERS = {"xyxy": [1, 0, 3, 2], "yxyx": [0, 1, 2, 3]}
"""Columns of ymin, xmin, ymax, xmax, by box order."""

UNITS = ("pixel", "image")


@dataclass(kw_only=True)
class Detect(graphs.Task):
    """Answer with float32 rows of index, ymin, xmin, ymax, xmax, score, label.

    Coordinates are shares of the image's height and width. Defaults are those of
    PostProcessOpenImagesRetinanet in MLPerf's
    vision/classification_and_detection/python/openimages.py. That code stops at the first score
    below the threshold; here all such boxes are dropped, which gives the same result if scores are
    in descending order.
    """

    box_order: str = "xyxy"
    box_unit: str = "pixel"
    score_threshold: float = 0.05
    max_detections: int | None = None

    def __post_init__(self) -> None:
        rules = (
            one_of("box_order", self.box_order, tuple(ORDERS)),
            one_of("box_unit", self.box_unit, UNITS),
            count_rule("max_detections", self.max_detections, "boxes"),
        )
        require_options("", rules)

    def bind(self, graph: graphs.Graph, batch_size: int) -> None:
        """Store a model with an image (batch, channels, height, width).

        Outputs must be boxes (n, 4), labels (n,) and scores (n,), or all with the batch first.
        """
        super().bind(graph, batch_size)
        images = [each.name for each in graph.inputs if len(each.shape) == 4]
        if not images:
            raise graph.refuse(
                "has no input of shape (batch, channels, height, width); "
                'task = "detect" runs models that take images'
            )
        outputs = [_pick(graph, what) for what in OUTPUT_NAMES]
        if len(outputs[0].shape) == 2 and batch_size != 1:
            raise graph.refuse(
                f"gives the boxes of one image at a time ({outputs[0].name!r} has no batch "
                f"dimension), but batch_size = {batch_size}; set batch_size = 1"
            )
        self._image, self._outputs = images[0], [output.name for output in outputs]

    def describe(self) -> Mapping[str, str]:
        return {
            "task": "detect",
            "generation.box_order": self.box_order,
            "generation.box_unit": self.box_unit,
            "generation.score_threshold": str(float(self.score_threshold)),
            "generation.max_detections": str(self.max_detections),
        }

    def run_batch(
        self, indices: Sequence[int], samples: Sequence[graphs.Sample]
    ) -> Iterable[bytes]:
        outputs = self.call(self._outputs, samples)
        height, width = samples[0][self._image].shape[1:]
        for row, index in enumerate(indices):
            boxes, labels, scores = self._of_image(outputs, row, len(samples))
            yield self._rows(index, boxes, labels, scores, (height, width)).tobytes()

    def _of_image(
        self, outputs: Sequence[NDArray[Any]], row: int, images: int
    ) -> Sequence[NDArray[Any]]:
        boxes, labels, scores = outputs
        expected = (images,) if boxes.ndim == 3 else ()
        if (
            boxes.shape != (*scores.shape, 4)
            or labels.shape != scores.shape
            or scores.shape[:-1] != expected
            or (images > 1 and not expected)
        ):
            raise self.graph.refuse(
                f"gave boxes {boxes.shape}, labels {labels.shape}, scores {scores.shape} for "
                f'{images} images; task = "detect" needs (n, 4), (n,), (n,) for one image, or all '
                "three with a leading batch dimension"
            )
        return [each[row] for each in outputs] if expected else outputs

    def _rows(
        self,
        index: int,
        boxes: NDArray[Any],
        labels: NDArray[Any],
        scores: NDArray[Any],
        size: tuple[int, int],
    ) -> NDArray[Any]:
        # Keep scores that are not numbers, so that the scorer sees them.
        kept = np.flatnonzero(~(scores < self.score_threshold))
        most = self.max_detections
        if most is not None and len(kept) > most:
            best = np.argsort(-scores[kept].astype(np.float32), kind="stable")[:most]
            kept = kept[np.sort(best)]
        rows = np.empty((len(kept), 7), "<f4")
        rows[:, 0] = index
        rows[:, 1:5] = boxes[kept][:, ORDERS[self.box_order]]
        if self.box_unit == "pixel":
            rows[:, 1:5] /= np.array([*size, *size], np.float32)
        rows[:, 5] = scores[kept]
        rows[:, 6] = labels[kept]
        return rows


def _pick(graph: graphs.Graph, role: str) -> graphs.Tensor:
    for name in OUTPUT_NAMES[role]:
        for tensor in graph.outputs:
            if tensor.name.removesuffix(":0") == name:
                return tensor
    raise graph.refuse(
        f"has the outputs {', '.join(tensor.name for tensor in graph.outputs)}, but no {role}; "
        'task = "detect" needs the outputs boxes, labels and scores'
    )


ROI_SHAPE = (128, 128, 128)
WIDTH = 0.125
"""Standard deviation of the weights in a window, as a share of its length."""


@dataclass(kw_only=True)
class Segment(graphs.Task):
    """Answer with the class of each voxel: uint8, shape (depth, height, width).

    Windows overlap; their scores are added, with the highest weights in the middle of a window. The
    same logits give the same classes as inference_utils.py and base_SUT.py in MLPerf's
    vision/medical_imaging/3d-unet-kits19.
    """

    roi_shape: Sequence[int] = ROI_SHAPE
    overlap: float = 0.5
    output: str | None = None

    def __post_init__(self) -> None:
        shape, overlap = self.roi_shape, self.overlap
        is_shape = len(shape) == 3 and min(shape) >= 1
        require_options("", [("roi_shape", shape, is_shape, "three lengths of at least 1")])
        is_share = 0 <= overlap < 1 and 0 not in self.strides
        share = "a number from 0 to below 1 with a step of at least one voxel between windows"
        require_options("", [("overlap", overlap, is_share, share)])

    @property
    def strides(self) -> tuple[int, ...]:
        """Distance between the starts of two windows, in voxels."""
        return tuple(int(length * (1 - self.overlap)) for length in self.roi_shape)

    def bind(self, graph: graphs.Graph, batch_size: int) -> None:
        """Store a model with one input (batch, channels, *roi_shape), for windows of one sample."""
        super().bind(graph, batch_size)
        taken = graph.inputs[0].shape
        if (
            len(graph.inputs) != 1
            or len(taken) != 5
            or not graphs.matches_shape(self.roi_shape, taken[2:])
        ):
            inputs = ", ".join(f"{each.name} {each.shape}" for each in graph.inputs)
            raise graph.refuse(
                f'takes {inputs}; task = "segment" with roi_shape = {list(self.roi_shape)} needs '
                "one input (batch, channels, depth, height, width) for windows of this shape"
            )
        self.at_once, self._windows = 1, batch_size
        self._output = graph.pick(self.output).name
        self._weights = importance(self.roi_shape)

    def describe(self) -> Mapping[str, str]:
        facts = {
            "task": "segment",
            "generation.roi_shape": ",".join(map(str, self.roi_shape)),
            "generation.overlap": str(float(self.overlap)),
        }
        return facts if self.output is None else {**facts, "generation.output": self.output}

    @property
    def sorts(self) -> bool:
        return False

    def prepare(self, raw: Any, index: int) -> graphs.Sample:
        (tensor,) = self.graph.inputs
        sample = graphs.input_arrays(self.graph, raw, index)
        array = sample[tensor.name]
        graphs.check_shape(self.graph, tensor, array, (tensor.shape[1], None, None, None), index)
        shape, strides = tuple(self.roi_shape), self.strides
        for length, window, stride in zip(array.shape[1:], shape, strides, strict=True):
            if length < window or (length - window) % stride:
                raise self.graph.refuse(
                    f"windows of {shape} at steps of {strides} do not cover sample {index} of the "
                    f"data set, which has shape {array.shape}; pad it so that they do, as MLPerf's "
                    "preprocess.py does"
                )
        return sample

    def run_batch(
        self, _indices: Sequence[int], samples: Sequence[graphs.Sample]
    ) -> Iterable[bytes]:
        return [self._segment(each[self.graph.inputs[0].name]).tobytes() for each in samples]

    def _segment(self, volume: NDArray[Any]) -> NDArray[np.uint8]:
        """Return the class of each voxel; needs memory for classes + 1 float32 volumes."""
        total: NDArray[np.float32] | None = None
        weight = np.zeros(volume.shape[1:], np.float32)
        steps = zip(volume.shape[1:], self.roi_shape, self.strides, strict=True)
        sides = (
            [slice(start, start + window) for start in range(0, length - window + 1, stride)]
            for length, window, stride in steps
        )
        everywhere = list(product(*sides))
        for first in range(0, len(everywhere), self._windows):
            regions = everywhere[first : first + self._windows]
            scores = self._scores(np.stack([volume[(slice(None), *region)] for region in regions]))
            if total is None:
                total = np.zeros((scores.shape[1], *volume.shape[1:]), np.float32)
            for window, region in zip(scores, regions, strict=True):
                total[(slice(None), *region)] += np.multiply(window, self._weights, out=window)
                weight[region] += self._weights
        assert total is not None, "a volume holds at least one window"
        return best_classes(total, weight)

    def _scores(self, windows: NDArray[Any]) -> NDArray[np.float32]:
        (scores,) = self.graph.run([self._output], {self.graph.inputs[0].name: windows})
        if (
            scores.ndim != 5
            or scores.shape[::2] != windows.shape[::2]
            or (scores.shape[3] != windows.shape[3])
        ):
            raise self.graph.refuse(
                f"output {self._output!r} has shape {scores.shape} for windows of shape "
                f'{windows.shape}; task = "segment" needs scores (batch, classes, '
                f"{', '.join(map(str, self.roi_shape))})"
            )
        return scores.astype(np.float32, copy=not scores.flags.writeable)


def importance(shape: Sequence[int]) -> NDArray[np.float32]:
    """Return the weights of a window's voxels: geometric mean of three Gaussians, at most 1."""
    lines = []
    for length in shape:
        distance = np.arange(length) - (length - 1.0) / 2.0
        deviation = WIDTH * length
        lines.append(np.exp(-(distance**2) / (2 * deviation * deviation)))
    solid = np.cbrt(np.outer(np.outer(lines[0], lines[1]), lines[2]).reshape(*shape))
    return np.asarray(solid / solid.max(), np.float32)


def best_classes(total: NDArray[np.float32], weight: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return each voxel's class with the highest mean (first if equal); overwrite `total`."""
    classes = np.empty(weight.shape, np.uint8)
    # Rounding in the division decides between nearly equal means, so it must stay.
    # Slices save memory, since argmax needs 8 bytes per voxel.
    for depth, divisor in enumerate(weight):
        total[:, depth] /= divisor
        classes[depth] = total[:, depth].argmax(axis=0)
    return classes

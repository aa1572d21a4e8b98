"""Convert the boxes that MLPerf's YOLO outputs to detections in the original image."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_mlperf.adapters.engines import count_rule
from pytest_mlperf.adapters.engines.tasks.graph import Graph, Sample, Task
from pytest_mlperf.adapters.lazy import NDArray, np
from pytest_mlperf.extension import require_options

SUPPRESSED_COLUMNS = 6
CORNERS = 4

EXTRA_FIELDS = ("frame", "categories")


@dataclass(kw_only=True)
class Yolo(Task):
    """Answer with float32 rows of index, ymin, xmin, ymax, xmax, score, category.

    Coordinates are shares of the original image's height and width, without padding. Defaults are
    those of MLPerf's reference: only the best class of each box, scores above 0.001, and at most
    300 boxes, whose IoU with higher-scoring boxes of the same class is at most 0.7.
    """

    score_threshold: float = 0.001
    iou_threshold: float = 0.7
    max_detections: int = 300

    def __post_init__(self) -> None:
        share = "a number above 0 and at most 1"
        rules = (
            ("iou_threshold", self.iou_threshold, 0 < self.iou_threshold <= 1, share),
            count_rule("max_detections", self.max_detections, "boxes"),
        )
        require_options("", rules)

    def bind(self, graph: Graph, batch_size: int) -> None:
        """Use a model with one image as input and one output with all boxes.

        The output is (batch, 4 + classes, places): centre, width, height and class scores of each
        box. A model that suppresses boxes itself has (batch, boxes, 6): left, top, right, bottom,
        score, class.
        """
        super().bind(graph, batch_size)
        if len(graph.inputs) != 1 or len(graph.inputs[0].shape) != 4:
            inputs = ", ".join(f"{each.name} {each.shape}" for each in graph.inputs)
            raise graph.refuse(
                f'takes {inputs}; task = "yolo" runs models with one input (batch, 3, height, '
                "width), such as an export of YOLO to ONNX"
            )
        if len(graph.outputs) != 1:
            names = ", ".join(each.name for each in graph.outputs)
            raise graph.refuse(
                f'gives {len(graph.outputs)} outputs ({names}); task = "yolo" runs models with one '
                "output, which has all boxes; export the model again"
            )
        self._output = graph.outputs[0].name

    def describe(self) -> Mapping[str, str]:
        return {
            "task": "yolo",
            "generation.score_threshold": str(float(self.score_threshold)),
            "generation.iou_threshold": str(float(self.iou_threshold)),
            "generation.max_detections": str(self.max_detections),
        }

    def prepare(self, raw: Any, index: int) -> Sample:
        if not isinstance(raw, Mapping) or not {"images", *EXTRA_FIELDS} <= set(raw):
            raise self.graph.refuse(
                'task = "yolo" needs images, frame and categories of a sample, which sample '
                f"{index} of the data set lacks; use data set coco"
            )
        (tensor,) = self.graph.inputs
        sample = super().prepare({tensor.name: raw["images"]}, index)
        return {**sample, **{name: raw[name] for name in EXTRA_FIELDS}}

    def key(self, sample: Sample) -> Any:
        return sample[self.graph.inputs[0].name].shape

    def run_batch(self, indices: Sequence[int], samples: Sequence[Sample]) -> Iterable[bytes]:
        (tensor,) = self.graph.inputs
        (boxes,) = self.call([self._output], [{tensor.name: each[tensor.name]} for each in samples])
        fits = boxes.ndim == 3 and (
            boxes.shape[2] == SUPPRESSED_COLUMNS or boxes.shape[1] > CORNERS
        )
        if not fits or len(boxes) != len(samples):
            raise self.graph.refuse(
                f"output {self._output!r} has shape {boxes.shape} for {len(samples)} images; "
                'task = "yolo" needs (batch, 4 + classes, boxes), or (batch, boxes, 6) from a '
                "model with non-maximum suppression"
            )
        for index, sample, of_image in zip(indices, samples, boxes, strict=True):
            yield self._rows(index, sample, of_image).tobytes()

    def _rows(self, index: int, sample: Sample, boxes: NDArray[Any]) -> NDArray[np.float32]:
        corners, scores, classes = _read(boxes.astype(np.float32, copy=False))
        # Keep scores that are not numbers, so that the scorer sees them.
        some = np.flatnonzero(~(scores <= self.score_threshold))
        some = some[np.argsort(-scores[some], kind="stable")]
        if boxes.shape[-1] != SUPPRESSED_COLUMNS:
            most = self.max_detections
            some = suppress(corners, classes, some, overlap=self.iou_threshold, most=most)
        some = some[: self.max_detections]
        categories = sample["categories"]
        if len(some) and classes[some].max() >= len(categories):
            raise self.graph.refuse(
                f"gave class {classes[some].max()}, but the data set has {len(categories)} "
                "categories; use the annotations that belong to the model"
            )
        left, top, scale, width, height = sample["frame"]
        x = ((corners[some][:, ::2] - left) / scale).clip(0, width) / width
        y = ((corners[some][:, 1::2] - top) / scale).clip(0, height) / height
        rows = np.empty((len(some), 7), "<f4")
        rows[:, 0] = index
        rows[:, 1], rows[:, 2], rows[:, 3], rows[:, 4] = y[:, 0], x[:, 0], y[:, 1], x[:, 1]
        rows[:, 5] = scores[some]
        rows[:, 6] = categories[classes[some]]
        return rows


def _read(
    boxes: NDArray[np.float32],
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int64]]:
    """Return the corners (left, top, right, bottom), score and class of every box."""
    if boxes.shape[-1] == SUPPRESSED_COLUMNS:
        return boxes[:, :CORNERS], boxes[:, CORNERS], boxes[:, CORNERS + 1].astype(np.int64)
    centres, halves = boxes[:2].T, boxes[2:CORNERS].T / 2
    classes = boxes[CORNERS:].argmax(axis=0)
    return np.hstack([centres - halves, centres + halves]), boxes[CORNERS:].max(axis=0), classes


def suppress(
    corners: NDArray[np.float32],
    classes: NDArray[np.int64],
    order: NDArray[np.int64],
    *,
    overlap: float,
    most: int,
) -> NDArray[np.int64]:
    """Apply non-maximum suppression by class; return the kept box indices from `order`.

    `order` has box indices, highest score first. `corners` has shape (boxes, 4). `overlap` is the
    maximum IoU of two kept boxes of a class, and `most` the maximum number of boxes.
    """
    low, high = corners[order, :2], corners[order, 2:]
    areas, kinds = (high - low).prod(axis=1), classes[order]
    left = np.ones(len(order), np.bool_)
    kept: list[int] = []
    while len(kept) < most and left.any():
        best = int(left.argmax())
        kept.append(best)
        sides = np.minimum(high[best], high) - np.maximum(low[best], low)
        common = sides.clip(0).prod(axis=1)
        covered = common > overlap * (areas[best] + areas - common)
        left &= ~(covered & (kinds == kinds[best]))
        left[best] = False
    return order[kept]

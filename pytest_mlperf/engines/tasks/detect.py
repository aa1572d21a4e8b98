"""Task "detect": boxes around objects, from a model that suppresses overlapping ones itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.engines.tasks.graph import Graph, Tensor, check_batch
from pytest_mlperf.engines.tasks.inputs import Sample
from pytest_mlperf.engines.tasks.stacking import Stacking

if TYPE_CHECKING:
    from numpy.typing import NDArray

NAMES = {
    "boxes": ("boxes", "detection_boxes"),
    "labels": ("labels", "detection_classes"),
    "scores": ("scores", "detection_scores"),
}
"""Names of outputs in models of torchvision, which MLPerf's RetinaNet is, and of TensorFlow."""

ORDERS = {"xyxy": [1, 0, 3, 2], "yxyx": [0, 1, 2, 3]}
"""Where a model puts ymin, xmin, ymax, xmax."""

UNITS = ("pixel", "image")


@dataclass(frozen=True, kw_only=True)
class Detect:
    """Answers are float32 rows of index, ymin, xmin, ymax, xmax, score, label.

    Coordinates are shares of the image's height and width. Defaults are those of MLPerf's
    RetinaNet: PostProcessOpenImagesRetinanet in vision/classification_and_detection/python/
    openimages.py of https://github.com/mlcommons/inference. It stops at the first score below the
    threshold; here every such box is left out, which is the same where scores fall.

    Attributes:
        box_order: "xyxy" or "yxyx".
        box_unit: "pixel", or "image" for models that give shares of height and width.
        score_threshold: Boxes with a lower score are left out.
        max_detections: Boxes with the highest scores that are kept; None keeps all.
    """

    box_order: str = "xyxy"
    box_unit: str = "pixel"
    score_threshold: float = 0.05
    max_detections: int | None = None

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            SuiteError: One is out of range.
        """
        threshold, most = self.score_threshold, self.max_detections
        rules = (
            ("box_order", self.box_order, self.box_order in ORDERS, f"one of {', '.join(ORDERS)}"),
            ("box_unit", self.box_unit, self.box_unit in UNITS, f"one of {', '.join(UNITS)}"),
            ("score_threshold", threshold, type(threshold) in (int, float), "a number"),
            (
                "max_detections",
                most,
                most is None or (type(most) is int and most >= 1),
                "a number of boxes, at least 1",
            ),
        )
        for name, value, valid, expected in rules:
            if not valid:
                raise SuiteError(f"{name} = {value!r} is not {expected}")

    def bind(self, graph: Graph, batch_size: int) -> Detector:
        """Return what runs this model.

        Its first input of shape (batch, channels, height, width) is the image. Outputs are boxes
        (n, 4), labels (n,) and scores (n,) of one image, or all with the batch before.

        Raises:
            RunError: It has no such inputs or outputs, or does not take batches of this size.
        """
        check_batch(graph, batch_size)
        images = [each.name for each in graph.inputs if len(each.shape) == 4]
        if not images:
            raise graph.refuse(
                "has no input of shape (batch, channels, height, width); "
                'task = "detect" runs models that take images'
            )
        outputs = [_pick(graph, what) for what in NAMES]
        if len(outputs[0].shape) == 2 and batch_size != 1:
            raise graph.refuse(
                f"gives the boxes of one image at a time ({outputs[0].name!r} has no batch "
                f"dimension), but batch_size = {batch_size}; set batch_size = 1"
            )
        return Detector(
            graph=graph,
            at_once=batch_size,
            image=images[0],
            outputs=[each.name for each in outputs],
            options=self,
        )

    def describe(self) -> Mapping[str, str]:
        """Return what decides the answers."""
        return {
            "task": "detect",
            "generation.box_order": self.box_order,
            "generation.box_unit": self.box_unit,
            "generation.score_threshold": str(float(self.score_threshold)),
            "generation.max_detections": str(self.max_detections),
        }


@dataclass(frozen=True, kw_only=True)
class Detector(Stacking):
    """A model that detects objects.

    Attributes:
        image: Name of the input that is the image.
        outputs: Names of boxes, labels and scores.
        options: What is kept, and how boxes are read.
    """

    image: str
    outputs: Sequence[str]
    options: Detect

    def run(self, indices: Sequence[int], samples: Sequence[Sample]) -> list[bytes]:
        """Return the detections of each sample."""
        answers = [b""] * len(samples)
        for places in self.groups(samples):
            found = self.call(self.outputs, [samples[place] for place in places])
            height, width = samples[places[0]][self.image].shape[1:]
            for row, place in enumerate(places):
                boxes, labels, scores = self._of_image(found, row, len(places))
                answers[place] = self._rows(
                    indices[place], boxes, labels, scores, (height, width)
                ).tobytes()
        return answers

    def _of_image(
        self, found: Sequence[NDArray[Any]], row: int, images: int
    ) -> Sequence[NDArray[Any]]:
        """Return boxes, labels and scores of one image, if they are such."""
        boxes, labels, scores = found
        expected = (images,) if boxes.ndim == 3 else ()
        if (
            boxes.shape != (*scores.shape, 4)
            or labels.shape != scores.shape
            or scores.shape[:-1] != expected
            or (images > 1 and not expected)
        ):
            raise self.graph.refuse(
                f"gave boxes {boxes.shape}, labels {labels.shape}, scores {scores.shape} for "
                f'{images} images; task = "detect" needs (n, 4), (n,), (n,) of one image, or all '
                "with the batch before"
            )
        return [each[row] for each in found] if expected else found

    def _rows(
        self,
        index: int,
        boxes: NDArray[Any],
        labels: NDArray[Any],
        scores: NDArray[Any],
        size: tuple[int, int],
    ) -> NDArray[Any]:
        """Return the rows that are kept, in the model's order, shape (rows, 7)."""
        import numpy as np

        # What is not finite is no "lower score": the scorer is to see it.
        kept = np.flatnonzero(~(scores < self.options.score_threshold))
        most = self.options.max_detections
        if most is not None and len(kept) > most:
            best = np.argsort(-scores[kept].astype(np.float32), kind="stable")[:most]
            kept = kept[np.sort(best)]
        rows = np.empty((len(kept), 7), "<f4")
        rows[:, 0] = index
        rows[:, 1:5] = boxes[kept][:, ORDERS[self.options.box_order]]
        if self.options.box_unit == "pixel":
            rows[:, 1:5] /= np.array([*size, *size], np.float32)
        rows[:, 5] = scores[kept]
        rows[:, 6] = labels[kept]
        return rows


def _pick(graph: Graph, what: str) -> Tensor:
    for name in NAMES[what]:
        for each in graph.outputs:
            if each.name.removesuffix(":0") == name:
                return each
    raise graph.refuse(
        f"gives {', '.join(each.name for each in graph.outputs)}, and no {what}; "
        'task = "detect" needs the outputs boxes, labels and scores'
    )

"""Score object detection as MLPerf's accuracy-openimages.py does: COCO's mean average precision."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.extension import Scores
from pytest_mlperf.scorers.mean_ap_boxes import gather
from pytest_mlperf.scorers.mean_ap_matches import match_classes
from pytest_mlperf.scorers.mean_ap_precision import influences, interpolated


class MeanApScorer:
    """Compares detected with annotated boxes, over the images that were answered.

    Average precision is that of COCO: interpolated at 101 recalls, and averaged over overlaps from
    0.5 to 0.95 and over the classes that are annotated in these images; at most 100 detections of a
    class count in an image, and boxes around groups count neither way. Matching is pycocotools'
    own; it is only spared the pairs of class and image that have no boxes to be found, and sizes of
    objects that the figure does not depend on.
    Source: vision/classification_and_detection/tools/accuracy-openimages.py of
    https://github.com/mlcommons/inference, without `--use-inv-map`: MLPerf's labels are the ids of
    categories. Like there, a label that no box has never counts, a fraction of a label is cut off,
    and only the order of scores matters, whatever their scale.
    """

    metrics = ("map",)
    libraries = ("pycocotools",)

    def __init__(
        self,
        *,
        model: str | None = None,
    ) -> None:
        """Take no options.

        Args:
            model: Not used: a box is no text.
        """

    def score(self, outputs: Sequence[bytes], references: Sequence[Any]) -> Scores:
        """Score detections against annotations; outputs and references are gone through once.

        Args:
            outputs: Each sample's detections in any number and order: float32 rows of index, ymin,
                xmin, ymax, xmax, score, label, little-endian; 0 to 1 is the image's height or
                width; index is the sample's in the data set.
            references: What data set openimages gives: `image_id`, `height`, `width`, and
                `annotations` with `category_id`, `bbox`, `area`, `iscrowd`; and, to be compared
                with the rows, `index`.

        Returns:
            Metric "map", in per cent, of all samples. A sample's score is its pseudo-value,
            map + samples x influence, where the influence is that on average precision without
            interpolation, since the interpolated one has steps and no derivative: paired
            differences of them have about the standard error that drawing images anew gives, in
            simulations 0.9 to 1.25 times as much.

        Raises:
            EnvironmentFault: pycocotools is not installed.
            RunError: There are no samples, not as many outputs as references, an output is no such
                rows or of another sample, a reference is not as expected, an image is there twice,
                or no sample has a box to be found.
        """
        import numpy as np

        if not len(outputs) or len(outputs) != len(references):
            raise RunError(
                "scorer",
                f"scorer map: got {len(outputs)} outputs for {len(references)} references; it "
                "needs one output per reference, and at least one",
            )
        detections, truths = gather(outputs, references)
        precisions: list[float] = []
        influence = np.zeros(len(outputs))
        for matched in match_classes(detections, truths):
            for right, ignored in zip(matched.right, matched.ignored, strict=True):
                counted = right[~ignored]
                precisions.append(interpolated(counted, int(matched.boxes.sum())))
                influence += influences(counted, matched.samples[~ignored], matched.boxes)
        if not precisions:
            raise RunError(
                "scorer",
                f"scorer map: none of the {len(outputs)} samples has a box to be found, so there "
                "is no average precision; score more samples, or correct the data set",
            )
        value = 100.0 * math.fsum(precisions) / len(precisions)
        pseudo = 100.0 * len(outputs) * influence / len(precisions)
        return Scores(
            # Influences add up to 0 but for rounding.
            per_sample={"map": (value + pseudo - pseudo.mean()).tolist()},
            aggregate={"map": value},
            whole=frozenset({"map"}),
        )

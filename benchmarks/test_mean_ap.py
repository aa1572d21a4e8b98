"""How fast mAP is scored beside a run of pycocotools in the way of MLPerf's reference script."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from pytest_mlperf.adapters.scorers.detection import MeanApScorer

IMAGES = 1500
CLASSES = 264
BOXES = 10
WRONG = 70

Outputs = list[bytes]
References = list[dict[str, Any]]


def corpus(images: int) -> tuple[Outputs, References]:
    """Return 10 boxes per image of classes by Zipf's law, each found twice, and 70 wrong ones."""
    rng = np.random.default_rng(1)
    shares = 1 / (np.arange(CLASSES) + 3)
    shares /= shares.sum()
    outputs, references = [], []
    for index in range(images):
        height, width = rng.integers(500, 1025, 2).tolist()
        corners = np.sort(rng.random((BOXES, 2, 2)), axis=1)
        labels = rng.choice(CLASSES, BOXES, p=shares)
        sizes = (corners[:, 1] - corners[:, 0]) * [width, height]
        boxes = np.hstack([corners[:, 0] * [width, height], sizes])
        annotations = [
            {"category_id": label, "bbox": box, "area": box[2] * box[3], "iscrowd": crowd}
            for label, box, crowd in zip(
                labels.tolist(), boxes.tolist(), (rng.random(BOXES) < 0.06).tolist(), strict=True
            )
        ]
        found = np.repeat(corners.reshape(BOXES, 4), 2, axis=0) + rng.normal(
            0, 0.03, (2 * BOXES, 4)
        )
        wrong = np.sort(rng.random((WRONG, 2, 2)), axis=1).reshape(WRONG, 4)
        rows = np.column_stack(
            [
                np.full(2 * BOXES + WRONG, index),
                np.vstack([found, wrong])[:, [1, 0, 3, 2]],
                np.concatenate([rng.beta(4, 2, 2 * BOXES), rng.beta(1.3, 6, WRONG)]),
                np.concatenate([np.repeat(labels, 2), rng.choice(CLASSES, WRONG, p=shares)]),
            ]
        )
        outputs.append(rows.astype("<f4").tobytes())
        references.append(
            {
                "index": index,
                "image_id": index + 1,
                "height": height,
                "width": width,
                "annotations": annotations,
            }
        )
    return outputs, references


def by_pycocotools(outputs: Outputs, references: References) -> float:
    """Score as the reference script does, less its reading and writing of files."""
    annotations = [
        {"image_id": one["image_id"], **each} for one in references for each in one["annotations"]
    ]
    truths = COCO()
    truths.dataset = {
        "images": [{"id": one["image_id"]} for one in references],
        "annotations": [{"id": n, **each} for n, each in enumerate(annotations, start=1)],
        "categories": [{"id": label} for label in range(CLASSES)],
    }
    with contextlib.redirect_stdout(io.StringIO()):
        truths.createIndex()
        evaluation = COCOeval(truths, truths.loadRes(listed(outputs, references)), iouType="bbox")
        evaluation.params.imgIds = [one["image_id"] for one in references]
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return 100 * float(evaluation.stats[0])


def listed(outputs: Sequence[bytes], references: References) -> list[dict[str, Any]]:
    found = []
    for output, reference in zip(outputs, references, strict=True):
        height, width = np.float32(reference["height"]), np.float32(reference["width"])
        for _, top, left, bottom, right, score, label in np.frombuffer(output, "<f4").reshape(
            -1, 7
        ):
            x, y = left * width, top * height
            box = (x, y, right * width - x, bottom * height - y)
            found.append(
                {
                    "image_id": reference["image_id"],
                    "category_id": int(label),
                    "bbox": [float(number) for number in box],
                    "score": float(score),
                }
            )
    return found


@pytest.mark.benchmark(group="map")
def test_map_and_its_pseudo_values_take_less_than_a_plain_run_of_pycocotools(
    benchmark: Any,
) -> None:
    """Target: 5 x, measured 15 x; processor time, 1,500 images with 90 detections each."""
    outputs, references = corpus(IMAGES)

    start = time.process_time()
    expected = by_pycocotools(outputs, references)
    theirs = time.process_time() - start
    start = time.process_time()
    scores = MeanApScorer().score(outputs, references)
    ours = time.process_time() - start
    benchmark.pedantic(lambda: MeanApScorer().score(outputs, references), rounds=1)

    ratio = theirs / ours
    print(f"\nmAP of {IMAGES:,} images: {ours:.2f} s, pycocotools {theirs:.2f} s, {ratio:.1f} x")
    benchmark.extra_info.update({"ours_s": ours, "pycocotools_s": theirs, "ratio": ratio})
    assert scores.aggregate["map"] == pytest.approx(expected, rel=1e-12)
    assert ratio >= 5

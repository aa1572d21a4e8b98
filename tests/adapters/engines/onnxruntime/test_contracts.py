"""Test that the engine takes the inputs of data sets, and that scorers take its outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_mlperf.adapters.datasets.squad import SquadDataset
from pytest_mlperf.adapters.scorers.auc import AucScorer
from pytest_mlperf.adapters.scorers.detection import MeanApScorer
from pytest_mlperf.adapters.scorers.dice import DiceScorer
from pytest_mlperf.adapters.scorers.squad import SquadScorer
from tests.adapters.datasets.squad_made_here import squad, write
from tests.adapters.engines.onnxruntime.models import (
    detector,
    drawn,
    encoder,
    logits,
    pairs,
    photo,
    probabilities,
    recommender,
    segmenter,
    volume,
)
from tests.adapters.engines.onnxruntime.recorder import answers


def test_questions_of_squad_are_answered_and_scored(tmp_path: Path) -> None:
    content, lines = squad(5, paragraphs=9, questions=2)
    words = drawn(9, len(lines), 8)
    dataset = SquadDataset(path=str(write(tmp_path, content, lines)), pad=False)
    features = [dataset.input(index) for index in range(len(dataset))]

    outputs = answers(encoder(tmp_path, words=words), features, task="answer", batch_size=4)

    plain = [logits(each["input_ids"], each["segment_ids"], words).tobytes() for each in features]
    references = [dataset.reference(index) for index in range(len(dataset))]
    assert SquadScorer().score(outputs, references) == SquadScorer().score(plain, references)


def test_detections_are_scored(tmp_path: Path) -> None:
    pytest.importorskip("pycocotools")
    photos = [photo(index, height=60, width=45) for index in range(6)]
    for image in photos:  # Boxes are to have an area.
        image[0, :, 2:4] += image[0, :, :2] + 1

    outputs = answers(detector(tmp_path), photos, task="detect", batch_size=1)

    references = []
    for index, raw in enumerate(outputs):
        boxes: list[Any] = []
        for _, top, left, bottom, right, _, label in np.frombuffer(raw, "<f4").reshape(-1, 7):
            box = [float(each) for each in (left * 45, top * 60)]
            box += [float(each) for each in ((right - left) * 45, (bottom - top) * 60)]
            area = box[2] * box[3]
            boxes.append({"category_id": int(label), "bbox": box, "area": area, "iscrowd": 0})
        of_image = {"index": index, "image_id": 100 + index, "height": 60, "width": 45}
        references.append({**of_image, "annotations": boxes})
    assert MeanApScorer().score(outputs, references).aggregate["map"] == pytest.approx(100)


def test_segmented_volumes_are_scored(tmp_path: Path) -> None:
    volumes = [volume(index) for index in range(2)]

    outputs = answers(segmenter(tmp_path), volumes, task="segment", roi_shape=[4, 4, 4])

    labels = [np.frombuffer(raw, np.uint8).reshape(12, 8, 16) for raw in outputs]
    references = [{"case": f"case_{n}", "label": label} for n, label in enumerate(labels)]
    assert DiceScorer().score(outputs, references).aggregate["dice"] == 1.0


def test_click_predictions_are_scored(tmp_path: Path) -> None:
    samples = [pairs(index) for index in range(12)]

    outputs = answers(recommender(tmp_path), samples, task="tensor", output="probability")

    labels = [(probabilities(each) > 0.5).astype(np.float32) for each in samples]
    assert AucScorer().score(outputs, labels).aggregate["auc"] == 100.0

"""The tiny YOLO: trained, far from chance, and found out when it is damaged."""

from __future__ import annotations

import numpy as np
import pytest

from tests.suites.tiny_twin import DETECTION, Twin, twin_marks

pytestmark = twin_marks(*DETECTION)
SUITE = "yolo"


def of_another_image(answers: list[bytes]) -> list[bytes]:
    """Return real boxes, but of the image before: right in number, sizes, labels and scores."""
    moved = []
    for index in range(len(answers)):
        rows = np.frombuffer(answers[index - 1], "<f4").reshape(-1, 7).copy()
        rows[:, 0] = index
        moved.append(rows.tobytes())
    return moved


def test_chance_is_far_below(twin: Twin, answers: list[bytes]) -> None:
    another = twin.score(of_another_image(answers)).aggregate["map"]

    assert another == pytest.approx(twin.training["map_of_another_image"], abs=0.5)
    assert another < 5 < 60 < twin.gate("map")


def test_its_data_set_has_cocos_gaps_and_shapes_of_many_sizes(
    twin: Twin, answers: list[bytes]
) -> None:
    boxes = [box for each in twin.references for box in each["annotations"]]
    labels = {int(row[6]) for raw in answers for row in np.frombuffer(raw, "<f4").reshape(-1, 7)}

    assert len(boxes) == twin.training["validation_boxes"]
    assert {box["category_id"] for box in boxes} == {1, 2, 4, 7, 8, 11} == labels
    assert len({(each["height"], each["width"]) for each in twin.references}) > 200

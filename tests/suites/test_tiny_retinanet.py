"""The tiny RetinaNet: trained, far from chance, and found out when it is damaged."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.suites.tiny_twin import DETECTION, Twin, twin_marks

pytestmark = twin_marks(*DETECTION)
SUITE = "retinanet"

COLUMNS = 7


def table(answer: bytes) -> NDArray[np.float32]:
    return np.frombuffer(answer, "<f4").reshape(-1, COLUMNS)


def of_the_image_before(answers: list[bytes]) -> Iterator[bytes]:
    """Yield real boxes, but of another image: right in number, sizes, labels and scores."""
    for index in range(len(answers)):
        rows = table(answers[index - 1]).copy()
        rows[:, 0] = index
        yield rows.tobytes()


def at_random(images: int) -> Iterator[bytes]:
    """Yield a hundred boxes an image, all of them random."""
    rng = np.random.default_rng(0)
    for index in range(images):
        low, high = np.sort(rng.random((2, 100, 2)), axis=0)
        rest = [rng.random((100, 1)), rng.integers(6, size=(100, 1))]
        yield np.hstack([np.full((100, 1), index), low, high, *rest]).astype("<f4").tobytes()


def test_chance_is_far_below(twin: Twin, answers: list[bytes]) -> None:
    map_score = twin.score(answers).aggregate["map"]
    another = twin.score(list(of_the_image_before(answers))).aggregate["map"]
    random = twin.score(list(at_random(len(answers)))).aggregate["map"]

    assert max(another, random) < 5 < 60 < map_score
    assert another == pytest.approx(twin.training["map_of_another_image"], abs=0.5)


def test_its_data_set_equals_its_trainers(twin: Twin) -> None:
    """In sizes of their own, with every class, and with boxes that touch others."""
    boxes = [box for each in twin.references for box in each["annotations"]]

    assert len(boxes) == twin.training["validation_boxes"]
    assert {box["category_id"] for box in boxes} == set(range(6))
    assert len({(each["height"], each["width"]) for each in twin.references}) > 200


def test_its_graph_gives_the_boxes_of_one_image_as_mlperfs_does(
    twin: Twin, answers: list[bytes]
) -> None:
    """Suppression is in the graph: boxes of a class never overlap by more than half; best first."""
    import onnxruntime

    session = onnxruntime.InferenceSession(twin.model, providers=["CPUExecutionProvider"])
    assert [each.name for each in session.get_inputs()] == ["images"]
    assert [each.name for each in session.get_outputs()] == ["boxes", "labels", "scores"]
    some = 0
    for answer in answers:
        rows = table(answer)
        assert (np.diff(rows[:, 5]) <= 0).all()
        assert 0 <= rows[:, 1:5].min() <= rows[:, 1:5].max() <= 1
        for kind in range(6):
            boxes_of_kind = rows[rows[:, 6] == kind, 1:5].astype(float)
            low = np.maximum(boxes_of_kind[:, None, :2], boxes_of_kind[None, :, :2])
            high = np.minimum(boxes_of_kind[:, None, 2:], boxes_of_kind[None, :, 2:])
            common = (high - low).clip(0).prod(2)
            areas = (boxes_of_kind[:, 2:] - boxes_of_kind[:, :2]).prod(1)
            shares = common / (areas[:, None] + areas[None] - common)
            assert (shares[~np.eye(len(boxes_of_kind), dtype=bool)] <= 0.5001).all()
            some += int((common > 0).sum()) - len(boxes_of_kind)
    assert some > 0

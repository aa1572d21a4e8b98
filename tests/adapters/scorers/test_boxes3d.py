from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.adapters.scorers.boxes3d import PointPaintingScorer, overlaps_of, thresholds_of
from pytest_mlperf.core.errors import RunError
from pytest_mlperf.testing import check_scorer
from tests.adapters.scorers.refusals import differences

CAR = (0.0, 0.0, 20.0, 2.0, 1.5, 4.0, 0.3)
"""x, y, z, width, height, length, rotation."""

PEDESTRIAN, CYCLIST, CAR_LABEL = range(3)


def truth(
    *boxes: Sequence[float], names: Sequence[str] = ("Car",), difficulty: int = 0
) -> dict[str, Any]:
    return {
        "image_id": 7,
        "names": list(names) * (len(boxes) if len(names) == 1 else 1),
        "difficulty": [difficulty] * len(boxes),
        "boxes": [list(box) for box in boxes],
    }


def row(
    box: Sequence[float] = CAR,
    *,
    label: float = CAR_LABEL,
    score: float = 0.9,
    image: float = 7,
    tall: float = 30,
) -> list[float]:
    return [*box[3:6], *box[:3], box[6], 0, 0, 10, tall, label, score, image]


NOTHING = [-1.0] * 13 + [7.0]


def log(*rows: Sequence[float]) -> bytes:
    return np.array(rows, "<f4").tobytes()


def moved(metres: float, box: Sequence[float] = CAR) -> tuple[float, ...]:
    return (box[0] + metres, *box[1:])


def score(rows: Sequence[Sequence[float]], reference: dict[str, Any]) -> float:
    return PointPaintingScorer().score([log(*rows)], [reference]).aggregate["map"]


def test_precision_is_read_at_every_fourth_threshold_and_divided_by_eleven() -> None:
    one_car = truth(CAR)
    van = truth(CAR, moved(9), names=("Car", "Van"))
    rows = {
        "one threshold of eleven": ([row()], one_car, 1 / 11),
        "nothing detected": ([NOTHING], one_car, 0),
        "another class": ([row(label=CYCLIST)], one_car, 0),
        "a label's fraction is cut off": ([row(label=2.9)], one_car, 1 / 11),
        "beside it": ([row(moved(3))], one_car, 0),
        "a wrong one": ([row(), row(moved(9), score=0.95)], one_car, 0.5 / 11),
        "wrong, but below": ([row(), row(moved(9), score=0.8)], one_car, 1 / 11),
        "twice, the better counts": ([row(), row(score=0.95)], one_car, 1 / 11),
        "upside down: neutral": ([row(), row(moved(9), tall=-2)], one_car, 1 / 11),
        "a van is no wrong car": ([row(), row(moved(9), score=0.95)], van, 1 / 11),
        "no score of -1 is ever right": ([row(score=-1)], one_car, 0),
    }
    scores = {name: score(boxes, reference) for name, (boxes, reference, _) in rows.items()}

    expected = {name: 100 * figure / 3 for name, (*_, figure) in rows.items()}
    assert scores == pytest.approx(expected, abs=1e-9)


def seeded_log(seed: int) -> tuple[list[bytes], list[dict[str, Any]]]:
    """Return frames whose boxes were detected well, badly, twice, not at all, or elsewhere."""
    draw = np.random.default_rng(seed)
    names, labels = ("Pedestrian", "Cyclist", "Car", "Van", "Person_sitting"), (0, 1, 2, 2, 0)
    outputs, references = [], []
    for image in range(12):
        kinds = draw.integers(0, 5, 8)
        boxes = draw.normal(0, 1, (8, 7)) * (9, 0.2, 9, 0.3, 0.2, 0.3, 2)
        boxes += (0, 0, 30, 2, 1.6, 4, 0)
        rows = [[*NOTHING[:13], image]]
        for kind, box in zip(kinds, boxes, strict=True):
            for _ in range(draw.integers(0, 3)):
                near = box + draw.normal(0, 0.1, 7)
                rate, tall = round(draw.random(), 1), (30, -5)[int(draw.random() < 0.1)]
                rows.append(row(near, label=labels[kind], score=rate, image=image, tall=tall))
        outputs.append(log(*rows))
        references.append(
            {
                "image_id": image,
                "names": [names[kind] for kind in kinds],
                "difficulty": draw.choice([0, 0, 0, 1, -1], 8).tolist(),
                "boxes": boxes.tolist(),
            }
        )
    return outputs, references


GOLDEN = {
    0: 15.59079809079809,
    1: 17.225829725829726,
    2: 15.002295684113866,
    3: 16.138980844863195,
    4: 9.682539682539682,
}
"""What MLPerf's script gives for these logs, as `Total`."""


def test_the_score_is_that_of_mlperfs_script() -> None:
    for seed, total in GOLDEN.items():
        outputs, references = seeded_log(seed)
        scores = PointPaintingScorer().score(outputs, references)
        assert scores.aggregate["map"] == pytest.approx(total, abs=1e-9)
        per_sample = [value for value in scores.per_sample["map"] if value is not None]
        assert sum(per_sample) / len(outputs) == pytest.approx(total)


@pytest.mark.process
def test_the_scorer_keeps_its_contract() -> None:
    outputs, references = seeded_log(0)
    scores = check_scorer(PointPaintingScorer, outputs, references)
    assert scores.whole == {"map"}


sizes = st.floats(0.5, 5)
places = st.floats(-3, 3)
boxes_in_space = st.tuples(places, places, places, sizes, sizes, sizes, st.floats(-4, 4))


def overlap(box: Sequence[float], other: Sequence[float]) -> float:
    return float(overlaps_of(np.array([box], np.float32), np.array([other], np.float32))[0, 0])


@given(boxes_in_space, boxes_in_space, st.floats(-3, 3))
def test_overlap_is_of_the_two_boxes_alone(
    box: tuple[float, ...], other: tuple[float, ...], turn: float
) -> None:
    share = overlap(box, other)
    assert overlap(box, box) == pytest.approx(1, abs=1e-5)
    assert 0 <= share <= 1 + 1e-5
    assert overlap(other, box) == pytest.approx(share, abs=1e-5)
    half_turned = (*other[:6], other[6] + np.pi)
    assert overlap(box, half_turned) == pytest.approx(share, abs=1e-4)
    swapped = (*other[:3], other[5], other[4], other[3], other[6] + np.pi / 2)
    assert overlap(box, swapped) == pytest.approx(share, abs=1e-4)
    cosine, sine = np.cos(turn), np.sin(turn)
    together = [
        (x * cosine + z * sine, y, z * cosine - x * sine, *rest, angle + turn)
        for x, y, z, *rest, angle in (box, other)
    ]
    assert overlap(*together) == pytest.approx(share, abs=1e-4)


@given(boxes_in_space, boxes_in_space)
def test_unturned_boxes_have_in_common_what_their_sides_have(
    box: tuple[float, ...], other: tuple[float, ...]
) -> None:
    def common(axis: int, size: int, low: float, high: float) -> float:
        ends = [(box[axis] + low * box[size], box[axis] + high * box[size]) for box in (box, other)]
        return max(0.0, min(end for _, end in ends) - max(start for start, _ in ends))

    inside = common(0, 3, -0.5, 0.5) * common(1, 4, -1, 0) * common(2, 5, -0.5, 0.5)
    both = np.prod(box[3:6]) + np.prod(other[3:6])
    share = overlap((*box[:6], 0), (*other[:6], 0))
    assert share == pytest.approx(inside / (both - inside), abs=1e-4)


def test_thresholds_are_at_most_41_in_order() -> None:
    scores = np.linspace(0, 1, 1000).tolist()
    thresholds = thresholds_of(scores, 1000)
    assert len(thresholds) == 41
    assert thresholds == sorted(thresholds, reverse=True)
    assert thresholds_of([], 5) == []


def test_wrong_input_is_named() -> None:
    rows: list[tuple[bytes, dict[str, Any], str]] = [
        (b"", truth(CAR), "sample 0 has an output of 0 bytes"),
        (bytes(55), truth(CAR), "of 55 bytes, not one or more rows of 56"),
        (log(row(image=8)), truth(CAR), "is image 7, but row 0 of its output says 8"),
        (log(row(label=3)), truth(CAR), "a detection of label 3"),
        (log(row(score=np.nan)), truth(CAR), "NaN or inf in row 0"),
        (log(row()), {"image_id": 7}, "KeyError: 'names'"),
        (log(row()), truth(CAR, names=["Van"]), "they have no boxes"),
        (log(row()), truth(CAR, difficulty=1), "they have no boxes"),
        (log(row()), truth((*CAR[:6], np.inf)), "a box with NaN or inf"),
    ]

    score = PointPaintingScorer().score
    assert differences(lambda output, table: score([output], [table]), RunError, rows) == []

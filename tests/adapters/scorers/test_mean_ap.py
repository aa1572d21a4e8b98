from __future__ import annotations

import contextlib
import copy
import io
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pytest_mlperf.adapters.scorers.detection import MeanApScorer, interpolated
from pytest_mlperf.adapters.scorers.leverage import influences
from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.extension import Scores
from pytest_mlperf.core.rulings.gate import below_by_influence
from tests.adapters.scorers.inputs import Once
from tests.adapters.scorers.refusals import differences

Reference = dict[str, Any]
Row = Sequence[float]

Place = Sequence[float]
"""Left, top, width and height, in pixels."""

HEIGHT, WIDTH = 100, 200


def packed(*rows: Row) -> bytes:
    return np.array(rows, "<f4").tobytes()


def box(corners: Place, *, label: int = 0, crowd: int = 0) -> dict[str, Any]:
    """Return an annotation."""
    area = corners[2] * corners[3]
    return {"category_id": label, "bbox": list(corners), "area": area, "iscrowd": crowd}


def image(*boxes: Any, index: int = 0, identity: int | None = None) -> Reference:
    """Return an image of 100 x 200 pixels; its id runs against its index."""
    return {
        "index": index,
        "image_id": 1000 - index if identity is None else identity,
        "height": HEIGHT,
        "width": WIDTH,
        "annotations": list(boxes),
    }


def row(corners: Place, score: float = 0.5, *, label: float = 0, index: float = 0) -> Row:
    """Return a detection."""
    left, top, width, height = corners
    bottom, right = (top + height) / HEIGHT, (left + width) / WIDTH
    return [index, top / HEIGHT, left / WIDTH, bottom, right, score, label]


def mean_ap(outputs: Sequence[bytes], references: Sequence[Reference]) -> float:
    return MeanApScorer().score(outputs, references).aggregate["map"]


A, B = (10, 10, 40, 40), (100, 50, 50, 50)

BY_HAND: dict[str, tuple[list[Any], list[Row], float]] = {
    "found": ([box(A)], [row(A)], 100.0),
    "missed": ([box(A)], [], 0.0),
    "elsewhere": ([box(A)], [row(B)], 0.0),
    "of another class": ([box(A)], [row(A, label=1)], 0.0),
    # Precision 1 up to recall 1/2: 51 of 101 recalls.
    "one of two": ([box(A), box(B)], [row(A)], 100 * 51 / 101),
    "a wrong one above": ([box(A)], [row(B, score=0.9), row(A, score=0.8)], 50.0),
    "a wrong one below": ([box(A)], [row(B, score=0.7), row(A, score=0.8)], 100.0),
    "twice": (
        [box(A), box(B)],
        [row(A, 0.9), row(A, 0.8), row(B, 0.7)],
        100 * (51 + 50 * 2 / 3) / 101,
    ),
    # Overlap 40 x 32 of 40 x 40, 0.8: right at the seven thresholds up to 0.8.
    "a share of it": ([box(A)], [row((10, 10.1, 40, 31.9))], 60.0),
    # MLPerf's YOLO answers with COCO's 80 ids, which have gaps up to 90.
    "ids with gaps": (
        [box(A, label=11), box(B, label=13), box(A, label=90)],
        [row(A, label=11), row(B, label=13), row(A, label=90), row(A, label=12)],
        100.0,
    ),
    # Half of the class means: 100 and 0.
    "one class of two": ([box(A), box(B, label=3)], [row(A)], 50.0),
    "a class without boxes": ([box(A)], [row(A), row(B, 0.9, label=7)], 100.0),
    "a group counts neither way": ([box(A), box(B, crowd=1)], [row(B, 0.9), row(A)], 100.0),
    "two in a group": (
        [box(A), box(B, crowd=1)],
        [row(B, 0.9), row((110, 60, 9, 9), 0.8), row(A)],
        100.0,
    ),
    "a label out of range": (
        [box(A)],
        [row(A), row(A, 0.9, label=-1), row(A, 0.9, label=1e6)],
        100.0,
    ),
    "the fraction of a label": ([box(A, label=2)], [row(A, label=2.9)], 100.0),
    "scores of any scale": ([box(A)], [row(B, score=-7), row(A, score=12)], 100.0),
    "beyond the image": ([box(A)], [row((-50, -20, 400, 300), 0.9), row(A)], 50.0),
}


CASES = BY_HAND.items()


def test_map_is_that_of_coco() -> None:
    scores = {name: mean_ap([packed(*rows)], [image(*boxes)]) for name, (boxes, rows, _) in CASES}

    assert scores == pytest.approx({name: figure for name, (_, _, figure) in CASES}, abs=1e-9)


def test_only_the_best_hundred_of_a_class_count_in_an_image() -> None:
    wrong = [row(B, score=0.9 - 0.001 * place) for place in range(99)]

    assert mean_ap([packed(*wrong, row(A, score=0.1))], [image(box(A))]) == pytest.approx(1.0)
    wrong.append(row(B, score=0.2))
    assert mean_ap([packed(*wrong, row(A, score=0.1))], [image(box(A))]) == 0.0


def test_equal_scores_rank_by_the_id_of_the_image_not_by_the_order_of_samples() -> None:
    right_output, wrong = packed(row(A)), packed(row(B))

    def ranked(first: int, second: int) -> float:
        references = [image(box(A), identity=first), image(box(A), identity=second)]
        return mean_ap([right_output, wrong], references)

    assert ranked(1, 2) == pytest.approx(100 * 51 / 101)
    assert ranked(2, 1) == pytest.approx(50 * 51 / 101)


def plainly(outputs: Sequence[bytes], references: Sequence[Reference]) -> Any:
    """Return COCOeval, run as MLPerf's script runs it: with all its sizes and limits."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    detections = []
    for output, reference in zip(outputs, references, strict=True):
        height, width = np.float32(reference["height"]), np.float32(reference["width"])
        rows = np.frombuffer(output, "<f4").reshape(-1, 7)
        for _, top, left, bottom, right, score, label in rows:
            corner = (left * width, top * height)
            size = (right * width - left * width, bottom * height - top * height)
            bbox = [float(number) for number in (*corner, *size)]
            detection = {"category_id": int(label), "bbox": bbox, "score": float(score)}
            detections.append({"image_id": reference["image_id"], **detection})
    annotations = [
        {"image_id": one["image_id"], **each} for one in references for each in one["annotations"]
    ]
    labels = {each["category_id"] for each in annotations} | set(range(9))
    truths: Any = COCO()
    truths.dataset = {
        "images": [{"id": one["image_id"]} for one in references],
        "annotations": [{"id": n, **each} for n, each in enumerate(annotations, start=1)],
        "categories": [{"id": label} for label in sorted(labels)],
    }
    with contextlib.redirect_stdout(io.StringIO()):
        truths.createIndex()
        evaluation = COCOeval(truths, truths.loadRes(copy.deepcopy(detections)), iouType="bbox")
        evaluation.params.imgIds = [one["image_id"] for one in references]
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation


Sample = tuple[list[Any], list[Row]]

places = st.tuples(
    st.sampled_from([0, 10, 20, 60]),
    st.sampled_from([0, 5, 30]),
    st.sampled_from([0, 20, 22, 40]),
    st.sampled_from([10, 12, 40]),
)
labels = st.integers(0, 2)
truths = st.builds(
    lambda corners, label, crowd: box(corners, label=label, crowd=crowd),
    places,
    labels,
    st.sampled_from([0, 0, 0, 1]),
)
detected_rows = st.builds(
    lambda corners, score, label: row(corners, score=score, label=label),
    places,
    st.sampled_from([0.1, 0.25, 0.25, 0.5, 0.9]),
    labels,
)
samples = st.lists(
    st.tuples(st.lists(truths, max_size=4), st.lists(detected_rows, max_size=6)),
    min_size=1,
    max_size=6,
).filter(
    lambda made: (
        any(not each["iscrowd"] for boxes, _ in made for each in boxes)
        and any(rows for _, rows in made)
    )
)


def split(made: Sequence[Sample]) -> tuple[list[bytes], list[Reference]]:
    outputs = [
        packed(*([number, *each[1:]] for each in rows)) for number, (_, rows) in enumerate(made)
    ]
    return outputs, [image(*boxes, index=number) for number, (boxes, _) in enumerate(made)]


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(samples)
def test_map_equals_a_full_run_of_coco_eval_and_is_the_mean_of_the_samples(
    made: Sequence[Sample],
) -> None:
    """Ties in overlap and in score, groups, empty boxes, images without either."""
    outputs, references = split(made)

    scores = MeanApScorer().score(outputs, references)

    expected = 100 * plainly(outputs, references).stats[0]
    assert scores.aggregate["map"] == pytest.approx(expected, rel=1e-12, abs=1e-12)
    mean = math.fsum(scores.per_sample["map"]) / len(made)  # type: ignore[arg-type]
    assert mean == pytest.approx(scores.aggregate["map"], abs=1e-9)
    assert scores.whole == {"map"}
    assert scores.lower == frozenset()


right_and_images = st.lists(
    st.tuples(st.booleans(), st.integers(0, 4)), min_size=1, max_size=25
).filter(lambda made: any(right for right, _ in made))


def weighted(ranked: Sequence[tuple[bool, int]], boxes: Any, weights: Any) -> float:
    """Return average precision without interpolation, of images with weights."""
    hits = ranks = total = 0.0
    for right, images_of_rank in ranked:
        ranks += weights[images_of_rank]
        if right:
            hits += weights[images_of_rank]
            total += weights[images_of_rank] * hits / ranks
    return total / float(np.dot(weights, boxes))


@settings(deadline=None)
@given(right_and_images, st.lists(st.integers(1, 3), min_size=5, max_size=5))
def test_an_influence_is_the_derivative_by_the_weight_of_an_image(
    ranked: list[tuple[bool, int]], more: list[int]
) -> None:
    boxes = [sum(right for right, own in ranked if own == i) + more[i] for i in range(5)]

    derivatives = influences(
        np.array([right for right, _ in ranked]),
        np.array([own for _, own in ranked]),
        np.array(boxes),
    )

    step = 1e-5
    for image in range(5):
        up, down = np.ones(5), np.ones(5)
        up[image] += step
        down[image] -= step
        change = weighted(ranked, boxes, up) - weighted(ranked, boxes, down)
        assert derivatives[image] == pytest.approx(change / (2 * step), abs=1e-7)
    assert derivatives.sum() == pytest.approx(0, abs=1e-12)


def test_without_detections_no_image_has_influence() -> None:
    nothing = np.zeros(0, np.bool_)

    derivatives = influences(nothing, np.zeros(0, np.int64), np.array([2, 0, 1]))

    assert derivatives.tolist() == [0, 0, 0]
    assert interpolated(nothing, 3) == 0


def simulated(samples: int, seed: int) -> tuple[list[bytes], list[bytes], list[Reference]]:
    """Return what two detectors found in images of varying difficulty, and the references."""
    rng = np.random.default_rng(seed)
    references, sides = [], ([], [])  # type: ignore[var-annotated]
    for index in range(samples):
        easy = rng.beta(4, 2)
        boxes = [
            box([*(rng.random(2) * 50), *(rng.random(2) * 45 + 5)], label=label)
            for label in rng.integers(0, 4, rng.poisson(4)).tolist()
        ]
        references.append(image(*boxes, index=index))
        for side, noise in zip(sides, (2.0, 2.4), strict=True):
            rows = [
                row(
                    (np.array(each["bbox"]) + rng.normal(0, noise, 4)).clip(1).tolist(),
                    score=rng.beta(5, 2) * easy,
                    label=each["category_id"],
                    index=index,
                )
                for each in boxes
                if rng.random() < 0.4 + 0.6 * easy
            ]
            rows += [
                row(
                    (rng.random(4) * 50).tolist(),
                    rng.beta(2, 5),
                    label=int(rng.integers(4)),
                    index=index,
                )
                for _ in range(rng.poisson(2))
            ]
            side.append(packed(*rows))
    return *sides, references


def drawn_anew(
    evaluation: Any, samples: int, draws: Sequence[NDArray[np.int64]]
) -> Iterator[float]:
    """Yield mAP of images drawn with repeats: COCOeval accumulates their matches again."""
    labels, areas = len(evaluation.params.catIds), len(evaluation.params.areaRng)
    matches = np.array(evaluation.evalImgs, object).reshape(labels, areas, samples)[:, :1]
    params = evaluation.params
    params.areaRng, params.areaRngLbl, params.maxDets = params.areaRng[:1], ["all"], [100]
    evaluation._paramsEval = copy.deepcopy(params)
    for draw in draws:
        evaluation.evalImgs = matches[:, :, draw].ravel().tolist()
        with contextlib.redirect_stdout(io.StringIO()):
            evaluation.accumulate()
        precision = evaluation.eval["precision"]
        yield 100 * float(precision[precision > -1].mean())


@pytest.mark.slow
def test_the_error_of_a_paired_difference_is_that_of_resampled_images() -> None:
    """200 draws, whose own standard error is known to 5 %."""
    first, second, references = simulated(60, 1)
    scored = [MeanApScorer().score(side, references) for side in (first, second)]

    difference = np.subtract(*(np.array(one.per_sample["map"]) for one in scored))
    rng = np.random.default_rng(1)
    # COCOeval sorts images by id, which runs against the samples.
    draws = [rng.integers(0, 60, 60) for _ in range(200)]
    anew = [
        np.array([*drawn_anew(plainly(side, references), 60, draws)]) for side in (first, second)
    ]

    error = difference.std(ddof=1) / math.sqrt(60)
    assert error == pytest.approx((anew[0] - anew[1]).std(ddof=1), rel=0.25)


def test_parts_of_a_data_set_never_prove_that_the_whole_is_below_its_own_score() -> None:
    """The figure of fewer images is larger rather than smaller: few boxes of a class are found."""
    outputs, _, references = simulated(400, 3)
    whole = score(outputs, references).aggregate["map"]
    draw = np.random.default_rng(20261122)
    parts = []
    for _ in range(20):
        chosen = draw.choice(400, 40, replace=False).tolist()
        scores = score([outputs[n] for n in chosen], [references[n] for n in chosen])
        parts.append(scores.aggregate["map"])
        values = [value for value in scores.per_sample["map"] if value is not None]
        assert below_by_influence(values, whole, 100.0) > 0.01
        assert below_by_influence([value - parts[-1] for value in values], 90.0, 100.0) < 0.01

    assert np.mean(parts) > whole


def score(outputs: Sequence[bytes], references: Sequence[Any]) -> Scores:
    return MeanApScorer(model="models/retinanet.onnx").score(outputs, references)


def test_outputs_and_references_that_are_not_as_expected_name_their_sample() -> None:
    part = {"category_id": 0, "iscrowd": 0}
    unexpected = "has an invalid reference"
    outputs = [
        (bytes(27), "has an output of 27 bytes, which is not a multiple of"),
        (np.zeros(7, "<f2").tobytes(), "has an output of 14 bytes, which is not a"),
        (
            packed(row(A), row(A, score=math.nan)),
            r"has a number in its output that is NaN, inf or above 1e\+09: row 1 is \[0.0, ",
        ),
        (
            packed(row(A, label=1), row((math.inf, 0, 1, 1))),
            ".*NaN, inf or above .*: row 1 is",
        ),
        (packed(row(A, label=2e9)), ".*NaN, inf or above .*: row 0 is"),
        (
            packed(row(A, index=1), row(A, index=4)),
            "is image 1, but row 1 of its output is for image 4; the engine must answer each",
        ),
    ]
    references = [
        (5, rf"{unexpected} \(TypeError: "),
        ({"image_id": 3, "annotations": []}, rf"{unexpected} \(KeyError: 'height'\)"),
        (image({"bbox": [1, 2, 3, 4], **part}), rf"{unexpected} \(KeyError: 'area'\)"),
        (image({"bbox": [1, 2, 3], **part, "area": 1}), rf"{unexpected} \(ValueError: "),
        (
            image(box((math.nan, 1, 2, 3)), index=1),
            "has an annotated box with NaN or inf",
        ),
        (image(identity=1000), "has the same image_id, 1000, as sample 0"),
    ]
    pair = [image(box(A)), image(box(A), index=1)]
    rows = [
        *(([b"", output], pair, f"^scorer map: sample 1 {text}") for output, text in outputs),
        *(
            ([b"", b""], [image(box(A)), reference], f"^scorer map: sample 1 {text}")
            for reference, text in references
        ),
        *(
            ([packed(row(A)), b""], [image(*boxes), image(index=1)], "none of the 2 samples has a")
            for boxes in ([], [box(A, crowd=1)])
        ),
    ]

    assert differences(score, RunError, rows) == []


def test_references_may_have_no_index_and_outputs_no_detections(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """MLPerf's script fails if there are no detections at all, and prints nothing."""
    reference = image(box(A))
    del reference["index"]

    assert mean_ap([packed(row(A, index=77))], [reference]) == pytest.approx(100)
    scores = score([b"", b""], [image(box(A)), image(index=1)])
    assert scores.aggregate == {"map": 0.0}
    assert scores.per_sample == {"map": [0.0, 0.0]}
    assert capsys.readouterr() == ("", "")


def test_outputs_and_references_are_read_once_each() -> None:
    first, _, references = simulated(10, seed=4)
    outputs, tables = Once(first), Once(references)

    assert score(outputs, tables) == score(first, references)
    assert outputs.reads == tables.reads == list(range(10))

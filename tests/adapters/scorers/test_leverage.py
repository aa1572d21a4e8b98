"""What few and unequal samples weigh in mAP and AUC."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.adapters.scorers.auc import AucScorer
from pytest_mlperf.adapters.scorers.detection import MeanApScorer
from pytest_mlperf.adapters.scorers.leverage import Shares
from pytest_mlperf.judge.inputs import Leverage


def leverage(*parts: list[int]) -> Leverage:
    shares = Shares(len(parts[0]))
    for part in parts:
        shares.add(np.array(part))
    return shares.leverage(100.0)


def test_equal_samples_show_all_but_one_of_them() -> None:
    for count in (2, 3, 10, 1000):
        sample_leverage = leverage([3] * count)

        assert sample_leverage.seen == pytest.approx(1 - 1 / count)
        assert sample_leverage.df == pytest.approx(max(1, count - 1))
        assert sample_leverage.hidden == 0


def test_a_class_of_one_sample_shows_nothing_and_its_change_stays_hidden() -> None:
    assert leverage([0, 4, 0]) == Leverage(seen=0, df=1, hidden=100)
    sample_leverage = leverage([1, 1, 1, 1], [0, 2, 0, 0])
    assert sample_leverage.seen == pytest.approx((1 / 4 * 3 / 4) / (1 / 4 + 1))
    assert sample_leverage.hidden == 50


@given(st.lists(st.integers(0, 50), min_size=2, max_size=12).filter(any))
def test_the_share_that_is_seen_is_that_of_independent_samples(sizes: list[int]) -> None:
    h = np.array(sizes) / sum(sizes)
    residual = np.eye(len(h)) - np.outer(np.ones(len(h)), h)
    seen_part = float(np.sum(np.diag(h) @ residual @ residual.T @ np.diag(h) * np.eye(len(h))))

    assert leverage(sizes).seen == pytest.approx(seen_part / float((h**2).sum()), abs=1e-9)


def test_few_huge_samples_count_as_few() -> None:
    sizes = [500] * 10 + [5] * 490

    assert 8 < leverage(sizes).df < 11
    assert 0.85 < leverage(sizes).seen < 0.95


def image(index: int, labels: list[int]) -> dict[str, Any]:
    """Return an image with a box of each label."""
    boxes = [
        {"category_id": label, "bbox": [10, 10, 20, 20], "area": 400, "iscrowd": 0}
        for label in labels
    ]
    size = {"height": 100, "width": 100}
    return {"index": index, "image_id": index, **size, "annotations": boxes}


def test_map_tells_how_many_images_its_classes_have() -> None:
    images = [image(0, [1, 2]), image(1, [1]), image(2, [1]), image(3, [1])]

    map_leverage = MeanApScorer().score([b""] * 4, images).leverage["map"]

    assert map_leverage == leverage([1, 1, 1, 1], [1, 0, 0, 0])


def test_auc_tells_how_many_pairs_its_samples_have() -> None:
    labels = [np.array([1, 0, 0]), np.array([1, 1, 0]), np.array([0])]
    outputs = [np.linspace(0, 1, len(own)).astype("<f4").tobytes() for own in labels]

    auc_leverage = AucScorer().score(outputs, labels).leverage["auc"]

    assert auc_leverage == leverage([1, 2, 0], [2, 1, 1])
    assert auc_leverage.hidden == 0


def test_figures_out_of_range_are_refused() -> None:
    for seen, df in ((1.1, 1), (0.5, 0), (math.nan, 1)):
        with pytest.raises(ValueError, match="seen must be from 0 to 1"):
            Leverage(seen=seen, df=df)

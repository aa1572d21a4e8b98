"""Test Dice of kidney and tumor, by case and over all cases, and refused inputs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pytest_mlperf.adapters.scorers import dice as module
from pytest_mlperf.adapters.scorers.dice import CLASS_DTYPES, DiceScorer
from pytest_mlperf.core.errors import RunError, SuiteError
from tests.adapters.scorers.refusals import differences

Volume = NDArray[np.uint8]
Case = tuple[Volume, Volume]
"""Predicted classes and labels, shape (depth, height, width) each."""


@st.composite
def cases(draw: st.DrawFn) -> Case:
    shape = draw(st.tuples(*[st.integers(1, 4)] * 3))
    classes = st.lists(st.integers(0, 2), min_size=math.prod(shape), max_size=math.prod(shape))
    predicted, truth = (np.array(draw(classes), np.uint8).reshape(shape) for _ in range(2))
    return predicted, truth


def reference(label: Volume, name: str = "case_00000") -> dict[str, Any]:
    return {"case": name, "label": label}


def one_hot(predicted: Volume, truth: Volume) -> NDArray[np.float64]:
    """Return Dice of kidney and tumor in the way of MLPerf's script: as sums over masks."""
    masks = [np.eye(3)[volume.ravel()][:, 1:] for volume in (predicted, truth)]
    common = (masks[0] * masks[1]).sum(axis=0)
    both = masks[0].sum(axis=0) + masks[1].sum(axis=0)
    scores: NDArray[np.float64] = (2.0 * common + 1e-6) / (both + 1e-6)
    return scores


@given(st.lists(cases(), min_size=1, max_size=5))
@settings(max_examples=60)
def test_dice_has_the_digits_of_the_sums_over_masks(volumes: list[Case]) -> None:
    """A case's score is the mean of its organs, the data set's the mean over cases."""
    scores = DiceScorer().score(
        [found.tobytes() for found, _ in volumes], [reference(wanted) for _, wanted in volumes]
    )

    organs = np.array([one_hot(*volume) for volume in volumes])
    assert scores.per_sample == {"dice": [float(np.mean(both)) for both in organs]}
    mean, kidney, tumor = organs.mean(), organs[:, 0].mean(), organs[:, 1].mean()
    expected = f"mean = {mean:.5f}, kidney = {kidney:.4f}, tumor = {tumor:.4f}"
    form = "mean = {dice:.5f}, kidney = {dice_kidney:.4f}, tumor = {dice_tumor:.4f}"
    assert form.format(**scores.aggregate) == expected
    mean = math.fsum(value or 0 for value in scores.per_sample["dice"]) / len(volumes)
    assert scores.aggregate["dice"] == pytest.approx(mean, rel=1e-12)
    assert scores.whole == scores.lower == frozenset()
    predicted, _ = volumes[0]
    same = DiceScorer().score([predicted.tobytes()], [reference(predicted)])
    assert same.aggregate == {"dice": 1, "dice_kidney": 1, "dice_tumor": 1}


def test_dice_counted_by_hand() -> None:
    """Twice the common voxels, by the voxels of both; no voxel in either is a full score."""
    for predicted, truth, kidney, tumor in (
        ([1, 1, 2, 0], [1, 2, 2, 0], 2 / 3, 2 / 3),
        ([0, 0, 0, 0], [1, 1, 2, 2], 0, 0),
        ([2, 2, 1, 1], [1, 1, 2, 2], 0, 0),
        ([0, 0, 0, 0], [0, 0, 0, 0], 1, 1),
        ([1, 0, 0, 0], [1, 1, 1, 0], 1 / 2, 1),
        ([1, 1, 1, 2], [1, 1, 1, 0], 1, 0),
    ):
        label = np.array(truth, np.uint8).reshape(1, 2, 2)
        scores = DiceScorer().score([bytes(predicted)], [reference(label)])

        expected = {"dice": (kidney + tumor) / 2, "dice_kidney": kidney, "dice_tumor": tumor}
        assert scores.aggregate == pytest.approx(expected, abs=1e-6)


def test_pieces_and_types_of_whole_numbers_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    predicted, truth = rng.integers(0, 3, (2, 5, 7, 11), dtype=np.uint8)
    whole = DiceScorer().score([predicted.tobytes()], [reference(truth)])
    monkeypatch.setattr(module, "PIECE_VOXELS", 50)

    for dtype, numbers in CLASS_DTYPES.items():
        output = predicted.astype(numbers).tobytes()
        assert DiceScorer(dtype=dtype).score([output], [reference(truth)]) == whole


LABEL = np.zeros((2, 3, 4), np.uint8)


def test_wrong_sizes_classes_and_types_are_refused() -> None:
    rows: list[tuple[str, list[bytes], list[Any], str]] = []
    for dtype, size, needed in (("uint8", 0, 24), ("uint8", 23, 24), ("int64", 24, 192)):
        text = (
            rf"^scorer dice: the output of sample 1 \(case_00003\) has {size} bytes; its label of "
            rf"shape \(2, 3, 4\) needs {needed} \({needed // 24} per voxel of type {dtype}\)\. The "
            "engine must return one class per voxel, of the type in the scorer's dtype$"
        )
        pair = [reference(LABEL), reference(LABEL, "case_00003")]
        rows.append((dtype, [bytes(needed), bytes(size)], pair, text))
    for dtype, wrong in (("uint8", 3), ("uint8", 255), ("int8", -1)):
        volume = LABEL.astype(CLASS_DTYPES[dtype])
        volume[1, 2, 3] = wrong
        text = (
            rf"^scorer dice: the output of sample 0 \(case_00000\) holds the class {wrong}; valid "
            r"classes are 0 \(background\), 1 \(kidney\) and 2 \(tumor\)$"
        )
        rows.append((dtype, [volume.tobytes()], [reference(LABEL)], text))
    text = r"the label of sample 0 \(case_7\) holds the class 3;"
    rows.append(("uint8", [bytes(24)], [reference(LABEL + 3, "case_7")], text))

    def score(dtype: str, outputs: list[bytes], references: list[Any]) -> None:
        DiceScorer(dtype=dtype).score(outputs, references)

    assert differences(score, RunError, rows) == []
    with pytest.raises(
        SuiteError,
        match="scorer dice: dtype = 'float32' is not one of uint8, int8, int16, int32, int",
    ):
        DiceScorer(dtype="float32")


def test_one_volume_is_in_memory_at_a_time() -> None:
    """Outputs and references may lie on disk, and are let go one by one."""
    alive: list[str] = []

    class Lazy(list[Any]):
        def __getitem__(self, index: Any) -> Any:
            alive.append(f"{type(super().__getitem__(index)).__name__} {index}")
            return super().__getitem__(index)

    DiceScorer().score(Lazy([bytes(24)] * 3), Lazy([reference(LABEL)] * 3))

    assert alive == [f"{kind} {index}" for index in range(3) for kind in ("bytes", "dict")]

"""Score segmented volumes by the Dice score, as MLPerf's accuracy_kits.py does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from pytest_mlperf import Scores
from pytest_mlperf.adapters import scorers
from pytest_mlperf.adapters.lazy import NDArray, np

CLASS_DTYPES = {"uint8": "|u1", "int8": "|i1", "int16": "<i2", "int32": "<i4", "int64": "<i8"}
CLASSES = 3
"""Background, kidney, tumor."""

SMOOTH = 1e-6
"""Added to numerator and denominator, so that a class missing in both volumes scores 1."""

PIECE_VOXELS = 2**18
"""Voxels compared at a time; the intermediate arrays fit the processor's cache."""


@dataclass(frozen=True, kw_only=True)
class DiceOptions:
    """Options of scorer dice.

    Attributes:
        dtype: Type of each voxel's class, little-endian: "uint8", "int8", "int16", "int32" or
            "int64".
    """

    dtype: str = "uint8"

    def __post_init__(self) -> None:
        scorers.require_choice("dice", "dtype", self.dtype, CLASS_DTYPES)


class DiceScorer(scorers.ScorerBase[DiceOptions]):
    """Compare the predicted class of each voxel with its label.

    For kidney and tumor each, the Dice score is (2 x common + 1e-6) / (predicted + labelled +
    1e-6), in voxels. A case's score is the mean of both; the data set's is the mean over its cases.
    Source: vision/medical_imaging/3d-unet-kits19/accuracy_kits.py of
    https://github.com/mlcommons/inference, whose `--output_dtype` is `dtype` here.
    """

    metrics = ("dice", "dice_kidney", "dice_tumor")

    def score(self, outputs: Sequence[bytes], references: Sequence[Mapping[str, Any]]) -> Scores:
        """Score predicted volumes against labels; only one pair is in memory at a time.

        Outputs are volumes of type `dtype` in C order: 0 background, 1 kidney, 2 tumor. References
        have "case", a name, and "label", the right classes, shape (depth, height, width), uint8.
        Returns "dice", 0 to 1, per case and as a mean, and the means "dice_kidney" and
        "dice_tumor", which have no accuracy target.
        """
        scorers.require_outputs("dice", outputs, references)
        organs = [
            self._score_case(sample, outputs[sample], references[sample])
            for sample in range(len(outputs))
        ]
        cases = [(kidney + tumor) / 2 for kidney, tumor in organs]
        kidneys, tumors = zip(*organs, strict=True)
        return Scores(
            per_sample={"dice": cases},
            aggregate={
                "dice": fmean(cases),
                "dice_kidney": fmean(kidneys),
                "dice_tumor": fmean(tumors),
            },
        )

    def _score_case(
        self, sample: int, output: bytes, reference: Mapping[str, Any]
    ) -> tuple[float, float]:
        form = "a table with case (a text) and label (an array of integers, one for each voxel)"
        with scorers.reading_reference("dice", sample, form):
            label, case = np.asarray(reference["label"]), reference["case"]
            if label.dtype.kind not in "biu":
                raise TypeError(f"labels of type {label.dtype}")
        where = f"sample {sample} ({case})"
        dtype = np.dtype(CLASS_DTYPES[self._asked.dtype])
        if len(output) != label.size * dtype.itemsize:
            raise scorers.scorer_error(
                f"scorer dice: the output of {where} has {len(output):,} bytes; its label of shape "
                f"{label.shape} needs {label.size * dtype.itemsize:,} ({dtype.itemsize} per voxel "
                f"of type {self._asked.dtype}). The engine must return one class per voxel, of the "
                "type in the scorer's dtype",
            )
        predicted = np.frombuffer(output, dtype)
        for name, volume in (("output", predicted), ("label", label)):
            low, high = volume.min(), volume.max()
            if low < 0 or high >= CLASSES:
                raise scorers.scorer_error(
                    f"scorer dice: the {name} of {where} holds the class "
                    f"{low if low < 0 else high}; valid classes are 0 (background), 1 (kidney) and "
                    "2 (tumor)",
                )
        kidney, tumor = dice(predicted, label.ravel())
        return kidney, tumor


def dice(predicted: NDArray[np.integer[Any]], label: NDArray[np.integer[Any]]) -> list[float]:
    """Return the Dice scores of kidney and tumor; both arguments are classes, shape (voxels,)."""
    common, total = [0] * CLASSES, [0] * CLASSES
    for start in range(0, len(label), PIECE_VOXELS):
        part = slice(start, start + PIECE_VOXELS)
        for organ in range(1, CLASSES):
            segmented, labelled = predicted[part] == organ, label[part] == organ
            total[organ] += int(np.count_nonzero(segmented)) + int(np.count_nonzero(labelled))
            common[organ] += int(np.count_nonzero(segmented & labelled))
    return [(2.0 * common[organ] + SMOOTH) / (total[organ] + SMOOTH) for organ in range(1, CLASSES)]

"""Score classification by the fraction of correct classes, as MLPerf's scripts do."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from pytest_mlperf import Scores
from pytest_mlperf.adapters import scorers

CLASS_FORMATS = {"float32": "<f", "int32": "<i", "int64": "<q", "uint8": "<B"}


@dataclass(frozen=True, kw_only=True)
class Top1Options:
    """Options of scorer top1.

    Attributes:
        dtype: Type of the class in each output, little-endian: "float32", "int32", "int64", or
            "uint8", which MLPerf's reference for R-GAT writes, though it cannot represent classes
            above 255.
    """

    dtype: str = "int64"

    def __post_init__(self) -> None:
        scorers.require_choice("top1", "dtype", self.dtype, CLASS_FORMATS)


class Top1Scorer(scorers.ScorerBase[Top1Options]):
    """Compare the predicted class of each sample with its label.

    Source: vision/classification_and_detection/tools/accuracy-imagenet.py and
    graph/R-GAT/tools/accuracy_igbh.py of https://github.com/mlcommons/inference, whose `--dtype` is
    `dtype` here. accuracy_igbh.py's default, uint8, makes R-GAT's classes 256 to 2,982 wrong, so
    let the engine output int64.
    """

    metrics = ("top1",)

    def score(self, outputs: Sequence[bytes], references: Sequence[int]) -> Scores:
        """Score predicted classes, of type `dtype` and truncated to integers, against labels."""
        scorers.require_outputs("top1", outputs, references)
        labels: list[Any] = list(references)
        for sample, label in enumerate(labels):
            with scorers.reading_reference("top1", sample, "the number of a class"):
                if not isinstance(label, Real):
                    raise TypeError(type(label).__name__)
        right = [
            self._class(output, sample) == label
            for sample, (output, label) in enumerate(zip(outputs, labels, strict=True))
        ]
        return Scores(
            per_sample={"top1": [100.0 if correct else 0.0 for correct in right]},
            aggregate={"top1": 100.0 * sum(right) / len(right)},
            chance={"top1": 100.0 / len(set(labels))},
        )

    def _class(self, output: bytes, sample: int) -> int:
        dtype = self._asked.dtype
        number = struct.Struct(CLASS_FORMATS[dtype])
        try:
            return int(number.unpack(output)[0])
        except (struct.error, ValueError, OverflowError) as error:
            raise scorers.scorer_error(
                f"scorer top1: output {output[:16]!r} ({len(output)} bytes) of sample "
                f"{sample} is not a class number of type {dtype} ({number.size} bytes); set "
                "the scorer's dtype to the type of the engine's outputs",
            ) from error

"""Score product categories as MLPerf's Qwen3-VL benchmark does: hierarchical F1."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from pytest_mlperf import Scores
from pytest_mlperf.adapters.lazy import np
from pytest_mlperf.adapters.scorers import require_choice, require_outputs, require_texts
from pytest_mlperf.adapters.scorers.leverage import ratio_scores, whole_scores
from pytest_mlperf.adapters.scorers.text import TOKEN_DTYPES, DecoderOptions, TextScorer

SEPARATOR = " > "
"""Between the levels of a category, from the root on."""

SCHEMAS = ("v6.0", "v6.1")

TEXT_TYPE = "text"


@dataclass(frozen=True, kw_only=True)
class CategoryF1Options(DecoderOptions):
    """Options of scorer category_f1.

    Attributes:
        dtype: Format of an output: token ids as "int32" or "int64", little-endian; or "text",
            UTF-8, as MLPerf's own implementation logs answers.
        schema: MLPerf round of the answers' JSON schema, "v6.0" or "v6.1"; both are parsed alike.
    """

    schema: str = "v6.1"

    def __post_init__(self) -> None:
        require_choice("category_f1", "schema", self.schema, SCHEMAS)
        require_choice("category_f1", "dtype", self.dtype, (*TOKEN_DTYPES, TEXT_TYPE))

    @property
    def decodes(self) -> bool:
        """Whether outputs are token ids."""
        return self.dtype != TEXT_TYPE


class CategoryF1Scorer(TextScorer[CategoryF1Options]):
    """Compare the category path of each product with the right path, level by level.

    Precision is the number of matching leading levels divided by the number of predicted levels;
    recall divides it by the number of annotated levels; both are computed over all samples. An
    answer must be JSON with the texts "category" and "brand", and with "is_secondhand", which
    pydantic must accept as a boolean ("yes" and 1 too). Any other answer, such as one in a code
    fence or with an additional key, counts as a wrong path as long as the right one.

    Source: evaluation.py and schema.py in multimodal/qwen3-vl/src/mlperf_inf_mm_q3vl of
    https://github.com/mlcommons/inference. An answer that is not UTF-8 ends that script with an
    error; here it counts as wrong. The script's scores for brand and second hand have no gate and
    are partly random; they are not computed.
    """

    metrics = ("f1",)
    name: ClassVar[str] = "category_f1"

    def score(self, outputs: Sequence[bytes], references: Sequence[str]) -> Scores:
        """Score token ids or texts against categories such as "Home > Lamps > Desk lamps".

        Returns "f1", 0 to 1. A sample's score is its jackknife pseudo-value: f1 + number of samples
        x influence.
        """
        require_outputs("category_f1", outputs, references)
        targets = require_texts("category_f1", references, "the category")
        category = _reader()
        if self._asked.decodes:
            outputs = [text.encode() for text in self._decoder.decode(outputs).texts]
        counts = [
            _levels(category(output), target)
            for output, target in zip(outputs, targets, strict=True)
        ]
        agreeing, predicted, annotated = np.array(counts, np.int64).T
        precision = float(agreeing.sum() / predicted.sum())
        recall = float(agreeing.sum() / annotated.sum())
        both = precision + recall
        # F1 of the sums is twice what agrees by all levels of both sides.
        pseudo, leverage = ratio_scores(2.0 * agreeing, (predicted + annotated).astype(np.float64))
        f1 = 2 * (precision * recall) / both if both else 0.0
        return whole_scores("f1", f1, pseudo, leverage)


def _reader() -> Callable[[bytes], str | None]:
    from pydantic import ConfigDict, ValidationError, create_model

    schema = create_model(
        "ProductMetadata",
        __config__=ConfigDict(extra="forbid"),
        category=(str, ...),
        brand=(str, ...),
        is_secondhand=(bool, ...),
    )

    def category(output: bytes) -> str | None:
        try:
            return str(getattr(schema.model_validate_json(output), "category"))  # noqa: B009
        except ValidationError:
            return None

    return category


def _levels(predicted: str | None, target: str) -> tuple[int, int, int]:
    """Return the numbers of matching leading levels, predicted levels and annotated levels.

    `predicted` is None for an invalid answer.

    >>> _levels("A > B > C", "A > B > D")
    (2, 3, 3)
    """
    right = [level.strip() for level in target.split(SEPARATOR)]
    if predicted is None:
        return 0, len(right), len(right)
    path = [level.strip() for level in predicted.split(SEPARATOR)]
    same = 0
    while same < min(len(path), len(right)) and path[same] == right[same]:
        same += 1
    return same, len(path), len(right)

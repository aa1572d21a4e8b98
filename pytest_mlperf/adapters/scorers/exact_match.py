"""Score answers that must equal their references, such as those of greedy decoding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pytest_mlperf import Scores
from pytest_mlperf.adapters import scorers
from pytest_mlperf.adapters.scorers.text import (
    DecoderOptions,
    TextScorer,
    right_or_wrong_scores,
    token_ids,
)

ANSWER_TYPES = ("tokens", "ids", "text")


@dataclass(frozen=True, kw_only=True)
class ExactMatchOptions(DecoderOptions):
    """Options of scorer exact_match.

    Attributes:
        answers: Format of the outputs: "tokens" are token ids, which are decoded and compared as
            text; "ids" are token ids, compared as such; "text" is UTF-8.
        strip: Whether white space at both ends is ignored.
        casefold: Whether case is ignored.
    """

    answers: str = "tokens"
    strip: bool = True
    casefold: bool = False

    def __post_init__(self) -> None:
        scorers.require_choice("exact_match", "answers", self.answers, ANSWER_TYPES)
        scorers.require_flag("exact_match", "strip", self.strip)
        scorers.require_flag("exact_match", "casefold", self.casefold)

    @property
    def decodes(self) -> bool:
        """Whether outputs are token ids that are decoded to text."""
        return self.answers == "tokens"


class ExactMatchScorer(TextScorer[ExactMatchOptions]):
    """Compare each answer with its reference; the score is 100 if both are equal, else 0."""

    metrics = ("exact_match",)
    optional_libraries = ("tokenizers", "transformers")
    name: ClassVar[str] = "exact_match"

    def score(self, outputs: Sequence[bytes], references: Sequence[Any]) -> Scores:
        """Compare each output with its reference: a text, or a list of token ids."""
        scorers.require_outputs("exact_match", outputs, references)
        if self._asked.answers == "ids":
            ids = token_ids("exact_match", self._asked.dtype, outputs)
            same = []
            for sample, (row, reference) in enumerate(zip(ids, references, strict=True)):
                with scorers.reading_reference("exact_match", sample, "a list of token ids"):
                    same.append([*map(int, reference)] == row.tolist())
        else:
            targets = scorers.require_texts("exact_match", references, "the expected answer")
            texts: Iterator[str] = (str(output, "utf-8", "replace") for output in outputs)
            if self._asked.decodes:
                texts = iter(self._decoder.decode(outputs).texts)
            pairs = zip(map(self._normal, texts), map(self._normal, targets), strict=True)
            same = [text == target for text, target in pairs]
        rows, means = right_or_wrong_scores("exact_match", range(len(same)), same, len(same))
        return Scores(per_sample=rows, aggregate=means)

    def _normal(self, text: str) -> str:
        text = text.strip() if self._asked.strip else text
        return text.casefold() if self._asked.casefold else text

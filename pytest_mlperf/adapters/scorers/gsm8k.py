"""Score numeric answers to GSM8K as MLPerf's Mixtral 8x7B benchmark does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pytest_mlperf import Scores
from pytest_mlperf.adapters.scorers import require_outputs, require_texts
from pytest_mlperf.adapters.scorers import text as language


class Gsm8kScorer(language.TextScorer[language.DecoderOptions]):
    """Compare the number in each answer with the number in its reference.

    Metrics, per sample and over all samples:

    - "gsm8k": 100 if the number is right, else 0; the mean is not rounded.
    - "tokens_per_sample": number of output tokens, including special ones; the mean is rounded to 1
      digit.

    Source: language/mixtral-8x7b/evaluate-accuracy.py of https://github.com/mlcommons/inference.
    """

    metrics = ("gsm8k", "tokens_per_sample")
    name: ClassVar[str] = "gsm8k"

    def score(self, outputs: Sequence[bytes], references: Sequence[str]) -> Scores:
        """Score token ids of type `dtype` against references, numbers as text without commas."""
        require_outputs("gsm8k", outputs, references)
        targets = require_texts("gsm8k", references, "the number as text")
        decoded = self._decoder.decode(outputs)
        right = [
            language.is_right(text, target)
            for text, target in zip(decoded.texts, targets, strict=True)
        ]
        part = language.right_or_wrong_scores("gsm8k", range(len(right)), right, len(right))
        return language.scores_and_lengths(decoded, *part)

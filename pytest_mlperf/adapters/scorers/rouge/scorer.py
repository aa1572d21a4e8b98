"""Score generated text by ROUGE and length, as MLPerf's scripts for summaries and answers do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pytest_mlperf import Scores
from pytest_mlperf.adapters.scorers import require_outputs, require_texts
from pytest_mlperf.adapters.scorers.rouge.punkt import SentenceOptions, SentenceScorer
from pytest_mlperf.adapters.scorers.rouge.text import ROUGE_METRICS, f_measures
from pytest_mlperf.adapters.scorers.text import tokens_per_sample


@dataclass(frozen=True, kw_only=True)
class RougeOptions(SentenceOptions):
    """Options of scorer rouge.

    Attributes:
        punkt: Folder of the English model, "english", of NLTK's package punkt_tab, which splits
            texts into sentences for rougeLsum; None omits rougeLsum.
    """


class RougeScorer(SentenceScorer[RougeOptions]):
    """Compare the text of each output with a target text.

    Metrics, per sample and as the reference prints them over all samples:

    - "rouge1", "rouge2", "rougeL": F-measures with stemming, 0 to 100; the mean is rounded to 4
      digits.
    - "tokens_per_sample": number of output tokens, including special ones; the mean is rounded to 1
      digit.
    - "gen_len": number of characters of the text without white space at its ends; the aggregate is
      the sum. The reference replaces white space between sentences by one line break, so that its
      value can differ by a few characters per sample; ROUGE ignores white space.
    - "rougeLsum", only with `punkt`: ROUGE-L sentence by sentence, 0 to 100; the mean is rounded to
      4 digits. MLPerf's accuracy target for Llama 3.1 8B requires it. "gen_len" then equals the
      reference's.

    Source: language/llama2-70b/evaluate-accuracy.py of https://github.com/mlcommons/inference,
    which gives the same as those of gptj-6b, llama3.1-8b and mixtral-8x7b.
    """

    metrics = (*ROUGE_METRICS, "rougeLsum", "tokens_per_sample", "gen_len")
    name: ClassVar[str] = "rouge"

    @staticmethod
    def left_out(options: Mapping[str, Any]) -> dict[str, str]:
        """Return the metrics that these options exclude, each with the option that enables it."""
        split = options.get("punkt") is not None
        return {} if split else {"rougeLsum": 'punkt = "…/punkt_tab/english"'}

    def score(self, outputs: Sequence[bytes], references: Sequence[str]) -> Scores:
        """Score token ids of type `dtype` against target texts; an empty answer scores 0."""
        require_outputs("rouge", outputs, references)
        require_texts("rouge", references, "the target text")
        decoded = self._decoder.decode(outputs)
        texts = [text.strip() for text in decoded.texts]
        measured = dict(
            zip(
                ROUGE_METRICS, f_measures(texts, references, processes=self._processes), strict=True
            )
        )
        if self._punkt is not None:
            texts = self._split(texts)
            lines = self._split(references)
            (measured["rougeLsum"],) = f_measures(
                texts, lines, metrics=("rougeLsum",), processes=self._processes
            )
        lengths = [len(text) for text in texts]
        tokens, mean_tokens = tokens_per_sample(decoded)
        return Scores(
            per_sample={
                **{name: (100 * values).tolist() for name, values in measured.items()},
                "tokens_per_sample": tokens,
                "gen_len": [float(length) for length in lengths],
            },
            aggregate={
                # The reference multiplies before it rounds.
                **{k: float(round(values.mean() * 100, 4)) for k, values in measured.items()},
                "tokens_per_sample": mean_tokens,
                "gen_len": float(sum(lengths)),
            },
        )

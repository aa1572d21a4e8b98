"""Score generated text as MLPerf's scripts for summaries and answers do: ROUGE and lengths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pytest_mlperf import Scores
from pytest_mlperf.adapters.scorers import require_outputs, require_texts
from pytest_mlperf.adapters.scorers.rouge.punkt import Punkt
from pytest_mlperf.adapters.scorers.rouge.text import ROUGE_METRICS, f_measures, summary_f_measures
from pytest_mlperf.adapters.scorers.text import (
    Decoder,
    DecoderOptions,
    check_processes,
    tokens_per_sample,
)
from pytest_mlperf.extension import usable_cores


@dataclass(frozen=True, kw_only=True)
class RougeOptions(DecoderOptions):
    """How texts are compared.

    Attributes:
        processes: How many processes score; None takes one per core. One scores 24,576 samples in
            seconds.
        punkt: Folder with the Punkt model of English sentences, english in NLTK's package
            punkt_tab, which splits texts for rougeLsum; None leaves rougeLsum out.
    """

    processes: int | None = 1
    punkt: str | None = None


class RougeScorer:
    """Compares the text of each output with a target text.

    Metrics, per sample and as the reference prints them over all samples:

    - "rouge1", "rouge2", "rougeL": F-measures with stemming, 0 to 100; their mean, to 4 digits.
    - "tokens_per_sample": tokens of the output, special ones counted; their mean, to 1 digit.
    - "gen_len": characters of the text without white space at its ends; their sum. The reference
      first replaces the white space between sentences by one line break, so its figure can differ
      by a few characters a sample. ROUGE cannot: white space between words does not count.
    - "rougeLsum", only with `punkt`: ROUGE-L sentence by sentence, 0 to 100; the mean, to 4 digits.
      MLPerf's gate for Llama 3.1 8B needs it. White space between sentences is then as in the
      reference, and "gen_len" its figure.

    Source: language/llama2-70b/evaluate-accuracy.py of https://github.com/mlcommons/inference, as
    gptj-6b, llama3.1-8b and mixtral-8x7b have it too.
    """

    metrics = (*ROUGE_METRICS, "rougeLsum", "tokens_per_sample", "gen_len")
    libraries = ("rapidfuzz", "rouge_score")

    options: ClassVar[type] = RougeOptions

    def __init__(self, *, model: str | None, **options: Any) -> None:
        """Choose how outputs are read.

        Args:
            model: Folder of the model in Hugging Face's files, for its tokenizer.
            options: Those of `RougeOptions`.
        """
        asked = RougeOptions(**options)
        processes, punkt = asked.processes, asked.punkt
        check_processes("rouge", processes)
        self._decoder = Decoder.of("rouge", model, asked)
        self._processes = processes or len(usable_cores())
        self._punkt = None if punkt is None else Punkt(scorer="rouge", folder=Path(punkt))
        if self._punkt is not None:
            self._punkt.check()

    @staticmethod
    def left_out(options: Mapping[str, Any]) -> dict[str, str]:
        """Return the metrics that options leave out, with the option that gives each."""
        split = options.get("punkt") is not None
        return {} if split else {"rougeLsum": 'punkt = "…/punkt_tab/english"'}

    def require(self) -> None:
        """Look for what decodes; nothing is imported."""
        self._decoder.require()
        if self._punkt is not None:
            self._punkt.require()

    def score(self, outputs: Sequence[bytes], references: Sequence[str]) -> Scores:
        """Score token ids of type `dtype` against target texts; an empty answer scores 0.

        Returns the metrics of the class.
        """
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
            split = self._punkt.load()
            texts = ["\n".join(split(text)) for text in texts]
            targets = ["\n".join(split(target.strip())) for target in references]
            measured["rougeLsum"] = summary_f_measures(texts, targets)
        lengths = [len(text) for text in texts]
        tokens, mean_tokens = tokens_per_sample(decoded)
        return Scores(
            per_sample={
                **{name: (100 * values).tolist() for name, values in measured.items()},
                "tokens_per_sample": tokens,
                "gen_len": [float(length) for length in lengths],
            },
            aggregate={
                # In the reference's order of rounding.
                **{k: float(round(values.mean() * 100, 4)) for k, values in measured.items()},
                "tokens_per_sample": mean_tokens,
                "gen_len": float(sum(lengths)),
            },
        )

"""Score generated text as MLPerf's scripts for summaries and answers do: ROUGE and lengths."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_mlperf.core.errors import RunError, SuiteError
from pytest_mlperf.core.extension import Scores
from pytest_mlperf.scorers.decode import Decoder
from pytest_mlperf.scorers.rouge_lsum import summary_f_measures
from pytest_mlperf.scorers.rouge_text import METRICS, f_measures
from pytest_mlperf.scorers.sentences import Punkt

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


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

    metrics = (*METRICS, "rougeLsum", "tokens_per_sample", "gen_len")
    libraries = ("rapidfuzz",)

    def __init__(
        self,
        *,
        model: str | None,
        tokenizer: str | None = None,
        dtype: str = "int64",
        clean_up: bool | None = None,
        processes: int | None = 1,
        punkt: str | None = None,
    ) -> None:
        """Choose how outputs are read.

        Args:
            model: Folder of the model in Hugging Face's files, for its tokenizer.
            tokenizer: Folder of the tokenizer, where that is another one.
            dtype: Type of the token ids in an output, little-endian: "int32" or "int64".
            clean_up: Whether spaces before punctuation are removed from decoded text. None does as
                transformers 5 does: where tokenizer_config.json sets clean_up_tokenization_spaces,
                but never for BPE. The references of MLPerf ran transformers 4, which did it for
                BPE too: true gives their text for Llama 3.1, and differs in " n't" only.
            processes: How many processes score; None takes one per core. One scores 24,576
                samples in seconds.
            punkt: Folder with the Punkt model of English sentences, english in NLTK's package
                punkt_tab, which splits texts for rougeLsum; None leaves rougeLsum out.

        Raises:
            SuiteError: An option is wrong, or no folder is named.
            UnavailableError: The tokenizer or the Punkt model is not here.
        """
        if processes is not None and (isinstance(processes, bool) or processes < 1):
            raise SuiteError(f"scorer rouge: processes = {processes!r} must be a number from 1 on")
        self._decoder = Decoder.of(
            "rouge", model=model, tokenizer=tokenizer, dtype=dtype, clean_up=clean_up
        )
        self._processes = processes or len(os.sched_getaffinity(0))
        self._punkt = None if punkt is None else Punkt(scorer="rouge", folder=Path(punkt))
        if self._punkt is not None:
            self._punkt.check()

    @staticmethod
    def left_out(options: Mapping[str, Any]) -> dict[str, str]:
        """Return the metrics that options leave out, with the option that gives each."""
        split = options.get("punkt") is not None
        return {} if split else {"rougeLsum": 'punkt = "…/punkt_tab/english"'}

    def require(self) -> None:
        """Look for what decodes; nothing is imported.

        Raises:
            EnvironmentFault: A library is not installed.
        """
        self._decoder.require()
        if self._punkt is not None:
            self._punkt.require()

    def score(self, outputs: Sequence[bytes], references: Sequence[str]) -> Scores:
        """Score generated tokens against target texts.

        Args:
            outputs: The token ids of each sample, of type `dtype`; none is an empty text, which
                scores 0.
            references: The target text of each sample.

        Returns:
            The metrics of the class.

        Raises:
            EnvironmentFault: A library is not installed.
            RunError: There are no samples, not as many outputs as references, a reference is no
                text, an output cannot be decoded, or the Punkt model cannot be read.
        """
        _check(outputs, references)
        decoded = self._decoder.decode(outputs)
        texts = [text.strip() for text in decoded.texts]
        measured = dict(
            zip(METRICS, f_measures(texts, references, processes=self._processes), strict=True)
        )
        if self._punkt is not None:
            split = self._punkt.load()
            texts = ["\n".join(split(text)) for text in texts]
            targets = ["\n".join(split(target.strip())) for target in references]
            measured["rougeLsum"] = summary_f_measures(texts, targets)
        lengths = [len(text) for text in texts]
        return Scores(
            per_sample={
                **{name: (100 * values).tolist() for name, values in measured.items()},
                "tokens_per_sample": [float(count) for count in decoded.tokens],
                "gen_len": [float(length) for length in lengths],
            },
            aggregate={
                **{name: _printed(values) for name, values in measured.items()},
                "tokens_per_sample": round(sum(decoded.tokens) / len(texts), 1),
                "gen_len": float(sum(lengths)),
            },
        )


def _printed(values: NDArray[np.float64]) -> float:
    """Return the mean as the reference rounds it."""
    import numpy as np

    return float(round(np.mean(values) * 100, 4))


def _check(outputs: Sequence[bytes], references: Sequence[object]) -> None:
    if not outputs or len(outputs) != len(references):
        raise RunError(
            "scorer",
            f"scorer rouge: got {len(outputs)} outputs for {len(references)} references; it needs "
            "one output per reference, and at least one",
        )
    for sample, reference in enumerate(references):
        if not isinstance(reference, str):
            raise RunError(
                "scorer",
                f"scorer rouge: the reference of sample {sample} is a {type(reference).__name__}, "
                "but must be a text; let the data set's reference(index) return the target text",
            )

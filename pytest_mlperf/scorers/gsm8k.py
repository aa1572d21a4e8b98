"""Score answers to sums as MLPerf's Mixtral 8x7B benchmark does: GSM8K."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.extension import Scores
from pytest_mlperf.scorers.decode import Decoder
from pytest_mlperf.scorers.gsm8k_answer import is_right


class Gsm8kScorer:
    """Compares the number that each output gives as its answer with the right one.

    Metrics, per sample and over all samples:

    - "gsm8k": 100 where the number is right, else 0; their mean, not rounded.
    - "tokens_per_sample": tokens of the output, special ones counted; their mean, to 1 digit.

    Source: language/mixtral-8x7b/evaluate-accuracy.py of https://github.com/mlcommons/inference.
    """

    metrics = ("gsm8k", "tokens_per_sample")
    libraries = ()

    def __init__(
        self,
        *,
        model: str | None,
        tokenizer: str | None = None,
        dtype: str = "int64",
        clean_up: bool | None = None,
    ) -> None:
        """Choose how outputs are read.

        Args:
            model: Folder of the model in Hugging Face's files, for its tokenizer.
            tokenizer: Folder of the tokenizer, where that is another one.
            dtype: Type of the token ids in an output, little-endian: "int32" or "int64".
            clean_up: Whether spaces before punctuation are removed from decoded text, as in scorer
                rouge; no number changes.

        Raises:
            SuiteError: An option is wrong, or no folder is named.
            UnavailableError: The tokenizer is not here.
        """
        self._decoder = Decoder.of(
            "gsm8k", model=model, tokenizer=tokenizer, dtype=dtype, clean_up=clean_up
        )

    def require(self) -> None:
        """Look for what decodes; nothing is imported.

        Raises:
            EnvironmentFault: A library is not installed.
        """
        self._decoder.require()

    def score(self, outputs: Sequence[bytes], references: Sequence[str]) -> Scores:
        """Score generated tokens against numbers.

        Args:
            outputs: The token ids of each sample, of type `dtype`; none give no number.
            references: The right number of each sample, as text, without commas.

        Returns:
            The metrics of the class.

        Raises:
            EnvironmentFault: A library is not installed.
            RunError: There are no samples, not as many outputs as references, a reference is no
                text, or an output cannot be decoded.
        """
        targets = _check(outputs, references)
        decoded = self._decoder.decode(outputs)
        right = [
            is_right(text, target) for text, target in zip(decoded.texts, targets, strict=True)
        ]
        return Scores(
            per_sample={
                "gsm8k": [100.0 * one for one in right],
                "tokens_per_sample": [float(count) for count in decoded.tokens],
            },
            aggregate={
                "gsm8k": 100.0 * sum(right) / len(right),
                "tokens_per_sample": round(sum(decoded.tokens) / len(right), 1),
            },
        )


def _check(outputs: Sequence[bytes], references: Sequence[object]) -> list[str]:
    if not outputs or len(outputs) != len(references):
        raise RunError(
            "scorer",
            f"scorer gsm8k: got {len(outputs)} outputs for {len(references)} references; it needs "
            "one output per reference, and at least one",
        )
    targets = []
    for sample, reference in enumerate(references):
        if not isinstance(reference, str):
            raise RunError(
                "scorer",
                f"scorer gsm8k: the reference of sample {sample} is a {type(reference).__name__}, "
                "but must be a text; let the data set's reference(index) return the number as text",
            )
        targets.append(reference)
    return targets

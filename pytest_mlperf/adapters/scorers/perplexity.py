"""Score log-probabilities of texts by the perplexity over all scored tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pytest_mlperf import Scores
from pytest_mlperf.adapters import scorers
from pytest_mlperf.adapters.conventions import LOGPROB_RECORD
from pytest_mlperf.adapters.lazy import NDArray, np
from pytest_mlperf.adapters.scorers.leverage import ratio_scores, whole_scores

MAX_MEAN_NATS = 700.0
"""Maximum mean negative log-probability; beyond, its exponential overflows."""


class PerplexityScorer(scorers.ScorerBase[scorers.NoOptions]):
    """Measure how well a model predicts the tokens of texts; lower is better.

    "perplexity" is e to the mean negative log-probability (natural logarithm) of all scored tokens.
    A sample's score is its jackknife pseudo-value: the perplexity plus the number of samples times
    the sample's influence, which depends on its number of tokens. With data set windows, the
    windows of a document form a group, and documents are the units of the paired comparison.

    Perplexities are comparable only for the same tokens: an output whose token ids differ from
    those of the data set is an error.

    Source: F. Jelinek, R. L. Mercer, L. R. Bahl, J. K. Baker, "Perplexity - a measure of the
    difficulty of speech recognition tasks", Journal of the Acoustical Society of America 62 (1977).
    The standard error is that of a ratio of sums, by the delta method.
    """

    metrics = ("perplexity",)

    def score(self, outputs: Sequence[bytes], references: Sequence[Any]) -> Scores:
        """Score log-probabilities of prompts; check their token ids against the data set's.

        An output has 8 bytes for each token of its prompt, little-endian: the token id, int32, and
        its log-probability given all previous tokens, float32; NaN for the first token. A reference
        is a dict with "tokens", the token ids, and "scored", the number of tokens at the end that
        are scored.
        """
        scorers.require_outputs("perplexity", outputs, references)
        counts = [
            _scored(sample, output, references[sample]) for sample, output in enumerate(outputs)
        ]
        sums, tokens = np.array(counts, np.float64).T
        mean = float(sums.sum() / tokens.sum())
        if mean > MAX_MEAN_NATS:
            raise scorers.scorer_error(
                f"scorer perplexity: the mean negative log-probability of a token is {mean:.6g}, "
                "which is impossible for a language model; check the model's weights and precision"
            )
        perplexity = math.exp(mean)
        pseudo, leverage = ratio_scores(sums, tokens, perplexity)
        pseudo = [value + perplexity * (1.0 - mean) for value in pseudo]
        scores = whole_scores("perplexity", perplexity, pseudo, leverage)
        return replace(scores, lower=frozenset({"perplexity"}))


def _scored(sample: int, output: bytes, reference: Any) -> tuple[float, int]:
    """Return the sum of negative log-probabilities over the scored tokens, and their number."""
    tokens, scored = _reference(sample, reference)
    dtype = np.dtype(list(LOGPROB_RECORD))
    where = f"scorer perplexity: the output of sample {sample}"
    records = np.frombuffer(output, dtype) if len(output) % dtype.itemsize == 0 else None
    if records is None or not len(records) or not np.isnan(records["logprob"][0]):
        raise scorers.scorer_error(
            f"{where}, {len(output)} bytes, is not a list of log-probabilities of a prompt's "
            "tokens: set prompt_logprobs = true in the options of engine torch, vllm or openai; "
            "other engines of this release give none (for your own engine see docs/own-engine.md)"
        )
    if not np.array_equal(records["token"], tokens):
        raise scorers.scorer_error(
            f"{where} has token ids other than the data set's ({_difference(records, tokens)}); "
            "perplexities of different tokens cannot be compared: use the model's tokenizer in the "
            "data set and the engine, and remove max_prompt_tokens"
        )
    values = records["logprob"][-scored:].astype(np.float64)
    if not np.isfinite(values).all():
        raise scorers.scorer_error(
            f"{where} has a log-probability that is not a finite number; check the model's "
            "weights and precision"
        )
    return float(-values.sum()), scored


def _difference(records: NDArray[Any], tokens: NDArray[np.int64]) -> str:
    if len(records) != len(tokens):
        return f"{len(records)} tokens instead of {len(tokens)}"
    position = int(np.flatnonzero(records["token"] != tokens)[0])
    return f"{records['token'][position]} instead of {tokens[position]} at position {position}"


def _reference(sample: int, reference: Any) -> tuple[NDArray[np.int64], int]:
    form = (
        'a table with "tokens" (token ids) and "scored" (the number of last tokens to score, less '
        "than all), as data set windows gives it"
    )
    with scorers.reading_reference("perplexity", sample, form):
        ids, scored = np.array(reference["tokens"], np.int64), reference["scored"]
        if ids.ndim != 1 or type(scored) is not int or not 0 < scored < len(ids):
            raise ValueError(f"scored = {scored!r:.40}, tokens of shape {ids.shape}")
    return ids, scored

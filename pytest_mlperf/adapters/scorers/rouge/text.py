"""Compute ROUGE of many pairs of texts with `rouge_score`, in one or several processes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from multiprocessing import get_context
from types import SimpleNamespace
from typing import Any

from pytest_mlperf.adapters.conventions import not_installed
from pytest_mlperf.adapters.lazy import NDArray, np
from pytest_mlperf.adapters.scorers import scorer_error

ROUGE_METRICS = ("rouge1", "rouge2", "rougeL")

PAIRS_PER_PROCESS = 500
"""Pairs for which a further process is started: it scores them in 10 to 20 s."""


class _Tokenizer:
    """Tokenise and stem as `rouge_score` does, but stem each word only once."""

    def __init__(self) -> None:
        from nltk.stem.porter import PorterStemmer
        from rouge_score import tokenize

        self._words = tokenize.tokenize
        self._stemmer = SimpleNamespace(stem=cache(PorterStemmer().stem))

    def tokenize(self, text: str) -> list[str]:
        words: list[str] = self._words(text, self._stemmer)
        return words


@cache
def _scorer(metrics: tuple[str, ...]) -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(metrics, tokenizer=_Tokenizer())


def _measures(metrics: tuple[str, ...], reference: str, prediction: str) -> list[float]:
    scores = _scorer(metrics).score(reference, prediction)
    return [scores[name].fmeasure for name in metrics]


def f_measures(
    predictions: Sequence[str],
    references: Sequence[str],
    *,
    metrics: tuple[str, ...] = ROUGE_METRICS,
    processes: int = 1,
) -> NDArray[np.float64]:
    """Return ROUGE F-measures of pairs of texts, 0 to 1, shape (metrics, pairs).

    They equal those of `rouge_score.rouge_scorer.RougeScorer(metrics, use_stemmer=True)`. For the
    metric "rougeLsum", each line of a text must be one sentence.
    """
    sides = [(metrics, *pair) for pair in zip(references, predictions, strict=True)]
    try:
        _scorer(metrics)
    except ImportError as error:
        raise not_installed("scorer rouge", "rouge-score", "scoring") from error
    processes = max(1, min(processes, len(sides) // PAIRS_PER_PROCESS))
    if processes == 1:
        rows = [_measures(*side) for side in sides]
    else:
        chunk = math.ceil(len(sides) / (4 * processes))
        try:
            with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
                rows = list(pool.map(_measures, *zip(*sides, strict=True), chunksize=chunk))
        except BrokenProcessPool:
            raise scorer_error(
                "scorer rouge: a helper process ended early; its last output is in this log. Out "
                "of memory? Set the scorer's option processes to a smaller number"
            ) from None
    return np.array(rows, np.float64).reshape(len(sides), len(metrics)).T

"""Score long contexts as MLPerf's Llama 3.1 405B benchmark does, by the metric of each sample."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from pytest_mlperf import Scores
from pytest_mlperf.adapters.lazy import np
from pytest_mlperf.adapters.scorers import reading_reference, require_outputs
from pytest_mlperf.adapters.scorers import text as language
from pytest_mlperf.adapters.scorers.rouge.punkt import SentenceOptions, SentenceScorer
from pytest_mlperf.adapters.scorers.rouge.text import ROUGE_METRICS, f_measures

UUID = re.compile(r"\w{8}-\w{4}-\w{4}-\w{4}-\w{12}")
DELIMITER = "Answer: "


def niah_em(target: str, text: str) -> float:
    """Score the UUIDs in a text against those in the target, 0 to 100, rounded to 2 digits.

    UUIDs are compared in order. As in the reference, a UUID's score is the fraction of the target's
    *characters* that occur anywhere in it, so that most wrong UUIDs score 100.
    """
    answers = UUID.findall(text)
    if not answers:
        return 0.0
    shares = [
        sum(character.lower() in answer.lower() for character in expected) / len(expected)
        for answer, expected in zip(answers, UUID.findall(target), strict=False)
    ]
    return float(round(sum(shares) / len(answers) * 100, 2))


def qa_em(target: str, text: str) -> float:
    """Return 100 if the answer after the last "Answer: " is right, else 0.

    The answer is right if it is part of the target, or if it contains one of the target's entries,
    which "|" separates; for the latter, white space and case are ignored. As in the reference, an
    empty answer is part of every target, and scores 100.
    """
    answer = text.rpartition(DELIMITER)[2]
    entries = map(_closed, target.split("|"))
    return 100.0 * (answer in target or any(entry in _closed(answer) for entry in entries))


def _closed(text: str) -> str:
    return re.sub(r"\s+", "", text).lower()


MATCHES: Mapping[str, Callable[[str, str], float]] = {"niah_em": niah_em, "qa_em": qa_em}
ROUGE = "rouge"
GRADED_FIELDS = ("metric", "target")
GRADED_BY = (ROUGE, *MATCHES)


@dataclass(frozen=True, kw_only=True)
class LongContextOptions(SentenceOptions):
    """Options of scorer long_context.

    Attributes:
        punkt: Folder of the English model, "english", of NLTK's package punkt_tab, for splitting
            answers and targets into sentences, one per line, as the reference does. None keeps the
            white space, which affects only answers of several sentences graded by `qa_em`.
    """


class LongContextScorer(SentenceScorer[LongContextOptions]):
    """Score each sample by the metric that its reference names; its other metrics are None.

    The aggregate of a metric is the mean over the samples that have it, not rounded, as the
    reference prints it; a metric without samples is omitted:

    - "rougeL" for samples graded by "rouge": the F-measure with stemming, 0 to 100.
    - "exact_match" for samples graded by "niah_em" or "qa_em", 0 to 100. Wrong answers can score
      100, see `niah_em` and `qa_em`; MLPerf's accuracy target is based on these rules.
    - "tokens_per_sample" for all samples: number of output tokens, including special ones; the mean
      is rounded to 1 digit.

    Source: language/llama3.1-405b/evaluate-accuracy.py of https://github.com/mlcommons/inference.
    """

    metrics = ("rougeL", "exact_match", "tokens_per_sample")
    name: ClassVar[str] = "long_context"

    def score(self, outputs: Sequence[bytes], references: Sequence[Mapping[str, str]]) -> Scores:
        """Score token ids of type `dtype` against references of data set graded."""
        require_outputs("long_context", outputs, references)
        checked = language.require_tables("long_context", references, GRADED_FIELDS, "graded")
        for sample, reference in enumerate(checked):
            form = f"a table whose metric is {' or '.join(GRADED_BY)}"
            with reading_reference("long_context", sample, form):
                if (metric := reference["metric"]) not in GRADED_BY:
                    raise ValueError(f"metric is {metric!r:.60}")
        decoded = self._decoder.decode(outputs)
        rows = self._rows(self._split(decoded.texts), checked)
        means = {name: _mean(row) for name, row in rows.items()}
        return language.scores_and_lengths(decoded, rows, means)

    def _rows(
        self, texts: Sequence[str], references: Sequence[Mapping[str, str]]
    ) -> dict[str, list[float | None]]:
        targets = self._split([reference["target"] for reference in references])
        kinds = [reference["metric"] for reference in references]
        pairs = list(zip(texts, targets, strict=True))
        summaries = [pair for pair, kind in zip(pairs, kinds, strict=True) if kind == ROUGE]
        row = ROUGE_METRICS.index("rougeL")
        sides = [text for text, _ in summaries], [target for _, target in summaries]
        measured = iter(100 * f_measures(*sides, processes=self._processes)[row])
        rows = {
            "rougeL": [float(next(measured)) if kind == ROUGE else None for kind in kinds],
            "exact_match": [
                MATCHES[kind](target, text) if kind in MATCHES else None
                for (text, target), kind in zip(pairs, kinds, strict=True)
            ],
        }
        return {name: row for name, row in rows.items() if any(s is not None for s in row)}


def _mean(row: Sequence[float | None]) -> float:
    """Return the mean of the values that are not None, with the same rounding as pandas."""
    total = np.array([value or 0.0 for value in row]).sum()
    return float(total / sum(value is not None for value in row))

"""Score answers to SQuAD's questions by F1 and exact match, as MLPerf's accuracy-squad.py does."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_mlperf import Scores
from pytest_mlperf.adapters import scorers
from pytest_mlperf.adapters.lazy import NDArray, np
from pytest_mlperf.extension import Rule, require_options

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def answer_text(reference: Mapping[str, Any], first: int, last: int) -> str:
    """Return the original text of the word pieces `first` to `last` of a reference's paragraph.

    `reference` is one of data set squad.
    Source: write_predictions in language/bert/accuracy-squad.py of
    https://github.com/mlcommons/inference.
    """
    joined = " ".join(reference["pieces"][first : last + 1]).replace(" ##", "").replace("##", "")
    words = slice(reference["word_of_piece"][first], reference["word_of_piece"][last] + 1)
    return written_text(
        span=" ".join(joined.split()),
        normalized=" ".join(text for text in reference["normalized"][words] if text),
        written=" ".join(reference["words"][words]),
    )


def written_text(*, span: str, normalized: str, written: str) -> str:
    """Return the part of `written` that corresponds to `span`, which is part of `normalized`.

    `written` is the original text and `normalized` its normalised form. If both have the same
    number of characters, without spaces, characters correspond one by one. Otherwise, or if `span`
    is not in `normalized` (such as [UNK]), `written` is returned.
    """
    start = normalized.find(span)
    places = [place for place, character in enumerate(written) if character != " "]
    if not span or start < 0 or len(places) != len(normalized) - normalized.count(" "):
        return written
    first = start - normalized.count(" ", 0, start)
    last = first + len(span) - span.count(" ") - 1
    return written[places[first] : places[last] + 1]


def text_scores(answer: str, accepted: Iterable[str]) -> tuple[float, bool]:
    """Return the F1 score of the words, 0 to 1, and whether the answer is an exact match.

    Each is the best over the `accepted` answers. Source: language/bert/evaluate_v1.1.py of
    https://github.com/mlcommons/inference.
    """
    predicted = normalized_words(answer)
    right = [normalized_words(text) for text in set(accepted)]
    return max(_f1(predicted, words) for words in right), predicted in right


def normalized_words(text: str) -> list[str]:
    """Return a text's words in lower case, without ASCII punctuation and articles."""
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()


def _f1(predicted: list[str], right: list[str]) -> float:
    common = sum((Counter(predicted) & Counter(right)).values())
    if not common:
        return 0.0
    precision, recall = common / len(predicted), common / len(right)
    return 2 * precision * recall / (precision + recall)


LOGIT_DTYPES = {
    "float32": "<f4",
    "float16": "<f2",
    "float64": "<f8",
    "int8": "<i1",
    "int16": "<i2",
    "int32": "<i4",
    "int64": "<i8",
}

NO_LOGIT = -10000.0
"""Logit at positions beyond an output that is shorter than `max_seq_length`."""

NO_ANSWER = "empty"
"""Answer if no span is valid, as in the reference."""

REFERENCE_KEYS = {
    *("id", "answers", "words", "normalized", "pieces", "word_of_piece"),
    *("first", "start", "length", "max_context", "features"),
}


@dataclass(kw_only=True, slots=True)
class _BestSpan:
    """Hold the best answer span of a question in the features that have been read so far.

    A feature is a window of the paragraph, with the question.

    Attributes:
        sample: Index of the question's first feature, to which the score belongs.
        features: Number of the question's features read so far.
        reference: Reference of the feature with the span; of the first feature if there is no span.
        rank: Sum of the span's logits, then minus the window's start, so that the earlier one wins
            ties.
        span: First and last word piece of the span in the paragraph; None if no span is valid.
    """

    sample: int
    reference: Mapping[str, Any]
    features: int = 0
    rank: tuple[float, int] = field(default=(float("-inf"), 0))
    span: tuple[int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class SquadScorerOptions:
    """Options of scorer squad.

    Attributes:
        dtype: Type of the logits, little-endian, as in the reference's --output_dtype.
        transposed: Whether outputs have shape (2, seq) instead of (seq, 2).
        n_best: Number of highest start logits, and of highest end logits, that are considered.
        max_answer_length: Maximum number of word pieces of an answer.
        max_seq_length: Maximum number of positions of an output; shorter outputs are padded with
            -10000.
    """

    dtype: str = "float32"
    transposed: bool = False
    n_best: int = 20
    max_answer_length: int = 30
    max_seq_length: int = 384

    def __post_init__(self) -> None:
        scorers.require_choice("squad", "dtype", self.dtype, LOGIT_DTYPES)
        switch = type(self.transposed) is bool
        rules: list[Rule] = [("transposed", self.transposed, switch, "true or false")]
        for name in ("n_best", "max_answer_length", "max_seq_length"):
            value = getattr(self, name)
            is_count = type(value) is int and value >= 1
            rules.append((name, value, is_count, "a whole number of at least 1"))
        require_options("scorer squad", rules)


class SquadScorer(scorers.ScorerBase[SquadScorerOptions]):
    """Find the answer with the highest logits for each question, and compare its text.

    A long paragraph is split into several features, each of which is a sample. Source:
    language/bert/accuracy-squad.py and evaluate_v1.1.py of https://github.com/mlcommons/inference.
    Only the best span is converted to text: the script converts 20, and uses the first.
    """

    metrics = ("f1", "exact_match")

    def score(self, outputs: Sequence[bytes], references: Sequence[Mapping[str, Any]]) -> Scores:
        """Score the answers in the logits in one pass, one output at a time.

        Outputs are a feature's logits, (seq, 2): for each position the logits of an answer's start
        and end. seq is at least the feature's length and at most `max_seq_length`; minus infinity
        excludes a position. References are those of data set squad.

        Returns "f1" and "exact_match" in per cent, each the best over a question's right answers.
        The score belongs to the question's first feature; its other features have None. A question
        with missing features is not scored, unless this is so for all questions.
        """
        scorers.require_outputs("squad", outputs, references)
        questions: dict[str, _BestSpan] = {}
        for sample, (output, reference) in enumerate(zip(outputs, references, strict=True)):
            _check_reference(reference, sample)
            logits = self._logits(output, reference, sample)
            best = questions.setdefault(
                reference["id"], _BestSpan(sample=sample, reference=reference)
            )
            best.features += 1
            self._improve(best, logits, reference)
        complete = [b for b in questions.values() if b.features >= b.reference["features"]]
        return _judge(complete or list(questions.values()), len(outputs))

    def _logits(
        self, output: bytes, reference: Mapping[str, Any], sample: int
    ) -> NDArray[np.float64]:
        dtype = np.dtype(LOGIT_DTYPES[self._asked.dtype])
        shortest = reference["first"] + reference["length"] + 1
        longest = self._asked.max_seq_length
        positions, rest = divmod(len(output), 2 * dtype.itemsize)
        if rest or not shortest <= positions <= longest:
            raise scorers.scorer_error(
                f"scorer squad: output of sample {sample} has {len(output)} bytes; it must be "
                f"two logits of type {self._asked.dtype} for each of {shortest} to "
                f"{longest} positions; set the scorer's dtype and max_seq_length to those of "
                "the engine's outputs",
            )
        numbers = np.frombuffer(output, dtype)
        pairs = numbers.reshape(2, -1) if self._asked.transposed else numbers.reshape(-1, 2).T
        logits = np.full((2, longest), NO_LOGIT)
        logits[:, :positions] = pairs
        if not (logits < np.inf).all():
            side, position = np.argwhere(~(logits < np.inf))[0].tolist()
            raise scorers.scorer_error(
                f"scorer squad: the {('start', 'end')[side]} logit at position {position} of "
                f"sample {sample} is {logits[side, position]}, which is not finite; check the "
                "engine for an overflow, or for outputs of another type than the scorer's dtype",
            )
        return logits

    def _improve(
        self, best: _BestSpan, logits: NDArray[np.float64], reference: Mapping[str, Any]
    ) -> None:
        shift = reference["first"] - reference["start"]
        end = reference["start"] + reference["length"]
        starts = _highest(logits[0], self._asked.n_best)
        starts = starts[_inside(starts - shift, reference["max_context"])]
        ends = _highest(logits[1], self._asked.n_best)
        ends = ends[_inside(ends - shift, [[reference["start"], end]])]
        lengths = ends[None, :] - starts[:, None] + 1
        rows, columns = np.nonzero((lengths > 0) & (lengths <= self._asked.max_answer_length))
        if not len(rows):
            return
        sums = logits[0, starts[rows]] + logits[1, ends[columns]]
        pair = int(sums.argmax())
        rank = (float(sums[pair]), -reference["start"])
        if best.span is None or rank > best.rank:
            best.reference, best.rank = reference, rank
            best.span = (int(starts[rows[pair]]) - shift, int(ends[columns[pair]]) - shift)


def _judge(questions: Sequence[_BestSpan], samples: int) -> Scores:
    f1: list[float | None] = [None] * samples
    exact: list[float | None] = [None] * samples
    # Added one by one, as the reference does; from Python 3.12 on, sum() rounds differently.
    f1_total, exact_total = 0.0, 0
    for best in questions:
        text = NO_ANSWER if best.span is None else answer_text(best.reference, *best.span)
        share, equal = text_scores(text, best.reference["answers"])
        f1_total += share
        exact_total += equal
        f1[best.sample], exact[best.sample] = 100.0 * share, 100.0 * equal
    return Scores(
        per_sample={"f1": f1, "exact_match": exact},
        aggregate={
            "f1": 100.0 * f1_total / len(questions),
            "exact_match": 100.0 * exact_total / len(questions),
        },
    )


def _highest(logits: NDArray[np.float64], count: int) -> NDArray[np.intp]:
    if count >= len(logits):
        return np.argsort(-logits, kind="stable")
    positions = np.flatnonzero(logits >= np.partition(logits, -count)[-count])
    return positions[np.argsort(-logits[positions], kind="stable")][:count]


def _inside(pieces: NDArray[np.intp], ranges: Sequence[Sequence[int]]) -> NDArray[np.bool_]:
    """Return for each word piece whether it is in one of the ranges [begin, end)."""
    inside = np.zeros(len(pieces), bool)
    for begin, end in ranges:
        inside |= (pieces >= begin) & (pieces < end)
    return inside


def _check_reference(reference: Any, sample: int) -> None:
    if isinstance(reference, Mapping) and reference.keys() >= REFERENCE_KEYS:
        return
    raise scorers.scorer_error(
        f"scorer squad: the reference of sample {sample} does not come from data set squad; use "
        'scorer squad only in a suite with dataset = { use = "squad", ... }',
    )

"""Score answers to SQuAD's questions as MLPerf's accuracy-squad.py does: F1 and exact match."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from pytest_mlperf import Scores
from pytest_mlperf.adapters.scorers import (
    ModelFreeScorer,
    require_choice,
    require_outputs,
    scorer_error,
)
from pytest_mlperf.extension import Rule, require_options

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def answer_text(reference: Mapping[str, Any], first: int, last: int) -> str:
    """Return the original text of pieces `first` to `last` of a paragraph of data set squad.

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
    """Cut from `written`, whole words, the original of `span` in its `normalized` tokens.

    If both have the same number of characters other than spaces, these correspond one by one; if
    not, nothing can be cut off. `span` may be something else, as for a piece [UNK].
    """
    start = normalized.find(span)
    places = [place for place, character in enumerate(written) if character != " "]
    if not span or start < 0 or len(places) != len(normalized) - normalized.count(" "):
        return written
    first = start - normalized.count(" ", 0, start)
    last = first + len(span) - span.count(" ") - 1
    return written[places[first] : places[last] + 1]


def text_scores(answer: str, accepted: Iterable[str]) -> tuple[float, bool]:
    """Return F1 (0–1) of the words, and whether all are equal, each the best of `accepted`.

    Source: language/bert/evaluate_v1.1.py of https://github.com/mlcommons/inference.
    """
    predicted = normalized_words(answer)
    right = [normalized_words(text) for text in set(accepted)]
    return max(_f1(predicted, words) for words in right), predicted in right


def normalized_words(text: str) -> list[str]:
    """Return lower-case words; remove ASCII's punctuation, replace articles by blanks."""
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
"""What the reference fills up with where an output is shorter than `max_seq_length`."""

NO_ANSWER = "empty"
"""The reference's answer where no span may be one."""

REFERENCE_KEYS = frozenset(
    [
        "id",
        "answers",
        "words",
        "normalized",
        "pieces",
        "word_of_piece",
        "first",
        "start",
        "length",
        "max_context",
        "features",
    ]
)


@dataclass(kw_only=True, slots=True)
class _BestSpan:
    """The best span that the features of a question gave so far.

    Attributes:
        sample: The first feature of the question; it gets the score.
        features: How many of the question's features are here.
        reference: Of the feature that the span is in, else of the first.
        rank: Sum of the span's logits, then its window: the earlier one wins between equals.
        span: Its first and its last piece in the paragraph, or None where no span may be one.
    """

    sample: int
    reference: Mapping[str, Any]
    features: int = 0
    rank: tuple[float, int] = field(default=(float("-inf"), 0))
    span: tuple[int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class SquadScorerOptions:
    """How outputs are read, and which spans may be answers.

    Attributes:
        dtype: Type of the logits, little-endian; those of the reference's --output_dtype.
        transposed: Outputs have shape (2, seq) in place of (seq, 2).
        n_best: A span starts at one of so many positions with the highest start logits, and
            ends at one of so many with the highest end logits.
        max_answer_length: Word pieces of a span at most.
        max_seq_length: Positions of an output at most; a shorter one is filled up with -10000.
    """

    dtype: str = "float32"
    transposed: bool = False
    n_best: int = 20
    max_answer_length: int = 30
    max_seq_length: int = 384

    def __post_init__(self) -> None:
        require_choice("squad", "dtype", self.dtype, LOGIT_DTYPES)
        switch = type(self.transposed) is bool
        rules: list[Rule] = [("transposed", self.transposed, switch, "true or false")]
        for name in ("n_best", "max_answer_length", "max_seq_length"):
            value = getattr(self, name)
            rules.append((name, value, type(value) is int and value >= 1, "a number, at least 1"))
        require_options("scorer squad", rules)


class SquadScorer(ModelFreeScorer[SquadScorerOptions]):
    """Turns the logits of each feature into a span, the best of a question's into text.

    Source: language/bert/accuracy-squad.py and evaluate_v1.1.py of
    https://github.com/mlcommons/inference, with all features of data set squad. Of a question, its
    best span alone is turned into text: the script makes 20, and takes the first.
    """

    metrics = ("f1", "exact_match")

    options: ClassVar[type] = SquadScorerOptions

    def score(self, outputs: Sequence[bytes], references: Sequence[Mapping[str, Any]]) -> Scores:
        """Score the answers that logits give in one pass, one at a time.

        Outputs are logits (seq, 2) of each feature: for each position how well an answer starts and
        ends there; seq is from the feature's own length to `max_seq_length`; minus infinity bars a
        position. References are those of data set squad.

        Returns "f1" and "exact_match" in per cent, each at its best over a question's answers. A
        question's score stands at its first feature; others have None, so that the mean of the rest
        is the aggregate. A question with missing features has no score, since they may change its
        answer. If no question is complete, all are scored from the features here.
        """
        require_outputs("squad", outputs, references)
        questions: dict[str, _BestSpan] = {}
        for sample, (output, reference) in enumerate(zip(outputs, references, strict=True)):
            _check_reference(reference, sample)
            logits = self._logits(output, reference, sample)
            best = questions.setdefault(
                reference["id"], _BestSpan(sample=sample, reference=reference)
            )
            best.features += 1
            self._improve(best, logits, reference)
        complete = [own for own in questions.values() if own.features >= own.reference["features"]]
        return _judge(complete or list(questions.values()), len(outputs))

    def _logits(
        self, output: bytes, reference: Mapping[str, Any], sample: int
    ) -> NDArray[np.float64]:
        import numpy as np

        dtype = np.dtype(LOGIT_DTYPES[self._asked.dtype])
        shortest = reference["first"] + reference["length"] + 1
        longest = self._asked.max_seq_length
        positions, rest = divmod(len(output), 2 * dtype.itemsize)
        if rest or not shortest <= positions <= longest:
            raise scorer_error(
                f"scorer squad: output of sample {sample} has {len(output)} bytes, which are no "
                f"two logits of type {self._asked.dtype} for each of {shortest} to {longest} "
                "positions; set the scorer's dtype and max_seq_length to those of the "
                "engine's outputs",
            )
        numbers = np.frombuffer(output, dtype)
        pairs = numbers.reshape(2, -1) if self._asked.transposed else numbers.reshape(-1, 2).T
        logits = np.full((2, longest), NO_LOGIT)
        logits[:, :positions] = pairs
        if not (logits < np.inf).all():
            side, position = np.argwhere(~(logits < np.inf))[0].tolist()
            raise scorer_error(
                f"scorer squad: the {('start', 'end')[side]} logit at position {position} of "
                f"sample {sample} is {logits[side, position]}, which is not finite; see the "
                "engine for an overflow, or for outputs of another type than the scorer's dtype",
            )
        return logits

    def _improve(
        self, best: _BestSpan, logits: NDArray[np.float64], reference: Mapping[str, Any]
    ) -> None:
        import numpy as np

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
        place = int(sums.argmax())
        rank = (float(sums[place]), -reference["start"])
        if best.span is None or rank > best.rank:
            best.reference, best.rank = reference, rank
            best.span = (int(starts[rows[place]]) - shift, int(ends[columns[place]]) - shift)


def _judge(questions: Sequence[_BestSpan], samples: int) -> Scores:
    f1: list[float | None] = [None] * samples
    exact: list[float | None] = [None] * samples
    # Added up one by one, as the reference does: from 3.12 on, sum() would round otherwise.
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
    import numpy as np

    if count >= len(logits):
        return np.argsort(-logits, kind="stable")
    positions = np.flatnonzero(logits >= np.partition(logits, -count)[-count])
    return positions[np.argsort(-logits[positions], kind="stable")][:count]


def _inside(pieces: NDArray[np.intp], runs: Sequence[Sequence[int]]) -> NDArray[np.bool_]:
    """Tell which pieces lie in one of the runs [begin, end)."""
    import numpy as np

    inside = np.zeros(len(pieces), bool)
    for begin, end in runs:
        inside |= (pieces >= begin) & (pieces < end)
    return inside


def _check_reference(reference: Any, sample: int) -> None:
    if isinstance(reference, Mapping) and reference.keys() >= REFERENCE_KEYS:
        return
    raise scorer_error(
        f"scorer squad: the reference of sample {sample} is not one of data set squad; score with "
        'squad only where the suite says dataset = { use = "squad", ... }',
    )

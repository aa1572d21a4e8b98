"""Compute ROUGE-1, ROUGE-2 and ROUGE-L of many pairs of texts, bit-equal to `rouge_score`.

`rouge_score` stems every word of every text, counts tuples of words and fills a table of all pairs
of words. Here its tokenizer and stemmer see each distinct word once and number its stems; n-grams
are single numbers, one sort counts all texts of a batch, and RapidFuzz computes the longest common
subsequence. benchmarks/test_rouge.py measures the speed of both.

`python -m pytest_mlperf.adapters.scorers.rouge.text` is a helper process of `f_measures`.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cache
from itertools import chain
from types import SimpleNamespace

from pytest_mlperf import EnvironmentFault, RunError
from pytest_mlperf.adapters.lazy import NDArray, np
from pytest_mlperf.adapters.scorers import scorer_error

ROUGE_METRICS = ("rouge1", "rouge2", "rougeL")

BATCH_PAIRS = 128
"""Pairs that are counted together; they fit a processor's cache."""

SIZE_BYTES = 8
"""Bytes of the size field that precedes a helper's input."""

WORD_BYTES = bytes(
    c if c > 127 else ord(chr(c).lower() if chr(c).isalnum() else " ") for c in range(256)
)
"""Map of UTF-8 bytes: letters to lower case, word separators to spaces, others unchanged."""

Pair = tuple[str, str]
"""Prediction and reference."""


def f_measures(
    predictions: Sequence[str], references: Sequence[str], *, processes: int = 1
) -> NDArray[np.float64]:
    """Return F-measures, 0 to 1, of pairs of texts, (3, pairs), rows as in ROUGE_METRICS.

    Equal to `rouge_score.rouge_scorer.RougeScorer(ROUGE_METRICS, use_stemmer=True)`.
    """
    pairs = list(zip(predictions, references, strict=True))
    processes = max(1, min(processes, len(pairs)))
    return _score_here(pairs) if processes == 1 else _share(pairs, processes)


class Vocabulary(dict[bytes, tuple[int, ...]]):
    """Map each word, a text between ASCII spaces and signs, to the numbers of its stems."""

    def __init__(self) -> None:
        try:
            from nltk.stem.porter import PorterStemmer
            from rouge_score import tokenize
        except ImportError as error:
            raise _lacks("rouge-score") from error
        super().__init__()
        self.stems: dict[str, int] = {}
        self._tokenize = tokenize.tokenize
        self._stemmer = SimpleNamespace(stem=cache(PorterStemmer().stem))

    def __missing__(self, written: bytes) -> tuple[int, ...]:
        """Return the numbers of the stems of a new word, and store them."""
        stems = self._tokenize(written.decode("utf-8", "surrogatepass"), self._stemmer)
        numbers = tuple(self.stems.setdefault(stem, len(self.stems)) for stem in stems)
        self[written] = numbers
        return numbers

    def numbers(self, text: str) -> list[int]:
        """Return the numbered stems of a text."""
        written = text.encode("utf-8", "surrogatepass").translate(WORD_BYTES).split()
        return list(chain.from_iterable(map(self.__getitem__, written)))


def _lacks(library: str) -> EnvironmentFault:
    return EnvironmentFault(
        f"scorer rouge needs {library}, which is not installed; "
        "try: pip install 'pytest-mlperf[scoring]'"
    )


def _score_here(pairs: Sequence[Pair]) -> NDArray[np.float64]:
    vocabulary = Vocabulary()
    batches = [
        _score_batch(pairs[start : start + BATCH_PAIRS], vocabulary)
        for start in range(0, len(pairs), BATCH_PAIRS)
    ]
    return np.concatenate([np.empty((len(ROUGE_METRICS), 0)), *batches], axis=1)


def _score_batch(pairs: Sequence[Pair], vocabulary: Vocabulary) -> NDArray[np.float64]:
    try:
        from rapidfuzz.distance import LCSseq
    except ImportError as error:
        raise _lacks("RapidFuzz") from error
    words: list[int] = []
    sizes, subsequences = [], []
    for prediction, reference in pairs:
        sides = vocabulary.numbers(prediction), vocabulary.numbers(reference)
        subsequences.append(LCSseq.similarity(*sides))
        words += sides[0]
        words += sides[1]
        sizes.append(tuple(map(len, sides)))
    lengths = np.array(sizes)
    unigrams, bigrams = _shared_ngrams(words, lengths, len(vocabulary.stems).bit_length())
    return np.stack(
        [
            _f_measure(unigrams, lengths),
            _f_measure(bigrams, lengths - 1),
            _f_measure(np.array(subsequences), lengths),
        ]
    )


def _shared_ngrams(
    words: Sequence[int], lengths: NDArray[np.int64], bits: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Count the words and the bigrams that both texts of a pair have.

    `words` are those of first prediction, first reference, second prediction, ..., as many as in
    `lengths` (pairs, 2). Words are below 2**bits. A pair's number in its batch and two words must
    fit 62 bits, which allows 2**27 different stems.
    """
    numbers = np.fromiter(words, np.int64, len(words))
    text = np.repeat(np.arange(lengths.size), lengths.ravel())
    neighbours = text[1:] == text[:-1]
    twos = (numbers[:-1] << bits | numbers[1:])[neighbours]
    return (
        _shared(text, numbers, bits, len(lengths)),
        _shared(text[1:][neighbours], twos, 2 * bits, len(lengths)),
    )


def _shared(
    text: NDArray[np.int64], grams: NDArray[np.int64], bits: int, pairs: int
) -> NDArray[np.float64]:
    """Return the number of n-grams below 2**bits that both texts share, by pair, with repeats."""
    keys = (text >> 1 << bits | grams) << 1 | text & 1
    keys.sort()
    kinds = keys >> 1
    first = np.flatnonzero(np.diff(kinds, prepend=-1))
    total = np.diff(first, append=len(keys))
    in_reference = np.add.reduceat(keys & 1, first) if len(first) else total
    both = np.minimum(in_reference, total - in_reference)
    return np.bincount(kinds[first] >> bits, both, minlength=pairs).astype(np.float64)


def _f_measure(shared: NDArray[np.float64], lengths: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return F-measures with `rouge_score`'s rounding; `lengths` are (pairs, 2)."""
    precision, recall = (shared[:, None] / np.maximum(lengths, 1)).T
    total = precision + recall
    measures = np.zeros(len(total))
    np.divide(2 * precision * recall, total, out=measures, where=total > 0)
    return measures


def _share(pairs: Sequence[tuple[str, str]], processes: int) -> NDArray[np.float64]:
    """Score every n-th pair in this process and the others in child processes."""
    command = [sys.executable, "-m", "pytest_mlperf.adapters.scorers.rouge.text"]
    pipe = subprocess.PIPE
    measures = np.empty((len(ROUGE_METRICS), len(pairs)))
    with ExitStack() as stack:
        helpers = [
            stack.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe, bufsize=0))
            for _ in range(1, processes)
        ]
        for part, helper in enumerate(helpers, start=1):
            _send(helper, pairs[part::processes])
        measures[:, ::processes] = _score_here(pairs[::processes])
        for part, helper in enumerate(helpers, start=1):
            measures[:, part::processes] = _receive(helper, measures[:, part::processes].shape)
    return measures


def _send(helper: subprocess.Popen[bytes], pairs: Sequence[Pair]) -> None:
    data = json.dumps(pairs).encode()
    rest = memoryview(len(data).to_bytes(SIZE_BYTES, "little") + data)
    assert helper.stdin is not None
    while rest:
        try:
            rest = rest[helper.stdin.write(rest) :]
        except BrokenPipeError:
            raise _died(helper) from None


def _receive(helper: subprocess.Popen[bytes], shape: tuple[int, ...]) -> NDArray[np.float64]:
    assert helper.stdout is not None
    answer = helper.stdout.read()
    if len(answer) != math.prod(shape) * np.dtype(np.float64).itemsize:
        raise _died(helper)
    return np.frombuffer(answer, np.float64).reshape(shape)


def _died(helper: subprocess.Popen[bytes]) -> RunError:
    return scorer_error(
        f"scorer rouge: a helper process ended early, with exit code {helper.wait()}; its last "
        "words are in this log. Out of memory? Set the scorer's processes to a smaller number",
    )


def _end_with_parent() -> None:
    os.read(0, 1)
    os._exit(1)


def main() -> None:
    """Score pairs from stdin, which the parent keeps open; write F-measures to stdout."""
    size = int.from_bytes(sys.stdin.buffer.read(SIZE_BYTES), "little")
    data = sys.stdin.buffer.read(size)
    if 0 < size == len(data):
        threading.Thread(target=_end_with_parent, daemon=True).start()
        sys.stdout.buffer.write(_score_here(json.loads(data)).tobytes())


Sentence = list[int]
"""Words as numbers; words with the same stem have the same number."""


def summary_f_measures(
    predictions: Sequence[str], references: Sequence[str]
) -> NDArray[np.float64]:
    """Return ROUGE-L F-measures (pairs,), 0 to 1, by sentences, of texts with one per line.

    Each sentence of the reference is compared with each of the prediction. A word of the reference
    counts if it is in the longest common subsequence with any of them, at most as often as both
    texts have it. If there are several longest subsequences, the choice is that of `rouge_score`.

    Equal to `rouge_score.rouge_scorer.RougeScorer(["rougeLsum"], use_stemmer=True)`.
    """
    vocabulary = Vocabulary()
    return np.array(
        [
            _summary_f_measure(
                _sentences(reference, vocabulary), _sentences(prediction, vocabulary)
            )
            for prediction, reference in zip(predictions, references, strict=True)
        ],
        np.float64,
    )


def _sentences(text: str, vocabulary: Vocabulary) -> list[Sentence]:
    lines = (vocabulary.numbers(line) for line in text.split("\n"))
    return [line for line in lines if line]


def _summary_f_measure(reference: Sequence[Sentence], prediction: Sequence[Sentence]) -> float:
    if not reference or not prediction:
        return 0.0
    reference_counts = Counter(word for sentence in reference for word in sentence)
    prediction_counts = Counter(word for sentence in prediction for word in sentence)
    hits = 0
    for sentence in reference:
        for word in _covered(sentence, prediction):
            if prediction_counts[word] > 0 and reference_counts[word] > 0:
                hits += 1
                prediction_counts[word] -= 1
                reference_counts[word] -= 1
    recall = hits / sum(map(len, reference))
    precision = hits / sum(map(len, prediction))
    total = precision + recall
    return 2 * precision * recall / total if total > 0 else 0.0


def _covered(sentence: Sentence, others: Sequence[Sentence]) -> list[int]:
    """Return a sentence's words in a longest common subsequence with any of `others`."""
    positions = set().union(*(_common(sentence, other) for other in others))
    return [sentence[position] for position in sorted(positions)]


def _common(sentence: Sentence, other: Sentence) -> list[int]:
    """Return a sentence's positions of a longest common subsequence, searched from the end."""
    if not set(sentence) & set(other):
        return []
    lengths = _lengths(sentence, other)
    row, column, positions = len(sentence), len(other), []
    while row and column:
        if sentence[row - 1] == other[column - 1]:
            row, column = row - 1, column - 1
            positions.append(row)
        elif lengths[row - 1][column] == lengths[row][column]:
            row -= 1
        else:
            column -= 1
    return positions


def _lengths(sentence: Sentence, other: Sentence) -> list[list[int]]:
    """Return the lengths of the longest common subsequences of all prefixes of both."""
    above = [0] * (len(other) + 1)
    table = [above]
    for word in sentence:
        left, row = 0, [0]
        for column, other_word in enumerate(other):
            if word == other_word:
                left = above[column] + 1
            elif above[column + 1] > left:
                left = above[column + 1]
            row.append(left)
        table.append(row)
        above = row
    return table


if __name__ == "__main__":
    main()

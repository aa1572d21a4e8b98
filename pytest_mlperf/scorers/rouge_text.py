"""ROUGE-1, ROUGE-2 and ROUGE-L of many pairs of texts at once, equal to `rouge_score` to the bit.

`rouge_score` stems every word of every text, counts tuples of words and fills a table of all pairs
of words. Here a word is stemmed once and is a number from then on; n-grams are one number each, and
all texts of a batch are counted by one sort; the longest common subsequence comes from RapidFuzz.

Also a program: `python -m pytest_mlperf.scorers.rouge_text` is a helper of `f_measures`.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from pytest_mlperf.core.errors import EnvironmentFault, RunError
from pytest_mlperf.scorers.porter import stem

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

METRICS = ("rouge1", "rouge2", "rougeL")

BATCH = 128
"""Pairs that are counted together; few enough for a processor's cache."""

SIZE_BYTES = 8
"""How many bytes tell a helper how many follow."""

PLAIN = bytes(ord(chr(c).lower()) if c < 128 and chr(c).isalnum() else ord(" ") for c in range(256))
"""For each byte of UTF-8 the lower-case letter or digit that it is, else a space."""

Pair = tuple[bytes, bytes]


def f_measures(
    predictions: Sequence[str], references: Sequence[str], *, processes: int = 1
) -> NDArray[np.float64]:
    """Return the F-measures of pairs of texts.

    Equal to `rouge_score.rouge_scorer.RougeScorer(METRICS, use_stemmer=True)`.

    Args:
        predictions: What was written, one text per pair.
        references: What should have been written.
        processes: How many processes share the work; this one is one of them.

    Returns:
        Shape (3, pairs): rows as in METRICS, values from 0 to 1.

    Raises:
        EnvironmentFault: RapidFuzz is not installed.
        RunError: A helper process died.
    """
    pairs = list(zip(predictions, references, strict=True))
    processes = max(1, min(processes, len(pairs)))
    return _score_here(_plain(pairs)) if processes == 1 else _share(pairs, processes)


def plain(text: str) -> bytes:
    """Return the text with every character that cannot be part of a word as spaces.

    Words are runs of a-z and 0-9 after lower-casing. Two characters outside ASCII become letters
    when they are lower-cased: the Kelvin sign, and I with a dot, which leaves its dot behind.
    """
    if not text.isascii():
        text = text.replace("\N{KELVIN SIGN}", "k")
        text = text.replace("\N{LATIN CAPITAL LETTER I WITH DOT ABOVE}", "i ")
    return text.encode("utf-8", "surrogatepass").translate(PLAIN)


def _plain(pairs: Sequence[tuple[str, str]]) -> list[Pair]:
    return [(plain(prediction), plain(reference)) for prediction, reference in pairs]


class Vocabulary(dict[bytes, int]):
    """The number of each word; words with the same stem have the same."""

    def __init__(self) -> None:
        super().__init__()
        self.stems: dict[str, int] = {}

    def __missing__(self, word: bytes) -> int:
        """Give a word its number when it is first met; short words are not stemmed."""
        text = word.decode("ascii")
        number = self.stems.setdefault(stem(text) if len(text) > 3 else text, len(self.stems))
        self[word] = number
        return number


def _score_here(pairs: Sequence[Pair]) -> NDArray[np.float64]:
    import numpy as np

    vocabulary = Vocabulary()
    batches = [
        _score_batch(pairs[start : start + BATCH], vocabulary)
        for start in range(0, len(pairs), BATCH)
    ]
    return np.concatenate([np.empty((len(METRICS), 0)), *batches], axis=1)


def _score_batch(pairs: Sequence[Pair], vocabulary: Vocabulary) -> NDArray[np.float64]:
    import numpy as np

    try:
        from rapidfuzz.distance import LCSseq
    except ImportError as error:
        raise EnvironmentFault(
            "scorer rouge needs RapidFuzz, which is not installed; "
            "try: pip install 'pytest-mlperf[lm]'"
        ) from error
    words: list[int] = []
    sizes, subsequences = [], []
    for prediction, reference in pairs:
        said = list(map(vocabulary.__getitem__, prediction.split()))
        meant = list(map(vocabulary.__getitem__, reference.split()))
        subsequences.append(LCSseq.similarity(said, meant))
        words += said
        words += meant
        sizes.append((len(said), len(meant)))
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
    """Count the words and the pairs of neighbours that both texts of a pair have.

    Args:
        words: The words of all texts: first prediction, first reference, second prediction, ...
        lengths: Shape (pairs, 2): how many of them belong to the prediction and the reference.
        bits: Every word is below 2**bits. A pair's number in its batch and two words must fit 62
            bits, which 2**27 different stems still do.
    """
    import numpy as np

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
    """Return for each pair how many n-grams its texts share, repeated ones as often as both do.

    Args:
        text: Which text each n-gram stands in: 2 * pair, plus 1 in the reference.
        grams: The n-grams, below 2**bits.
        bits: See `grams`.
        pairs: How many pairs there are.
    """
    import numpy as np

    keys = (text >> 1 << bits | grams) << 1 | text & 1
    keys.sort()
    kinds = keys >> 1
    first = np.flatnonzero(np.diff(kinds, prepend=-1))
    total = np.diff(first, append=len(keys))
    in_reference = np.add.reduceat(keys & 1, first) if len(first) else total
    both = np.minimum(in_reference, total - in_reference)
    return np.bincount(kinds[first] >> bits, both, minlength=pairs).astype(np.float64)


def _f_measure(shared: NDArray[np.float64], lengths: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return 2 * precision * recall / (precision + recall), in `rouge_score`'s order of rounding.

    Args:
        shared: What both texts of a pair have.
        lengths: Shape (pairs, 2): what the prediction and the reference have.
    """
    import numpy as np

    precision, recall = (shared[:, None] / np.maximum(lengths, 1)).T
    total = precision + recall
    found = np.zeros(len(total))
    np.divide(2 * precision * recall, total, out=found, where=total > 0)
    return found


def _share(pairs: Sequence[tuple[str, str]], processes: int) -> NDArray[np.float64]:
    """Score every n-th pair here and the others in helpers, which end with this process."""
    import numpy as np

    command = [sys.executable, "-m", "pytest_mlperf.scorers.rouge_text"]
    pipe = subprocess.PIPE
    found = np.empty((len(METRICS), len(pairs)))
    with ExitStack() as stack:
        helpers = [
            stack.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe, bufsize=0))
            for _ in range(1, processes)
        ]
        for part, helper in enumerate(helpers, start=1):
            _send(helper, _plain(pairs[part::processes]))
        found[:, ::processes] = _score_here(_plain(pairs[::processes]))
        for part, helper in enumerate(helpers, start=1):
            found[:, part::processes] = _receive(helper, found[:, part::processes].shape)
    return found


def _send(helper: subprocess.Popen[bytes], pairs: Sequence[Pair]) -> None:
    data = b"\n".join(text for pair in pairs for text in pair)
    rest = memoryview(len(data).to_bytes(SIZE_BYTES, "little") + data)
    assert helper.stdin is not None
    while rest:
        try:
            rest = rest[helper.stdin.write(rest) :]
        except BrokenPipeError:
            raise _died(helper) from None


def _receive(helper: subprocess.Popen[bytes], shape: tuple[int, ...]) -> NDArray[np.float64]:
    import numpy as np

    assert helper.stdout is not None
    answer = helper.stdout.read()
    if len(answer) != math.prod(shape) * np.dtype(np.float64).itemsize:
        raise _died(helper)
    return np.frombuffer(answer, np.float64).reshape(shape)


def _died(helper: subprocess.Popen[bytes]) -> RunError:
    return RunError(
        "scorer",
        f"scorer rouge: a helper process ended early, with exit code {helper.wait()}; its last "
        "words are in this log. Out of memory? Set the scorer's processes to a smaller number",
    )


def _end_with_parent() -> None:
    os.read(0, 1)
    os._exit(1)


def main() -> None:
    """Score pairs from standard input; write the F-measures to standard output.

    The parent keeps our input open for as long as it lives.
    """
    size = int.from_bytes(sys.stdin.buffer.read(SIZE_BYTES), "little")
    data = sys.stdin.buffer.read(size)
    if 0 < size == len(data):
        threading.Thread(target=_end_with_parent, daemon=True).start()
        texts = data.split(b"\n")
        found = _score_here(list(zip(texts[::2], texts[1::2], strict=True)))
        sys.stdout.buffer.write(found.tobytes())


if __name__ == "__main__":
    main()

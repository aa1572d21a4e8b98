"""Score transcribed speech as MLPerf's Whisper benchmark does: 100 less the word error rate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from pytest_mlperf import EnvironmentFault, RunError, Scores
from pytest_mlperf.adapters import scorers
from pytest_mlperf.adapters.conventions import SPEECH_LABELS
from pytest_mlperf.adapters.scorers import scorer_error
from pytest_mlperf.adapters.scorers.leverage import ratio_scores

MAX_ANSWER_CHARACTERS = 8192
"""Characters of an answer; 30 seconds of speech have a tenth. The normaliser's time grows with
their square."""

MAX_JOINED_WORDS = 3
NEWER = (r"\bkinda\b", r"\bsorta\b", r"\bdunno\b", r"\bcause\b")
"""Spoken forms that whisper-normalizer spells out, and openai-whisper, MLPerf's, does not."""


class WordAccuracyScorer(scorers.ModelFreeScorer[scorers.NoOptions]):
    """Compares the words that were heard with those that were spoken.

    Both are normalised by OpenAI's EnglishTextNormalizer (package whisper-normalizer, less what it
    has beyond openai-whisper, which the reference calls). The error rate is Levenshtein's distance
    between the words of all samples by the number of words spoken, after up to three words that are
    written as one on the other side count as that one.
    Source: speech2text/accuracy_eval.py and helpers.py of https://github.com/mlcommons/inference.

    Like there, words are joined on the way from the left without looking back, an answer to silence
    adds errors and no words, so that accuracy may be below 0, and what is spoken loses characters
    that are no label. Unlike there, a number that is no label's is an error that names its sample.
    An answer that ends the normaliser with an error, such as 5,000 digits, keeps its words.
    """

    metrics = ("accuracy",)
    libraries = ("rapidfuzz", "whisper_normalizer")

    def score(self, outputs: Sequence[bytes], references: Sequence[str]) -> Scores:
        """Score transcriptions against lower-case transcripts.

        Each character of an answer is an int64, little-endian, its place in `SPEECH_LABELS`; others
        are left out. Returns "accuracy", in per cent, over all words. A sample's score is its
        pseudo-value, accuracy + samples x influence.
        """
        import numpy as np

        scorers.require_outputs("word_accuracy", outputs, references)
        normalise = normaliser()
        spoken = scorers.require_texts("word_accuracy", references, "the transcript")
        counts = []
        for sample, text in enumerate(spoken):
            answer = _answer(sample, outputs[sample])
            heard = _normal(answer, normalise)
            transcript = "".join(filter(SPEECH_LABELS.__contains__, text))
            right = _normal(transcript, normalise)
            if right is None:
                raise scorer_error(
                    f"scorer word_accuracy: the transcript of sample {sample}, {transcript[:40]!r} "
                    f"({len(transcript):,} characters), cannot be normalised; correct the data set"
                )
            if heard is None:
                heard = answer.split()
            counts.append(word_errors(heard, right))
        errors, words = np.array(counts, np.float64).T
        if not (total := words.sum()):
            raise scorer_error(
                f"scorer word_accuracy: the transcripts of all {len(counts)} samples have no word "
                "in lower case, so there is no error rate; correct the data set",
            )
        pseudo, leverage = ratio_scores(words - errors, words, 100.0)
        return Scores(
            per_sample={"accuracy": pseudo},
            aggregate={"accuracy": float((1 - errors.sum() / total) * 100)},
            whole=frozenset({"accuracy"}),
            leverage={"accuracy": leverage},
        )


def normaliser() -> Callable[[str], str]:
    """Return OpenAI's normaliser of English, as MLPerf's reference gets it from openai-whisper."""
    try:
        from whisper_normalizer.english import EnglishTextNormalizer
    except ImportError as error:
        raise EnvironmentFault(
            "scorer word_accuracy normalises words with whisper-normalizer, which is not "
            "installed; try: pip install 'pytest-mlperf[speech]'"
        ) from error
    normalise: Any = EnglishTextNormalizer()
    for pattern in NEWER:
        normalise.replacers.pop(pattern, None)
    return cast(Callable[[str], str], normalise)


def _answer(sample: int, output: bytes) -> str:
    import numpy as np

    if len(output) % 8 or len(output) > 8 * MAX_ANSWER_CHARACTERS:
        raise _wrong(
            sample,
            f"is {len(output)} bytes, which are not up to {MAX_ANSWER_CHARACTERS:,} numbers "
            "of 8 bytes",
        )
    places = np.frombuffer(output, "<i8")
    if len(bad := places[(places < 0) | (places >= len(SPEECH_LABELS))]):
        raise _wrong(
            sample, f"has the number {bad[0]}, which is none of 0 to {len(SPEECH_LABELS) - 1}"
        )
    return "".join(SPEECH_LABELS[place] for place in places.tolist())


def _normal(text: str, normalise: Callable[[str], str]) -> list[str] | None:
    """Return normalised words; None for a text that ends the normaliser with an error."""
    try:
        return normalise(text).split()
    except Exception:  # such as of a number of 5,000 digits, which no int is made of
        return None


def _wrong(sample: int, defect: str) -> RunError:
    return scorer_error(
        f"scorer word_accuracy: the output of sample {sample} {defect}; answer with an int64 for "
        f"each character of the text in lower case, its place in {SPEECH_LABELS!r}",
    )


def word_errors(heard: Sequence[str], spoken: Sequence[str]) -> tuple[int, int]:
    """Return the errors in the words heard, and how many words were spoken.

    >>> word_errors(["every", "one", "left"], ["everyone", "left"])
    (0, 2)
    """
    from rapidfuzz.distance import Levenshtein

    left, right = _joined(heard, spoken)
    return Levenshtein.distance(left, right), len(spoken)


def _joined(heard: Sequence[str], spoken: Sequence[str]) -> tuple[list[str], list[str]]:
    """Join adjacent words on either side that form one word of the other."""
    left: list[str] = []
    right: list[str] = []
    i = j = 0
    while i < len(spoken) and j < len(heard):
        many_spoken, many_heard = _run(heard, spoken, i, j)
        right.append("".join(spoken[i : i + many_spoken]))
        left.append("".join(heard[j : j + many_heard]))
        i, j = i + many_spoken, j + many_heard
    return [*left, *heard[j:]], [*right, *spoken[i:]]


def _run(heard: Sequence[str], spoken: Sequence[str], i: int, j: int) -> tuple[int, int]:
    for many in range(1, MAX_JOINED_WORDS + 1):
        if "".join(spoken[i : i + many]) == heard[j]:
            return many, 1
        if "".join(heard[j : j + many]) == spoken[i]:
            return 1, many
    return 1, 1

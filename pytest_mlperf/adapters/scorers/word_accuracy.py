"""Score transcribed speech as MLPerf's Whisper benchmark does: 100 minus the word error rate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from pytest_mlperf import RunError, Scores
from pytest_mlperf.adapters import scorers
from pytest_mlperf.adapters.conventions import SPEECH_LABELS, not_installed
from pytest_mlperf.adapters.lazy import np
from pytest_mlperf.adapters.scorers import scorer_error
from pytest_mlperf.adapters.scorers.leverage import ratio_scores, whole_scores

MAX_ANSWER_CHARACTERS = 8192
"""Maximum characters of an answer, as the normaliser's time is quadratic; 30 s of speech have 10 %.
"""

MAX_JOINED_WORDS = 3
NEWER = (r"\bkinda\b", r"\bsorta\b", r"\bdunno\b", r"\bcause\b")
"""Spoken forms that whisper-normalizer spells out, and openai-whisper, MLPerf's, does not."""


class WordAccuracyScorer(scorers.ScorerBase[scorers.NoOptions]):
    """Compare the transcribed words with the spoken words; the score is 100 - word error rate.

    Both texts are normalised by OpenAI's EnglishTextNormalizer: the package whisper-normalizer,
    without the rules that openai-whisper lacks, which the reference uses. The error rate is the
    Levenshtein distance between words, summed over all samples, divided by the number of spoken
    words. Up to three adjacent words that are written as one word in the other text count as that
    word. Source: speech2text/accuracy_eval.py and helpers.py of
    https://github.com/mlcommons/inference.

    As in these scripts, words are joined from the left without backtracking, and characters of a
    reference transcript that are not in `SPEECH_LABELS` are removed. Words transcribed from silence
    are errors, so that accuracy may be below 0. Unlike in these scripts, an output with a number
    outside the labels is an error that names the sample, and an answer on which the normaliser
    fails, such as 5,000 digits, is not normalised.
    """

    metrics = ("accuracy",)
    libraries = ("rapidfuzz", "whisper_normalizer")

    def score(self, outputs: Sequence[bytes], references: Sequence[str]) -> Scores:
        """Score transcripts against the spoken text in lower case.

        An output has an int64, little-endian, for each character: its index in `SPEECH_LABELS`. A
        sample's score is its jackknife pseudo-value, in per cent: accuracy + number of samples x
        influence.
        """
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
                    "scorer word_accuracy: the text normaliser fails on the transcript of sample "
                    f"{sample}, {transcript[:40]!r} ({len(transcript):,} characters); correct the "
                    "data set"
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
        accuracy = float((1 - errors.sum() / total) * 100)
        return whole_scores("accuracy", accuracy, pseudo, leverage)


def normaliser() -> Callable[[str], str]:
    """Return a text normaliser for English that equals the one in openai-whisper."""
    try:
        from whisper_normalizer.english import EnglishTextNormalizer
    except ImportError as error:
        raise not_installed("scorer word_accuracy", "whisper-normalizer", "speech") from error
    normalise: Any = EnglishTextNormalizer()
    for pattern in NEWER:
        normalise.replacers.pop(pattern, None)
    return cast(Callable[[str], str], normalise)


def _answer(sample: int, output: bytes) -> str:
    if len(output) % 8 or len(output) > 8 * MAX_ANSWER_CHARACTERS:
        raise _wrong(
            sample,
            f"has {len(output)} bytes; it must be at most {MAX_ANSWER_CHARACTERS:,} numbers of 8 "
            "bytes",
        )
    indices = np.frombuffer(output, "<i8")
    if len(invalid := indices[(indices < 0) | (indices >= len(SPEECH_LABELS))]):
        raise _wrong(
            sample,
            f"has the number {invalid[0]}, which is not one of 0 to {len(SPEECH_LABELS) - 1}",
        )
    return "".join(SPEECH_LABELS[index] for index in indices.tolist())


def _normal(text: str, normalise: Callable[[str], str]) -> list[str] | None:
    """Return the normalised words of a text; None if the normaliser fails."""
    try:
        return normalise(text).split()
    except Exception:  # such as int()'s for 5,000 digits
        return None


def _wrong(sample: int, defect: str) -> RunError:
    return scorer_error(
        f"scorer word_accuracy: the output of sample {sample} {defect}; for each character of the "
        f"text in lower case, the engine must return its index in {SPEECH_LABELS!r} as int64",
    )


def word_errors(heard: Sequence[str], spoken: Sequence[str]) -> tuple[int, int]:
    """Return the number of word errors in `heard`, and the number of words in `spoken`.

    >>> word_errors(["every", "one", "left"], ["everyone", "left"])
    (0, 2)
    """
    from rapidfuzz.distance import Levenshtein

    left, right = _joined(heard, spoken)
    return Levenshtein.distance(left, right), len(spoken)


def _joined(heard: Sequence[str], spoken: Sequence[str]) -> tuple[list[str], list[str]]:
    """Join adjacent words that the other text writes as one word; return both lists of words."""
    left: list[str] = []
    right: list[str] = []
    i = j = 0
    while i < len(spoken) and j < len(heard):
        spoken_count, heard_count = _run(heard, spoken, i, j)
        right.append("".join(spoken[i : i + spoken_count]))
        left.append("".join(heard[j : j + heard_count]))
        i, j = i + spoken_count, j + heard_count
    return [*left, *heard[j:]], [*right, *spoken[i:]]


def _run(heard: Sequence[str], spoken: Sequence[str], i: int, j: int) -> tuple[int, int]:
    for count in range(1, MAX_JOINED_WORDS + 1):
        if "".join(spoken[i : i + count]) == heard[j]:
            return count, 1
        if "".join(heard[j : j + count]) == spoken[i]:
            return 1, count
    return 1, 1

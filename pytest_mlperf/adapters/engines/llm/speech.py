"""Prepare speech for engines of Whisper models; encode transcripts as MLPerf logs them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_mlperf import Dataset, SuiteError
from pytest_mlperf.adapters.conventions import SPEECH_LABELS
from pytest_mlperf.adapters.engines import broken, refused_sample
from pytest_mlperf.adapters.lazy import NDArray, np

RATE = 16_000
TRANSCRIPT_START = ("<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>")
"""Beginning of every transcript in MLPerf's reference: English, without times."""

_CODES = {label: index.to_bytes(8, "little") for index, label in enumerate(SPEECH_LABELS)}


def spelled(text: str) -> bytes:
    """Return a transcript as MLPerf's Whisper logs it: an int64 for each character.

    Each is the index in `SPEECH_LABELS` of the lower-case character; others are left out.

    >>> spelled(" A, b.").hex(" ", 8)
    '0100000000000000 0000000000000000 0200000000000000'
    """
    return b"".join(filter(None, map(_CODES.get, text.lower().strip())))


def transcript_encoder(tokenizer: Any) -> Callable[[int, Sequence[int]], bytes]:
    """Return a function (index, tokens) that encodes a transcript as int64 character codes."""
    return lambda _, row: spelled(tokenizer.decode(list(row), skip_special_tokens=True))


def clip_of(dataset: Dataset, index: int, seconds: float) -> NDArray[Any]:
    """Return an audio clip as float32 at 16 kHz; raise if it is invalid or exceeds `seconds`."""
    sample = dataset.input(index)
    if not isinstance(sample, Mapping) or {"audio", "sampling_rate"} - sample.keys():
        raise refused_sample(
            index,
            f"is of type {type(sample).__name__}, but a Whisper model takes audio clips: a dict "
            "with the keys audio and sampling_rate, as in data set librispeech",
        )
    audio: NDArray[np.float32] = np.asarray(sample["audio"], np.float32)
    if audio.ndim != 1 or not len(audio):
        fault = f"has audio of shape {audio.shape}; mono audio has the shape (samples,)"
        raise refused_sample(index, fault)
    if not np.isfinite(audio).all():
        raise refused_sample(index, "has audio with a value that is NaN or infinite")
    if sample["sampling_rate"] != RATE:
        raise refused_sample(index, f"has {sample['sampling_rate']} Hz; resample it to {RATE} Hz")
    if len(audio) > seconds * RATE:
        raise refused_sample(
            index,
            f"lasts {len(audio) / RATE:.2f} s, but the model takes clips of at most {seconds:g} s; "
            "leave the clip out, or cut it",
        )
    return audio


def prompt_tokens(
    engine: str, tokenizer: Any, folder: Path, max_positions: int | None, max_new_tokens: int
) -> list[int]:
    """Return the tokens that begin each transcript; raise if `max_new_tokens` more do not fit."""
    vocabulary = tokenizer.get_vocab()
    missing = [name for name in TRANSCRIPT_START if name not in vocabulary]
    if missing:
        raise broken(
            folder,
            f"its tokenizer has no {', '.join(missing)}; use a multilingual Whisper model",
        )
    if max_positions is not None and len(TRANSCRIPT_START) + max_new_tokens > max_positions:
        raise SuiteError(
            f"engine {engine}: max_new_tokens = {max_new_tokens} and the {len(TRANSCRIPT_START)} "
            f"tokens of the prompt do not fit the model's {max_positions} positions; set "
            f"max_new_tokens to at most {max_positions - len(TRANSCRIPT_START)}",
            option="max_new_tokens",
        )
    return [vocabulary[name] for name in TRANSCRIPT_START]


@dataclass(kw_only=True, slots=True)
class SpeechClips:
    """Provide audio clips for a model to transcribe.

    Attributes:
        prompt: Tokens that every transcript begins with.
        seconds: Maximum length of a clip.
    """

    dataset: Dataset
    prompt: Sequence[int]
    seconds: float
    _clips: dict[int, NDArray[Any]] = field(default_factory=dict)

    def tokens(self, index: int) -> list[int]:
        """Store a sample's audio clip, and return the tokens that begin its transcript."""
        self._clips[index] = clip_of(self.dataset, index, self.seconds)
        return list(self.prompt)

    def __getitem__(self, index: int) -> NDArray[Any]:
        return self._clips[index]

    def forget(self, indices: Iterable[int]) -> None:
        for index in indices:
            self._clips.pop(index, None)

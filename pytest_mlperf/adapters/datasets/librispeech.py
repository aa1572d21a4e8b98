"""Read LibriSpeech as MLPerf repacked it for Whisper: audio clips of up to 30 s."""

from __future__ import annotations

import hashlib
import re
import wave
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from statistics import fmean
from typing import Any, NamedTuple

from pytest_mlperf import RunError, UnavailableError
from pytest_mlperf.adapters.datasets import files
from pytest_mlperf.adapters.datasets.files.json_records import read_records
from pytest_mlperf.adapters.lazy import np

OFFICIAL_LISTS = ("dev-all-repack.json",)

RATE = 16_000
MAX_CLIP_SECONDS = 30.0
"""Length of Whisper's window; the reference skips longer clips."""

_CHAPTER = re.compile(r"(\d+-\d+)_\d+\.wav")
"""Clip names of repackage_librispeech.py: speaker, chapter, and a number."""


@dataclass(frozen=True, kw_only=True)
class LibriSpeechOptions(files.ChecksumOptions, dataset="librispeech", noun="clips"):
    """Options of the data set librispeech.

    Attributes:
        path: List of clips, dev-all-repack.json, or a folder with it or with a single JSON file.
            Clips are found next to the list, by the last two parts of their paths in it, e.g.
            dev-all-repack/84-121123_0.wav.
        checksum: "md5:" or "sha256:" and the hex digits of the list; None skips the check.
    """

    def find(self) -> Path:
        return files.find_file(
            Path(self.path),
            official=OFFICIAL_LISTS,
            endings=(".json",),
            whole="list of clips",
            advice=(
                "get or make it as the README.md in speech2text of MLPerf's inference repository "
                f"says, and set the data set's path to {OFFICIAL_LISTS[0]}"
            ),
        )


class _Clip(NamedTuple):
    transcript: str
    file: Path
    samples: int


class LibriSpeechDataset(files.FileDataset[_Clip]):
    """Clips in the order of the list; clips above 30 s or without a transcript are left out.

    An input has "audio" (mono, float32 from -1 to 1) and "sampling_rate" (16000).
    Source: speech2text/manifest.py of https://github.com/mlcommons/inference.
    """

    options = LibriSpeechOptions
    kind = b"librispeech"

    def _read(self, options: LibriSpeechOptions, file: Path) -> None:
        clips = list(_clips(file))
        if not clips:
            defect = f"no clip in it has a transcript and at most {MAX_CLIP_SECONDS:g} s"
            raise files.wrong(file, defect, "set path to another list of clips")
        self._keep(clips, options.count, file)
        missing = [clip.file for clip in self._samples if not clip.file.is_file()]
        if missing:
            raise UnavailableError(
                f"{file.parent}: {len(missing)} of the {len(self)} clips listed in {file.name} are "
                f"not here, the first is {missing[0]}; put the folder {missing[0].parent.name} of "
                f"clips beside {file.name}"
            )
        for clip in self._samples:
            _check_header(clip)

    def input(self, index: int) -> dict[str, Any]:
        stored = np.frombuffer(_pcm(self._sample(index)), "<i2")
        return {"audio": stored.astype(np.float32) / np.float32(32768), "sampling_rate": RATE}

    def reference(self, index: int) -> str:
        return self._sample(index).transcript

    def group(self, index: int) -> str | None:
        """Return the speaker and chapter in a clip's name; None if the name has another form."""
        match = _CHAPTER.fullmatch(self._sample(index).file.name)
        return match[1] if match else None

    def sizes(self, indices: Sequence[int]) -> dict[str, float]:
        """Return "audio_s": the clips' mean length [s]; the model still processes 30 s of each."""
        return {"audio_s": fmean(self._sample(index).samples / RATE for index in indices)}

    def _content(self, index: int) -> tuple[bytes, bytes]:
        clip = self._samples[index]
        return hashlib.sha256(_pcm(clip)).digest(), files.encode(clip.transcript)


def _clips(file: Path) -> Iterator[_Clip]:
    for row, record in enumerate(read_records(file)):
        if not isinstance(record.get("transcript"), str):
            continue
        name, samples = _sound(file, row, record)
        if samples <= MAX_CLIP_SECONDS * RATE:
            yield _Clip(record["transcript"], _place(file, row, name), samples)


def _sound(file: Path, row: int, record: dict[str, Any]) -> tuple[str, int]:
    listed = record.get("files")
    entries = [
        entry
        for entry in (listed if isinstance(listed, list) else [])
        if isinstance(entry, dict) and entry.get("speed", 1) == 1
    ]
    if len(entries) != 1 or not isinstance(entries[0].get("fname"), str):
        raise _wrong(
            file, row, "'files' is not a list with one object of speed 1, which has 'fname' as text"
        )
    samples = record.get("original_num_samples")
    if type(samples) is not int or samples < 1:
        defect = f"'original_num_samples' is {samples!r:.40}, not a number of samples of at least 1"
        raise _wrong(file, row, defect)
    return entries[0]["fname"], samples


def _place(file: Path, row: int, name: str) -> Path:
    parts = PurePosixPath(name).parts[-2:]
    if not parts or ".." in parts or "/" in parts or "\0" in name:
        raise _wrong(file, row, f"the file name {name!r:.80} is not FOLDER/CLIP")
    return file.parent.joinpath(*parts)


def _wrong(file: Path, row: int, defect: str) -> RunError:
    return files.wrong(
        f"{file}: clip {row}", defect, "correct the list, or get it from its source again"
    )


def _check_header(clip: _Clip) -> None:
    with _opened(clip.file) as sound:
        form = (sound.getnchannels(), 8 * sound.getsampwidth(), sound.getframerate())
        if form != (1, 16, RATE):
            raise files.wrong(
                clip.file,
                f"this WAV has {form[0]} channels of {form[1]} bits at {form[2]} Hz",
                f"convert it to one channel of 16 bits at {RATE} Hz",
            )
        _check_length(clip, sound.getnframes())
    if clip.file.stat().st_size < 2 * clip.samples:
        _check_length(clip, clip.file.stat().st_size // 2)


def _check_length(clip: _Clip, samples: int) -> None:
    if samples != clip.samples:
        raise files.wrong(
            clip.file,
            f"it has {samples} samples, but the list says {clip.samples}: the file is cut short, "
            "or the wrong one",
            "get it and the list from their source again",
        )


def _opened(path: Path) -> wave.Wave_read:
    try:
        return wave.open(str(path), "rb")
    except (wave.Error, EOFError) as error:
        raise files.wrong(
            path,
            f"this is not a WAV of plain PCM ({error})",
            "convert it to a WAV with one channel of 16 bits at 16 kHz, as MLPerf's "
            "convert_librispeech.py converts LibriSpeech's FLAC files",
        ) from error


def _pcm(clip: _Clip) -> bytes:
    with _opened(clip.file) as sound:
        content = sound.readframes(clip.samples)
    _check_length(clip, len(content) // 2)
    return content

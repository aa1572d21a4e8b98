"""LibriSpeech's clips as MLPerf repacks them for Whisper, and how list and files can be wrong."""

from __future__ import annotations

import json
import re
import wave
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pytest_mlperf.adapters.datasets.librispeech import OFFICIAL_LISTS, LibriSpeechDataset
from pytest_mlperf.core.errors import RunError, UnavailableError
from tests.adapters.datasets.refusals import not_refused

RATE = 16000
RNG = np.random.default_rng(0)
SOUNDS = [RNG.integers(-32768, 32768, samples).astype("<i2") for samples in (400, 16000, 7)]
TEXTS = ["mister quilter is the apostle", "he's here", ""]

Write = Callable[..., Path]
Change = Callable[[dict[str, Any]], object]


def write_wav(
    path: Path, sound: NDArray[Any], *, channels: int = 1, width: int = 2, rate: int = RATE
) -> None:
    path.parent.mkdir(exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(sound.tobytes())


def entry(name: str, text: str, samples: int) -> dict[str, Any]:
    """Return what repackage_librispeech.py writes of a clip."""
    seconds = samples / RATE
    return {
        "transcript": text,
        "files": [
            {
                "channels": 1,
                "sample_rate": 16000.0,
                "bitdepth": 16,
                "bitrate": 256000.0,
                "duration": seconds,
                "num_samples": samples,
                "encoding": "Signed Integer PCM",
                "silent": False,
                "fname": name,
                "speed": 1,
            }
        ],
        "original_duration": seconds,
        "original_num_samples": samples,
    }


def write_clips(
    folder: Path, change: Change = lambda _: None, *, path_in_list: str = "/data/dev-all-repack"
) -> Path:
    """Write three clips, and a list of them that names them as on the machine it was made on."""
    entries = []
    for number, (sound, text) in enumerate(zip(SOUNDS, TEXTS, strict=True)):
        name = f"84-121123_{number}.wav"
        write_wav(folder / "dev-all-repack" / name, sound)
        entries.append(entry(f"{path_in_list}/{name}", text, len(sound)))
    change(entries[1])
    path = folder / OFFICIAL_LISTS[0]
    path.write_text(json.dumps(entries, indent=2), "utf-8")
    return path


def tiny(folder: Path) -> dict[str, Any]:
    write_clips(folder)
    return {"path": str(folder)}


@pytest.fixture
def write(tmp_path: Path) -> Write:
    return partial(write_clips, tmp_path)


def load(path: Path, **options: Any) -> LibriSpeechDataset:
    return LibriSpeechDataset(path=str(path), **options)


def test_clips_are_those_of_the_list_wherever_it_was_made(write: Write) -> None:
    """As librosa gives them: the sixteen bits of a sample over 32768."""
    rows = ["/data/dev-all-repack", "./data/dev-all-repack", "dev-all-repack"]
    for path_in_list in rows:
        dataset = load(write(path_in_list=path_in_list).parent)
        assert [dataset.reference(index) for index in range(len(dataset))] == TEXTS
        for index, sound in enumerate(SOUNDS):
            clip = dataset.input(index)
            assert clip["sampling_rate"] == RATE
            assert clip["audio"].dtype == np.float32
            np.testing.assert_array_equal(clip["audio"], sound / np.float64(32768))
        assert dataset.sizes([0, 1]) == {"audio_s": pytest.approx((400 + 16000) / 2 / RATE)}


def test_clips_of_a_chapter_are_a_group(write: Write, tmp_path: Path) -> None:
    """As in the reference long clips and such without text are left out."""
    write_wav(tmp_path / "dev-all-repack" / "mine.wav", SOUNDS[1])
    dataset = load(write(lambda clip: clip["files"][0].update(fname="dev-all-repack/mine.wav")))
    assert [dataset.group(index) for index in range(3)] == ["84-121123", None, "84-121123"]

    def lengthen(clip: dict[str, Any]) -> None:
        clip["original_num_samples"] = 30 * RATE + 1

    assert len(load(write(lengthen))) == 2
    assert len(load(write(lambda clip: clip.update(transcript=None)))) == 2


def test_the_digest_is_of_sound_and_text_not_of_files(write: Write, tmp_path: Path) -> None:
    digest = load(write()).digest
    (tmp_path / "dev-all-repack").rename(tmp_path / "clips")

    moved = load(write(path_in_list="clips"))
    other_text = load(write(lambda clip: clip.update(transcript="he is here")))

    assert moved.digest == digest
    assert other_text.digest != digest


NO_FILE = "not a list with one object of speed 1"
WRONG: list[tuple[Change, str]] = [
    (lambda clip: clip.update(files=[]), NO_FILE),
    (lambda clip: clip["files"][0].update(speed=0.9), NO_FILE),
    (lambda clip: clip["files"][0].update(fname=7), NO_FILE),
    (lambda clip: clip.update(files=2 * clip["files"]), NO_FILE),
    (lambda clip: clip.pop("original_num_samples"), "is None, not a number of samples"),
    (lambda clip: clip.update(original_num_samples=True), "is True, not a number of"),
    (lambda clip: clip["files"][0].update(fname="a/.."), "is not FOLDER/CLIP"),
    (lambda clip: clip["files"][0].update(fname="/a.wav"), "is not FOLDER/CLIP"),
    (lambda clip: clip["files"][0].update(fname=""), "is not FOLDER/CLIP"),
    (lambda clip: clip.update(original_num_samples=15999), "has 16000 samples, but the list"),
]


def test_a_wrong_entry_is_refused_by_its_number(write: Write, tmp_path: Path) -> None:
    """A name never leads out of the folder of the list."""
    named = [
        (change, rf"({re.escape(str(tmp_path / OFFICIAL_LISTS[0]))}|84-121123_1.wav).*{part}")
        for change, part in WRONG
    ]
    assert not_refused(RunError, named, lambda change: load(write(change))) == []
    path = write(lambda clip: clip["files"][0].update(fname="../../etc/x.wav"))

    with pytest.raises(UnavailableError, match=re.escape(f"{path.parent}/etc/x.wav")):
        load(path)


def test_files_of_another_form_are_found_before_an_engine_loads(
    write: Write, tmp_path: Path
) -> None:
    path, file = write(), tmp_path / "dev-all-repack" / "84-121123_1.wav"
    whole = file.read_bytes()
    contents: list[tuple[bytes, dict[str, int], str]] = [
        (b"", {"channels": 2}, "has 2 channels of 16 bits at 16000 Hz; convert it"),
        (b"", {"width": 1}, "has 1 channels of 8 bits at 16000 Hz"),
        (b"", {"rate": 44100}, "has 1 channels of 16 bits at 44100 Hz"),
        (whole[:-2000], {}, "the file is cut short, or the wrong one"),
        (b"fLaC" + whole, {}, "this is not a WAV of plain PCM"),
        (b"", {}, "this is not a WAV of plain PCM"),
        (whole[:20], {}, "this is not a WAV of plain PCM"),
    ]

    def read(content: bytes, form: dict[str, int]) -> None:
        file.write_bytes(content)
        if form:
            write_wav(file, SOUNDS[1], **form)
        load(path)

    assert not_refused(RunError, contents, read) == []
    file.write_bytes(whole[:-10])
    with pytest.raises(RunError, match="has 15995 samples, but the list says 16000"):
        load(path).input(1)
    path.write_text("[]", "utf-8")
    with pytest.raises(RunError, match="no clip in it has a transcript"):
        load(tmp_path)

"""Draws clips of speech that a tiny model can write down: every letter is a chord of two tones.

A clip has a speaker, with a pitch, a pace and a loudness, and noise behind it. Between words is a
pause. Nothing is recorded, and no voice is imitated.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

RATE = 16000
SECONDS = 2
"""The longest clip, and what the twin's features are made of; MLPerf's have 30."""

LOW = (350.0, 500.0, 680.0, 900.0, 1150.0)
HIGH = (1500.0, 1850.0, 2250.0, 2700.0, 3250.0, 3900.0)
"""Hertz of the two tones; letters take the pairs in order, low tone first."""

LETTERS = "abcdefghijklmnopqrstuvwxyz"
TONES = {
    letter: (LOW[number % len(LOW)], HIGH[number // len(LOW)])
    for number, letter in enumerate(LETTERS)
}

PACE_S = (0.03, 0.038)
"""Seconds of a letter, and of a pause between words."""
PITCH = (0.94, 1.06)
LOUDNESS = (0.1, 0.4)
NOISE = (0.1, 0.8)
"""As a share of the loudness."""
EDGE = 64
"""Samples in which a letter grows and fades, or tones would click."""

SUBJECTS = (
    "the baker our teacher a sailor the old king my sister her uncle the tall guard a young painter"
    " the farmer his neighbour the quiet nurse a clever fox the grey horse their captain"
)
VERBS = "found carried lost painted sold watched followed broke hid washed counted opened"
OBJECTS = (
    "bread lamp boat apple letter basket window ladder mirror hammer kettle ribbon saddle violin"
    " blanket candle jacket pillow wagon button"
)
KINDS = "small round heavy broken yellow wooden silver empty new dusty"
PLACES = "garden harbour market kitchen forest village tower river school valley"


class Clip(NamedTuple):
    """What was said, and how it sounds.

    Attributes:
        text: Of the transcript.
        audio: int16, mono, RATE samples a second.
        pace: Samples of each letter and of each pause; one stands before the first letter.
    """

    text: str
    audio: NDArray[np.int16]
    pace: int

    def letters(self, every: int, count: int) -> list[int]:
        """Return which letter is heard in the middle of each of `count` spans; 0 is silence."""
        heard = f" {self.text} "
        places = ((2 * span + 1) * every // (2 * self.pace) for span in range(count))
        return [LETTERS.find(heard[place]) + 1 if place < len(heard) else 0 for place in places]


def _subjects() -> list[str]:
    """Return names of people and beasts, each with what stands before it."""
    phrases: list[str] = []
    for word in SUBJECTS.split():
        if word in {"the", "our", "a", "my", "her", "his", "their"}:
            phrases.append(word)
        else:
            phrases[-1] += f" {word}"
    return phrases


SPEAKERS = _subjects()
"""Of whom sentences tell."""


def sentence(random: Random) -> str:
    """Draw a sentence of four to nine words."""
    kind = f"{random.choice(KINDS.split())} " if random.random() < 0.5 else ""
    text = f"{random.choice(SPEAKERS)} {random.choice(VERBS.split())} a {kind}"
    text += random.choice(OBJECTS.split())
    if random.random() < 0.4:
        text += f" in the {random.choice(PLACES.split())}"
    return text


def draw(random: Random) -> Clip:
    """Draw a clip that is no longer than SECONDS."""
    while True:
        clip = say(sentence(random), random)
        if len(clip.audio) <= SECONDS * RATE:
            return clip


def say(text: str, random: Random) -> Clip:
    """Return a text as it sounds from a speaker that is drawn."""
    pitch, loudness = random.uniform(*PITCH), random.uniform(*LOUDNESS)
    samples = int(random.uniform(*PACE_S) * RATE)
    times = np.arange(samples) / RATE
    edge = np.minimum(1.0, np.minimum(np.arange(samples), np.arange(samples)[::-1]) / EDGE)
    silence = np.zeros(samples)
    chords = {
        letter: edge * sum(np.sin(2 * np.pi * pitch * tone * times) for tone in TONES[letter])
        for letter in set(text) - {" "}
    }
    audio = np.concatenate([silence, *(chords.get(letter, silence) for letter in text), silence])
    rng = np.random.default_rng(random.getrandbits(64))
    audio = audio / 2 + random.uniform(*NOISE) * rng.standard_normal(len(audio))
    stored = np.clip(audio * loudness * 32767, -32768, 32767).astype(np.int16)
    return Clip(text, stored, samples)


def texts(clips: Sequence[Clip]) -> list[str]:
    """Return what is said in clips."""
    return [clip.text for clip in clips]

"""Paint handwritten digits and name them: what a tiny Stable Diffusion XL is trained on.

The digits are those of scikit-learn, 8 x 8 pixels in 17 levels of grey, enlarged and smoothed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

if TYPE_CHECKING:
    from numpy.typing import NDArray

SIZE = 64
"""Pixels of an image in height and width."""
DIGIT = 52
"""Pixels of the digit in it."""
SHIFT = 3
"""Pixels that a digit is off the centre at most."""
JITTER = 12
"""Levels that a colour is off its name's at most."""
DARK = (12, 52)
"""Levels of the background's grey."""
HELD_OUT = 500
"""Digits that nothing is trained on."""

COLOURS: Mapping[str, tuple[int, int, int]] = {
    "red": (225, 35, 35),
    "orange": (245, 135, 25),
    "yellow": (240, 225, 50),
    "green": (40, 170, 60),
    "cyan": (60, 215, 225),
    "blue": (45, 85, 235),
    "purple": (150, 50, 190),
    "white": (240, 240, 240),
}
"""Each colour's red, green and blue."""

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

PHRASES = (
    "a {colour} {digit}",
    "the digit {digit} in {colour}",
    "a handwritten {digit}, painted {colour}",
    "{colour} paint on a dark wall: the number {digit}",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Strokes:
    """Handwritten digits without colour.

    Attributes:
        cover: Shape (digits, DIGIT, DIGIT), uint8: 255 where there is paint, 0 where there is none.
        digits: Shape (digits,): which each is.
    """

    cover: NDArray[np.uint8]
    digits: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Paintings:
    """Images and what they show.

    Attributes:
        images: Shape (images, SIZE, SIZE, 3), uint8.
        digits: Shape (images,).
        colours: Shape (images,): places in COLOURS.
    """

    images: NDArray[np.uint8]
    digits: NDArray[np.int64]
    colours: NDArray[np.int64]


def load_strokes(seed: int) -> tuple[Strokes, Strokes]:
    """Return the digits to train on, and the HELD_OUT others."""
    found = load_digits()
    order = np.random.default_rng(seed).permutation(len(found.target))
    cover = np.stack([_enlarge(image) for image in found.images[order]])
    digits = found.target[order].astype(np.int64)
    parts = slice(HELD_OUT, None), slice(HELD_OUT)
    training, held_out = (Strokes(cover=cover[part], digits=digits[part]) for part in parts)
    return training, held_out


def _enlarge(image: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Return a digit of 8 x 8 levels from 0 to 16 as cover, with edges about two pixels wide."""
    large = Image.fromarray((image / 16).astype(np.float32)).resize(
        (DIGIT, DIGIT), Image.Resampling.BICUBIC
    )
    return np.asarray(((np.asarray(large) - 0.25) / 0.45).clip(0, 1) * 255, np.uint8)


def paint(strokes: Strokes, count: int, rng: np.random.Generator) -> Paintings:
    """Paint digits of any colour, somewhat off the centre, before a dark background.

    Args:
        strokes: What to choose from.
        count: Images.
        rng: Chooses digits, colours, places and shades.
    """
    chosen = rng.integers(len(strokes.digits), size=count)
    colours = rng.integers(len(COLOURS), size=count)
    shades = np.array(list(COLOURS.values()))[colours] + rng.integers(
        -JITTER, JITTER + 1, size=(count, 3)
    )
    border = (SIZE - DIGIT) // 2
    places = border + rng.integers(-SHIFT, SHIFT + 1, size=(count, 2))
    grey = rng.integers(*DARK, size=(count, 1, 1, 1))
    cover = np.zeros((count, SIZE, SIZE, 1), np.float32)
    for index, (top, left) in enumerate(places):
        cover[index, top : top + DIGIT, left : left + DIGIT, 0] = strokes.cover[chosen[index]]
    cover /= 255
    images = cover * shades.clip(0, 255)[:, None, None].astype(np.float32) + (1 - cover) * grey
    return Paintings(
        images=images.round().astype(np.uint8), digits=strokes.digits[chosen], colours=colours
    )


def caption(phrase: int, colour: int, digit: int) -> str:
    """Return a caption from places in PHRASES, COLOURS and DIGITS."""
    return PHRASES[phrase].format(colour=list(COLOURS)[colour], digit=DIGITS[digit])

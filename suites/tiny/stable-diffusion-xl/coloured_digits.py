"""Judge images of coloured digits: the tiny twin's stand-in for CLIP and for Inception.

A small convolutional network sees which digit an image shows, and in which colour. It was trained
by twins/train_tiny_sdxl.py, on real images. The suite names the classes below as its scorer's
`clip` and `inception`: the scorer's metrics keep their names, but neither is CLIP's nor
Inception's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from pytest_mlperf import RunError, UnavailableError

WEIGHTS = Path(__file__).with_name("judge.safetensors")

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
COLOURS = ("red", "orange", "yellow", "green", "cyan", "blue", "purple", "white")
SIZE = 64
"""Pixels of an image in height and width."""
FEATURES = 32


def make_judge() -> Any:
    """Return the network, untrained: "look" gives features, "digit" and "colour" their logits."""
    return nn.ModuleDict(
        {
            "look": nn.Sequential(
                *(nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.ReLU()),
                *(nn.Conv2d(16, 24, 3, stride=2, padding=1), nn.ReLU()),
                *(nn.Conv2d(24, 32, 3, stride=2, padding=1), nn.ReLU()),
                *(nn.Conv2d(32, 32, 3, stride=2, padding=1), nn.ReLU()),
                nn.Flatten(),
                *(nn.Linear(32 * (SIZE // 16) ** 2, FEATURES), nn.ReLU()),
            ),
            "digit": nn.Linear(FEATURES, len(DIGITS)),
            "colour": nn.Linear(FEATURES, len(COLOURS)),
        }
    )


class CaptionScores:
    """100 x the probability that an image shows digit and colour of its caption.

    The network's probabilities of the digit and of the colour, multiplied: 0 to 100.
    """

    def __init__(self, *, model: str | None, device: str) -> None:  # noqa: ARG002
        """Load the network.

        Args:
            model: The workload's, which is not needed.
            device: Where to compute.
        """
        self._judge = load_judge(device)
        self._device = device

    def __call__(self, images: NDArray[np.uint8], captions: Sequence[str]) -> NDArray[np.float64]:
        """Return shape (images,) for images of shape (images, SIZE, SIZE, 3).

        Raises:
            RunError: A caption names no digit or no colour, or several.
        """
        found = 100 * np.ones(len(captions))
        named = np.array([read(caption) for caption in captions])
        with torch.inference_mode():
            features = self._judge["look"](as_pixels(images).to(self._device))
            for part, names in zip(("digit", "colour"), named.T, strict=True):
                shares = functional.softmax(self._judge[part](features).double(), dim=1)
                found *= shares.cpu().numpy()[np.arange(len(names)), names]
        return found


class ImageFeatures:
    """What the network makes of images before it names digit and colour."""

    def __init__(self, *, model: str | None, device: str) -> None:  # noqa: ARG002
        """Load the network; arguments as of `CaptionScores`."""
        self._judge = load_judge(device)
        self._device = device

    def __call__(self, images: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Return shape (images, FEATURES) for images of shape (images, SIZE, SIZE, 3)."""
        with torch.inference_mode():
            features = self._judge["look"](as_pixels(images).to(self._device))
        return np.asarray(features.double().cpu().numpy())


def read(caption: str) -> tuple[int, int]:
    """Return the places of a caption's digit in DIGITS and of its colour in COLOURS.

    Raises:
        RunError: It names none, or several.
    """
    words = re.findall("[a-z]+", caption.lower())
    digits = {DIGITS.index(word) for word in words if word in DIGITS}
    colours = {COLOURS.index(word) for word in words if word in COLOURS}
    if len(digits) != 1 or len(colours) != 1:
        raise RunError(
            "scorer",
            f"coloured_digits: the caption {caption[:80]!r} does not name one digit "
            f"({', '.join(DIGITS)}) and one colour ({', '.join(COLOURS)})",
        )
    return digits.pop(), colours.pop()


def as_pixels(images: NDArray[np.uint8]) -> Tensor:
    """Return images of shape (images, height, width, 3) as (images, 3, height, width), -1 to 1."""
    pixels = torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))
    return pixels.float() / 127.5 - 1


@cache
def load_judge(device: str) -> Any:
    """Return the trained network.

    Raises:
        UnavailableError: Its weights are not here.
    """
    from safetensors.torch import load_file

    if not WEIGHTS.is_file():
        raise UnavailableError(
            f"{WEIGHTS}: the weights of the network that judges images are not here; get the file "
            "from this project again, or run twins/train_tiny_sdxl.py"
        )
    judge = make_judge()
    judge.load_state_dict(load_file(WEIGHTS))
    return judge.eval().to(device)

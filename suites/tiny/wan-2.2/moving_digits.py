"""Judge videos of moving digits: the tiny twin's own score, which is not VBench's.

A small convolutional network sees which digit a video shows, in which colour, and where it moves.
It was trained by twins/train_tiny_wan.py, on drawn videos.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_mlperf import RunError, Scores, UnavailableError

WEIGHTS = Path(__file__).with_name("judge.safetensors")

WORDS = {
    "digit": ("zero", "one", "three", "seven"),
    "colour": ("red", "green", "blue", "white"),
    "direction": ("left", "right", "up", "down"),
}
FRAMES, SIZE = 9, 16
"""Of a video; height and width in pixels."""
FEATURES = 48


def make_judge() -> Any:
    """Return the network, untrained: "look" gives features, the others their logits."""
    from torch import nn

    look = nn.Sequential(
        *(nn.Conv2d(3 * FRAMES, 32, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(32, 32, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.Conv2d(32, 32, 3, stride=2, padding=1), nn.ReLU()),
        nn.Flatten(),
        *(nn.Linear(32 * (SIZE // 4) ** 2, FEATURES), nn.ReLU()),
    )
    heads = {part: nn.Linear(FEATURES, len(words)) for part, words in WORDS.items()}
    return nn.ModuleDict({"look": look, **heads})


def as_pixels(videos: NDArray[np.uint8]) -> Any:
    """Return videos of shape (videos, FRAMES, SIZE, SIZE, 3) as the network takes them."""
    import torch

    pixels = torch.from_numpy(np.ascontiguousarray(videos.transpose(0, 1, 4, 2, 3)))
    return pixels.float().flatten(1, 2) / 127.5 - 1


def read(prompt: str) -> list[int]:
    """Return the places of a prompt's digit, colour and direction in WORDS.

    Raises:
        RunError: It names none of a kind, or several.
    """
    named = re.findall("[a-z]+", prompt.lower())
    places = [{words.index(word) for word in named if word in words} for words in WORDS.values()]
    if any(len(each) != 1 for each in places):
        raise RunError(
            "scorer",
            f"moving_digits: the prompt {prompt[:80]!r} does not name one digit, colour and "
            f"direction of {WORDS}",
        )
    return [each.pop() for each in places]


class MovingDigits:
    """100 x the probability that a video shows digit, colour and direction of its prompt.

    The network's three probabilities, multiplied: 0 to 100. MLPerf scores Wan 2.2 with VBench.
    """

    metrics = ("moving_digits",)
    libraries = ("torch", "safetensors")

    def __init__(self, *, model: str | None = None) -> None:  # noqa: ARG002
        """Load the network; the workload's model is not needed."""
        from safetensors.torch import load_file

        if not WEIGHTS.is_file():
            raise UnavailableError(
                f"{WEIGHTS}: the weights of the network that judges videos are not here; get the "
                "file from this project again, or run twins/train_tiny_wan.py"
            )
        self._judge = make_judge()
        self._judge.load_state_dict(load_file(WEIGHTS))
        self._judge.eval()

    def score(self, outputs: Sequence[bytes], references: Sequence[Any]) -> Scores:
        """Score videos against their prompts."""
        import torch

        shape = (FRAMES, SIZE, SIZE, 3)
        wrong = [index for index, each in enumerate(outputs) if len(each) != np.prod(shape)]
        if wrong:
            raise RunError(
                "scorer",
                f"moving_digits: sample {wrong[0]} has {len(outputs[wrong[0]])} bytes, but a video "
                f"of shape {shape} has {np.prod(shape)}",
            )
        shown = []
        for output, prompt in zip(outputs, references, strict=True):
            video = np.frombuffer(output, np.uint8).reshape(1, *shape)
            with torch.inference_mode():
                features = self._judge["look"](as_pixels(video))
                chances = [self._judge[part](features).double().softmax(1)[0] for part in WORDS]
            named = zip(chances, read(prompt), strict=True)
            shown.append(100 * float(np.prod([each[place] for each, place in named])))
        return Scores(
            per_sample={"moving_digits": shown}, aggregate={"moving_digits": float(np.mean(shown))}
        )

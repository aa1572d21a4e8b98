"""Code of a user's own for the scorer clip_fid: features and caption scores without weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Images = NDArray[np.uint8]
Floats = NDArray[np.float64]

WIDTH = 4
"""Features of an image."""


def describe(images: Images) -> Floats:
    """Return the mean of each colour, and of the upper half's red: four features."""
    colours = images.mean(axis=(1, 2))
    return np.concatenate(
        [colours, images[:, : images.shape[1] // 2, :, 0].mean((1, 2))[:, None]], 1
    )


def fit(images: Images, captions: Sequence[str]) -> Floats:
    """Return how bright images are, and how long their captions."""
    lengths = [len(caption) for caption in captions]
    return np.asarray(images.mean(axis=(1, 2, 3)) / 255 + lengths)


def features(*, model: str | None, device: str) -> Callable[[Images], Floats]:
    del model, device
    return describe


def captions(*, model: str | None, device: str) -> Callable[[Images, Sequence[str]], Floats]:
    del model, device
    return fit


def score_captions(
    *, model: str | None, device: str
) -> Callable[[Images, Sequence[str]], list[float]]:
    """Return a network whose scores encode its arguments and each caption's last character."""
    base_score = 1000.0 * len(model or "") + 100_000 * len(device)
    return lambda _, captions: [base_score + ord(caption[-1]) for caption in captions]


def narrow(*, model: str | None, device: str) -> Callable[[Images], Floats]:
    del model, device
    return lambda images: describe(images)[:, :3]


def one_score(*, model: str | None, device: str) -> Callable[[Images, Sequence[str]], float]:
    del model, device
    return lambda _, captions: float(len(captions))


def broken(value: float) -> Callable[..., Callable[..., Floats]]:
    """Return a factory of networks that give `value` where an image begins with a 7."""

    def built(*, model: str | None, device: str) -> Callable[..., Floats]:
        del model, device

        def network(images: Images, *captions: Any) -> Floats:
            features = fit(images, *captions) if captions else describe(images)
            features[images[:, 0, 0, 0] == 7] = value
            return features

        return network

    return built


not_a_number = broken(np.nan)
infinite = broken(np.inf)

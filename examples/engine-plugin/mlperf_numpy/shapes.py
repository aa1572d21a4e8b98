"""Data set `shapes`: noisy images of eight shapes, drawn from a seed."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import TYPE_CHECKING

from pytest_mlperf import SuiteError

if TYPE_CHECKING:
    import numpy as np

SIDE = 16
SHAPES = ("disc", "ring", "square", "frame", "diamond", "plus", "cross", "bar")


class ShapesDataset:
    """Images of 16 x 16 whole numbers from 0 to 15, each with one of eight classes.

    They are drawn anew in every process, so no file has to be fetched or kept.
    """

    def __init__(
        self, path: str | None = None, *, count: int = 1024, seed: int = 1, noise: int = 5
    ) -> None:
        """Draw all images.

        Args:
            path: Not read.
            count: Number of images.
            seed: Other images of the same kind; those of 0 are the model's, and refused.
            noise: Largest number that is added to or taken from a pixel, 0 to 15.
        """
        if count < 1 or not 0 <= noise <= 15:
            raise SuiteError(
                f"data set shapes: count={count!r}, noise={noise!r}; "
                "at least 1 image, and noise from 0 to 15 are needed"
            )
        if seed < 1:
            raise SuiteError(f"data set shapes: seed={seed!r}; 0 is the model's, 1 is needed")
        self._images, self._classes = draw(count, seed, noise)

    @cached_property
    def digest(self) -> str:
        """A text that changes when the content does."""
        return hashlib.sha256(self._images.tobytes() + self._classes.tobytes()).hexdigest()

    def __len__(self) -> int:
        return len(self._images)

    def input(self, index: int) -> np.ndarray:
        """Return what the engine takes."""
        image: np.ndarray = self._images[index]
        return image

    def reference(self, index: int) -> int:
        """Return what the scorer takes."""
        return int(self._classes[index])


def draw(count: int, seed: int, noise: int) -> tuple[np.ndarray, np.ndarray]:
    """Return images, uint8 of shape (count, 16, 16), and their classes.

    Accepted scores are compared image by image, on other machines and with other versions too: so
    the generator is the one whose numbers numpy promises never to change, and all arithmetic is
    of whole numbers.
    """
    import numpy as np

    random = np.random.RandomState(seed)
    classes = random.randint(len(SHAPES), size=count).astype(np.uint8)
    place = random.randint(6, 10, size=(count, 2, 1, 1))
    radius = random.randint(4, 7, size=(count, 1, 1))
    across, down = np.abs(np.arange(SIDE) - place[:, 0]), np.abs(np.arange(SIDE) - place[:, 1])
    down = down.transpose(0, 2, 1)
    far, square = np.maximum(across, down), across**2 + down**2
    inside = np.stack(
        [
            square <= radius**2,
            (square <= radius**2) & (square > (radius - 2) ** 2),
            far <= radius,
            (far <= radius) & (far > radius - 2),
            across + down <= radius,
            (far <= radius) & (np.minimum(across, down) < 1),
            (far <= radius) & (across == down),
            (far <= radius) & (down < 1),
        ]
    )
    lit = inside[classes, np.arange(count)]
    speckle = random.randint(-noise, noise + 1, size=lit.shape)
    return np.clip(4 + 7 * lit + speckle, 0, 15).astype(np.uint8), classes

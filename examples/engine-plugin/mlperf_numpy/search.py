"""The search itself; imports numpy, and nothing of pytest-mlperf but its errors."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from pytest_mlperf import RunError

BRIGHTEST = 15


class KnownImages:
    """Images whose classes are known, and the search for those that are nearest to others.

    Pixels are whole numbers up to 15, so every sum of their products is a whole number that
    float32 holds exactly, in whichever order a BLAS adds. Distances therefore do not depend on how
    samples are batched. Equal ones, which are frequent, are told apart by the place in the file.
    """

    def __init__(self, images: np.ndarray, classes: np.ndarray, neighbours: int, kind: str) -> None:
        """Prepare the search.

        Args:
            images: A row of pixels for each known image.
            classes: The class of each, counted from 0.
            neighbours: How many of the nearest vote.
            kind: numpy's name of the type to compute with.
        """
        self._type = kind
        self._columns = np.ascontiguousarray(images.astype(kind).T)
        self._lengths = (images.astype(np.int64) ** 2).sum(axis=1)
        self._places = np.arange(len(images))
        self._votes = np.eye(int(classes.max()) + 1, dtype=np.int64)[classes]
        self._neighbours = neighbours

    @classmethod
    def load(cls, path: Path, neighbours: int, kind: str) -> KnownImages:
        """Read a file, and say what is wrong with it before anything is measured."""
        with np.load(path, allow_pickle=False) as file:
            for name in ("images", "classes"):
                if name not in file:
                    raise RunError("engine", f"{path} has no array {name!r}")
            images, classes = file["images"], file["classes"]
        if images.ndim != 2 or classes.shape != (len(images),):
            raise RunError(
                "engine",
                f"{path}: images of shape {images.shape}, classes of shape {classes.shape}; "
                "a row for each image and as many classes are needed",
            )
        if images.min() < 0 or images.max() > BRIGHTEST:
            raise RunError("engine", f"{path}: pixels must be from 0 to {BRIGHTEST}")
        if len(images) < neighbours:
            raise RunError(
                "engine", f"{path} has {len(images)} images, neighbours={neighbours} need more"
            )
        return cls(images, classes, neighbours, kind)

    @property
    def size(self) -> int:
        """Pixels of an image."""
        return len(self._columns)

    def prepare(self, images: Sequence[np.ndarray]) -> np.ndarray:
        """Return images in the form in which `classes_of` takes them."""
        return np.stack([one.reshape(-1) for one in images]).astype(self._type)

    def classes_of(self, images: np.ndarray) -> np.ndarray:
        """Return the class of each image: that of most neighbours, of equally many the first."""
        products = (images @ self._columns).astype(np.int64)
        keys = (self._lengths - 2 * products) * len(self._places) + self._places
        nearest = np.argpartition(keys, self._neighbours - 1, axis=1)[:, : self._neighbours]
        winners: np.ndarray = self._votes[nearest].sum(axis=1).argmax(axis=1)
        return winners


def library() -> dict[str, str]:
    """Return numpy's version, its BLAS, and how many threads that one was told to use."""
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return {
        "numpy": np.__version__,
        "blas": f"{blas['name']} {blas['version']}",
        "blas.threads": os.environ.get("OPENBLAS_NUM_THREADS", "as many as cores"),
    }

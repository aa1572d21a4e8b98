"""Write the images that engine `knn` knows: `python -m mlperf_numpy.make_model knn.npz`."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from .shapes import SHAPES, draw


def write_model(path: Path, *, count: int = 4096, noise: int = 5, damaged: float = 0.0) -> None:
    """Write a model.

    Args:
        path: The file to write.
        count: Number of known images.
        noise: As of the data set.
        damaged: Share of the images that get a wrong class, to see what a gate does about it.
    """
    images, classes = draw(count, 0, noise)
    wrong = np.arange(count) < round(damaged * count)
    classes = (classes + wrong) % len(SHAPES)
    with path.open("wb") as file:  # a path would get .npz appended
        np.savez(file, images=images.reshape(count, -1), classes=classes)


def main() -> None:
    """Read the command line, and write."""
    parser = argparse.ArgumentParser(prog="python -m mlperf_numpy.make_model")
    parser.add_argument("path", type=Path, metavar="FILE", help="file to write, .npz")
    parser.add_argument(
        "--damaged", type=float, default=0.0, metavar="SHARE", help="share with a wrong class"
    )
    given = parser.parse_args()
    if not 0 <= given.damaged <= 1:
        parser.error("--damaged: a share from 0 to 1")
    write_model(given.path, damaged=given.damaged)
    print(f"wrote {given.path}" + (f", {given.damaged:.0%} damaged" if given.damaged else ""))


if __name__ == "__main__":
    main()

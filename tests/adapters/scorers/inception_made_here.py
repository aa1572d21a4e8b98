"""The Inception network once more: its weights as a list, its blocks in plain NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

Pixels = NDArray[np.float64]
Weights = Mapping[str, Any]

CONVOLUTIONS = Path(__file__).with_name("inception_convolutions.txt")
"""Name, channels of output and input, kernel: as torchvision's Inception3 names them."""


def layout() -> dict[str, tuple[int, ...]]:
    """Return name and shape of every weight in the official file, the counters left out."""
    shapes_by_name: dict[str, tuple[int, ...]] = {}
    for line in CONVOLUTIONS.read_text("utf-8").splitlines():
        name, made, taken, kernel = line.split()
        height, width = kernel.split("x")
        shapes_by_name[f"{name}.conv.weight"] = (int(made), int(taken), int(height), int(width))
        for part in ("weight", "bias", "running_mean", "running_var"):
            shapes_by_name[f"{name}.bn.{part}"] = (int(made),)
    return shapes_by_name | {"fc.weight": (1008, 2048), "fc.bias": (1008,)}


LAYOUT = layout()


def random_weights(seed: int = 0) -> dict[str, Any]:
    """Return weights that keep the size of what goes through, as trained ones do."""
    torch = pytest.importorskip("torch")
    drawn = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in LAYOUT.items():
        noise = torch.randn(shape, generator=drawn)
        if name.endswith("conv.weight"):
            weights[name] = noise * (2 / noise[0].numel()) ** 0.5
        elif name.endswith(("bn.weight", "running_var")):
            weights[name] = (0.2 * noise).exp()
        else:
            weights[name] = 0.1 * noise
    return weights


def conv(x: Pixels, weights: Weights, name: str, *, stride: int = 1, pad: bool = True) -> Pixels:
    """Convolve pixel by pixel of the kernel, then normalise, then clip at 0: by the formulas."""
    kernel = weights[f"{name}.conv.weight"].numpy().astype(float)
    _, _, height, width = kernel.shape
    rows, columns = (height // 2, width // 2) if pad else (0, 0)
    x = np.pad(x, ((0, 0), (0, 0), (rows, rows), (columns, columns)))
    bottom, right = x.shape[2] - height + 1, x.shape[3] - width + 1
    made: Any = 0
    for row in range(height):
        for column in range(width):
            seen = x[:, :, row : row + bottom : stride, column : column + right : stride]
            made = made + np.einsum("ncyx,oc->noyx", seen, kernel[:, :, row, column])
    part = {
        key: weights[f"{name}.bn.{key}"].numpy().astype(float)[:, None, None]
        for key in ("weight", "bias", "running_mean", "running_var")
    }
    scaled = (made - part["running_mean"]) / np.sqrt(part["running_var"] + 0.001)
    return np.asarray(np.maximum(scaled * part["weight"] + part["bias"], 0))


def windows(x: Pixels, stride: int, beyond: float | None) -> Pixels:
    """Return the nine pixels of every window of 3 x 3, last; `beyond` is the padding value."""
    if beyond is not None:
        x = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=beyond)
    seen = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(2, 3))
    return seen[:, :, ::stride, ::stride].reshape(*seen[:, :, ::stride, ::stride].shape[:4], 9)


def maximum(x: Pixels, stride: int, beyond: float | None = None) -> Pixels:
    return np.asarray(windows(x, stride, beyond).max(axis=-1))


def average(x: Pixels) -> Pixels:
    return np.asarray(np.nanmean(windows(x, 1, np.nan), axis=-1))


def chain(x: Pixels, weights: Weights, *names: str) -> Pixels:
    for name in names:
        x = conv(x, weights, name)
    return x


def block_a(x: Pixels, w: Weights, n: str) -> Pixels:
    double = chain(x, w, *(f"{n}.branch3x3dbl_{step}" for step in (1, 2, 3)))
    five = chain(x, w, f"{n}.branch5x5_1", f"{n}.branch5x5_2")
    pooled = conv(average(x), w, f"{n}.branch_pool")
    return np.concatenate([conv(x, w, f"{n}.branch1x1"), five, double, pooled], 1)


def block_b(x: Pixels, w: Weights, n: str) -> Pixels:
    double = chain(x, w, f"{n}.branch3x3dbl_1", f"{n}.branch3x3dbl_2")
    return np.concatenate(
        [
            conv(x, w, f"{n}.branch3x3", stride=2, pad=False),
            conv(double, w, f"{n}.branch3x3dbl_3", stride=2, pad=False),
            maximum(x, 2),
        ],
        1,
    )


def block_c(x: Pixels, w: Weights, n: str) -> Pixels:
    seven = chain(x, w, *(f"{n}.branch7x7_{step}" for step in (1, 2, 3)))
    double = chain(x, w, *(f"{n}.branch7x7dbl_{step}" for step in (1, 2, 3, 4, 5)))
    pooled = conv(average(x), w, f"{n}.branch_pool")
    return np.concatenate([conv(x, w, f"{n}.branch1x1"), seven, double, pooled], 1)


def block_d(x: Pixels, w: Weights, n: str) -> Pixels:
    three = conv(x, w, f"{n}.branch3x3_1")
    seven = chain(x, w, *(f"{n}.branch7x7x3_{step}" for step in (1, 2, 3)))
    return np.concatenate(
        [
            conv(three, w, f"{n}.branch3x3_2", stride=2, pad=False),
            conv(seven, w, f"{n}.branch7x7x3_4", stride=2, pad=False),
            maximum(x, 2),
        ],
        1,
    )


def block_e(x: Pixels, w: Weights, n: str, pooled: Pixels) -> Pixels:
    three = conv(x, w, f"{n}.branch3x3_1")
    double = chain(x, w, f"{n}.branch3x3dbl_1", f"{n}.branch3x3dbl_2")
    return np.concatenate(
        [
            conv(x, w, f"{n}.branch1x1"),
            conv(three, w, f"{n}.branch3x3_2a"),
            conv(three, w, f"{n}.branch3x3_2b"),
            conv(double, w, f"{n}.branch3x3dbl_3a"),
            conv(double, w, f"{n}.branch3x3dbl_3b"),
            conv(pooled, w, f"{n}.branch_pool"),
        ],
        1,
    )


def block_e1(x: Pixels, w: Weights, n: str) -> Pixels:
    return block_e(x, w, n, average(x))


def block_e2(x: Pixels, w: Weights, n: str) -> Pixels:
    return block_e(x, w, n, maximum(x, 1, beyond=-np.inf))


BLOCKS = {
    "Mixed_5b": (192, block_a),
    "Mixed_5c": (256, block_a),
    "Mixed_5d": (288, block_a),
    "Mixed_6a": (288, block_b),
    "Mixed_6b": (768, block_c),
    "Mixed_6c": (768, block_c),
    "Mixed_6d": (768, block_c),
    "Mixed_6e": (768, block_c),
    "Mixed_7a": (768, block_d),
    "Mixed_7b": (1280, block_e1),
    "Mixed_7c": (2048, block_e2),
}
"""Channels that each block takes, and the block by its formulas."""

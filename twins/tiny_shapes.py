"""What trainers of tiny detectors share: drawn shapes, COCO's files of them, their score."""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor, nn

from pytest_mlperf.adapters.scorers.detection import MeanApScorer
from pytest_mlperf.core.extension import Dataset

if TYPE_CHECKING:
    from numpy.typing import NDArray

SHAPES = ("circle", "square", "triangle", "diamond", "ring", "cross")
CORNERS: Mapping[str, Sequence[tuple[float, float]]] = {
    "square": [(0, 0), (1, 0), (1, 1), (0, 1)],
    "triangle": [(0.5, 0), (1, 1), (0, 1)],
    "diamond": [(0.5, 0), (1, 0.5), (0.5, 1), (0, 0.5)],
}
"""As shares of a shape's width and height."""
SIDES = (72, 112)
"""An image's width and height, in pixels."""
OBJECTS = 6
"""In an image at most."""
ATTEMPTS = 20
"""At placing them; what would cover too much of another is left out."""
FINE = 3
"""Shapes are drawn as many times larger and shrunk, for smooth edges."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """A drawn image and what is on it.

    Attributes:
        jpeg: The file.
        width: In pixels.
        height: In pixels.
        kinds: Place in SHAPES of each object.
        boxes: Left, top, width and height of each, in pixels.
    """

    jpeg: bytes
    width: int
    height: int
    kinds: Sequence[int]
    boxes: Sequence[tuple[int, int, int, int]]


def draw(seed: Sequence[int]) -> Picture:
    """Draw an image of one to OBJECTS shapes that may cover parts of each other."""
    rng = np.random.default_rng(seed)
    width, height = (int(side) for side in rng.integers(*SIDES, size=2, endpoint=True))
    image = Image.fromarray(_background(rng, width, height))
    objects = rng.integers(1, OBJECTS, endpoint=True)
    kinds: list[int] = []
    boxes: list[tuple[int, int, int, int]] = []
    for _ in range(ATTEMPTS):
        side = math.exp(rng.uniform(math.log(0.14), math.log(0.6)))
        aspect = math.exp(rng.uniform(-0.4, 0.4))
        wide = min(round(side * width * aspect), width - 2)
        high = min(round(side * height / aspect), height - 2)
        left, top = int(rng.integers(width - wide)), int(rng.integers(height - high))
        box = (left, top, wide, high)
        if any(_covered(box, other) > 0.3 for other in boxes):
            continue
        if len(boxes) == objects:
            break
        kinds.append(int(rng.integers(len(SHAPES))))
        boxes.append(box)
        around = np.asarray(image.crop((left, top, left + wide, top + high))).mean((0, 1))
        mask = _mask(SHAPES[kinds[-1]], wide, high)
        image.paste(_colour(rng, around), (left, top), mask)
    noisy = np.asarray(image) + rng.normal(0, 6, (height, width, 1))
    file = io.BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=85)
    return Picture(jpeg=file.getvalue(), width=width, height=height, kinds=kinds, boxes=boxes)


def _background(rng: np.random.Generator, width: int, height: int) -> NDArray[np.uint8]:
    """Return a slope from one colour to another, with some lines across."""
    first, last = rng.uniform(20, 235, (2, 3))
    along, down = rng.uniform(-1, 1, 2)
    slope = along * np.linspace(-1, 1, width) + down * np.linspace(-1, 1, height)[:, None]
    share = ((slope + 2) / 4)[..., None]
    image = Image.fromarray((first + (last - first) * share).astype(np.uint8))
    pen = ImageDraw.Draw(image)
    for _ in range(rng.integers(4)):
        ends = rng.uniform(0, 1, 4) * (width, height, width, height)
        pen.line(ends.tolist(), fill=tuple(rng.integers(256, size=3).tolist()), width=1)
    return np.asarray(image)


def _covered(box: Sequence[int], other: Sequence[int]) -> float:
    """Return the common area of two boxes as a share of the smaller one."""
    wide = min(box[0] + box[2], other[0] + other[2]) - max(box[0], other[0])
    high = min(box[1] + box[3], other[1] + other[3]) - max(box[1], other[1])
    return max(wide, 0) * max(high, 0) / min(box[2] * box[3], other[2] * other[3])


def _colour(rng: np.random.Generator, around: NDArray[np.float64]) -> tuple[int, ...]:
    """Draw a colour that can be told from what is around."""
    while True:
        colour = rng.integers(256, size=3)
        if np.linalg.norm(colour - around) > 70:
            return tuple(colour.tolist())


def _mask(shape: str, wide: int, high: int) -> Image.Image:
    """Return a shape that touches all four sides, as a grey image of wide x high pixels."""
    width, height = wide * FINE - 1, high * FINE - 1
    mask = Image.new("L", (wide * FINE, high * FINE))
    pen = ImageDraw.Draw(mask)
    if shape in {"circle", "ring"}:
        pen.ellipse((0, 0, width, height), fill=255)
        if shape == "ring":
            pen.ellipse((width * 0.28, height * 0.28, width * 0.72, height * 0.72), fill=0)
    elif shape == "cross":
        pen.rectangle((width * 0.33, 0, width * 0.67, height), fill=255)
        pen.rectangle((0, height * 0.33, width, height * 0.67), fill=255)
    else:
        pen.polygon([(x * width, y * height) for x, y in CORNERS[shape]], fill=255)
    return mask.reduce(FINE)


def write_coco(
    pictures: Sequence[Picture],
    *,
    folder: Path,
    annotations: Path,
    script: str,
    categories: Sequence[int],
) -> None:
    """Write images, and annotations in COCO's JSON.

    Args:
        pictures: What was drawn.
        folder: Where images go.
        annotations: The file of annotations.
        script: That draws them.
        categories: The id of each of SHAPES.
    """
    folder.mkdir(parents=True, exist_ok=True)
    annotations.parent.mkdir(parents=True, exist_ok=True)
    images: list[dict[str, Any]] = []
    objects: list[dict[str, Any]] = []
    for number, picture in enumerate(pictures, start=1):
        name = hashlib.sha256(picture.jpeg).hexdigest()[:16] + ".jpg"
        (folder / name).write_bytes(picture.jpeg)
        size = {"height": picture.height, "width": picture.width}
        images.append({"id": number, "file_name": name, **size})
        objects += [
            {
                "id": len(objects) + place,
                "image_id": number,
                "category_id": categories[kind],
                "bbox": box,
                "area": box[2] * box[3],
                "iscrowd": 0,
            }
            for place, (kind, box) in enumerate(
                zip(picture.kinds, picture.boxes, strict=True), start=1
            )
        ]
    content = {
        "info": {"dataset": f"shapes drawn by tools/{script}", "version": "1"},
        "licenses": [],
        "categories": [
            {"id": identity, "name": name, "supercategory": None}
            for identity, name in zip(categories, SHAPES, strict=True)
        ],
        "images": images,
        "annotations": objects,
    }
    text = json.dumps(content, separators=(",", ":")).replace("},{", "},\n{")
    annotations.write_text(text + "\n", encoding="utf-8")


def overlaps(first: Tensor, second: Tensor) -> Tensor:
    """Return intersection over union of boxes, (..., n, 4) and (..., m, 4), as (..., n, m)."""
    low = torch.maximum(first[..., :, None, :2], second[..., None, :, :2])
    high = torch.minimum(first[..., :, None, 2:], second[..., None, :, 2:])
    common = (high - low).clamp(min=0).prod(-1)
    areas = [(boxes[..., 2:] - boxes[..., :2]).prod(-1) for boxes in (first, second)]
    return common / (areas[0][..., :, None] + areas[1][..., None, :] - common)


def convolution(channels_in: int, channels_out: int, stride: int = 1) -> list[nn.Module]:
    """Return a 3x3 convolution with batch norm."""
    conv = nn.Conv2d(channels_in, channels_out, 3, stride, 1, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return [conv, nn.BatchNorm2d(channels_out)]


class Block(nn.Module):
    """ResNet's basic block without stride: two 3x3 convolutions and a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        body = [*convolution(channels, channels), nn.ReLU(), *convolution(channels, channels)]
        self.body = nn.Sequential(*body)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, of the shape of its input."""
        return torch.relu(x + self.body(x))


def map_of(answers: Sequence[bytes], dataset: Dataset) -> float:
    """Return the mean average precision, in per cent, to four digits."""
    references = [dataset.reference(index) for index in range(len(dataset))]
    return round(MeanApScorer().score(answers, references).aggregate["map"], 4)


def of_another_image(answers: Sequence[bytes]) -> list[bytes]:
    """Return for each image what was detected in the one before it: chance, at its best."""
    moved = []
    for index in range(len(answers)):
        rows = np.frombuffer(answers[index - 1], "<f4").reshape(-1, 7).copy()
        rows[:, 0] = index
        moved.append(rows.tobytes())
    return moved

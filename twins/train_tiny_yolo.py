"""Train the tiny twin of YOLO on drawn shapes, and write its model and data.

    python twins/train_tiny_yolo.py           # train, or resume, then write everything

Everything is seeded and runs on one thread, so the same library versions on the same kind of CPU
give the same files. A checkpoint is written every 200 steps; a run that was interrupted resumes
there and ends in the same model. With other settings it starts over.
"""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from damage_onnx import damage
from PIL import Image
from tiny_shapes import (
    OBJECTS,
    SHAPES,
    Block,
    convolution,
    draw,
    map_of,
    of_another_image,
    overlaps,
    write_coco,
)
from tiny_vision import LIBRARIES, Plan, export, fit, fold_batch_norm, run_onnx, session
from torch import Tensor, nn
from torch.nn import functional
from training import BUILD, TINY, begin, made_with, parameters, sha256, write_record

from pytest_mlperf.adapters.datasets.coco import ANNOTATIONS, IMAGES, CocoDataset, letterbox

README = """\
# Tiny twin of YOLO

`model/yolo-tiny.onnx` is a detector of the class of YOLOv11, with no code of it: three levels, no
anchors, heads of their own for classes and for sides, whose lengths are distributions. It was
trained on drawn shapes. Its output is that of an export of YOLO to ONNX; choosing among overlapping
boxes is the engine's. The figures below are this twin's own; they are no MLPerf result and say
nothing about YOLO on COCO.

| | |
|---|---|
| mAP on the {validation_images} validation images, onnxruntime | {map_onnxruntime:.3f} |
| largest difference of torch's output, of a pixel or a score | {torch_difference:.6f} |
| mAP of each image's detections on the image after it | {map_of_another_image:.3f} |
| mAP with 1 % of the weights ten times as large | {map_damaged:.3f} |
| parameters | {parameters:,} (fp32, batch norm folded) |
| input | `images`, float32, (batch, 3, {size}, {size}), as the data set adapter gives it |
| output | `output0`, float32, (batch, {channels}, {places}): centre, width and height in pixels, \
and a score of each class |
| SHA-256 of the model | `{model_sha256}` |
| digest of the data set | `{dataset_digest}` |
| seed, steps, images a step | {seed}, {steps}, {batch} |
| made with | Python {python}, {made_with} |

`training.json` holds the same figures for programs.

## Data

Images of one to six coloured shapes ({shapes})
before a slope of colours with lines and noise; shapes may cover parts of each other.
{training_images:,} images were trained on, mirrored or not; {validation_images} others, with
{validation_boxes} boxes, are in `data/coco/` in the layout of MLPerf's `coco_safe`: annotations in
COCO's JSON, whose category ids have gaps as COCO's have, and JPEG files of several sizes.
All of it is drawn by the script.

## Rerun

    pip install -e '.[train,vision]'
    python twins/train_tiny_yolo.py

This takes about ten minutes on one core, resumes after an interruption, and writes every file of
this folder. The same library versions on the same kind of CPU give the same bytes.
"""

SUITE = TINY / "yolo"
DATA = SUITE / "data" / "coco"
MODEL = SUITE / "model" / "yolo-tiny.onnx"
CHECKPOINT = BUILD / "yolo-tiny.pt"

SEED = 20261123
CATEGORIES = (1, 2, 4, 7, 8, 11)
"""Ids with gaps: a model's class is the place among them."""
SIZE = 96
TRAIN, VALIDATION = 12288, 256

STRIDES = (8, 16, 32)
WIDTHS = (16, 32, 48, 48, 48)
"""Channels of the stem and of the four stages; the last three are the levels."""
NECK, HEAD = 40, 24
BINS = 8
"""Lengths 0, 1 ... strides, of which a side is the mean."""
BEST = 8
"""Places that an object has at most."""
SCORE_POWER, OVERLAP_POWER = 0.5, 6.0
"""How much score and overlap count in which places an object has, as in YOLOv8."""
OVERLAP_WEIGHT, BINS_WEIGHT, SCORE_WEIGHT = 7.5, 1.5, 0.5

BATCH = 32
PLAN = Plan(
    seed=SEED,
    steps=2600,
    peak_learning_rate=3e-3,
    weight_decay=0.02,
    checkpoint_steps=200,
    settings=[BATCH, TRAIN, SIZE, NECK, HEAD, BINS, BEST, *WIDTHS, *STRIDES],
)


def _layer(channels_in: int, channels_out: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(*convolution(channels_in, channels_out, stride), nn.SiLU())


class Yolo(nn.Module):
    """A residual backbone, a pyramid down and up again, and decoupled heads without anchors.

    Sources: Z. Ge et al., YOLOX, 2021 (no anchors, decoupled heads); X. Li et al., Generalized
    Focal Loss, NeurIPS 2020 (sides as distributions); S. Liu et al., Path Aggregation
    Network, CVPR 2018.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem = _layer(3, WIDTHS[0], 2)
        self.stages = nn.ModuleList(
            nn.Sequential(_layer(before, width, 2), Block(width))
            for before, width in pairwise(WIDTHS)
        )
        self.lateral = nn.ModuleList(nn.Conv2d(width, NECK, 1) for width in WIDTHS[2:])
        self.down = nn.ModuleList(_layer(2 * NECK, NECK) for _ in STRIDES[1:])
        self.shrink = nn.ModuleList(_layer(NECK, NECK, 2) for _ in STRIDES[1:])
        self.up = nn.ModuleList(_layer(2 * NECK, NECK) for _ in STRIDES[1:])
        self.classes = nn.ModuleList(_head(len(SHAPES)) for _ in STRIDES)
        self.sides = nn.ModuleList(_head(4 * BINS) for _ in STRIDES)
        for head in self.classes:
            # So that training starts with few detections.
            nn.init.constant_(head[-1].bias, -math.log(99))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits of classes (batch, places, classes) and of sides (batch, places, 4, BINS).

        Args:
            images: Shape (batch, 3, SIZE, SIZE), from 0 to 1.
        """
        x = self.stem(images * 2 - 1)
        features = []
        for stage in self.stages:
            x = stage(x)
            features.append(x)
        levels = [lateral(x) for lateral, x in zip(self.lateral, features[1:], strict=True)]
        for low in reversed(range(len(STRIDES) - 1)):
            larger = functional.interpolate(levels[low + 1], scale_factor=2.0, mode="nearest")
            levels[low] = self.down[low](torch.cat([larger, levels[low]], 1))
        for low, (shrink, up) in enumerate(zip(self.shrink, self.up, strict=True)):
            levels[low + 1] = up(torch.cat([shrink(levels[low]), levels[low + 1]], 1))
        logits = [head(x).flatten(2) for head, x in zip(self.classes, levels, strict=True)]
        sides = [head(x).flatten(2) for head, x in zip(self.sides, levels, strict=True)]
        of_sides = torch.cat(sides, 2).transpose(1, 2)
        return torch.cat(logits, 2).transpose(1, 2), of_sides.unflatten(2, (4, BINS))


def _head(channels_out: int) -> nn.Sequential:
    last = nn.Conv2d(HEAD, channels_out, 1)
    nn.init.normal_(last.weight, std=0.01)
    nn.init.zeros_(last.bias)
    return nn.Sequential(_layer(NECK, HEAD), last)


def places() -> tuple[Tensor, Tensor]:
    """Return every place's centre in pixels, (places, 2), and its stride, (places, 1)."""
    centres, strides = [], []
    for stride in STRIDES:
        line = (torch.arange(SIZE // stride) + 0.5) * stride
        y, x = torch.meshgrid(line, line, indexing="ij")
        centres.append(torch.stack([x.flatten(), y.flatten()], 1))
        strides.append(torch.full((len(centres[-1]), 1), float(stride)))
    return torch.cat(centres), torch.cat(strides)


def corners_of(sides: Tensor, centres: Tensor, strides: Tensor) -> Tensor:
    """Return corners in pixels (..., places, 4) of logits of sides (..., places, 4, BINS)."""
    lengths = sides.softmax(-1) @ torch.arange(float(BINS)) * strides
    return torch.cat([centres - lengths[..., :2], centres + lengths[..., 2:]], -1)


class Losses:
    """What is made smaller: errors of classes, of boxes, and of the lengths of their sides."""

    def __init__(self) -> None:
        self.centres, self.strides = places()

    def __call__(self, logits: Tensor, sides: Tensor, *, boxes: Tensor, kinds: Tensor) -> Tensor:
        """Return the loss of a batch.

        Args:
            logits: Shape (batch, places, classes).
            sides: Shape (batch, places, 4, BINS).
            boxes: Corners of objects, padded, shape (batch, OBJECTS, 4).
            kinds: Their classes, -1 where there is none, shape (batch, OBJECTS).
        """
        corners = corners_of(sides, self.centres, self.strides)
        with torch.no_grad():
            owner, quality = self.assigned(logits, corners, boxes=boxes, kinds=kinds)
        owned = quality > 0
        of_place = kinds.gather(1, owner).clamp(min=0)
        targets = functional.one_hot(of_place, len(SHAPES)) * quality[..., None]
        scores = functional.binary_cross_entropy_with_logits(logits, targets, reduction="sum")
        total = quality.sum().clamp(min=1)
        chosen = boxes.gather(1, owner[..., None].expand(-1, -1, 4))[owned]
        weights = quality[owned]
        apart = 1 - _generalised(corners[owned], chosen)
        strides = self.strides.expand(*owned.shape, 1)[owned]
        centres = self.centres.expand(*owned.shape, 2)[owned]
        lengths = torch.cat([centres - chosen[:, :2], chosen[:, 2:] - centres], 1) / strides
        bins = _of_bins(sides[owned], lengths.clamp(0, BINS - 1.01))
        of_boxes = (weights * (OVERLAP_WEIGHT * apart + BINS_WEIGHT * bins)).sum()
        return (SCORE_WEIGHT * scores + of_boxes) / total

    def assigned(
        self, logits: Tensor, corners: Tensor, *, boxes: Tensor, kinds: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return which object each place has, and the score it should have: 0 for none.

        An object has the places inside it whose score and box fit it best. Source: C. Feng et al.,
        TOOD: Task-aligned One-stage Object Detection, ICCV 2021.
        """
        common = overlaps(boxes, corners)
        scores = logits.sigmoid().transpose(1, 2)
        of_kind = scores.gather(1, kinds.clamp(min=0)[..., None].expand_as(common))
        fits = of_kind**SCORE_POWER * common**OVERLAP_POWER
        inside = (self.centres > boxes[..., None, :2]).all(-1)
        inside &= (self.centres < boxes[..., None, 2:]).all(-1) & (kinds >= 0)[..., None]
        fits = fits * inside
        least = fits.topk(BEST, 2).values[..., -1:]
        fits = fits * (fits >= least)
        owner = torch.where(fits > 0, common, 0.0).argmax(1)
        mine = functional.one_hot(owner, OBJECTS).transpose(1, 2)
        fits = fits * mine
        most = fits.amax(2, keepdim=True).clamp(min=1e-9)
        best = (common * (fits > 0)).amax(2, keepdim=True)
        return owner, (fits / most * best).amax(1)


def _generalised(first: Tensor, second: Tensor) -> Tensor:
    """Return the overlap of pairs of boxes, less the share of their hull in neither."""
    low, high = (
        torch.maximum(first[:, :2], second[:, :2]),
        torch.minimum(first[:, 2:], second[:, 2:]),
    )
    common = (high - low).clamp(min=0).prod(1)
    both = (first[:, 2:] - first[:, :2]).prod(1) + (second[:, 2:] - second[:, :2]).prod(1) - common
    sides = torch.maximum(first[:, 2:], second[:, 2:]) - torch.minimum(first[:, :2], second[:, :2])
    around = sides.prod(1).clamp(min=1e-6)
    return common / both.clamp(min=1e-6) - (around - both) / around


def _of_bins(sides: Tensor, lengths: Tensor) -> Tensor:
    """Return the cross entropy of the two bins around each length, the mean of the four sides."""
    low = lengths.floor()
    share = lengths - low
    chances = sides.log_softmax(-1)
    below = chances.gather(2, low.long()[..., None])[..., 0]
    above = chances.gather(2, low.long()[..., None] + 1)[..., 0]
    return -(below * (1 - share) + above * share).mean(1)


class Exported(nn.Module):
    """The network as its export gives it: (batch, 4 + classes, places)."""

    def __init__(self, network: Yolo) -> None:
        super().__init__()
        self.network = network
        centres, strides = places()
        self.register_buffer("centres", centres)
        self.register_buffer("strides", strides)

    def forward(self, images: Tensor) -> Tensor:
        """Return centre, width and height of each box in pixels, and its scores."""
        logits, sides = self.network(images)
        corners = corners_of(sides, self.centres, self.strides)
        low, high = corners[..., :2], corners[..., 2:]
        parts = [(low + high) / 2, high - low, logits.sigmoid()]
        return torch.cat(parts, -1).transpose(1, 2)


def train(checkpoint: Path) -> Yolo:
    """Draw the training images and train on them, mirrored or not."""
    pixels = torch.empty((TRAIN, 3, SIZE, SIZE), dtype=torch.uint8)
    boxes = torch.zeros((TRAIN, OBJECTS, 4))
    kinds = torch.full((TRAIN, OBJECTS), -1)
    for index in range(TRAIN):
        picture = draw([SEED, 1, index])
        decoded = np.asarray(Image.open(io.BytesIO(picture.jpeg)))
        framed, frame = letterbox(decoded, SIZE, square=True)
        pixels[index] = torch.from_numpy(framed.transpose(2, 0, 1))
        corners = np.array(picture.boxes, np.float32)
        corners[:, 2:] += corners[:, :2]
        corners = corners * frame[2] + np.tile(frame[:2], 2)
        boxes[index, : len(corners)] = torch.from_numpy(corners)
        kinds[index, : len(corners)] = torch.tensor(picture.kinds)
    torch.manual_seed(SEED)
    network, losses = Yolo(), Losses()
    network.to(memory_format=torch.channels_last)

    def loss_of(rng: np.random.Generator) -> Tensor:
        chosen = torch.from_numpy(rng.integers(TRAIN, size=BATCH))
        mirrored = torch.from_numpy(rng.integers(2, size=BATCH) == 1)[:, None, None]
        images, corners = pixels[chosen].float() / 255, boxes[chosen]
        turned = corners[..., [2, 1, 0, 3]] * corners.new_tensor([-1, 1, -1, 1])
        turned = turned + corners.new_tensor([SIZE, 0, SIZE, 0])
        images = torch.where(mirrored[..., None], images.flip(3), images)
        corners = torch.where(mirrored, turned, corners)
        logits, sides = network(images.contiguous(memory_format=torch.channels_last))
        return losses(logits, sides, boxes=corners, kinds=kinds[chosen])

    drawn = hashlib.sha256(pixels.numpy().tobytes() + boxes.numpy().tobytes()).hexdigest()
    fit(network, replace(PLAN, settings=[*PLAN.settings, drawn]), loss_of, checkpoint)
    return network


def write_model(network: Exported) -> float:
    """Write the model as ONNX; return by how much its output differs from torch's at most."""
    network.to(memory_format=torch.contiguous_format)
    fold_batch_norm(network)
    images = torch.rand(2, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(SEED))
    names = ("images", "output0")
    axes = {name: {0: "batch"} for name in names}
    export(network, MODEL, (images,), inputs=names[:1], outputs=names[1:], axes=axes)
    with torch.inference_mode():
        by_torch = network(images).numpy()
    (by_onnx,) = session(MODEL).run(None, {"images": images.numpy()})
    return float(np.abs(by_torch - by_onnx).max())


def damaged_map(dataset: CocoDataset, options: Mapping[str, Any]) -> float:
    """Return the score with one weight in a hundred ten times as large."""
    copy = BUILD / "yolo-damaged.onnx"
    damage(MODEL, copy, share=0.01)
    return map_of(run_onnx(dataset, copy, options), dataset)


def main() -> None:
    """Draw the data, train, export, and record what came of it."""
    checkpoint = begin(__doc__, CHECKPOINT)
    pictures = [draw([SEED, 0, index]) for index in range(VALIDATION)]
    write_coco(
        pictures,
        folder=DATA / IMAGES,
        annotations=DATA / ANNOTATIONS,
        script=Path(__file__).name,
        categories=CATEGORIES,
    )
    dataset = CocoDataset(path=str(DATA), size=SIZE)
    network = Exported(train(checkpoint)).eval()
    difference = write_model(network)
    options = {"task": "yolo", "batch_size": 8}
    answers = run_onnx(dataset, MODEL, options)
    record = {
        "seed": SEED,
        "steps": PLAN.steps,
        "batch": BATCH,
        "parameters": parameters(network),
        "training_images": TRAIN,
        "validation_images": VALIDATION,
        "validation_boxes": sum(len(picture.boxes) for picture in pictures),
        "map_onnxruntime": map_of(answers, dataset),
        "torch_difference": difference,
        "map_of_another_image": map_of(of_another_image(answers), dataset),
        "map_damaged": damaged_map(dataset, options),
        "model_sha256": sha256(MODEL),
        "dataset_digest": dataset.digest,
        **made_with((*LIBRARIES, "pycocotools")),
    }
    write_record(
        SUITE,
        README,
        record,
        size=SIZE,
        shapes=", ".join(SHAPES),
        channels=4 + len(SHAPES),
        places=len(places()[0]),
    )


if __name__ == "__main__":
    main()

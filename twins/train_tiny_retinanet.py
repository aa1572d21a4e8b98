"""Train the tiny twin of RetinaNet on drawn shapes, and write its model and data.

    python twins/train_tiny_retinanet.py           # train, or resume, then write everything

Everything is seeded and runs on one thread, so the same library versions on the same kind of CPU
give the same files. A checkpoint is written every 200 steps; a run that was interrupted resumes
there and ends in the same model. With other settings it starts over.
"""

from __future__ import annotations

import hashlib
import io
import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
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
from tiny_vision import LIBRARIES, Plan, export, fit, fold_batch_norm, run_onnx
from torch import Tensor, nn
from torch.nn import functional
from training import BUILD, TINY, begin, made_with, parameters, sha256, write_record

from pytest_mlperf.adapters.datasets.openimages import (
    ANNOTATIONS,
    IMAGES,
    OpenImagesDataset,
    stretch,
)

README = """\
# Tiny twin of RetinaNet

`model/retinanet-tiny.onnx` is a RetinaNet with a small residual backbone, a feature pyramid of
three levels and nine anchors a place, trained on drawn shapes; its anchors and the suppression of
overlapping boxes are in the graph, as in MLPerf's model. It lets the whole path from images to a
mean average precision run on a CPU in seconds. The figures below are this twin's own; they are no
MLPerf result and say nothing about RetinaNet on Open Images.

| | |
|---|---|
| mAP on the {validation_images} validation images, torch | {map_torch:.3f} |
| mAP on the same images, onnxruntime | {map_onnxruntime:.3f} |
| mAP of each image's detections on the image after it | {map_of_another_image:.3f} |
| parameters | {parameters:,} (fp32, batch norm folded) |
| input | `images`, float32, (1, 3, {size}, {size}), as the data set adapter gives it |
| outputs | `boxes`, float32, (n, 4), left, top, right, bottom in pixels; `labels`, int64, (n,); \
`scores`, float32, (n,) |
| SHA-256 of the model | `{model_sha256}` |
| digest of the data set | `{dataset_digest}` |
| seed, steps, images a step | {seed}, {steps}, {batch} |
| made with | Python {python}, {made_with} |

`training.json` holds the same figures for programs.

## Data

Images of one to six coloured shapes ({shapes})
before a slope of colours with lines and noise; shapes may cover parts of each other.
{training_images:,} images were trained on, mirrored or not; {validation_images} others, with
{validation_boxes} boxes, are in `data/openimages/` in the layout that MLPerf's script for Open
Images writes: annotations in COCO's JSON with category ids from 0, and JPEG files of several sizes.
All of it is drawn by the script.

## Rerun

    pip install -e '.[train,vision]'
    python twins/train_tiny_retinanet.py

This takes about eight minutes on one core, resumes after an interruption, and writes every file of
this folder. The same library versions on the same kind of CPU give the same bytes.
"""

SUITE = TINY / "retinanet"
DATA = SUITE / "data" / "openimages"
MODEL = SUITE / "model" / "retinanet-tiny.onnx"
CHECKPOINT = BUILD / "retinanet-tiny.pt"

SEED = 20261121
SIZE = 64
TRAIN, VALIDATION = 12288, 256
STRIDES = (4, 8, 16)
SCALES = tuple(2 * 2 ** (step / 3) for step in range(3))
"""Sides of an anchor in strides; RetinaNet has twice as many, for larger objects."""
RATIOS = (0.5, 1.0, 2.0)
WIDTHS = (16, 24, 48, 64)
"""Channels of the stem and of the three stages."""
NECK = 32
"""Channels of feature pyramid and heads."""
MEAN, DEVIATION = 0.5, 0.25
OVERLAP = 0.5
"""From which on a box suppresses another of its class."""
LEAST_SCORE = 0.05
MOST = 100
"""Detections in an image."""

BATCH = 32
PLAN = Plan(
    seed=SEED,
    steps=4000,
    peak_learning_rate=3e-3,
    weight_decay=0.02,
    checkpoint_steps=200,
    settings=[BATCH, TRAIN, SIZE, NECK, *WIDTHS, *STRIDES, *SCALES, *RATIOS],
)


class RetinaNet(nn.Module):
    """A residual backbone, a feature pyramid of three levels, and heads that the levels share.

    Source: T.-Y. Lin et al., Focal Loss for Dense Object Detection, ICCV 2017.
    """

    def __init__(self) -> None:
        super().__init__()
        stem, *stages = WIDTHS
        self.stem = nn.Sequential(*convolution(3, stem, 2), nn.ReLU())
        self.stages = nn.ModuleList(
            nn.Sequential(*convolution(before, width, 2), nn.ReLU(), Block(width))
            for before, width in zip(WIDTHS, stages, strict=False)
        )
        self.lateral = nn.ModuleList(nn.Conv2d(width, NECK, 1) for width in stages)
        self.smooth = nn.ModuleList(nn.Conv2d(NECK, NECK, 3, padding=1) for _ in stages)
        each = len(SCALES) * len(RATIOS)
        self.classes = _head(each * len(SHAPES))
        self.offsets = _head(each * 4)
        # So that training starts with few detections: the paper's prior of 1 %.
        nn.init.constant_(self.classes[-1].bias, -math.log(99))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits (batch, anchors, classes) and offsets (batch, anchors, 4).

        Args:
            images: Shape (batch, 3, SIZE, SIZE), from 0 to 1.
        """
        x = self.stem((images - MEAN) / DEVIATION)
        features = []
        for stage in self.stages:
            x = stage(x)
            features.append(x)
        merged = self.lateral[-1](features[-1])
        levels = [self.smooth[-1](merged)]
        for level in range(len(features) - 2, -1, -1):
            merged = functional.interpolate(merged, scale_factor=2.0, mode="nearest")
            merged = merged + self.lateral[level](features[level])
            levels.insert(0, self.smooth[level](merged))
        logits = [_flat(self.classes(each), len(SHAPES)) for each in levels]
        offsets = [_flat(self.offsets(each), 4) for each in levels]
        return torch.cat(logits, 1), torch.cat(offsets, 1)


def _head(channels_out: int) -> nn.Sequential:
    last = nn.Conv2d(NECK, channels_out, 3, padding=1)
    nn.init.normal_(last.weight, std=0.01)
    nn.init.zeros_(last.bias)
    return nn.Sequential(nn.Conv2d(NECK, NECK, 3, padding=1), nn.ReLU(), last)


def _flat(x: Tensor, each: int) -> Tensor:
    """From (batch, anchors of a place x each, height, width) to (batch, anchors, each)."""
    batch, channels, height, width = x.shape
    x = x.reshape(batch, channels // each, each, height, width)
    return x.permute(0, 3, 4, 1, 2).reshape(batch, -1, each)


def anchors() -> Tensor:
    """Return left, top, right and bottom of every anchor, in pixels, shape (anchors, 4)."""
    boxes = []
    for stride in STRIDES:
        centres = (torch.arange(SIZE // stride) + 0.5) * stride
        for y in centres.tolist():
            for x in centres.tolist():
                for scale in SCALES:
                    for ratio in RATIOS:
                        wide = stride * scale / math.sqrt(ratio) / 2
                        high = stride * scale * math.sqrt(ratio) / 2
                        boxes.append([x - wide, y - high, x + wide, y + high])
    return torch.tensor(boxes)


def losses(
    logits: Tensor, offsets: Tensor, *, placed: Tensor, boxes: Tensor, kinds: Tensor
) -> Tensor:
    """Return focal loss of the classes plus absolute error of the offsets, per matched anchor.

    An anchor has the object that it overlaps most, from 0.5 on; from 0.4 to 0.5 it does not count.
    An object's best anchor has it in any case.

    Args:
        logits: Shape (batch, anchors, classes).
        offsets: Shape (batch, anchors, 4).
        placed: The anchors, shape (anchors, 4).
        boxes: Corners of objects, padded, shape (batch, OBJECTS, 4).
        kinds: Their classes, -1 where there is none, shape (batch, OBJECTS).
    """
    common = overlaps(placed, boxes) * (kinds >= 0)[:, None]
    best, owner = common.max(2)
    most = common.amax(1, keepdim=True).clamp(min=1e-6)
    kept = ((common >= most) & (common > 0)).any(2)
    matched = (best >= 0.5) | kept
    targets = functional.one_hot(kinds.gather(1, owner).clamp(min=0), len(SHAPES)).float()
    targets = targets * matched[..., None]
    cross_entropy = functional.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    chance = torch.sigmoid(logits)
    wrong = chance + targets - 2 * chance * targets
    weight = (0.25 * targets + 0.75 * (1 - targets)) * wrong**2
    counted = matched | (best < 0.4)
    focal = (cross_entropy * weight * counted[..., None]).sum()
    chosen = boxes.gather(1, owner[..., None].expand(-1, -1, 4))
    error = (offsets - encoded(chosen, placed)).abs().sum(2)
    return (focal + error[matched].sum()) / matched.sum().clamp(min=1)


def encoded(boxes: Tensor, placed: Tensor) -> Tensor:
    """Return offsets of boxes from anchors: of the centre, in anchor sides, and log of sides."""
    sides, anchor_sides = boxes[..., 2:] - boxes[..., :2], placed[..., 2:] - placed[..., :2]
    moved = (boxes[..., :2] + boxes[..., 2:] - placed[..., :2] - placed[..., 2:]) / 2
    # Sides of padding are 0 and never matched.
    return torch.cat([moved / anchor_sides, (sides.clamp(min=1e-3) / anchor_sides).log()], -1)


class Suppress(torch.autograd.Function):
    """Non-maximum suppression of each class, as ONNX's NonMaxSuppression defines it."""

    @staticmethod
    def forward(ctx: Any, boxes: Tensor, scores: Tensor) -> Tensor:  # noqa: ARG004 - torch's
        """Return image, class and place of the boxes that are kept, shape (kept, 3), int64.

        Args:
            ctx: Not used.
            boxes: Corners, shape (1, anchors, 4).
            scores: Shape (1, classes, anchors).
        """
        chosen = []
        for kind, of_kind in enumerate(scores[0]):
            order = of_kind.argsort(descending=True, stable=True)
            order = order[of_kind[order] > LEAST_SCORE]
            close = overlaps(boxes[0, order], boxes[0, order]) > OVERLAP
            kept: list[int] = []
            for place in range(len(order)):
                if len(kept) < MOST and not close[place, kept].any():
                    kept.append(place)
            chosen += [[0, kind, place] for place in order[kept].tolist()]
        return torch.tensor(chosen, dtype=torch.int64).reshape(-1, 3)

    @staticmethod
    def symbolic(g: Any, boxes: Any, scores: Any) -> Any:
        """Return the node that does it in ONNX."""
        limits = (torch.tensor([MOST]), torch.tensor([OVERLAP]), torch.tensor([LEAST_SCORE]))
        constants = [g.op("Constant", value_t=limit) for limit in limits]
        return g.op("NonMaxSuppression", boxes, scores, *constants)


class Detector(nn.Module):
    """From one image to its boxes, as MLPerf's RetinaNet gives them."""

    def __init__(self, network: RetinaNet) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("placed", anchors())

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return corners in pixels (n, 4), labels (n,) and scores (n,), best scores first.

        Args:
            images: Shape (1, 3, SIZE, SIZE), from 0 to 1.
        """
        logits, offsets = self.network(images)
        low, high = self.placed[:, :2], self.placed[:, 2:]
        centres = (low + high) / 2 + offsets[0, :, :2] * (high - low)
        half = (high - low) * torch.exp(offsets[0, :, 2:].clamp(max=4.0)) / 2
        boxes = torch.cat([centres - half, centres + half], 1).clamp(0.0, float(SIZE))
        scores = torch.sigmoid(logits[0]).transpose(0, 1)
        kept = Suppress.apply(boxes[None], scores[None])
        places = kept[:, 1] * scores.shape[1] + kept[:, 2]
        best, order = torch.sort(scores.flatten().index_select(0, places), descending=True)
        kept = kept[order[:MOST]]
        return boxes[kept[:, 2]], kept[:, 1], best[:MOST]


def train(checkpoint: Path) -> RetinaNet:
    """Draw the training images and train on them, mirrored or not."""
    pixels = torch.empty((TRAIN, 3, SIZE, SIZE), dtype=torch.uint8)
    boxes = torch.zeros((TRAIN, OBJECTS, 4))
    kinds = torch.full((TRAIN, OBJECTS), -1)
    for index in range(TRAIN):
        picture = draw([SEED, 1, index])
        decoded = np.asarray(Image.open(io.BytesIO(picture.jpeg)))
        pixels[index] = torch.from_numpy(stretch(decoded, SIZE).round().transpose(2, 0, 1))
        corners = np.array(picture.boxes) * np.tile(
            [SIZE / picture.width, SIZE / picture.height], 2
        )
        corners[:, 2:] += corners[:, :2]
        boxes[index, : len(corners)] = torch.from_numpy(corners)
        kinds[index, : len(corners)] = torch.tensor(picture.kinds)
    torch.manual_seed(SEED)
    network, placed = RetinaNet(), anchors()
    network.to(memory_format=torch.channels_last)

    def loss_of(rng: np.random.Generator) -> Tensor:
        chosen = torch.from_numpy(rng.integers(TRAIN, size=BATCH))
        mirrored = torch.from_numpy(rng.integers(2, size=BATCH) == 1)
        images, corners = pixels[chosen].float() / 255, boxes[chosen]
        turned = torch.stack(
            [SIZE - corners[..., 2], corners[..., 1], SIZE - corners[..., 0], corners[..., 3]], -1
        )
        images = torch.where(mirrored[:, None, None, None], images.flip(3), images)
        corners = torch.where(mirrored[:, None, None], turned, corners)
        logits, offsets = network(images.contiguous(memory_format=torch.channels_last))
        return losses(logits, offsets, placed=placed, boxes=corners, kinds=kinds[chosen])

    drawn = hashlib.sha256(pixels.numpy().tobytes() + boxes.numpy().tobytes()).hexdigest()
    plan = replace(PLAN, settings=[*PLAN.settings, drawn])
    fit(network, plan, loss_of, checkpoint)
    return network


def write_model(detector: Detector) -> None:
    """Write the model as ONNX: "images" (1, 3, 64, 64); "boxes", "labels" and "scores"."""
    detector.network.to(memory_format=torch.contiguous_format)
    fold_batch_norm(detector)
    outputs = ["boxes", "labels", "scores"]
    with warnings.catch_warnings():
        # Of what `Suppress.forward` does with numbers, which its node stands for.
        warnings.simplefilter("ignore", torch.jit.TracerWarning)
        export(
            detector,
            MODEL,
            (torch.rand(1, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(SEED)),),
            inputs=["images"],
            outputs=outputs,
            axes={name: {0: "detections"} for name in outputs},
        )


def run_torch(detector: Detector, dataset: OpenImagesDataset) -> list[bytes]:
    """Return what torch detects in each sample, as scorer map takes it."""
    answers = []
    for index in range(len(dataset)):
        with torch.inference_mode():
            boxes, labels, scores = detector(torch.from_numpy(dataset.input(index)[None]))
        rows = torch.cat(
            [
                torch.full((len(boxes), 1), float(index)),
                boxes[:, [1, 0, 3, 2]] / SIZE,
                scores[:, None],
                labels[:, None].float(),
            ],
            1,
        )
        answers.append(rows.numpy().astype("<f4").tobytes())
    return answers


def main() -> None:
    """Draw the data, train, export, and record what came of it."""
    checkpoint = begin(__doc__, CHECKPOINT)
    pictures = [draw([SEED, 0, index]) for index in range(VALIDATION)]
    write_coco(
        pictures,
        folder=DATA / IMAGES,
        annotations=DATA / ANNOTATIONS,
        script=Path(__file__).name,
        categories=range(len(SHAPES)),
    )
    dataset = OpenImagesDataset(path=str(DATA), size=SIZE)
    detector = Detector(train(checkpoint)).eval()
    by_torch = run_torch(detector, dataset)
    write_model(detector)
    by_onnx = run_onnx(dataset, MODEL, {"task": "detect", "batch_size": 1})
    record = {
        "seed": SEED,
        "steps": PLAN.steps,
        "batch": BATCH,
        "parameters": parameters(detector),
        "training_images": TRAIN,
        "validation_images": VALIDATION,
        "validation_boxes": sum(len(picture.boxes) for picture in pictures),
        "map_torch": map_of(by_torch, dataset),
        "map_onnxruntime": map_of(by_onnx, dataset),
        "map_of_another_image": map_of(of_another_image(by_onnx), dataset),
        "model_sha256": sha256(MODEL),
        "dataset_digest": dataset.digest,
        **made_with((*LIBRARIES, "pycocotools")),
    }
    write_record(SUITE, README, record, size=SIZE, shapes=", ".join(SHAPES))


if __name__ == "__main__":
    main()

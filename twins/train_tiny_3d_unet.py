"""Train the tiny twin of 3D U-Net on drawn volumes, and write its model and data.

    python twins/train_tiny_3d_unet.py             # train, or resume, then write everything

Everything is seeded and runs on one thread, so the same library versions on the same kind of CPU
give the same files. A checkpoint is written every 100 steps; a run that was interrupted resumes
there and ends in the same model. With other settings it starts over.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tiny_vision import LIBRARIES, Plan, export, fit, fold_batch_norm, run_onnx
from torch import Tensor, nn
from torch.nn import functional
from training import BUILD, TINY, begin, made_with, parameters, sha256, write_record

from pytest_mlperf.adapters.datasets.kits19 import LIST, Kits19Dataset
from pytest_mlperf.adapters.engines.tasks._images import importance
from pytest_mlperf.adapters.scorers.dice import DiceScorer

if TYPE_CHECKING:
    from numpy.typing import NDArray

SUITE = TINY / "3d-unet"
DATA = SUITE / "data" / "kits19"
MODEL = SUITE / "model" / "3d-unet-tiny.onnx"
CHECKPOINT = BUILD / "3d-unet-tiny.pt"

SEED = 20261121
TRAIN, VALIDATION = 768, 40
WINDOW = 16
"""Voxels along each side; MLPerf's model takes 128."""
LENGTHS = (24, 32)
"""Of a volume's sides: windows that cover each other by half cover it exactly."""
KIDNEY, TUMOR, OTHER = 1.0, 0.45, -0.7
"""Intensities; what is around is near 0. OTHER is what has no label, and so has some at TUMOR."""
NOISE = 0.25
STEP = 1 / 16
"""Intensities are multiples of it, as those of a scanner are: they pack better."""

WIDTHS = (8, 16, 32)
"""Channels at each of the resolutions; MLPerf's model has 32 to 320 at six."""
CLASSES = 3
BATCH = 16
PLAN = Plan(
    seed=SEED,
    steps=2400,
    peak_learning_rate=4e-3,
    weight_decay=0.02,
    checkpoint_steps=100,
    settings=[BATCH, TRAIN, WINDOW, *WIDTHS],
)

README = """\
# Tiny twin of 3D U-Net

`model/3d-unet-tiny.onnx` is a 3D U-Net with three resolutions, trained on drawn volumes in which
ellipsoids stand for kidneys and tumors. It is slid over each volume in windows of {window} voxels
along each side that cover each other by half, as MLPerf's model is in windows of 128. It lets the
whole path from volumes to a Dice score run on a CPU in seconds. The figures below are this twin's
own; they are no MLPerf result and say nothing about 3D U-Net on KiTS19.

| Dice on the {validation_cases} validation cases | kidney | tumor | mean |
|---|---|---|---|
| torch | {dice_kidney_torch:.4f} | {dice_tumor_torch:.4f} | {dice_torch:.5f} |
| onnxruntime | {dice_kidney:.4f} | {dice_tumor:.4f} | {dice:.5f} |
| the same answers, voxels shuffled | | | {dice_of_shuffled_voxels:.4f} |

| | |
|---|---|
| parameters | {parameters:,} (fp32, batch norm folded) |
| input | `input`, float32, (batch, 1, {window}, {window}, {window}) |
| output | `output`, float32, (batch, {classes}, {window}, {window}, {window}), scores of \
background, kidney, tumor |
| SHA-256 of the model | `{model_sha256}` |
| digest of the data set | `{dataset_digest}` |
| seed, steps, windows a step | {seed}, {steps}, {batch} |
| made with | Python {python}, {made_with} |

`training.json` holds the same figures for programs.

## Data

Volumes with sides of {lengths} voxels, with two kidneys, one to three tumors on
their surface, and other bodies that have no label, some as bright as a tumor; all in noise.
{training_cases} were trained on, turned and mirrored; {validation_cases} others are in
`data/kits19/`: `preprocessed_files.pkl` lists them as MLPerf's `preprocess.py` does, and each is a
packed `.npz` in place of a pickle, since the data set adapter reads both. All of it is drawn by the
script.

## Rerun

    pip install -e '.[train]'
    python twins/train_tiny_3d_unet.py

This takes about {minutes} minutes on one core, resumes after an interruption, and writes every
file of this folder. The same library versions on the same kind of CPU give the same bytes.
"""


def draw(seed: Sequence[int]) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Draw a volume and its label, both of shape (depth, height, width)."""
    rng = np.random.default_rng(seed)
    shape = rng.choice(LENGTHS, 3).tolist()
    volume = rng.uniform(-0.2, 0.2) + _waves(rng, shape)
    label = np.zeros(shape, np.uint8)
    for level in (OTHER, OTHER, TUMOR, 1.5 * KIDNEY):
        centre = rng.uniform(0, 1, 3) * shape
        volume[_ellipsoid(shape, centre, rng.uniform(1.5, 4.5, 3))] = level
    surfaces = []
    for side in (0.26, 0.74):
        share = (rng.uniform(0.35, 0.65), rng.uniform(0.35, 0.65), side + rng.uniform(-0.04, 0.04))
        middle, radii = np.array(share) * shape, rng.uniform((5, 4, 4), (8, 6.5, 6))
        body = _ellipsoid(shape, middle, radii)
        volume[body], label[body] = KIDNEY * rng.uniform(0.85, 1.15), 1
        surfaces.append((middle, radii))
    for _ in range(rng.integers(1, 3, endpoint=True)):
        middle, radii = surfaces[rng.integers(2)]
        direction = rng.normal(size=3)
        place = middle + 0.9 * radii * direction / np.linalg.norm(direction)
        body = _ellipsoid(shape, place, rng.uniform(2.5, 4.5, 3))
        volume[body], label[body] = TUMOR * rng.uniform(0.85, 1.15), 2
    noisy = volume + rng.normal(0, NOISE, shape)
    return (np.rint(noisy / STEP) * STEP).astype(np.float32), label


def _waves(rng: np.random.Generator, shape: Sequence[int]) -> NDArray[np.float64]:
    """Return intensities that vary slowly, shape `shape`."""
    total = np.zeros(shape)
    grid = np.indices(shape)
    for _ in range(3):
        turns, start = rng.uniform(-0.2, 0.2, 3), rng.uniform(0, 2 * np.pi)
        total += 0.12 * np.sin(np.tensordot(turns, grid, 1) + start)
    return total


def _ellipsoid(
    shape: Sequence[int], centre: NDArray[np.float64], radii: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Return which voxels are in an ellipsoid."""
    distance = np.zeros(shape)
    for axis, length in enumerate(shape):
        line = ((np.arange(length) + 0.5 - centre[axis]) / radii[axis]) ** 2
        distance += np.expand_dims(line, [other for other in range(3) if other != axis])
    return distance <= 1


def write_validation() -> None:
    """Write cases and their list as MLPerf's preprocess.py does, but each case as .npz."""
    DATA.mkdir(parents=True, exist_ok=True)
    names = [f"case_{index:05d}" for index in range(VALIDATION)]
    cases = {}
    for index, name in enumerate(names):
        volume, label = draw([SEED, 0, index])
        np.savez_compressed(DATA / f"{name}.npz", image=volume[None], label=label[None])
        cases[name] = {"case": name, "image_shape": (1, *volume.shape)}
    (DATA / LIST).write_bytes(pickle.dumps({"file_list": names, "cases": cases}, protocol=4))


def convolution(channels_in: int, channels_out: int, stride: int = 1) -> list[nn.Module]:
    """Return a 3x3x3 convolution with batch norm and ReLU."""
    conv = nn.Conv3d(channels_in, channels_out, 3, stride, 1, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return [conv, nn.BatchNorm3d(channels_out), nn.ReLU()]


class UNet3d(nn.Module):
    """3D U-Net: convolutions at falling and rising resolution, with shortcuts between equal ones.

    Source: O. Cicek et al., 3D U-Net: Learning Dense Volumetric Segmentation from Sparse
    Annotation, MICCAI 2016; resolution is halved by strides, as in MLPerf's model.
    """

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList()
        before, stride = 1, 1
        for width in WIDTHS:
            steps = [*convolution(before, width, stride), *convolution(width, width)]
            self.down.append(nn.Sequential(*steps))
            before, stride = width, 2
        self.enlarge, self.up = nn.ModuleList(), nn.ModuleList()
        for width in WIDTHS[-2::-1]:
            self.enlarge.append(nn.ConvTranspose3d(before, width, 2, 2))
            steps = [*convolution(2 * width, width), *convolution(width, width)]
            self.up.append(nn.Sequential(*steps))
            before = width
        self.last = nn.Conv3d(before, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores, shape (batch, CLASSES, depth, height, width).

        Args:
            x: Shape (batch, 1, depth, height, width), each length a multiple of 4.
        """
        kept = []
        for step in self.down:
            x = step(x)
            kept.append(x)
        kept.pop()
        for enlarge, step in zip(self.enlarge, self.up, strict=True):
            x = step(torch.cat([enlarge(x), kept.pop()], 1))
        return self.last(x)


def loss_of_windows(scores: Tensor, labels: Tensor) -> Tensor:
    """Return cross entropy plus what is missing to a Dice of 1, of kidney and tumor.

    Args:
        scores: Shape (batch, CLASSES, depth, height, width).
        labels: Shape (batch, depth, height, width), int64.
    """
    chances = scores.softmax(1)[:, 1:]
    labelled = functional.one_hot(labels, CLASSES).movedim(-1, 1)[:, 1:].float()
    common, both = (chances * labelled).sum((0, 2, 3, 4)), (chances + labelled).sum((0, 2, 3, 4))
    missing = 1 - (2 * common + 1) / (both + 1)
    return functional.cross_entropy(scores, labels) + missing.mean()


def cut(
    rng: np.random.Generator, volume: NDArray[np.float32], label: NDArray[np.uint8]
) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Cut a window out at random, two of three around a voxel of a kidney or tumor; turn it."""
    low = np.zeros(3, np.int64)
    high = np.array(volume.shape) - WINDOW
    if kind := rng.integers(3):
        voxels = np.flatnonzero(label.ravel() == kind)
        voxel = np.unravel_index(voxels[rng.integers(len(voxels))], label.shape)
        start = (np.array(voxel) - rng.integers(WINDOW, size=3)).clip(low, high)
    else:
        start = rng.integers(low, high, endpoint=True)
    place = tuple(slice(first, first + WINDOW) for first in start)
    axes = tuple(axis for axis in range(3) if rng.integers(2))
    order = [0, *(1 + rng.permutation(2))]
    return (
        np.flip(volume[place], axes).transpose(order),
        np.flip(label[place], axes).transpose(order),
    )


def train(checkpoint: Path) -> UNet3d:
    """Draw the training volumes and train on windows of them."""
    cases = [draw([SEED, 1, index]) for index in range(TRAIN)]
    torch.manual_seed(SEED)
    network = UNet3d()
    network.to(memory_format=torch.channels_last_3d)

    def loss_of(rng: np.random.Generator) -> Tensor:
        chosen = [cut(rng, *cases[index]) for index in rng.integers(TRAIN, size=BATCH)]
        images = torch.from_numpy(np.stack([image for image, _ in chosen])[:, None])
        labels = torch.from_numpy(np.stack([label for _, label in chosen]).astype(np.int64))
        scores = network(images.contiguous(memory_format=torch.channels_last_3d))
        return loss_of_windows(scores, labels)

    drawn = hashlib.sha256(b"".join(each.tobytes() for case in cases for each in case)).hexdigest()
    fit(network, replace(PLAN, settings=[*PLAN.settings, drawn]), loss_of, checkpoint)
    return network


def run_torch(network: UNet3d, dataset: Kits19Dataset) -> list[bytes]:
    """Return the classes that torch gives, window by window, as scorer dice takes them."""
    weights = torch.from_numpy(importance((WINDOW,) * 3))
    answers = []
    for index in range(len(dataset)):
        volume = torch.from_numpy(dataset.input(index))[None]
        total, weight = torch.zeros(CLASSES, *volume.shape[2:]), torch.zeros(volume.shape[2:])
        steps = (range(0, length - WINDOW + 1, WINDOW // 2) for length in volume.shape[2:])
        for start in product(*steps):
            place = tuple(slice(first, first + WINDOW) for first in start)
            with torch.inference_mode():
                total[(slice(None), *place)] += network(volume[(..., *place)])[0] * weights
            weight[place] += weights
        answers.append((total / weight).argmax(0).to(torch.uint8).numpy().tobytes())
    return answers


def scores_of(answers: Sequence[bytes], dataset: Kits19Dataset) -> dict[str, float]:
    """Return "dice", "dice_kidney" and "dice_tumor" from 0 to 1, to five digits."""
    references = [dataset.reference(index) for index in range(len(dataset))]
    scored = DiceScorer().score(answers, references).aggregate
    return {name: round(value, 5) for name, value in scored.items()}


def shuffled(answers: Sequence[bytes]) -> list[bytes]:
    """Return each answer's voxels in another order: chance, with the right shares of classes."""
    rng = np.random.default_rng(SEED)
    return [rng.permutation(np.frombuffer(each, np.uint8)).tobytes() for each in answers]


def main() -> None:
    """Draw the data, train, export, and record what came of it."""
    checkpoint = begin(__doc__, CHECKPOINT)
    write_validation()
    dataset = Kits19Dataset(path=str(DATA))
    network = train(checkpoint)
    by_torch = scores_of(run_torch(network, dataset), dataset)
    export(
        fold_batch_norm(network.to(memory_format=torch.contiguous_format)),
        MODEL,
        (torch.zeros(1, 1, WINDOW, WINDOW, WINDOW),),
        inputs=["input"],
        outputs=["output"],
        axes={"input": {0: "batch"}, "output": {0: "batch"}},
    )
    options = {"task": "segment", "roi_shape": [WINDOW] * 3, "overlap": 0.5, "batch_size": 8}
    answers = run_onnx(dataset, MODEL, options)
    record: dict[str, Any] = {
        "seed": SEED,
        "steps": PLAN.steps,
        "batch": BATCH,
        "parameters": parameters(network),
        "training_cases": TRAIN,
        "validation_cases": VALIDATION,
        **scores_of(answers, dataset),
        **{f"{name}_torch": value for name, value in by_torch.items()},
        "dice_of_shuffled_voxels": scores_of(shuffled(answers), dataset)["dice"],
        "model_sha256": sha256(MODEL),
        "dataset_digest": dataset.digest,
        **made_with([name for name in LIBRARIES if name != "pillow"]),
    }
    facts = {"window": WINDOW, "classes": CLASSES, "lengths": " or ".join(map(str, LENGTHS))}
    write_record(SUITE, README, record, **facts, minutes=5)


if __name__ == "__main__":
    main()

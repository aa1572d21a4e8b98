"""Train the tiny twin of ResNet-50 on handwritten digits, and write its model and data.

    python twins/train_tiny_resnet50.py            # train, or resume, then write everything

Everything is seeded and runs on one thread, so the same library versions on the same kind of CPU
give the same files. A checkpoint is written after every epoch; a run that was interrupted resumes
there and ends in the same model. With other settings it starts over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from tiny_vision import export, fold_batch_norm, session
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR
from training import BUILD, TINY, Course, begin, fit, made_with, parameters, sha256, write_record

from pytest_mlperf.adapters.datasets.imagenet import VGG_MEAN, ImageNetDataset

if TYPE_CHECKING:
    from numpy.typing import NDArray

SUITE = TINY / "resnet50"
IMAGES = SUITE / "data" / "imagenet"
MODEL = SUITE / "resnet50-tiny.onnx"
CHECKPOINT = BUILD / "resnet50-tiny.pt"

SEED = 20261121
SIZE = 32
CLASSES = 10
TRAIN, VALIDATION = 1297, 500
EPOCHS = 12
BATCH = 64
PEAK_LEARNING_RATE = 0.1
SHIFT = 3
WIDTH = 8
BLOCKS = (3, 4, 6, 3)
# ResNet-50 halves the resolution at stages 2, 3 and 4; 32 x 32 pixels bear two halvings.
STRIDES = (1, 1, 2, 2)
SETTINGS = [SEED, EPOCHS, BATCH, PEAK_LEARNING_RATE, SHIFT, WIDTH, *BLOCKS, *STRIDES]
LIBRARIES = ("torch", "onnx", "onnxruntime", "scikit-learn", "pillow", "numpy")

README = """\
# Tiny twin of ResNet-50

`resnet50-tiny.onnx` is ResNet-50 v1.5 at an eighth of its width, with stem and strides for images
of 32 x 32 pixels, trained on handwritten digits. It lets the whole path from images to a verdict
run on a CPU in seconds. The figures below are this twin's own; they are no MLPerf result and say
nothing about ResNet-50 on ImageNet.

| | |
|---|---|
| top-1 on the {validation_images} validation images, torch | {top1_torch_percent:.3f} % |
| top-1 on the same images, onnxruntime | {top1_onnxruntime_percent:.3f} % |
| parameters | {parameters:,} (fp32, batch norm folded) |
| input | `image`, float32, (batch, 3, {size}, {size}), as the data set adapter gives it |
| output | `logits`, float32, (batch, {classes}) |
| SHA-256 of the model | `{model_sha256}` |
| digest of the data set | `{dataset_digest}` |
| seed, epochs | {seed}, {epochs} |
| made with | Python {python}, {made_with} |

`training.json` holds the same figures for programs.

## Data

The 1,797 images of `sklearn.datasets.load_digits` in a seeded order: the first {training_images}
were trained on, the other {validation_images} are in `data/imagenet/`, in the layout of the
official ImageNet validation set (`val_map.txt` with one `FILE LABEL` per line). They were enlarged
from 8 x 8 to {size} x {size} pixels and are grey PNG files, which keep them exact.

Source: *Optical Recognition of Handwritten Digits* by E. Alpaydin and C. Kaynak, UCI Machine
Learning Repository, https://doi.org/10.24432/C50P49, licensed under
[CC BY 4.0](https://creativecommons.org/licenses/by/4.0/).

## Rerun

    pip install -e '.[train]'
    python twins/train_tiny_resnet50.py

This takes about five minutes on one core, resumes after an interruption, and writes every file of
this folder but the suite. The same library versions on the same kind of CPU give the same bytes.
"""


class Bottleneck(nn.Module):
    """ResNet-50's block: 1x1, 3x3 and 1x1 convolutions with batch norm, and a shortcut."""

    def __init__(self, channels_in: int, width: int, stride: int) -> None:
        super().__init__()
        channels_out = 4 * width
        self.body = nn.Sequential(
            *convolution(channels_in, width, 1),
            nn.ReLU(),
            *convolution(width, width, 3, stride=stride),
            nn.ReLU(),
            *convolution(width, channels_out, 1),
        )
        same = stride == 1 and channels_in == channels_out
        self.shortcut = nn.Sequential(
            *(() if same else convolution(channels_in, channels_out, 1, stride=stride))
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, shape (batch, 4 * width, height / stride, width / stride)."""
        return torch.relu(self.body(x) + self.shortcut(x))


def convolution(
    channels_in: int, channels_out: int, kernel: int, *, stride: int = 1
) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    """Return a convolution that keeps the image's size at stride 1, and its batch norm."""
    conv = nn.Conv2d(channels_in, channels_out, kernel, stride, kernel // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return conv, nn.BatchNorm2d(channels_out)


def resnet50_tiny() -> nn.Sequential:
    """Return ResNet-50 v1.5 at an eighth of its width, with stem and strides for small images."""
    layers: list[nn.Module] = [*convolution(3, WIDTH, 3), nn.ReLU()]
    channels = WIDTH
    for stage, (blocks, stride) in enumerate(zip(BLOCKS, STRIDES, strict=True)):
        width = WIDTH * 2**stage
        for block in range(blocks):
            layers.append(Bottleneck(channels, width, stride if block == 0 else 1))
            channels = 4 * width
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES)
    )


def draw_digits() -> tuple[list[Image.Image], NDArray[np.int64]]:
    """Return all digits as grey images of 32 x 32 pixels in a seeded order, and their labels."""
    digits = load_digits()
    order = np.random.default_rng(SEED).permutation(len(digits.images))
    grey = np.rint(digits.images[order] * (255 / 16)).astype(np.uint8)
    images = [
        Image.fromarray(image).resize((SIZE, SIZE), Image.Resampling.BILINEAR) for image in grey
    ]
    return images, digits.target[order].astype(np.int64)


def write_validation(images: Sequence[Image.Image], labels: NDArray[np.int64]) -> None:
    """Write images and labels in ImageNet's official layout."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    lines = []
    for number, (image, label) in enumerate(zip(images, labels, strict=True), start=1):
        name = f"digits_val_{number:08d}.png"
        image.save(IMAGES / name, optimize=True)
        lines.append(f"{name} {label}\n")
    (IMAGES / "val_map.txt").write_text("".join(lines), encoding="utf-8")


def shifted(batch: Tensor, offsets: Tensor) -> Tensor:
    """Shift each image by up to SHIFT pixels both ways; the background moves in."""
    padded = nn.functional.pad(batch, (SHIFT,) * 4, mode="replicate")
    return torch.stack(
        [
            image[:, top : top + SIZE, left : left + SIZE]
            for image, (top, left) in zip(padded, offsets.tolist(), strict=True)
        ]
    )


def batches(images: int, *, first_step: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the batches from one step on: their images' numbers, and how far each is shifted.

    Every epoch has every image once. One generator draws all of it, so that of the steps before is
    drawn as well.
    """
    generator = torch.Generator().manual_seed(SEED)
    drawn = (
        (chosen, torch.randint(0, 2 * SHIFT + 1, (len(chosen), 2), generator=generator))
        for _ in range(EPOCHS)
        for chosen in torch.split(torch.randperm(images, generator=generator), BATCH)
    )
    return islice(drawn, first_step, None)


def train(inputs: Tensor, labels: Tensor, checkpoint: Path) -> nn.Sequential:
    """Train from the seed, or from the checkpoint where there is one.

    Args:
        inputs: Shape (images, 3, SIZE, SIZE), as the data set adapter gives them.
        labels: Shape (images,).
        checkpoint: Written after every epoch.
    """
    torch.manual_seed(SEED)
    model = resnet50_tiny()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=PEAK_LEARNING_RATE, momentum=0.9, nesterov=True, weight_decay=5e-4
    )
    epoch_steps = -(-len(inputs) // BATCH)
    steps = EPOCHS * epoch_steps

    def loss_of(batch: tuple[Tensor, Tensor]) -> list[Tensor]:
        chosen, offsets = batch
        logits = model(shifted(inputs[chosen], offsets))
        return [nn.functional.cross_entropy(logits, labels[chosen])]

    fit(
        model,
        [OneCycleLR(optimizer, PEAK_LEARNING_RATE, total_steps=steps)],
        Course(settings=SETTINGS, steps=steps, checkpoint_steps=epoch_steps),
        batches=lambda step: batches(len(inputs), first_step=step),
        loss_of=loss_of,
        checkpoint=checkpoint,
    )
    return model


def percent_correct(logits: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
    """Return the share of rows whose largest logit is the label's, in per cent."""
    return 100.0 * int((logits.argmax(axis=1) == labels).sum()) / len(labels)


def main() -> None:
    """Draw the data, train, export, and record what came of it."""
    checkpoint = begin(__doc__, CHECKPOINT)
    images, labels = draw_digits()
    write_validation(images[TRAIN:], labels[TRAIN:])
    dataset = ImageNetDataset(path=str(IMAGES), size=SIZE, crop=1.0, classes=CLASSES)
    validation = np.stack([dataset.input(index) for index in range(len(dataset))])
    pixels = np.stack([np.asarray(image.convert("RGB"), np.float32) for image in images[:TRAIN]])
    mean = np.array(VGG_MEAN, np.float32)
    training = np.ascontiguousarray((pixels - mean).transpose(0, 3, 1, 2))

    model = train(torch.from_numpy(training), torch.from_numpy(labels[:TRAIN]), checkpoint)
    with torch.inference_mode():
        logits = model(torch.from_numpy(validation)).numpy()
    export(
        fold_batch_norm(model),
        MODEL,
        (torch.zeros(1, 3, SIZE, SIZE),),
        inputs=["image"],
        outputs=["logits"],
        axes={"image": {0: "batch"}, "logits": {0: "batch"}},
    )
    (by_onnx,) = session(MODEL).run(["logits"], {"image": validation})
    record = {
        "seed": SEED,
        "epochs": EPOCHS,
        "parameters": parameters(model),
        "training_images": TRAIN,
        "validation_images": VALIDATION,
        "top1_torch_percent": percent_correct(logits, labels[TRAIN:]),
        "top1_onnxruntime_percent": percent_correct(by_onnx, labels[TRAIN:]),
        "model_sha256": sha256(MODEL),
        "dataset_digest": dataset.digest,
        **made_with(LIBRARIES),
    }
    write_record(SUITE, README, record, size=SIZE, classes=CLASSES)


if __name__ == "__main__":
    main()

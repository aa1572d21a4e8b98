"""Compute the image features for FID with the original weights of the Inception network."""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_mlperf import EnvironmentFault
from pytest_mlperf.adapters.conventions import not_installed
from pytest_mlperf.adapters.lazy import NDArray, np
from pytest_mlperf.adapters.scorers import scorer_error


@dataclass(frozen=True, kw_only=True, slots=True)
class Conv:
    """Define a convolution without bias, then batch normalisation, then ReLU.

    Attributes:
        name: Prefix of the names of its weights.
        channels: Number of output channels.
        kernel: Height and width of the kernel.
        stride: Stride in both directions.
        padding: Rows and columns of zeros added on each side.
    """

    name: str
    channels: int
    kernel: tuple[int, int]
    stride: int
    padding: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Pool:
    """Define a pooling over 3 x 3 pixels.

    Attributes:
        kind: "reduce" is maximum pooling with stride 2; "maximum" and "average" keep the image
            size, and ignore pixels outside the image.
    """

    kind: str


class Fork:
    """Define parallel branches on one input; their output channels are concatenated."""

    def __init__(self, *paths: Layers) -> None:
        self.paths = paths


Layers = tuple[Conv | Pool | Fork, ...]
"""Layers in sequence."""


def conv(name: str, channels: int, height: int = 1, width: int | None = None) -> Conv:
    """Return a convolution that keeps the image size; the kernel is square if `width` is None."""
    kernel = height, height if width is None else width
    padding = kernel[0] // 2, kernel[1] // 2
    return Conv(name=name, channels=channels, kernel=kernel, stride=1, padding=padding)


def downsampling_conv(name: str, channels: int, *, stride: int = 2) -> Conv:
    """Return a 3 x 3 convolution without padding, by default with stride 2."""
    return Conv(name=name, channels=channels, kernel=(3, 3), stride=stride, padding=(0, 0))


def chain(stem: str, *convolutions: tuple[int, ...]) -> Layers:
    """Return convolutions STEM_1, STEM_2, …; each tuple has arguments of `conv` after the name."""
    return tuple(
        conv(f"{stem}_{number}", *arguments) for number, arguments in enumerate(convolutions, 1)
    )


def _block_a(name: str, pooled: int) -> Fork:
    return Fork(
        (conv(f"{name}.branch1x1", 64),),
        chain(f"{name}.branch5x5", (48,), (64, 5)),
        chain(f"{name}.branch3x3dbl", (64,), (96, 3), (96, 3)),
        (Pool("average"), conv(f"{name}.branch_pool", pooled)),
    )


def _block_b(name: str) -> Fork:
    double = f"{name}.branch3x3dbl"
    return Fork(
        (downsampling_conv(f"{name}.branch3x3", 384),),
        (*chain(double, (64,), (96, 3)), downsampling_conv(f"{double}_3", 96)),
        (Pool("reduce"),),
    )


def _block_c(name: str, inner: int) -> Fork:
    tall, wide = (inner, 7, 1), (inner, 1, 7)
    return Fork(
        (conv(f"{name}.branch1x1", 192),),
        chain(f"{name}.branch7x7", (inner,), wide, (192, 7, 1)),
        chain(f"{name}.branch7x7dbl", (inner,), tall, wide, tall, (192, 1, 7)),
        (Pool("average"), conv(f"{name}.branch_pool", 192)),
    )


def _block_d(name: str) -> Fork:
    stem = f"{name}.branch7x7x3"
    return Fork(
        (conv(f"{name}.branch3x3_1", 192), downsampling_conv(f"{name}.branch3x3_2", 320)),
        (*chain(stem, (192,), (192, 1, 7), (192, 7, 1)), downsampling_conv(f"{stem}_4", 192)),
        (Pool("reduce"),),
    )


def _block_e(name: str, pool: str) -> Fork:
    def cross(stem: str) -> Fork:
        return Fork((conv(f"{stem}a", 384, 1, 3),), (conv(f"{stem}b", 384, 3, 1),))

    double = f"{name}.branch3x3dbl"
    return Fork(
        (conv(f"{name}.branch1x1", 320),),
        (conv(f"{name}.branch3x3_1", 384), cross(f"{name}.branch3x3_2")),
        (*chain(double, (448,), (384, 3)), cross(f"{double}_3")),
        (Pool(pool), conv(f"{name}.branch_pool", 192)),
    )


NETWORK: Layers = (
    downsampling_conv("Conv2d_1a_3x3", 32),
    downsampling_conv("Conv2d_2a_3x3", 32, stride=1),
    conv("Conv2d_2b_3x3", 64, 3),
    Pool("reduce"),
    conv("Conv2d_3b_1x1", 80),
    downsampling_conv("Conv2d_4a_3x3", 192, stride=1),
    Pool("reduce"),
    _block_a("Mixed_5b", 32),
    _block_a("Mixed_5c", 64),
    _block_a("Mixed_5d", 64),
    _block_b("Mixed_6a"),
    _block_c("Mixed_6b", 128),
    _block_c("Mixed_6c", 160),
    _block_c("Mixed_6d", 160),
    _block_c("Mixed_6e", 192),
    _block_d("Mixed_7a"),
    _block_e("Mixed_7b", "average"),
    # Unlike in the paper, the original network pools the last block by the maximum.
    _block_e("Mixed_7c", "maximum"),
)
"""Sources: C. Szegedy et al., "Rethinking the Inception architecture for computer vision", 2016, as
TensorFlow's model of 2015-12-05 built it; FIDInception* in text_to_image/tools/fid/inception.py of
https://github.com/mlcommons/inference.
"""


def shapes(layers: Layers, channels: int) -> tuple[dict[str, tuple[int, ...]], int]:
    """Return (shapes of all weights by name, output channels) for `channels` input channels."""
    weights: dict[str, tuple[int, ...]] = {}
    for layer in layers:
        if isinstance(layer, Conv):
            weights[f"{layer.name}.conv.weight"] = (layer.channels, channels, *layer.kernel)
            for part in ("weight", "bias", "running_mean", "running_var"):
                weights[f"{layer.name}.bn.{part}"] = (layer.channels,)
            channels = layer.channels
        elif isinstance(layer, Fork):
            parts = [shapes(path, channels) for path in layer.paths]
            channels = sum(width for _, width in parts)
            for part_shapes, _ in parts:
                weights |= part_shapes
    return weights, channels


WEIGHTS_FILE = "pt_inception-2015-12-05-6726825d.pth"
ADVICE = (
    f"download {WEIGHTS_FILE} (github.com/mseitzer/pytorch-fid, release fid_weights), and set the "
    "scorer's inception to it"
)

INPUT_PIXELS = 299
"""Height and width of the network's input."""

EPSILON = 1e-3
"""Added by TensorFlow's batch normalisation to the variance."""

CLASSIFIER = {"fc.weight": (1008, 2048), "fc.bias": (1008,)}
"""Weights in the file that are not used."""

COUNTER = ".bn.num_batches_tracked"
"""Suffix of unused weights that later versions of torch save."""


def compute(layers: Layers, x: Any, weights: Mapping[str, Any]) -> Any:
    """Apply the layers to a batch of images, shape (images, channels, height, width)."""
    import torch
    from torch.nn import functional

    for layer in layers:
        if isinstance(layer, Conv):
            bn = (f"{layer.name}.bn.{part}" for part in ("running_mean", "running_var"))
            x = functional.conv2d(
                x, weights[f"{layer.name}.conv.weight"], stride=layer.stride, padding=layer.padding
            )
            x = functional.batch_norm(
                x,
                *(weights[name] for name in bn),
                weight=weights[f"{layer.name}.bn.weight"],
                bias=weights[f"{layer.name}.bn.bias"],
                eps=EPSILON,
            ).relu_()
        elif isinstance(layer, Fork):
            x = torch.cat([compute(path, x, weights) for path in layer.paths], 1)
        elif layer.kind == "average":
            x = functional.avg_pool2d(x, 3, stride=1, padding=1, count_include_pad=False)
        elif layer.kind == "maximum":
            x = functional.max_pool2d(x, 3, stride=1, padding=1)
        else:
            x = functional.max_pool2d(x, 3, stride=2)
    return x


class InceptionFeatures:
    """Compute pytorch-fid's 2048 features of each image, after the last average pooling."""

    def __init__(self, file: Path, *, device: str) -> None:
        """Load weights, named as in `WEIGHTS_FILE`, onto a device, "cpu" or "cuda"."""
        self._weights = {name: w.to(device) for name, w in load_weights(file).items()}
        self._device = device

    def __call__(self, images: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Return the features (images, 2048) of RGB images (images, height, width, 3)."""
        import torch
        from torch.nn import functional

        with torch.inference_mode():
            x = torch.from_numpy(images).to(self._device).permute(0, 3, 1, 2).float() / 255
            x = functional.interpolate(
                x, size=(INPUT_PIXELS, INPUT_PIXELS), mode="bilinear", align_corners=False
            )
            x = compute(NETWORK, 2 * x - 1, self._weights)
            features = functional.adaptive_avg_pool2d(x, 1).flatten(1).cpu().numpy()
        return np.asarray(features, np.float64)


def check_device(device: str) -> None:
    try:
        import torch
    except ImportError as error:
        raise not_installed("scorer clip_fid", "torch", "diffusion") from error
    if device == "cuda" and not torch.cuda.is_available():
        raise EnvironmentFault(
            'scorer clip_fid: device = "cuda", but torch finds no such device here; install a '
            'torch build for this GPU, or set device = "cpu"'
        )


def load_weights(file: Path) -> dict[str, Any]:
    """Return the network's tensors by name, without running code from the file.

    If the file's name ends in "-" and hexadecimal digits, like the official one's, these must be
    the beginning of its SHA-256.
    """
    import torch

    _check_name(file)
    try:
        # Only zipped files can be mapped; the official file has the older format.
        weights = torch.load(
            file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file)
        )
    except Exception as error:  # torch's readers of zip, pickle and storage raise many types
        first = str(error).partition("\n")[0]
        raise scorer_error(
            f"{file}: torch cannot read these weights ({first}); {ADVICE}"
        ) from error
    if not isinstance(weights, Mapping):
        raise scorer_error(
            f"{file}: holds a {type(weights).__name__}, not a table of named weights; {ADVICE}"
        )
    expected, _ = shapes(NETWORK, 3)
    if defect := _defect(weights, expected | CLASSIFIER):
        raise scorer_error(f"{file}: is not the Inception network of the FID: {defect}; {ADVICE}")
    return {name: weights[name] for name in expected}


def _defect(weights: Mapping[str, Any], expected: Mapping[str, tuple[int, ...]]) -> str | None:
    import torch

    if missing := [name for name in expected if name not in weights]:
        return f"{len(missing)} of {len(expected)} weights are missing, such as {missing[0]!r}"
    for name, value in weights.items():
        if name not in expected and not str(name).endswith(COUNTER):
            return f"it has a weight {name!r}, which that network does not have"
        if not isinstance(value, torch.Tensor):
            return f"{name!r} is a {type(value).__name__}, not a tensor"
        if name in expected and (*value.shape,) != expected[name]:
            return f"{name!r} has shape {(*value.shape,)}, not {expected[name]}"
        if name in expected and value.dtype != torch.float32:
            return f"{name!r} is of type {value.dtype}, not torch.float32"
    return None


def _check_name(file: Path) -> None:
    match = re.search(r"-([0-9a-f]{8,64})\.\w+$", file.name)
    if match is None:
        return
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    if not digest.startswith(match[1]):
        raise scorer_error(
            f"{file}: its SHA-256 begins with {digest[: len(match[1])]}, not with {match[1]} as "
            f"its name says: the file is damaged or incomplete; {ADVICE}",
        )

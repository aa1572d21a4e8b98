"""The Inception network whose features the FID compares, with the weights of the original one."""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_mlperf.core.errors import EnvironmentFault, RunError
from pytest_mlperf.scorers.inception_network import NETWORK, Conv, Fork, Way, shapes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FILE = "pt_inception-2015-12-05-6726825d.pth"
"""The weights that the reference fetches."""

ADVICE = f"get {FILE} from the release fid_weights of the project pytorch-fid"

SIDE = 299
"""Pixels that the network takes in height and width."""

EPSILON = 1e-3
"""What TensorFlow's batch normalisation adds to the variance."""

CLASSIFIER = {"fc.weight": (1008, 2048), "fc.bias": (1008,)}
"""In the file, and not used."""

COUNTER = ".bn.num_batches_tracked"
"""Weights saved by later versions of torch have it; it does not change the result."""


def compute(way: Way, x: Any, weights: Mapping[str, Any]) -> Any:
    """Send a tensor of shape (images, channels, height, width) along a way."""
    import torch
    from torch.nn import functional

    for step in way:
        if isinstance(step, Conv):
            bn = (f"{step.name}.bn.{part}" for part in ("running_mean", "running_var"))
            x = functional.conv2d(
                x, weights[f"{step.name}.conv.weight"], stride=step.stride, padding=step.padding
            )
            x = functional.batch_norm(
                x,
                *(weights[name] for name in bn),
                weight=weights[f"{step.name}.bn.weight"],
                bias=weights[f"{step.name}.bn.bias"],
                eps=EPSILON,
            ).relu_()
        elif isinstance(step, Fork):
            x = torch.cat([compute(path, x, weights) for path in step.paths], 1)
        elif step.kind == "average":
            x = functional.avg_pool2d(x, 3, stride=1, padding=1, count_include_pad=False)
        elif step.kind == "maximum":
            x = functional.max_pool2d(x, 3, stride=1, padding=1)
        else:
            x = functional.max_pool2d(x, 3, stride=2)
    return x


class InceptionFeatures:
    """The 2048 features of each image that pytorch-fid takes, after the last average pooling."""

    def __init__(self, file: Path, *, device: str) -> None:
        """Load the weights.

        Args:
            file: Weights with the names of `FILE`.
            device: Where torch computes, "cpu" or "cuda".

        Raises:
            EnvironmentFault: torch or the device is not there.
            RunError: The file is damaged, or has the weights of another network.
        """
        check_device(device)
        self._weights = {name: each.to(device) for name, each in load_weights(file).items()}
        self._device = device

    def __call__(self, images: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Return the features of images.

        Args:
            images: Shape (images, height, width, 3): red, green, blue.

        Returns:
            Shape (images, 2048).
        """
        import numpy as np
        import torch
        from torch.nn import functional

        with torch.inference_mode():
            x = torch.from_numpy(images).to(self._device).permute(0, 3, 1, 2).float() / 255
            x = functional.interpolate(x, size=(SIDE, SIDE), mode="bilinear", align_corners=False)
            x = compute(NETWORK, 2 * x - 1, self._weights)
            features = functional.adaptive_avg_pool2d(x, 1).flatten(1).cpu().numpy()
        return np.asarray(features, np.float64)


def check_device(device: str) -> None:
    """Check that torch is installed and finds a device.

    Raises:
        EnvironmentFault: It is not, or does not.
    """
    try:
        import torch
    except ImportError as error:
        raise EnvironmentFault(
            "scorer clip_fid needs torch, which is not installed; "
            "try: pip install 'pytest-mlperf[diffusion]'"
        ) from error
    if device == "cuda" and not torch.cuda.is_available():
        raise EnvironmentFault(
            'scorer clip_fid: device = "cuda", but torch finds no such device here; install a '
            'torch build for this GPU, or set device = "cpu"'
        )


def load_weights(file: Path) -> dict[str, Any]:
    """Return the tensors that the network uses, by name; nothing in the file is run as code.

    A name that ends in "-" and hex digits before its suffix, as the official one, says how the
    file's SHA-256 begins: that is checked.

    Raises:
        RunError: The file is damaged, or has the weights of another network.
    """
    import torch

    _check_name(file)
    try:
        # Only files of the newer, zipped form can be mapped; the official one is of the older.
        found = torch.load(
            file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file)
        )
    except Exception as error:  # torch raises what its readers of zip, pickle and storage raise
        first = str(error).partition("\n")[0]
        raise RunError(
            "scorer", f"{file}: torch cannot read these weights ({first}); {ADVICE}"
        ) from error
    if not isinstance(found, Mapping):
        raise RunError(
            "scorer", f"{file}: holds a {type(found).__name__}, not weights by name; {ADVICE}"
        )
    expected, _ = shapes(NETWORK, 3)
    if defect := _defect(found, expected | CLASSIFIER):
        raise RunError(
            "scorer", f"{file}: is not the Inception network of the FID: {defect}; {ADVICE}"
        )
    return {name: found[name] for name in expected}


def _defect(found: Mapping[str, Any], expected: Mapping[str, tuple[int, ...]]) -> str | None:
    """Return the first difference between weights and what the network has, or None."""
    import torch

    if missing := [name for name in expected if name not in found]:
        return f"{len(missing)} of {len(expected)} weights are missing, first {missing[0]!r}"
    for name, value in found.items():
        if name not in expected and not str(name).endswith(COUNTER):
            return f"it has {name!r} besides"
        if not isinstance(value, torch.Tensor):
            return f"{name!r} is a {type(value).__name__}, no tensor"
        if name in expected and (*value.shape,) != expected[name]:
            return f"{name!r} has shape {(*value.shape,)}, not {expected[name]}"
        if name in expected and value.dtype != torch.float32:
            return f"{name!r} is of type {value.dtype}, not torch.float32"
    return None


def _check_name(file: Path) -> None:
    named = re.search(r"-([0-9a-f]{8,64})\.\w+$", file.name)
    if named is None:
        return
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    if not digest.startswith(named[1]):
        raise RunError(
            "scorer",
            f"{file}: its SHA-256 begins with {digest[: len(named[1])]}, not with {named[1]} as "
            f"its name says: the file is damaged or incomplete; {ADVICE}",
        )

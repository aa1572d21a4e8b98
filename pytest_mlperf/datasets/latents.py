"""Read latents, the noise that images are made from, from a file of torch or NumPy."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_mlperf.core.errors import EnvironmentFault, RunError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


TORCH = frozenset({".pt", ".pth"})
"""Endings of files that torch.save made."""


def read_latents(file: Path, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return latents that cannot be written to.

    Args:
        file: Made by torch.save where it ends in .pt or .pth, else by numpy.save; nothing in it
            is run as code.
        shape: What they must have.

    Raises:
        EnvironmentFault: torch is not installed and is needed.
        RunError: The file cannot be read, or holds something else.
    """
    import numpy as np

    read = _read_torch if file.suffix in TORCH else _read_numpy
    try:
        found = read(file)
    except EnvironmentFault:
        raise
    except Exception as error:  # what readers of zip, pickle and arrays raise
        first = str(error).partition("\n")[0]
        raise _wrong(file, f"cannot be read ({first or type(error).__name__})") from error
    if not isinstance(found, np.ndarray) or found.dtype.kind != "f":
        kind = found.dtype if isinstance(found, np.ndarray) else type(found).__name__
        raise _wrong(file, f"holds {kind}, not an array of floats")
    if found.shape != shape:
        raise _wrong(file, f"has shape {found.shape}, not the {shape} of the option size")
    with np.errstate(over="ignore"):
        latents = np.array(found, np.float32, order="C")
    if not np.isfinite(latents).all():
        raise _wrong(file, "has numbers that are not finite in float32")
    latents.setflags(write=False)
    return latents


def require_reader(file: Path) -> None:
    """Look for the library that reads a file of latents; it is not imported.

    Raises:
        EnvironmentFault: It is not installed.
    """
    if file.suffix in TORCH and importlib.util.find_spec("torch") is None:
        raise _no_torch(file)


def _no_torch(file: Path) -> EnvironmentFault:
    return EnvironmentFault(
        f"{file}: this file is read with torch, which is not installed; try: pip install "
        "'pytest-mlperf[lm]', or set the data set's latents to latents.npy"
    )


def _read_numpy(file: Path) -> Any:
    import numpy as np

    return np.load(file, mmap_mode="r", allow_pickle=False)


def _read_torch(file: Path) -> Any:
    try:
        import torch
    except ImportError as error:
        raise _no_torch(file) from error
    found = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    if isinstance(found, torch.Tensor) and found.is_floating_point():
        return found.detach().float().numpy()
    return found


def _wrong(file: Path, what: str) -> RunError:
    return RunError(
        "dataset",
        f"{file}: {what}; get MLPerf's latents from their source again, or set the data set's "
        "latents or size",
    )

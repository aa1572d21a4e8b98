"""Read files of the initial latents of generated images and videos."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from pytest_mlperf import EnvironmentFault, RunError
from pytest_mlperf.adapters.datasets.files import FileDataset, S, first_file, wrong
from pytest_mlperf.adapters.lazy import NDArray, np
from pytest_mlperf.extension import Rule

TORCH = frozenset({".pt", ".pth"})


class LatentDataset(FileDataset[S]):
    """Base of data sets whose samples share initial latents, or have none (`_latents` is None)."""

    optional_libraries = ("torch",)
    _latents: NDArray[np.float32] | None

    @cached_property
    def digest(self) -> str:
        """Hex SHA-256 over all samples in order, and the shape and numbers of the latents."""
        total = self._hash()
        if self._latents is not None:
            total.update(repr(self._latents.shape).encode())
            total.update(self._latents.astype("<f4").tobytes())
        return total.hexdigest()


def latents_rule(option: object) -> Rule:
    """Return the rule for `require_options` on option `latents`: a path, False or None."""
    valid = option is None or option is False or (isinstance(option, str) and option != "")
    return "latents", option, valid, "the path of a file, or false"


def find_latents(
    option: str | bool | None, folder: Path, names: Sequence[str], advice: str
) -> tuple[Path | None, tuple[bool, str]]:
    """Return (file of latents or None, (whether the data set can be used, error text if not)).

    `option` is a path, None to look for `names` in `folder`, or False or "none" if the engine draws
    latents itself. Raises EnvironmentFault if the file needs torch, which is not installed.
    """
    if option in (False, "none"):
        return None, (True, "")
    if option is None:
        file = first_file(folder / name for name in names)
        presence = file is not None, f"{folder}: has neither {' nor '.join(names)}; {advice}"
    else:
        file = Path(str(option))
        presence = file.is_file(), f"{option}: this file of latents does not exist; {advice}"
    if presence[0] and file and file.suffix in TORCH and importlib.util.find_spec("torch") is None:
        raise EnvironmentFault(
            f"{file}: this file is read with torch, which is not installed; try: pip "
            "install 'pytest-mlperf[lm]', or set the data set's latents to latents.npy"
        )
    return file, presence


def read_latents(
    file: Path | None, shape: tuple[int, ...], option: str
) -> NDArray[np.float32] | None:
    """Read finite float32 latents of a file, read-only, without executing code of the file.

    They must have the `shape` that options of the data set define. Returns None without a file.
    """
    if file is None:
        return None
    try:
        array = (
            _read_torch(file)
            if file.suffix in TORCH
            else np.load(file, mmap_mode="r", allow_pickle=False)
        )
    except Exception as error:  # the readers can raise anything
        first = str(error).partition("\n")[0]
        raise _unfit(file, f"cannot be read ({first or type(error).__name__})") from error
    if not isinstance(array, np.ndarray) or array.dtype.kind != "f":
        kind = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
        raise _unfit(file, f"holds {kind}, not an array of floats")
    if array.shape != shape:
        advice = f"set {option} to match the file, or latents to another file"
        raise wrong(file, f"has shape {array.shape}, but {option} requires {shape}", advice)
    with np.errstate(over="ignore"):
        latents = np.array(array, np.float32, order="C")
    if not np.isfinite(latents).all():
        raise _unfit(file, "has numbers that are not finite in float32")
    latents.setflags(write=False)
    return latents


def _read_torch(file: Path) -> Any:
    import torch

    tensor = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
        return tensor.detach().float().numpy()
    return tensor


def _unfit(file: Path, defect: str) -> RunError:
    advice = "get MLPerf's latents from their source again, or set latents to another file"
    return wrong(file, defect, advice)

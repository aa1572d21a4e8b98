"""Calibration files: the noise of an accelerator, in git beside the baselines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pytest_mlperf.core.calibration import SCHEMA, Calibration
from pytest_mlperf.core.case import path_part
from pytest_mlperf.core.errors import BaselineError
from pytest_mlperf.stores.documents import Document

FILE = Document(Calibration, schema=SCHEMA, what="calibration")

_ANEW = "record anew with --mlperf-update=missing"
_CURE = "calibrate anew: pytest-mlperf calibrate"

save = FILE.save


def path_for(root: Path, accelerator: str) -> Path:
    """Return the place of an accelerator's calibration below the folder of the baselines.

    Raises:
        BaselineError: The name would lead elsewhere.
    """
    return file_in(root / "calibration", accelerator)


def file_in(folder: Path, accelerator: str) -> Path:
    """Return where a folder keeps what belongs to an accelerator.

    Raises:
        BaselineError: The name would lead elsewhere.
    """
    return folder / f"{path_part('accelerator', accelerator)}.json"


def load(path: Path, accelerator: str) -> Calibration | None:
    """Read a calibration; None when there is none.

    Raises:
        BaselineError: It cannot be read, is damaged, of a newer release, or of another accelerator.
    """
    try:
        found = FILE.load(path)
    except BaselineError as error:
        raise BaselineError(str(error).replace(_ANEW, _CURE)) from error
    if found and found.accelerator != accelerator:
        raise BaselineError(
            f"{path}: this is the calibration of {found.accelerator}, not of {accelerator}; "
            "move it away"
        )
    return found


def update(
    path: Path, accelerator: str, function: Callable[[Calibration], Calibration]
) -> Calibration:
    """Read, change and write a calibration, with every other process kept out.

    Args:
        path: The file.
        accelerator: Whose it is.
        function: Given what the file holds, empty where there is none, returns what it shall hold.

    Raises:
        BaselineError: As `load`, or the file cannot be written.
    """
    load(path, accelerator)  # the sentence of a damaged file must name this command
    empty = Calibration(accelerator=accelerator, machines=())
    return FILE.update(path, lambda found: function(found or empty))

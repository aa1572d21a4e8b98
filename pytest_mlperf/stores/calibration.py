"""Store the measured noise of an accelerator in git, next to the baselines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pytest_mlperf.core.case import path_part
from pytest_mlperf.core.errors import BaselineError
from pytest_mlperf.core.noise.calibration import SCHEMA_VERSION, Calibration
from pytest_mlperf.stores.documents import Document

CALIBRATION_DOCUMENT = Document(
    Calibration,
    schema=SCHEMA_VERSION,
    title="calibration",
    anew="calibrate again: pytest-mlperf calibrate",
)

save = CALIBRATION_DOCUMENT.save


def path_for(root: Path, accelerator: str) -> Path:
    """Return the path of an accelerator's calibration below the folder of the baselines."""
    return file_in(root / "calibration", accelerator)


def file_in(folder: Path, accelerator: str) -> Path:
    """Return the path of an accelerator's file in a folder; refuse names that lead out of it."""
    return folder / f"{path_part('accelerator', accelerator)}.json"


def load(path: Path, accelerator: str) -> Calibration | None:
    """Read a calibration; raise BaselineError if it is damaged or of another accelerator."""
    document = CALIBRATION_DOCUMENT.load(path)
    if document and document.accelerator != accelerator:
        raise BaselineError(
            f"{path}: this is the calibration of {document.accelerator}, not of {accelerator}; "
            "move it away"
        )
    return document


def update(
    path: Path, accelerator: str, function: Callable[[Calibration], Calibration]
) -> Calibration:
    """Read, change and write a calibration under a lock; a missing one counts as empty."""
    load(path, accelerator)  # refuses the calibration of another accelerator
    empty = Calibration(accelerator=accelerator, machines=())
    return CALIBRATION_DOCUMENT.update(path, lambda stored: function(stored or empty))

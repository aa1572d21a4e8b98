"""Calibration files: the noise of an accelerator, in git beside the baselines."""

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
    anew="calibrate anew: pytest-mlperf calibrate",
)

save = CALIBRATION_DOCUMENT.save


def path_for(root: Path, accelerator: str) -> Path:
    """Return the place of an accelerator's calibration below the folder of the baselines."""
    return file_in(root / "calibration", accelerator)


def file_in(folder: Path, accelerator: str) -> Path:
    """Return where a folder keeps what belongs to an accelerator; no name leads elsewhere."""
    return folder / f"{path_part('accelerator', accelerator)}.json"


def load(path: Path, accelerator: str) -> Calibration | None:
    """Read a calibration; one of another accelerator is a BaselineError, as one that is damaged."""
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
    """Read, change and write a calibration, empty where there is none, all others kept out."""
    load(path, accelerator)  # the sentence of a damaged file must name this command
    empty = Calibration(accelerator=accelerator, machines=())
    return CALIBRATION_DOCUMENT.update(path, lambda stored: function(stored or empty))

"""Baseline files in git: read, checked and written whole."""

from __future__ import annotations

from pathlib import Path

from pytest_mlperf.core.baseline import SCHEMA, Baseline
from pytest_mlperf.core.case import path_part
from pytest_mlperf.stores.documents import Document

FILE = Document(Baseline, schema=SCHEMA, what="baseline")

load, save, update = FILE.load, FILE.save, FILE.update


def path_for(
    root: Path,
    *,
    accelerator: str,
    profile: str,
    workload: str,
    scenario: str,
    engine: str,
    precision: str,
) -> Path:
    """Return the place of a case's baseline below `root`.

    Raises:
        BaselineError: A name would lead elsewhere.
    """
    folder = (
        root
        / path_part("accelerator", accelerator)
        / path_part("profile", profile)
        / path_part("workload", workload)
    )
    names = {"scenario": scenario, "engine": engine, "precision": precision}
    file = ".".join(path_part(what, name) for what, name in names.items())
    return folder / f"{file}.json"

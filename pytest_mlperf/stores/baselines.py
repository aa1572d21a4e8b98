"""Baseline files in git: read, checked and written whole."""

from __future__ import annotations

from pathlib import Path

from pytest_mlperf.core.baseline import SCHEMA, Baseline
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
    """Return the place of a case's baseline below `root`; the names are safe as file names."""
    return root / accelerator / profile / workload / f"{scenario}.{engine}.{precision}.json"

"""Read and write baseline files in git."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from pytest_mlperf.core.baseline import SCHEMA_VERSION, Baseline
from pytest_mlperf.core.case import Case, Profile, path_part
from pytest_mlperf.stores.documents import Document

BASELINE_DOCUMENT = Document(Baseline, schema=SCHEMA_VERSION, title="baseline")

load, save, update = BASELINE_DOCUMENT.load, BASELINE_DOCUMENT.save, BASELINE_DOCUMENT.update


def path_for(root: Path, case: Case, profile: str) -> Path:
    """Return the path of a case's baseline; refuse names that lead out of `root`."""
    fields = ("scenario", "engine", "precision")
    file = ".".join(path_part(name, getattr(case, name)) for name in fields)
    folder = root / path_part("accelerator", case.accelerator) / path_part("profile", profile)
    return folder / path_part("workload", case.workload) / f"{file}.json"


def is_baseline_path(file: Path) -> bool:
    """Return whether a path has the form ROOT/ACCELERATOR/PROFILE/WORKLOAD/CASE.json."""
    parts = file.parts
    return len(parts) >= 5 and parts[-3] in get_args(Profile) and file.suffix == ".json"

"""Find results in trees of submissions, whole or partial, and in folders of logs.

A submission is DIVISION/SUBMITTER/results/SYSTEM/MODEL/SCENARIO in every round; the content next to
performance/run_1 differs. Links are not followed, and results are not nested.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_mlperf import MlperfError
from pytest_mlperf.addons.official.commands.round import SCENARIO_ABBREVIATIONS
from pytest_mlperf.core.untrusted_text import quoted
from pytest_mlperf.extension import Scenario
from pytest_mlperf.run.logs import DETAIL

SUMMARY_LOG = "mlperf_log_summary.txt"

DIVISIONS = ("closed", "open", "network")

Scenarios: Mapping[str, Scenario] = {name.lower(): name for name in SCENARIO_ABBREVIATIONS}
"""By the lower-case name of a folder."""

MAX_FOLDER_DEPTH = 12
"""Maximum depth below the named folder: a repository of results has eight levels."""

_PARTS = re.compile(r"TEST\d\d.*|accuracy|ranging|power|audit|compliance|\..*", re.IGNORECASE)
"""Folders that contain no result of their own."""


@dataclass(frozen=True, kw_only=True)
class ResultPlace:
    """Describe the location of a result.

    Attributes:
        folder: Folder that contains performance/run_1, or the logs themselves.
        root: Only files below this folder may be read.
        division, submitter, system, model: Names in the submission; "" for a folder of logs.
        scenario: Submitted scenario; None if only the log states it.
    """

    folder: Path
    root: Path
    division: str = ""
    submitter: str = ""
    system: str = ""
    model: str = ""
    scenario: Scenario | None = None

    @property
    def submission(self) -> Path:
        """Submitter's folder, which also contains systems/ and measurements/."""
        return self.folder.parents[3]

    @property
    def runs(self) -> list[Path]:
        """Folders of the performance runs; the first one is the reported run."""
        there = sorted((self.folder / "performance").glob("run_*"), key=lambda path: path.name)
        return [path for path in there if path.is_dir()] or [self.folder]


def result_folders(named: Path) -> Iterator[ResultPlace]:
    """Yield the results below a folder, sorted by name; MlperfError if missing or too deep."""
    if not named.is_dir():
        raise MlperfError(
            f"{quoted(str(named))}: no such folder; name a tree of results, or of logs"
        )
    top = named.absolute()
    at = top.parent if top.name.startswith("run_") and top.parent.name == "performance" else None
    if at is not None:  # the user named a single run
        yield _located(at.parent, top)
        return
    yield from _below(top, top, MAX_FOLDER_DEPTH)


def _below(folder: Path, top: Path, deepest: int) -> Iterator[ResultPlace]:
    logged = any((folder / name).exists() for name in (DETAIL, SUMMARY_LOG))
    if logged or (folder / "performance").is_dir():
        yield _located(folder, top)
        return
    if deepest < 0:
        raise MlperfError(
            f"{top}: no results in the first {MAX_FOLDER_DEPTH} levels of folders, down to "
            f"{folder}; give a folder closer to the results"
        )
    try:
        inside = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise MlperfError(f"{folder}: cannot be read: {error.strerror}") from None
    submitter = folder.parent.name in DIVISIONS and any(e.name == "results" for e in inside)
    for entry in inside:
        if not entry.is_dir(follow_symlinks=False) or _PARTS.fullmatch(entry.name):
            continue
        if not submitter or entry.name == "results":
            yield from _below(Path(entry.path), top, deepest - 1)


def _located(folder: Path, top: Path) -> ResultPlace:
    parts = folder.parts
    scenario = Scenarios.get(folder.name.lower())
    if len(parts) < 7 or parts[-4] != "results" or parts[-6] not in DIVISIONS or scenario is None:
        return ResultPlace(folder=folder, root=top)
    return ResultPlace(
        folder=folder,
        root=folder.parents[5],
        division=parts[-6],
        submitter=parts[-5],
        system=parts[-3],
        model=parts[-2],
        scenario=scenario,
    )

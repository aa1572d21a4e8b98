"""The baseline file that a verdict names, looked for where its session may have had it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pytest_mlperf.case_runs import baseline_file
from pytest_mlperf.core.results import CaseResult

LARGEST = 32 * 2**20
"""Bytes of a baseline file that is read."""


def judged_against(result: CaseResult, folders: Iterable[Path]) -> Path | None:
    """Return the baseline file of a verdict on performance or energy, if it is here.

    A results file may be from elsewhere, so a path in it is only followed where its end is that of
    this case's baseline.

    Args:
        result: The verdict.
        folders: Where pytest's root folder may be; the first that has the file counts.

    Raises:
        BaselineError: A name of the case cannot be part of a path.
    """
    verdict = result.verdict
    if verdict.kind not in {"performance", "efficiency"} or not verdict.baseline_file:
        return None
    named = Path(verdict.baseline_file)
    end = baseline_file(Path(), verdict.case, result.profile).parts
    if named.parts[-len(end) :] != end or ".." in named.parts:
        return None
    for folder in folders:
        file = folder / named
        try:
            if file.is_file():
                return file if file.stat().st_size <= LARGEST else None
        except (OSError, ValueError):  # a name that is too long, or holds a 0 byte
            return None
    return None

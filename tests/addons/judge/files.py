"""Write result files of several tools, ten runs a side with a spread of 1 % between runs."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any

from pytest_mlperf.addons.judge.files import Side, read_side, refuse_shared
from pytest_mlperf.addons.judge.judging import compare
from pytest_mlperf.addons.judge.rows import FileComparison, Settings

DATA = Path(__file__).parents[2] / "data" / "judge"

RUNS = 10
SPREAD = 0.01

_ORDERS = ((3, 8, 0, 5, 9, 1, 7, 2, 6, 4), (6, 1, 9, 4, 2, 8, 0, 7, 3, 5))
"""Orders of the quantiles on both sides, so that their runs do not move together."""


def spread(side: int, runs: int = RUNS) -> list[float]:
    """Return factors around 1 with a standard deviation of about 1 %, others on each side."""
    order = [place for place in _ORDERS[side] if place < runs]
    deviates = (NormalDist().inv_cdf((place + 0.5) / runs) for place in order)
    return [1 + SPREAD * deviate + 1e-6 * side for deviate in deviates]


Content = dict[str, Any] | list[Any] | str


def write(file: Path, content: Content) -> Path:
    """Write a file as JSON, or text as it is; make its folder."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return file


def runs_of(
    folder: Path,
    make: Callable[[float], Content],
    *,
    side: int = 0,
    runs: int = RUNS,
    name: str = "result.json",
) -> Path:
    """Write runs of a side, each in a folder of its own, which is its session."""
    for number, factor in enumerate(spread(side, runs)):
        write(folder / f"session-{number}" / name, make(factor))
    return folder


def judged(
    base: Path | Sequence[Path], candidate: Path | Sequence[Path], **settings: Any
) -> FileComparison:
    """Return the comparison of two sides of files."""
    old, new = (read([side] if isinstance(side, Path) else side) for side in (base, candidate))
    refuse_shared(old, new)
    return compare(old.runs, new.runs, Settings(**settings))


def read(paths: Sequence[Path]) -> Side:
    """Return the runs of files and folders."""
    return read_side(paths)


def both(
    tmp_path: Path,
    make: Callable[..., Content],
    before: dict[str, Any],
    now: dict[str, Any],
    *,
    name: str = "result.json",
    runs: int = RUNS,
    **settings: Any,
) -> FileComparison:
    """Judge ten runs a side of files that `make` returns from values and a factor."""
    sides = [
        runs_of(
            tmp_path / label,
            lambda factor, values=values: make(factor, **values),  # type: ignore[misc]
            side=index,
            name=name,
            runs=runs,
        )
        for index, (label, values) in enumerate((("before", before), ("now", now)))
    ]
    return judged(sides[0], sides[1], **settings)


def outcomes(result: FileComparison) -> dict[str, str]:
    """Return the outcomes of judged rows by "point: metric"; the point is left out if single."""
    points = {row.point for row in result.rows}
    return {
        row.metric if len(points) == 1 else f"{row.point}: {row.metric}": str(row.outcome)
        for row in result.rows
        if row.outcome is not None
    }


def notes(result: FileComparison) -> str:
    """Return all notes of a comparison and its rows as one text."""
    return " | ".join([*result.notes, *(row.note for row in result.rows if row.note)])


def document(name: str) -> Any:
    """Return a recorded file of a tool."""
    text = (DATA / name).read_text("utf-8")
    return copy.deepcopy(json.loads(text))

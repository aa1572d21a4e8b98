"""The texts a user reads about what would run, and what was left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from pytest_mlperf.core.case import Case, Kind
from pytest_mlperf.reports.layout import duration, fold, plural, table


class PlannedCase(Protocol):
    """What the plan needs of a case."""

    @property
    def case(self) -> Case:
        """Its name."""
        ...

    @property
    def path(self) -> Path:
        """The suite file."""
        ...

    @property
    def seconds_per_run(self) -> float:
        """Length of one run, seconds."""
        ...


def plan(
    cases: Sequence[PlannedCase],
    wanted: Mapping[tuple[Path, str], set[Kind]],
    width: int,
    *,
    max_runs: int,
) -> list[str]:
    """Return the cases that would run, with the time they need at least and at most."""
    rows = [
        {
            "case": planned.case.id,
            "one run": duration(planned.seconds_per_run),
            "at most": duration(max_runs * planned.seconds_per_run),
            "tests": ", ".join(sorted(wanted.get((planned.path, planned.case.id), set()))),
        }
        for planned in cases
    ]
    total = sum(planned.seconds_per_run for planned in cases)
    columns = ["case", "one run", "at most", "tests"]
    return [
        *table(columns, rows, width, left=["case", "tests"], spare=["tests"]),
        *fold(
            f"{plural(len(cases), 'case')}: {duration(total)} of measuring if one run decides "
            f"each, {duration(max_runs * total)} if all {max_runs} are needed; loading and "
            "accuracy passes come on top",
            width,
        ),
    ]


def notices(
    uncollected: Sequence[Path], not_here: Mapping[str, int], here: str, width: int
) -> list[str]:
    """Return what was left out."""
    lines = []
    if uncollected:
        folders = sorted({_suites_root(path) for path in uncollected})
        count = plural(len(uncollected), "suite")
        lines.append(f"{count} not collected (pytest {' '.join(folders)})")
    if not_here:
        names = ", ".join(f"{name} ({count})" for name, count in sorted(not_here.items()))
        count = plural(sum(not_here.values()), "test")
        lines += fold(f"{count} deselected, accelerator not here: {names}; here: {here}", width)
    return lines


def skips(reasons: Mapping[str, int], width: int) -> list[str]:
    """Return why tests were skipped: a run that measured nothing must not look green."""
    return [
        line
        for reason, count in reasons.items()
        for line in fold(f"{plural(count, 'test')} {reason.replace('Skipped', 'skipped')}", width)
    ]


def _suites_root(path: Path) -> str:
    """Return the folder to name: the outermost "suites" above a file, else its own folder."""
    for parent in reversed(path.parents):
        if parent.name == "suites":
            return relative(parent)
    return relative(path.parent)


def relative(path: Path) -> str:
    """Return a path relative to the working folder where it lies below it."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)

"""The texts a user reads about what would run, and what was left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pytest_mlperf.core.case import Case, Kind
from pytest_mlperf.core.foreign_text import visible
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

    @property
    def elsewhere(self) -> str:
        """The other Python in which its engine runs; "": this one."""
        ...

    @property
    def fewest_runs(self) -> int:
        """Runs before anything can be decided."""
        ...

    @property
    def runs_per_value(self) -> tuple[int, int]:
        """Processes that one value takes, usually and at most: one, or those of a search."""
        ...


@dataclass(frozen=True, kw_only=True)
class Cost:
    """How long a case takes, wall-clock.

    Attributes:
        first_s: What can decide at the earliest: loading, a run, the accuracy pass.
        more_s: Each further run.
        sessions: Earlier sessions that it was measured in; 0: planned from the suite.
        first_runs: Runs in `first_s`.
        first_more_s: What `first_s` takes more at most, where a search needs all its runs.
    """

    first_s: float
    more_s: float
    sessions: int = 0
    first_runs: int = 1
    first_more_s: float = 0.0

    def at_most_s(self, max_runs: int) -> float:
        """Return the seconds that all runs take together."""
        further = max(max_runs - self.first_runs, 0) * self.more_s
        return self.first_s + self.first_more_s + further


def plan(
    cases: Sequence[PlannedCase],
    wanted: Mapping[tuple[Path, str], set[Kind]],
    width: int,
    *,
    max_runs: int,
    measured: Mapping[tuple[Path, str], Cost] | None = None,
) -> list[str]:
    """Return the cases that would run, with the time they need at least and at most.

    Args:
        cases: The cases.
        wanted: The tests of each, by suite file and case id.
        width: Columns.
        max_runs: Most runs of a case.
        measured: What earlier sessions took, by suite file and case id; others are planned from
            the lengths in their suite.
    """
    costs = [cost_of(planned, measured or {}) for planned in cases]
    rows = [
        {
            "case": planned.case.id,
            "one run": duration(cost.first_s),
            "at most": duration(cost.at_most_s(max_runs)),
            "from": plural(cost.sessions, "session") if cost.sessions else "suite",
            "tests": ", ".join(sorted(wanted.get((planned.path, planned.case.id), set()))),
        }
        for planned, cost in zip(cases, costs, strict=True)
    ]
    columns = ["case", "one run", "at most", "from", "tests"]
    if not measured:
        columns.remove("from")
    there = Counter(planned.elsewhere for planned in cases if planned.elsewhere)
    known = sum(cost.sessions > 0 for cost in costs)
    on_top = "loading and accuracy passes come on top"
    if known:
        rest = f"; {on_top} for the others" if known < len(cases) else ""
        on_top = f"with loading and accuracy passes where sessions are named{rest}"
    least, most = sum(c.first_s for c in costs), sum(c.at_most_s(max_runs) for c in costs)
    return [
        *table(columns, rows, width, left=["case", "from", "tests"], spare=["tests", "from"]),
        *(t for name, n in there.items() for t in fold(f"{plural(n, 'case')} in {name}", width)),
        *fold(
            f"{plural(len(cases), 'case')}: {duration(least)} of measuring if one run decides "
            f"each, {duration(most)} if all {max_runs} are needed; {on_top}",
            width,
        ),
    ]


def cost_of(planned: PlannedCase, measured: Mapping[tuple[Path, str], Cost]) -> Cost:
    """Return what a case took in earlier sessions, else the timed part that its suite asks for."""
    seconds, runs = planned.seconds_per_run, planned.fewest_runs
    usual, most = planned.runs_per_value
    unmeasured = Cost(
        first_s=runs * usual * seconds,
        more_s=most * seconds,
        first_runs=runs,
        first_more_s=runs * (most - usual) * seconds,
    )
    return measured.get((planned.path, planned.case.id), unmeasured)


def notices(
    uncollected: Sequence[Path],
    not_here: Mapping[str, int],
    here: str,
    width: int,
    *,
    what: str = "deselected",
) -> list[str]:
    """Return what was left out, or planned for other machines."""
    lines = []
    if uncollected:
        folders = sorted({_suites_root(path) for path in uncollected})
        count = plural(len(uncollected), "suite")
        lines.append(f"{count} not collected (pytest {visible(' '.join(folders))})")
    if not_here:
        names = ", ".join(f"{name} ({count})" for name, count in sorted(not_here.items()))
        count = plural(sum(not_here.values()), "test")
        lines += fold(f"{count} {what}, accelerator not here: {names}; here: {here}", width)
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

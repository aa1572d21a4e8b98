"""What is promised of speed, in every world, and what the package says of the same cases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from decisions_lib import first_day, load, promises, shipped, two_days
from decisions_lib.promises import Required
from decisions_lib.tables import Table, percent
from decisions_lib.two_days import Row
from decisions_lib.worlds import COLD, DESIGNS, NAMED, SOME

CASES = 20_000
PARTS = 8
"""The cases that the package judges as well are cut into so many parts."""


@dataclass(frozen=True)
class Found:
    """What was found.

    Attributes:
        rows: Every world with every baseline.
        first: The first day.
        loads: Load that is known as a bound.
        compared: Cases that the package judged as well.
        unlike: Those of them of which it said something else.
    """

    rows: Sequence[Row]
    first: Sequence[first_day.Row]
    loads: Sequence[load.Row]
    compared: int
    unlike: Sequence[str]


def begin(pool: Executor, scale: float) -> Callable[[], Found]:
    """Begin the simulations; the function returned waits for them.

    Args:
        pool: Where they run.
        scale: Share of the full size.
    """
    cases, each = max(200, round(scale * CASES)), max(1, round(scale * shipped.EACH))
    compared = [pool.submit(shipped.differences, n, PARTS, each) for n in range(PARTS)]
    first = pool.submit(first_day.rows, cases)
    loads = pool.submit(load.rows, cases // 2)
    rows = [pool.submit(two_days.rows, name, cases) for name in NAMED]

    def found() -> Found:
        counts, unlike = zip(*(one.result() for one in compared), strict=True)
        return Found(
            rows=[row for one in rows for row in one.result()],
            first=first.result(),
            loads=loads.result(),
            compared=sum(counts),
            unlike=[text for one in unlike for text in one],
        )

    return found


def required(found: Found) -> list[Required]:
    """Return the requirements with the figures found."""
    unlike = Required(
        f"of {found.compared:,} cases, the package says another thing of",
        float(len(found.unlike)),
        0.0,
        share=False,
        of=found.unlike,
    )
    return [unlike, *promises.required(found.rows, found.first, found.loads)]


def tables(found: Found) -> dict[str, Table]:
    """Return the tables of the page by name."""
    return {
        "worlds": _worlds(found.rows),
        "excepted": _excepted(found.rows),
        "first day": _first_day(found.first),
        "load": _loads(found.loads),
        "first runs": _cold(found.rows),
        "some processes": _some(found.rows),
    }


def every_figure(rows: Sequence[Row]) -> Table:
    """Return all figures of all rows, each in a column of its own."""
    said = ("drop", "provisional drop", "provisional ok", "ok", "runs")
    later = ("red on day 2", "red by day 2")
    figures = [f"{what}: {one}" for what in ("unchanged", "limit") for one in (*said, *later)]
    return Table(
        ("noise", "baseline", "limit", "cases", *figures),
        [
            (
                row.world,
                row.design,
                f"{NAMED[row.world].limit:g}",
                str(row.cases),
                *(
                    f"{figure:.5g}"
                    for one in (row.same, row.fell)
                    for figure in (
                        *(one.fail, one.seems_drop, one.seems_ok, one.ok, one.runs),
                        *(one.again, one.red),
                    )
                ),
            )
            for row in rows
        ],
    )


def two_days_of(rows: Sequence[Row]) -> Table:
    """Return rows as a table, one line each."""
    return Table(
        (
            *("noise", "baseline", "unchanged: warned or red", "red in two days", "ok", "runs"),
            *("-limit: warned or red", "red in two days", "ok", "runs"),
        ),
        [
            (
                row.world,
                row.design,
                *(
                    text
                    for one in (row.same, row.fell)
                    for text in (
                        percent(one.noticed),
                        percent(one.red),
                        percent(one.ok),
                        f"{one.runs:.2f}",
                    )
                ),
            )
            for row in rows
        ],
    )


def _worlds(rows: Sequence[Row]) -> Table:
    by_world: dict[str, dict[str, Row]] = {}
    for row in rows:
        if NAMED[row.world] not in (*COLD, *SOME):
            by_world.setdefault(row.world, {})[row.design] = row
    lines = [(name, *(_cell(of[design]) for design in DESIGNS)) for name, of in by_world.items()]
    return Table(("noise", *DESIGNS), lines)


def _cell(row: Row) -> str:
    same, fell = row.same, row.fell
    return (
        f"{percent(same.noticed)} → {percent(same.red)}; "
        f"{percent(fell.noticed)} → {percent(fell.red)}; {percent(fell.ok)}"
    )


def _excepted(rows: Sequence[Row]) -> Table:
    lines = []
    for one in promises.EXCEPTED:
        of = [row for row in rows if row.world in one.worlds]
        for what, bounds, figure in (
            ("unchanged is red", one.red, promises.red_in_a_session),
            ("ok at the limit", one.ok, promises.passed),
        ):
            for design, bound in bounds.items():
                found = [figure(row) for row in of if row.design == design]
                shown = " to ".join(dict.fromkeys(map(percent, (min(found), max(found)))))
                lines.append((one.why, design, what, shown, percent(bound)))
    return Table(("why", "baseline", "what", "found", "stated: at most"), lines)


def _first_day(rows: Sequence[first_day.Row]) -> Table:
    return Table(
        (
            *("runs", "unchanged: provisional ok", "unchanged: warned", "-3 %: warned"),
            "red on the first day from",
            *(f"{pairs} pairs: unchanged, -3 %, -5 %" for pairs in first_day.PAIRS),
        ),
        [
            (
                f"{percent(row.sd)} %",
                *map(percent, (row.ok, row.wrong, row.warned)),
                f"-{100 * row.red:g} %" if row.red else "never",
                *(
                    " / ".join(percent(row.turns[pairs, drop]) for drop in first_day.DROPS)
                    for pairs in first_day.PAIRS
                ),
            )
            for row in rows
        ],
    )


def _loads(rows: Sequence[load.Row]) -> Table:
    figures = ("fails", "passes", "found", "large")
    return Table(
        ("load", "taken", "unchanged: drop", "limit: ok", "limit: found", "half: found", "runs"),
        [
            (
                row.load,
                row.taken,
                *(percent(getattr(row, figure)) for figure in figures),
                f"{row.runs:.2f}",
            )
            for row in rows
        ],
    )


def _cold(rows: Sequence[Row]) -> Table:
    return two_days_of([row for row in rows if NAMED[row.world] in COLD])


def _some(rows: Sequence[Row]) -> Table:
    return Table(
        ("drop", "warned or red", "red in two days", "passes", "runs"),
        [
            (
                row.world,
                percent(row.same.noticed),
                percent(row.same.red),
                percent(row.same.ok + row.same.seems_ok),
                f"{row.same.runs:.2f}",
            )
            for row in rows
            if NAMED[row.world] in SOME
        ],
    )

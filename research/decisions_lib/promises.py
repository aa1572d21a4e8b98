"""What is promised of speed in every noise, on the first day, by interleaving and beside load."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from decisions_lib import first_day, load
from decisions_lib.excepted import Promise, bound, bounds
from decisions_lib.required import Figure, Required, of_rows, one
from decisions_lib.two_days import Row
from decisions_lib.worlds import NAMED, NOISIER, TYPICAL

RED, OK = 0.01, 0.05
"""At most so much of unchanged code is red in a session, and so many drops of the limit are ok for
good."""

NOTICED, MOST_RUNS = 0.94, 1.5
"""At typical noise and with four days or more: drops of the limit warned of or red on the first
day, at least; runs of unchanged code, at most."""

IN_TWO_DAYS = 0.90
"""The same of drops that are red by the second day."""

FIRST_DAY = "typical noise: -3 % is found on day 1"
RUNS = "typical noise: runs while nothing changed"


def red_in_a_session(row: Row) -> float:
    """Return how much of unchanged code is red: on the first day, or on one after a warning."""
    return max(row.same.fail, row.same.again)


def passed(row: Row) -> float:
    """Return how many drops of the limit are ok for good."""
    return row.fell.ok


def figure(row: Row, of: Promise) -> float:
    """Return a row's figure of a promise."""
    return red_in_a_session(row) if of == "red" else passed(row)


def required(
    rows: Sequence[Row], days: Iterable[first_day.Row], loads: Sequence[load.Row]
) -> list[Required]:
    """Return what is promised of two days, of the first one and beside load, as it was found."""
    (quiet,) = (row for row in loads if row.load == load.IDLE)
    return [
        *_of_worlds([row for row in rows if NAMED[row.world].promised]),
        *_typical(rows),
        *_interleaved(days),
        *_loaded("load: unchanged is a drop", RED, {row: row.fails for row in loads}),
        *_loaded("load: a drop of the limit is ok", OK, {row: row.passes for row in loads}),
        one(
            FIRST_DAY,
            "an idle machine: -3 % is found",
            quiet.found,
            NOTICED,
            at_most=False,
            cases=quiet.cases,
        ),
        one(RUNS, "an idle machine: runs, unchanged", quiet.runs, MOST_RUNS, share=False),
    ]


def _of_worlds(rows: Sequence[Row]) -> Iterator[Required]:
    promises: tuple[tuple[str, Promise, float], ...] = (
        ("unchanged code is red", "red", RED),
        ("a drop of the limit is ok for good", "ok", OK),
    )
    for line, of, most in promises:
        kept = [row for row in rows if bound(row.world, row.design, of) is None]
        yield from of_rows(
            line,
            (Figure(name=r.name, found=figure(r, of), bound=most, cases=r.cases) for r in kept),
        )
    yield _exceptions(rows)
    yield from of_rows(
        "new build 3 times as noisy: the same after two runs or more",
        (
            Figure(name=row.name, found=row.fell.ok_by_more, bound=OK, cases=row.cases)
            for row in rows
            if NAMED[row.world] in NOISIER
        ),
    )


def _exceptions(rows: Sequence[Row]) -> Required:
    """Return the requirement that no exception is worse than is stated of it."""
    by_name = {(row.world, row.design): row for row in rows}
    promises: tuple[Promise, ...] = ("red", "ok")
    figures = [
        Figure(name=row.name, found=figure(row, of), bound=most, cases=row.cases)
        for of in promises
        for world, design, most in bounds(of)
        if (row := by_name.get((world, design)))
    ]
    broken = [f"{each.name}: {each.found:.2%}" for each in figures if not each.is_kept]
    return Required(
        line="exceptions (below) beyond their bound",
        text="exceptions: rows beyond their bound",
        found=float(len(broken)),
        bound=0.0,
        share=False,
        rows=len(figures),
        broken=broken,
    )


def _typical(rows: Sequence[Row]) -> Iterator[Required]:
    for row in rows:
        if row.world != TYPICAL or row.design == "1x8":
            continue
        of, same, fell = f"typical noise, {row.design}", row.same, row.fell
        first = f"{of}: -3 %, warned of or red"
        yield one(FIRST_DAY, first, fell.noticed, NOTICED, at_most=False, cases=row.cases)
        in_two = f"{of}: -3 %, red in two days"
        two = "typical noise: -3 % is red by day 2"
        yield one(two, in_two, fell.red, IN_TWO_DAYS, at_most=False, cases=row.cases)
        yield one(RUNS, f"{of}: runs, unchanged", same.runs, MOST_RUNS, share=False)


def _interleaved(days: Iterable[first_day.Row]) -> Iterator[Required]:
    figures = [
        Figure(
            name=f"runs {day.sd:.1%}, {pairs} pairs",
            found=share,
            bound=RED,
            cases=day.cases,
        )
        for day in days
        for (pairs, drop), share in day.turns.items()
        if not drop
    ]
    return of_rows("interleaving: unchanged code is red", figures)


def _loaded(line: str, most: float, shares: dict[load.Row, float]) -> Iterator[Required]:
    return of_rows(
        line,
        [
            Figure(name=f"{row.load}, {row.taken}", found=share, bound=most, cases=row.cases)
            for row, share in shares.items()
        ],
    )

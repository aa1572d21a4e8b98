"""What is promised of speed, in every world, and what the package says of the same cases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from decisions_lib import first_day, load, promises, shipped, two_days
from decisions_lib.excepted import EXCEPTED, Bounds, Promise, bound
from decisions_lib.required import Required
from decisions_lib.tables import Prose, Table, percent, span
from decisions_lib.two_days import Row
from decisions_lib.worlds import (
    AGES,
    COLD,
    DESIGNS,
    NAMED,
    NOISIER,
    SOME,
    STEPS,
    TYPICAL,
    walk_name,
)

CASES = 20_000
PARTS = 8
"""The cases that the package judges as well are cut into so many parts."""

SHOWN_DESIGNS = ("4x2", "10x2")
SHOWN_NOISES = (
    "runs 0.5 %",
    "runs 1.5 %",
    "runs 3 %",
    "runs 0.5 %, sessions 0.5 % (x1)",
    "runs 0.5 %, sessions 1 % (x2)",
    "runs t3",
    "1 run in 20 -5 %",
    "CPU as measured on 2026-11-22, limit 20 %",
)
"""What the page shows of all rows."""


_PAIRS = ", ".join(map(str, first_day.PAIRS))


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
    cases, each = max(200, round(scale * CASES)), max(1, round(4 * scale * shipped.EACH))
    each = min(each, shipped.EACH)
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
        line="cases of which the package says another thing",
        text=f"of {found.compared:,} cases, the package says another thing of",
        found=float(len(found.unlike)),
        bound=0.0,
        share=False,
        rows=found.compared,
        broken=found.unlike,
    )
    return [*promises.required(found.rows, found.first, found.loads), unlike]


# --- the page ------------------------------------------------------------------------------------


def page(found: Found) -> dict[str, Table | Prose]:
    """Return the parts of the page by name."""
    return {
        "typical": _typical(found.rows),
        "noises": _noises(found.rows),
        "ages": _ages(found.rows),
        "first-day": _few_first_days(found.first),
        "exceptions": Prose(
            f"{_excepted(found.rows).markdown}\n\n{_reasons()}\n\n{_noisier(found.rows)}"
        ),
        "some-processes": _some_of_them(found.rows),
        "load": _few_loads(found.loads),
    }


def _typical(rows: Sequence[Row]) -> Table:
    return Table(
        (
            "baseline",
            "unchanged: warned of",
            "red",
            "runs",
            "-3 %: found on day 1",
            "red on day 1",
            "red by day 2",
            "ok for good",
        ),
        [
            (
                row.design,
                percent(row.same.seems_drop),
                percent(promises.red_in_a_session(row)),
                f"{row.same.runs:.2f}",
                *map(percent, (row.fell.noticed, row.fell.fail, row.fell.red, row.fell.ok)),
            )
            for row in rows
            if row.world == TYPICAL
        ],
    )


def _noises(rows: Sequence[Row]) -> Table:
    by_name = {(row.world, row.design): row for row in rows}
    return Table(
        ("noise", *SHOWN_DESIGNS),
        [
            (name, *(_few(by_name[name, design]) for design in SHOWN_DESIGNS))
            for name in SHOWN_NOISES
        ],
    )


def _few(row: Row) -> str:
    shares = promises.red_in_a_session(row), row.fell.noticed, row.fell.red, row.fell.ok
    return ", ".join(map(percent, shares))


def _ages(rows: Sequence[Row]) -> Table:
    by_name = {(row.world, row.design): row for row in rows}

    return Table(
        ("walk", *(f"{age} day{'s' * (age > 1)} old" for age in AGES)),
        [
            (
                f"{step:g} %, {design}",
                *(_few(by_name[walk_name(step, age), design]) for age in AGES),
            )
            for step in STEPS
            for design in SHOWN_DESIGNS
        ],
    )


def _few_first_days(rows: Sequence[first_day.Row]) -> Table:
    drops = [drop for drop in first_day.DROPS if drop]
    return Table(
        (
            "runs vary by",
            "unchanged, -3 %: warned of",
            "red from",
            *(f"-{100 * drop:g} %: proven by {_PAIRS} pairs" for drop in drops),
        ),
        [
            (
                f"{100 * row.sd:g} %",
                f"{percent(row.wrong)}, {percent(row.warned)}",
                f"-{100 * row.red:g} %" if row.red else "never",
                *(
                    ", ".join(percent(row.turns[pairs, drop]) for pairs in first_day.PAIRS)
                    for drop in drops
                ),
            )
            for row in rows
        ],
    )


def _excepted(rows: Sequence[Row]) -> Table:
    by_name = {(row.world, row.design): row for row in rows}
    promised: tuple[tuple[Promise, str], ...] = (
        ("red", "red"),
        ("ok", "ok"),
    )

    def cell(bounds: Bounds, design: str, of: Promise) -> str:
        stated = {world: own[design] for world, own in bounds.items() if design in own}
        if not stated:
            return ""
        found = [promises.figure(by_name[world, design], of) for world in stated]
        return f"{span(found)} ({percent(max(stated.values()))})"

    lines = [
        (one.machine, text, *(cell(one.bounds(of), design, of) for design in DESIGNS))
        for one in EXCEPTED
        for of, text in promised
        if one.bounds(of)
    ]
    return Table(("noise", "what", *DESIGNS), lines)


def _reasons() -> str:
    return "\n".join(f"- *{one.machine.capitalize()}.* {one.why}" for one in EXCEPTED)


def _noisier(rows: Sequence[Row]) -> str:
    fell = [
        row.fell
        for row in rows
        if NAMED[row.world] in NOISIER and row.design != "1x8"  # one day makes nothing final
    ]
    return (
        f"So the `ok` of *one run* is outside the guarantee if the new build varies more. At 3 "
        f"times the noise {span(one.ok_by_one for one in fell)} % of the drops of the limit are ok "
        f"for good after one run. After two runs or more it is "
        f"{span(one.ok_by_more for one in fell)} %, which keeps the 5 %."
    )


def _some_of_them(rows: Sequence[Row]) -> Prose:
    some = {row.world: row.same for row in rows if NAMED[row.world] in SOME}
    cells = "; ".join(
        f"{name}: {percent(one.red)} % red by day 2, {percent(one.ok + one.seems_ok)} % pass"
        for name, one in some.items()
    )
    return Prose(
        "A drop in only some processes is outside the guarantee, because one good run is enough to "
        f"pass. {cells}."
    )


def _few_loads(rows: Sequence[load.Row]) -> Prose:
    loaded = [row for row in rows if row.load != load.IDLE]
    (idle,) = (row for row in rows if row.load == load.IDLE)
    return Prose(
        f"Under [load](hardware.md#a-busy-machine) with a known bound of up to 40 %, unchanged "
        f"code is a drop in {span(row.fails for row in loaded)} %, and a drop of the limit is ok "
        f"in {span(row.passes for row in loaded)} %. The price: a drop of the limit is found in "
        f"{span(row.found for row in loaded)} % (idle: {percent(idle.found)} %), a drop by half in "
        f"{span(row.large for row in loaded)} %."
    )


# --- every row -----------------------------------------------------------------------------------


def tables(found: Found) -> dict[str, Table]:
    """Return every row by the name of its table."""
    return {
        "first day": _first_day(found.first),
        "load": _loads(found.loads),
        "first runs": _cold(found.rows),
        "some processes": _some(found.rows),
        "worlds": every_figure(found.rows),
    }


def every_figure(rows: Sequence[Row]) -> Table:
    """Return all figures of all rows, each in a column of its own, and what is promised of them."""
    said = ("drop", "provisional drop", "provisional ok", "ok", "ok after one run", "runs")
    later = ("red on day 2", "red by day 2")
    figures = [f"{what}: {one}" for what in ("unchanged", "limit") for one in (*said, *later)]
    return Table(
        (
            *("noise", "baseline", "limit", "cases"),
            *("unchanged: red, at most", "limit: ok, at most"),
            *figures,
        ),
        [
            (
                row.world,
                row.design,
                f"{NAMED[row.world].limit:g}",
                str(row.cases),
                *_promised(row),
                *(
                    f"{figure:.5g}"
                    for one in (row.same, row.fell)
                    for figure in (
                        *(one.fail, one.seems_drop, one.seems_ok, one.ok, one.ok_by_one),
                        *(one.runs, one.again, one.red),
                    )
                ),
            )
            for row in rows
        ],
    )


def _promised(row: Row) -> tuple[str, str]:
    """Return the most that is promised of a row: red, and ok for good; "" if nothing is."""
    if not NAMED[row.world].promised:
        return "", ""
    red, ok = (bound(row.world, row.design, of) for of in ("red", "ok"))
    return f"{red or promises.RED:g}", f"{ok or promises.OK:g}"


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


def _first_day(rows: Sequence[first_day.Row]) -> Table:
    return Table(
        (
            *("runs vary by", "unchanged: provisional ok", "warned of", "-3 %: warned of"),
            "red from",
            *(f"{pairs} pairs: unchanged / -3 % / -5 %" for pairs in first_day.PAIRS),
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

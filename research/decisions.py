"""Simulate the rules of judgement: what is red, what is ok, and how often that is wrong.

    python research/decisions.py                  # or: make decisions
    python research/decisions.py --full           # or: make decisions-full
    python research/decisions.py --rows 4x2 walk  # only rows whose names hold all of these words

Prints the tables of docs/decisions.md, and returns 1 where a promise is broken. Everything is
simulated at three tenths of its full size, 6,000 cases of each row of speed, and some cases are
judged by the package itself as well. With `--full` everything has its full size; docs/decisions.md
gets its tables and its plot, and docs/decisions.csv every row. The seed is fixed: equal versions of
this project and of numpy give equal figures.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

from decisions_lib import everything, plot, report, speed, two_days
from decisions_lib.required import Required, in_full, in_lines
from decisions_lib.tables import Table, as_csv, fill
from decisions_lib.worlds import NAMED

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "decisions.md"
PART = 0.3
"""Share of the full size that is simulated without `--full`."""


def pool_of(workers: int) -> Executor:
    """Return what the simulations run in; with one worker that is this process."""
    if workers == 1:
        return ThreadPoolExecutor(1)
    # Threads of numpy's linear algebra do not survive a fork.
    return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))


def rows_of(words: Sequence[str], cases: int) -> Table:
    """Return the rows of the worlds and baselines whose names hold all of these words."""
    chosen = [
        two_days.row(name, design, cases)
        for name, world in NAMED.items()
        for design in world.designs
        if all(word in f"{name}, {design}" for word in words)
    ]
    return speed.two_days_of(chosen)


def simulate(pool: Executor, scale: float, page: Path | None) -> list[Required]:
    """Simulate, print the tables, and return what was required; with a page, fill it as well."""
    first = speed.begin(pool, scale)
    second = everything.begin(pool, scale)
    of_speed, rest = first(), second()
    required = [*speed.required(of_speed), *report.required(rest)]
    parts = {"required": in_lines(required), **speed.page(of_speed), **report.page(rest)}
    for name, part in parts.items():
        print(f"{name}\n\n{part.markdown}\n")
    if page:
        page.write_text(fill(page.read_text("utf-8"), parts), "utf-8")
        page.with_suffix(".svg").write_bytes(plot.draw(rest))
        rows = {"required": in_full(required), **report.tables(rest), **speed.tables(of_speed)}
        page.with_suffix(".csv").write_text(as_csv(rows), "utf-8")
        print(f"{page}, its plot and its rows written")
    return required


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; return 1 where a requirement is missed."""
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="at full size; write the page")
    parser.add_argument("--rows", nargs="+", metavar="WORD", help="only rows with these words")
    parser.add_argument("--scale", type=float, help=f"share of the full size (default {PART})")
    parser.add_argument("--workers", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--page", type=Path, help="the page to fill (default: docs/decisions.md)")
    given = parser.parse_args(arguments)
    scale = given.scale or (1.0 if given.full or given.rows else PART)
    if given.rows:
        print(rows_of(given.rows, round(scale * speed.CASES)).markdown)
        return 0
    if given.full and scale < 1 and given.page is None:
        parser.error("a look at less than the full size is not for docs/: say --page FILE")
    started = time.monotonic()
    with pool_of(given.workers) as pool:
        required = simulate(pool, scale, (given.page or PAGE) if given.full else None)
    missed = [one.missed for one in required if not one.met]
    print(f"{time.monotonic() - started:.0f} s")
    print(f"missed: {'; '.join(missed)}" if missed else "every requirement is met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

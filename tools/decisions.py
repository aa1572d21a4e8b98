"""Simulate every rule of judgement, beside the rules of other tools.

    python tools/decisions.py            # or: make decisions

Prints tables and what was required of them, and writes them to docs/decisions.md with a plot. The
seed is fixed: equal versions of this project and of numpy give equal figures.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from decisions_lib import accuracies, further, performance, plot, report, suites, worlds
from decisions_lib.noise import MODELS
from decisions_lib.performance import Size

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "decisions.md"
Key = TypeVar("Key")
Result = TypeVar("Result")

FURTHER: Mapping[str, Callable[[float], Any]] = {
    "first": further.first,
    "many": further.many,
    "days": further.of_days,
    "curves": further.of_curves,
    "two": further.two,
    "rare": further.rare_breaks,
    "whole": further.whole,
    "load": further.under_load,
}

PASSES, SESSIONS, SMALL_SESSIONS, WORLD_CASES = 10_000, 2_500, 10_000, 20_000


def sized(scale: float) -> Size:
    """Return the sizes of the simulation of performance at a share of the full ones."""
    full = Size()
    return Size(
        cases=max(400, round(scale * full.cases)),
        batches=max(1, round(scale * full.batches)),
        baselines=part(full.baselines, scale),
        repeats=part(full.repeats, scale),
        resampled=part(full.resampled, scale),
        resamples=part(full.resamples, scale),
    )


def part(count: int, scale: float) -> int:
    """Return a share of a count, never too few to say anything."""
    return max(20, round(scale * count))


def simulate(scale: float, workers: int) -> report.Found:
    """Run every simulation.

    Args:
        scale: Share of the full size, for a look at the tables.
        workers: Processes; with 1 everything is done in this one.
    """
    size = sized(scale)
    with pool_of(workers) as pool:
        others = {
            noise.name: pool.submit(performance.other_curves, noise, size, stream)
            for stream, noise in enumerate(MODELS)
        }
        ours = {
            name: pool.submit(performance.ours, noise, sessions, size, stream)
            for stream, (name, noise, sessions) in enumerate(performance.our_settings())
        }
        little, broken = (
            pool.submit(accuracies.rows, part(PASSES, scale), broken=broken)
            for broken in (False, True)
        )
        each = part(WORLD_CASES, scale)
        of_worlds = [pool.submit(worlds.rows, each, [n]) for n in range(len(worlds.WORLDS))]
        ten = pool.submit(worlds.rows, each // 2, range(len(worlds.WORLDS)), ten=True)
        some = pool.submit(worlds.rows, each, range(len(worlds.SOME)), some=True)
        beside = {name: pool.submit(make, scale) for name, make in FURTHER.items()}
        several, few, alone = sessions_of(pool, scale)
        curves = _results(others)
        return report.Found(
            ours=_results(ours),
            others=curves,
            compares={rule.name: rule.compares for rule in performance.other_rules(size)},
            little=little.result(),
            broken=broken.result(),
            sessions=_results(several),
            few=_results(few),
            alone=_results(alone),
            worlds=[one for rows in of_worlds for one in rows.result()],
            ten=ten.result(),
            some=some.result(),
            further=further.Further(**{name: one.result() for name, one in beside.items()}),
        )


def pool_of(workers: int) -> Executor:
    """Return what the simulations run in."""
    if workers == 1:
        return ThreadPoolExecutor(1)
    # Threads of numpy's linear algebra do not survive a fork.
    return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))


def sessions_of(
    pool: Executor, scale: float
) -> tuple[
    dict[tuple[float, str], Future[suites.Sessions]],
    dict[float, Future[suites.Sessions]],
    dict[float, Future[float]],
]:
    """Begin the simulations of whole sessions: many cases, few, and each pair judged alone."""
    fell = {"nothing": (0, 3), "all": (suites.DROPPED, 3), "one": (suites.DROPPED, 1)}
    count, small = part(SESSIONS, scale), part(SMALL_SESSIONS, scale)
    several = {
        (r, name): pool.submit(suites.sessions, count, correlation=r, fell=cases, metrics=metrics)
        for r in report.CORRELATIONS
        for name, (cases, metrics) in fell.items()
    }
    few = {
        r: pool.submit(suites.sessions, small, correlation=r, fell=0, cases=suites.FEW_CASES)
        for r in report.CORRELATIONS
    }
    alone = {r: pool.submit(suites.alone, count, correlation=r) for r in report.CORRELATIONS}
    return several, few, alone


def _results(futures: Mapping[Key, Future[Result]]) -> dict[Key, Result]:
    return {key: future.result() for key, future in futures.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables and write the page; return 1 where a requirement is missed."""
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full size")
    parser.add_argument("--workers", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--page", type=Path, help="the page to fill (default: docs/decisions.md)")
    given = parser.parse_args(arguments)
    if given.scale < 1 and given.page is None:
        parser.error("a look at less than the full size is not for docs/: say --page FILE")
    page = given.page or PAGE
    started = time.monotonic()
    found = simulate(given.scale, given.workers)
    tables = report.tables(found)
    for name, text in tables.items():
        print(f"{name}\n\n{text}\n")
    page.write_text(report.fill(page.read_text("utf-8"), tables), "utf-8")
    page.with_suffix(".svg").write_bytes(plot.draw(found))
    missed = [one.text for one in report.required(found) if not one.met]
    print(f"{page} and its plot written, {time.monotonic() - started:.0f} s")
    print(f"missed: {'; '.join(missed)}" if missed else "every requirement is met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

"""What is simulated beside the promises of speed, and judged by other tools' rules as well."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any, TypeVar

from decisions_lib import accuracies, further, performance, suites
from decisions_lib.further import Further
from decisions_lib.noise import MODELS
from decisions_lib.performance import Ours, Size
from decisions_lib.suites import Sessions

Key = TypeVar("Key")
Result = TypeVar("Result")

CORRELATIONS = (0.0, 0.7)

FURTHER: Mapping[str, Callable[[float], Any]] = {
    "many": further.many,
    "days": further.of_days,
    "curves": further.of_curves,
    "two": further.two,
    "rare": further.rare_breaks,
    "whole": further.whole,
}

PASSES, SESSIONS, SMALL_SESSIONS = 10_000, 2_500, 10_000


@dataclass(frozen=True, kw_only=True)
class Found:
    """What was found.

    Attributes:
        ours: Rule R by setting.
        others: By noise model and rule, the share of flagged cases over `SWEEP`.
        compares: By rule, what it compares with what.
        little: Accuracy where every sample loses a little.
        broken: Accuracy where few outputs are broken.
        sessions: By correlation and what fell: "nothing", "all" metrics or "one" of five cases.
        alone: By correlation, sessions with a false red were each pair judged alone.
        few: By correlation, sessions of few cases.
        further: What else is promised.
    """

    ours: Mapping[str, Ours]
    others: Mapping[str, Mapping[str, Sequence[float]]]
    compares: Mapping[str, str]
    little: Sequence[accuracies.Row]
    broken: Sequence[accuracies.Row]
    sessions: Mapping[tuple[float, str], Sessions]
    alone: Mapping[float, float]
    few: Mapping[float, Sessions]
    further: Further


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


def begin(pool: Executor, scale: float) -> Callable[[], Found]:
    """Begin the simulations; the function returned waits for them.

    Args:
        pool: Where they run.
        scale: Share of the full size.
    """
    size = sized(scale)
    beside = {name: pool.submit(make, scale) for name, make in FURTHER.items()}
    others = {
        noise.name: pool.submit(performance.other_curves, noise, size, stream)
        for stream, noise in enumerate(MODELS)
    }
    ours = {
        name: pool.submit(performance.ours, noise, sessions, size, stream)
        for stream, (name, noise, sessions) in enumerate(performance.our_settings())
    }
    little, broken = (
        pool.submit(accuracies.rows, part(PASSES, scale), broken=broken) for broken in (False, True)
    )
    several, few, alone = sessions_of(pool, scale)

    def found() -> Found:
        return Found(
            ours=_results(ours),
            others={name: one.result() for name, one in others.items()},
            compares={rule.name: rule.compares for rule in performance.other_rules(size)},
            little=little.result(),
            broken=broken.result(),
            sessions=_results(several),
            few=_results(few),
            alone=_results(alone),
            further=Further(**{name: one.result() for name, one in beside.items()}),
        )

    return found


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
        for r in CORRELATIONS
        for name, (cases, metrics) in fell.items()
    }
    few = {
        r: pool.submit(suites.sessions, small, correlation=r, fell=0, cases=suites.FEW_CASES)
        for r in CORRELATIONS
    }
    alone = {r: pool.submit(suites.alone, count, correlation=r) for r in CORRELATIONS}
    return several, few, alone


def _results(futures: Mapping[Key, Future[Result]]) -> dict[Key, Result]:
    return {key: future.result() for key, future in futures.items()}

"""Noises of every kind: what runs of one build differ by, on the days of a baseline and later."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decisions_lib.noise import Floats
from pytest_mlperf.core.metrics import METRICS
from pytest_mlperf.judge.inputs import Direction
from pytest_mlperf.judge.rule_r import RuleR

DESIGNS: Mapping[str, tuple[int, ...]] = {
    "4x2": (2,) * 4,
    "8+2+2+2": (8, 2, 2, 2),
    "1x8": (8,),
    "10x2": (2,) * 10,
}
"""Runs of each session of a baseline; its sessions are of consecutive days."""

MEASURED = Path(__file__).resolve().parents[2] / "docs" / "measurements" / "cpu-2026-11-22.json"
"""A calibration of two virtual cores of an AMD EPYC."""

RUNS = RuleR().max_runs
DAYS_NOW = 2
"""Days that are judged, one after the other."""


@dataclass(frozen=True)
class Slots:
    """The runs to draw, those of the baseline first.

    Attributes:
        session: Number of each run's session; the last ones are of now.
        place: Which of its session's runs it is.
        days: Day of each session.
        now: Which runs are no baseline's.
    """

    session: NDArray[np.int64]
    place: NDArray[np.int64]
    days: NDArray[np.int64]
    now: NDArray[np.bool_]

    @property
    def day(self) -> NDArray[np.int64]:
        """Day of each run."""
        return self.days[self.session]


def slots(design: Sequence[int], *, age: int = 1, one_day: bool = False, runs: int = RUNS) -> Slots:
    """Return the runs of a baseline and of `DAYS_NOW` days.

    Args:
        design: Runs of each session of the baseline.
        age: Days from its last session to the first one of now.
        one_day: All its sessions are of one day.
        runs: Of each day.
    """
    days = [0 if one_day else number for number in range(len(design))]
    days += [days[-1] + age + later for later in range(DAYS_NOW)]
    sizes = [*design, *[runs] * DAYS_NOW]
    session = np.repeat(np.arange(len(sizes)), sizes)
    place = np.concatenate([np.arange(size) for size in sizes])
    return Slots(session, place, np.array(days), session >= len(design))


Part = Callable[[np.random.Generator, int, Slots], Floats]
"""Gives one part of the log values of many cases, shape (cases, runs)."""


@dataclass(frozen=True, kw_only=True)
class World:
    """How runs vary.

    Attributes:
        name: What tables call it.
        parts: What adds up to the log value of a run.
        step: Values are known to this step only; 0: exactly.
        cpu: Judged with what is expected of CPUs.
        limit: The smallest change that matters.
        age: Days from the last session of the baseline to the first that is judged.
        one_day: The baseline's sessions are of one day.
        designs: Baselines that it is judged with.
        promised: The promises are kept in it, or it is told why not; else it is only shown.
    """

    name: str
    parts: tuple[Part, ...]
    step: float = 0.0
    cpu: bool = False
    limit: float = METRICS["throughput"].limit
    age: int = 1
    one_day: bool = False
    designs: tuple[str, ...] = tuple(DESIGNS)
    promised: bool = True

    def slots(self, design: Sequence[int], *, runs: int = RUNS) -> Slots:
        """Return the runs to draw for a baseline of so many runs of each session."""
        return slots(design, age=self.age, one_day=self.one_day, runs=runs)

    def draw(self, rng: np.random.Generator, cases: int, of: Slots) -> Floats:
        """Return log values of runs of one build; see `seen`."""
        total = np.zeros((cases, len(of.session)))
        for part in self.parts:
            total += part(rng, cases, of)
        return total

    def seen(self, logs: Floats) -> Floats:
        """Return what is measured of such values."""
        if not self.step:
            return logs
        found: Floats = np.log(np.round(np.exp(logs) / self.step) * self.step)
        return found


# --- what runs, sessions and days differ by -------------------------------------------------------

Draw = Callable[[np.random.Generator, tuple[int, int]], Floats]
"""Draws independent values."""


def normal(sd: float) -> Draw:
    """Draw from the normal distribution."""
    return lambda rng, shape: sd * rng.standard_normal(shape)


def student(df: float, scale: float) -> Draw:
    """Draw from Student's t: now and then one is far off."""
    return lambda rng, shape: scale * rng.standard_t(df, shape)


def stalls(mean: float) -> Draw:
    """Draw exponential losses."""
    return lambda rng, shape: -mean * rng.standard_exponential(shape)


def states(*shares_and_losses: tuple[float, float]) -> Draw:
    """Draw one of several states, each slower by so much."""
    shares, losses = zip(*shares_and_losses, strict=True)
    logs = np.log1p(-np.array(losses))
    return lambda rng, shape: logs[rng.choice(len(shares), size=shape, p=shares)]


def some(share: float, by: float) -> Draw:
    """Draw a share that is slower by so much."""
    return states((1 - share, 0.0), (share, by))


def runs(draw: Draw, *, then: float = 1.0, now: float = 1.0) -> Part:
    """Return what each run has, so many times for those of the baseline, and of now."""
    return lambda rng, cases, of: np.where(of.now, now, then) * draw(rng, (cases, len(of.now)))


def sessions(draw: Draw) -> Part:
    """Return what the runs of a session share."""
    return lambda rng, cases, of: draw(rng, (cases, len(of.days)))[:, of.session]


def days(draw: Draw) -> Part:
    """Return what the runs of a day share."""

    def part(rng: np.random.Generator, cases: int, of: Slots) -> Floats:
        known, number = np.unique(of.days, return_inverse=True)
        found: Floats = draw(rng, (cases, len(known)))[:, number[of.session]]
        return found

    return part


def correlated(r: float, sd: float) -> Part:
    """Return runs that are each correlated with the one before in its session."""

    def part(rng: np.random.Generator, cases: int, of: Slots) -> Floats:
        found = rng.standard_normal((cases, len(of.session)))
        for at in np.flatnonzero(of.place):
            found[:, at] = r * found[:, at - 1] + math.sqrt(1 - r**2) * found[:, at]
        return sd * found

    return part


def own_sd(low: float, high: float) -> Part:
    """Return runs that vary in each session by another standard deviation."""

    def part(rng: np.random.Generator, cases: int, of: Slots) -> Floats:
        sd = np.exp(rng.uniform(math.log(low), math.log(high), (cases, len(of.days))))
        found: Floats = sd[:, of.session] * rng.standard_normal((cases, len(of.session)))
        return found

    return part


def drift(by: float, own: float = 0.0) -> Part:
    """Return what each session drifts by from run to run: by as much, and by its own amount."""

    def part(rng: np.random.Generator, cases: int, of: Slots) -> Floats:
        amount = by + own * rng.standard_normal((cases, len(of.days)))
        found: Floats = amount[:, of.session] * of.place
        return found

    return part


def first_runs(then: float, now: float, decay: float, *, warmed: bool = False) -> Part:
    """Return what the first runs of a session have, of which so much is left from run to run.

    Args:
        then: Of the first run of each of the baseline's sessions; above 0 is faster.
        now: Of the first run of now.
        decay: What is left from one run to the next.
        warmed: Each session begins with a run that does not count.
    """

    def part(rng: np.random.Generator, cases: int, of: Slots) -> Floats:
        del rng
        one = np.where(of.now, now, then) * np.power(decay, of.place + float(warmed))
        return np.broadcast_to(one, (cases, len(one)))

    return part


def wandering(keeps: float, sd: float) -> Part:
    """Return a machine that wanders and comes back: of a deviation so much is left after a day."""

    def part(rng: np.random.Generator, cases: int, of: Slots) -> Floats:
        found = rng.standard_normal((cases, len(of.days)))
        for at, gap in enumerate(np.diff(of.days), 1):
            left = keeps ** int(gap)
            found[:, at] = left * found[:, at - 1] + math.sqrt(1 - left**2) * found[:, at]
        return sd * found[:, of.session]

    return part


def walk(step: float) -> Part:
    """Return a machine that wanders for good."""

    def part(rng: np.random.Generator, cases: int, of: Slots) -> Floats:
        gaps = np.sqrt(np.diff(of.days, prepend=of.days[0]))
        at = np.cumsum(step * gaps * rng.standard_normal((cases, len(of.days))), axis=1)
        found: Floats = at[:, of.session]
        return found

    return part


def measured(file: Path) -> Part:
    """Return exactly the noise of a calibration: its sessions and runs, redrawn.

    Each simulated case is one of the calibrated ones. The effect of a session is that of one of its
    sessions, and a run lies off its session's mean as one of its runs did.
    """
    series = calibrated(file)
    effects = np.array([[xs.mean() for xs in case] for case in series])
    effects -= effects.mean(axis=1, keepdims=True)
    off = [np.concatenate([xs - xs.mean() for xs in case]) for case in series]

    def part(rng: np.random.Generator, cases: int, of: Slots) -> Floats:
        which = rng.integers(len(series), size=cases)
        chosen = rng.integers(effects.shape[1], size=(cases, len(of.days)))
        shared = effects[which[:, None], chosen]
        own = np.stack([rng.choice(off[at], len(of.session)) for at in which.tolist()])
        found: Floats = shared[:, of.session] + own
        return found

    return part


def calibrated(file: Path) -> list[list[Floats]]:
    """Return log values by case and session of a calibration file, where higher is better."""
    (machine,) = json.loads(file.read_text("utf-8"))["machines"]
    series = []
    for case in machine["cases"]:
        metric = next(name for name in case["limits"] if name in case["runs"][0]["metrics"])
        sign = 1 if METRICS[metric].direction is Direction.HIGHER else -1
        by_session: dict[str, list[float]] = {}
        for run in case["runs"]:
            by_session.setdefault(run["session"], []).append(
                sign * math.log(run["metrics"][metric])
            )
        series.append([np.array(xs) for xs in by_session.values()])
    return series


# --- the worlds ----------------------------------------------------------------------------------


def _of(name: str, *parts: Part, **fields: Any) -> World:
    return World(name=name, parts=parts, **fields)


def _pure(run: float, session: float = 0.0) -> World:
    """Return a world by the standard deviations of runs and sessions, in percent."""
    apart = f", sessions {session:g} % (x{session / run:g})" if session else ""
    between = (sessions(normal(session / 100)),) if session else ()
    return _of(f"runs {run:g} %{apart}", runs(normal(run / 100)), *between)


def _quarter(sd: float) -> World:
    inside, between = runs(normal(sd / 100 * math.sqrt(0.75))), sessions(normal(sd / 200))
    return _of(f"{sd:g} %, a quarter of it the session's", inside, between)


def _same_day(of_day: float) -> World:
    name = f"same day: days {of_day:g} %, sessions 0.2 %"
    return _of(name, HALF, sessions(normal(0.002)), days(normal(of_day / 100)), one_day=True)


def walk_name(step: float, age: int) -> str:
    """Return the name of a machine that walks, beside a baseline so many days old."""
    return f"walk {step:g} % a day, {age} day{'s' * (age > 1)} old"


def _walk(step: float, age: int) -> World:
    return _of(walk_name(step, age), runs(normal(0.009)), walk(step / 100), age=age)


def _noisier(before: float) -> World:
    name = f"now 3x noisier, {before:g} to {3 * before:g} %"
    return _of(name, runs(normal(before / 100), now=3))


def _p99(spread: float, name: str) -> World:
    error = spread * math.sqrt(0.0099 / 1000) / 0.02665
    return _of(f"p99 of 1,000 {name}, limit 10 %", runs(normal(error)), limit=0.10)


def _cpu(run: float, session: float, limit: float) -> World:
    apart = f", sessions {session:g} %" if session else ""
    name = f"CPU: runs {run:g} %{apart}, limit {100 * limit:g} %"
    parts = runs(normal(run / 100)), sessions(normal(session / 100))
    return _of(name, *parts, cpu=True, limit=limit)


HALF = runs(normal(0.005))
OUTLYING = runs(normal(0.006))
CLOCKS = sessions(states((0.7, 0), (0.2, 0.015), (0.1, 0.03)))
TYPICAL = "runs 0.9 %"
GAUSSIAN = (
    *(_pure(run) for run in (0.2, 0.5, 0.9, 1.5, 3, 6)),
    *(_pure(0.5, session) for session in (0.25, 0.5, 0.75, 1, 1.5, 2)),
    *(_pure(*sds) for sds in ((0.2, 0.4), (0.2, 0.8), (1.5, 1.5), (1.5, 6), (6, 6))),
    *(_quarter(sd) for sd in (0.9, 2.1, 3.5)),
)
STEPS, AGES = (0.2, 0.3, 0.5), (1, 7, 14)
"""Per cent that a machine walks a day, and days from the baseline's last one."""

NOISIER = tuple(_noisier(before) for before in (0.3, 0.6, 1.2))
WANDERING = (
    _of("AR(1) 0.8 a day, 1 %", HALF, wandering(0.8, 0.01)),
    _of("AR(1) 0.95 a day, 1.5 %", HALF, wandering(0.95, 0.015)),
    _of("AR(1) 0.95 a day, 1.5 %, 10 days old", HALF, wandering(0.95, 0.015), age=10),
    *(_walk(step, age) for step in STEPS for age in AGES),
    *(_same_day(of_day) for of_day in (0.5, 1, 2)),
)
MIXED = (
    _of("1 session in 5 -4 %", OUTLYING, sessions(some(0.2, 0.04))),
    _of("1 session in 20 -4 %", OUTLYING, sessions(some(0.05, 0.04))),
    _of("half of the sessions -3 %", HALF, sessions(some(0.5, 0.03))),
    _of("clock states 0/-1.5/-3 %", runs(normal(0.003)), CLOCKS),
    _of("runs t3", runs(student(3, 0.006))),
    _of("runs t2", runs(student(2, 0.006))),
    _of("sessions t3", HALF, sessions(student(3, 0.005))),
    *(_of(f"runs correlated {r:g}", correlated(r, 0.009)) for r in (0.5, 0.8, 0.95)),
    _of("first run -3 %", HALF, first_runs(-0.03, -0.03, 0.0)),
    _of("first run -3 %, halving", HALF, first_runs(-0.03, -0.03, 0.5)),
    _of("drift -0.3 % a run", HALF, drift(-0.003)),
    _of("own drift 0.3 % a run", HALF, drift(0.0, own=0.003)),
    *NOISIER,
    _of("now a third as noisy, 2.7 to 0.9 %", runs(normal(0.027), now=1 / 3)),
    _of("steps of 0.75 %", runs(normal(0.003)), step=0.0075),
    _of("steps of 1.5 %", runs(normal(0.003)), step=0.015),
    _of("steps of 1.5 %, sessions 0.7 %", runs(normal(0.003)), sessions(normal(0.007)), step=0.015),
    _of("1 run in 20 -30 %", runs(normal(0.007)), runs(some(0.05, 0.3))),
    _of("1 run in 20 -15 %", OUTLYING, runs(some(0.05, 0.15))),
    _of("1 run in 20 -5 %", OUTLYING, runs(some(0.05, 0.05))),
    _of("1 run in 8 -4 %", OUTLYING, runs(some(0.125, 0.04))),
    _of("half of the runs -2 %", HALF, runs(some(0.5, 0.02))),
    _of("three of ten runs -5 %", HALF, runs(some(0.3, 0.05))),
    _of("stalls of 1 %", runs(normal(0.003)), runs(stalls(0.01))),
    _of("each session its own sd, 0.3 to 3 %", own_sd(0.003, 0.03)),
    _of("24 queries, each varies 30 %", runs(normal(0.3 / math.sqrt(24)))),
    _p99(0.3, "queries"),
    _p99(0.6, "wider queries"),
    *(_cpu(*one) for one in ((5, 0, 0.2), (5, 10, 0.2), (11, 28, 0.4))),
    _of("CPU as measured on 2026-11-22, limit 20 %", measured(MEASURED), cpu=True, limit=0.20),
)

FIRST = 0.02
"""What the first run of a session differs by."""

_HALVING, _ALONE = (0.5, "halving"), (0.0, "alone")


def _cold(then: float, now: float, left: tuple[float, str], warmed: bool) -> World:
    decay, how = left
    whose = "" if then == now else "; only now" if now else "; only the baseline's"
    return _of(
        f"first run {100 * (then or now):+g} %, {how}{whose}{', after a warm-up' * warmed}",
        runs(normal(0.009)),
        first_runs(then, now, decay, warmed=warmed),
        designs=("4x2", "1x8"),
        promised=warmed and (then == now or not decay),
    )


COLD = tuple(
    _cold(*effect, warmed)
    for effect in (
        (FIRST, FIRST, _HALVING),
        (FIRST, 0.0, _HALVING),
        (0.0, FIRST, _HALVING),
        (0.0, -FIRST, _HALVING),
        (FIRST, 0.0, _ALONE),
        (0.0, FIRST, _ALONE),
        (0.0, -FIRST, _ALONE),
    )
    for warmed in (False, True)
)
"""A cold board is faster until it is warm, or one whose clocks are low is slower. What only one
side has is promised only after a warm-up that leaves none of it."""

SOME = tuple(
    _of(
        f"{share:.0%} of the processes -{by:.0%}",
        runs(normal(0.009)),
        runs(some(share, by), then=0.0),
        designs=("4x2",),
        promised=False,
    )
    for share, by in ((0.1, 0.3), (0.3, 0.1), (0.5, 0.06))
)
"""Drops that only some processes have, each 3 % on average; nothing is promised of them."""

WORLDS = (*GAUSSIAN, *WANDERING, *MIXED, *COLD, *SOME)
NAMED = {world.name: world for world in WORLDS}

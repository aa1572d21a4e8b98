"""Rule R under noises of many kinds, with baselines of four sessions, of one, and of few runs.

Every world says how the log values of runs vary when nothing changed. None was fitted to a GPU; one
was measured on a CPU (docs/measurements). What is promised: of unchanged code at most 1 % fails,
of drops of the limit at most 5 % pass; anything else is INCONCLUSIVE or PROVISIONAL.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from decisions_lib import rule
from decisions_lib.noise import Floats
from decisions_lib.performance import SEED
from pytest_mlperf.core.judge.rule_r import RuleR
from pytest_mlperf.core.judge.standing import final_until
from pytest_mlperf.core.metrics import METRICS, Direction
from pytest_mlperf.core.noise import uncalibrated

DESIGNS = {"4 x 2": tuple("aabbccdd"), "1 x 8": ("a",) * 8, "1 x 5": ("a",) * 5}
"""Sessions of the runs of a baseline."""

TEN = {"10 x 2": tuple("aabbccddeeffgghhiijj")}
"""One that shows what sessions differ by well enough for a final drop."""

MEASURED = Path(__file__).resolve().parents[2] / "docs" / "measurements" / "cpu-2026-11-22.json"
"""A calibration of two virtual cores of an AMD EPYC."""

RUNS = RuleR().max_runs
Z95 = 1.959964

Draw = Callable[[np.random.Generator, int, Sequence[str]], tuple[Floats, Floats]]
"""Gives log values of a baseline, shape (cases, runs), and of `RUNS` runs of now."""


@dataclass(frozen=True, kw_only=True)
class World:
    """How runs vary.

    Attributes:
        name: What tables call it.
        draw: Gives runs.
        cpu: Judged with what is expected of CPUs.
        limit: The smallest change that matters.
        age: Days since the last session of the baseline.
        promises: What is promised there of "fail" (no change) and "pass" (a drop of the limit).
    """

    name: str
    draw: Draw
    cpu: bool = False
    limit: float = 0.03
    age: float = 0.0
    promises: tuple[str, ...] = ("fail", "pass")


@dataclass(frozen=True)
class Shares:
    """What is said in one world of one design, as shares of cases.

    Attributes:
        fail, seems_drop, ok, seems_ok: By word; PROVISIONAL ones lean this way.
        runs: Runs used on average.
    """

    fail: float
    seems_drop: float
    ok: float
    seems_ok: float
    runs: float


@dataclass(frozen=True, kw_only=True)
class Found:
    """One world in one design.

    Attributes:
        name: Of the world.
        promises: What is promised in it.
        design: Which.
        same: Where nothing changed.
        fell: At a drop of the limit.
        cases: Simulated, each.
    """

    name: str
    promises: tuple[str, ...]
    design: str
    same: Shares
    fell: Shares
    cases: int

    @property
    def broken(self) -> list[str]:
        """Return which promises it does not keep: the 95 % interval lies above."""
        found = {"fail": (self.same.fail, 0.01), "pass": (self.fell.ok, 0.05)}
        return [what for what in self.promises if self._above(*found[what])]

    def _above(self, share: float, most: float) -> bool:
        return share - Z95 * math.sqrt(most * (1 - most) / self.cases) > most


def rows(
    cases: int, numbers: Sequence[int], *, some: bool = False, ten: bool = False
) -> list[Found]:
    """Return what rule R says in worlds, in every design.

    Args:
        cases: Of each, once unchanged and once slower by the limit.
        numbers: Which of `WORLDS`, or of `SOME`.
        some: Take `SOME`.
        ten: Take `TEN` in place of `DESIGNS`.
    """
    worlds, designs = SOME if some else WORLDS, TEN if ten else DESIGNS
    return [
        simulated(worlds[number], design, sessions, cases, number)
        for number in numbers
        for design, sessions in designs.items()
    ]


def simulated(world: World, design: str, sessions: Sequence[str], cases: int, stream: int) -> Found:
    """Return what rule R says in one world of one design."""
    rng = np.random.default_rng([SEED, 8, stream, len(sessions), len(set(sessions))])
    settings = uncalibrated("cpu" if world.cpu else "H200").rule(RUNS)

    def shares(drop: float) -> Shares:
        x0, x1 = world.draw(rng, cases, sessions)
        base = rule.baselines(x0, np.zeros_like(x0), sessions)
        found = rule.decide(
            base,
            x1 + np.log1p(-drop),
            np.zeros_like(x1),
            limit=world.limit,
            rule=settings,
            old=_is_old(x0, sessions, world.age),
        )
        words = (rule.FAIL, rule.SEEMS_DROP, rule.PASS, rule.SEEMS_OK)
        fail, seems_drop, ok, seems_ok = map(found.share, words)
        return Shares(fail, seems_drop, ok, seems_ok, found.mean_runs)

    same, fell = shares(0.0), shares(world.limit)
    return Found(
        name=world.name,
        promises=world.promises,
        design=design,
        same=same,
        fell=fell,
        cases=cases,
    )


def _is_old(x0: Floats, sessions: Sequence[str], age: float) -> NDArray[np.bool_]:
    """Return whose sessions, of consecutive days, lie too far back, by the shipped rule."""
    days = _sessions(sessions).tolist()
    until = [final_until(zip(days, xs, strict=True)) or 0.0 for xs in x0.tolist()]
    return np.array([max(days) + age >= last + 1 for last in until])


# --- noises --------------------------------------------------------------------------------------


def _sessions(names: Sequence[str]) -> np.ndarray:
    known = sorted(set(names))
    return np.array([known.index(name) for name in names])


def gauss(run: float, session: float = 0.0, *, now: float = 1.0) -> Draw:
    """Independent runs, and what the runs of a session share; those of now so much wider."""

    def draw(rng: np.random.Generator, cases: int, names: Sequence[str]) -> tuple[Floats, Floats]:
        of = _sessions(names)
        shared = session * rng.standard_normal((cases, of.max() + 2))
        x0 = shared[:, of] + run * rng.standard_normal((cases, len(of)))
        return x0, shared[:, -1:] + now * run * rng.standard_normal((cases, RUNS))

    return draw


def correlated(r: float, sd: float = 0.009) -> Draw:
    """Each run is correlated with the one before it in its session."""

    def series(rng: np.random.Generator, cases: int, runs: int) -> Floats:
        found = rng.standard_normal((cases, runs))
        for at in range(1, runs):
            found[:, at] = r * found[:, at - 1] + math.sqrt(1 - r**2) * found[:, at]
        return sd * found

    def draw(rng: np.random.Generator, cases: int, names: Sequence[str]) -> tuple[Floats, Floats]:
        of = _sessions(names)
        parts = [series(rng, cases, int((of == at).sum())) for at in range(of.max() + 1)]
        return np.concatenate(parts, axis=1), series(rng, cases, RUNS)

    return draw


def walk(step: float, days: int) -> Draw:
    """A machine that wanders from day to day; the baseline's sessions are of consecutive days."""

    def draw(rng: np.random.Generator, cases: int, names: Sequence[str]) -> tuple[Floats, Floats]:
        of = _sessions(names)
        at = np.cumsum(step * rng.standard_normal((cases, of.max() + 1)), axis=1)
        now = at[:, -1:] + step * math.sqrt(days) * rng.standard_normal((cases, 1))
        x0, x1 = gauss(0.009)(rng, cases, names)
        return x0 + at[:, of], x1 + now

    return draw


def modes(share: float, by: float, *, session: bool, run: float = 0.005) -> Draw:
    """A share of the runs, or of the sessions, is slower by so much."""

    def draw(rng: np.random.Generator, cases: int, names: Sequence[str]) -> tuple[Floats, Floats]:
        of = _sessions(names)
        x0, x1 = gauss(run)(rng, cases, names)
        if session:
            slow = np.log1p(-by) * (rng.random((cases, of.max() + 2)) < share)
            return x0 + slow[:, of], x1 + slow[:, -1:]
        at_once = [np.log1p(-by) * (rng.random(x.shape) < share) for x in (x0, x1)]
        return x0 + at_once[0], x1 + at_once[1]

    return draw


def heavy(df: float, scale: float = 0.006) -> Draw:
    """Student's t: now and then a run is far off."""

    def draw(rng: np.random.Generator, cases: int, names: Sequence[str]) -> tuple[Floats, Floats]:
        shapes = ((cases, len(names)), (cases, RUNS))
        x0, x1 = (scale * rng.standard_t(df, shape) for shape in shapes)
        return x0, x1

    return draw


def first_runs(baseline: float, now: float) -> Draw:
    """The first run of a session is faster, the next ones ever less: by 63 % less each."""

    def draw(rng: np.random.Generator, cases: int, names: Sequence[str]) -> tuple[Floats, Floats]:
        place = np.array([names[:at].count(name) for at, name in enumerate(names)])
        x0, x1 = gauss(0.007)(rng, cases, names)
        return x0 + baseline * np.exp(-place), x1 + now * np.exp(-np.arange(RUNS))

    return draw


def grid(step: float) -> Draw:
    """Rates that are known to a step only."""

    def draw(rng: np.random.Generator, cases: int, names: Sequence[str]) -> tuple[Floats, Floats]:
        x0, x1 = gauss(0.007)(rng, cases, names)
        return np.log(np.round(np.exp(x0) / step) * step), np.log(
            np.round(np.exp(x1) / step) * step
        )

    return draw


def some_processes(share: float, by: float) -> Draw:
    """A drop that hits a share of the processes of now; it comes on top of the world's."""

    def draw(rng: np.random.Generator, cases: int, names: Sequence[str]) -> tuple[Floats, Floats]:
        x0, x1 = gauss(0.009)(rng, cases, names)
        return x0, x1 + np.log1p(-by) * (rng.random(x1.shape) < share)

    return draw


def measured(file: Path) -> Draw:
    """Exactly the noise of a calibration: its sessions and what runs differ by in them, redrawn.

    Each simulated case is one of the calibrated ones. The effect of a session is that of one of its
    sessions, and a run lies off its session's mean as one of its runs did.
    """
    series = calibrated(file)
    effects = np.array([[xs.mean() for xs in sessions] for sessions in series])
    effects -= effects.mean(axis=1, keepdims=True)
    off = [np.concatenate([xs - xs.mean() for xs in sessions]) for sessions in series]

    def draw(rng: np.random.Generator, cases: int, names: Sequence[str]) -> tuple[Floats, Floats]:
        of = _sessions(names)
        which = rng.integers(len(series), size=cases)
        sessions = rng.integers(effects.shape[1], size=(cases, of.max() + 2))
        shared = effects[which[:, None], sessions]
        runs = np.stack([rng.choice(off[at], len(of) + RUNS) for at in which.tolist()])
        return shared[:, of] + runs[:, : len(of)], shared[:, -1:] + runs[:, len(of) :]

    return draw


def calibrated(file: Path) -> list[list[Floats]]:
    """Return log values by case and session of a calibration file, where higher is better."""
    (machine,) = json.loads(file.read_text("utf-8"))["machines"]
    series = []
    for case in machine["cases"]:
        metric = next(name for name in case["limits"] if name in case["runs"][0]["metrics"])
        sign = 1 if METRICS[metric].direction is Direction.HIGHER else -1
        sessions: dict[str, list[float]] = {}
        for run in case["runs"]:
            sessions.setdefault(run["session"], []).append(sign * math.log(run["metrics"][metric]))
        series.append([np.array(xs) for xs in sessions.values()])
    return series


def _own_model(sd: float) -> Draw:
    return gauss(sd * math.sqrt(0.75), sd * 0.5)


FAILS_ONLY = ("fail",)

WORLDS = (
    World(name="runs 0.3 %", draw=gauss(0.003)),
    World(name="runs 0.9 %", draw=gauss(0.009)),
    World(name="runs 2.1 %", draw=gauss(0.021)),
    World(name="runs 7 %", draw=gauss(0.07)),
    World(name="0.9 %, a quarter of it the session's", draw=_own_model(0.009)),
    World(name="2.1 %, a quarter of it the session's", draw=_own_model(0.021)),
    World(name="3.5 %, a quarter of it the session's", draw=_own_model(0.035)),
    World(name="sessions 0.5 %, runs 0.5 %", draw=gauss(0.005, 0.005)),
    World(name="sessions 1 %, runs 0.5 %", draw=gauss(0.005, 0.01)),
    World(name="sessions 2 %, runs 0.5 %", draw=gauss(0.005, 0.02)),
    World(name="runs correlated 0.5", draw=correlated(0.5)),
    World(name="runs correlated 0.8", draw=correlated(0.8)),
    World(name="runs correlated 0.95", draw=correlated(0.95)),
    World(name="wanders 0.2 % a day, 30 days old", draw=walk(0.002, 30), age=30),
    World(name="wanders 0.5 % a day, 30 days old", draw=walk(0.005, 30), age=30),
    World(name="half of the runs −2 %", draw=modes(0.5, 0.02, session=False)),
    World(name="three of ten runs −5 %", draw=modes(0.3, 0.05, session=False)),
    World(name="one session of five −3 %", draw=modes(0.2, 0.03, session=True)),
    World(name="half of the sessions −3 %", draw=modes(0.5, 0.03, session=True)),
    World(name="one run of 20 −30 %", draw=modes(0.05, 0.3, session=False, run=0.007)),
    World(name="heavy tails, t3", draw=heavy(3)),
    World(name="heavy tails, t2", draw=heavy(2)),
    World(name="rates on a grid of 1 %", draw=grid(0.01)),
    World(name="24 queries, each varies 10 %", draw=gauss(0.1 / math.sqrt(24))),
    World(name="24 queries, each varies 30 %", draw=gauss(0.3 / math.sqrt(24))),
    World(name="p90 of 1,000 queries", draw=gauss(0.3 * math.sqrt(0.09 / 1000) / 0.1755)),
    World(
        name="p99 of 1,000 queries, limit 10 %",
        draw=gauss(0.3 * math.sqrt(0.0099 / 1000) / 0.02665),
        limit=0.10,
    ),
    World(
        name="p99 of 1,000 wider queries, limit 10 %",
        draw=gauss(0.6 * math.sqrt(0.0099 / 1000) / 0.02665),
        limit=0.10,
    ),
    World(name="CPU: runs 5 %, limit 20 %", draw=gauss(0.05), cpu=True, limit=0.20),
    World(
        name="CPU: runs 5 %, sessions 10 %, limit 20 %",
        draw=gauss(0.05, 0.10),
        cpu=True,
        limit=0.20,
    ),
    World(
        name="CPU: runs 11 %, sessions 28 %, limit 40 %",
        draw=gauss(0.11, 0.28),
        cpu=True,
        limit=0.40,
    ),
    World(
        name="CPU as measured on 2026-11-22, limit 20 %",
        draw=measured(MEASURED),
        cpu=True,
        limit=0.20,
    ),
    World(name="now a third as noisy, 2.7 to 0.9 %", draw=gauss(0.027, now=1 / 3)),
    World(name="now 3 x as noisy, 0.5 to 1.5 %", draw=gauss(0.005, now=3), promises=FAILS_ONLY),
    World(name="now 3 x as noisy, 0.9 to 2.7 %", draw=gauss(0.009, now=3), promises=FAILS_ONLY),
    World(name="first runs +2 %, both sides", draw=first_runs(0.02, 0.02)),
    World(name="first runs +2 %, baseline only", draw=first_runs(0.02, 0.0)),
    World(name="first run +2 %, now only", draw=first_runs(0.0, 0.02), promises=FAILS_ONLY),
)
"""What is not promised: that an ok of one run holds where the new build varies by more than the
old one, or where only now the first run of a session is another; for the latter the first process
of a session is discarded."""

SOME = tuple(
    World(name=f"{share:.0%} of the processes −{by:.0%}", draw=some_processes(share, by))
    for share, by in ((0.1, 0.3), (0.3, 0.1), (0.5, 0.06))
)
"""Drops that only some processes have, each 3 % on average; nothing is promised of them."""

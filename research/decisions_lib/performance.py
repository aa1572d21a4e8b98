"""How often each rule fails a case whose speed fell by a given share: ours and other tools'."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import fmean

import numpy as np

from decisions_lib import noise as noises
from decisions_lib import others, rule
from decisions_lib.noise import MODELS, Bools, Floats, Noise

SEED = 20261121
DROPS = (0.0, 0.01, 0.02, 0.03, 0.05, 0.10)
SWEEP = tuple(round(0.0025 * step, 4) for step in range(65))
"""Drops of curves and of what is detected 95 % of the time."""

DETECTED = 0.95
ONE_SESSION = "session, baseline of one session"

DAYS, HISTORY, REFERENCES, REPETITIONS, PROCESS_SAMPLES = 30, 10, 5, 10, 5
"""What other tools compare with: days, runs and windows."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is simulated.

    Attributes:
        cases: Cases of each noise model.
        batches: So many times that many for the rate of false alarms, which is small.
        baselines: Baselines whose own rate of false alarms is estimated.
        repeats: Unchanged cases for each of these.
        resampled: Cases for the rule that bootstraps.
        resamples: Of that bootstrap.
    """

    cases: int = 40_000
    batches: int = 10
    baselines: int = 1_000
    repeats: int = 1_000
    resampled: int = 2_000
    resamples: int = 1_000


@dataclass(frozen=True)
class Cell:
    """What rule R says at one drop.

    Attributes:
        found: Share of drops, PROVISIONAL ones among them.
        passed: Share of ok, PROVISIONAL ones among them.
        fail: Share of drops that are final.
        ok: Share of ok that are final.
        runs: Used on average.
        cases: Simulated.
    """

    found: float
    passed: float
    fail: float
    ok: float
    runs: float
    cases: int

    @property
    def inconclusive(self) -> float:
        """The rest."""
        return max(0.0, 1 - self.found - self.passed)


@dataclass(frozen=True, kw_only=True)
class Ours:
    """Rule R under one noise model.

    Attributes:
        cells: By drop; where nothing changed, over many more cases.
        curve: Share of drops found over `SWEEP`, PROVISIONAL ones among them.
        detected: Smallest drop that fails 95 % of the time at the default limit, or None.
        smallest_limit: Smallest limit at which a drop of just that fails 95 % of the time, or None.
        told: Median of what is printed when a baseline is recorded.
        typical_baseline: Rate of false alarms of the median baseline.
        unlucky_baseline: 95th percentile of the rates of false alarms.
    """

    cells: Mapping[float, Cell]
    curve: tuple[float, ...]
    detected: float | None
    smallest_limit: float | None
    told: float
    typical_baseline: float
    unlucky_baseline: float

    @property
    def false_alarms(self) -> float:
        """Share of drops where nothing changed, PROVISIONAL ones among them."""
        return self.cells[0.0].found


def ours(noise: Noise, sessions: Sequence[str], size: Size, stream: int) -> Ours:
    """Return what rule R does under a noise model."""
    rng = np.random.default_rng([SEED, 1, stream])
    base = recorded(noise, sessions, size.cases, rng)
    x1, errors = candidates(noise, (size.cases,), rng)

    def at(drop: float, limit: float = rule.LIMIT, *, final: bool = False) -> rule.Decided:
        return rule.decide(base, x1 + np.log1p(-drop), errors, limit=limit, final=final)

    cells = {drop: cell(at(drop, final=True)) for drop in DROPS if drop}
    curve = tuple(at(drop).found for drop in SWEEP)
    own_limit = (at(drop, drop).found for drop in SWEEP[1:])
    rates = by_baseline(noise, sessions, size, rng)
    return Ours(
        cells={0.0: unchanged(noise, sessions, size, rng), **cells},
        curve=curve,
        detected=first(curve),
        smallest_limit=first((0.0, *own_limit)),
        told=float(np.median(rule.detectable(base))),
        typical_baseline=float(np.median(rates)),
        unlucky_baseline=float(np.percentile(rates, 95)),
    )


def cell(found: rule.Decided) -> Cell:
    """Return the shares of what was decided."""
    fail, ok = found.share(rule.FAIL), found.share(rule.PASS)
    passed = ok + found.share(rule.SEEMS_OK)
    return Cell(
        found=found.found,
        passed=passed,
        fail=fail,
        ok=ok,
        runs=found.mean_runs,
        cases=len(found.runs),
    )


def unchanged(noise: Noise, sessions: Sequence[str], size: Size, rng: np.random.Generator) -> Cell:
    """Return the shares where nothing changed: false alarms are rare and need many cases."""
    batches = []
    for _ in range(size.batches):
        base = recorded(noise, sessions, size.cases, rng)
        x1, errors = candidates(noise, (size.cases,), rng)
        batches.append(cell(rule.decide(base, x1, errors)))
    shares = [field.name for field in fields(Cell) if field.name != "cases"]
    means = {name: fmean(getattr(one, name) for one in batches) for name in shares}
    return Cell(**means, cases=sum(one.cases for one in batches))


def recorded(
    noise: Noise, sessions: Sequence[str], count: int, rng: np.random.Generator
) -> rule.Baselines:
    """Return baselines of one run per entry of `sessions`."""
    x0, errors = noises.runs(noise, rng, (count, len(sessions)))
    names = sorted(set(sessions))
    if noise.session:
        shared = noises.of_sessions(noise, rng, (count, len(names)))
        x0 += shared[:, [names.index(name) for name in sessions]]
    return rule.baselines(x0, errors, sessions)


def candidates(
    noise: Noise, shape: tuple[int, ...], rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """Return log speeds and standard errors of all runs a case may have, in one session."""
    x1, errors = noises.runs(noise, rng, (*shape, rule.RULE.max_runs))
    return x1 + noises.of_sessions(noise, rng, (*shape, 1)), errors


def by_baseline(
    noise: Noise, sessions: Sequence[str], size: Size, rng: np.random.Generator
) -> Floats:
    """Return each baseline's own rate of false alarms: what its owner lives with until the next."""
    base = recorded(noise, sessions, size.baselines, rng)
    pool, pool_errors = noises.runs(noise, rng, (size.cases,))
    rates = np.empty(size.baselines)
    for number in range(size.baselines):
        drawn = rng.integers(len(pool), size=(size.repeats, rule.RULE.max_runs))
        shared = noises.of_sessions(noise, rng, (size.repeats, 1))
        own = base.at(slice(number, number + 1))
        found = rule.decide(own, pool[drawn] + shared, pool_errors[drawn], final=False)
        rates[number] = found.found
    return rates


def first(curve: Sequence[float]) -> float | None:
    """Return the first drop of `SWEEP` from which on the share stays at 95 % or above."""
    low = max((step for step, share in enumerate(curve) if share < DETECTED), default=-1)
    return SWEEP[low + 1] if low + 1 < len(curve) else None


# --- other tools -------------------------------------------------------------------------------


@dataclass(frozen=True)
class World:
    """What the other tools get to see of many cases, at speed 1.

    Attributes:
        before, now: Speeds of the windows of one run, shape (cases, windows).
        beside: The windows of two runs before and two now, measured in turn in one session.
        history: Speeds of earlier runs, one a day, oldest first, shape (cases, days).
        speed: Speed of one run now, shape (cases,).
    """

    before: Floats
    now: Floats
    beside: tuple[Floats, Floats]
    history: Floats
    speed: Floats


def world(noise: Noise, cases: int, rng: np.random.Generator) -> World:
    """Return what a model shows; every day and every run compared is a session of its own."""

    def windows() -> Floats:
        shared = noises.of_sessions(noise, rng, (cases, 1))
        found: Floats = noises.speeds(noise, rng, cases) * np.exp(shared)
        return found

    def two_processes() -> Floats:
        both = [noises.speeds(noise, rng, cases)[:, :PROCESS_SAMPLES] for _ in range(2)]
        return np.concatenate(both, axis=1)

    days, _ = noises.runs(noise, rng, (cases, DAYS))
    history = np.exp(days + noises.of_sessions(noise, rng, (cases, DAYS)))
    before, now = windows(), windows()
    return World(before, now, (two_processes(), two_processes()), history, now.mean(axis=1))


@dataclass(frozen=True)
class Other:
    """Another tool's rule as it is applied.

    Attributes:
        name: What tables call it.
        compares: What with what, in words.
        flags: Whether each case is called a regression, at a drop.
    """

    name: str
    compares: str
    flags: Callable[[World, float], Bools]


def other_rules(size: Size) -> tuple[Other, ...]:
    """Return the other tools' rules."""

    def criterion(seen: World, drop: float) -> Bools:
        some = slice(size.resampled)
        rng = np.random.default_rng([SEED, 3])
        before, now = 1 / seen.before[some], 1 / seen.now[some] / (1 - drop)
        return others.criterion(before, now, rng, resamples=size.resamples)

    def asv(seen: World, drop: float) -> Bools:
        before, now = seen.beside
        return others.asv(1 / before, 1 / now / (1 - drop))

    def google(seen: World, drop: float) -> Bools:
        before, now = repetitions(seen.before), repetitions(seen.now)
        return others.google_benchmark(before, now / (1 - drop))

    def trt(gate: float) -> Callable[[World, float], Bools]:
        return lambda seen, drop: others.tensorrt_llm(
            seen.history, seen.speed * (1 - drop), drop=gate
        )

    return (
        Other(
            "pytest-benchmark mean:5%",
            "1 run with 1",
            lambda seen, drop: others.pytest_benchmark(1 / seen.before, 1 / seen.now / (1 - drop)),
        ),
        Other("asv continuous", "2 x 5 windows with 2 x 5", asv),
        Other(
            "ReFrame -5 %",
            "1 run with the mean of 5",
            lambda seen, drop: others.reframe(
                seen.history[:, -REFERENCES:], seen.speed * (1 - drop)
            ),
        ),
        Other("TensorRT-LLM, before merge 10 %", "1 run with 30 days", trt(0.10)),
        Other("TensorRT-LLM, after merge 5 %", "1 run with 30 days", trt(0.05)),
        Other(
            "Bencher t-test 0.99",
            "1 run with 10",
            lambda seen, drop: others.bencher(seen.history[:, -HISTORY:], seen.speed * (1 - drop)),
        ),
        Other("criterion.rs", "60 windows with 60", criterion),
        Other("Google Benchmark U test", "10 x 6 windows with 10 x 6", google),
        Other(
            "naive Welch test, 1 %",
            "60 windows with 60",
            lambda seen, drop: others.welch(seen.before, seen.now * (1 - drop)),
        ),
    )


def repetitions(speeds: Floats) -> Floats:
    """Return the time of each of ten repetitions that share out the windows of a process."""
    found: Floats = (1 / speeds).reshape(len(speeds), REPETITIONS, -1).mean(axis=2)
    return found


def other_curves(noise: Noise, size: Size, stream: int) -> dict[str, tuple[float, ...]]:
    """Return each other rule's share of flagged cases over `SWEEP`."""
    rng = np.random.default_rng([SEED, 2, stream])
    seen = world(noise, size.cases // 4, rng)
    return {
        other.name: tuple(float(other.flags(seen, drop).mean()) for drop in SWEEP)
        for other in other_rules(size)
    }


def our_settings() -> tuple[tuple[str, Noise, tuple[str, ...]], ...]:
    """Return name, noise and sessions of the baseline of every setting rule R is tried in."""
    last = MODELS[-1]
    return (
        *((noise.name, noise, rule.SESSIONS) for noise in MODELS),
        (ONE_SESSION, last, rule.ONE_SESSION),
    )

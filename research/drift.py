"""Simulate how often a history of sessions raises a false alarm, and how late a true one comes.

    python research/drift.py [--histories 2000]

Prints a table for each noise. Every session looks at the whole history anew, as the command, the
report and the wall do; what is counted is whether any look said that something changed. Beside it,
where its library is installed, E-divisive as in Apache Otava looks at the same histories.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec

from pytest_mlperf.judge.drift import level_changes

Noise = Callable[[random.Random], Iterator[float]]
Look = Callable[[Sequence[float]], bool]

BEFORE, AFTER = 30, 100
"""Sessions before anything changes, and those that look afterwards."""

STEP, WEEKLY, SESSIONS_A_WEEK = 0.03, 0.003, 5


def independent(rng: random.Random, sd: float = 0.009) -> Iterator[float]:
    """Yield normal noise."""
    while True:
        yield rng.gauss(0, sd)


def heavy(rng: random.Random) -> Iterator[float]:
    """Yield Student's t with 3 degrees of freedom, of the same standard deviation."""
    while True:
        chi = sum(rng.gauss(0, 1) ** 2 for _ in range(3))
        yield 0.009 * rng.gauss(0, 1) / math.sqrt(chi / 3) / math.sqrt(3)


def outliers(rng: random.Random) -> Iterator[float]:
    """Yield normal noise with a session of 20 that is 5 to 30 % slow."""
    for noise in independent(rng):
        yield noise - (rng.uniform(0.05, 0.3) if rng.random() < 0.05 else 0)


def modes(rng: random.Random) -> Iterator[float]:
    """Yield two speeds, the slow one 2 % below in 3 sessions of 20."""
    for noise in independent(rng, 0.006):
        yield noise - (0.02 if rng.random() < 0.15 else 0)


def states(rng: random.Random, r: float) -> Iterator[float]:
    """Yield noise whose neighbours are alike: a machine stays in a state for some sessions."""
    state = rng.gauss(0, 0.009)
    while True:
        yield state
        state = r * state + math.sqrt(1 - r * r) * rng.gauss(0, 0.009)


NOISES: dict[str, Noise] = {
    "normal, sd 0.9 %": independent,
    "normal, sd 0.35 %": partial(independent, sd=0.0035),
    "normal, sd 2.2 %": partial(independent, sd=0.022),
    "heavy tails (t3)": heavy,
    "1 of 20 an outlier": outliers,
    "two modes 2 % apart": modes,
    "neighbours alike, r = 0.3": partial(states, r=0.3),
    "neighbours alike, r = 0.6": partial(states, r=0.6),
}


def history(noise: Noise, seed: int, level: Callable[[int], float]) -> list[float]:
    """Return BEFORE + AFTER values; the level is a logarithm by sessions since the change."""
    values = noise(random.Random(seed))
    return [
        100 * math.exp(next(values) + (level(n - BEFORE) if n >= BEFORE else 0))
        for n in range(BEFORE + AFTER)
    ]


def ours(values: Sequence[float]) -> bool:
    """Look at a history with the shipped function."""
    return bool(level_changes(values))


def otava(values: Sequence[float]) -> bool:
    """Look at a history with Apache Otava, as docs recommend its settings."""
    from otava.analysis import compute_change_points

    points, _ = compute_change_points(
        list(values), window_len=50, max_pvalue=0.001, min_magnitude=0.01
    )
    return any(point.index >= 3 and point.index <= len(values) - 3 for point in points)


def alarm(values: Sequence[float], look: Look, until: int = AFTER) -> int | None:
    """Return after how many sessions since the change something is said; None: never."""
    looks = (n for n in range(1, until + 1) if look(values[: BEFORE + n]))
    return next(looks, None)


def flat(since: int) -> float:
    """Nothing changes."""
    del since
    return 0.0


def step(since: int) -> float:
    """Return the logarithm of a lasting step down."""
    del since
    return math.log1p(-STEP)


def ramp(since: int) -> float:
    """Return the logarithm of a loss that grows with every session."""
    return math.log1p(-WEEKLY) * (since + 1) / SESSIONS_A_WEEK


def row(noise: Noise, look: Look, histories: int) -> list[str]:
    """Return false alarms in 100 sessions, steps found within 10, and what a ramp reached."""
    false = sum(alarm(history(noise, seed, flat), look) is not None for seed in range(histories))
    few = max(histories // 4, 50)
    # An alarm before anything happened says nothing of what was found.
    steps = [alarm(history(noise, seed, step), look, 30) for seed in range(few)]
    found = [n for n in steps if n is not None]
    within = sum(n <= 10 for n in found)
    ramps = [alarm(history(noise, seed, ramp), look) for seed in range(few)]
    reached = sorted(-math.expm1(ramp(n - 1)) if n else math.inf for n in ramps)
    return [
        f"{false / histories:.2%}",
        f"{within / few:.1%}",
        f"{statistics.median(found):g}" if found else "-",
        f"{sum(x < STEP for x in reached) / few:.1%}",
        f"{statistics.median(reached):.2%}",
    ]


HEAD = (
    "noise of sessions",
    "rule",
    "false alarms in 100 sessions",
    "3 % step within 10 sessions",
    "median sessions",
    "ramp of 0.3 % a week before 3 %",
    "median when found",
)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=2000)
    parser.add_argument("--noise", choices=list(NOISES), action="append")
    parsed = parser.parse_args()
    rules: dict[str, tuple[Look, int]] = {"ours": (ours, parsed.histories)}
    if find_spec("otava"):
        rules["E-divisive (Otava)"] = (otava, min(parsed.histories, 100))
    print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}")
    for name in parsed.noise or NOISES:
        for rule, (look, histories) in rules.items():
            cells = row(NOISES[name], look, histories)
            print(f"| {' | '.join([name, rule, *cells])} |", flush=True)


if __name__ == "__main__":
    main()

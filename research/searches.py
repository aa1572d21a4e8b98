"""`make searches`: how near a search comes to the true rate, and how often a verdict on it errs.

One server with a queue is simulated, offered the same arrivals in every run, as LoadGen's seed
does. Its speed differs from session to session and from run to run, some runs are disturbed by
a stall, and what one sample takes may be random. The searches and the verdicts are those that ship.
"""

from __future__ import annotations

import argparse
import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean, geometric_mean, median, pstdev

import numpy as np
from numpy.typing import NDArray

from pytest_mlperf.core.metrics import METRICS
from pytest_mlperf.core.noise import uncalibrated
from pytest_mlperf.core.search import (
    Condition,
    NoRate,
    SearchOutcome,
    SearchPlan,
    SearchRun,
    first_search_step,
    next_rate,
    search_entry,
    search_outcome,
)
from pytest_mlperf.judge.decision import Answer
from pytest_mlperf.judge.inputs import Direction, SessionNoise
from pytest_mlperf.judge.rule_r import RuleR, Value, judge

SERVED = 100.0
"""Samples a second that the server works off."""

SECONDS = 60.0
"""Length of a run: that of the quick profile."""

CONDITION = Condition(metric="latency_p99", below=0.2)

LIMIT = METRICS["throughput"].limit

SEED = 20_261_121


@dataclass(frozen=True, kw_only=True)
class Machine:
    """How unsteady a machine is.

    Attributes:
        name: In the table.
        rule: What rule R expects of it.
        of_run, of_session: Relative standard deviations of its speed.
        stalls: Share of runs with a stall.
        stall_s: Its length, seconds.
        of_sample: Coefficient of variation of what one sample takes; 0: all take the same.
    """

    name: str
    rule: RuleR
    of_run: float
    of_session: float
    stalls: float = 0.0
    stall_s: float = 1.5
    of_sample: float = 0.0


# The sessions of these machines differ by nothing, and that is known of them.
ALIKE = SessionNoise(ratio=0.0, df=20.0)
GPU, CPU = (replace(rule, session_noise=ALIKE) for rule in (RuleR(), uncalibrated("cpu").rule(5)))

MACHINES = (
    Machine(name="no noise", rule=GPU, of_run=0.0, of_session=0.0),
    Machine(name="GPU", rule=GPU, of_run=0.006, of_session=0.0035),
    Machine(name="GPU, stalls in 2 %", rule=GPU, of_run=0.006, of_session=0.0035, stalls=0.02),
    Machine(name="samples vary by 30 %", rule=GPU, of_run=0.0, of_session=0.0, of_sample=0.3),
    Machine(name="GPU, samples 30 %", rule=GPU, of_run=0.006, of_session=0.0035, of_sample=0.3),
    Machine(name="samples vary by 100 %", rule=GPU, of_run=0.0, of_session=0.0, of_sample=1.0),
    Machine(name="GPU, samples 100 %", rule=GPU, of_run=0.006, of_session=0.0035, of_sample=1.0),
    Machine(name="CPU", rule=CPU, of_run=0.02, of_session=0.012),
    Machine(name="CPU, stalls in 5 %", rule=CPU, of_run=0.02, of_session=0.012, stalls=0.05),
)


@cache
def _arrivals() -> NDArray[np.float64]:
    """Return the times of arrival at one a second, as a seed fixes them."""
    gaps = np.random.default_rng(SEED).exponential(size=20_000)
    return np.cumsum(gaps)


def latency_s(
    rate: float,
    served: float,
    stall: tuple[float, float] = (0.0, 0.0),
    works: NDArray[np.float64] | None = None,
) -> float:
    """Return the p99 latency of a run, seconds.

    Args:
        rate: Offered samples/s.
        served: What the server works off, samples/s.
        stall: When the server stands still, and for how long, seconds.
        works: What each sample takes, relative to the mean; None: all take the same.

    Departures follow from Lindley's recursion, d_i = max(a_i, d_(i-1)) + s_i, in closed form.
    """
    arrivals = _arrivals()[: max(662, round(rate * SECONDS))] / rate
    begin_s, long_s = stall
    # A server that stands still does to those that come meanwhile what their later arrival does.
    held = np.where((arrivals >= begin_s) & (arrivals < begin_s + long_s), begin_s + long_s, 0.0)
    took = np.ones(len(arrivals)) if works is None else works[: len(arrivals)]
    done = np.cumsum(took) / served
    places = done - took / served
    departures = np.maximum.accumulate(np.maximum(arrivals, held) - places) + done
    return float(np.percentile(departures - arrivals, 99))


def _works(of_sample: float, seed: int) -> NDArray[np.float64] | None:
    """Return what samples take, relative to the mean; None where all take the same."""
    if not of_sample:
        return None
    shape = 1 / of_sample**2
    return np.random.default_rng(seed).gamma(shape, 1 / shape, size=len(_arrivals()))


@cache
def truth(of_sample: float = 0.0) -> float:
    """Return the highest rate that holds the condition without noise, samples/s.

    Where samples take random times, it is that of the median latency of 101 runs.
    """
    works = [_works(of_sample, SEED - n) for n in range(101 if of_sample else 1)]
    low, high = 0.1 * SERVED, 3 * SERVED
    for _ in range(20 if of_sample else 50):
        middle = math.sqrt(low * high)
        took = median(latency_s(middle, SERVED, works=each) for each in works)
        low, high = (middle, high) if took < CONDITION.below else (low, middle)
    return low


class Session:
    """One session on a machine: its speed, and the searches made in it."""

    def __init__(self, machine: Machine, random_: random.Random, *, scale: float = 1.0) -> None:
        """Draw the session's speed; `scale` is that of the build."""
        self._machine, self._random = machine, random_
        self._served = SERVED * scale * math.exp(random_.gauss(0, machine.of_session))

    def search(self, plan: SearchPlan) -> SearchOutcome:
        """Search once.

        Raises:
            NoRate: None was found.
        """
        tries: list[SearchRun] = []
        while (rate := next_rate(tries, plan)) is not None:
            served = self._served * math.exp(self._random.gauss(0, self._machine.of_run))
            stalls = self._random.random() < self._machine.stalls
            when = self._random.uniform(0, SECONDS)
            stall = (when, self._machine.stall_s if stalls else 0.0)
            works = _works(self._machine.of_sample, self._random.getrandbits(64))
            took = latency_s(rate, served, stall, works)
            tries.append(search_entry(rate, {CONDITION.metric: took}, [CONDITION]))
        return search_outcome(tries, plan, CONDITION.in_words)


def near(rates: Sequence[float]) -> SearchPlan:
    """Return a search from rates that were found before."""
    mean = geometric_mean(rates)
    return SearchPlan(start=mean, step=first_search_step(LIMIT))


def baseline(machine: Machine, random_: random.Random) -> list[tuple[SearchOutcome, str]]:
    """Return the searches of a baseline, four sessions of two."""
    made: list[tuple[SearchOutcome, str]] = []
    while len(made) < 8:
        session = Session(machine, random_)
        for _ in range(2):
            rates = [found.rate for found, _ in made]
            # A first start may be off by up to a factor of two either way.
            start = truth(machine.of_sample) * math.exp(random_.uniform(-math.log(2), math.log(2)))
            plan = near(rates) if rates else SearchPlan(start=start)
            made.append((session.search(plan), f"session {len(made) // 2}"))
    return made


def verdict(
    machine: Machine,
    before: Sequence[tuple[SearchOutcome, str]],
    random_: random.Random,
    scale: float,
) -> tuple[Answer, list[SearchOutcome]]:
    """Return what rule R says of a build, and the searches that it took."""
    session = Session(machine, random_, scale=scale)
    old = [Value(value=f.rate, within_se=f.standard_error, session=s) for f, s in before]
    found: list[SearchOutcome] = []
    while True:
        found.append(session.search(near([f.rate for f, _ in before] + [f.rate for f in found])))
        now = [Value(value=f.rate, within_se=f.standard_error, session="now") for f in found]
        direction = Direction.HIGHER
        judged = judge(old, now, direction=direction, limit=LIMIT, rule=machine.rule)
        if judged.outcome is not Answer.MORE:
            return judged.outcome, found


@dataclass(frozen=True, kw_only=True)
class Row:
    """What was found about a machine.

    Attributes:
        machine: Which.
        first_runs, further_runs: Mean runs of the first search, and of one near a known rate.
        reached: Share of all searches that reached their precision.
        bias, sd, p95: Of the rate found against the true one: mean, standard deviation, and what
            95 % of the searches stay below, as logarithms.
        lost: Sessions in which a search found no rate.
        words: By the speed of the build, the share of sessions that ended in each decision.
        searches: Mean searches of an unchanged build until its verdict.
    """

    machine: Machine
    first_runs: float
    further_runs: float
    reached: float
    bias: float
    sd: float
    p95: float
    lost: int
    words: dict[float, Counter[Answer]]
    searches: float


def study(machine: Machine, sessions: int, scales: Sequence[float]) -> Row:
    """Return what so many sessions show, each against a baseline of its own."""
    words: dict[float, Counter[Answer]] = {scale: Counter() for scale in scales}
    first: list[SearchOutcome] = []
    further: list[SearchOutcome] = []
    errors: list[float] = []
    counts: list[int] = []
    lost = 0
    for number in range(sessions):
        random_ = random.Random(SEED + number)
        try:
            before = baseline(machine, random_)
            first.append(before[0][0])
            further += [found for found, _ in before[1:]]
            errors += [math.log(found.rate / truth(machine.of_sample)) for found, _ in before]
            for scale in scales:
                decision, found = verdict(machine, before, random_, scale)
                words[scale][decision] += 1
                counts += [len(found)] * (scale == 1)
                further += found if scale == 1 else []
        except NoRate:
            lost += 1
    every = [*first, *further]
    return Row(
        machine=machine,
        first_runs=fmean(len(found.tried) for found in first),
        further_runs=fmean(len(found.tried) for found in further),
        reached=fmean(found.reached for found in every),
        bias=fmean(errors),
        sd=pstdev(errors),
        p95=sorted(map(abs, errors))[int(0.95 * len(errors))],
        lost=lost,
        words=words,
        searches=fmean(counts) if counts else 0.0,
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-n", type=int, default=500, help="sessions of each row (default 500)")
    count = parser.parse_args().n
    scales = (1.0, 0.97, 0.95)
    print(f"{count} sessions each; {SECONDS:.0f} s a run, {CONDITION.in_words}; limit −{LIMIT:.0%}")
    print(
        "machine               runs first/further  reached  rate found: bias     sd    95 %"
        "  unchanged: FAIL  PASS  searches  −3 %: PASS  −5 %: FAIL  lost"
    )
    for machine in MACHINES:
        row = study(machine, count, scales)
        done = {scale: max(1, words.total()) for scale, words in row.words.items()}

        def share(
            scale: float, decision: Answer, row: Row = row, done: dict[float, int] = done
        ) -> str:
            return f"{row.words[scale][decision] / done[scale]:.1%}"

        print(
            f"{machine.name:21s} {row.first_runs:10.1f} /{row.further_runs:5.1f} "
            f"{row.reached:9.1%} {row.bias:+17.2%} {row.sd:6.2%} {row.p95:7.2%}"
            f"{share(1, Answer.FAIL):>17} {share(1, Answer.PASS):>5} {row.searches:9.2f}"
            f"{share(0.97, Answer.PASS):>12} {share(0.95, Answer.FAIL):>11} {row.lost:5d}"
        )


if __name__ == "__main__":
    main()

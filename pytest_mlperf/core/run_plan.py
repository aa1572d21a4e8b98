"""How to measure, given the noise: how long a run, how many, and was the machine steady?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from pytest_mlperf.core.judge.quantiles import t_isf
from pytest_mlperf.core.judge.rule_r import Value, minimum_detectable_change
from pytest_mlperf.core.metrics import METRICS, Direction
from pytest_mlperf.core.noise import Noise, Series, moderated, spread
from pytest_mlperf.core.noise_fit import FLOOR_SD

SHORTEST_S, LONGEST_S = 1.0, 600.0
"""Run lengths that are recommended: MLPerf's own is the upper one."""

FEWEST_RUNS, MOST_RUNS, USUAL_RUNS = 3, 8, 5
"""K that is recommended: with 2 one disturbed run decides, beyond 8 hardly anything is gained."""

_DRIFT = 0.001
"""Chance of a warning of drift where there is none, if the runs are independent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Drift:
    """How much faster or slower all cases together became during a session.

    Attributes:
        change: Relative change from the session's first round to its last; below 0 is slower.
        proven: It is more than chance explains.
    """

    change: float
    proven: bool


def best_length(
    runs: Sequence[Value], noise: Noise, *, length_s: float, start_s: float
) -> float | None:
    """Return how long a run should be so that a wanted change is proven in the least time, seconds.

    k runs of L seconds take k·(c0 + L) and vary by (b² + a/L)/k, where a/L is what varies inside of
    one: for a given precision the time is least at L* = √(a·c0)/b.

    Args:
        runs: A/A runs, with their standard errors inside.
        noise: The noise of the accelerator: b is drawn towards it.
        length_s: How long these runs were (a is their within_se² times this).
        start_s: What a run costs beside that: process, loading, warm-up (c0).

    Returns:
        Between `SHORTEST_S` and `LONGEST_S`; None where what varies inside a run is unknown.
    """
    found = spread(runs)
    if found is None or not found.within:
        return None
    of_runs = (1 - noise.session_share) * moderated(found, noise) - found.within
    wanted = math.sqrt(found.within * length_s * start_s / max(of_runs, FLOOR_SD**2))
    return min(max(wanted, SHORTEST_S), LONGEST_S)


def most_runs(gated: Sequence[tuple[Sequence[Value], float]], noise: Noise) -> int:
    """Return the fewest runs at most (K) with which every limit can be proven that ever can.

    Args:
        gated: Baseline runs and limit, as a share, of each gated metric.
        noise: The noise of the accelerator.

    Returns:
        K; the usual one where no limit can be proven.
    """
    last = noise.rule(MOST_RUNS)
    able = [one for one in gated if minimum_detectable_change(one[0], rule=last) <= one[1]]
    if not able:
        return USUAL_RUNS
    for runs in range(FEWEST_RUNS, MOST_RUNS):
        rule = noise.rule(runs)
        if all(minimum_detectable_change(sample, rule=rule) <= limit for sample, limit in able):
            return runs
    return MOST_RUNS


def drift(series: Sequence[Series], session: str) -> Drift | None:
    """Return how all cases together drifted during a session, or None: too few runs to tell.

    A least-squares slope over the rounds, common to all cases: each metric is weighed by its own
    variance, and only one metric of a case counts.

    Args:
        series: The runs; those of other sessions are left out.
        session: Which session.
    """
    weighted = slopes = squares = 0.0
    df = -1
    for one in {each.case: each for each in reversed(series)}.values():
        sign = 1 if METRICS[one.metric].direction is Direction.HIGHER else -1
        logs = [sign * math.log(run.value) for run in one.runs if run.session == session]
        if len(logs) < 3:
            continue
        mean, last = fmean(logs), len(logs) - 1
        variance = max(math.fsum((x - mean) ** 2 for x in logs) / last, FLOOR_SD**2)
        places = [index / last - 0.5 for index in range(len(logs))]
        weighted += math.fsum(x * y for x, y in zip(places, logs, strict=True)) / variance
        slopes += math.fsum(x * x for x in places) / variance
        squares += math.fsum((y - mean) ** 2 for y in logs) / variance
        df += last
    if df < 2:
        return None
    slope = weighted / slopes
    left = max(squares - weighted * slope, 1e-12) / df
    proven = abs(slope) / math.sqrt(left / slopes) > t_isf(_DRIFT / 2, df)
    return Drift(change=math.expm1(slope), proven=proven)

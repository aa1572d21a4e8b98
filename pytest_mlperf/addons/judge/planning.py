"""Plan interleaved runs of two builds on one host, from the noise in result files."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import fmean, median
from typing import NamedTuple

from pytest_mlperf.addons.judge.judging import RULE, points_by_case
from pytest_mlperf.addons.judge.model import ToolRun
from pytest_mlperf.addons.judge.points import PointCase
from pytest_mlperf.addons.judge.rows import Settings
from pytest_mlperf.extension import duration, percent
from pytest_mlperf.judge.formulas import bound_of, t_isf

MAX_PAIRS = 200


class Plan(NamedTuple):
    """Hold the number of run pairs needed to decide on a metric; None if more than `MAX_PAIRS`.

    `sd`: relative standard deviation within sessions; `df`: its degrees of freedom, 0 if assumed.
    """

    point: str
    metric: str
    pairs: int | None
    limit: float
    sd: float
    df: int


def plans(runs: Sequence[ToolRun], settings: Settings) -> list[Plan]:
    """Return the plan of each metric that would be judged, the one with the most pairs first."""
    cases = points_by_case(runs, settings).items()
    tasks = [task for key, of in cases for task in PointCase(key, of, of, settings).tasks]
    planned = []
    for task in tasks:
        sessions: dict[str, list[float]] = defaultdict(list)
        for value in task.old:
            sessions[value.session].append(math.log(value.value))
        squares = math.fsum((x - fmean(xs)) ** 2 for xs in sessions.values() for x in xs)
        df = len(task.old) - len(sessions)
        sd, limit = math.sqrt(RULE.inside_sessions(squares, df)[0]), task.row.limit or 0.0
        bound = -bound_of(task.row.quantity.direction, limit)
        pairs = needed_pairs(sd, bound, len(tasks))
        planned.append(Plan(task.row.point, task.row.metric, pairs, limit, sd, df))
    return sorted(planned, key=lambda plan: -(plan.pairs or MAX_PAIRS + 1))


def needed_pairs(sd: float, bound: float, metrics: int) -> int | None:
    """Return the number of pairs that prove or exclude a log change `bound`; None if too many.

    Smallest n with (t(alpha/m, n-1) + t(beta, n-1)) · √2·sd / √n ≤ bound, for m `metrics`.
    """
    for pairs in range(2, MAX_PAIRS + 1):
        quantiles = t_isf(RULE.alpha / max(metrics, 1), pairs - 1) + t_isf(RULE.beta, pairs - 1)
        if quantiles * math.sqrt(2 / pairs) * sd <= bound:
            return pairs
    return None


def pairs_text(planned: Sequence[Plan]) -> str:
    """Return how many pairs of runs decide on all metrics, as text; "" if none is planned."""
    if not planned:
        return ""
    point, metric, pairs, limit, sd, _ = planned[0]
    target = f"{metric} at {point} (runs vary by {percent(sd)})"
    if pairs is None:
        return (
            f"more than {MAX_PAIRS} pairs needed: {target} is too noisy for its limit of "
            f"{percent(limit)}; leave the metric out (--metrics), or widen its limit (--limit)"
        )
    drop = f"a drop of {percent(limit)}"
    return f"{pairs} pairs of runs prove or exclude {drop}; {target} needs the most of all metrics"


def schedule(runs: Sequence[ToolRun], settings: Settings) -> Iterator[str]:
    """Yield the plan as lines of text: number of pairs, order of runs, and time needed."""
    if not (planned := plans(runs, settings)):
        yield "no metric in these files can be judged, so there is nothing to plan"
        return
    _, _, pairs, _, sd, df = planned[0]
    if not df:
        yield (
            f"each session has one run, so the noise is assumed to be {percent(sd)}; give repeated "
            "runs of one build for a better plan"
        )
    yield pairs_text(planned)
    if pairs is None:
        return
    order = " ".join("A B" if pair % 2 == 0 else "B A" for pair in range(pairs))
    yield f"run the old build (A) and the new one (B) on one host, in this order: {order}"
    if seconds := [run.duration_s for run in runs if run.duration_s]:
        total = 2 * pairs * median(seconds)
        yield f"measuring takes about {duration(total)}, by the runs in these files"
    yield (
        "then: pytest-mlperf judge B/* --against A/*; it takes the order from the time stamps in "
        "the files, and the verdict is final on the same day"
    )

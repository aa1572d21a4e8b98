"""Rule R on the scale of the values themselves: error rates, temperatures, whatever can reach 0."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytest_mlperf.core.judge.rule_r import Judged, RuleR, Value, walk
from pytest_mlperf.core.metrics import Direction


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading(Value):
    """One metric of one run where 0 and below are ordinary values.

    Attributes:
        value: In the metric's unit.
        within_se: Standard error inside the run in the same unit, 0 when unknown.
        session: Id of the session that made the run; runs of one id share an effect.

    Raises:
        ValueError: A number is not finite, or out of range.
    """

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise ValueError(f"a run's value is {self.value!r}; it must be finite")
        if not 0 <= self.within_se < math.inf:
            raise ValueError(
                f"a run's within_se is {self.within_se!r}; it must be finite and at least 0"
            )


def judge_linear(
    baseline: Sequence[Reading],
    runs: Sequence[Reading],
    *,
    direction: Direction,
    limit: float,
    rule: RuleR,
) -> Judged:
    """Judge runs by their differences, not by their ratios; otherwise as `rule_r.judge`.

    A ratio says nothing of a value that may be 0: 1 error in a million after none is no infinite
    worsening.

    Args:
        baseline: At least one run.
        runs: At least one run, each of a fresh process, oldest first.
        direction: Which way the metric gets better.
        limit: Smallest change that matters, in the metric's unit.
        rule: The settings; `prior_sd` and `floor_sd` are in the metric's unit, so the defaults,
            which are shares, do not fit.

    Returns:
        Change, interval, limit, standard deviation and smallest detectable change in the unit.

    Raises:
        ValueError: There is nothing to compare, or the limit is out of range.
    """
    if not baseline or not runs:
        raise ValueError(f"nothing to compare: {len(baseline)} baseline runs and {len(runs)} runs")
    if not 0 < limit < math.inf:
        raise ValueError(f"the largest change is {limit!r}; it must be finite and above 0")
    sign = 1 if direction is Direction.HIGHER else -1
    found = walk(baseline, runs, lambda run: sign * run.value, -limit, rule)
    low, high = sorted((sign * found.low, sign * found.high))
    return replace(found, change=sign * found.change, low=low, high=high)

"""Was the machine as it was: clocks, power and the fixed micro-benchmark, beside the baseline's."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from pytest_mlperf.core.baseline import BaselineRun
from pytest_mlperf.core.clocks import CAP, CLOCK, clocks_moved
from pytest_mlperf.core.control import (
    DEVIATIONS,
    FEWEST,
    FLOOR_CPU,
    FLOOR_GPU,
    LIBRARY,
    MATMUL,
    PRIOR_DF,
    QUANTITIES,
)
from pytest_mlperf.core.measurement import Run
from pytest_mlperf.core.metrics import SAMPLES_PER_JOULE
from pytest_mlperf.core.numbers import change, percent

POWER = 0.03
"""Mean power that differs by less is told as unchanged."""


@dataclass(frozen=True, kw_only=True)
class Beside:
    """A quantity of the machine now, beside the baseline's.

    Attributes:
        says: Both in words.
        share: Relative change.
        differs: By more than one expects.
        beyond: By more than chance allows.
    """

    says: str
    share: float
    differs: bool
    beyond: bool = False


def clocks(runs: Sequence[Run], baseline: Sequence[BaselineRun]) -> Beside | None:
    """Return SM clock and power cap; None where one side was not sampled."""
    now, before = (
        [run.state for run in side if run.state.get(CLOCK, 0.0) > 0] for side in (runs, baseline)
    )
    if not now or not before:
        return None
    here, there = (median(state[CLOCK] for state in side) for side in (now, before))
    found = clocks_moved(now, before)
    return Beside(
        says=found or f"SM clock {here:.0f} MHz, {there:.0f} MHz in the baseline",
        share=here / there - 1,
        differs=found is not None,
    )


def cap_compared(runs: Sequence[Run], baseline: Sequence[BaselineRun]) -> bool:
    """Whether both sides know for how long the power limit held the clocks back."""
    return all(any(CAP in run.state for run in side) for side in (runs, baseline))


def power(runs: Sequence[Run], baseline: Sequence[BaselineRun]) -> Beside | None:
    """Return the mean power of the accelerators in the timed part; None where it is not known.

    Joules are samples / (samples per joule), which baselines keep; watts are joules / seconds.
    """
    now, before = (
        [watts for run in side if (watts := _watts(run)) is not None] for side in (runs, baseline)
    )
    if not now or not before:
        return None
    here, there = (math.exp(fmean(map(math.log, side))) for side in (now, before))
    logs = [math.log(watts) for watts in before]
    spread = math.sqrt(fmean((x - fmean(logs)) ** 2 for x in logs))
    share = here / there - 1
    return Beside(
        says=f"mean power {here:,.0f} W, {there:,.0f} W in the baseline ({change(share)})",
        share=share,
        differs=abs(share) > max(POWER, 2 * spread),
    )


def _watts(run: Run | BaselineRun) -> float | None:
    per_joule = run.metrics.get(SAMPLES_PER_JOULE, 0.0)
    if per_joule <= 0 or run.samples <= 0 or run.duration_s <= 0:
        return None
    watts = run.samples / per_joule / run.duration_s
    return watts if 0 < watts < math.inf else None


def control(
    runs: Sequence[Run], baseline: Sequence[BaselineRun], accelerator: str
) -> Iterator[Beside]:
    """Yield each figure of the micro-benchmark that both sides have.

    It differs where it is off by more than one standard deviation of such a comparison, beyond
    chance by more than four: `pytest_mlperf.core.control.slow` has the formula.
    """
    floor = FLOOR_CPU if accelerator == "cpu" else FLOOR_GPU
    latest = next((run.control for run in reversed(runs) if run.control), None)
    for what, (name, _) in QUANTITIES.items():
        now = _logs([run.control for run in runs], what, latest)
        before = _logs([run.control for run in baseline], what, latest)
        if not now or len(before) < FEWEST:
            continue
        squares = math.fsum((x - fmean(before)) ** 2 for x in before)
        variance = (PRIOR_DF * floor**2 + squares) / (PRIOR_DF + len(before) - 1)
        sd = max(floor, math.sqrt(variance))
        off = median(now) - fmean(before)
        size = abs(off) / (sd * math.sqrt(1 + 2 / len(before)))
        within = "beyond" if size > DEVIATIONS else "within"
        share = math.expm1(min(off, 700.0))
        yield Beside(
            says=(
                f"the machine's own speed: {name} {change(share)} of the baseline's, {within} "
                f"its spread ({percent(sd)})"
            ),
            share=share,
            differs=size > 1,
            beyond=size > DEVIATIONS,
        )


def _logs(
    controls: Sequence[Mapping[str, float]], what: str, latest: Mapping[str, float] | None
) -> list[float]:
    """Return logarithms of a figure; products by another library than now's are left out."""
    library = latest.get(LIBRARY) if latest else None
    return [
        math.log(found[what])
        for found in controls
        if 0 < found.get(what, 0.0) < math.inf and (what != MATMUL or found.get(LIBRARY) == library)
    ]

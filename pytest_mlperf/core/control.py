"""Check by a micro-benchmark and GPU clocks whether the machine's own speed has changed.

The micro-benchmark ("control", a matrix product and a copy) runs before every run. If its result
has changed, the machine has, and the build is not judged. Unlocked clocks vary with heat and power.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from pytest_mlperf.core.notes import Note
from pytest_mlperf.core.numbers import Count, NotNegative, Number, Positive

Control = Mapping[str, Positive]
"""Results of the micro-benchmark, each positive; empty if it was not made.

matmul_flops: operations of the matrix product [FLOP/s].
copy_bytes_per_s: bytes read plus bytes written by the copy [B/s].
matmul_library: checksum of the library and its settings; others are not compared.
peer_bytes_per_s: copy between the memories of two GPUs, slowest pair [B/s]."""

MATMUL, COPY, LIBRARY = "matmul_flops", "copy_bytes_per_s", "matmul_library"
PEER = "peer_bytes_per_s"

QUANTITIES = {
    MATMUL: ("matrix product", "FLOP/s"),
    COPY: ("copy", "B/s"),
    PEER: ("copy between GPUs", "B/s"),
}

FLOOR_GPU = 0.0075
"""Smallest relative standard deviation of a GPU: an expected 0.5 % times 1.5."""

FLOOR_CPU = 0.07
"""Smallest relative standard deviation of a CPU: an expected 5 % times 1.4."""

FLOOR_PEER = 0.03
"""The same of copies between GPUs, on any path: an expected 2 % times 1.5."""

DEVIATIONS = 4.0
"""Standard deviations beyond which a difference is not chance."""

PRIOR_DF = 4.0
"""Weight of the floor in the variance, in degrees of freedom."""

MIN_SPREAD_RUNS = 2

_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True, kw_only=True)
class ControlComparison:
    """Compare one figure of the micro-benchmark with the baseline's.

    Attributes:
        quantity: Name of the figure, a key of `Control`.
        now: Median of this session.
        baseline: Geometric mean of the baseline runs.
        sd: Estimated relative standard deviation of one value.
        baseline_values: Number of values in the baseline.
    """

    quantity: str
    now: Positive
    baseline: Positive
    sd: NotNegative
    baseline_values: Count = MIN_SPREAD_RUNS

    @property
    def share(self) -> float:
        """Relative change of this session from the baseline: `now` / `baseline` - 1."""
        return self.now / self.baseline - 1

    @property
    def faster(self) -> bool:
        """Whether the machine is now faster than it was for the baseline."""
        return self.now > self.baseline

    @property
    def deviations(self) -> float:
        """Absolute log change of the figure, in standard deviations of an unchanged machine."""
        off = abs(math.log(self.now) - math.log(self.baseline))
        return off / (self.sd * math.sqrt(1 + 2 / self.baseline_values))

    @property
    def is_significant(self) -> bool:
        """Whether the difference exceeds `DEVIATIONS` standard deviations."""
        return self.deviations > DEVIATIONS

    @property
    def min_detectable_slowdown(self) -> float:
        """Minimum detectable slowdown of the machine (`DEVIATIONS` standard errors), as a share."""
        return -math.expm1(-DEVIATIONS * self.sd * math.sqrt(1 + 2 / self.baseline_values))

    @property
    def note(self) -> Note:
        """Note on both values of the figure, their difference, and its normal variation."""
        values = {"now": self.now, "baseline": self.baseline, "change": self.share, "sd": self.sd}
        return Note.of("machine_moved", quantity=self.quantity, **values)


def compared(
    current: Sequence[Control], baseline: Sequence[Control], *, floor: float
) -> tuple[ControlComparison, ...]:
    """Compare each figure of the micro-benchmark that session and baseline have.

    With x = log(value) and n0 baseline values, d = median(x now) − mean(x baseline) is significant
    if |d| > 4 · s · sqrt(1 + 2/n0), where s² = (ν0 floor² + Σ(x − mean)²) / (ν0 + n0 − 1), s ≥
    floor. Values of one session are not independent: those now count as one value (1), those of
    the baseline as pairs (2/n0), for its usual two runs per session.

    By simulation (tests/core/test_control.py) with 8 baseline values of 4 sessions and 1 to 5
    values now, where 25 or 60 % of the variance is between sessions and the noise is 0.5 % (GPU) or
    5 % (CPU): an unchanged machine is reported as changed in 0 of 80,000 sessions with normal
    noise, and in 0.11 to 0.22 % with Student's t of 3 degrees of freedom. A machine that is slower
    in both figures is detected in 95 % of the sessions from 3.7 % (CPU: 30 %) on.

    Source: moderated variance after G. K. Smyth (2004), doi:10.2202/1544-6115.1027.
    """
    comparisons = []
    for quantity in QUANTITIES:
        mine, theirs = _comparable(quantity, current, baseline)
        if not mine or len(theirs) < MIN_SPREAD_RUNS:
            continue
        middle = fmean(theirs)
        least = max(floor, FLOOR_PEER) if quantity == PEER else floor
        squares = math.fsum((x - middle) ** 2 for x in theirs)
        variance = (PRIOR_DF * least**2 + squares) / (PRIOR_DF + len(theirs) - 1)
        comparisons.append(
            ControlComparison(
                quantity=quantity,
                now=math.exp(median(mine)),
                baseline=math.exp(middle),
                sd=max(least, math.sqrt(variance)),
                baseline_values=len(theirs),
            )
        )
    return tuple(comparisons)


def min_relative_sd(accelerator: str) -> float:
    """Return the lowest relative sd of the micro-benchmark to assume for this accelerator."""
    return FLOOR_CPU if accelerator == "cpu" else FLOOR_GPU


def most_significant(comparisons: Sequence[ControlComparison]) -> ControlComparison | None:
    """Return the largest change, in standard deviations; None if no comparison is significant."""
    worst = max(comparisons, key=lambda figure: figure.deviations, default=None)
    return worst if worst and worst.is_significant else None


def steady(comparisons: Sequence[ControlComparison]) -> bool | None:
    """Return whether no micro-benchmark figure changed significantly; None if none was compared."""
    return most_significant(comparisons) is None if comparisons else None


def cannot_say(current: Sequence[Control], baseline: Sequence[Control]) -> Note | None:
    """Return why micro-benchmarks cannot be compared, e.g. too few runs; None if they can."""
    if not any(current):
        return Note.of("control_not_run")
    if sum(map(bool, baseline)) < MIN_SPREAD_RUNS:
        return Note.of("control_few", needed=MIN_SPREAD_RUNS)
    if len(_comparable(MATMUL, current, baseline)[1]) < MIN_SPREAD_RUNS:
        return Note.of("control_library")
    return None


def _comparable(
    quantity: str, current: Sequence[Control], baseline: Sequence[Control]
) -> tuple[list[float], list[float]]:
    mine = [control for control in current if quantity in control]
    theirs = [control for control in baseline if quantity in control]
    if quantity == MATMUL and mine:
        library = mine[-1].get(LIBRARY)
        mine, theirs = (
            [control for control in side if control.get(LIBRARY) == library]
            for side in (mine, theirs)
        )
    return [math.log(c[quantity]) for c in mine], [math.log(c[quantity]) for c in theirs]


def with_prefix(value: float, unit: str) -> str:
    """Return a value with three digits and a prefix of its unit: "1.45 TFLOP/s"."""
    rounded = float(f"{value:.3g}")
    factor, prefix = next((each for each in _PREFIXES if rounded >= each[0]), (1.0, ""))
    digits = f"{value / factor:#.3g}".removesuffix(".")
    return f"{digits} {prefix}{unit}"


State = Mapping[str, Number]
"""State of a run's GPUs in its window (the most throttled): sm_mhz and memory_mhz, median clocks
[MHz]; temperature_c, the highest [°C]; power_cap_share, part of the window at the power limit."""

CLOCK, CAP, HEAT = "sm_mhz", "power_cap_share", "temperature_c"

CLOCK_OFF = 0.015
"""Relative change of the SM clock that is reported, and excluded for locked clocks."""

CAP_OFF = 0.10
"""Change of `power_cap_share` from which it is reported."""


def clock_changes(current: Sequence[State], baseline: Sequence[State]) -> Note | None:
    """Return a note on notable changes of clocks and power cap since the baseline, or None."""
    clock, cap, heat = (_both(name, current, baseline) for name in (CLOCK, CAP, HEAT))
    moves = []
    if clock and abs(clock[0] / clock[1] - 1) > CLOCK_OFF:
        moves.append(Note.of("clock_change", change=clock[0] / clock[1] - 1))
    if cap and (moves or abs(cap[0] - cap[1]) > CAP_OFF):
        moves.append(Note.of("cap_change", old=cap[1], new=cap[0]))
    if moves and heat:
        moves.append(Note.of("heat_change", rise_c=heat[0] - heat[1]))
    return Note.of("clocks_moved", moves=tuple(moves)) if moves else None


def locked_clock_change(
    current: Sequence[State], baseline: Sequence[State], clock_setting: object
) -> Note | None:
    """Return a note if a locked SM clock changed; None if equal, unknown or not locked ("free")."""
    both = _both(CLOCK, current, baseline)
    if clock_setting in (None, "free") or both is None or abs(both[0] / both[1] - 1) <= CLOCK_OFF:
        return None
    return Note.of("locked_clock", now=both[0], baseline=both[1], change=both[0] / both[1] - 1)


def _both(
    name: str, current: Sequence[State], baseline: Sequence[State]
) -> tuple[float, float] | None:
    mine = [state[name] for state in current if name in state]
    theirs = [state[name] for state in baseline if name in state]
    if not mine or not theirs or (name == CLOCK and not median(theirs) > 0):
        return None
    return median(mine), median(theirs)

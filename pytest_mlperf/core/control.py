"""Was the machine as when the baseline was recorded: by a fixed micro-benchmark, and its clocks.

The benchmark ("control") is a matrix product and a copy, made beside every run. Where it is off,
the machine differs, and nothing can be said about what was to be tested on it.

Clocks that are free move with heat and power: that they did is evidence, told beside the verdict.
Clocks that are locked and moved all the same are another machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from pytest_mlperf.core.numbers import MINUS, Count, NotNegative, Number, Positive, change, percent

Control = Mapping[str, Positive]
"""What the benchmark found at one time, each positive and finite; empty where it was not made.

matmul_flops: floating-point operations of the matrix product, 1/s.
copy_bytes_per_s: bytes read plus bytes written by the copy, B/s.
matmul_library: which library multiplied, in which settings: a checksum. Products by two libraries
    say nothing about the machine, and are not compared.
peer_bytes_per_s: bytes that a GPU copies to another's memory, B/s, of the slowest pair; only where
    several take part.
"""

MATMUL, COPY, LIBRARY = "matmul_flops", "copy_bytes_per_s", "matmul_library"
PEER = "peer_bytes_per_s"

QUANTITIES = {
    MATMUL: ("matrix product", "FLOP/s"),
    COPY: ("copy", "B/s"),
    PEER: ("copy between GPUs", "B/s"),
}

FLOOR_GPU = 0.0075
"""Smallest relative standard deviation believed on a GPU: an expected 0.5 % times 1.5."""

FLOOR_CPU = 0.07
"""Likewise on a CPU: an expected 5 % times 1.4."""

FLOOR_PEER = 0.03
"""Likewise of copies between GPUs, which may go through bridges, sockets and the host's memory: an
expected 2 % times 1.5."""

DEVIATIONS = 4.0
"""So many standard deviations are no chance."""

PRIOR_DF = 4.0
"""How many degrees of freedom the floor weighs against the baseline's own values."""

MIN_SPREAD_RUNS = 2
"""Fewer baseline values have no spread."""

_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True, kw_only=True)
class ControlComparison:
    """A figure of the benchmark now, beside those of the baseline.

    Attributes:
        quantity: The key in a `Control`.
        now: The value now, in its unit.
        baseline: The value when the baseline was recorded.
        sd: Relative standard deviation of one value that it is judged by.
        baseline_values: How many the baseline has.
    """

    quantity: str
    now: Positive
    baseline: Positive
    sd: NotNegative
    baseline_values: Count = MIN_SPREAD_RUNS

    @property
    def share(self) -> float:
        """Relative change."""
        return self.now / self.baseline - 1

    @property
    def faster(self) -> bool:
        """Whether the machine is faster than it was, not slower."""
        return self.now > self.baseline

    @property
    def deviations(self) -> float:
        """By how many standard deviations of such a comparison it is off."""
        off = abs(math.log(self.now) - math.log(self.baseline))
        return off / (self.sd * math.sqrt(1 + 2 / self.baseline_values))

    @property
    def off(self) -> bool:
        """Whether that is no chance."""
        return self.deviations > DEVIATIONS

    @property
    def least(self) -> float:
        """From which share on a slower machine is told from chance."""
        return -math.expm1(-DEVIATIONS * self.sd * math.sqrt(1 + 2 / self.baseline_values))

    @property
    def in_words(self) -> str:
        """Both numbers, by how much they differ, and how much they do so by chance."""
        name, unit = QUANTITIES[self.quantity]
        return (
            f"the machine is {'fast' if self.faster else 'slow'}: {name} "
            f"{_with_prefix(self.now, unit)} now, {_with_prefix(self.baseline, unit)} when the "
            f"baseline was recorded ({change(self.share)}, its own spread {percent(self.sd)})"
        )


def compared(
    now: Sequence[Control], baseline: Sequence[Control], *, floor: float
) -> tuple[ControlComparison, ...]:
    """Return each figure that both sides have, by how much it is off.

    x = log(value), n0 baseline values, off by d = median(x now) − mean(x baseline): no chance
    beyond 4 · s · sqrt(1 + 2/n0), where s² = (ν0 floor² + Σ(x − mean)²) / (ν0 + n0 − 1), s ≥ floor.

    However often a session looks at its machine, it sees one state of it: its values count as one
    (1), and the baseline's by pairs (2/n0), as two runs a session are its rule. The median, since
    a moment's disturbance is not the machine's state. The baseline's mean and plain spread, since
    one that was recorded on a restless machine must accuse nobody.

    By simulation (tests/core/test_control.py) with 8 baseline values of 4 sessions and 1 to 5
    values now, sessions sharing 25 or 60 % of the variance, of noise 0.5 % at FLOOR_GPU and of 5 %
    at FLOOR_CPU: an unchanged machine is off in none of 80,000 sessions with normal noise, and in
    0.11 to 0.22 % with Student's t of 3 degrees of freedom. A machine that is slower in both
    figures is found every second time from 3.1 % (CPU: 25 %) on, and in 95 % from 3.7 % (30 %).

    Returns:
        None of what cannot be said; see `cannot_say`.

    Source: moderated variance after G. K. Smyth (2004), doi:10.2202/1544-6115.1027.
    """
    comparisons = []
    for quantity in QUANTITIES:
        mine, theirs = _comparable(quantity, now, baseline)
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


def floor_of(accelerator: str) -> float:
    """Return the smallest spread that is believed there."""
    return FLOOR_CPU if accelerator == "cpu" else FLOOR_GPU


def furthest(comparisons: Sequence[ControlComparison]) -> ControlComparison | None:
    """Return the figure that is furthest off, where that is no chance."""
    worst = max(comparisons, key=lambda each: each.deviations, default=None)
    return worst if worst and worst.off else None


def steady(comparisons: Sequence[ControlComparison]) -> bool | None:
    """Whether nothing of the machine is off; None where nothing could be compared."""
    return furthest(comparisons) is None if comparisons else None


def seen_in_words(comparisons: Sequence[ControlComparison]) -> str:
    """Return "matrix product −22.0 %, copy −25.0 %; it tells a slower machine from 31 % on here".

    Of figures whose spread differs the least share is said for each.
    """
    figures = ", ".join(
        f"{QUANTITIES[each.quantity][0]} {change(each.share)}" for each in comparisons
    )
    leasts = [percent(each.least) for each in comparisons]
    least = leasts[0] if len(set(leasts)) == 1 else " and ".join(leasts)
    return f"{figures}; it tells a slower machine from {least} on here"


def cannot_say(now: Sequence[Control], baseline: Sequence[Control]) -> str | None:
    """Return why `compared` has less than there is, in words, or None where it compares all."""
    if not any(now):
        return "no control was measured now"
    if sum(map(bool, baseline)) < MIN_SPREAD_RUNS:
        return f"fewer than {MIN_SPREAD_RUNS} runs of the baseline have a control"
    if len(_comparable(MATMUL, now, baseline)[1]) < MIN_SPREAD_RUNS:
        return (
            "the control's matrix product is not compared: another library multiplied when the "
            "baseline was recorded"
        )
    return None


def _comparable(
    quantity: str, now: Sequence[Control], baseline: Sequence[Control]
) -> tuple[list[float], list[float]]:
    mine = [control for control in now if quantity in control]
    theirs = [control for control in baseline if quantity in control]
    if quantity == MATMUL and mine:
        library = mine[-1].get(LIBRARY)
        mine, theirs = (
            [control for control in side if control.get(LIBRARY) == library]
            for side in (mine, theirs)
        )
    return [math.log(c[quantity]) for c in mine], [math.log(c[quantity]) for c in theirs]


def _with_prefix(value: float, unit: str) -> str:
    """Return a value to three digits: 1.45e12 of FLOP/s is "1.45 TFLOP/s"."""
    rounded = float(f"{value:.3g}")
    factor, prefix = next((each for each in _PREFIXES if rounded >= each[0]), (1.0, ""))
    digits = f"{value / factor:#.3g}".removesuffix(".")
    return f"{digits} {prefix}{unit}"


State = Mapping[str, Number]
"""What a run's GPUs were like in its window, of several GPUs the one that was held back most.

sm_mhz, memory_mhz: median clocks, MHz. temperature_c: the highest, degrees C. power_cap_share: part
of the window in which the power limit held the clocks back.
"""

CLOCK, CAP, HEAT = "sm_mhz", "power_cap_share", "temperature_c"

CLOCK_OFF = 0.015
"""Relative change of the SM clock that is worth telling, and that locked clocks may not have."""

CAP_OFF = 0.10
"""Change of the power cap's share of the window that is worth telling."""


def clocks_moved(now: Sequence[State], baseline: Sequence[State]) -> str | None:
    """Return how clocks and power cap differ from the baseline's, with the numbers; else None."""
    moves = []
    clock = _both(CLOCK, now, baseline)
    if clock and abs(clock[0] / clock[1] - 1) > CLOCK_OFF:
        moves.append(f"SM clock {change(clock[0] / clock[1] - 1)}")
    cap = _both(CAP, now, baseline)
    if cap and (moves or abs(cap[0] - cap[1]) > CAP_OFF):
        moves.append(f"power cap share {percent(cap[1])} → {percent(cap[0])}")
    heat = _both(HEAT, now, baseline)
    if moves and heat:
        rise = heat[0] - heat[1]
        moves.append(f"{'+' if rise >= 0 else MINUS}{abs(rise):.0f} °C")
    return ", ".join(moves) or None


def locked_clock_moved(
    now: Sequence[State], baseline: Sequence[State], clocks: object
) -> str | None:
    """Return how the SM clock left where the identity locks it ("free", or its MHz), else None."""
    both = _both(CLOCK, now, baseline)
    if clocks in (None, "free") or both is None or abs(both[0] / both[1] - 1) <= CLOCK_OFF:
        return None
    return (
        f"the SM clock is locked and moved all the same: {both[0]:.0f} MHz now, {both[1]:.0f} MHz "
        f"when the baseline was recorded ({change(both[0] / both[1] - 1)})"
    )


def _both(name: str, now: Sequence[State], baseline: Sequence[State]) -> tuple[float, float] | None:
    mine = [state[name] for state in now if name in state]
    theirs = [state[name] for state in baseline if name in state]
    if not mine or not theirs or (name == CLOCK and not median(theirs) > 0):
        return None
    return median(mine), median(theirs)

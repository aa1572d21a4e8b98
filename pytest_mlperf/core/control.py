"""Was the machine as fast as when the baseline was recorded, by a fixed micro-benchmark.

The benchmark ("control") is a matrix product and a copy, made beside every run. Where it is off,
the machine differs, and nothing can be said about what was to be tested on it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from pytest_mlperf.core.numbers import change, percent
from pytest_mlperf.core.ranges import Positive

Control = Mapping[str, Positive]
"""What the benchmark found at one time, each positive and finite; empty where it was not made.

matmul_flops: floating-point operations of the matrix product, 1/s.
copy_bytes_per_s: bytes read plus bytes written by the copy, B/s.
matmul_library: which library multiplied, in which settings: a checksum. Products by two libraries
    say nothing about the machine, and are not compared.
"""

MATMUL, COPY, LIBRARY = "matmul_flops", "copy_bytes_per_s", "matmul_library"

QUANTITIES = {MATMUL: ("matrix product", "FLOP/s"), COPY: ("copy", "B/s")}
"""What is compared: in words, and its unit."""

FLOOR_GPU = 0.0075
"""Smallest relative standard deviation believed on a GPU: an expected 0.5 % times 1.5."""

FLOOR_CPU = 0.07
"""Likewise on a CPU: an expected 5 % times 1.4."""

DEVIATIONS = 4.0
"""So many standard deviations are no chance."""

PRIOR_DF = 4.0
"""How many degrees of freedom the floor weighs against the baseline's own values."""

FEWEST = 2
"""Fewer baseline values have no spread."""

_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True, kw_only=True)
class Slow:
    """A machine that is off: slower than when the baseline was recorded, or faster.

    Attributes:
        what: The key in a `Control`.
        now: The value now, in its unit.
        baseline: The value when the baseline was recorded.
        sd: Relative standard deviation of one value that it was judged by.
    """

    what: str
    now: float
    baseline: float
    sd: float

    @property
    def faster(self) -> bool:
        """Whether the machine is faster than it was, not slower."""
        return self.now > self.baseline

    @property
    def in_words(self) -> str:
        """Both numbers, by how much they differ, and how much they do so by chance."""
        name, unit = QUANTITIES[self.what]
        return (
            f"the machine is {'fast' if self.faster else 'slow'}: {name} "
            f"{_with_prefix(self.now, unit)} now, {_with_prefix(self.baseline, unit)} when the "
            f"baseline was recorded ({change(self.now / self.baseline - 1)}, its own spread "
            f"{percent(self.sd)})"
        )


def slow(now: Sequence[Control], baseline: Sequence[Control], *, floor: float) -> Slow | None:
    """Return what is off by more than four of its own standard deviations; the worst if several.

    x = log(value), n0 baseline values, off by d = median(x now) − mean(x baseline), beyond
    4 · s · sqrt(1 + 2/n0), where s² = (ν0 floor² + Σ(x − mean)²) / (ν0 + n0 − 1), s ≥ floor.

    However often a session looks at its machine, it sees one state of it: its values count as one
    (1), and the baseline's by pairs (2/n0), as two runs a session are its rule. The median, since
    a moment's disturbance is not the machine's state. The baseline's mean and plain spread, since
    one that was recorded on a restless machine must accuse nobody.

    By simulation (tests/core/test_control.py) with 8 baseline values of 4 sessions and 1 to 5
    values now, sessions sharing 25 or 60 % of the variance, of noise 0.5 % at FLOOR_GPU and of 5 %
    at FLOOR_CPU: an unchanged machine is off in none of 80,000 sessions with normal noise, and in
    0.11 to 0.22 % with Student's t of 3 degrees of freedom. A machine that is slower in both
    figures is found every second time from 3.1 % (CPU: 25 %) on, and in 95 % from 3.7 % (30 %).

    Args:
        now: Of this session's runs of the case and after them, in any order.
        baseline: One for each run of the baseline.
        floor: FLOOR_GPU or FLOOR_CPU.

    Returns:
        None where nothing is off, and where that cannot be said; see `cannot_say`.

    Source: moderated variance after G. K. Smyth (2004), doi:10.2202/1544-6115.1027.
    """
    found = []
    for what in QUANTITIES:
        mine, theirs = _comparable(what, now, baseline)
        if not mine or len(theirs) < FEWEST:
            continue
        middle = fmean(theirs)
        squares = math.fsum((x - middle) ** 2 for x in theirs)
        variance = (PRIOR_DF * floor**2 + squares) / (PRIOR_DF + len(theirs) - 1)
        sd = max(floor, math.sqrt(variance))
        off = abs(median(mine) - middle) / (sd * math.sqrt(1 + 2 / len(theirs)))
        values = {"now": math.exp(median(mine)), "baseline": math.exp(middle)}
        found.append((off, Slow(what=what, sd=sd, **values)))
    worst = max(found, key=lambda each: each[0], default=None)
    return worst[1] if worst and worst[0] > DEVIATIONS else None


def cannot_say(now: Sequence[Control], baseline: Sequence[Control]) -> str | None:
    """Return why `slow` compares less than there is, in words, or None where it compares all."""
    if not any(now):
        return "no control was measured now"
    if sum(map(bool, baseline)) < FEWEST:
        return f"fewer than {FEWEST} runs of the baseline have a control"
    if len(_comparable(MATMUL, now, baseline)[1]) < FEWEST:
        return (
            "the control's matrix product is not compared: another library multiplied when the "
            "baseline was recorded"
        )
    return None


def _comparable(
    what: str, now: Sequence[Control], baseline: Sequence[Control]
) -> tuple[list[float], list[float]]:
    """Return the logarithms of what can be compared of each side."""
    mine = [control for control in now if what in control]
    theirs = [control for control in baseline if what in control]
    if what == MATMUL and mine:
        library = mine[-1].get(LIBRARY)
        mine, theirs = (
            [control for control in side if control.get(LIBRARY) == library]
            for side in (mine, theirs)
        )
    return [math.log(c[what]) for c in mine], [math.log(c[what]) for c in theirs]


def _with_prefix(value: float, unit: str) -> str:
    """Return a value to three digits: 1.45e12 of FLOP/s is "1.45 TFLOP/s"."""
    rounded = float(f"{value:.3g}")
    factor, prefix = next((each for each in _PREFIXES if rounded >= each[0]), (1.0, ""))
    digits = f"{value / factor:#.3g}".removesuffix(".")
    return f"{digits} {prefix}{unit}"

"""Define types with bounds for measured numbers, and format numbers for tables and messages."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Interval

from pytest_mlperf.core.metrics import METRICS
from pytest_mlperf.judge.inputs import Direction

MAX_MAGNITUDE = 1e100
"""Largest absolute value of a score, a change and its bounds."""

MAX_SECONDS = 1e10
MAX_COUNT = 2**53
"""Largest count; every JSON reader represents it exactly."""

Number = Annotated[float, Interval(ge=-MAX_MAGNITUDE, le=MAX_MAGNITUDE)]
"""A score, a change, a bound of an interval."""

MIN_RATE, MAX_RATE = 1e-30, 1e30
"""Bounds of every rate, latency and limit."""

Positive = Annotated[float, Interval(ge=MIN_RATE, le=MAX_RATE)]
"""A rate, a latency, any metric of a run; SI units."""

NotNegative = Annotated[float, Interval(ge=0, le=MAX_MAGNITUDE)]
"""A standard error, an energy, a limit."""

Seconds = Annotated[float, Interval(ge=0, le=MAX_SECONDS)]

Probability = Annotated[float, Interval(ge=0, le=1)]

Slowdown = Annotated[float, Interval(ge=0, lt=1)]
"""Share of the speed that a handicap takes."""

Count = Annotated[int, Interval(ge=0, le=MAX_COUNT)]

AtLeastOne = Annotated[int, Interval(ge=1, le=MAX_COUNT)]

MAX_RUNS = 1000
"""Most runs of a case: the interim analyses of a rule are computed one by one."""

Runs = Annotated[int, Interval(ge=1, le=MAX_RUNS)]


MINUS = "−"


def change(share: float) -> str:
    """Return a relative change, signed, in per cent: 0.021 is "+2.1 %"."""
    percent = share * 100
    digits = 1 if abs(percent) < 99.95 else 0
    return (MINUS if percent < 0 else "+") + f"{abs(percent):.{digits}f} %"


def interval(low: float, high: float) -> str:
    """Format the confidence interval of a relative change: "−6.9 to −5.7 %"."""
    return f"{change(low).removesuffix(' %')} to {change(high)}"


def limit(metric: str, share: float) -> str:
    """Format a limit with the sign of a regression: "−3 %" throughput, "+10 %" latency."""
    declared = METRICS.get(metric)
    rises = share < 0 or (declared is not None and declared.direction is Direction.LOWER)
    return ("+" if rises else MINUS) + percent(abs(share))


def percent(share: float) -> str:
    """Return a share in per cent without a sign: 0.03 is "3 %", 0.041 is "4.1 %"."""
    return f"{share * 100:.3g} %"


def times(ratio: float) -> str:
    """Return a ratio as a factor: 1.214 is "1.21x"."""
    return f"{ratio:.2f}x" if ratio < 10 else f"{ratio:.3g}x"


def plural(count: int, noun: str) -> str:
    """Return "1 run" or "2 runs"."""
    return f"{count} {noun}" + ("" if count == 1 else "s")


def duration(seconds: float) -> str:
    """Return seconds as "41 s", "3 min 20 s", "5 min" or "2 h 5 min"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        parts = (whole // 60, "min"), (whole % 60, "s")
    else:
        minutes = round(seconds / 60)
        parts = (minutes // 60, "h"), (minutes % 60, "min")
    return " ".join(f"{count} {unit}" for count, unit in parts if count)


def points(value: float) -> str:
    """Return a score difference with its sign and two or three decimals: "−0.36", "+0.003"."""
    digits = 2 if abs(value) >= 0.1 or abs(value) < 0.0005 else 3
    text = f"{abs(value):.{digits}f}"
    return (MINUS if value < 0 and float(text) else "+") + text


def quantity(metric: str, value: float) -> str:
    """Return a metric's value with three to four digits; times and memory with a unit."""
    definition = METRICS.get(metric)
    unit = definition.unit if definition else ""
    if unit == "s":
        for factor, name in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
            if _rounded(value * factor) >= 1 or name == "µs":
                return f"{_digits(value * factor)} {name}"
    if unit == "B":
        name, factor = ("GiB", 2**30) if value >= 2**30 else ("MiB", 2**20)
        return f"{_digits(value / factor)} {name}"
    return _digits(value)


def rounded(value: float) -> str:
    """Return a number with four significant digits, or all digits of a large one: 118.4, 20,139."""
    if value >= 1000 or not value:
        return f"{value:,.0f}"
    return f"{float(f'{value:.4g}'):,}".removesuffix(".0")


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _digits(value: float) -> str:
    if abs(_rounded(value)) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"

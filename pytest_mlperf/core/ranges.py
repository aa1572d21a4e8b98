"""What a number of a measurement may be: said where it is declared, checked by who reads it.

A file may be from elsewhere. Outside of these ranges no run lies, and inside of them what is
computed from two numbers, or from one and its inverse, stays finite.
"""

from __future__ import annotations

from typing import Annotated

from annotated_types import Interval

Number = Annotated[float, Interval(ge=-1e100, le=1e100)]
"""A score, a change, a bound of an interval."""

LEAST, MOST = 1e-30, 1e30
"""Between these lies every rate, latency and limit."""

Positive = Annotated[float, Interval(ge=LEAST, le=MOST)]
"""A rate, a latency, any metric of a run; SI units."""

NotNegative = Annotated[float, Interval(ge=0, le=1e100)]
"""A standard error, an energy, a limit."""

Seconds = Annotated[float, Interval(ge=0, le=1e10)]
"""A length of time; 1e10 s are 300 years."""

Probability = Annotated[float, Interval(ge=0, le=1)]
"""A chance."""

Slowdown = Annotated[float, Interval(ge=0, lt=1)]
"""A share of the speed that is taken away."""

Count = Annotated[int, Interval(ge=0, le=2**53)]
"""How many; every reader of JSON knows such a number exactly."""

AtLeastOne = Annotated[int, Interval(ge=1, le=2**53)]
"""How many, never none."""

MOST_RUNS = 1000
"""Runs of a case at most: the looks of a rule are computed one by one."""

Runs = Annotated[int, Interval(ge=1, le=MOST_RUNS)]
"""Runs that one case may have."""

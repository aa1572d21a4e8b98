"""What a number of a measurement may be: said where it is declared, checked by who reads it.

A file may be from elsewhere. Outside of these ranges no run lies, and inside of them what is
computed from two numbers, or from one and its inverse, stays finite.
"""

from __future__ import annotations

from typing import Annotated

from annotated_types import Interval

WIDEST = 1e100
"""No score, no change and no bound of one is further from 0."""

LONGEST_S = 1e10
"""Seconds: 300 years."""

COUNTED = 2**53
"""The most that is counted; every reader of JSON knows such a number exactly."""

Number = Annotated[float, Interval(ge=-WIDEST, le=WIDEST)]
"""A score, a change, a bound of an interval."""

LEAST, MOST = 1e-30, 1e30
"""Between these lies every rate, latency and limit."""

Positive = Annotated[float, Interval(ge=LEAST, le=MOST)]
"""A rate, a latency, any metric of a run; SI units."""

NotNegative = Annotated[float, Interval(ge=0, le=WIDEST)]
"""A standard error, an energy, a limit."""

Seconds = Annotated[float, Interval(ge=0, le=LONGEST_S)]
"""A length of time."""

Probability = Annotated[float, Interval(ge=0, le=1)]
"""A chance."""

Slowdown = Annotated[float, Interval(ge=0, lt=1)]
"""A share of the speed that is taken away."""

Count = Annotated[int, Interval(ge=0, le=COUNTED)]
"""How many."""

AtLeastOne = Annotated[int, Interval(ge=1, le=COUNTED)]
"""How many, never none."""

MOST_RUNS = 1000
"""Runs of a case at most: the looks of a rule are computed one by one."""

Runs = Annotated[int, Interval(ge=1, le=MOST_RUNS)]
"""Runs that one case may have."""

"""Units of figures: what each counts, how it is spelled, and values in them.

Within a kind a quantity converts freely (ms to s). From one kind to another, as tokens/s to
samples/s, there is no way here: see `pytest_mlperf.core.conversions`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What is counted; only quantities of one kind can be converted into each other."""

    TIME = "time"
    SAMPLES_PER_TIME = "samples per time"
    TOKENS_PER_TIME = "tokens per time"
    QUERIES_PER_TIME = "queries per time"
    SAMPLES_PER_ENERGY = "samples per energy"
    TOKENS_PER_ENERGY = "tokens per energy"
    QUERIES_PER_ENERGY = "queries per energy"
    TOKENS_PER_SAMPLE = "tokens per sample"
    ENERGY_PER_SAMPLE = "energy per sample"
    PRICE = "money per time"
    TOKENS_PER_MONEY = "tokens per money"
    RATIO = "ratio"


class Unit(StrEnum):
    """A unit, by the symbol that we print."""

    S = "s"
    MS = "ms"
    US = "µs"
    NS = "ns"
    SAMPLES_PER_S = "samples/s"
    TOKENS_PER_S = "tokens/s"
    QUERIES_PER_S = "queries/s"
    SAMPLES_PER_S_PER_W = "samples/s/W"
    TOKENS_PER_S_PER_W = "tokens/s/W"
    QUERIES_PER_S_PER_W = "queries/s/W"
    SAMPLES_PER_J = "samples/J"
    TOKENS_PER_J = "tokens/J"
    TOKENS_PER_SAMPLE = "tokens/sample"
    USD_PER_H = "USD/h"
    TOKENS_PER_USD = "tokens/USD"
    TIMES = "x"

    @property
    def kind(self) -> Kind:
        """What is counted."""
        return _ABOUT[self].kind

    @property
    def factor(self) -> float:
        """How many of the kind's first unit one of this is: 0.001 for ms."""
        return _ABOUT[self].factor

    @property
    def spellings(self) -> tuple[str, ...]:
        """What `parse` takes for it, the symbol first; upper and lower case are one."""
        return (self.value, *_ABOUT[self].spellings)

    @property
    def per_watt(self) -> Unit:
        """The unit of this rate per watt.

        Raises:
            ValueError: It is no rate.
        """
        for rate, efficiency in _PER_WATT.items():
            if self is rate:
                return efficiency
        raise ValueError(f"{self} per watt is no unit; rates are {listed(_PER_WATT)}")


@dataclass(frozen=True, slots=True)
class _About:
    kind: Kind
    factor: float = 1.0
    spellings: tuple[str, ...] = ()


def _rate(kind: Kind, what: str, *short: str) -> _About:
    return _About(kind, 1.0, (f"{what}/sec", f"{what}/second", f"{what} per second", *short))


def _efficiency(kind: Kind, what: str) -> _About:
    return _About(kind, 1.0, (f"{what}/sec/watt", f"{what}/s/watt", f"{what} per second per watt"))


_ABOUT = {
    Unit.S: _About(Kind.TIME, 1.0, ("sec", "second", "seconds")),
    Unit.MS: _About(Kind.TIME, 1e-3, ("millisecond", "milliseconds")),
    Unit.US: _About(Kind.TIME, 1e-6, ("us", "microsecond", "microseconds")),
    Unit.NS: _About(Kind.TIME, 1e-9, ("nanosecond", "nanoseconds")),
    Unit.SAMPLES_PER_S: _rate(Kind.SAMPLES_PER_TIME, "samples"),
    Unit.TOKENS_PER_S: _rate(Kind.TOKENS_PER_TIME, "tokens", "tok/s", "tok/sec"),
    Unit.QUERIES_PER_S: _rate(Kind.QUERIES_PER_TIME, "queries", "qps"),
    Unit.SAMPLES_PER_S_PER_W: _efficiency(Kind.SAMPLES_PER_ENERGY, "samples"),
    Unit.TOKENS_PER_S_PER_W: _efficiency(Kind.TOKENS_PER_ENERGY, "tokens"),
    Unit.QUERIES_PER_S_PER_W: _efficiency(Kind.QUERIES_PER_ENERGY, "queries"),
    Unit.SAMPLES_PER_J: _About(Kind.SAMPLES_PER_ENERGY, 1.0, ("samples/joule",)),
    Unit.TOKENS_PER_J: _About(Kind.TOKENS_PER_ENERGY, 1.0, ("tokens/joule",)),
    Unit.TOKENS_PER_SAMPLE: _About(Kind.TOKENS_PER_SAMPLE, 1.0, ("tokens per sample",)),
    Unit.USD_PER_H: _About(Kind.PRICE, 1.0, ("USD/hr", "USD/hour", "$/h", "$/hr", "$/hour")),
    Unit.TOKENS_PER_USD: _About(
        Kind.TOKENS_PER_MONEY, 1.0, ("tokens/$", "tokens per dollar", "tok/$")
    ),
    Unit.TIMES: _About(Kind.RATIO, 1.0, ("times", "×")),
}

_PER_WATT = {
    Unit.SAMPLES_PER_S: Unit.SAMPLES_PER_S_PER_W,
    Unit.TOKENS_PER_S: Unit.TOKENS_PER_S_PER_W,
    Unit.QUERIES_PER_S: Unit.QUERIES_PER_S_PER_W,
}

_SPELLED = {
    spelling.casefold(): unit for unit in Unit for spelling in (unit.value, *_ABOUT[unit].spellings)
}

_RESULT_FIELDS = (
    (
        re.compile(r"result_(inferred_)?(completed_|scheduled_)?tokens_per_sec(ond)?"),
        Unit.TOKENS_PER_S,
    ),
    (re.compile(r"result_(completed_|scheduled_)?samples_per_sec(ond)?"), Unit.SAMPLES_PER_S),
    # The last letters are SingleStream and MultiStream, not a unit: LoadGen logs all times in ns.
    (re.compile(r"early_stopping_latency_(ss|ms)"), Unit.NS),
    (re.compile(r"result_\S+_ns"), Unit.NS),
)


def parse(text: str) -> Unit:
    """Return the unit that a text means, in any of its spellings.

    Raises:
        ValueError: There is no such unit; the known ones are listed.
    """
    unit = _SPELLED.get(" ".join(text.split()).casefold())
    if unit is None:
        raise ValueError(f"unknown unit {text!r}; known: {listed(Unit)}")
    return unit


def unit_of_result(field: str) -> Unit:
    """Return the unit of a result field of LoadGen's detail log.

    Args:
        field: As in a round's table: "result_inferred_tokens_per_second".

    Raises:
        ValueError: It is no result field.
    """
    for pattern, unit in _RESULT_FIELDS:
        if pattern.fullmatch(field):
            return unit
    raise ValueError(
        f"{field!r} is no result field of LoadGen's detail log; they are named as "
        "result_samples_per_second, result_completed_tokens_per_second, early_stopping_latency_ss"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantity:
    """A value and its unit.

    Raises:
        ValueError: The value is not finite, or negative: here are only counts, times and prices.
    """

    value: float
    unit: Unit

    def __post_init__(self) -> None:
        if not 0 <= self.value < math.inf:
            raise ValueError(f"{self.value!r} {self.unit} cannot be: must be finite, at least 0")

    def to(self, unit: Unit) -> Quantity:
        """Return the same quantity in another unit of its kind.

        Raises:
            ValueError: The unit is of another kind.
        """
        if unit.kind is not self.unit.kind:
            raise ValueError(
                f"{self.unit} ({self.unit.kind}) cannot become {unit} ({unit.kind}); from one kind "
                "to another goes only a conversion that says by what: tokens_to_samples, "
                "samples_to_tokens, queries_to_samples"
            )
        return Quantity(value=self.value * (self.unit.factor / unit.factor), unit=unit)

    def __str__(self) -> str:
        return f"{exact(self.value)} {self.unit}"


def listed(names: Iterable[str]) -> str:
    """Return names for a message, separated by commas."""
    return ", ".join(names)


def exact(value: float) -> str:
    """Return every digit, with thousands separated and no needless point: 34,864.2 and 69."""
    return f"{value:,}".removesuffix(".0")


def rounded(value: float) -> str:
    """Return four significant digits, and all before the point: 118.4, 20,139, 0.002369."""
    if value >= 1000 or not value:
        return f"{value:,.0f}"
    return exact(float(f"{value:.4g}"))

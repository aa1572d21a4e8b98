"""The values a suite file may hold: names, percentages, durations, rates, days."""

from __future__ import annotations

import datetime as dt
import difflib
import re
import reprlib
from collections.abc import Iterable, Mapping
from math import inf
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, StrictStr, WithJsonSchema

from pytest_mlperf.core.case import NAME
from pytest_mlperf.core.ranges import LEAST, MOST
from pytest_mlperf.core.techniques import TECHNIQUES

_ACCELERATOR = r"([1-9][0-9]*x)?[A-Za-z][A-Za-z0-9._]*"
_NUMBER = r"([0-9]+(\.[0-9]+)?|\.[0-9]+)"
_DURATION = rf"\s*{_NUMBER}\s*(ms|s|min|m|h)\s*"
_PERCENTAGE = rf"\s*{_NUMBER}\s*%\s*"
_TIMES = rf"\s*>=\s*{_NUMBER}\s*x\s*"
_SECONDS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}


Defect = tuple[tuple[str | int, ...], str]
"""A key path of a suite and what is wrong there."""


def nearest(word: str, known: Iterable[str]) -> str:
    """Return "; did you mean 'x'?", or the list of what is known."""
    names = list(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(names) or 'none'}"


_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 80


def shown(value: object) -> str:
    """Return a value as messages show it: its repr, a long one cut."""
    return _REPR.repr(value)


def share(value: object) -> float:
    """Return "3%" as 0.03.

    Raises:
        ValueError: It is no percentage above 0 %.
    """
    found = re.fullmatch(_PERCENTAGE, value) if isinstance(value, str) else None
    if not found:
        raise ValueError(f'{shown(value)} is no percentage; write it as a string, e.g. "3%"')
    if not LEAST <= float(found[1]) / 100 <= MOST:
        raise ValueError(f"{shown(value)} must be above 0 %")
    return float(found[1]) / 100


def _name(value: str) -> str:
    if not NAME.fullmatch(value):
        raise ValueError(
            f"{shown(value)} is no name: letters, digits, '.', '_', '+' and single inner '-' only, "
            "because it becomes part of test ids and file names"
        )
    return value


def _accelerator(value: str) -> str:
    if value.lower() == "cpu" and value != "cpu":
        raise ValueError(f'{shown(value)} is no accelerator; did you mean "cpu"?')
    if not re.fullmatch(_ACCELERATOR, value):
        raise ValueError(f'{shown(value)} is no accelerator; write "cpu", "H200" or "8xH100"')
    return value


def seconds(value: object) -> float:
    """Return "15ms" as 0.015.

    Raises:
        ValueError: It is no duration above 0.
    """
    found = re.fullmatch(_DURATION, value) if isinstance(value, str) else None
    if not found or not 0 < float(found[1]) < inf:
        raise ValueError(
            f'{shown(value)} is no duration; write it with its unit, e.g. "15ms" or "6s"'
        )
    return float(found[1]) * _SECONDS[found[3]]


def _rate(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < inf:
        raise ValueError(f"{shown(value)} is no positive number")
    if not LEAST <= value <= MOST:
        raise ValueError(f"the number is too {'large' if value > MOST else 'small'}")
    return float(value)


def _rates(value: object) -> float | dict[str, float]:
    if not isinstance(value, Mapping):
        return _rate(value)
    rates = {}
    for key, rate in value.items():
        name = _accelerator(str(key))
        try:
            rates[name] = _rate(rate)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return rates


def _times(value: object) -> float:
    found = re.fullmatch(_TIMES, value) if isinstance(value, str) else None
    if not found or not LEAST <= float(found[1]) <= MOST:
        raise ValueError(f'{shown(value)} is no claim; write how many times better: ">= 1.2x"')
    return float(found[1])


def _technique(value: str) -> str:
    if value not in TECHNIQUES:
        raise ValueError(f"no technique {shown(value)}{nearest(value, TECHNIQUES)}")
    return value


def _day(value: object) -> dt.date:
    if isinstance(value, dt.datetime) or not isinstance(value, dt.date):
        raise ValueError(f"{shown(value)} is no day; write it without quotes, e.g. 2027-01-31")
    return value


_RATE_SCHEMA = {"type": "number", "exclusiveMinimum": 0}

SHARE_SCHEMA = {"type": "string", "pattern": f"^{_PERCENTAGE}$"}
"""JSON Schema of a percentage."""

Name = Annotated[
    StrictStr,
    AfterValidator(_name),
    WithJsonSchema({"type": "string", "pattern": f"^{NAME.pattern}$"}),
]
Accelerator = Annotated[
    StrictStr,
    AfterValidator(_accelerator),
    WithJsonSchema({"type": "string", "pattern": f"^{_ACCELERATOR}$"}),
]
Seconds = Annotated[
    float,
    BeforeValidator(seconds),
    WithJsonSchema({"type": "string", "pattern": f"^{_DURATION}$"}),
]
Share = Annotated[float, BeforeValidator(share), WithJsonSchema(SHARE_SCHEMA)]
Rate = Annotated[float, BeforeValidator(_rate), WithJsonSchema(_RATE_SCHEMA)]
Rates = Annotated[
    float | dict[str, float],
    BeforeValidator(_rates),
    WithJsonSchema(
        {
            "anyOf": [
                _RATE_SCHEMA,
                {
                    "type": "object",
                    "propertyNames": {"pattern": f"^{_ACCELERATOR}$"},
                    "additionalProperties": _RATE_SCHEMA,
                },
            ]
        }
    ),
]
Day = Annotated[
    dt.date, BeforeValidator(_day), WithJsonSchema({"type": "string", "format": "date"})
]
Times = Annotated[
    float,
    BeforeValidator(_times),
    WithJsonSchema({"type": "string", "pattern": f"^{_TIMES}$"}),
]
Technique = Annotated[
    StrictStr,
    AfterValidator(_technique),
    WithJsonSchema({"type": "string", "enum": list(TECHNIQUES)}),
]

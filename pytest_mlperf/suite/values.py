"""Define the types of values in a suite file: names, percentages, durations, rates, days."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from math import inf
from typing import Annotated, Literal, TypeGuard

from pydantic import AfterValidator, BeforeValidator, StrictStr, WithJsonSchema

from pytest_mlperf.core.case import NAME_PATTERN, TECHNIQUES
from pytest_mlperf.core.numbers import MAX_RATE, MIN_RATE
from pytest_mlperf.core.untrusted_text import nearest, quoted
from pytest_mlperf.hardware.machine import split
from pytest_mlperf.hardware.specs import known_classes
from pytest_mlperf.rounds.endpoints import ULTRA_LOW

MIG_INSTANCE = re.compile(r"_\d+g\.|_mig$")
"""Matches the class of a part of a GPU, such as "H200_1g.18gb"."""

_ACCELERATOR = r"([1-9][0-9]*x)?[A-Za-z][A-Za-z0-9._]*"
_DECIMAL = r"([0-9]+(\.[0-9]+)?|\.[0-9]+)"
_DURATION = rf"\s*{_DECIMAL}\s*(ms|s|min|m|h)\s*"
_PERCENTAGE = rf"\s*{_DECIMAL}\s*%\s*"
_TIMES = rf"\s*>=\s*{_DECIMAL}\s*x\s*"
_SECONDS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}


KeyPath = tuple[str | int, ...]
"""Location in a suite, such as ("engines", 0, "options")."""

Defect = tuple[KeyPath, str]
"""Location in a suite, and the message."""


def under(where: KeyPath, defects: Iterable[Defect]) -> Iterator[Defect]:
    """Yield the defects with `where`, their table's key path in the suite, before their own."""
    return (((*where, *key), message) for key, message in defects)


def share(value: object) -> float:
    """Return "3%" as 0.03; raise ValueError unless it is a percentage above 0 %."""
    match = re.fullmatch(_PERCENTAGE, value) if isinstance(value, str) else None
    if not match:
        bare = isinstance(value, str) and re.fullmatch(_DECIMAL, value)
        example = f"{value}%" if bare else "3%"
        raise ValueError(
            f'{quoted(value)} is not a percentage; write it as a string, e.g. "{example}"'
        )
    if not MIN_RATE <= float(match[1]) / 100 <= MAX_RATE:
        raise ValueError(f"{quoted(value)} must be above 0 %")
    return float(match[1]) / 100


def checked_name(value: str) -> str:
    """Return a name that is legal in test ids and file names; raise ValueError otherwise."""
    if not NAME_PATTERN.fullmatch(value):
        raise ValueError(
            f"{quoted(value)} is not a name; "
            "use letters, digits, '.', '_', '+' and single inner '-'"
        )
    return value


def whole_class(name: str) -> str:
    """Return the GPU's class without a MIG suffix: "H200" for an instance of an H200."""
    instance = MIG_INSTANCE.search(name)
    return name[: instance.start()] if instance else name


def checked_accelerator(value: str) -> str:
    """Return an accelerator such as "8xH100" in its usual case; raise ValueError for others."""
    count, name = split(value)
    kind = whole_class(name)
    written = name
    name = known_classes().get(kind.lower(), kind) + name[len(kind) :]
    value = value.removesuffix(written) + name
    if name == "cpu" and value != "cpu":
        raise ValueError(f'{quoted(value)} is not an accelerator; did you mean "cpu"?')
    if not re.fullmatch(_ACCELERATOR, value):
        raise ValueError(f'{quoted(value)} is not an accelerator; write "cpu", "H200" or "8xH100"')
    if count == 1 and name != value:
        raise ValueError(f'{quoted(value)} is not an accelerator; did you mean "{name}"?')
    if count > 1 and MIG_INSTANCE.search(name):
        raise ValueError(
            f"{quoted(value)} is not an accelerator: "
            f'a process sees one MIG instance; write "{name}"'
        )
    return value


def seconds(value: object) -> float:
    """Parse a duration, "15ms" as 0.015 [s]; raise ValueError unless it is above 0."""
    match = re.fullmatch(_DURATION, value) if isinstance(value, str) else None
    if not match or not 0 < float(match[1]) < inf:
        raise ValueError(
            f'{quoted(value)} is not a duration; write it with its unit, e.g. "15ms" or "6s"'
        )
    return float(match[1]) * _SECONDS[match[3]]


def _rate(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < inf:
        raise ValueError(f"{quoted(value)} is not a positive number")
    if not MIN_RATE <= value <= MAX_RATE:
        raise ValueError(f"must be from {MIN_RATE:g} to {MAX_RATE:g}, not {value!r}")
    return float(value)


def _rates(value: object) -> float | dict[str, float]:
    if not isinstance(value, Mapping):
        return _rate(value)
    rates = {}
    for key, rate in value.items():
        name = checked_accelerator(str(key))
        try:
            rates[name] = _rate(rate)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return rates


def _times(value: object) -> float:
    match = re.fullmatch(_TIMES, value) if isinstance(value, str) else None
    if not match or not MIN_RATE <= float(match[1]) <= MAX_RATE:
        raise ValueError(f'{quoted(value)} is not a claim; write how many times better: ">= 1.2x"')
    return float(match[1])


def _technique(value: str) -> str:
    if value not in TECHNIQUES:
        raise ValueError(f"no technique {quoted(value)}{nearest(value, TECHNIQUES)}")
    return value


def _day(value: object) -> dt.date:
    if isinstance(value, dt.datetime) or not isinstance(value, dt.date):
        raise ValueError(f"{quoted(value)} is not a date; write it without quotes, e.g. 2027-01-31")
    return value


_RATE_SCHEMA = {"type": "number", "exclusiveMinimum": 0}

SHARE_SCHEMA = {"type": "string", "pattern": f"^{_PERCENTAGE}$"}

MAX_REPLICAS = 256
"""More than the GPUs of any machine that one LoadGen drives."""


def _replicas(value: object) -> int | Literal["all"]:
    if value == "all":
        return "all"
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_REPLICAS:
        return value
    raise ValueError(
        f"{quoted(value)} is not a number of replicas; write one from 1 to {MAX_REPLICAS}, or "
        '"all" for one on each GPU'
    )


STEP_WATTS, MAX_WATTS = 5, 5000
"""Step of power limits, as in a machine's identity, and a maximum that no board reaches."""


def _power_limits(value: object) -> tuple[int, ...]:
    limits = value if isinstance(value, list | tuple) else [value]
    wrong = [x for x in limits if type(x) is not int or not 0 < x <= MAX_WATTS or x % STEP_WATTS]
    if wrong or not limits:
        raise ValueError(
            f"{quoted(wrong[0] if wrong else value)} is not a power limit; write whole watts in "
            f"steps of {STEP_WATTS}: 500, or several: [400, 550, 700]"
        )
    if twice := [x for x in limits if limits.count(x) > 1]:
        raise ValueError(f"{twice[0]} is listed twice")
    return tuple(limits)


MAX_POINTS, MAX_CONCURRENCY = 32, 65_536
"""Maximum points of a curve (as in MLPerf Endpoints), and requests in flight or a second."""


def is_maximum(value: object) -> TypeGuard[int]:
    """Return whether a value is an integer above ULTRA_LOW and at most MAX_CONCURRENCY."""
    return type(value) is int and ULTRA_LOW < value <= MAX_CONCURRENCY


def _maximum(value: object) -> int:
    if is_maximum(value):
        return value
    raise ValueError(
        f"{quoted(value)} is not a maximum; write a number of requests above {ULTRA_LOW}, where "
        f"region ultra_low ends, and up to {MAX_CONCURRENCY:,}"
    )


Maximum = Annotated[
    int,
    BeforeValidator(_maximum),
    WithJsonSchema({"type": "integer", "exclusiveMinimum": ULTRA_LOW, "maximum": MAX_CONCURRENCY}),
]


def _points(value: object) -> tuple[int | float, ...]:
    """Check the points of a curve, which must ascend; return whole numbers as int."""
    rows = value if isinstance(value, list | tuple) else ()
    numbers = [x for x in rows if type(x) in (int, float) and -inf < x < inf]
    counts = [int(x) if x == int(x) else x for x in numbers]
    if not counts or len(counts) != len(value):  # type: ignore[arg-type]
        raise ValueError(f"{quoted(value)} are not points; write numbers of requests: [1, 8, 64]")
    if len(counts) > MAX_POINTS:
        raise ValueError(f"a curve may have at most {MAX_POINTS} points, not {len(counts)}")
    if not 0 < min(counts) <= max(counts) <= MAX_CONCURRENCY:
        raise ValueError(f"a point is a number of requests from 1 to {MAX_CONCURRENCY:,}")
    if fine := [x for x in counts if round(x, 3) != x]:
        raise ValueError(f"a point may have at most three decimals, not {fine[0]}")
    for previous, point in pairwise(counts):
        if point <= previous:
            raise ValueError(f"points must increase; {point} follows {previous}")
    return tuple(counts)


Points = Annotated[
    tuple[int | float, ...],
    BeforeValidator(_points),
    WithJsonSchema(
        {
            "type": "array",
            "items": {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_CONCURRENCY},
            "minItems": 1,
            "maxItems": MAX_POINTS,
            "uniqueItems": True,
        }
    ),
]
Name = Annotated[
    StrictStr,
    AfterValidator(checked_name),
    WithJsonSchema({"type": "string", "pattern": f"^{NAME_PATTERN.pattern}$"}),
]
Accelerator = Annotated[
    StrictStr,
    AfterValidator(checked_accelerator),
    WithJsonSchema({"type": "string", "pattern": f"^{_ACCELERATOR}$"}),
]
Replicas = Annotated[
    int | Literal["all"],
    BeforeValidator(_replicas),
    WithJsonSchema(
        {"anyOf": [{"type": "integer", "minimum": 1, "maximum": MAX_REPLICAS}, {"const": "all"}]}
    ),
]
_LIMIT_SCHEMA = {
    "type": "integer",
    "minimum": STEP_WATTS,
    "maximum": MAX_WATTS,
    "multipleOf": STEP_WATTS,
}
PowerLimits = Annotated[
    tuple[int, ...],
    BeforeValidator(_power_limits),
    WithJsonSchema(
        {
            "anyOf": [
                _LIMIT_SCHEMA,
                {"type": "array", "items": _LIMIT_SCHEMA, "minItems": 1, "uniqueItems": True},
            ]
        }
    ),
]
Seconds = Annotated[
    float, BeforeValidator(seconds), WithJsonSchema({"type": "string", "pattern": f"^{_DURATION}$"})
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
    float, BeforeValidator(_times), WithJsonSchema({"type": "string", "pattern": f"^{_TIMES}$"})
]
Technique = Annotated[
    StrictStr,
    AfterValidator(_technique),
    WithJsonSchema({"type": "string", "enum": list(TECHNIQUES)}),
]


def git_ref(value: str) -> str:
    """Check a git ref and return it; raise ValueError if it is not valid."""
    if not re.fullmatch(r"[^\s\-~^:?*\[\\][^\s:?*\[\\]*", value):
        raise ValueError(f"{quoted(value)} is not a git ref; write a tag, a branch or a commit")
    return value


_PINNED = r"[A-Za-z0-9][\w.-]*(\[[\w.,-]+\])?===?[^\s;,]+"


def pinned(value: str) -> str:
    """Check packages pinned to versions, separated by spaces; return them or raise ValueError."""
    words = value.split()
    wrong = [
        w for w in words if not re.fullmatch(_PINNED, w) and not re.fullmatch(r"[^-].*\.whl", w)
    ]
    if wrong or not words:
        raise ValueError(
            f"{quoted(' '.join(wrong) or value)} is not a pinned package; write name==version, or "
            "the path of a .whl file; several are separated by spaces"
        )
    return value

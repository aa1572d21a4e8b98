"""Parse the file of a wall meter: CSV with time and watts, or the spl.txt of SPEC's PTDaemon."""

from __future__ import annotations

import csv
import datetime as dt
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isinf
from typing import Any

from pytest_mlperf.core.errors import SuiteError

TIMES = ("time", "time_s", "timestamp")
POWERS = ("watts", "power_w")
"""Names of the columns of a CSV file, in small letters or capitals."""

FIRST_S, LAST_S = 1e8, 1e11
"""Seconds since 1970 lie between these: less is a time since the start, more is milliseconds."""

_SPL = re.compile(r"(\d\d-\d\d)-(\d{4}) (\d\d:\d\d:\d\d(?:\.\d{1,6})?)")
"""MM-DD-YYYY HH:MM:SS.mmm, as PTDaemon and LoadGen write it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeterReading:
    """One reading.

    Attributes:
        time_s: Wall clock, seconds since the epoch.
        watts: As the meter wrote it: 0 or less, or not a number, where it failed.
    """

    time_s: float
    watts: float

    @property
    def good(self) -> bool:
        """Whether the meter did read something."""
        return self.watts > 0


def parse_meter(text: str, *, name: str, local_offset_s: float = 0.0) -> tuple[MeterReading, ...]:
    """Return the readings of a meter's file, in its order, the bad ones among them.

    Args:
        text: Of a CSV file with a heading, one column of which is called as in TIMES (seconds since
            1970, or ISO 8601 with a zone) and one as in POWERS; or of an spl.txt of SPEC's
            PTDaemon. A file without readings has none.
        name: The file, for messages.
        local_offset_s: How far the meter's clock is ahead of UTC where it writes no zone, as in an
            spl.txt, seconds. MLPerf takes those times as UTC, which LoadGen logs.

    Raises:
        SuiteError: It is neither, or a line of it is damaged.
    """
    lines = text.removeprefix("\ufeff").splitlines()
    first = next((line for line in lines if line.strip()), "")
    if not first:
        return ()
    if _is_spl(first):
        return tuple(_spl(lines, name, local_offset_s))
    return tuple(_csv(lines, name))


def _is_spl(line: str) -> bool:
    fields = line.split(",")
    return fields[0] == "Time" and len(fields) > 3 and fields[2] == "Watts"


def _spl(lines: Sequence[str], name: str, local_offset_s: float) -> Iterator[MeterReading]:
    for number, line in enumerate(lines, start=1):
        if not line.startswith("Time"):  # MLPerf's checker passes over others too
            continue
        fields = line.split(",")
        if not _is_spl(line) or not (found := _SPL.fullmatch(fields[1])):
            raise _wrong(name, number, line, 'is not "Time,MM-DD-YYYY HH:MM:SS.mmm,Watts,W,..."')
        day, year, clock = found.groups()
        try:
            moment = dt.datetime.fromisoformat(f"{year}-{day}T{clock}+00:00")
        except ValueError as error:
            raise _wrong(name, number, fields[1], f"is no time: {error}") from None
        watts = _watts(name, number, fields[3])
        yield MeterReading(time_s=moment.timestamp() - local_offset_s, watts=watts)


def _csv(lines: Sequence[str], name: str) -> Iterator[MeterReading]:
    rows = csv.reader(lines)
    columns: tuple[int, int] | None = None
    while (row := _next(rows, name)) is not None:
        if not any(field.strip() for field in row):
            continue
        number = rows.line_num
        if columns is None:
            columns = _columns(row, name, number)
            continue
        if len(row) <= max(columns):
            raise _wrong(name, number, ",".join(row), "has fewer columns than the heading")
        time_s = _time_s(name, number, row[columns[0]].strip())
        yield MeterReading(time_s=time_s, watts=_watts(name, number, row[columns[1]]))


def _next(rows: Any, name: str) -> list[str] | None:
    try:
        return next(rows, None)
    except csv.Error as error:
        raise SuiteError(f"{name}:{rows.line_num}: is no CSV: {error}") from None


def _columns(row: Sequence[str], name: str, number: int) -> tuple[int, int]:
    """Return where a heading has time and watts."""
    heading = [field.strip().lower() for field in row]
    found = []
    for names in (TIMES, POWERS):
        places = [place for place, field in enumerate(heading) if field in names]
        if len(places) != 1:
            raise _wrong(
                name,
                number,
                ",".join(row),
                f"is no heading with one column {' or '.join(names)}: a meter's file is a CSV file "
                'with the heading "time,watts", or the spl.txt of SPEC\'s PTDaemon',
            )
        found += places
    return found[0], found[1]


def _time_s(name: str, number: int, text: str) -> float:
    """Return the time that a CSV file writes, seconds since the epoch."""
    if (time_s := _number(text)) is not None:
        if FIRST_S < time_s < LAST_S:
            return time_s
        raise _wrong(name, number, text, "is no time in seconds since 1970")
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        wanted = "is no time: write seconds since 1970, or 2026-11-20T10:00:00.5+01:00"
        raise _wrong(name, number, text, wanted) from None
    if moment.tzinfo is None:
        without = "has no zone: write it with one, as in 2026-11-20T10:00:00+01:00 or with a Z"
        raise _wrong(name, number, text, without)
    return moment.timestamp()


def _watts(name: str, number: int, text: str) -> float:
    watts = _number(text)
    if watts is None or isinf(watts):
        raise _wrong(name, number, text, "is no power in watts")
    return watts


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _wrong(name: str, number: int, text: str, what: str) -> SuiteError:
    return SuiteError(f"{name}:{number}: {text[:80]!r} {what}")

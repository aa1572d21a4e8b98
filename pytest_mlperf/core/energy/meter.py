"""Parse readings of a wall meter and compute the energy of a window.

As in MLPerf Power's submission checker, the energy is the mean of the readings strictly inside the
window, times its length. Readings of 0 W or less are left out: an analyzer writes them on failure.
"""

from __future__ import annotations

import csv
import datetime as dt
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import fsum, isinf
from statistics import median

from pytest_mlperf.core import energy
from pytest_mlperf.core.energy import EnergyReading, Source
from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.core.notes import Note
from pytest_mlperf.core.plausible import plausible_reading

TIME_COLUMNS = ("time", "time_s", "timestamp")
POWER_COLUMNS = ("watts", "power_w")
MIN_EPOCH_SECONDS, MAX_EPOCH_SECONDS = 1e8, 1e11
"""Bounds of seconds since 1970: less is a time since the start, more is milliseconds."""

_SPL = re.compile(r"(\d\d-\d\d)-(\d{4}) (\d\d:\d\d:\d\d(?:\.\d{1,6})?)")
"""MM-DD-YYYY HH:MM:SS.mmm, as PTDaemon and LoadGen write it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeterReading:
    """Hold one reading: time [s since 1970] and power [W]; a failed one has an impossible power."""

    time_s: float
    watts: float

    @property
    def good(self) -> bool:
        """Whether the meter's power is above 0 and plausible."""
        return self.watts > 0 and plausible_reading("wall_w", self.watts) is not None


def parse_meter(text: str, *, name: str, local_offset_s: float = 0.0) -> tuple[MeterReading, ...]:
    """Parse the file of a power meter; return all readings in their order, including bad ones.

    Args:
        text: A CSV file whose heading has one column of TIME_COLUMNS (seconds since 1970, or ISO
            8601 with a zone) and one of POWER_COLUMNS, or an spl.txt of SPEC's PTDaemon.
        local_offset_s: Seconds that the meter's clock is ahead of UTC, if the file has no zone as
            in spl.txt. MLPerf treats these times as UTC, the time zone of LoadGen's logs.

    Raises:
        SuiteError: A line is malformed.
    """
    lines = text.removeprefix("\ufeff").splitlines()
    first = next((line for line in lines if line.strip()), "")
    if not first:
        return ()
    return tuple(_spl(lines, name, local_offset_s)) if _is_spl(first) else tuple(_csv(lines, name))


def _is_spl(line: str) -> bool:
    fields = line.split(",")
    return fields[0] == "Time" and len(fields) > 3 and fields[2] == "Watts"


def _spl(lines: Sequence[str], name: str, local_offset_s: float) -> Iterator[MeterReading]:
    for number, line in enumerate(lines, start=1):
        if not line.startswith("Time"):  # as MLPerf's checker
            continue
        fields = line.split(",")
        if not _is_spl(line) or not (match := _SPL.fullmatch(fields[1])):
            raise _wrong(name, number, line, 'is not "Time,MM-DD-YYYY HH:MM:SS.mmm,Watts,W,..."')
        day, year, clock = match.groups()
        try:
            moment = dt.datetime.fromisoformat(f"{year}-{day}T{clock}+00:00")
        except ValueError as error:
            raise _wrong(name, number, fields[1], f"is not a time: {error}") from None
        watts = _watts(name, number, fields[3])
        yield MeterReading(time_s=moment.timestamp() - local_offset_s, watts=watts)


def _csv(lines: Sequence[str], name: str) -> Iterator[MeterReading]:
    rows = csv.reader(lines)
    columns: tuple[int, int] | None = None
    try:
        for row in rows:
            number = rows.line_num
            if not any(field.strip() for field in row):
                continue
            if columns is None:
                columns = _columns(row, name, number)
                continue
            if len(row) <= max(columns):
                raise _wrong(name, number, ",".join(row), "has fewer columns than the heading")
            time_s = _time_s(name, number, row[columns[0]].strip())
            yield MeterReading(time_s=time_s, watts=_watts(name, number, row[columns[1]]))
    except csv.Error as error:
        raise SuiteError(f"{name}:{rows.line_num}: is not CSV: {error}") from None


def _columns(row: Sequence[str], name: str, number: int) -> tuple[int, int]:
    heading = [field.strip().lower() for field in row]
    columns = []
    for names in (TIME_COLUMNS, POWER_COLUMNS):
        places = [place for place, field in enumerate(heading) if field in names]
        if len(places) != 1:
            raise _wrong(
                name,
                number,
                ",".join(row),
                f"is not a heading with one column {' or '.join(names)}: the log of a meter is a "
                'CSV file with the heading "time,watts", or the spl.txt of SPEC\'s PTDaemon',
            )
        columns += places
    return columns[0], columns[1]


def _time_s(name: str, number: int, text: str) -> float:
    if (time_s := _number(text)) is not None:
        if MIN_EPOCH_SECONDS < time_s < MAX_EPOCH_SECONDS:
            return time_s
        raise _wrong(name, number, text, "is not a time in seconds since 1970")
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        defect = "is not a time: write seconds since 1970, or 2026-11-20T10:00:00.5+01:00"
        raise _wrong(name, number, text, defect) from None
    if moment.tzinfo is None:
        without = "has no time zone: write 2026-11-20T10:00:00+01:00, or Z for UTC"
        raise _wrong(name, number, text, without)
    return moment.timestamp()


def _watts(name: str, number: int, text: str) -> float:
    watts = _number(text)
    if watts is None or isinf(watts):
        raise _wrong(name, number, text, "is not a power in watts")
    return watts


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _wrong(name: str, number: int, text: str, defect: str) -> SuiteError:
    return SuiteError(f"{name}:{number}: {text[:80]!r} {defect}")


MAX_METER_GAP_SECONDS = 5.0
MIN_READINGS = 10
CLOCK_OFFSET_SECONDS = 0.8
"""Tolerated clock offset between meter and machine, as in MLPerf Power."""

UNSURE = 0.05
"""Share of the energy from which its uncertainty is reported as large."""


def wall_energy(readings: Sequence[MeterReading], begin_s: float, end_s: float) -> EnergyReading:
    """Return a wall meter's energy in a window: mean power x duration; times are since 1970 [s].

    The uncertainty is an estimate: each end may be off by one meter period plus
    CLOCK_OFFSET_SECONDS, while the power changes by the range of the readings near it.
    """
    window_s = end_s - begin_s
    if not window_s > 0:
        raise ValueError(f"the window ends {-window_s:g} s before it begins")
    good = [reading for reading in readings if reading.good]
    inside = [reading for reading in good if begin_s < reading.time_s < end_s]
    dropped = sum(not r.good for r in readings if begin_s < r.time_s < end_s)
    failed = Note.of("meter_failed", count=dropped, of=dropped + len(inside))
    notes = [failed] if dropped else []
    unknown = EnergyReading(
        source=Source.METER, window_s=window_s, readings=len(inside), dropped=dropped
    )
    if reason := next(_why_unknown(readings, good, begin_s, end_s), None):
        return replace(unknown, notes=(*notes, reason))
    mean_w = fsum(reading.watts for reading in inside) / len(inside)
    period_s = median(later.time_s - earlier.time_s for earlier, later in pairwise(inside))
    steps_w = sum(
        _step(good, end, 2 * (period_s + CLOCK_OFFSET_SECONDS)) for end in (begin_s, end_s)
    )
    uncertainty_j = max((period_s + CLOCK_OFFSET_SECONDS) * steps_w, period_s / 2 * mean_w)
    if (share := uncertainty_j / (mean_w * window_s)) > UNSURE:
        notes.append(Note.of("meter_unsure", share=share, period_s=period_s))
    if window_s < energy.MIN_GATED_SECONDS:
        notes.append(energy.too_short("wall energy", window_s))
    return replace(
        unknown,
        joules=mean_w * window_s,
        uncertainty_j=uncertainty_j,
        notes=tuple(notes),
        gated=window_s >= energy.MIN_GATED_SECONDS,
    )


def _why_unknown(
    readings: Sequence[MeterReading], good: Sequence[MeterReading], begin_s: float, end_s: float
) -> Iterator[Note]:
    """Yield why the meter's energy is unknown, surest reason first; `good`: readings above 0 W."""
    if not good:
        yield Note.of("meter_empty", failed=len(readings))
    for earlier, later in pairwise(readings):
        back_s = earlier.time_s - later.time_s
        if back_s > 0 and later.time_s < end_s and earlier.time_s > begin_s:
            yield Note.of("meter_clock_back", back_s=back_s, at_s=earlier.time_s)
    first_s = min(reading.time_s for reading in good)
    last_s = max(reading.time_s for reading in good)
    if last_s <= begin_s or first_s >= end_s:
        times = {"first_s": first_s, "last_s": last_s, "begin_s": begin_s, "end_s": end_s}
        yield Note.of("meter_elsewhere", **times)
    if first_s > begin_s:
        yield Note.of("meter_late", late_s=first_s - begin_s)
    if last_s < end_s:
        yield Note.of("meter_ended", early_s=end_s - last_s)
    gap_s = max(
        later.time_s - earlier.time_s
        for earlier, later in pairwise(good)
        if later.time_s > begin_s and earlier.time_s < end_s
    )
    if gap_s > MAX_METER_GAP_SECONDS:
        yield Note.of("meter_gap", gap_s=gap_s, most_s=MAX_METER_GAP_SECONDS)
    count = sum(begin_s < reading.time_s < end_s for reading in good)
    if count < MIN_READINGS:
        yield Note.of("meter_few", count=count, needed=MIN_READINGS)


def _step(good: Sequence[MeterReading], moment_s: float, within_s: float) -> float:
    near = [r.watts for r in good if abs(r.time_s - moment_s) <= within_s]
    return max(near) - min(near) if near else 0.0

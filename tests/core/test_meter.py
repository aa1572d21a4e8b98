"""Test a wall meter's readings: MLPerf's mean over a window, and when it is withheld."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_mlperf.core import energy
from pytest_mlperf.core.energy import Source
from pytest_mlperf.core.energy.meter import MeterReading, parse_meter, wall_energy
from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.core.notes import Note
from tests.core.made import present

NOON_S = dt.datetime(2026, 11, 20, 12, tzinfo=dt.UTC).timestamp()


def parsed(*lines: str, local_offset_s: float = 0.0) -> list[tuple[float, float]]:
    """Return seconds after noon and watts."""
    text = "".join(f"{line}\n" for line in lines)
    readings = parse_meter(text, name="meter.csv", local_offset_s=local_offset_s)
    return [(reading.time_s - NOON_S, reading.watts) for reading in readings]


def test_a_csv_file_has_a_heading_with_time_and_watts() -> None:
    """Epoch or ISO 8601 with a zone; what failed is kept, for `wall_energy` to count."""
    noon = "2026-11-20T12:00:0"
    cases: list[tuple[list[str], list[tuple[float, float]]]] = [
        ([HEADING, f"{NOON_S:.1f},412.5", f"{NOON_S + 1:.0f},413"], [(0, 412.5), (1, 413)]),
        ([HEADING, f"{noon}0Z,1.5e3"], [(0, 1500)]),
        (["Time,Watts", "2026-11-20 13:00:00.25+01:00,400"], [(0.25, 400)]),
        (["volts, power_w ,timestamp", f"230,400,{noon}5Z"], [(5, 400)]),
        (['"time","watts","note"', f'"{noon}0Z","400","a, b"'], [(0, 400)]),
        (["", HEADING, "", f"{noon}0Z,400", " "], [(0, 400)]),
        (["\ufefftime,watts", f"{noon}0Z,400"], [(0, 400)]),
        ([HEADING, f"{noon}0Z,-2.0", f"{noon}1Z,0"], [(0, -2), (1, 0)]),
        *(([HEADING], []), ([""], []), ([], [])),
    ]
    for lines, expected in cases:
        assert parsed(*lines) == expected
    with pytest.raises(SuiteError, match="is not a heading"):
        parsed("# volts,W", "")


MARK = "Volts,239.18,Amps,3.43,PF,0.964,Mark,run_1"
SPL = [
    f"Time,11-20-2026 12:00:00.963,Watts,2371.600000,{MARK},Ch1,Watts,800.6,Volts,239.33",
    f"Time,11-20-2026 12:00:01.964,Watts,-2.000000,{MARK}",
    "PTDaemon says something else",
    f"Time,11-20-2026 12:00:02,Watts,2422.4,{MARK}",
    "",
]


def test_an_spl_file_is_of_utc_as_mlperf_takes_it_or_of_a_stated_offset() -> None:
    parsed_readings = parsed(*SPL)
    ahead = parsed(*SPL, local_offset_s=3600)
    with_zone = ["time,watts", "2026-11-20T12:00:00Z,400"]

    assert [round(time_s, 6) for time_s, _ in parsed_readings] == [0.963, 1.964, 2.0]
    assert [watts for _, watts in parsed_readings] == [2371.6, -2.0, 2422.4]
    assert [time_s + 3600 for time_s, _ in ahead] == pytest.approx([t for t, _ in parsed_readings])
    assert parsed(*with_zone, local_offset_s=3600) == [(0, 400)]


HEADING = "time,watts"


NO_SPL = 'is not "Time,MM-DD-YYYY HH:MM:SS.mmm,Watts,W,..."'
CSV = (
    'the log of a meter is a CSV file with the heading "time,watts", or the spl.txt of SPEC\'s PTD'
)


def test_a_damaged_line_is_named() -> None:
    no_time = "is not a time in seconds since 1970"
    cases: list[tuple[list[str], int, str]] = [
        (["power", "400"], 1, f"not a heading with one column time or time_s or timestamp: {CSV}"),
        (
            ["time,watts,watts", "1,2,3"],
            1,
            f"is not a heading with one column watts or power_w: {CSV}",
        ),
        (
            [HEADING, "2026-11-20T12:00:00,400"],
            2,
            "has no time zone: write 2026-11-",
        ),
        ([HEADING, "noon,400"], 2, "'noon' is not a time: write seconds since 1970, or 2026-11-20"),
        ([HEADING, "12.5,400"], 2, f"'12.5' {no_time}"),
        ([HEADING, "1763640000000,400"], 2, f"'1763640000000' {no_time}"),
        ([HEADING, "nan,400"], 2, f"'nan' {no_time}"),
        ([HEADING, "", "1763640000,4OO"], 3, "'4OO' is not a power in watts"),
        ([HEADING, "1763640000,inf"], 2, "'inf' is not a power in watts"),
        ([HEADING, "1763640000"], 2, "'1763640000' has fewer columns than the heading"),
        ([SPL[0], "Time,2026-11-20 12:00:00,Watts,400"], 2, f"12:00:00,Watts,400' {NO_SPL}"),
        (
            [SPL[0], "Time,11-31-2026 12:00:00,Watts,400"],
            2,
            "is not a time: day is out of range for m",
        ),
        ([SPL[0], "Time,11-20-2026 12:00:0"], 2, f"'Time,11-20-2026 12:00:0' {NO_SPL}"),
        ([SPL[0], "Time,11-20-2026 12:00:01,Watts,W"], 2, "'W' is not a power in watts"),
    ]
    for lines, position, message in cases:
        with pytest.raises(SuiteError) as caught:
            parsed(*lines)
        assert str(caught.value).startswith(f"meter.csv:{position}: '")
        assert message in str(caught.value)


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.integers(0, 86_400_000), st.floats(-2, 1e5).map(lambda w: round(w, 6))),
        max_size=20,
    )
)
def test_both_formats_say_the_same(samples: list[tuple[int, float]]) -> None:
    def moment(ms: int) -> dt.datetime:
        return dt.datetime.fromtimestamp(NOON_S, dt.UTC) + dt.timedelta(milliseconds=ms)

    spl = [
        f"Time,{moment(ms):%m-%d-%Y %H:%M:%S}.{ms % 1000:03d},Watts,{w:.6f},{MARK}"
        for ms, w in samples
    ]
    table = ["time,watts", *(f"{moment(ms).isoformat()},{w:.6f}" for ms, w in samples)]

    assert parsed(*spl) == parsed(*table)


Load = Callable[[float], float]


def meter(load: Load, first_s: float, last_s: float, every_s: float = 1.0) -> list[MeterReading]:
    count = int((last_s - first_s) / every_s) + 1
    moments = [first_s + i * every_s for i in range(count)]
    return [MeterReading(time_s=t, watts=load(t)) for t in moments]


def job(t: float) -> float:
    return 5000.0 if 0 <= t < 60 else 2400.0


@settings(max_examples=25)
@given(st.lists(st.floats(-2, 9e3), min_size=70, max_size=70), st.floats(0.1, 5), st.floats(50, 65))
def test_the_mean_is_that_of_mlperfs_checker(
    watts: list[float], begin_s: float, end_s: float
) -> None:
    """Readings strictly inside the window and above 0 W, and nothing else."""
    readings = [MeterReading(time_s=float(i), watts=w) for i, w in enumerate(watts)]
    plain = [w for i, w in enumerate(watts) if begin_s < i < end_s and w > 0]
    failed = sum(begin_s < i < end_s for i in range(70)) - len(plain)

    energy = wall_energy(readings, begin_s, end_s)

    assert (energy.readings, energy.dropped) == (len(plain), failed)
    if energy.mean_w is not None:
        assert energy.mean_w == pytest.approx(sum(plain) / len(plain))
        assert energy.joules == pytest.approx(energy.mean_w * (end_s - begin_s))


@given(st.floats(0, 1), st.floats(0.2, 2.0), st.floats(-0.8, 0.8))
def test_the_exact_energy_is_within_the_uncertainty(
    phase: float, every_s: float, ahead_s: float
) -> None:
    """Wherever the readings fall, and with the meter's clock off by as much as MLPerf allows."""
    readings = meter(job, phase * every_s - 10, 75.0, every_s)
    energy = wall_energy(moved(readings, ahead_s), 0.0, 60.0)

    uncertainty_j = present(energy.uncertainty_j)
    assert abs(present(energy.joules) - 300_000) <= uncertainty_j
    assert uncertainty_j <= 2 * (every_s + 0.81) * 2600


def test_a_reading_at_either_end_is_not_inside_and_a_failed_one_is_counted() -> None:
    """Holes and clock changes outside of the window do not matter."""
    ends = meter(lambda t: 9000.0 if t in {0.0, 60.0} else 400.0, -2.0, 62.0)
    failed = meter(lambda t: -2.0 if t in {7.0, 31.0} else 400.0, -2.0, 62.0)

    inside, energy = (wall_energy(readings, 0.0, 60.0) for readings in (ends, failed))

    assert (inside.mean_w, inside.readings) == (400.0, 59)
    assert (energy.joules, energy.readings, energy.dropped) == (24_000.0, 57, 2)
    assert energy.notes == (Note.of("meter_failed", count=2, of=59),)
    assert energy.gated

    earlier = moved([*STEADY, *STEADY], -900)

    assert wall_energy([*earlier, *STEADY], 0.0, 60.0) == wall_energy(STEADY, 0.0, 60.0)


STEADY = meter(lambda _: 400.0, -5.0, 65.0)


def without(begin_s: float, end_s: float) -> list[MeterReading]:
    return [r for r in STEADY if not begin_s < r.time_s < end_s]


def moved(readings: Sequence[MeterReading], by_s: float) -> list[MeterReading]:
    return [replace(reading, time_s=reading.time_s + by_s) for reading in readings]


def test_readings_that_do_not_cover_the_window_give_no_energy() -> None:
    """A gap of failed readings is silence."""
    failed = [MeterReading(time_s=1.0, watts=-2.0), MeterReading(time_s=2.0, watts=float("nan"))]
    gap = meter(lambda t: -2.0 if 20 <= t < 26 else 400.0, -5.0, 65.0)
    elsewhere = {"first_s": 3595.0, "last_s": 3665.0, "begin_s": 0.0, "end_s": 60.0}
    seven = Note.of("meter_gap", gap_s=7.0, most_s=5.0)
    cases: list[tuple[list[MeterReading], float, Note]] = [
        ([], 60.0, Note.of("meter_empty", failed=0)),
        (failed, 60.0, Note.of("meter_empty", failed=2)),
        ([r for r in STEADY if r.time_s > 3], 60.0, Note.of("meter_late", late_s=4.0)),
        ([r for r in STEADY if r.time_s < 50], 60.0, Note.of("meter_ended", early_s=11.0)),
        (moved(STEADY, 3600), 60.0, Note.of("meter_elsewhere", **elsewhere)),
        (without(20, 26), 60.0, Note.of("meter_gap", gap_s=6.0, most_s=5.0)),
        (without(-4.5, 1.5), 60.0, seven),
        (
            [*STEADY[:40], *STEADY[30:]],
            60.0,
            Note.of("meter_clock_back", back_s=9.0, at_s=STEADY[39].time_s),
        ),
        (gap, 60.0, seven),
        (
            meter(lambda _: 400.0, -4.0, 44.0, 4.0),
            36.5,
            Note.of("meter_few", count=9, needed=10),
        ),
    ]
    for readings, end_s, note in cases:
        energy = wall_energy(readings, 0.0, end_s)
        assert (energy.joules, energy.mean_w, energy.uncertainty_j) == (None,) * 3
        assert not energy.gated
        assert energy.notes[-1] == note
    assert wall_energy(gap, 0.0, 60.0).notes[0] == Note.of("meter_failed", count=6, of=59)


def test_a_short_window_or_a_large_uncertainty_is_reported_and_not_gated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The shortest gated window is that of GPU energy; 1.8 s of 2600 W at either end of 60 s."""
    for window_s, gated in ((18.95, False), (20.0, True), (60.0, True)):
        energy_of_window = wall_energy(STEADY, 0.0, window_s)
        values = {"noun": "wall energy", "window_s": 18.9, "needed_s": 19.0}
        notes = (Note.of("energy_short", **values),)
        assert energy_of_window.joules == pytest.approx(400.0 * window_s)
        assert (energy_of_window.gated, energy_of_window.notes) == (gated, () if gated else notes)

    monkeypatch.setattr(energy, "MIN_GATED_SECONDS", 45.0)
    assert not wall_energy(STEADY, 0.0, 40.0).gated
    assert wall_energy(STEADY, 0.0, 50.0).gated

    short, slow = (
        wall_energy(meter(job, -10.5, 75.0, every_s), 0.0, 60.0) for every_s in (1.0, 4.0)
    )

    assert short.uncertainty_j == pytest.approx(1.8 * 2 * 2600)
    assert short.notes == ()
    assert slow.notes == (
        Note.of("meter_unsure", share=pytest.approx(0.08, abs=0.005), period_s=4.0),
    )
    assert Source.METER.label == "wall energy by the meter of --mlperf-meter, not MLPerf Power"
    with pytest.raises(ValueError, match="ends 1 s before it begins"):
        wall_energy(STEADY, 2.0, 1.0)

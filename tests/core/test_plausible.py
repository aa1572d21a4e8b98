"""What no hardware can show is unknown wherever it enters, and is never printed."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_mlperf.core.energy import measure
from pytest_mlperf.core.energy.exporter import (
    ENERGY_METRIC,
    POWER_METRIC,
    ExporterLook,
    exported_energy,
    read_exporter,
)
from pytest_mlperf.core.energy.host import Counted, host_energy
from pytest_mlperf.core.energy.meter import parse_meter, wall_energy
from pytest_mlperf.core.energy.readings import MAX_RISE_WATTS, Reading, without_misreads
from pytest_mlperf.core.notes import Note
from pytest_mlperf.core.plausible import BOUNDS, plausible_reading
from tests.core.made import keys_of

BLANKS = [
    *(float(2**bits) for bits in (31, 32, 47, 53, 63, 64)),
    *(2.0**32 - 1, 2.0**47 - 1, 2.0**63 - 14, 2.0**64 - 1, 1e300, -1.0, -(2.0**31), -(2.0**63)),
]
"""What drivers show for "not known", and what overflows leave."""

garbage = st.sampled_from(BLANKS)


def test_every_quantity_has_bounds_that_no_blank_of_a_driver_lies_in() -> None:
    """A mapping keeps its possible values, a list is one reading, and names stay unchanged."""
    inside = {
        name: [b for b in (*BLANKS, math.nan, math.inf) if plausible_reading(name, b) is not None]
        for name in BOUNDS
    }
    wide = {"nvlink_bytes", "energy_j", "memory_used", "throttle_ns"}
    assert {name for name, blanks in inside.items() if blanks} <= wide
    assert all(max(blanks, default=0) <= BOUNDS[n][1] for n, blanks in inside.items())
    assert all(plausible_reading(name, end) == end for name, ends in BOUNDS.items() for end in ends)

    assert plausible_reading("throttle_ns", {"a": 5, "b": 2**63}) == {"a": 5}
    assert plausible_reading("nvlink_errors", {"crc": {1: 4, 2: 2**32 - 1}}) == {"crc": {1: 4}}
    assert plausible_reading("nvlink_bytes", [5, 2**64 - 1]) is None
    assert plausible_reading("power_w", 1500.0, 1400.0) is None
    assert plausible_reading("name", "NVIDIA H200") == "NVIDIA H200"
    assert plausible_reading("xids", []) == []


def line(watts: float = 400.0, base: float = 1e6) -> list[Reading]:
    """A counter that steps ten times a second, read twenty times, for a minute."""
    moments = [n / 20 for n in range(1200)]
    return [Reading(time_s=t, value=base + watts * math.floor(t * 10) / 10) for t in moments]


def with_misreads(readings: Sequence[Reading], at: Sequence[int], value: float) -> list[Reading]:
    return [Reading(time_s=r.time_s, value=value) if n in at else r for n, r in enumerate(readings)]


TRACE = [Reading(time_s=n / 50, value=400.0) for n in range(3000)]


@settings(max_examples=20, deadline=None)
@given(
    at=st.sets(st.integers(1, 1198), min_size=1, max_size=250),
    value=st.sampled_from([0.0, 1.0, 999.0, 4_294_967.295, 9e10]),
)
def test_a_counter_that_comes_back_to_its_line_was_misread(at: set[int], value: float) -> None:
    """Its energy is that of the line, and no driver is blamed."""
    read = with_misreads(line(), sorted(at), value)

    kept, misread = without_misreads(read, 10.0, 50.0, MAX_RISE_WATTS)
    energy = measure(read, TRACE, 10.0, 50.0)

    assert misread == len(at)
    assert set(kept) <= set(line())
    assert energy.joules == pytest.approx(400 * 40, rel=0.01)
    assert (*energy.invalid, *energy.notes) == (Note.of("counter_misread", count=len(at)),)


def test_readings_outside_of_the_window_cost_no_energy() -> None:
    for at, value in (([0, 1], 9e9), ([1198, 1199], 0.0)):
        energy = measure(with_misreads(line(), at, value), TRACE, 10.0, 50.0)
        assert energy.joules == pytest.approx(400 * 40, rel=0.01)
        assert energy.invalid == ()


def test_a_counter_that_does_not_come_back_was_reset_or_jumped() -> None:
    """Neither is an energy; a driver was reloaded only if the counter fell."""
    reset = [*line()[:600], *(Reading(time_s=r.time_s, value=r.value - 1e6) for r in line()[600:])]
    jumped = [*line()[:600], *(Reading(time_s=r.time_s, value=r.value + 1e6) for r in line()[600:])]
    young = [Reading(time_s=r.time_s, value=r.value - 1e6) for r in line()]
    young = [*young[:300], *(Reading(time_s=r.time_s + 15, value=r.value) for r in young[:900])]
    crept = [Reading(time_s=r.time_s, value=r.value * 4) for r in line()]
    for read, key in (
        (reset, "counter_reset"),
        (young, "counter_reset"),
        (jumped, "counter_jumped"),
        (crept, "counter_too_fast"),
    ):
        energy = measure(read, TRACE, 10.0, 50.0, limit_w=700.0, most_w=1400.0)
        assert keys_of(energy.invalid) == [key], read
        assert energy.method != "counter"
        assert not energy.gated
    assert without_misreads([], 0.0, 1.0) == ([], 0)
    assert [r.value for r in without_misreads(errors(3, 900, 3), 0.0, 2.0)[0]] == [3, 3]
    assert without_misreads(errors(3, 3, 900), 0.0, 2.0) == (errors(3, 3, 900), 0)


def errors(*counts: int) -> list[Reading]:
    return [Reading(time_s=float(n), value=count) for n, count in enumerate(counts)]


def numbers(value: Any) -> list[float]:
    """Return every number that stands in a value, or in its notes."""
    return [
        float(n.replace(",", ""))
        for n in re.findall(r"-?\d[\d,]*\.?\d*(?:e[+-]?\d+)?", repr(value))
    ]


def page(joules: float, watts: float) -> bytes:
    labels = '{gpu="0",UUID="GPU-a",modelName="NVIDIA Z",Hostname="box"}'
    return (
        f"{ENERGY_METRIC}{labels} {joules * 1000:.0f}\n{POWER_METRIC}{labels} {watts:.3f}\n"
    ).encode()


@settings(max_examples=20, deadline=None)
@given(
    at=st.sets(st.integers(0, 119), max_size=12),
    value=st.one_of(garbage, st.just(0.0)),
    counted=st.booleans(),
)
def test_no_output_of_an_exporter_is_physically_impossible(
    at: set[int], value: float, counted: bool
) -> None:
    looks = []
    for n in range(240):
        bad = n - 60 in at
        joules = (value if bad else 1e6 + 400 * (n // 2)) if counted else value
        text = page(joules, value if bad or not counted else 400.0)
        looks.append(ExporterLook(time_s=n / 2, gpus=read_exporter(text)))

    energy = exported_energy(looks, 20.0, 100.0, expected=1)

    assert max(numbers(energy)) <= 400 * 81
    assert energy.joules is None or energy.joules == pytest.approx(400 * 80, rel=0.02)


@settings(max_examples=60, deadline=None)
@given(at=st.sets(st.integers(20, 60), min_size=1, max_size=9), value=garbage)
def test_no_output_of_a_wall_meter_or_of_a_host_is_physically_impossible(
    at: set[int], value: float
) -> None:
    """A reading that failed is left out of the mean and counted, as MLPerf leaves out 0 W."""
    rows = [f"{1.7e9 + n},{value if n in at else 900}\n" for n in range(100)]
    wall = wall_energy(
        parse_meter("time,watts\n" + "".join(rows), name="m"), 1.7e9 + 10, 1.7e9 + 80
    )
    package = Counted(
        range_j=262_143.0,
        readings=tuple(with_misreads(line(200.0, 1e3), [n * 10 for n in at], value)),
    )
    host = host_energy({"package-0": package}, 10.0, 50.0)

    assert wall.mean_w in (None, 900.0)
    assert wall.dropped == len(at)
    assert host.joules is None or host.joules == pytest.approx(200 * 40, rel=0.05)


def test_a_meter_of_a_second_is_never_sure_of_the_edges() -> None:
    """Half of a reading's share at least, of a power that stands still."""
    for every_s, share in ((1.0, 0.5 / 70), (0.1, 0.05 / 70)):
        rows = [f"{1.7e9 + n * every_s},900\n" for n in range(round(100 / every_s))]
        readings = parse_meter("time,watts\n" + "".join(rows), name="m")
        wall = wall_energy(readings, 1.7e9 + 10, 1.7e9 + 80)
        assert wall.uncertainty_j == pytest.approx(share * 900 * 70)


NO_COUNTER = Note.of("no_counter", reader="exporter", metric=ENERGY_METRIC)


def of_b(note: Note) -> Note:
    return Note.of("of_gpus", gpus=("b",), notes=(note,), of=2)


NOTES: list[tuple[dict[str, float], Note]] = [
    ({"a": 0.0}, NO_COUNTER),
    ({"a": 1.0, "b": 0.0}, of_b(NO_COUNTER)),
    ({"a": 1.0, "b": -1.0}, of_b(Note.of("counter_stale"))),
]
"""Whether the counter of each GPU shows 0, grows (1) or stands still (-1), and the note."""


def test_a_counter_of_0_and_one_that_was_left_over_are_called_that() -> None:
    for gpus, note in NOTES:
        looks = []
        for n in range(240):
            text = b"".join(
                page(0.0 if grows == 0 else 1e6 + max(grows, 0) * 400 * (n // 2), 400.0).replace(
                    b"GPU-a", uuid.encode()
                )
                for uuid, grows in gpus.items()
            )
            looks.append(ExporterLook(time_s=n / 2, gpus=read_exporter(text)))
        energy = exported_energy(looks, 20.0, 100.0)
        assert energy.notes[0] == note
        assert "counter_seldom" not in keys_of(energy.notes)

    stale = page(1e6, 400.0) + page(2e6, 400.0) + page(1e6, 400.0)
    assert [gpu.joules for gpu in read_exporter(stale).values()] == [2e6]
    powerless = read_exporter(page(1e6, 0.0))["GPU-a"]
    assert (powerless.watts, powerless.joules) == (None, 1e6)


def test_an_exporter_that_is_refreshed_every_second_gets_no_advice_to_do_so() -> None:
    looks = [
        ExporterLook(time_s=n / 2, gpus=read_exporter(page(1e6 + 400 * (n // 2), 400.0)))
        for n in range(240)
    ]
    short = exported_energy(looks, 20.0, 26.0)
    slow = exported_energy([look for n, look in enumerate(looks) if n % 12 == 0], 20.0, 60.0)

    for energy, advice in ((short, "run_short"), (slow, "exporter_slow")):
        values = [note.values for note in energy.notes if isinstance(note, Note)]
        assert {of["advice"] for of in values if "advice" in of} == {advice}

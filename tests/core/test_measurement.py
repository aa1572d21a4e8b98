"""Times of runs whatever the zone of the machine, and digests of outputs."""

from __future__ import annotations

import datetime as dt
import time

import pytest

from pytest_mlperf.core.measurement import Scored, changed_outputs, day_groups, digest, moment_of

NOON = dt.datetime(2026, 11, 20, 12, tzinfo=dt.UTC)


def test_a_time_without_a_zone_is_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it is read in another time zone than that of the results."""
    texts = {
        "2026-11-20T12:00:00+00:00": NOON,
        "2026-11-20T12:00:00Z": NOON,
        "2026-11-20T13:00:00+01:00": NOON,
        "2026-11-20T12:00:00": NOON,
        "2026-11-20": NOON - dt.timedelta(hours=12),
        "0001-01-01T00:00:00": dt.datetime(1, 1, 1, tzinfo=dt.UTC),
        "yesterday": None,
        "": None,
    }
    for zone in ("UTC", "Asia/Tokyo"):
        with monkeypatch.context() as patch:
            patch.setenv("TZ", zone)
            time.tzset()
            moments = {text: moment_of(text) for text in texts}
        time.tzset()
        assert moments == texts
        assert all(moment is None or moment.tzinfo for moment in moments.values())


def test_outputs_that_differ_in_one_bit_have_different_digests() -> None:
    """A digest takes two bytes. Of 10,000 pairs, less than 1 in 2,000 is missed."""
    missed = 0
    for number in range(10_000):
        output, other = (n.to_bytes(8, "little") for n in (number, number ^ 1 << number % 60))
        missed += digest(output) == digest(other)
        assert 0 <= digest(output) < 2**16
    assert missed < 4


def test_changed_outputs_are_counted_by_data_set_index() -> None:
    scored = Scored(indices=(1, 3, 4), per_sample={}, outputs=(11, 99, 14))

    assert changed_outputs([10, 11, 12, 13, 14], scored) == 1
    assert changed_outputs(None, scored) is None
    assert changed_outputs([10, 11], Scored(indices=(0, 1), per_sample={})) is None
    assert Scored(indices=(), per_sample={}).outputs is None


A, B = "aa 11 22", "bb 33 44"


@pytest.mark.parametrize(
    ("sessions", "groups"),
    [
        # Days are UTC; a session belongs to the day of its first run.
        ((("a", "2026-11-20T01:00:00+00:00"), ("b", "2026-11-20T23:59:59+00:00")), "aa"),
        ((("a", "2026-11-20T23:59:59+00:00"), ("b", "2026-11-21T00:00:00+00:00")), "ab"),
        ((("a", "2026-11-21T00:30:00+02:00"), ("b", "2026-11-20T08:00:00+00:00")), "aa"),
        ((("a", "2026-11-20T08:00:00"), ("a", "2026-11-21T08:00:00")), "a"),
        # Machines count apart where both are known and share neither name nor GPU.
        ((("a", "2026-11-20", A), ("b", "2026-11-20", B)), "ab"),
        ((("a", "2026-11-20", A), ("b", "2026-11-20", "aa 55")), "aa"),
        ((("a", "2026-11-20", A), ("b", "2026-11-20", "22 11")), "aa"),
        ((("a", "2026-11-20", A), ("b", "2026-11-20", "")), "aa"),
        ((("a", "2026-11-20", ""), ("b", "2026-11-20", B), ("c", "2026-11-20", A)), "aac"),
        # Clocks that went backwards, the same second, and dates that are none.
        ((("a", "2026-11-20T08:00:00+00:00"), ("b", "1970-01-01T00:00:00+00:00")), "aa"),
        ((("a", "2026-11-20T08:00:00+00:00"), ("b", "2026-11-18T08:00:00+00:00")), "ab"),
        ((("a", "2026-11-20T08:00:00+00:00"), ("b", "2026-11-20T08:00:00+00:00")), "aa"),
        ((("a", ""), ("b", "yesterday"), ("c", "2026-11-20"), ("d", "2026-11-21")), "aaad"),
        ((("a", "0001-01-01T00:00:00+14:00"), ("b", "9999-12-31T23:59:59-14:00")), "aa"),
        ((("a", ""), ("b", "2026-13-40T99:00:00")), "aa"),
    ],
)
def test_sessions_of_one_day_and_machine_are_one_group(
    sessions: tuple[tuple[str, ...], ...], groups: str
) -> None:
    runs = [(session, started, *(machine or [""])) for session, started, *machine in sessions]

    assert "".join(day_groups(runs).values()) == groups  # type: ignore[arg-type]

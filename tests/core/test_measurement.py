"""Times of runs: one reading, whatever the zone of the machine that reads."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator

import pytest

from pytest_mlperf.core.measurement import moment_of

NOON = dt.datetime(2026, 11, 20, 12, tzinfo=dt.UTC)


@pytest.fixture(params=["UTC", "Asia/Tokyo"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Read in another zone than that of the results."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", request.param)
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("zone")
@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-11-20T12:00:00+00:00", NOON),
        ("2026-11-20T12:00:00Z", NOON),
        ("2026-11-20T13:00:00+01:00", NOON),
        ("2026-11-20T12:00:00", NOON),
        ("2026-11-20", NOON - dt.timedelta(hours=12)),
        ("0001-01-01T00:00:00", dt.datetime(1, 1, 1, tzinfo=dt.UTC)),
        ("yesterday", None),
        ("", None),
    ],
)
def test_a_time_without_a_zone_is_utc(text: str, moment: dt.datetime | None) -> None:
    found = moment_of(text)

    assert found == moment
    assert found is None or found.tzinfo is not None

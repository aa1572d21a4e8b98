"""Reading a meter's file while its logger still writes it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.run.power.figures import read_meter

BEGIN_S = 1_763_640_000.0


def lines(first: int, last: int) -> str:
    return "".join(f"{BEGIN_S + i:.3f},{400 + i}\n" for i in range(first, last))


def write(path: Path, text: str) -> Path:
    path.write_text(text, "utf-8")
    return path


def test_a_file_that_reaches_far_enough_is_not_waited_for_and_a_cut_line_is_left_out(
    tmp_path: Path,
) -> None:
    """The present readings come back; `wall_energy` reports that they end early."""
    path = write(tmp_path / "meter.csv", "time,watts\n" + lines(0, 30))
    began = time.monotonic()
    readings = read_meter(path, until_s=BEGIN_S + 28.5, patience_s=60.0)
    assert time.monotonic() - began < 30.0
    assert [reading.watts for reading in readings] == [400.0 + i for i in range(30)]
    assert readings[-1].time_s == BEGIN_S + 29
    began = time.monotonic()
    assert len(read_meter(path, until_s=BEGIN_S + 99, patience_s=0.1)) == 30
    assert time.monotonic() - began >= 0.1

    whole = ("time,watts,place\n" + lines(0, 3).replace("\n", ",Küche\n")).encode()
    for length in range(len(whole)):
        (tmp_path / "meter.csv").write_bytes(whole[:length])

        readings = read_meter(tmp_path / "meter.csv", until_s=BEGIN_S + 99, patience_s=0.0)

        assert len(readings) == max(whole[:length].count(b"\n") - 1, 0)


LOGGER = """
import sys, time
path, begin_s, count = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
with open(path, "a", encoding="ascii") as file:
    for i in range(count):
        line = f"{begin_s + i:.3f},{400 + i}\\n"
        for part in (line[:9], line[9:]):
            file.write(part)
            file.flush()
            time.sleep(0.02)
"""


@pytest.mark.process
def test_a_logger_is_waited_for_until_it_is_past_the_window(tmp_path: Path) -> None:
    """It writes its lines in two parts, so that cut ones are seen."""
    path = write(tmp_path / "meter.csv", "time,watts\n")
    logger = subprocess.Popen([sys.executable, "-c", LOGGER, str(path), str(BEGIN_S), "20"])
    try:
        readings = read_meter(path, until_s=BEGIN_S + 17.5, patience_s=60.0)
    finally:
        logger.wait()

    assert len(readings) in {19, 20}
    assert [reading.watts for reading in readings] == [400.0 + i for i in range(len(readings))]


def test_an_unreadable_meter_file_is_reported_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "wide.csv").write_bytes("time,watts\n".encode("utf-16") + b"\n")
    began = time.monotonic()
    for name, message in (
        ("meter.csv", "cannot be read: No such file or directory; start the meter's logger first"),
        (".", "is not a file; name the file that the wall meter writes"),
        ("pipe", "is not a file; name the file that the wall meter writes"),
        ("wide.csv", "is not UTF-8 text: invalid start byte at byte 0; let its logger write plain"),
    ):
        with pytest.raises(SuiteError) as caught:
            read_meter(tmp_path / name, until_s=0.0, patience_s=60.0)
        assert f"{tmp_path / name} {message}" in str(caught.value)
    assert time.monotonic() - began < 30.0

    path = write(tmp_path / "meter.csv", "time,watts\n" + lines(0, 2) + "now,400\n")
    with pytest.raises(SuiteError, match=r"meter\.csv:4: 'now' is not a time"):
        read_meter(path, until_s=0.0)

    line = "Time,11-20-2025 13:00:00.000,Watts,400.0,Volts,230\n"
    path = write(tmp_path / "spl.txt", line)
    (reading,) = read_meter(path, until_s=0.0, local_offset_s=3600)
    assert reading.time_s == BEGIN_S

"""`pytest-mlperf judge` on 20 files, and on 1,000 files of 10 points each: time and memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.addons.judge.files import document, spread, write
from tests.addons.judge.recorded import serving

LIMITS = {20: (2.0, 200), 1_000: (30.0, 500)}
"""What is promised, by the number of files: seconds of a core, and MB of memory."""

POINTS = 10

SLOWER = 1.12


class Cost(NamedTuple):
    """Hold the processor time [s] and the largest memory [MB] of a process."""

    cpu_s: float
    megabytes: float


def cost(command: list[str], folder: Path) -> Cost:
    """Run a command that finds a drop; return its cost."""
    child = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)

    assert child.returncode == 1
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1000)


def benchmark_files(folder: Path, *, side: int, runs: int) -> None:
    """Write files of Google Benchmark, one a day, with a drop in the last point of side 1."""
    content = document("google-benchmark.json")
    row = content["benchmarks"][0]
    factors = [spread(side)[number % 10] for number in range(runs)]
    for number, factor in enumerate(factors):
        times = [factor * (1 + number / 1e6)] * POINTS
        times[-1] *= SLOWER if side else 1.0
        rows = [
            {**row, "name": f"BM_{n}", "run_name": f"BM_{n}", "real_time": time}
            for n, time in enumerate(times)
        ]
        day = f"{2025 + number // 336}-{1 + number // 28 % 12:02d}-{1 + number % 28:02d}"
        context = {**content["context"], "date": f"{day}T{8 + side:02d}:00:00+00:00"}
        write(folder / f"{number}.json", json.dumps({"context": context, "benchmarks": rows}))


@pytest.mark.parametrize("files", LIMITS)
def test_files_to_a_verdict(benchmark: Any, tmp_path: Path, files: int) -> None:
    for side, name in enumerate(("old", "new")):
        if files == 20:
            for part in range(2):
                days = {
                    "side": side,
                    "slower": 1 + 0.12 * side,
                    "first_day": 1 + 5 * part + 10 * side,
                }
                serving(tmp_path / name / str(part), **days)  # type: ignore[arg-type]
        else:
            benchmark_files(tmp_path / name, side=side, runs=files // 2)
    command = [sys.executable, "-m", "pytest_mlperf", "judge", "new", "--against", "old"]
    measured = benchmark.pedantic(cost, args=(command, tmp_path), rounds=1)
    seconds, megabytes = LIMITS[files]
    print(
        f"\njudge of {files:,} files: {measured.cpu_s:.1f} s of a core, {measured.megabytes:.0f} MB"
    )

    assert measured.cpu_s < seconds
    assert measured.megabytes < megabytes

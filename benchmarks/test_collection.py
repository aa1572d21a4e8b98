"""What the plugin costs before anything is measured: its import, and collecting a huge suite."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROUNDS = 9
ITEMS = 10_000

COLLECT = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
COLLECT += ["-p", "no:xdist", "-p", "no:benchmark", "-p", "no:hypothesispytest", "-p", "no:anyio"]


def seconds(command: list[str], folder: Path) -> float:
    """Run a command and return its wall-clock time."""
    start = time.perf_counter()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    elapsed = time.perf_counter() - start
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return elapsed


def cpu_seconds(command: list[str], folder: Path) -> float:
    """Run a command and return its user and system time: steadier than the clock on the wall."""
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_utime + usage.ru_stime


def interleaved(first: Callable[[], float], second: Callable[[], float]) -> tuple[float, float]:
    """Return the medians of two measurements taken in turn."""
    pairs = [(first(), second()) for _ in range(ROUNDS)]
    return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs)


def record(benchmark: Any, medians: dict[str, float], **more: float) -> None:
    """Put figures taken elsewhere into pytest-benchmark's files."""
    benchmark.extra_info.update({**medians, **more})
    benchmark.pedantic(lambda: None, rounds=1)


def huge_suite() -> str:
    """Return a suite of 10,000 tests: 1,250 engines x 4 scenarios x (accuracy, performance)."""
    lines = [
        'schema = 1\nround = "v4.1"\n[workload]\nname = "big"\nscorer = { use = "top1" }',
        'dataset = { use = "synthetic" }',
    ]
    for index in range(ITEMS // 8):
        lines.append(
            f'[[engines]]\nuse = "null"\nname = "e{index}"\noptions = {{ batch_size = 1 }}'
        )
    for name in ("Offline", "SingleStream", "MultiStream"):
        lines.append(f'[[scenarios]]\nname = "{name}"')
    lines.append('[[scenarios]]\nname = "Server"\nlatency_limit = "15ms"')
    return "\n".join(lines)


PLAIN = f"""
import pytest
@pytest.mark.parametrize("case", range({ITEMS // 2}))
def test_accuracy(case): pass
@pytest.mark.parametrize("case", range({ITEMS // 2}))
def test_performance(case): pass
"""


@pytest.mark.benchmark(group="collection")
def test_ten_thousand_tests_collect_like_plain_parametrized_ones(
    benchmark: Any, tmp_path: Path
) -> None:
    """Target: at most 1.5 x the time of 10,000 plain parametrized tests, whole processes."""
    (tmp_path / "big.mlperf.toml").write_text(huge_suite())
    (tmp_path / "test_plain.py").write_text(PLAIN)

    suite, plain = interleaved(
        lambda: seconds([*COLLECT, "big.mlperf.toml"], tmp_path),
        lambda: seconds([*COLLECT, "test_plain.py"], tmp_path),
    )

    print(f"\ncollect {ITEMS:,}: suite {suite:.2f} s, plain {plain:.2f} s, {suite / plain:.2f} x")
    record(benchmark, {"suite_s": suite, "plain_s": plain}, ratio=suite / plain)
    assert suite / plain <= 1.5


@pytest.mark.benchmark(group="import")
def test_a_project_without_suites_hardly_pays_for_the_plugin(
    benchmark: Any, tmp_path: Path
) -> None:
    """Target: at most 15 ms for importing the plugin after pytest, and for its hooks."""
    (tmp_path / "test_one.py").write_text("def test_one(): pass\n")
    code = (
        "import pytest, time; a = time.perf_counter(); import pytest_mlperf.plugin.hooks; "
        "print((time.perf_counter() - a) * 1000)"
    )

    def import_ms() -> float:
        command = [sys.executable, "-c", code]
        return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:benchmark"]
    with_plugin, without = interleaved(
        lambda: cpu_seconds(run, tmp_path), lambda: cpu_seconds([*run, "-p", "no:mlperf"], tmp_path)
    )
    imported = statistics.median(import_ms() for _ in range(ROUNDS))

    whole = (with_plugin - without) * 1000
    print(f"\nimport {imported:.1f} ms; a whole pytest run differs by {whole:+.1f} ms of CPU time")
    record(benchmark, {"import_ms": imported, "whole_run_ms": whole})
    assert imported <= 15


@pytest.mark.benchmark(group="start")
def test_version_and_help_start_at_once(benchmark: Any, tmp_path: Path) -> None:
    """Target: at most 0.3 s of processor time for `--version`, 0.5 s for `--help`."""
    command = [sys.executable, "-m", "pytest_mlperf"]

    version, bare = interleaved(
        lambda: cpu_seconds([*command, "--version"], tmp_path),
        lambda: cpu_seconds([sys.executable, "-c", "pass"], tmp_path),
    )
    usage, plan = interleaved(
        lambda: cpu_seconds([*command, "--help"], tmp_path),
        lambda: cpu_seconds([*command, "plan", "--help"], tmp_path),
    )

    print(
        f"\n--version {version:.2f} s, {version / bare:.1f} x a bare Python; "
        f"--help {usage:.2f} s; plan --help {plan:.2f} s"
    )
    record(benchmark, {"version_s": version, "help_s": usage, "plan_help_s": plan, "bare_s": bare})
    assert version <= 0.3
    assert usage <= 0.5

"""Test the log of a wall meter during a run: a metric of its own, on any machine."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.stores.results import read_results
from tests.plugin.project import OPTIONS, Project, newest_results

LIMITS = """
[limits]
throughput = { max_drop = "40%" }
samples_per_joule_wall = { max_drop = "40%" }
"""

OFFLINE = """
[[scenarios]]
name = "Offline"
target_qps = 500
min_duration = "1500ms"
"""

GATED_FROM_1_S = """
from pytest_mlperf.core import energy
energy.MIN_GATED_SECONDS = 1.0
"""
"""Else a window of 20 s is needed, for the meter's slow readings; this one has 20 a second."""

LOGGER = """
import select, sys, time
with open(sys.argv[1], "w", buffering=1) as file:
    print("time,watts", file=file)
    while not select.select([sys.stdin], [], [], 0.05)[0]:
        print(f"{time.time():.3f},{open(sys.argv[2]).read().strip()}", file=file)
"""


class Logger:
    """A meter that logs the watts that a file says, 20 times a second."""

    def __init__(self, folder: Path) -> None:
        self.path, self._watts = folder / "meter.csv", folder / "watts"
        self.read(200)
        command = [sys.executable, "-c", LOGGER, str(self.path), str(self._watts)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE)
        first = threading.Event()
        while not (self.path.exists() and self.path.read_text("utf-8").count("\n") > 1):
            first.wait(0.02)

    def read(self, watts: float) -> None:
        draft = self._watts.with_suffix(".new")
        draft.write_text(f"{watts}", "utf-8")
        draft.replace(self._watts)

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def meter(tmp_path: Path, project: Project) -> Iterator[Logger]:
    project.pytester.makeconftest(GATED_FROM_1_S)
    project.suite(scenarios=OFFLINE, more=LIMITS)
    logger = Logger(tmp_path)
    yield logger
    logger.stop()


def outcomes(project: Project) -> dict[str, Outcome]:
    newest = newest_results(project.path)
    return {each.verdict.kind: each.verdict.outcome for each in read_results(newest).cases}


ENDING = """
import os
import pathlib

from pytest_mlperf.builtin.null import NullEngine as Ending

made = pathlib.Path("made")
if made.exists():
    pathlib.Path(os.environ["METER"]).unlink(missing_ok=True)
if pathlib.Path("watched").exists():
    made.touch()
"""
"""From the second load after `watched` is there, the meter has no file any more."""


def test_samples_per_joule_at_the_wall_are_judged_on_any_machine(
    meter: Logger, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three times the power at the same speed is a POWER DROP.

    Where the meter ends between two runs, neither is the run without an energy left out, nor are
    runs made until one has it.
    """
    monkeypatch.setenv("METER", str(meter.path))
    project.pytester.makepyfile(ending=ENDING)
    engine = f'[[engines]]\nuse = "ending:Ending"\noptions = {OPTIONS}\n'
    project.suite(engines=engine, scenarios=OFFLINE, more=LIMITS)
    options = ("suites", f"--mlperf-meter={meter.path}")
    recorded = ("-k", "performance", "--mlperf-update=missing", "-omlperf_baseline_runs=1")
    project.run_process(*options, *recorded)
    project.over_days()

    meter.read(600)
    result = project.run_process(*options)

    assert outcomes(project) == {"performance": Outcome.OK, "efficiency": Outcome.POWER_DROP}
    result.stdout.re_match_lines(
        [
            r"POWER DROP samples/J at the wall −[67]\d\.\d % .*",
            r".* J \(± .*\) at the wall in \d\.\d s, 600 W, .* J/sample: wall energy by the.*",
        ]
    )

    (project.path / "watched").touch()
    result = project.run_process(*options)

    assert outcomes(project) == {"performance": Outcome.OK, "efficiency": Outcome.INVALID}
    result.stdout.fnmatch_lines(["*INVALID samples/J at the wall: energy unknown in run 2 of 2*"])


def test_a_meter_that_stops_or_whose_file_breaks_gives_no_energy_and_never_0(
    meter: Logger, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METER", str(meter.path))
    project.pytester.makepyfile(ending=ENDING)
    engine = f'[[engines]]\nuse = "ending:Ending"\noptions = {OPTIONS}\n'
    project.suite(engines=engine, more=LIMITS)
    meter.stop()
    stopped = project.run_process("suites", f"--mlperf-meter={meter.path}", "-rs")
    assert outcomes(project) == {"performance": Outcome.NO_BASELINE}
    (project.path / "made").touch()
    broken = project.run_process("suites", f"--mlperf-meter={meter.path}", "-rs")
    assert outcomes(project) == {"performance": Outcome.NO_BASELINE}

    stopped.stdout.fnmatch_lines(
        ["*cpu: energy unknown: the meter's log is from * UTC, the run from *"]
    )
    broken.stdout.fnmatch_lines(["*energy unknown: the wall meter's file * cannot be read*"])


def test_a_wrong_file_is_refused(tmp_path: Path, project: Project) -> None:
    project.suite(scenarios=OFFLINE, more=LIMITS)
    (tmp_path / "other.log").write_text("volts,amps\n1,2\n", "utf-8")
    for name, message in {
        "absent.log": "the wall meter's file *absent.log cannot be read: No such file or *",
        "other.log": "*other.log*",
    }.items():
        result = project.run("suites", "-k", "efficiency", f"--mlperf-meter={tmp_path / name}")

        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines([f"ERROR: --mlperf-meter: *{message}"])
        assert not (project.path / ".mlperf").exists()

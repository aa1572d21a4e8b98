"""GPUs of another machine, by the page of a DCGM exporter: metrics of their own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler

import pytest

from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.stores.results import read_results
from tests.exporters import Exporter, exporting, page
from tests.plugin.project import Project, newest_results

LIMITS = """
[limits]
throughput = { max_drop = "40%" }
samples_per_joule_dcgm = { max_drop = "40%" }
"""

OFFLINE = """
[[scenarios]]
name = "Offline"
target_qps = 500
min_duration = "3s"
"""

GATED_FROM_1_S = """
from pytest_mlperf.core import energy
from pytest_mlperf.core.energy import exporter
from pytest_mlperf.run.power import exporter as watched
energy.MIN_GATED_SECONDS, energy.UNSURE = 1.0, 0.9
watched.POLL_SECONDS = 0.02
"""
"""Else a window of 20 s is needed; this exporter asks ten times a second."""

SAMPLE = '{name}{{gpu="0",UUID="GPU-a",modelName="NVIDIA H200",Hostname="box"}} {value}\n'


class Board:
    """A board whose counter grows by its power."""

    def __init__(self) -> None:
        self.watts = 200.0
        self._joules, self._since_s = 1e6, time.monotonic()

    def draw(self, watts: float) -> None:
        self._joules, self._since_s = self._counter(time.monotonic()), time.monotonic()
        self.watts = watts

    def _counter(self, at_s: float) -> float:
        return self._joules + self.watts * (at_s - self._since_s)

    def show(self, handler: BaseHTTPRequestHandler) -> None:
        joules = self._counter(time.monotonic() // 0.1 * 0.1)
        values = {
            "DCGM_FI_DEV_POWER_USAGE": self.watts,
            "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": round(1000 * joules),
        }
        page("".join(SAMPLE.format(name=n, value=v) for n, v in values.items()))(handler)


@pytest.fixture
def board() -> Board:
    return Board()


@pytest.fixture
def exporter(board: Board, project: Project) -> Iterator[Exporter]:
    project.pytester.makeconftest(GATED_FROM_1_S)
    project.suite(scenarios=OFFLINE, more=LIMITS)
    with exporting(board.show) as server:
        yield server


def outcomes(project: Project) -> dict[str, Outcome]:
    newest = newest_results(project.path)
    return {each.verdict.kind: each.verdict.outcome for each in read_results(newest).cases}


def test_samples_per_joule_of_a_servers_gpus_are_judged_by_themselves(
    board: Board, exporter: Exporter, project: Project
) -> None:
    """Three times the power at the same speed is a POWER DROP; nothing of NVML's is in it."""
    options = ("suites", f"--mlperf-dcgm={exporter.url}", "-omlperf_dcgm_gpus=GPU-a")
    recorded = ("-k", "performance", "--mlperf-update=missing", "-omlperf_baseline_runs=1")
    project.run_process(*options, *recorded)
    project.over_days()

    board.draw(600)
    result = project.run_process(*options)

    assert outcomes(project) == {"performance": Outcome.OK, "efficiency": Outcome.POWER_DROP}
    result.stdout.re_match_lines(
        [
            r"POWER DROP samples/J by DCGM −[67]\d\.\d % .*",
            r".* J \(± .*\) of 1 x NVIDIA H200 in \d\.\d s, [56]\d\d W, .*",
        ]
    )


def test_an_exporter_that_goes_away_costs_the_energy_and_says_so(
    exporter: Exporter, project: Project
) -> None:
    """It answers when the session looks for it, and never again."""
    first = exporter.show

    def once(handler: BaseHTTPRequestHandler) -> None:
        (first if exporter.requests == 1 else page("gone", 503))(handler)

    exporter.show = once
    result = project.run_process("suites", f"--mlperf-dcgm={exporter.url}", "-rs")

    assert outcomes(project) == {"performance": Outcome.NO_BASELINE}
    result.stdout.fnmatch_lines(["*the DCGM exporter reported no GPU: *answers 503*"])


def test_an_exporter_that_is_none_ends_the_session_before_any_test(
    exporter: Exporter, project: Project
) -> None:
    rows = [
        ("gpu-box:9400", "*'gpu-box:9400' is not an address such as *"),
        (exporter.url, "*shows no GPU GPU-z; mlperf_dcgm_gpus may name GPU-a, box"),
        ("http://127.0.0.1:1/metrics", "*does not answer: *start the DCGM exporter*"),
    ]
    for address, message in rows:
        result = project.run("suites", f"--mlperf-dcgm={address}", "-omlperf_dcgm_gpus=GPU-z")

        assert result.ret == 4
        result.stderr.fnmatch_lines([f"ERROR: --mlperf-dcgm: {message}"])
    assert not (project.path / ".mlperf").exists()


def test_without_an_exporter_the_option_is_named(project: Project) -> None:
    project.suite(more=LIMITS)

    result = project.run("suites", "-k", "efficiency", "-rs")

    result.stdout.fnmatch_lines(["*samples_per_joule_dcgm and --mlperf-dcgm*"])

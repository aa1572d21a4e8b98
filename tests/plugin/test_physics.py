"""What stands beside a result: its share of what the GPU could do, and what a dollar buys."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_mlperf.core.results import CaseResult, Results
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.stores.results import read_results
from tests.nvml.library import Fake, scenario
from tests.plugin.project import Project

IMAGES = '\n[workload.work]\nkind = "fixed"\nsample_flop = 1e12\n'
"""A network whose every sample takes a TFLOP: an H200 does 66.9 in fp32, 494.7 in tf32."""

PRICE = "\n[prices]\nH200 = { usd_per_gpu_hour = 3.6, as_of = 2026-11-01 }\n"


@pytest.fixture
def h200(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """A machine with an H200, whose power nobody asks for."""
    found = Fake(tmp_path)
    found.write(*scenario("util 90 40"))
    for name, value in found.environment.items():
        if name in {"LD_LIBRARY_PATH", "FAKE_NVML_SCENARIO"}:
            monkeypatch.setenv(name, value)
    return found


def run(project: Project, more: str) -> tuple[pytest.RunResult, CaseResult]:
    project.suite(accelerators=["H200"], more=more)
    result = project.run_process("suites", "-k", "performance", "-omlperf_power=off")
    return result, newest(project).cases[0]


def newest(project: Project) -> Results:
    return read_results(max(project.path.glob(".mlperf/runs/*/results.json")))


def test_every_result_shows_its_share_and_its_cost(h200: Fake, project: Project) -> None:
    """500 samples/s of the 494.7 that tf32 allows would be too much; 0.1 TFLOP is a tenth of it."""
    result, found = run(project, IMAGES.replace("1e12", "1e11") + PRICE)

    light = found.verdict.runs[-1].light[0]
    rate = found.verdict.runs[-1].metrics["throughput"]
    assert light.metric == "throughput"
    assert light.estimated == pytest.approx(494.7e12 / 1e11)
    assert light.share == pytest.approx(rate / 4947)
    result.stdout.re_match_lines(
        [
            r"  samples/s: ([5-9]|10)(\.\d+)? % of the speed of light \(compute\); at most 4 947",
            r"  \d+ \d{3} samples/USD \(1 GPU at 3\.6 USD an hour, 2026-11-01\)",
        ]
    )
    assert found.verdict.cost is not None
    assert found.verdict.cost.value == pytest.approx(rate * 1000)


def test_a_figure_above_the_physical_limit_may_not_be_judged(h200: Fake, project: Project) -> None:
    result, found = run(project, IMAGES.replace("1e12", "1e13"))

    assert found.verdict.outcome is Outcome.INVALID
    assert found.verdict.runs == ()
    result.stdout.fnmatch_lines(
        ["INVALID samples/s is * % of the speed of light: above the physical limit (compute);*"]
    )


def test_an_unknown_gpu_is_never_guessed(h200: Fake, project: Project) -> None:
    h200.write(*scenario("name NVIDIA X900", "util 90 40"))
    project.suite(accelerators=["X900"], more=IMAGES)
    without = project.run_process("suites", "-omlperf_power=off")
    figures = '\n[accelerators.X900]\nfp32 = "1000 TFLOP/s"\n'
    project.suite(accelerators=["X900"], more=IMAGES + figures)
    given = project.run_process("suites", "-omlperf_power=off")

    without.stdout.fnmatch_lines(["  no limit known for X900: give its dense peaks in FLOP/s, *"])
    given.stdout.re_match_lines(["  samples/s: .* % of the speed of light .*; at most 1 000"])


def test_a_gpu_that_is_only_pretended_has_no_limit(project: Project) -> None:
    project.suite(accelerators=["H200"], more=IMAGES.replace("1e12", "1e13"))

    project.run("suites", "--mlperf-pretend=H200")

    (found,) = newest(project).cases
    assert found.verdict.outcome is Outcome.NO_BASELINE
    assert found.verdict.runs[-1].light == ()


def test_a_cpu_has_a_limit_where_the_suite_gives_its_figures(project: Project) -> None:
    project.suite(more=IMAGES.replace("1e12", "1e9"))
    silent = project.run("suites")
    project.suite(more=IMAGES.replace("1e12", "1e9") + '\n[accelerators.cpu]\nfp32 = "2 TFLOP/s"\n')
    told = project.run("suites")

    silent.stdout.no_fnmatch_line("*speed of light*")
    told.stdout.re_match_lines(["  samples/s: .* % of the speed of light .*; at most 2 000"])


# --- official results ------------------------------------------------------------------------

OF_BEST = '[limits]\nof_best_published = "{}"\nthroughput = {{ max_drop = "40%" }}\n'
"""The best official ResNet-50 of an H200 makes 96,029 samples/s in v4.1; this engine makes 500."""


def official(project: Project, least: str, *options: str, name: str = "resnet50") -> CaseResult:
    project.suite(accelerators=["H200"], name=name, more=OF_BEST.format(least))
    project.run_process("suites", "-k", "performance", "-omlperf_power=off", *options)
    return newest(project).cases[0]


@pytest.mark.usefixtures("h200")
def test_less_than_the_asked_share_of_the_best_official_result_fails(project: Project) -> None:
    """With a baseline and without; nothing is recorded of it either."""
    refused = official(project, "50%", "--mlperf-update=missing", "-omlperf_baseline_runs=2")
    recorded = official(project, "0.1 %", "--mlperf-update=missing", "-omlperf_baseline_runs=2")
    passed = official(project, "0.1 %")
    failed = official(project, "50 %")

    assert refused.verdict.outcome is Outcome.GATE_FAIL
    assert refused.verdict.headline.startswith("nothing recorded: 0.")
    assert recorded.verdict.outcome is Outcome.RECORDED
    assert not passed.verdict.fails
    assert failed.verdict.outcome is Outcome.GATE_FAIL
    assert re.fullmatch(
        r"0\.\d+ % of the best official result per GPU \(v4\.1, .+\); limit 50 %",
        failed.verdict.headline,
    )
    assert failed.verdict.notes[0].startswith("beside its baseline: ")
    assert [m.metric for m in failed.verdict.metrics] == [m.metric for m in passed.verdict.metrics]


@pytest.mark.usefixtures("h200")
def test_where_no_official_result_is_like_it_a_note_says_so(project: Project) -> None:
    """RGAT was submitted on B200 alone; the share is not taken as met in silence."""
    found = official(project, "50%", name="rgat")

    assert not found.verdict.fails
    assert any(
        note.startswith("of_best_published: nothing to compare with: no result of rgat")
        for note in found.verdict.notes
    )

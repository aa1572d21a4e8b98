"""Test the figures of a result that come from physics: share of the GPU's limit, and cost."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_mlperf.core.verdict import Outcome, Verdict
from pytest_mlperf.reports.sentences import sentence
from pytest_mlperf.stores.results import read_results
from tests.nvml.library import Fake, scenario
from tests.plugin.project import Project, newest_results

IMAGES = '\n[workload.work]\nkind = "fixed"\nsample_flop = 1e12\n'
"""A network whose every sample takes a TFLOP: an H200 does 66.9 in fp32, 494.7 in tf32."""

PRICE = "\n[prices]\nH200 = { usd_per_gpu_hour = 3.6, as_of = 2026-11-01 }\n"


@pytest.fixture
def h200(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Return a machine with an H200 whose power is not measured."""
    fake_gpu = Fake(tmp_path)
    fake_gpu.write(*scenario("util 90 40"))
    for name, value in fake_gpu.environment.items():
        if name in {"LD_LIBRARY_PATH", "FAKE_NVML_SCENARIO"}:
            monkeypatch.setenv(name, value)
    return fake_gpu


def newest(project: Project) -> dict[str, Verdict]:
    """Return the verdicts of the newest session by workload."""
    results = read_results(newest_results(project.path))
    return {each.verdict.case.workload: each.verdict for each in results.cases}


OF_BEST = '[limits]\nof_best_published = "{}"\nthroughput = {{ max_drop = "40%" }}\n'
"""The best official ResNet-50 of an H200 makes 96,029 samples/s in v4.1; this engine makes 500."""


@pytest.mark.usefixtures("h200")
def test_a_result_shows_its_share_of_the_limit_and_its_cost(project: Project) -> None:
    """500 samples/s of the 494.7 that tf32 allows would be too much; 0.1 TFLOP is a tenth of it.

    RGAT was submitted on B200 alone; the share is not taken as met in silence.
    """
    for name, more in {
        "light": IMAGES.replace("1e12", "1e11") + PRICE,
        "heavy": IMAGES.replace("1e12", "1e13"),
        "rgat": OF_BEST.format("50%"),
    }.items():
        file = f"suites/{name}.mlperf.toml"
        project.suite(file, name=name, accelerators=["H200"], more=more)

    result = project.run_process("suites", "-k", "performance", "-omlperf_power=off")

    verdicts = newest(project)
    run = verdicts["light"].runs[-1]
    light, rate = run.light[0], run.metrics["throughput"]
    assert light.metric == "throughput"
    assert light.estimated == pytest.approx(494.7e12 / 1e11)
    assert light.share == pytest.approx(rate / 4947)
    result.stdout.re_match_lines(
        [
            r"  samples/s: ([5-9]|10)(\.\d+)? % of the roofline \(compute\); at most 4,947",
            r"  \d+,\d{3} samples/USD \(1 GPU at 3\.6 USD an hour, 2026-11-01\)",
        ]
    )
    cost = verdicts["light"].cost
    assert cost is not None
    assert cost.value == pytest.approx(rate * 1000)

    assert (verdicts["heavy"].outcome, verdicts["heavy"].runs) == (Outcome.INVALID, ())
    result.stdout.fnmatch_lines(
        ["INVALID samples/s is * % of the roofline, which is physically impossible *"]
    )

    assert not verdicts["rgat"].fails
    note = "[limits] of_best_published was not checked: there is no official result of rgat"
    assert any(text.startswith(note) for text in map(sentence, verdicts["rgat"].notes))


def test_an_unknown_gpu_is_never_guessed(h200: Fake, project: Project) -> None:
    h200.write(*scenario("name NVIDIA X900", "util 90 40"))
    figures = '\n[accelerators.X900]\nfp32 = "1000 TFLOP/s"\n'
    for name, more in {"without": IMAGES, "given": IMAGES + figures}.items():
        project.suite(f"suites/{name}.mlperf.toml", name=name, accelerators=["X900"], more=more)

    result = project.run_process("suites", "-omlperf_power=off")

    result.stdout.re_match_lines_random(
        [
            r"  no limit known for X900: set its dense peaks \(FLOP/s\), .*",
            "  samples/s: .* % of the roofline .*; at most 1,000",
        ]
    )


def test_a_cpu_has_a_limit_where_the_suite_gives_its_figures_and_a_pretended_gpu_has_none(
    project: Project,
) -> None:
    figures = '\n[accelerators.cpu]\nfp32 = "2 TFLOP/s"\n'
    project.suite("suites/silent.mlperf.toml", name="silent", more=IMAGES.replace("1e12", "1e9"))
    more = IMAGES.replace("1e12", "1e9") + figures
    project.suite("suites/given.mlperf.toml", name="given", more=more)
    more = IMAGES.replace("1e12", "1e13")
    project.suite("suites/gpu.mlperf.toml", name="gpu", accelerators=["H200"], more=more)

    result = project.run("suites", "--mlperf-pretend=H200")

    pretended = {r.verdict.case.accelerator: r.pretended for r in project.results().cases}
    assert pretended == {"cpu": False, "H200": True}
    verdicts = newest(project)
    limits = {name: len(verdict.runs[-1].light) for name, verdict in verdicts.items()}
    assert limits == {"silent": 0, "given": 1, "gpu": 0}
    assert verdicts["gpu"].outcome is Outcome.NO_BASELINE
    assert result.stdout.str().count("% of the roofline") == 1
    result.stdout.re_match_lines(["  samples/s: .* % of the roofline .*; at most 2,000"])


def official(project: Project, least: str, *options: str) -> Verdict:
    project.suite(accelerators=["H200"], name="resnet50", more=OF_BEST.format(least))
    project.run_process("suites", "-k", "performance", "-omlperf_power=off", *options)
    return newest(project)["resnet50"]


@pytest.mark.usefixtures("h200")
def test_less_than_the_asked_share_of_the_best_official_result_fails(project: Project) -> None:
    """With a baseline and without; nothing is recorded of it either."""
    refused = official(project, "50%", "--mlperf-update=missing", "-omlperf_baseline_runs=2")
    recorded = official(project, "0.1 %", "--mlperf-update=missing", "-omlperf_baseline_runs=2")
    passed = official(project, "0.1 %")
    failed = official(project, "50 %")

    assert refused.outcome is Outcome.GATE_FAIL
    assert sentence(refused.headline).startswith("nothing recorded: 0.")
    assert recorded.outcome is Outcome.RECORDED
    assert not passed.fails
    assert failed.outcome is Outcome.GATE_FAIL
    assert re.fullmatch(
        r"0\.\d+ % of the best official result per GPU \(v4\.1, .+\); "
        r"of_best_published requires 50 %",
        sentence(failed.headline),
    )
    assert sentence(failed.notes[0]).startswith("against its baseline: ")
    assert [m.metric for m in failed.metrics] == [m.metric for m in passed.metrics]
    (kept,) = read_results(newest_results(project.path)).cases
    assert kept.facts["official"].startswith(sentence(failed.headline).partition(";")[0])

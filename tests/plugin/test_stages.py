"""A drop names the stage that took the time."""

from __future__ import annotations

import shutil
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from pytest_mlperf.core.verdict import Outcome
from tests.adapters.engines.openai.echo import QUEUED_S, echo_server
from tests.exporters import exporting, page
from tests.plugin.project import OFFLINE, OPTIONS, RATE, Project
from tests.plugin.test_more_clients import ENGINE, LIMITS, POINT
from tests.plugin.test_server_metrics import FREQUENT

pytestmark = pytest.mark.process


def test_a_slowed_stage_is_a_cause_of_the_drop(project: Project) -> None:
    """Of 80 ms a batch 40 are the UNet's; its times are in results and in the baseline."""
    shutil.copy(Path(__file__).with_name("staged_engine.py"), project.path)

    def suite(unet_s: float) -> None:
        engine = (
            '[[engines]]\nuse = "staged_engine:Staged"\naccelerators = ["cpu"]\n'
            f"options = {{ unet_s = {unet_s} }}\n"
        )
        project.suite(engines=engine, scenarios=OFFLINE.replace(str(RATE), "200.0"))

    suite(0.04)
    project.record("suites", own_process=True)
    (recorded,) = project.path.glob("baselines/*/quick/first/*.json")
    assert '"stage_unet"' in recorded.read_text("utf-8")
    project.over_days()
    suite(0.16)

    result = project.run_process("suites", "--mlperf-json=r.json")

    verdict = project.verdicts("r.json")["performance"]
    assert verdict.outcome is Outcome.PERF_DROP
    metrics = {metric.metric: metric for metric in verdict.metrics}
    unet, vae = metrics["stage_unet"], metrics["stage_vae"]
    assert (unet.outcome, vae.outcome) == (None, None)
    assert unet.now is not None
    assert unet.now >= 0.16 / 16
    assert unet.change is not None
    assert unet.change > 1.5
    text = " ".join(result.stdout.str().split())
    assert "unet takes " in text.partition("likely")[2]


def test_the_queue_of_a_server_is_a_stage_at_each_point(project: Project) -> None:
    """Engine openai asks a server whose requests each waited for 2 ms by its own count."""
    project.pytester.makeconftest(FREQUENT)
    with echo_server(service_ms=10) as url:
        engine = ENGINE.format(url=url, more="")
        file = project.suite(engines=engine, scenarios=POINT.replace("[8]", "[1, 8]"), more=LIMITS)
        text = file.read_text("utf-8").replace("[workload]", "[workload]\ntokens = true")
        prompts = '{ use = "prompts", samples = 64, input_tokens = { fixed = 32 } }'
        file.write_text(text.replace('{ use = "synthetic", samples = 32 }', prompts), "utf-8")
        project.run_process("suites", "-omlperf_warmup=never", "--mlperf-json=r.json")

    verdict = project.verdicts("r.json")["performance"]
    runs = (*verdict.runs, *verdict.invalid_runs)
    assert runs
    for run in runs:
        stages = {n: value for n, value in run.metrics.items() if n.startswith("stage_")}
        assert stages == pytest.approx({f"stage_queue@{n}": QUEUED_S for n in (1, 8)})


def test_a_longer_queue_of_a_server_is_a_cause_of_the_drop(project: Project) -> None:
    shutil.copy(Path(__file__).with_name("served_engine.py"), project.path)
    project.pytester.makeconftest(FREQUENT)
    seen = {"requests": 0, "queued_s": 0.0, "queue_s": 0.001}

    def show(handler: BaseHTTPRequestHandler) -> None:
        seen["requests"] += 10
        seen["queued_s"] += 10 * seen["queue_s"]
        page(
            "# TYPE vllm:request_queue_time_seconds histogram\n"
            f"vllm:request_queue_time_seconds_sum {seen['queued_s']}\n"
            f"vllm:request_queue_time_seconds_count {seen['requests']}\n"
        )(handler)

    with exporting(show) as exporter:

        def suite(latency_s: str) -> None:
            options = OPTIONS.replace("{ ", f'{{ page = "{exporter.url}", ')
            engine = '[[engines]]\nuse = "served_engine:Served"\naccelerators = ["cpu"]\n'
            options = options.replace("0.002", latency_s)
            project.suite(engines=f"{engine}options = {options}\n")

        suite("0.002")
        project.record("suites", own_process=True)
        project.over_days()
        suite("0.006")
        seen["queue_s"] = 0.1

        result = project.run_process("suites", "--mlperf-json=r.json")

    verdict = project.verdicts("r.json")["performance"]
    assert verdict.outcome is Outcome.PERF_DROP
    assert verdict.runs[0].metrics["stage_queue"] == pytest.approx(0.1, rel=0.01)
    assert "stage_queue" not in verdict.runs[0].serving.server
    assert "queue takes 100x as long (1 ms → 100 ms)" in " ".join(result.stdout.str().split())

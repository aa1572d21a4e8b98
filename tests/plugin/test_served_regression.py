"""A real regression of a real server: transformers' own, with and without continuous batching.

Without it the server answers one request after the other, several times as slow for many clients.
"""

from __future__ import annotations

import importlib.util
import json
import re
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_mlperf.core.baseline import BaselineRun
from pytest_mlperf.core.measurement import Run
from pytest_mlperf.core.verdict import Outcome, Verdict
from pytest_mlperf.stores.results import read_results
from tests.plugin.project import Project, last_line

LIBRARIES = ("httptools", "torch", "transformers", "fastapi", "uvicorn", "openai")

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in LIBRARIES),
    reason="needs pytest-mlperf[openai] and transformers[serving]",
)

TINY = Path(__file__).parents[2] / "suites" / "tiny" / "llama2-70b"
DATA = TINY / "data" / "open_orca" / "open_orca_tiny.pkl.gz"

# Unlimited, its cache takes more than half of the machine's memory.
BATCHED = ["--continuous-batching", "--cb-num-blocks", "64", "--cb-max-batch-tokens", "512"]

TEMPLATE = "[INST] <<SYS>>\n{system_prompt}\n<</SYS>>\n\n{question} [/INST]"
"""Gives text, as the server takes it, so that no worker needs a tokenizer, which takes seconds."""

SUITE = "served.mlperf.toml"

TEXT = """
schema = 1
round = "v4.1"

[workload]
name = "served"
model = {model}
dataset = {{ use = "openorca", path = {data}, count = 32, template = {template} }}

[[engines]]
use = "openai"
precision = "fp32"
accelerators = ["cpu"]

[engines.options]
serve = {serve}
env = {{ HF_HUB_OFFLINE = "1", HF_HOME = {home}, OMP_NUM_THREADS = "1" }}
max_new_tokens = 24
concurrency = 8

[[scenarios]]
name = "Offline"
target_qps = 16
min_duration = "5s"

[limits]
throughput = {{ max_drop = "40%" }}
"""


def write(project: Project, *options: str) -> None:
    """Write the suite with a server that is started with these options."""
    home = project.path / "hf"
    (home / "hub").mkdir(parents=True, exist_ok=True)  # else it cannot list its models
    serve = [sys.executable, "-m", "transformers.cli.transformers", "serve", "{model}"]
    serve += ["--device", "cpu", "--host", "{host}", "--port", "{port}", *options]
    values = {"model": str(TINY / "model"), "data": str(DATA), "home": str(home)}
    values["template"] = TEMPLATE
    text = TEXT.format(serve=json.dumps(serve), **{k: json.dumps(v) for k, v in values.items()})
    (project.path / SUITE).write_text(text, "utf-8")


def newest(project: Project) -> Verdict:
    """Return the only verdict of the newest session."""
    file = max(project.path.glob(".mlperf/runs/*/results.json"), key=lambda f: f.stat().st_mtime)
    (result,) = read_results(file).cases
    return result.verdict


def mean(runs: Sequence[Run] | Sequence[BaselineRun], metric: str) -> float:
    """Return the geometric mean of a metric over runs."""
    return statistics.geometric_mean(run.metrics[metric] for run in runs)


@pytest.mark.quiet
def test_a_server_without_continuous_batching_is_a_perf_drop(project: Project) -> None:
    """The test fails with the numbers of its runs, and says what changed in the command."""
    write(project, *BATCHED)
    recorded = project.record(SUITE)
    project.over_days()
    before = newest(project)
    write(project)

    judged = project.run(SUITE)

    assert last_line(recorded) == "1 recorded"
    assert last_line(judged) == "1 failed"
    verdict = newest(project)
    # On a busy machine it is a drop as far as sessions do not differ, which fails as well.
    assert verdict.outcome in {Outcome.PERF_DROP, Outcome.PROVISIONAL}
    assert verdict.case == before.case
    then = project.recorded(verdict.case).runs
    found = {metric.metric: metric for metric in verdict.metrics}
    throughput = found["throughput"]
    assert throughput.change is not None
    assert throughput.now is not None
    assert throughput.baseline is not None
    assert -0.98 < throughput.change < -0.4
    assert throughput.now == pytest.approx(mean(verdict.runs, "throughput"))
    assert throughput.baseline == pytest.approx(mean(then, "throughput"))
    assert throughput.change == pytest.approx(throughput.now / throughput.baseline - 1)
    printed = re.search(rf"{verdict.outcome} samples/s −(\d+\.\d) %", judged.stdout.str())
    assert printed is not None
    assert float(printed[1]) == pytest.approx(-100 * throughput.change, abs=0.051)
    assert any("--continuous-batching" in change for change in verdict.changed)
    # The answers are the same, only later: nothing but speed was lost.
    assert mean(verdict.runs, "tokens_per_sample") == mean(then, "tokens_per_sample")

"""Change one field of a tool's file: other work and failed requests are never judged as equal."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.addons.judge.files import read_side
from pytest_mlperf.addons.judge.model import SUCCESS, named
from pytest_mlperf.judge.inputs import Direction
from tests.addons.judge.files import DATA, judged, notes, outcomes, write
from tests.addons.judge.test_readers import EXPECTED

Steps = Sequence[Any]
"""Keys and positions that lead to a value."""


def changed(content: Any, path: Steps, value: Any) -> Any:
    """Set a value in JSON content; a function gets the old value, the whole without a path."""
    inner = content
    if not path:
        return value(content)
    for key in path[:-1]:
        inner = inner[key]
    old = inner[path[-1]] if isinstance(inner, list) else inner.get(path[-1])
    inner[path[-1]] = value(old) if callable(value) else value
    return content


def both_files(tmp_path: Path, name: str, path: Steps, value: Any) -> tuple[Path, Path]:
    """Write a recorded file, and a copy with one other value, each in a folder."""
    text = (DATA / name).read_text("utf-8")
    lines = name.endswith(".jsonl")
    sides = []
    for side in ("old", "new"):
        content = [json.loads(text.splitlines()[0])] if lines else json.loads(text)
        if side == "new":
            content = changed(content, path, value)
        written: Any = json.dumps(content[0]) if lines else content
        sides.append(write(tmp_path / side / Path(name).name, written))
    return sides[0], sides[1]


def more(factor: float) -> Callable[[float], float]:
    """Return a function that multiplies a number."""
    return lambda value: value * factor


B0 = ("benchmarks", 0)

CONDITIONS: tuple[tuple[str, Steps, Any, str], ...] = (
    ("vllm-serve.json", ("model_id",), "other", "model"),
    ("vllm-serve.json", ("tokenizer_id",), "other", "tokenizer"),
    ("vllm-serve.json", ("total_output_tokens",), more(1.1), "output tokens per request"),
    ("vllm-serve.json", ("total_input_tokens",), more(0.9), "input tokens per request"),
    ("vllm-serve.json", ("burstiness",), 0.5, "burstiness"),
    ("vllm-throughput.json", ("num_requests",), 10, "requests"),
    ("vllm-throughput.json", ("total_num_tokens",), more(1.1), "tokens per request"),
    ("vllm-latency.json", ("latencies",), [1.9], "iterations"),
    ("sglang.jsonl", (0, "dataset_name"), "sharegpt", "data set"),
    ("sglang.jsonl", (0, "total_output_tokens"), more(1.1), "output tokens per request"),
    ("sglang.jsonl", (0, "completed"), 5, "requests completed"),
    ("sglang.jsonl", (0, "cache_report", "cache_hit_rate_pct"), 60.0, "cache hits"),
    ("sglang.jsonl", (0, "server_info", "model_path"), "other", "model"),
    ("sglang-one-batch-server.jsonl", (0, "cache_hit_rate"), 0.9, "cache hits"),
    ("sglang-one-batch-server.jsonl", (0, "total_output_tokens"), 1000, "output tokens"),
    ("trtllm-bench.json", ("engine", "model"), "other", "model"),
    ("trtllm-bench.json", ("engine", "quantization"), "FP4", "quantization"),
    ("trtllm-bench.json", ("world_info", "tp_size"), 2, "TP"),
    ("trtllm-bench.json", ("machine", "name"), "NVIDIA B200", "GPU"),
    ("trtllm-bench.json", ("request_info", "avg_output_length"), more(1.1), "output length"),
    ("perf-sanity.jsonl", (0, "s_gpu_type"), "B200", "GPU"),
    ("perf-sanity.jsonl", (0, "l_isl"), 512, "input length"),
    ("perf-sanity.jsonl", (0, "l_tp"), 2, "TP"),
    ("real/aiperf-0.13.0.json", ("input_config", "models", "items", 0, "name"), "other", "model"),
    ("real/aiperf-0.13.0.json", ("request_count", "avg"), 8, "requests"),
    ("real/aiperf-0.13.0.json", ("input_config", "tokenizer", "name"), "other", "tokenizer"),
    ("real/aiperf-0.13.0.json", ("input_sequence_length", "avg"), 64, "input tokens per request"),
    ("real/aiperf-0.13.0.json", ("usage_completion_tokens", "avg"), 9, "output tokens per request"),
    ("real/guidellm-0.8.1.json", (*B0, "config", "backend", "model"), "other", "model"),
    (
        "real/guidellm-0.8.1.json",
        (*B0, "config", "constraints", "max_requests", "args", "count"),
        [200, 200],
        "constraints",
    ),
    (
        "real/guidellm-0.8.1.json",
        (*B0, "metrics", "output_token_count", "successful", "mean"),
        16,
        "output tokens per request",
    ),
    (
        "real/aiperf-0.13.0.json",
        ("input_config", "phases", 0, "exclude_from_results"),
        False,
        "warm-up",
    ),
    ("real/aiperf-0.13.0.json", ("input_config", "endpoint", "type"), "chat", "endpoint"),
    ("real/aiperf-0.13.0.json", ("input_config", "endpoint", "streaming"), False, "streaming"),
    ("real/aiperf-0.13.0.json", ("input_config", "datasets", 0, "type"), "file", "data set"),
    (
        "real/guidellm-0.8.1.json",
        (*B0, "config", "backend", "request_format"),
        "/v1/chat/completions",
        "request format",
    ),
    ("real/guidellm-0.8.1.json", (*B0, "config", "strategy", "rampup_duration"), 5, "ramp-up [s]"),
    ("inferencex.json", ("is_multinode",), True, "multi-node"),
    ("pytest-benchmark.json", ("machine_info", "python_implementation"), "PyPy", "Python"),
    ("pytest-benchmark.json", (*B0, "options", "warmup"), True, "warm-up"),
    ("inferencex.json", ("precision",), "fp8", "precision"),
    ("inferencex.json", ("hw",), "b200", "hardware"),
    ("inferencex.json", ("spec_decoding",), "mtp", "speculative decoding"),
    ("llmperf.json", ("model",), "other", "model"),
    ("llmperf.json", ("stddev_output_tokens",), 99, "output length spread"),
    ("llama-bench.json", (0, "n_threads"), 1, "threads"),
    ("llama-bench.json", (0, "gpu_info"), "NVIDIA B200", "GPU"),
    ("llama-bench.json", (0, "type_k"), "q8_0", "K cache"),
    ("pytest-benchmark.json", ("machine_info", "cpu", "brand_raw"), "other", "CPU"),
    ("google-benchmark.json", ("context", "library_build_type"), "release", "build type"),
    ("google-benchmark.json", ("context", "mhz_per_cpu"), 1000, "CPU clock [MHz]"),
    ("asv/host/abc12345-py3.12.json", ("params", "cpu"), "other", "CPU"),
    ("real/lm-eval-0.4.13.json", ("n-shot", "write"), 5, "few-shot examples"),
    ("real/lm-eval-0.4.13.json", ("task_hashes", "write"), "0123", "prompts"),
    ("real/lm-eval-0.4.13.json", ("config", "limit"), 10, "limit of documents"),
    ("real/lm-eval-0.4.13.json", ("chat_template_sha",), "0123", "chat template"),
)


@pytest.mark.parametrize("name", dict.fromkeys(name for name, *_ in CONDITIONS))
def test_other_work_is_invalid(tmp_path: Path, name: str) -> None:
    for path, value, fact in (row for file, *row in CONDITIONS if file == name):
        files = both_files(tmp_path, name, path, value)
        result = judged(*files)

        assert str(result.outcome) == "INVALID", fact
        assert f"{fact} differs: " in notes(result)
        assert f"{fact} differs: " not in notes(judged(*files, ignored=(fact,)))


FAILURES: tuple[tuple[str, Steps, Any], ...] = (
    ("vllm-serve.json", ("failed",), 100),
    (
        "real/aiperf-0.13.0.json",
        (),
        lambda raw: raw | {"request_count": {"avg": 12}, "error_request_count": {"avg": 4}},
    ),
    ("real/guidellm-0.8.1.json", (*B0, "metrics", "request_totals", "errored"), 4),
    ("real/inference-perf-0.7.0/stage_0_lifecycle_metrics.json", ("failures", "count"), 4),
    (
        "llmperf.json",
        (),
        lambda raw: raw | {"results_num_completed_requests": 146, "results_number_errors": 4},
    ),
    ("k6-summary-export.json", ("metrics", "http_req_failed", "passes"), 400),
    ("k6-machine-readable.json", ("results", "metrics", 1, "values", "matches"), 9),
    ("real/locust-2.47.0.json", (0, "num_failures"), 100),
    ("hyperfine.json", ("results", 0, "exit_codes"), [0, 1]),
    ("google-benchmark.json", (*B0, "error_occurred"), True),
    ("real/aiperf-0.13.0.json", ("was_cancelled",), True),
    ("real/aiperf-0.13.0.json", ("is_complete",), False),
    ("real/guidellm-0.8.1.json", (*B0, "metrics", "request_totals", "successful"), 12),
)


@pytest.mark.parametrize(("name", "path", "value"), FAILURES)
def test_failed_requests_are_a_drop(tmp_path: Path, name: str, path: Steps, value: Any) -> None:
    result = judged(*both_files(tmp_path, name, path, value))

    rows = {key: word for key, word in outcomes(result).items() if key.endswith(SUCCESS)}
    assert "PERF DROP" in rows.values()


@pytest.mark.parametrize("name", EXPECTED)
def test_each_metric_has_a_direction(name: str) -> None:
    """Times are better if lower, rates and shares if higher; counters of a user are unknown."""
    undirected = {"track", "cpu_time", "tokens_per_sample"}
    higher = ("per_second", "rate", "goodput", "acceptance", "checks", "share", "tps_")
    tool, _ = EXPECTED[name]
    for run in read_side([DATA / name]).runs:
        for point in run.points:
            for metric in point.metrics.keys() - undirected:
                quantity = point.quantity(metric)
                if named(metric) is None:
                    assert tool == "google-benchmark", metric
                    continue
                better = any(part in metric for part in higher)
                expected = Direction.HIGHER if better else Direction.LOWER
                assert quantity.direction is expected, metric


@pytest.mark.parametrize("unit", ["ns", "us", "ms", "s"])
def test_units_of_genai_perf_and_of_records(tmp_path: Path, unit: str) -> None:
    """Files that hold their unit are read in it."""
    factor = {"ns": 1e9, "us": 1e6, "ms": 1e3, "s": 1.0}[unit]
    whole = {"request_latency": {"unit": unit, "avg": 6.2 * factor, "p50": 6.1 * factor}}
    record = {
        "metadata": {"benchmark_phase": "profiling", "turn_index": 0},
        "metrics": {"request_latency": {"value": 6.1 * factor, "unit": unit}},
    }
    contents: list[dict[str, Any]] = [whole, record]
    for number, content in enumerate(contents):
        (run,) = read_side([write(tmp_path / f"{number}.json", content)]).runs
        assert run.points[0].metrics["latency_p50"] == pytest.approx(6.1)


def test_batches_that_were_appended_are_runs(tmp_path: Path) -> None:
    """A second run of one_batch adds its lines to the file of the first."""
    text = (DATA / "sglang-one-batch.jsonl").read_text("utf-8")
    second = text.replace("0.04095", "0.04102").replace("0.1602", "0.1611")
    runs = read_side([write(tmp_path / "r.jsonl", text + second)]).runs

    assert [len(run.points) for run in runs] == [2, 2]
    assert len({run.digest for run in runs}) == 2


def test_a_log_of_vllm_with_failed_requests(tmp_path: Path) -> None:
    text = (DATA / "real/sglang-0.5.23.log").read_text("utf-8")
    line = "Successful requests:                     24"
    failing = text.replace(line, f"{line}\nFailed requests:                         6")
    fine = text.replace(line, f"{line}\nFailed requests:                         0")
    result = judged(write(tmp_path / "a.log", fine), write(tmp_path / "b.log", failing))

    assert outcomes(result)[SUCCESS] == "PERF DROP"

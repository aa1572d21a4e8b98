"""Read a file of each tool: figures as the tool prints them, in one unit, with their facts."""

from __future__ import annotations

import gzip
import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf import EnvironmentFault, MlperfError
from pytest_mlperf.addons.judge import files
from pytest_mlperf.addons.judge.files import Reader, ResultFile, read_text, readers
from pytest_mlperf.addons.judge.model import ToolRun
from pytest_mlperf.addons.judge.readers.fields import moment
from tests.addons.judge.files import DATA, document, judged, outcomes, read, write

EXPECTED: dict[str, tuple[str, dict[str, dict[str, float]]]] = {
    "vllm-serve.json": (
        "vllm",
        {
            "concurrency 64": {
                "requests_per_second": 9.0703,
                "output_tokens_per_second": 1160.998,
                "total_tokens_per_second": 10448.98,
                "ttft_mean": 0.1205,
                "ttft_p50": 0.10845,
                "tpot_p99": 0.028125,
                "itl_mean": 0.0115,
                "acceptance_rate": 0.715,
                "acceptance_length": 2.43,
            }
        },
    ),
    "vllm-throughput.json": (
        "vllm-throughput",
        {"throughput": {"requests_per_second": 39.2157, "tokens_per_second": 45176.47}},
    ),
    "vllm-latency.json": (
        "vllm-latency",
        {"latency": {"latency_mean": 1.9125, "latency_p50": 1.91, "latency_p99": 1.9272}},
    ),
    "sglang.jsonl": (
        "sglang",
        {
            "concurrency 64, 1024 in, 128 out": {
                "output_tokens_per_second": 1179.72,
                "total_tokens_per_second": 10617.51,
                "latency_mean": 6.8,
                "ttft_p50": 0.1062,
                "itl_p99": 0.028,
                "acceptance_length": 2.1,
            },
            "concurrency 128, 1024 in, 128 out": {"output_tokens_per_second": 1890.5},
        },
    ),
    "aiperf.json": (
        "aiperf",
        {
            "concurrency 32": {
                "latency_mean": 6.2,
                "ttft_p99": 0.28,
                "itl_p50": 0.005795,
                "output_tokens_per_second": 5120.5,
                "requests_per_second": 5.12,
            }
        },
    ),
    "genai-perf.json": (
        "genai-perf",
        {"concurrency 32": {"latency_mean": 6.3, "output_tokens_per_second": 5000.0}},
    ),
    "guidellm.json": (
        "guidellm",
        {
            "concurrent 16": {
                "latency_mean": 6.25,
                "ttft_mean": 0.142,
                "itl_p99": 0.0126,
                "ttft_p99.9": 0.4118,
                "output_tokens_per_second": 4800.0,
                "total_tokens_per_second": 7257.6,
            },
            "concurrent 32": {"output_tokens_per_second": 8160.0},
        },
    ),
    "inference-perf": (
        "inference-perf",
        {
            "rate 5": {
                "latency_mean": 6.3,
                "ttft_p99.9": 0.4147,
                "itl_p50": 0.005795,
                "output_tokens_per_second": 5000.0,
                "requests_per_second": 5.0,
            }
        },
    ),
    "inferencex.json": (
        "inferencex",
        {
            "concurrency 64, 1024 in, 1024 out, tp4, ep1": {
                "tokens_per_second_per_gpu": 2900.5,
                "ttft_p50": 0.121,
                "latency_p99": 13.2,
            }
        },
    ),
    "llmperf.json": (
        "llmperf",
        {
            "concurrency 16": {
                "itl_mean": 0.0115,
                "ttft_p99": 0.75,
                "latency_p50": 1.9,
                "output_tokens_per_second": 1150.0,
                "requests_per_second": 7.5,
            }
        },
    ),
    "trtllm-bench.json": (
        "trtllm-bench",
        {
            "batch 64, rate inf": {
                "requests_per_second": 39.2,
                "output_tokens_per_second": 5017.6,
                "latency_mean": 1.5,
                "ttft_p99": 0.12,
                "tpot_p50": 0.0111,
            }
        },
    ),
    "llama-bench.json": (
        "llama-bench",
        {"pp512": {"tokens_per_second": 12488.0}, "tg128": {"tokens_per_second": 139.1}},
    ),
    "pytest-benchmark.json": (
        "pytest-benchmark",
        {
            "test_sort.py::test_sort[10]": {
                "time_p50": 141.8063e-9,
                "time_mean": 249.5866e-9,
                "time_min": 138.2580e-9,
            },
            "test_sort.py::test_sort[100]": {"time_mean": 741.6177e-9},
        },
    ),
    "google-benchmark.json": (
        "google-benchmark",
        {
            "BM_Copy/64": {"time_mean": 5.33274e-8, "bytes_per_second": 4.38595e9},
            "BM_Copy/4096": {"time_mean": 4.84988e-7},
            "BM_Broken": {},
        },
    ),
    "hyperfine.json": (
        "hyperfine",
        {"sleep 0.01": {"time_mean": 11.94167e-3, "time_p50": 12.08828e-3}, "false": {}},
    ),
    "asv/host": (
        "asv",
        {
            "bench.time_sort(10)": {"time_p50": 0.0125},
            "bench.time_sort(100)": {},
            "bench.time_sort(1000)": {},
            "bench.peakmem_load": {"memory": 52428800},
            "bench.track_size": {"track": 42.5},
        },
    ),
    "criterion": (
        "criterion",
        {"sort/100": {"time_mean": 12.5e-6}, "sort/1000": {"time_p50": 171e-6}},
    ),
    "k6-summary-export.json": (
        "k6",
        {
            "all requests": {
                "latency_mean": 0.0815,
                "latency_p95": 0.121,
                "requests_per_second": 49.9,
                "checks": 0.99,
            },
            "threshold http_req_duration p(95)<500": {},
        },
    ),
    "k6-handle-summary.json": (
        "k6",
        {
            "all requests": {"latency_mean": 0.0805, "latency_p50": 0.07825},
            "threshold http_req_duration p(95)<500": {},
        },
    ),
    "k6-machine-readable.json": ("k6", {"all requests": {"latency_p90": 0.110}}),
    "locust.json": (
        "locust",
        {"POST /v1": {"latency_mean": 0.0805, "requests_per_second": 10.0}},
    ),
    "locust_stats.csv": (
        "locust-csv",
        {"POST /v1": {"latency_mean": 0.0805}, "GET /health": {}},
    ),
    "loadgen/mlperf_log_summary.txt": (
        "loadgen",
        {
            "Server": {
                "samples_per_second": 8.77,
                "tokens_per_second": 2567.81,
                "latency_mean": 9.8,
                "latency_p99": 19.5,
                "ttft_p50": 0.21,
                "ttft_p99.9": 1.91,
                "tpot_p99": 0.145,
            }
        },
    ),
    "../endpoints/c4": (
        "endpoints",
        {"concurrency 4": {}},
    ),
    "sglang-one-batch.jsonl": (
        "sglang-batch",
        {
            "batch 16, 1024 in, 8 out": {
                "ttft_mean": 0.04095,
                "tpot_p50": 0.00785,
                "latency_mean": 0.0959,
                "output_tokens_per_second": 2038.2166,
                "total_tokens_per_second": 172_178.31,
            },
            "batch 64, 1024 in, 8 out": {"ttft_mean": 0.1602, "tpot_p50": 0.0091},
        },
    ),
    "sglang-one-batch-server.jsonl": (
        "sglang-batch",
        {
            "batch 16, 1024 in, 128 out": {
                "ttft_mean": 0.0512,
                "latency_mean": 1.2034,
                "input_tokens_per_second": 320_000.5,
                "output_tokens_per_second": 1777.4,
                "acceptance_length": 1.0,
            }
        },
    ),
    "perf-sanity.jsonl": (
        "perf-sanity",
        {
            "concurrency 32, llama-8b-tp1": {
                "requests_per_second": 8.42,
                "output_tokens_per_second": 1077.9,
                "total_tokens_per_second": 9701.3,
                "tokens_per_second_per_user": 33.7,
                "ttft_p50": 0.10545,
                "tpot_mean": 0.0287,
                "latency_p99": 4.31,
            }
        },
    ),
    "lm-eval.json": ("lm-eval", {"gsm8k": {}, "wikitext": {}}),
    "samples_gsm8k_2026-11-12T08-00-00.jsonl": (
        "lm-eval-samples",
        {"gsm8k": {}},
    ),
    "real/aiperf-0.13.0.json": (
        "aiperf",
        {
            "concurrency 2": {
                "ttft_mean": 22.17e-3,
                "ttft_p50": 21.78e-3,
                "ttft_p99": 24.89e-3,
                "latency_mean": 47.09e-3,
                "itl_p50": 1.55e-3,
                "output_tokens_per_second": 579.08,
                "requests_per_second": 36.19,
                "goodput": 36.19,
            }
        },
    ),
    "real/aiperf-records-0.13.0.jsonl": (
        "aiperf-records",
        {"turn 0": {"ttft_p50": 21.78e-3, "latency_p50": 45.28e-3, "itl_p50": 1.55e-3}},
    ),
    "real/asv-0.6.6/host": (
        "asv",
        {
            "bench.time_skipped": {},
            "bench.Sort.time_fail(100)": {},
            "bench.Sort.time_fail(1000)": {},
            "bench.Sort.time_skip(100)": {"time_p50": 440e-9},
            "bench.Sort.time_skip(1000)": {"time_p50": 390e-9},
            "bench.Sort.time_sort(100)": {"time_p50": 1.40e-6},
            "bench.Sort.time_sort(1000)": {"time_p50": 5.62e-6},
            "bench.mem_list": {"memory": 856},
            "bench.peakmem_list": {"memory": 26.9e6},
            "bench.track_size": {"track": 42.5},
        },
    ),
    "real/guidellm-0.8.1.json": (
        "guidellm",
        {
            "concurrent 2": {
                "ttft_mean": 23.0e-3,
                "ttft_p95": 25.7e-3,
                "itl_mean": 2.9e-3,
                "tpot_p50": 5.4e-3,
                "requests_per_second": 40.1,
                "output_tokens_per_second": 321.1,
                "total_tokens_per_second": 752.6,
            },
            "concurrent 4": {
                "ttft_p50": 22.2e-3,
                "requests_per_second": 75.6,
                "output_tokens_per_second": 604.6,
                "total_tokens_per_second": 1428.3,
            },
        },
    ),
    "real/inference-perf-0.7.0": (
        "inference-perf",
        {
            "concurrency 2, rate 20": {
                "latency_mean": 46.6e-3,
                "latency_p50": 43.2e-3,
                "ttft_mean": 22.7e-3,
                "ttft_p90": 25.7e-3,
                "itl_mean": 1.5e-3,
                "itl_p90": 3.1e-3,
                "tpot_p90": 2.1e-3,
                "requests_per_second": 18.9,
                "output_tokens_per_second": 302.5,
                "total_tokens_per_second": 536.0,
            },
            "concurrency 4, rate 20": {"latency_p90": 48.2e-3, "requests_per_second": 19.7},
            "all stages": {},
        },
    ),
    "real/lm-eval-0.4.13.json": ("lm-eval", {"colours": {}, "write": {}}),
    "real/samples_colours_2026-11-30T09-39-38.732474.jsonl": ("lm-eval-samples", {"colours": {}}),
    "real/locust-2.47.0.json": (
        "locust",
        {
            "POST /v1/completions": {
                "latency_mean": 41.596e-3,
                "latency_p90": 51e-3,
                "latency_p95": 54e-3,
                "requests_per_second": 95.16,
            },
            "GET /health": {"latency_mean": 1.714e-3, "requests_per_second": 32.44},
        },
    ),
    "real/locust-2.47.0_stats.csv": (
        "locust-csv",
        {
            "GET /health": {"latency_mean": 1.7539e-3},
            "POST /v1/completions": {
                "latency_mean": 41.2014e-3,
                "latency_p95": 53e-3,
                "requests_per_second": 94.7292,
            },
        },
    ),
    **{
        f"real/vllm-0.33.0.{suffix}": (
            tool,
            {
                "concurrency 4": {
                    "requests_per_second": 34.07,
                    "output_tokens_per_second": 272.58,
                    "total_tokens_per_second": 755.26,
                    "goodput": 34.07,
                    "ttft_mean": 49.84e-3,
                    "ttft_p99": 94.81e-3,
                    "tpot_p50": 5.87e-3,
                    "itl_p90": 16.54e-3,
                    "latency_mean": 113.13e-3,
                }
            },
        )
        for suffix, tool in (("json", "vllm"), ("log", "serving-log"))
    },
    "real/sglang-0.5.23.jsonl": (
        "sglang",
        {
            "concurrency 4, 32 in, 8 out": {
                "requests_per_second": 32.40,
                "input_tokens_per_second": 1004.51,
                "output_tokens_per_second": 259.23,
                "total_tokens_per_second": 1263.74,
                "latency_mean": 118.22e-3,
                "ttft_p50": 51.61e-3,
                "tpot_p99": 16.01e-3,
                "itl_p95": 41.62e-3,
            }
        },
    ),
    "real/sglang-0.5.23.log": (
        "serving-log",
        {
            "concurrency 4": {
                "requests_per_second": 32.40,
                "output_tokens_per_second": 259.23,
                "total_tokens_per_second": 1263.74,
                "latency_mean": 118.22e-3,
                "ttft_p50": 51.61e-3,
                "tpot_p99": 16.01e-3,
                "itl_p95": 41.62e-3,
            }
        },
    ),
}

PRINTED = 0.035
"""Largest relative difference of a printed figure of two digits."""


def runs(name: str) -> tuple[ToolRun, ...]:
    return read([DATA / name]).runs


def points(name: str) -> dict[str, Any]:
    return {point.name: point for run in runs(name) for point in run.points}


@pytest.mark.parametrize("name", [name for name in EXPECTED if not name.startswith("real/")])
def test_figures_are_those_of_the_file(name: str) -> None:
    figures_are_as_expected(name, rel=1e-5)


@pytest.mark.parametrize("name", [name for name in EXPECTED if name.startswith("real/")])
def test_figures_are_those_that_the_tool_prints(name: str) -> None:
    figures_are_as_expected(name, rel=PRINTED)


def figures_are_as_expected(name: str, rel: float) -> None:
    tool, expected = EXPECTED[name]
    read_points = points(name)

    assert {run.tool for run in runs(name)} == {tool}
    assert list(read_points) == list(expected)
    for point, metrics in expected.items():
        of = read_points[point].metrics
        assert {m: of[m] for m in metrics} == pytest.approx(metrics, rel=rel), point


def test_every_reader_has_a_file() -> None:
    assert set(readers()) == {tool for tool, _ in EXPECTED.values()}


@pytest.mark.parametrize("name", [name for name in EXPECTED if (DATA / name).is_file()])
def test_a_file_is_recognised_by_its_content_alone(name: str, tmp_path: Path) -> None:
    renamed = shutil.copy(DATA / name, tmp_path / "download(1)")
    document = read_text(Path(renamed))
    candidates = {tool for tool, one in readers().items() if not one.of_folders}

    assert [tool for tool in candidates if readers()[tool].recognise(document)] == [
        EXPECTED[name][0]
    ]


@pytest.mark.parametrize(
    ("name", "point", "facts"),
    [
        (
            "vllm-serve.json",
            "concurrency 64",
            {"prompts": 1000, "output tokens per request": 128, "burstiness": 1.0},
        ),
        ("sglang.jsonl", "concurrency 64, 1024 in, 128 out", {"cache hits": 0.0125}),
        ("aiperf.json", "concurrency 32", {"model": "llama-8b", "requests": 500}),
        ("guidellm.json", "concurrent 16", {"input tokens per request": 512}),
        ("trtllm-bench.json", "batch 64, rate inf", {"GPU": "NVIDIA H200", "TP": 1}),
        ("llama-bench.json", "pp512", {"GPU": "NVIDIA H200", "flash attention": 1}),
        ("pytest-benchmark.json", "test_sort.py::test_sort[10]", {"CPU": "AMD EPYC"}),
        ("google-benchmark.json", "BM_Copy/64", {"CPUs": 2, "build type": "debug"}),
        ("lm-eval.json", "gsm8k", {"task version": 3, "few-shot examples": 5}),
        ("inferencex.json", "concurrency 64, 1024 in, 1024 out, tp4, ep1", {"precision": "fp4"}),
        ("llmperf.json", "concurrency 16", {"input length": 550}),
        (
            "real/aiperf-0.13.0.json",
            "concurrency 2",
            {
                "model": "m",
                "requests": 16,
                "output tokens per request": 8,
                "goodput target": "{'time_to_first_token': 100.0, 'request_latency': 500.0}",
            },
        ),
        (
            "real/guidellm-0.8.1.json",
            "concurrent 4",
            {"model": "m", "output tokens per request": 8, "constraints": "max_requests 20"},
        ),
        (
            "real/inference-perf-0.7.0",
            "concurrency 2, rate 20",
            {"model": "m", "input tokens per request": 12.35, "output tokens per request": 8},
        ),
        ("perf-sanity.jsonl", "concurrency 32, llama-8b-tp1", {"GPU": "H200", "TP": 1}),
    ],
)
def test_conditions_are_read(name: str, point: str, facts: dict[str, Any]) -> None:
    of = points(name)[point].facts
    assert {fact: of[fact].value for fact in facts} == facts


@pytest.mark.parametrize(
    ("name", "day", "host", "commit", "version"),
    [
        ("vllm-serve.json", "2026-11-12", None, None, None),
        ("aiperf.json", "2026-11-12", None, None, "0.4.0"),
        ("guidellm.json", "2026-11-12", None, None, "0.7.3"),
        ("pytest-benchmark.json", "2026-11-30", "runner-1", None, "5.3.1"),
        ("google-benchmark.json", "2026-11-30", "runner-1", None, None),
        ("llama-bench.json", "2026-11-12", None, "0104b151", "6800"),
        ("lm-eval.json", "2026-11-12", None, "abc1234", "0.4.12"),
        ("trtllm-bench.json", None, None, None, "1.2.0"),
        ("asv/host", "2026-11-12", "host", "abc12345ffff", None),
        ("real/aiperf-0.13.0.json", "2026-11-30", None, None, "0.13.0"),
        ("real/guidellm-0.8.1.json", "2026-11-30", None, None, "0.8.1"),
        ("real/lm-eval-0.4.13.json", "2026-11-30", None, None, "0.4.13"),
        ("perf-sanity.jsonl", "2026-11-05", "node-7", "0123456789ab", None),
    ],
)
def test_day_host_commit_and_version_are_read(
    name: str, day: str | None, host: str | None, commit: str | None, version: str | None
) -> None:
    import datetime as dt

    (run,) = runs(name)
    started = run.started and dt.datetime.fromtimestamp(run.started, dt.UTC).date().isoformat()
    assert (started, run.host, run.commit, run.version) == (day, host, commit, version)


def test_scores_are_read_with_their_errors_and_directions() -> None:
    of = points("lm-eval.json")
    score = of["gsm8k"].scores["exact_match,strict-match"]
    assert (score.value, score.stderr) == (0.7513, 0.0119)
    assert of["wikitext"].scores["word_perplexity"].stderr is None
    assert of["wikitext"].quantities["word_perplexity"].direction == "lower"
    samples = points("samples_gsm8k_2026-11-12T08-00-00.jsonl")["gsm8k"].scores
    assert list(samples) == ["exact_match,strict-match", "exact_match,flexible-extract"]
    assert len(samples["exact_match,strict-match"].samples) == 6


@pytest.mark.parametrize(
    ("name", "point", "reason"),
    [
        ("google-benchmark.json", "BM_Broken", "error: no input"),
        ("hyperfine.json", "false", "4 of 4 runs failed, first exit code 1"),
        ("asv/host", "bench.time_sort(100)", "the benchmark failed: asv recorded null"),
    ],
)
def test_failed_cases_are_marked(name: str, point: str, reason: str) -> None:
    assert points(name)[point].broken == reason


@pytest.mark.parametrize("unit", ["ns", "us", "ms", "s"])
def test_google_benchmark_in_each_unit(tmp_path: Path, unit: str) -> None:
    factor = {"ns": 1e9, "us": 1e6, "ms": 1e3, "s": 1.0}[unit]
    row = {"name": "a", "run_type": "iteration", "real_time": 0.25 * factor, "time_unit": unit}
    file = write(tmp_path / "a.json", {"context": {}, "benchmarks": [row]})
    (run,) = read([file]).runs

    assert run.points[0].metrics["time_mean"] == pytest.approx(0.25)


@pytest.mark.parametrize("unit", ["ns", "us", "ms", "sec"])
def test_aiperf_in_each_unit(tmp_path: Path, unit: str) -> None:
    factor = {"ns": 1e9, "us": 1e6, "ms": 1e3, "sec": 1.0}[unit]
    content = document("aiperf.json")
    content["request_latency"] = {"unit": unit, "avg": 6.2 * factor}
    (run,) = read([write(tmp_path / "a.json", content)]).runs

    assert run.points[0].metrics["latency_mean"] == pytest.approx(6.2)


def test_percentiles_that_locust_rounds_are_not_judged(tmp_path: Path) -> None:
    """A rise from 104.9 to 105.1 ms is one of 10 % in its percentiles, on each run."""

    def run(milliseconds: float) -> list[dict[str, Any]]:
        (content, *_) = document("real/locust-2.47.0.json")
        times = {str(round(milliseconds, -1))[:3]: content["num_requests"]}
        total = milliseconds * content["num_requests"]
        return [{**content, "total_response_time": total, "response_times": times}]

    old = [write(tmp_path / f"old-{n}" / "r.json", run(104.9 + n / 1e3)) for n in range(4)]
    new = [write(tmp_path / f"new-{n}" / "r.json", run(105.1 + n / 1e3)) for n in range(4)]
    result = judged(old, new, session_by="folder")

    assert outcomes(result) == {"latency_mean": "ok", "requests_per_second": "ok"}


def test_an_unknown_unit_is_not_guessed(tmp_path: Path) -> None:
    content = document("aiperf.json")
    content["request_latency"]["unit"] = "ticks"
    (run,) = read([write(tmp_path / "a.json", content)]).runs

    assert "latency_mean" not in run.points[0].metrics
    assert run.points[0].absent["latency_p50"] == "its unit 'ticks' is unknown"


# ---------------------------------------------------------------- files that are not right


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty: did the tool stop early?"),
        (b" \n\n", "the file is empty"),
        (b"PAR1\x00\x01\x02\xff\xfe", "not a text file"),
        (b'{"completed": 10, "num_prompts": 1', "the JSON is cut off"),
        (b'{"completed": 10, "num_pro', "the JSON is cut off"),
        (b'{"completed": 10,, "num_prompts": 1}', "not valid JSON"),
        (b'{"a": 1}', "JSON with the keys a, not written by a known tool. Known tools: AIPerf"),
        (b"[1, 2, 3]", "JSON, not written by a known tool"),
        (b"some words", "a text, not written by a known tool"),
        (b"a,b\n1,2\n", "a CSV table, not written by a known tool"),
        (b'{"error": "out of memory"}', "holds only an error"),
        (b"\x1f\x8b\x08\x00broken", "compressed data that is truncated"),
        (gzip.compress(b'{"completed": 1}', mtime=0)[:-9], "compressed data that is truncated"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_sentence(
    tmp_path: Path, content: bytes, message: str
) -> None:
    file = tmp_path / "r.json"
    file.write_bytes(content)

    with pytest.raises(MlperfError, match=r"r\.json") as caught:
        read([file])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [name for name in EXPECTED if name.endswith(".json")])
def test_a_cut_file_is_named(name: str, tmp_path: Path) -> None:
    text = (DATA / name).read_text("utf-8").rstrip()
    file = write(tmp_path / "r.json", text[: len(text) // 2])

    with pytest.raises(MlperfError, match=r"r\.json: (the JSON is cut off|not valid JSON)"):
        read([file])


def test_the_hint_on_columns_is_for_tables(tmp_path: Path) -> None:
    content = {"context": {"host_name": "h"}, "benchmarks": None}
    for text, hinted in ((json.dumps(content), False), ("a,b\n1,2\n", True), ('{"p50": 2}', True)):
        with pytest.raises(MlperfError) as caught:
            read([write(tmp_path / "x", text)])
        assert ("--column" in str(caught.value)) == hinted


def test_a_cut_line_is_named(tmp_path: Path) -> None:
    text = (DATA / "sglang.jsonl").read_text("utf-8").rstrip()
    file = write(tmp_path / "r.jsonl", text[:-30])

    with pytest.raises(MlperfError, match="line 2 is not complete JSON"):
        read([file])


def test_gzip_and_byte_order_marks_are_read(tmp_path: Path) -> None:
    text = (DATA / "vllm-serve.json").read_bytes()
    packed, marked = tmp_path / "r.json.gz", tmp_path / "r.json"
    packed.write_bytes(gzip.compress(text))
    marked.write_bytes(b"\xef\xbb\xbf" + text)

    assert read([packed]).runs[0].points == read([marked]).runs[0].points


def test_two_evaluations_in_one_file_of_samples_are_refused(tmp_path: Path) -> None:
    text = (DATA / "samples_gsm8k_2026-11-12T08-00-00.jsonl").read_text("utf-8")
    with pytest.raises(MlperfError, match="a document occurs twice: the file holds two"):
        read([write(tmp_path / "r.jsonl", text + text)])


def test_nan_is_no_figure(tmp_path: Path) -> None:
    content = {**document("vllm-serve.json"), "median_ttft_ms": math.nan}
    (run,) = read([write(tmp_path / "r.json", content)]).runs

    assert "ttft_p50" not in run.points[0].metrics
    assert run.points[0].absent["ttft_p50"] == "the file has nan"


def test_a_file_of_two_formats_is_refused(tmp_path: Path) -> None:
    content = {**document("vllm-throughput.json"), **document("vllm-latency.json")}
    with pytest.raises(
        MlperfError, match="looks like output of vllm bench latency and of vllm bench thr"
    ):
        read([write(tmp_path / "r.json", content)])


def test_an_unknown_version_is_read_and_noted(tmp_path: Path) -> None:
    content = document("guidellm.json")
    content["metadata"]["version"] = 9
    side = read([write(tmp_path / "r.json", content)])

    assert side.notes == (
        "GuideLLM's file version 9 is unknown; only fields of known ones were read",
    )
    assert side.runs[0].points[0].metrics["ttft_mean"] == pytest.approx(0.142)


def test_fields_of_other_types_are_one_sentence(tmp_path: Path) -> None:
    content = document("guidellm.json")
    content["benchmarks"][0]["metrics"]["request_totals"] = "many"
    content["benchmarks"][1] = None
    side = read([write(tmp_path / "a.json", content)])
    assert [point.sent for point in side.runs[0].points] == [None]

    with pytest.raises(MlperfError, match="looks like output of vllm bench latency, but"):
        read([write(tmp_path / "b.json", {**document("vllm-latency.json"), "percentiles": 1})])


def test_a_file_without_figures_is_refused(tmp_path: Path) -> None:
    content = {**document("pytest-benchmark.json"), "benchmarks": []}
    with pytest.raises(MlperfError, match="contains no measurement of pytest-benchmark"):
        read([write(tmp_path / "r.json", content)])


def test_twenty_thousand_rows_are_read(tmp_path: Path) -> None:
    content = document("vllm-serve.json")
    content |= {"ttfts": [0.1] * 20_000, "itls": [[0.01] * 20] * 20_000}
    (run,) = read([write(tmp_path / "r.json", content)]).runs
    benchmark = document("pytest-benchmark.json")
    benchmark["benchmarks"] = [
        {"fullname": f"t{number}", "stats": {"median": 0.1}} for number in range(20_000)
    ]
    (many,) = read([write(tmp_path / "b.json", benchmark)]).runs

    assert run.points[0].metrics["ttft_mean"] == 0.1205
    assert len(many.points) == 20_000


def test_other_files_of_a_folder_are_named(tmp_path: Path) -> None:
    shutil.copy(DATA / "vllm-serve.json", tmp_path / "r.json")
    write(tmp_path / "notes.txt", "measured on Monday")
    write(tmp_path / "plot.png", "no result")
    side = read([tmp_path])

    assert len(side.runs) == 1
    assert len(side.notes) == 1
    assert side.notes[0] == "left out, not written by a known tool: notes.txt, plot.png"


def test_results_of_a_folder_never_vanish(tmp_path: Path) -> None:
    """Names do not matter, and a result that is cut is an error there too."""
    shutil.copy(DATA / "vllm-serve.json", tmp_path / "result")
    assert len(read([tmp_path]).runs) == 1

    whole = json.dumps(json.loads((DATA / "vllm-serve.json").read_text("utf-8")), indent=2)
    write(tmp_path / "cut.json", whole[: len(whole) // 2])
    with pytest.raises(MlperfError, match="the JSON is cut off"):
        read([tmp_path])


def test_links_back_are_not_followed(tmp_path: Path) -> None:
    text = (DATA / "hyperfine.json").read_text("utf-8")
    write(tmp_path / "a" / "r.json", text)
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "to-b").symlink_to("../b")
    (tmp_path / "b" / "to-a").symlink_to("../a")
    (tmp_path / "a" / "self").symlink_to(".")

    assert len(read([tmp_path]).runs) == 1


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(MlperfError, match=r"gone\.json: cannot be read: No such file"):
        read([tmp_path / "gone.json"])


@pytest.mark.parametrize(
    "text",
    ["9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59", "1969-12-31", "99990101-000000"],
)
def test_a_time_beyond_all_measurements_is_unknown(text: str) -> None:
    assert moment(text) is None


def test_secrets_are_not_kept(tmp_path: Path) -> None:
    content = document("hyperfine.json")
    content["results"][0]["command"] = "curl -H api_key=qrs https://me:pw@host/ --token xyz"
    metadata = {"api_key": "sk-456", "label": "to http://you:pw2@host", "note": "TOKEN=mno"}
    served = document("vllm-serve.json") | metadata
    (run,) = read([write(tmp_path / "r.json", content)]).runs
    (labelled,) = read([write(tmp_path / "s.json", served)]).runs
    assert labelled.details["label"] == "to http://host"
    text = repr(run) + repr(labelled) + repr(runs("aiperf.json"))

    assert not [secret for secret in ("qrs", ":pw", "xyz", "user:", "sk-", "mno") if secret in text]


def test_side_files_of_vllm_are_left_out(tmp_path: Path) -> None:
    shutil.copy(DATA / "vllm-serve.json", tmp_path / "r.json")
    write(tmp_path / "r.pytorch.json", [{"benchmark": {}}])

    assert read([tmp_path]).notes == ()


def test_the_document_of_a_folder_is_no_text(tmp_path: Path) -> None:
    assert ResultFile(path=tmp_path).head == {}


def test_a_reader_of_another_package_that_raises_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def recognise(document: ResultFile) -> bool:
        raise KeyError("version")

    mine = Reader(title="mine", recognise=recognise, read=lambda document: [])
    monkeypatch.setattr(files, "readers", lambda: {"mine": mine})
    with pytest.raises(EnvironmentFault, match="reader mine cannot be used: it raised KeyError"):
        read([write(tmp_path / "r.json", {"a": 1})])

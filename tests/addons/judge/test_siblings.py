"""Judge siblings of the sixteen cases: other tools, other fields, both directions."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf import MlperfError
from tests.addons.judge.files import DATA, both, document, judged, notes, outcomes, read, write
from tests.addons.judge.recorded import samples
from tests.addons.judge.test_cases import (
    aiperf,
    asv,
    inference_perf,
    k6,
    lm_eval,
    pytest_benchmark,
    sglang,
    vllm,
)

Make = Callable[..., Any]


def recorded(name: str, *path: str) -> Make:
    """Return a maker of a recorded file, with the object at `path` updated."""

    def make(factor: float, **fields: Any) -> Any:
        content = document(name)
        first = content[0] if isinstance(content, list) else content
        inner = first
        for key in path:
            inner = inner[int(key)] if isinstance(inner, list) else inner[key]
        inner.update(copy.deepcopy(fields))
        first["noise"] = factor
        return content

    return make


def log(factor: float, completed: int, failed: int) -> str:
    return "\n".join(
        (
            "============ Serving Benchmark Result ============",
            f"Successful requests:   {completed}",
            f"Failed requests:       {failed}",
            f"Total input tokens:    {completed * 100}",
            f"Total generated tokens: {completed * 8}",
            f"Mean TTFT (ms):        {100 * factor:.4f}",
            "====",
            "",
        )
    )


def sanity(factor: float, goodput: float) -> str:
    (line, *_) = (DATA / "perf-sanity.jsonl").read_text("utf-8").splitlines()
    return json.dumps({**json.loads(line), "d_goodput": goodput / factor})


LATENCY = {"mean_ttft_ms": 100.0}
FAST = {"mean_ttft_ms": 80.0}
FAILING = {"errors": ["", *["refused"] * 9]}
ONE_RESULT = {"request_latency": 100.0, "request_count": 640.0}
TOKENS = {"request_latency": 100.0, "output_token_throughput": 500.0}
SCORES = {"exact_match,strict-match": 0.75, "exact_match_stderr,strict-match": 0.01}
VALUE = {"exact_match,strict-match": 0.62, "exact_match_stderr,strict-match": 0.01}
CONTEXT = ("context",)
OPTIONS = ("benchmarks", "0", "options")
GUIDE = ("benchmarks", "0", "config")
TOTALS = ("benchmarks", "0", "metrics", "request_totals")
INFERENCE = {"request_latency": {"median": 1.0}}
GPU_NAME = "gpu_name"


BY_TIME = {"loadgen": {"concurrency": 32, "benchmark_duration": 60}}


def telemetry(name: str) -> dict[str, Any]:
    return {"endpoints": {"h:9400": {"gpus": {"gpu_0": {GPU_NAME: name}}}}}


def in_rates(factor: float, unit: str, rate: float) -> dict[str, Any]:
    content = aiperf(factor, **TOKENS)
    content["output_token_throughput"] = {"unit": unit, "avg": rate / factor}
    return content


def perf(factor: float, completed: int, **fields: Any) -> dict[str, Any]:
    content = inference_perf(factor, request_latency={"median": 1.0})
    content["successes"]["count"] = completed
    return {**content, **fields}


def with_errors(factor: float, **fields: Any) -> dict[str, Any]:
    return {**aiperf(factor, **ONE_RESULT), **fields}


def summary(factor: float, **metrics: Any) -> dict[str, Any]:
    content = k6(factor, 0, 500)
    content["metrics"] |= {"iterations": {"count": 500}, **metrics}
    return content


def scores(factor: float, values: dict[str, Any] = SCORES, **fields: Any) -> dict[str, Any]:
    return lm_eval(scores=values, date=factor, **fields)


INVALID, DROP = "INVALID", "PERF DROP"

SIBLINGS: tuple[tuple[str, Make, dict[str, Any], dict[str, Any], str, str], ...] = (
    ("1 rates a minute", in_rates, {"unit": "tokens/sec", "rate": 500.0},
     {"unit": "tokens/min", "rate": 29_900.0}, "ok", ""),
    ("1 an unknown rate", in_rates, {"unit": "tokens/sec", "rate": 500.0},
     {"unit": "tokens/tick", "rate": 500.0}, INVALID, "its unit tokens/tick is unknown"),
    ("2 vllm says that none failed", vllm, LATENCY, {**FAST, "completed": 640}, DROP, "0.36 now"),
    ("2 errors of vllm's requests", vllm, LATENCY, {**FAST, **FAILING}, DROP, "failed requests"),
    ("2 errors of sglang's requests", sglang, {**LATENCY, "errors": [""] * 10},
     {**FAST, **FAILING, "completed": 991}, DROP, "failed requests"),
    ("2 completed without a failure field", vllm, LATENCY,
     {**FAST, "completed": 640, "failed": None, "num_prompts": None}, INVALID,
     "requests completed differs: 1000 before, 640 now"),
    ("2 a log", log, {"completed": 1000, "failed": 0}, {"completed": 640, "failed": 360}, DROP, ""),
    ("2 the errors' summary of aiperf", with_errors, {},
     {"request_count": {"avg": 576}, "error_summary": [{"count": 64}]}, DROP, "failed requests"),
    ("2 inference-perf without failures", perf, {"completed": 500},
     {"completed": 320, "failures": None}, DROP, "failed requests"),
    ("2 k6 drops iterations", summary, {}, {"dropped_iterations": {"count": 300}}, INVALID,
     "dropped iterations differs: 0 before"),
    ("2 guidellm cuts requests off", recorded("guidellm.json", *TOTALS), {},
     {"incomplete": 200, "successful": 288}, INVALID, "incomplete requests differs"),
    ("2 reverse", vllm, {**FAST, "completed": 640}, LATENCY, INVALID, "failed requests"),
    ("4 caches", recorded("google-benchmark.json", *CONTEXT), {},
     {"caches": [{"level": 3, "size": 1}]}, INVALID, "CPU caches differs"),
    ("4 scaling", recorded("google-benchmark.json", *CONTEXT), {}, {"cpu_scaling_enabled": True},
     INVALID, "CPU scaling differs: false before, true now"),
    ("4 architecture", recorded("pytest-benchmark.json", "machine_info"), {},
     {"machine": "aarch64"}, INVALID, "architecture differs"),
    ("4 the GPU of vllm's metadata", vllm, {**LATENCY, "gpu": "H100"}, {**LATENCY, "gpu": "H200"},
     INVALID, "gpu differs: H100 before, H200 now"),
    ("4 the GPUs of aiperf's telemetry", with_errors, {"telemetry_data": telemetry("H100")},
     {"telemetry_data": telemetry("H200")}, INVALID, "GPU differs: H100 before, H200 now"),
    ("4 the CPUs of asv", recorded("asv/host/abc12345-py3.12.json", "params"), {"num_cpu": "4"},
     {"num_cpu": "8"}, INVALID, "CPUs differs: 4 before, 8 now"),
    ("5 the cache that aiperf reads", aiperf,
     {**TOKENS, "input_sequence_length": 1000.0, "usage_prompt_cache_creation_tokens": 5.0,
      "usage_prompt_cache_read_tokens": 970.0},
     {**TOKENS, "input_sequence_length": 1000.0, "usage_prompt_cache_creation_tokens": 5.0,
      "usage_prompt_cache_read_tokens": 12.0}, INVALID, "cache hits differs: 0.97 before"),
    ("5 sglang without its cache", sglang,
     {**LATENCY, "server_info": {"disable_radix_cache": False}},
     {**LATENCY, "server_info": {"disable_radix_cache": True}}, INVALID, "prefix cache off"),
    ("5 warm-up", recorded("guidellm.json", *GUIDE), {}, {"warmup": 0.1}, INVALID,
     "warm-up differs: none before, 0.1 now"),
    ("6 tokens of llmperf", recorded("llmperf.json"), {"results_number_output_tokens_mean": 128},
     {"results_number_output_tokens_mean": 96}, INVALID, "output tokens per request differs"),
    ("6 k6 with other users", summary, {"vus_max": {"value": 10}}, {"vus_max": {"value": 50}},
     INVALID, "virtual users differs: 10 before, 50 now"),
    ("6 bytes of locust's answers", recorded("real/locust-2.47.0.json"), {},
     {"total_content_length": 300_000}, INVALID, "bytes per answer differs"),
    ("6 a shorter run of locust", recorded("real/locust-2.47.0.json"), {},
     {"last_request_timestamp": 1_796_031_165.8, "num_requests": 91, "total_content_length": 117390,
      "total_response_time": 3785.0}, INVALID,
     "seconds of load differs"),
    ("6 the timer of pytest-benchmark", recorded("pytest-benchmark.json", *OPTIONS), {},
     {"timer": "process_time"}, INVALID, "timer differs: perf_counter before"),
    ("6 sglang of another precision", sglang, {**LATENCY, "server_info": {"dtype": "bfloat16"}},
     {**LATENCY, "server_info": {"dtype": "float8"}}, INVALID, "data type differs"),
    ("6 prefill on other GPUs", recorded("inferencex.json"), {"prefill_tp": 4}, {"prefill_tp": 8},
     INVALID, "prefill_tp differs: 4 before, 8 now"),
    ("8 measured on neither side", vllm, {**LATENCY, "mean_tpot_ms": 0.0},
     {**LATENCY, "mean_tpot_ms": 0.0}, "ok",
     "not measured on either side, and not judged: tpot_mean: the file has 0.0"),
    ("8 a text with a unit", recorded("vllm-serve.json"), {"spec_decode_acceptance_length": "2 x"},
     {"spec_decode_acceptance_length": "1 x"}, "PROVISIONAL",
     "not measured on either side, and not judged: acceptance_length: the file has '"),
    ("8 the mean where no median is measured", vllm,
     {"mean_ttft_ms": 100.0, "median_ttft_ms": 0.0}, {"mean_ttft_ms": 111.0, "median_ttft_ms": 0.0},
     DROP, "ttft_p50: the file has 0.0"),
    ("8 a standard error of 0", scores,
     {"values": {"acc,none": 0.7, "acc_stderr,none": 0.0}},
     {"values": {"acc,none": 0.69, "acc_stderr,none": 0.0}}, "INCONCLUSIVE", "no standard error"),
    ("9 the meaning of ITL without a rate", inference_perf,
     {"rate": 0.0, **INFERENCE, "inter_token_latency": {"mean": 0.010}},
     {"rate": 0.0, **INFERENCE, "inter_token_latency": {"mean": 0.020}}, INVALID,
     "its meaning differs"),
    ("11 the few-shot seed", scores, {"config": {"fewshot_seed": 1}},
     {"config": {"fewshot_seed": 2}, "values": VALUE}, INVALID, "few-shot seed differs"),
    ("11 the task's settings", scores, {"configs": {"gsm8k": {"repeats": 1}}},
     {"configs": {"gsm8k": {"repeats": 8}}, "values": VALUE}, INVALID, "repeats differs"),
    ("14 perf-sanity", sanity, {"goodput": 7.0}, {"goodput": 2.1}, INVALID,
     "--ignore 'goodput target'"),
    ("6 aiperf ended by its time", with_errors,
     {"request_count": {"unit": "requests", "avg": 500.0}, "input_config": BY_TIME},
     {"request_count": {"unit": "requests", "avg": 460.0}, "input_config": BY_TIME}, "ok", ""),
    ("6 calls that asv has chosen", asv, {"results": [0.010], "calls": 10},
     {"results": [0.0101], "calls": 8}, "ok", ""),
    ("15 turns of aiperf", with_errors,
     {"input_config": {"input": {"conversation": {"turn": {"mean": 4}}}}},
     {"input_config": {"input": {"conversation": {"turn": {"mean": 2}}}}}, INVALID,
     "turns differs: 4 before, 2 now"),
)  # fmt: skip


def test_siblings(tmp_path: Path) -> None:
    for name, make, old, new, outcome, note in SIBLINGS:
        result = both(tmp_path / name, make, old, new)

        assert str(result.outcome) == outcome, (name, outcomes(result))
        assert note in notes(result), name


def test_the_meaning_is_checked_if_one_metric_is_asked_for(tmp_path: Path) -> None:
    old, new = ({"inter_token_latency": {"mean": mean}} for mean in (0.010, 0.020))
    result = both(tmp_path, inference_perf, old, new, metrics=("itl",))

    assert outcomes(result) == {"itl_mean": INVALID}


@pytest.mark.parametrize("changed", [{}, {"label": "copy"}])
def test_a_reformatted_copy_is_the_same_run(tmp_path: Path, changed: dict[str, str]) -> None:
    """`jq` and a script that adds a label change no figure and no time."""
    copied = {**document("vllm-serve.json"), **changed}
    copies = [
        write(tmp_path / n / "r.json", json.dumps(copied, indent=i))
        for i, n in ((1, "a"), (4, "b"))
    ]

    assert len(read(copies).runs) == 1
    with pytest.raises(MlperfError, match="are the same run, which cannot"):
        judged(DATA / "vllm-serve.json", copies[1])


@pytest.mark.parametrize("name", ["locust_stats.csv", "real/locust-2.47.0_stats.csv"])
def test_a_cut_table_is_named(tmp_path: Path, name: str) -> None:
    cut = (DATA / name).read_text("utf-8").rstrip()[:-20]
    with pytest.raises(MlperfError, match=r"r\.csv: the last row of the table is cut off"):
        read([write(tmp_path / "r.csv", cut)])


def test_a_cut_number_of_a_log_is_no_figure(tmp_path: Path) -> None:
    text = (DATA / "real/vllm-0.33.0.log").read_text("utf-8")
    cut = text[: text.index("49.84") + 1]
    (run,) = read([write(tmp_path / "r.log", cut)]).runs

    assert "ttft_mean" not in run.points[0].metrics


@pytest.mark.parametrize(
    ("line", "other", "reason"),
    [
        ("No errors encountered", "2 ERRORS encountered. See detailed log.", "reports 2 errors"),
        ("Result is : VALID\n", "", "LoadGen's result is missing"),
    ],
)
def test_a_summary_of_loadgen_with_errors_is_broken(
    tmp_path: Path, line: str, other: str, reason: str
) -> None:
    text = (DATA / "loadgen/mlperf_log_summary.txt").read_text("utf-8").replace(line, other)
    (run,) = read([write(tmp_path / "mlperf_log_summary.txt", text)]).runs

    assert reason in run.points[0].broken


def test_truth_values_of_documents_are_scores(tmp_path: Path) -> None:
    lines = samples([1] * 700 + [0] * 300).replace('"acc": 1.0', '"acc": true')
    old = write(tmp_path / "a" / "samples_t.jsonl", lines.replace('"acc": 0.0', '"acc": false'))
    new = write(tmp_path / "b" / "samples_t.jsonl", samples([1] * 640 + [0] * 360))

    assert outcomes(judged(old, new)) == {"acc": "ACC DROP"}


def test_a_point_that_some_new_runs_lack_is_noted(tmp_path: Path) -> None:
    def make(factor: float) -> dict[str, Any]:
        times = {"a": factor, **({} if factor < 0.99 else {"b": factor})}
        return pytest_benchmark(times)

    result = both(tmp_path, make, {}, {})

    assert "b is missing in 2 of 10 new runs" in notes(result)


def test_cancelled_requests_of_records_have_failed(tmp_path: Path) -> None:
    text = (DATA / "real/aiperf-records-0.13.0.jsonl").read_text("utf-8")
    head, mark, tail = text.rpartition('"was_cancelled": false')
    cut = write(tmp_path / "r.jsonl", f'{head}"was_cancelled": true{tail}')
    result = judged(DATA / "real/aiperf-records-0.13.0.jsonl", cut)

    assert mark
    assert outcomes(result)["success_share"] == DROP


def test_requests_without_a_time_are_not_in_the_mean_of_locust(tmp_path: Path) -> None:
    (content, *_) = document("real/locust-2.47.0.json")
    content |= {"num_requests": 100, "num_none_requests": 50, "total_response_time": 5000.0}
    (run,) = read([write(tmp_path / "r.json", [content])]).runs

    assert run.points[0].metrics["latency_mean"] == pytest.approx(0.1)


def test_documents_with_other_targets_are_not_compared(tmp_path: Path) -> None:
    name = "samples_gsm8k_2026-11-12T08-00-00.jsonl"
    text = (DATA / name).read_text("utf-8")
    new = write(tmp_path / name, text.replace('"target_hash": "t0"', '"target_hash": "t9"'))

    assert "targets differs: " in notes(judged(DATA / name, new))

"""Read TensorRT-LLM: trtllm-bench's report, perf-sanity's records and logs of its client."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from pytest_mlperf.addons.judge.files import Reader, ResultFile, has_keys, run_of
from pytest_mlperf.addons.judge.model import ToolRun
from pytest_mlperf.addons.judge.readers.fields import TOKENS, JsonObject, Values

_TRTLLM_RATES = {
    "requests_per_second": "request_throughput_req_s",
    "output_tokens_per_second": "system_output_throughput_tok_s",
    "total_tokens_per_second": "system_total_throughput_tok_s",
    "tokens_per_second_per_user": "output_throughput_per_user_tok_s",
    "output_tokens_per_second_per_gpu": "output_throughput_per_gpu_tok_s",
}

_REPORT_FACTS = {
    "model": "engine.model",
    "backend": "engine.backend",
    "data type": "engine.dtype",
    "quantization": "engine.quantization",
    "KV cache type": "engine.kv_cache_dtype",
    "TP": "world_info.tp_size",
    "PP": "world_info.pp_size",
    "EP": "world_info.ep_size",
    "GPUs": "world_info.world_size",
    "largest batch of tokens": "world_info.max_num_tokens",
    "KV cache share": "world_info.kv_cache_percentage",
    "GPU": "machine.name",
    "requests": "request_info.num_requests",
}

_REPORT_LENGTHS = {
    "input length": "request_info.avg_input_length",
    "output length": "request_info.avg_output_length",
}


def _report(document: ResultFile) -> Iterator[ToolRun]:
    raw = document.head
    performance, streaming = raw.at("performance"), raw.at("streaming_metrics")
    values = Values(performance, _TRTLLM_RATES)
    values.add("latency_mean", performance.get("avg_request_latency_ms"), 1e-3)
    values.statistics("latency", performance.get("request_latency_percentiles_ms"), 1e-3)
    for base in ("ttft", "tpot"):  # in milliseconds, although the name has no unit
        values.statistics(base, streaming.get(f"{base}_percentiles"), 1e-3)
        values.add(f"{base}_mean", streaming.get(f"avg_{base}_ms"), 1e-3)
    load = raw.at("world_info").facts({"batch": "max_batch_size", "rate": "issue_rate"})
    words = [f"{title} {fact.text}" for title, fact in load.items() if fact.value is not None]
    values.facts |= raw.facts(_REPORT_FACTS) | raw.facts(_REPORT_LENGTHS, TOKENS)
    point = values.point(", ".join(words) or "one load")
    version = raw.at("engine").text("version")
    yield run_of(document, "trtllm-bench", points=(point,), version=version)


_SANITY_RATES = {
    "requests_per_second": "seq_throughput",
    "output_tokens_per_second": "token_throughput",
    "total_tokens_per_second": "total_token_throughput",
    "tokens_per_second_per_user": "user_throughput",
    "acceptance_length": "al",
}

_SANITY_FACTS = {
    "model": "s_model_name",
    "GPU": "s_gpu_type",
    "GPUs": "l_gpus",
    "TP": "l_tp",
    "EP": "l_ep",
    "PP": "l_pp",
    "input length": "l_isl",
    "output length": "l_osl",
    "range ratio": "d_random_range_ratio",
    "iterations": "l_iterations",
}


def _sanity_values(raw: Mapping[str, object]) -> Values:
    """Collect values by the names that perf-sanity's database uses; times are in ms."""
    values = Values(raw, _SANITY_RATES)
    values.latencies(raw, 1e-3)
    values.goodput(raw.get("goodput"))
    return values


def _sanity(document: ResultFile) -> Iterator[ToolRun]:
    """Yield one run per record; perf-sanity writes one record per client of a test."""
    for index, raw in enumerate(document.objects):
        values = _sanity_values({k.removeprefix("d_"): v for k, v in raw.items()})
        case = raw.text("s_test_case_name", "s_model_name") or "one test"
        values.facts |= raw.facts(_SANITY_FACTS)
        point = values.at_load(raw.get("l_concurrency"), None, case)
        yield run_of(
            document,
            "perf-sanity",
            index,
            points=(point,),
            started=raw.moment("ts_created") or raw.moment("@timestamp"),
            host=raw.text("s_host_node_name"),
            commit=(raw.text("s_commit") or "")[:12] or None,
        )


_LOG_LINE = re.compile(r"^\s*([A-Z][\w %()./-]+?):\s+(-?[\d.]+)\s*\n", re.MULTILINE)

_LOG_NAMES = {
    "Request throughput (req/s)": "seq_throughput",
    "Output token throughput (tok/s)": "token_throughput",
    "Total Token throughput (tok/s)": "total_token_throughput",
    "Total token throughput (tok/s)": "total_token_throughput",
    "User throughput (tok/s)": "user_throughput",
    "Mean Avg Decoded Tokens per Iter": "al",
    "Request goodput (req/s)": "goodput",
}


def _log(document: ResultFile) -> Iterator[ToolRun]:
    """Yield the run in a log printed by vLLM's serving benchmark or a tool derived from it."""
    lines = JsonObject((t, float(value)) for t, value in _LOG_LINE.findall(document.text))
    figures = {_LOG_NAMES.get(title, title): value for title, value in lines.items()}
    figures |= {
        title.removesuffix(" (ms)").lower().replace(" ", "_"): value
        for title, value in lines.items()
        if title.endswith(" (ms)")
    }
    values = _sanity_values(figures)
    completed, failed = (lines.whole(f"{kind} requests") for kind in ("Successful", "Failed"))
    values.requests(None, completed, failed)
    values.lengths(completed, *map(lines.get, ("Total input tokens", "Total generated tokens")))
    point = values.at_load(
        lines.get("Max request concurrency", lines.get("Maximum request concurrency")),
        lines.get("Traffic request rate", lines.get("Request rate configured (RPS)")),
    )
    seconds = lines.get("Benchmark duration (s)")
    yield run_of(document, "serving-log", points=(point,), duration_s=seconds)


TRTLLM_BENCH = Reader(
    title="trtllm-bench",
    recognise=has_keys("performance", marks=("request_info", "world_info", "engine")),
    read=_report,
)
PERF_SANITY = Reader(
    title="TensorRT-LLM's perf-sanity",
    recognise=has_keys("d_seq_throughput", "d_token_throughput"),
    read=_sanity,
)
SERVING_LOG = Reader(
    title="the log of a serving benchmark",
    recognise=lambda document: "Serving Benchmark Result" in document.text and not document.values,
    read=_log,
)

"""Read benchmark results: vLLM's serve, throughput, latency; SGLang's bench_serving, one_batch."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_mlperf.addons.judge.files import Reader, ResultFile, has_keys, run_of
from pytest_mlperf.addons.judge.model import Fact, ToolPoint, ToolRun
from pytest_mlperf.addons.judge.readers.fields import LATENCY, TOKENS, JsonObject, Values, per

_VLLM_RATES = {
    "requests_per_second": "request_throughput",
    "output_tokens_per_second": "output_throughput",
    "total_tokens_per_second": "total_token_throughput",
    "acceptance_length": "spec_decode_acceptance_length",
}

_VLLM_MARKS = (
    *("model_id", "tokenizer_id", "num_prompts", "burstiness", "failed", "request_goodput"),
    *("request_goodput:", "total_token_throughput", "median_e2el_ms", "rtfx", "endpoint_type"),
)

_VLLM_FACTS = {
    "model": "model_id",
    "tokenizer": "tokenizer_id",
    "prompts": "num_prompts",
    "ramp-up": "ramp_up_strategy",
}

_METADATA = {
    *("gpu", "gpus", "gpu_name", "gpu_type", "hardware", "hw", "accelerator", "device"),
    *("dtype", "precision", "quantization", "tp", "tensor_parallel_size"),
    *("dataset", "dataset_name", "dataset_path", "input_len", "output_len"),
}
"""Keys of --metadata that users choose for the machine, the precision and the work."""

_SGLANG_MARKS = (
    *("total_output_tokens_retokenized", "sharegpt_output_len", "random_input_len", "server_info"),
    *("cache_report", "accept_length", "mean_e2e_latency_ms", "dataset_name", "random_range_ratio"),
)
"""Keys that only SGLang's benchmark writes."""

_is_sglang = has_keys("completed", marks=_SGLANG_MARKS)

_SGLANG_RATES = {
    "requests_per_second": "request_throughput",
    "output_tokens_per_second": "output_throughput",
    "input_tokens_per_second": "input_throughput",
    "total_tokens_per_second": "total_throughput",
    "acceptance_length": "accept_length",
}

_SGLANG_FACTS = {
    "model": "server_info.model_path",
    "data type": "server_info.dtype",
    "quantization": "server_info.quantization",
    "KV cache type": "server_info.kv_cache_dtype",
    "TP": "server_info.tp_size",
    "prefix cache off": "server_info.disable_radix_cache",
    "data set": "dataset_name",
    "range ratio": "random_range_ratio",
}


def _is_vllm(document: ResultFile) -> bool:
    keys = document.head.keys()
    if "completed" not in keys or _is_sglang(document):
        return False
    return not keys.isdisjoint(_VLLM_MARKS) or any(map(LATENCY.fullmatch, keys))


def _vllm(document: ResultFile) -> Iterator[ToolRun]:
    read = {"date", "request_rate", *_VLLM_FACTS.values(), *_METADATA}
    for index, raw in enumerate(document.objects):
        yield run_of(
            document,
            "vllm",
            index,
            points=(_vllm_point(raw),),
            started=raw.moment("date"),
            host=raw.text("host", "hostname"),
            commit=raw.text("commit", "git_commit"),
            version=raw.text("vllm_version", "version"),
            # Values of --metadata are further keys.
            details=raw.texts(
                *(k for k, v in raw.items() if isinstance(v, str) and k.lower() not in read)
            ),
            duration_s=raw.positive("duration"),
        )


def _vllm_point(raw: JsonObject) -> ToolPoint:
    values = Values(raw, _VLLM_RATES)
    values.goodput(raw.get("request_goodput", raw.get("request_goodput:")))
    if "total_tokens_per_second" not in values.metrics:  # files before vLLM's PR 8164
        tokens = [raw.positive(f"total_{kind}_tokens") for kind in ("input", "output")]
        total = per(sum(filter(None, tokens)) if all(tokens) else None, raw.get("duration"))
        values.add("total_tokens_per_second", total)
    values.add("acceptance_rate", raw.get("spec_decode_acceptance_rate"), 0.01)
    values.facts |= raw.facts(_VLLM_FACTS) | raw.facts({"burstiness": "burstiness"}, 1e-6)
    values.facts |= raw.facts({key: key for key in raw if key.lower() in _METADATA})
    return _served(values, raw)


def _served(values: Values, raw: JsonObject, *name_parts: str) -> ToolPoint:
    """Return the point of a vLLM or SGLang file; its name is its load, then `name_parts`."""
    values.latencies(raw, 1e-3)
    errors = raw.get("errors")
    listed = sum(map(bool, errors)) if isinstance(errors, list) else None
    sent, completed, failed = map(raw.whole, ("num_prompts", "completed", "failed"))
    values.requests(sent, completed, failed, listed)
    values.lengths(completed, raw.get("total_input_tokens"), raw.get("total_output_tokens"))
    return values.at_load(raw.get("max_concurrency"), raw.get("request_rate"), *name_parts)


def _throughput(document: ResultFile) -> Iterator[ToolRun]:
    for index, raw in enumerate(document.objects):
        values = Values(raw, {name: name for name in ("requests_per_second", "tokens_per_second")})
        tokens = per(raw.get("total_num_tokens"), raw.get("num_requests"))
        values.facts |= raw.facts({"requests": "num_requests"})
        values.facts["tokens per request"] = Fact(tokens, tolerance=TOKENS)
        points = (values.point("throughput"),)
        elapsed = raw.positive("elapsed_time")
        yield run_of(document, "vllm-throughput", index, points=points, duration_s=elapsed)


def _latency(document: ResultFile) -> Iterator[ToolRun]:
    raw = document.head
    values = Values(raw, {"latency_mean": "avg_latency"})
    for rank, value in raw["percentiles"].items():
        values.add(f"latency_p{rank}", value)
    values.facts["iterations"] = Fact(len(raw["latencies"]))
    yield run_of(document, "vllm-latency", points=(values.point("latency"),))


def _sglang(document: ResultFile) -> Iterator[ToolRun]:
    for index, raw in enumerate(document.objects):
        values = Values(raw, _SGLANG_RATES)
        values.share("cache hits", raw.at("cache_report").number("cache_hit_rate_pct"), 100)
        values.facts |= raw.facts(_SGLANG_FACTS)
        sizes = [raw.plain(f"random_{side}_len") for side in ("input", "output")]
        further = [] if None in sizes else ["{} in, {} out".format(*(Fact(s).text for s in sizes))]
        yield run_of(
            document,
            "sglang",
            index,
            points=(_served(values, raw, *further),),
            version=raw.at("server_info").text("version"),
            details=raw.texts("tag", "backend"),
            duration_s=raw.positive("duration"),
        )


_BATCH_FIGURES = {
    "ttft_mean": "prefill_latency",
    "tpot_p50": "median_decode_latency",
    "latency_mean": "total_latency",
    "input_tokens_per_second": "prefill_throughput",
    "output_tokens_per_second": "median_decode_throughput",
    "total_tokens_per_second": "overall_throughput",
}

_BATCH_SERVER_FIGURES = {
    "ttft_mean": "last_ttft",
    "latency_mean": "latency",
    "input_tokens_per_second": "input_throughput",
    "output_tokens_per_second": "output_throughput",
    "total_tokens_per_second": "overall_throughput",
    "acceptance_length": "acc_length",
}


def _one_batch(document: ResultFile) -> Iterator[ToolRun]:
    """Yield runs of a file to which SGLang's one_batch appends a line per batch size."""
    runs: list[dict[str, tuple[int, ToolPoint]]] = []
    for index, raw in enumerate(document.objects):
        served = "last_ttft" in raw
        values = Values(raw, _BATCH_SERVER_FIGURES if served else _BATCH_FIGURES)
        values.share("cache hits", raw.number("cache_hit_rate"))
        values.facts |= raw.facts({"output tokens": "total_output_tokens"}, TOKENS)
        values.facts["server"] = Fact("of its own" if not served else "addressed by HTTP")
        name = "batch {batch_size}, {input_len} in, {output_len} out".format_map(raw)
        if not runs or name in runs[-1]:
            runs.append({})
        runs[-1][name] = (index, values.point(name))
    for batch in runs:
        points = tuple(point for _, point in batch.values())
        first = next(index for index, _ in batch.values())
        yield run_of(document, "sglang-batch", first, points=points)


VLLM_SERVE = Reader(title="vllm bench serve", recognise=_is_vllm, read=_vllm)
VLLM_THROUGHPUT = Reader(
    title="vllm bench throughput",
    recognise=has_keys("elapsed_time", "num_requests", "requests_per_second"),
    read=_throughput,
)
VLLM_LATENCY = Reader(
    title="vllm bench latency",
    recognise=has_keys("avg_latency", "latencies", "percentiles"),
    read=_latency,
)
SGLANG_SERVING = Reader(title="SGLang bench_serving", recognise=_is_sglang, read=_sglang)
SGLANG_BATCH = Reader(
    title="SGLang bench_one_batch",
    recognise=has_keys("run_name", "batch_size", "input_len", "output_len", "overall_throughput"),
    read=_one_batch,
)

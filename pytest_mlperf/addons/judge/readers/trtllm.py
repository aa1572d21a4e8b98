"""Read trtllm-bench's report."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_mlperf.addons.judge.files import Reader, ResultFile, run_of
from pytest_mlperf.addons.judge.model import Fact, ToolPoint, ToolRun
from pytest_mlperf.addons.judge.readers.fields import TOKENS, Values, facts_of, mapping, plain, text

_TRTLLM_RATES = {
    "requests_per_second": "request_throughput_req_s",
    "output_tokens_per_second": "system_output_throughput_tok_s",
    "total_tokens_per_second": "system_total_throughput_tok_s",
    "tokens_per_second_per_user": "output_throughput_per_user_tok_s",
    "output_tokens_per_second_per_gpu": "output_throughput_per_gpu_tok_s",
}

_ENGINE = {
    "model": "model",
    "backend": "backend",
    "data type": "dtype",
    "quantization": "quantization",
    "KV cache type": "kv_cache_dtype",
}

_WORLD = {"TP": "tp_size", "PP": "pp_size", "EP": "ep_size", "GPUs": "world_size"}


def _is_report(document: ResultFile) -> bool:
    head = document.head
    return isinstance(head.get("performance"), dict) and (
        "request_info" in head or "world_info" in head or "engine" in head
    )


def _read(document: ResultFile) -> Iterator[ToolRun]:
    raw = document.head
    performance, streaming = mapping(raw, "performance"), mapping(raw, "streaming_metrics")
    values = Values(performance, _TRTLLM_RATES)
    values.add("latency_mean", performance.get("avg_request_latency_ms"), 1e-3)
    values.statistics("latency", performance.get("request_latency_percentiles_ms"), 1e-3)
    for base in ("ttft", "tpot"):  # in milliseconds, although the name has no unit
        values.statistics(base, streaming.get(f"{base}_percentiles"), 1e-3)
        values.add(f"{base}_mean", streaming.get(f"avg_{base}_ms"), 1e-3)
    engine, world, requests = (mapping(raw, k) for k in ("engine", "world_info", "request_info"))
    name = ", ".join(
        f"{title} {Fact(plain(world.get(key))).text}"
        for title, key in (("batch", "max_batch_size"), ("rate", "issue_rate"))
        if plain(world.get(key)) is not None
    )
    point = ToolPoint(
        name=name or "one load",
        **values.fields,
        facts={
            **facts_of(engine, _ENGINE),
            **facts_of(world, _WORLD),
            "GPU": Fact(plain(mapping(raw, "machine").get("name"))),
            "requests": Fact(plain(requests.get("num_requests"))),
            "input length": Fact(plain(requests.get("avg_input_length")), tolerance=TOKENS),
            "output length": Fact(plain(requests.get("avg_output_length")), tolerance=TOKENS),
        },
    )
    yield run_of(document, "trtllm-bench", points=(point,), version=text(engine, "version"))


TRTLLM_BENCH = Reader(title="trtllm-bench", recognise=_is_report, read=_read)

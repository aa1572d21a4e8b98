"""Read `vllm bench serve`, `throughput` and `latency`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pytest_mlperf.addons.judge.files import Reader, ResultFile, run_of
from pytest_mlperf.addons.judge.model import Fact, ToolPoint, ToolRun
from pytest_mlperf.addons.judge.readers.fields import (
    SGLANG_KEYS,
    Values,
    facts_of,
    lengths,
    load_name,
    moment,
    per,
    plain,
    positive,
    text,
    texts,
    whole,
)

VLLM_LATENCY = re.compile(r"(?P<statistic>mean|median|p[0-9.]+)_(?P<base>ttft|tpot|itl|e2el)_ms")

VLLM_RATES = {
    "requests_per_second": "request_throughput",
    "output_tokens_per_second": "output_throughput",
    "total_tokens_per_second": "total_token_throughput",
    "goodput": "request_goodput",
}

_MARKS = (
    *("model_id", "tokenizer_id", "num_prompts", "burstiness", "failed", "request_goodput"),
    *("request_goodput:", "total_token_throughput", "median_e2el_ms", "rtfx", "endpoint_type"),
)

_FACTS = {"model": "model_id", "tokenizer": "tokenizer_id", "prompts": "num_prompts"}


def _is_serve(document: ResultFile) -> bool:
    head = document.head
    if "completed" not in head or any(mark in head for mark in SGLANG_KEYS):
        return False
    return any(mark in head for mark in _MARKS) or any(map(VLLM_LATENCY.fullmatch, head))


def _serve(document: ResultFile) -> Iterator[ToolRun]:
    read = {"date", "request_rate", *_FACTS.values()}
    for index, raw in enumerate(document.objects):
        yield run_of(
            document,
            "vllm",
            index,
            points=(_served(raw),),
            started=moment(raw.get("date")),
            host=text(raw, "host", "hostname"),
            commit=text(raw, "commit", "git_commit"),
            version=text(raw, "vllm_version", "version"),
            # Values of --metadata are further keys.
            details=texts(
                raw, *(k for k, v in raw.items() if isinstance(v, str) and k not in read)
            ),
            duration_s=positive(raw.get("duration")),
        )


def _served(raw: Mapping[str, Any]) -> ToolPoint:
    raw = {**raw, "request_goodput": raw.get("request_goodput", raw.get("request_goodput:"))}
    values = Values(raw, VLLM_RATES)
    if "total_tokens_per_second" not in values.metrics:  # files before vLLM's PR 8164
        tokens = [positive(raw.get(f"total_{kind}_tokens")) for kind in ("input", "output")]
        total = per(sum(filter(None, tokens)) if all(tokens) else None, raw.get("duration"))
        values.metrics |= {"total_tokens_per_second": total} if total else {}
    values.matching(raw, VLLM_LATENCY, 1e-3)
    share = positive(raw.get("spec_decode_acceptance_rate"), 0.01)
    length = positive(raw.get("spec_decode_acceptance_length"))
    values.metrics |= {"acceptance_rate": share} if share else {}
    values.metrics |= {"acceptance_length": length} if length else {}
    sent, completed = whole(raw.get("num_prompts")), whole(raw.get("completed"))
    failed = whole(raw.get("failed"))
    if failed is None and sent is not None and completed is not None and sent >= completed:
        failed = sent - completed  # files before vLLM's PR 26478
    if sent is None and failed is not None and completed is not None:
        sent = failed + completed
    rate, concurrency = plain(raw.get("request_rate")), plain(raw.get("max_concurrency"))
    return ToolPoint(
        name=load_name(rate, concurrency),
        **values.fields,
        facts={
            **facts_of(raw, _FACTS),
            "burstiness": Fact(plain(raw.get("burstiness")), tolerance=1e-6),
            **lengths(completed, raw.get("total_input_tokens"), raw.get("total_output_tokens")),
            "goodput target": Fact(None, ("goodput",), needed=True),
            **({"requests completed": Fact(completed)} if sent is None else {}),
        },
        sent=sent,
        failed=failed,
        axis=concurrency if isinstance(concurrency, float) else None,
    )


SERVE = Reader(title="vllm bench serve", recognise=_is_serve, read=_serve)


def _is_throughput(document: ResultFile) -> bool:
    return {"elapsed_time", "num_requests", "requests_per_second"} <= document.head.keys()


def _throughput(document: ResultFile) -> Iterator[ToolRun]:
    for index, raw in enumerate(document.objects):
        values = Values(raw, {name: name for name in ("requests_per_second", "tokens_per_second")})
        tokens = Fact(per(raw.get("total_num_tokens"), raw.get("num_requests")), tolerance=0.02)
        facts = {**facts_of(raw, {"requests": "num_requests"}), "tokens per request": tokens}
        point = ToolPoint(name="throughput", **values.fields, facts=facts)
        elapsed = positive(raw.get("elapsed_time"))
        yield run_of(document, "vllm-throughput", index, points=(point,), duration_s=elapsed)


THROUGHPUT = Reader(title="vllm bench throughput", recognise=_is_throughput, read=_throughput)


def _is_latency(document: ResultFile) -> bool:
    return {"avg_latency", "latencies", "percentiles"} <= document.head.keys()


def _latency(document: ResultFile) -> Iterator[ToolRun]:
    raw = document.head
    values = Values()
    values.add("latency_mean", raw["avg_latency"])
    for rank, value in raw["percentiles"].items():
        values.add(f"latency_p{rank}", value)
    point = ToolPoint(
        name="latency", **values.fields, facts={"iterations": Fact(float(len(raw["latencies"])))}
    )
    yield run_of(document, "vllm-latency", points=(point,))


LATENCIES = Reader(title="vllm bench latency", recognise=_is_latency, read=_latency)

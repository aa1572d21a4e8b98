"""Read `vllm bench serve`, `throughput` and `latency`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pytest_mlperf.addons.judge.files import Reader, ResultFile, run_of
from pytest_mlperf.addons.judge.model import (
    Fact,
    ToolPoint,
    ToolRun,
    facts_of,
    lengths,
    per,
    plain,
    positive,
    texts,
    whole,
)
from pytest_mlperf.addons.judge.readers.fields import SGLANG, load_name, moment, rates, stated

LATENCY = re.compile(r"(?P<statistic>mean|median|p[0-9.]+)_(?P<base>ttft|tpot|itl|e2el)_ms")

RATES = {
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
    if "completed" not in head or any(mark in head for mark in SGLANG):
        return False
    return any(mark in head for mark in _MARKS) or any(map(LATENCY.fullmatch, head))


def _serve(document: ResultFile) -> Iterator[ToolRun]:
    for index, raw in enumerate(document.objects):
        yield run_of(
            document,
            "vllm",
            index,
            points=(_served(raw),),
            started=moment(raw.get("date")),
            host=next(iter(texts(raw, "host", "hostname").values()), None),
            commit=next(iter(texts(raw, "commit", "git_commit").values()), None),
            version=next(iter(texts(raw, "vllm_version", "version").values()), None),
            details=texts(raw, "label", "backend", "endpoint_type"),
            duration_s=positive(raw.get("duration")),
        )


def _served(raw: Mapping[str, Any]) -> ToolPoint:
    raw = {**raw, "request_goodput": raw.get("request_goodput", raw.get("request_goodput:"))}
    metrics, absent = rates(raw, RATES)
    if "total_tokens_per_second" not in metrics:  # files before vLLM's PR 8164
        tokens = [positive(raw.get(f"total_{kind}_tokens")) for kind in ("input", "output")]
        total = per(sum(filter(None, tokens)) if all(tokens) else None, raw.get("duration"))
        metrics |= {"total_tokens_per_second": total} if total else {}
    names = {"e2el": "latency"}
    for key, match in ((key, LATENCY.fullmatch(key)) for key in raw):
        if match:
            statistic = "p50" if match["statistic"] == "median" else match["statistic"]
            stated(
                raw[key],
                f"{names.get(match['base'], match['base'])}_{statistic}",
                1e-3,
                metrics,
                absent,
            )
    share = positive(raw.get("spec_decode_acceptance_rate"), 0.01)
    length = positive(raw.get("spec_decode_acceptance_length"))
    metrics |= {"acceptance_rate": share} if share else {}
    metrics |= {"acceptance_length": length} if length else {}
    sent, completed = whole(raw.get("num_prompts")), whole(raw.get("completed"))
    failed = whole(raw.get("failed"))
    if failed is None and sent is not None and completed is not None and sent >= completed:
        failed = sent - completed  # files before vLLM's PR 26478
    if sent is None and failed is not None and completed is not None:
        sent = failed + completed
    rate, concurrency = plain(raw.get("request_rate")), plain(raw.get("max_concurrency"))
    return ToolPoint(
        name=load_name(rate, concurrency),
        metrics=metrics,
        absent=absent,
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
        metrics, absent = rates(
            raw, {name: name for name in ("requests_per_second", "tokens_per_second")}
        )
        tokens = Fact(per(raw.get("total_num_tokens"), raw.get("num_requests")), tolerance=0.02)
        facts = {**facts_of(raw, {"requests": "num_requests"}), "tokens per request": tokens}
        point = ToolPoint(name="throughput", metrics=metrics, absent=absent, facts=facts)
        elapsed = positive(raw.get("elapsed_time"))
        yield run_of(document, "vllm-throughput", index, points=(point,), duration_s=elapsed)


THROUGHPUT = Reader(title="vllm bench throughput", recognise=_is_throughput, read=_throughput)


def _is_latency(document: ResultFile) -> bool:
    return {"avg_latency", "latencies", "percentiles"} <= document.head.keys()


def _latency(document: ResultFile) -> Iterator[ToolRun]:
    raw = document.head
    metrics: dict[str, float] = {}
    absent: dict[str, str] = {}
    stated(raw["avg_latency"], "latency_mean", 1.0, metrics, absent)
    for rank, value in raw["percentiles"].items():
        stated(value, f"latency_p{rank}", 1.0, metrics, absent)
    point = ToolPoint(
        name="latency",
        metrics=metrics,
        absent=absent,
        facts={"iterations": Fact(float(len(raw["latencies"])))},
    )
    yield run_of(document, "vllm-latency", points=(point,))


LATENCIES = Reader(title="vllm bench latency", recognise=_is_latency, read=_latency)

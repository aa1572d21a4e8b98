"""Read SGLang's `bench_serving` (JSON lines)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pytest_mlperf.addons.judge.files import Reader, ResultFile, run_of
from pytest_mlperf.addons.judge.model import Fact, ToolPoint, ToolRun
from pytest_mlperf.addons.judge.readers.fields import (
    CACHE_TOLERANCE,
    SGLANG_KEYS,
    Values,
    facts_of,
    lengths,
    load_name,
    mapping,
    number,
    plain,
    positive,
    text,
    texts,
    whole,
)

_LATENCY = re.compile(r"(?P<statistic>mean|median|p[0-9.]+)_(?P<base>e2e_latency|ttft|tpot|itl)_ms")

_SGLANG_RATES = {
    "requests_per_second": "request_throughput",
    "output_tokens_per_second": "output_throughput",
    "input_tokens_per_second": "input_throughput",
    "total_tokens_per_second": "total_throughput",
    "acceptance_length": "accept_length",
}

_LENGTHS = ("random_input_len", "random_output_len", "sharegpt_output_len")


def _is_sglang(document: ResultFile) -> bool:
    head = document.head
    return "completed" in head and any(mark in head for mark in SGLANG_KEYS)


def _read(document: ResultFile) -> Iterator[ToolRun]:
    for index, raw in enumerate(document.objects):
        server = mapping(raw, "server_info")
        yield run_of(
            document,
            "sglang",
            index,
            points=(_point(raw, server),),
            version=text(server, "version"),
            details=texts(raw, "tag", "backend"),
            duration_s=positive(raw.get("duration")),
        )


def _point(raw: Mapping[str, Any], server: Mapping[str, Any]) -> ToolPoint:
    values = Values(raw, _SGLANG_RATES)
    values.matching(raw, _LATENCY, 1e-3)
    hits = number(mapping(raw, "cache_report").get("cache_hit_rate_pct"))
    completed = whole(raw.get("completed"))
    concurrency = plain(raw.get("max_concurrency"))
    sizes = [plain(raw.get(name)) for name in _LENGTHS]
    name = load_name(plain(raw.get("request_rate")), concurrency)
    if sizes[0] is not None and sizes[1] is not None:
        name += f", {Fact(sizes[0]).text} in, {Fact(sizes[1]).text} out"
    return ToolPoint(
        name=name,
        **values.fields,
        facts={
            "requests completed": Fact(completed),
            "model": Fact(plain(server.get("model_path"))),
            **facts_of(raw, {"data set": "dataset_name", "range ratio": "random_range_ratio"}),
            "cache hits": Fact(
                None if hits is None else hits / 100, tolerance=CACHE_TOLERANCE, absolute=True
            ),
            **lengths(completed, raw.get("total_input_tokens"), raw.get("total_output_tokens")),
        },
        axis=concurrency if isinstance(concurrency, float) else None,
    )


SGLANG_SERVING = Reader(title="SGLang bench_serving", recognise=_is_sglang, read=_read)

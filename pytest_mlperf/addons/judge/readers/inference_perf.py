"""Read inference-perf's `summary_lifecycle_metrics.json` and its files of stages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pytest_mlperf.addons.judge.files import Reader, ResultFile, run_of
from pytest_mlperf.addons.judge.model import Fact, ToolPoint, ToolRun
from pytest_mlperf.addons.judge.readers.fields import (
    CACHE_TOLERANCE,
    TOKENS,
    Values,
    mapping,
    number,
    plain,
    positive,
    whole,
)

_INFERENCE_PERF_TIMES = {
    "request_latency": "latency",
    "time_to_first_token": "ttft",
    "time_per_output_token": "tpot",
    "inter_token_latency": "itl",
}

_INFERENCE_PERF_RATES = {
    "output_tokens_per_sec": "output_tokens_per_second",
    "total_tokens_per_sec": "total_tokens_per_second",
    "input_tokens_per_sec": "input_tokens_per_second",
    "requests_per_sec": "requests_per_second",
}

SAME_RATE = 0.05
"""Relative difference of throughputs below which a token latency should be the same as well."""

MEANING_RATIO = 1.5
"""Factor of a token latency at equal throughput beyond which its meaning changed: releases 0.5.0
and 0.6.0 differ by a factor of 2, and the file holds no release."""


def _is_summary(document: ResultFile) -> bool:
    return "load_summary" in document.head and "successes" in document.head


def _read(document: ResultFile) -> Iterator[ToolRun]:
    raw = document.head
    successes = mapping(raw, "successes")
    values = Values()
    latencies = mapping(successes, "latency") or successes
    for key, base in _INFERENCE_PERF_TIMES.items():
        values.statistics(base, latencies.get(key))
    throughput = mapping(successes, "throughput") or successes
    for key, metric in _INFERENCE_PERF_RATES.items():
        values.add(metric, throughput.get(key))
    goodput = mapping(successes, "goodput_metrics")
    values.add("goodput", goodput.get("request_goodput"))
    load = mapping(raw, "load_summary")
    completed, failed = whole(successes.get("count")), whole(mapping(raw, "failures").get("count"))
    concurrency, rate = plain(load.get("concurrency")), plain(load.get("requested_rate"))
    tokens = mapping(successes, "prompt_tokens")
    cached, total = number(tokens.get("cached")), number(tokens.get("total"))
    stage = re.search(r"stage_(\d+)_", document.path.name)
    words = [
        f"{title} {Fact(value).text}"
        for title, value in (("concurrency", concurrency), ("rate", rate))
        if value is not None
    ]
    point = ToolPoint(
        name=", ".join(words) or (f"stage {stage[1]}" if stage else "all stages"),
        **values.fields,
        facts={
            "requests": Fact(whole(load.get("count"))),
            "input tokens per request": Fact(_length(successes, "prompt_len"), tolerance=TOKENS),
            "output tokens per request": Fact(_length(successes, "output_len"), tolerance=TOKENS),
            "cache hits": Fact(
                cached / total if cached is not None and total else None,
                tolerance=CACHE_TOLERANCE,
                absolute=True,
            ),
            "goodput target": Fact(_target(document, goodput), ("goodput",), needed=True),
        },
        sent=None if completed is None or failed is None else completed + failed,
        failed=failed,
        axis=concurrency if isinstance(concurrency, float) else None,
    )
    seconds = positive(raw.get("benchmark_time_seconds"))
    yield run_of(document, "inference-perf", points=(point,), duration_s=seconds)


def _length(successes: Mapping[str, Any], key: str) -> float | None:
    return positive(mapping(successes, key).get("mean"))


def _target(document: ResultFile, goodput: Mapping[str, Any]) -> str | None:
    """Return the latency targets in the report, else those of `config.yaml` next to it."""
    stored = goodput.get("constraints")
    if stored is not None:
        return str(stored)
    file = document.path.with_name("config.yaml")
    if not file.is_file():
        return None
    lines = iter(file.read_text("utf-8", "replace").splitlines())
    block = next((line for line in lines if "goodput" in line), None)
    if block is None:
        return None
    depth = len(block) - len(block.lstrip())
    values = []
    for line in lines:
        if line.strip() and len(line) - len(line.lstrip()) <= depth:
            break
        values.append(" ".join(line.split()))
    return ", ".join(filter(None, values)) or None


def _suspicious(ratios: Mapping[str, float]) -> Mapping[str, str]:
    rates = [ratio for name, ratio in ratios.items() if name in _INFERENCE_PERF_RATES.values()]
    if not rates or any(abs(rate - 1) > SAME_RATE for rate in rates):
        return {}
    return {
        name: "changed by a large factor at equal throughput: its meaning differs between "
        "releases 0.5 and 0.6 of inference-perf, which the file does not hold"
        for name, ratio in ratios.items()
        if name.startswith(("itl", "tpot")) and not 1 / MEANING_RATIO < ratio < MEANING_RATIO
    }


INFERENCE_PERF = Reader(
    title="inference-perf", recognise=_is_summary, read=_read, suspicious=_suspicious
)

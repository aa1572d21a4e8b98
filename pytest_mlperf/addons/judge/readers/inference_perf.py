"""Read inference-perf's `summary_lifecycle_metrics.json` and its result files of load stages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from pytest_mlperf.addons.judge.files import Reader, ResultFile, has_keys, run_of
from pytest_mlperf.addons.judge.model import Fact, ToolRun
from pytest_mlperf.addons.judge.readers.fields import JsonObject, Values

_INFERENCE_PERF_TIMES = {
    "request_latency": "latency",
    "time_to_first_token": "ttft",
    "time_per_output_token": "tpot",
    "inter_token_latency": "itl",
}

_INFERENCE_PERF_RATES = {
    "output_tokens_per_second": "output_tokens_per_sec",
    "total_tokens_per_second": "total_tokens_per_sec",
    "input_tokens_per_second": "input_tokens_per_sec",
    "requests_per_second": "requests_per_sec",
}

SAME_RATE = 0.05
"""Relative difference of throughputs below which a token latency should be the same as well."""

MEANING_RATIO = 1.5
"""Factor of a token latency at equal throughput beyond which its meaning changed: releases 0.5.0
and 0.6.0 differ by a factor of 2, and the file holds no release."""


def _read(document: ResultFile) -> Iterator[ToolRun]:
    raw = document.head
    successes, load = raw.at("successes"), raw.at("load_summary")
    values = Values(successes.at("throughput") or successes, _INFERENCE_PERF_RATES)
    latencies = successes.at("latency") or successes
    for key, base in _INFERENCE_PERF_TIMES.items():
        values.statistics(base, latencies.get(key))
    goodput, tokens = successes.at("goodput_metrics"), successes.at("prompt_tokens")
    settings = _settings(document)
    values.goodput(goodput.get("request_goodput"), _target(goodput, settings))
    sent, failed = load.whole("count"), raw.at("failures").whole("count")
    values.requests(sent, successes.whole("count"), failed)
    # Releases from 0.6.1 on have the server's count as well.
    sizes = (successes.at(f"{s}_tokens") or successes.at(f"{s}_len") for s in ("prompt", "output"))
    values.lengths(1, *(size.get("mean") for size in sizes))
    values.share("cache hits", tokens.number("cached"), tokens.number("total"))
    model = re.search(r"^ +model_name: *(\S+)", settings, re.MULTILINE)
    values.facts |= {"model": Fact(model[1] if model else None), "requests": Fact(sent)}
    stage = re.search(r"stage_(\d+)_", document.path.name)
    point = values.at_load(
        load.get("concurrency"),
        load.get("requested_rate"),
        otherwise=f"stage {stage[1]}" if stage else "all stages",
    )
    seconds = raw.positive("benchmark_time_seconds")
    yield run_of(document, "inference-perf", points=(point,), duration_s=seconds)


def _settings(document: ResultFile) -> str:
    """Return the text of `config.yaml` next to a report, because the report has no settings."""
    file = document.path.with_name("config.yaml")
    return file.read_text("utf-8", "replace") if file.is_file() else ""


def _target(goodput: JsonObject, settings: str) -> str | None:
    """Return a report's goodput limits as text, else those in the config file's text, else None."""
    stored = goodput.get("constraints")
    if stored is not None:
        return str(stored)
    block = re.search(r"^( *).*goodput.*\n((?:\1 +\S.*\n?)*)", settings, re.MULTILINE)
    lines = block[2].splitlines() if block else []
    return ", ".join(" ".join(line.split()) for line in lines) or None


def _suspicious(ratios: Mapping[str, float]) -> Mapping[str, str]:
    rates = [
        ratio
        for name, ratio in ratios.items()
        if name in _INFERENCE_PERF_RATES or name in {"latency_p50", "latency_mean"}
    ]
    if not rates or any(abs(rate - 1) > SAME_RATE for rate in rates):
        return {}
    return {
        name: "changed by a large factor at equal throughput: its meaning differs between "
        "inference-perf 0.5 and 0.6, and the file does not say which release wrote it"
        for name, ratio in ratios.items()
        if name.startswith(("itl", "tpot")) and not 1 / MEANING_RATIO < ratio < MEANING_RATIO
    }


INFERENCE_PERF = Reader(
    title="inference-perf",
    recognise=has_keys("load_summary", "successes"),
    read=_read,
    suspicious=_suspicious,
)

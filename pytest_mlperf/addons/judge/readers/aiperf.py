"""Read AIPerf's `profile_export_aiperf.json` and records, and GenAI-Perf's export."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from pytest_mlperf.addons.judge.files import Reader, ResultFile, run_of
from pytest_mlperf.addons.judge.model import Fact, ToolPoint, ToolRun
from pytest_mlperf.addons.judge.readers.fields import (
    SECONDS_PER_UNIT,
    TOKENS,
    JsonObject,
    Values,
    plain,
)

_AIPERF_TIMES = {
    "request_latency": "latency",
    "time_to_first_token": "ttft",
    "time_to_second_token": "ttst",
    "inter_token_latency": "itl",
}

_AIPERF_RATES = {
    "output_token_throughput": "output_tokens_per_second",
    "total_token_throughput": "total_tokens_per_second",
    "output_token_throughput_per_user": "tokens_per_second_per_user",
    "request_throughput": "requests_per_second",
    "goodput": "goodput",
    "request_goodput": "goodput",
}

_BY_TOKENS = (
    *("output_tokens_per_second", "total_tokens_per_second", "tokens_per_second_per_user"),
    *("itl", "ttst"),
)
"""Metrics that divide by a number of tokens, which the client counts from the text."""

_AIPERF_MARKS = (
    *("schema_version", "aiperf_version", "benchmark_id", "start_time", "was_cancelled"),
    *("error_summary", "run_info", "telemetry_data", "usage_completion_tokens"),
)

_GPU_NAME = re.compile(r'"gpu_name": *"([^"]+)"')
"""Names of GPUs, somewhere in the telemetry."""

_SCHEMAS = ("None", "1.0", "1.1", "1.2", "1.3", "1.4", "1.5")


def _is_genai_perf(document: ResultFile) -> bool:
    return not document.head.at("request_latency").keys().isdisjoint(("avg", "p50"))


def _is_aiperf(document: ResultFile) -> bool:
    return _is_genai_perf(document) and not document.head.keys().isdisjoint(_AIPERF_MARKS)


def _export(document: ResultFile) -> Iterator[ToolRun]:
    raw = document.head
    tool = "aiperf" if _is_aiperf(document) else "genai-perf"
    schema = str(raw.get("schema_version"))
    note = f"AIPerf's schema {schema} is unknown; only the fields of older ones were read"
    errors = raw.at("error_request_count").whole("avg")
    if errors is None and tool == "aiperf":
        errors = 0  # it leaves the count out if it is 0
    yield run_of(
        document,
        tool,
        points=(_point(document, errors),),
        started=raw.moment("start_time"),
        version=raw.text("aiperf_version"),
        details=raw.at("run_info").texts("random_seed", "variation_label"),
        notes=() if schema in _SCHEMAS else (note,),
        duration_s=raw.at("benchmark_duration").number("avg"),
    )


def _point(document: ResultFile, errors: int | None) -> ToolPoint:
    raw, values = document.head, Values()
    for key, base in _AIPERF_TIMES.items():
        unit = str(raw.at(key).get("unit", "ms"))
        if unit in SECONDS_PER_UNIT:
            values.statistics(base, raw.at(key), SECONDS_PER_UNIT[unit])
        else:
            values.absent[f"{base}_p50"] = f"its unit {unit!r} is unknown"
    for key, metric in _AIPERF_RATES.items():
        amount, _, time = str(raw.at(key).get("unit", "/sec")).partition("/")
        time = time.removesuffix("/user")
        if time in SECONDS_PER_UNIT:
            values.add(metric, raw.at(key).get("avg"), 1 / SECONDS_PER_UNIT[time])
        else:
            values.absent[metric] = f"its unit {amount}/{time} is unknown"
    settings = _settings(raw.at("input_config"))
    completed = raw.at("request_count").whole("avg")
    listed = sum(error.whole("count") or 0 for error in raw.entries("error_summary"))
    size_in, size_out, server_count = (
        raw.at(name).number("avg")
        for name in ("input_sequence_length", "output_sequence_length", "usage_completion_tokens")
    )
    caches = {"read" in key: key for key in raw if key.startswith("usage_prompt_cache")}
    cached = raw.at(caches.get(True, caches.get(False, ""))).number("avg")
    values.requests(None, completed, errors, listed or None)
    values.lengths(1, size_in, size_out if server_count is None else server_count)
    values.share("cache hits", cached, size_in)
    values.goodput(None, _setting(settings, "goodput", "slos"))
    lasts_s = _setting(settings, "benchmark_duration", "duration")
    phases = raw.at("input_config").entries("phases")
    warm = any(p.get("kind") == "warmup" and not p.get("exclude_from_results") for p in phases)
    gpus = sorted(set(_GPU_NAME.findall(document.text)))
    values.facts |= {
        "model": Fact(_setting(settings, "model_names", "model", "models.items.name", "items")),
        "tokenizer": Fact(_setting(settings, "tokenizer.name", "tokenizer")),
        "seconds of load": Fact(lasts_s),
        "requests": Fact(None if lasts_s else values.sent),  # a time limit ends the run
        "data set": Fact(_setting(settings, "public_dataset", "datasets.type")),
        "endpoint": Fact(_setting(settings, "endpoint.type")),
        "streaming": Fact(_setting(settings, "endpoint.streaming")),
        "warm-up": Fact("in the results" if warm else "left out"),
        "turns": Fact(_setting(settings, "turn.mean", "turns.mean")),
        "GPU": Fact(", ".join(gpus) or None),
    }
    if server_count is not None:
        client = "output tokens per request, counted by the client"
        values.facts[client] = Fact(size_out, _BY_TOKENS, tolerance=TOKENS)
    whole = raw.get("was_cancelled") is not True and raw.get("is_complete") is not False
    return values.at_load(
        _setting(settings, "concurrency"),
        _setting(settings, "request_rate", "rate"),
        otherwise="one load",
        broken="" if whole else "the run was cancelled, or did not end",
    )


def _settings(config: JsonObject) -> dict[str, Any]:
    measured = [p for p in config.entries("phases") if p.get("kind") != "warmup"]
    return dict(_flat({**config, "phases": measured[-1:]}))


def _flat(raw: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in raw.items():
        item = value[0] if isinstance(value, list) and len(value) == 1 else value
        if isinstance(item, Mapping) and key not in {"goodput", "slos"}:
            yield from _flat(item, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", item


def _setting(settings: Mapping[str, Any], *names: str) -> str | float | None:
    """Return the first setting that has one of these names and a value."""
    for name in names:
        for key, value in settings.items():
            if f".{key}".endswith(f".{name}") and value not in (None, [], {}):
                return str(value) if isinstance(value, list | Mapping) else plain(value)
    return None


def _is_records(document: ResultFile) -> bool:
    raw = document.head
    phase = not raw.at("metadata").keys().isdisjoint(("benchmark_phase", "turn_index"))
    return phase and isinstance(raw.get("metrics"), Mapping)


def _records(document: ResultFile) -> Iterator[ToolRun]:
    """Yield one run with one point per conversation turn, each with the medians of its requests."""
    turns: dict[int, list[JsonObject]] = defaultdict(list)
    for record in document.objects:
        metadata = record.at("metadata")
        if metadata.get("benchmark_phase", "profiling") == "profiling":
            turns[metadata.whole("turn_index") or 0].append(record)
    profiled = [record.at("metadata") for records in turns.values() for record in records]
    starts = (metadata.positive("request_start_ns", 1e-9) for metadata in profiled)
    yield run_of(
        document,
        "aiperf-records",
        points=tuple(_turn(turn, turns[turn]) for turn in sorted(turns)),
        started=min(filter(None, starts), default=None),
    )


def _turn(turn: int, records: list[JsonObject]) -> ToolPoint:
    figures: dict[str, list[float]] = defaultdict(list)
    conversations = {
        str(record.at("metadata").get("conversation_id", index))
        for index, record in enumerate(records)
    }
    answered = [r for r in records if not (r.get("error") or r.at("metadata").get("was_cancelled"))]
    for record in answered:
        for key, base in _AIPERF_TIMES.items():
            metric = record.at("metrics", key)
            factor = SECONDS_PER_UNIT.get(str(metric.get("unit", "ms")))
            if factor and (value := metric.positive("value", factor)):
                figures[f"{base}_p50"].append(value)
    values = Values()
    values.metrics = {name: median(of) for name, of in figures.items()}
    values.facts["conversations"] = Fact(len(conversations))
    values.requests(len(records), len(answered))
    return values.point(f"turn {turn}")


AIPERF = Reader(title="AIPerf", recognise=_is_aiperf, read=_export)
RECORDS = Reader(title="AIPerf's records", recognise=_is_records, read=_records)
GENAI_PERF = Reader(
    title="GenAI-Perf",
    recognise=lambda document: _is_genai_perf(document) and not _is_aiperf(document),
    read=_export,
)

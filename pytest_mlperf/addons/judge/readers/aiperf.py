"""Read AIPerf's `profile_export_aiperf.json` and records, and GenAI-Perf's export."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from pytest_mlperf.addons.judge.files import Reader, ResultFile, run_of
from pytest_mlperf.addons.judge.model import Fact, ToolPoint, ToolRun
from pytest_mlperf.addons.judge.readers.fields import (
    CACHE_TOLERANCE,
    SECONDS_PER_UNIT,
    TOKENS,
    Values,
    mapping,
    moment,
    number,
    per,
    plain,
    text,
    texts,
    whole,
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

_AIPERF = (
    *("schema_version", "aiperf_version", "benchmark_id", "start_time", "was_cancelled"),
    *("error_summary", "run_info", "telemetry_data", "usage_completion_tokens"),
)

_SCHEMAS = ("1.0", "1.1", "1.2", "1.3", "1.4", "1.5")


def _is_export(document: ResultFile) -> bool:
    latency = document.head.get("request_latency")
    return isinstance(latency, Mapping) and ("avg" in latency or "p50" in latency)


def _is_aiperf(document: ResultFile) -> bool:
    return _is_export(document) and any(mark in document.head for mark in _AIPERF)


def _is_genai_perf(document: ResultFile) -> bool:
    return _is_export(document) and not _is_aiperf(document)


def _aiperf(document: ResultFile) -> Iterator[ToolRun]:
    raw = document.head
    schema = raw.get("schema_version")
    supported = schema is None or str(schema) in _SCHEMAS
    yield run_of(
        document,
        "aiperf",
        points=(_point(raw, errors_told=True),),
        started=moment(raw.get("start_time")),
        version=text(raw, "aiperf_version"),
        details=texts(mapping(raw, "run_info"), "random_seed", "variation_label"),
        notes=() if supported else (f"AIPerf's schema {schema} is unknown; its fields were read",),
        duration_s=_average(raw, "benchmark_duration"),
    )


def _genai_perf(document: ResultFile) -> Iterator[ToolRun]:
    yield run_of(document, "genai-perf", points=(_point(document.head, errors_told=False),))


def _average(raw: Mapping[str, Any], name: str) -> float | None:
    return number(mapping(raw, name).get("avg"))


def _point(raw: Mapping[str, Any], *, errors_told: bool) -> ToolPoint:
    values = Values()
    for key, base in _AIPERF_TIMES.items():
        of = mapping(raw, key)
        unit = str(of.get("unit", "ms"))
        if unit in SECONDS_PER_UNIT:
            values.statistics(base, of, SECONDS_PER_UNIT[unit])
        else:
            values.absent[f"{base}_p50"] = f"its unit {unit!r} is unknown"
    for key, metric in _AIPERF_RATES.items():
        values.add(metric, mapping(raw, key).get("avg"))
    flat = dict(_flat(mapping(raw, "input_config")))
    concurrency, rate = (_setting(flat, name) for name in ("concurrency", "request_rate"))
    completed = whole(_average(raw, "request_count"))
    failed = whole(_average(raw, "error_request_count"))
    if failed is None and errors_told:
        failed = 0  # AIPerf leaves the count out if it is 0
    sent = None if completed is None or failed is None else completed + failed
    words = [
        f"{title} {Fact(value).text}"
        for title, value in (("concurrency", concurrency), ("rate", rate))
        if value is not None
    ]
    output = _average(raw, "output_sequence_length")
    server_count = _average(raw, "usage_completion_tokens")
    client = "output tokens per request, counted by the client"
    cached = next((_average(raw, key) for key in raw if key.startswith("usage_prompt_cache")), None)
    return ToolPoint(
        name=", ".join(words) or "one load",
        **values.fields,
        facts={
            "model": Fact(_setting(flat, "model_names") or _setting(flat, "model")),
            "tokenizer": Fact(_setting(flat, "tokenizer.name") or _setting(flat, "tokenizer")),
            "requests": Fact(completed if sent is None else sent),
            "input tokens per request": Fact(
                _average(raw, "input_sequence_length"), tolerance=TOKENS
            ),
            **(
                {
                    "output tokens per request": Fact(server_count, tolerance=TOKENS),
                    client: Fact(output, _BY_TOKENS, tolerance=TOKENS),
                }
                if server_count is not None
                else {"output tokens per request": Fact(output, tolerance=TOKENS)}
            ),
            "cache hits": Fact(
                per(cached, _average(raw, "input_sequence_length")), (), CACHE_TOLERANCE, True
            ),
            "goodput target": Fact(_setting(flat, "goodput"), ("goodput",), needed=True),
        },
        sent=sent,
        failed=failed,
        broken="the run was cancelled" if raw.get("was_cancelled") is True else "",
        axis=concurrency if isinstance(concurrency, float) else None,
    )


def _flat(raw: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in raw.items():
        if isinstance(value, Mapping) and key != "goodput":
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _setting(flat: Mapping[str, Any], name: str) -> str | float | None:
    for key, value in flat.items():
        if key == name or key.endswith(f".{name}"):
            if isinstance(value, list) and len(value) == 1:
                return plain(value[0])
            if isinstance(value, list | Mapping):
                return str(value) if value else None
            return plain(value)
    return None


def _is_records(document: ResultFile) -> bool:
    metadata, metrics = (document.head.get(key) for key in ("metadata", "metrics"))
    if not isinstance(metadata, Mapping) or not isinstance(metrics, Mapping):
        return False
    return "benchmark_phase" in metadata or "turn_index" in metadata


def _records(document: ResultFile) -> Iterator[ToolRun]:
    """Yield one run: a point for each turn, with medians over its requests."""
    turns: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    sent: dict[int, int] = defaultdict(int)
    failed: dict[int, int] = defaultdict(int)
    conversations: dict[int, set[str]] = defaultdict(set)
    starts: list[float] = []
    for record in document.objects:
        metadata = record.get("metadata", {})
        if metadata.get("benchmark_phase", "profiling") != "profiling":
            continue
        turn = whole(metadata.get("turn_index")) or 0
        sent[turn] += 1
        conversations[turn].add(str(metadata.get("conversation_id", sent[turn])))
        if (start := number(metadata.get("request_start_ns"))) is not None:
            starts.append(start / 1e9)
        if record.get("error"):
            failed[turn] += 1
            continue
        for key, base in _AIPERF_TIMES.items():
            metric = mapping(record, "metrics", key)
            value = number(metric.get("value"))
            factor = SECONDS_PER_UNIT.get(str(metric.get("unit", "ms")))
            if value and factor:
                turns[turn][f"{base}_p50"].append(value * factor)
    points = tuple(
        ToolPoint(
            name=f"turn {turn}",
            metrics={name: median(values) for name, values in turns[turn].items()},
            facts={"conversations": Fact(float(len(conversations[turn])))},
            sent=sent[turn],
            failed=failed[turn],
        )
        for turn in sorted(sent)
    )
    started = min((start for start in starts if start > 0), default=None)
    yield run_of(document, "aiperf-records", points=points, started=started)


AIPERF = Reader(title="AIPerf", recognise=_is_aiperf, read=_aiperf)
RECORDS = Reader(title="AIPerf's records", recognise=_is_records, read=_records)
GENAI_PERF = Reader(title="GenAI-Perf", recognise=_is_genai_perf, read=_genai_perf)

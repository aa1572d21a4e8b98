"""Read GuideLLM's JSON; every benchmark of the file is a point."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pytest_mlperf.addons.judge.files import Reader, ResultFile, run_of
from pytest_mlperf.addons.judge.model import Fact, ToolPoint, ToolRun
from pytest_mlperf.addons.judge.readers.fields import (
    LEAST_RANK,
    TOKENS,
    Values,
    mapping,
    moment,
    number,
    plain,
    positive,
    text,
    texts,
    whole,
)

_GUIDELLM_TIMES = {
    "request_latency": ("latency", 1.0),
    "time_to_first_token_ms": ("ttft", 1e-3),
    "inter_token_latency_ms": ("itl", 1e-3),
    "time_per_output_token_ms": ("tpot", 1e-3),
}
"""Metrics with their factor to seconds: the request latency is in seconds, the others are not."""

_GUIDELLM_RATES = {
    "requests_per_second": "requests_per_second",
    "output_tokens_per_second": "output_tokens_per_second",
    "tokens_per_second": "total_tokens_per_second",
    "prompt_tokens_per_second": "prompt_tokens_per_second",
}

_VERSIONS = (None, 1, 2)


def _is_guidellm(document: ResultFile) -> bool:
    measured = document.head.get("benchmarks")
    first = measured[0] if isinstance(measured, list) and measured else None
    metrics = first.get("metrics") if isinstance(first, Mapping) else None
    return isinstance(metrics, Mapping) and "requests_per_second" in metrics


def _read(document: ResultFile) -> Iterator[ToolRun]:
    raw = document.head
    metadata = mapping(raw, "metadata")
    version = metadata.get("version")
    benchmarks = [one for one in raw["benchmarks"] if isinstance(one, Mapping)]
    note = f"GuideLLM's file version {version} is unknown; its fields were read"
    yield run_of(
        document,
        "guidellm",
        points=tuple(_point(one, raw) for one in benchmarks),
        started=min(filter(None, (moment(b.get("start_time")) for b in benchmarks)), default=None),
        version=text(metadata, "guidellm_version"),
        details=texts(metadata, "python_version", "platform"),
        notes=() if version in _VERSIONS else (note,),
        duration_s=sum(filter(None, (number(b.get("duration")) for b in benchmarks))) or None,
    )


def _point(raw: Mapping[str, Any], whole_file: Mapping[str, Any]) -> ToolPoint:
    measured = raw["metrics"]
    values = Values()
    for key, (base, factor) in _GUIDELLM_TIMES.items():
        of = mapping(measured, key, "successful")
        values.statistics(base, of, factor)
        ranks = of.get("percentiles")
        for name, value in ranks.items() if isinstance(ranks, Mapping) else ():
            digits = str(name)[1:]  # p001 is 0.1 %, p999 is 99.9 %
            rank = f"{digits[:2]}.{digits[2:]}".rstrip(".")
            if digits.isdigit() and float(rank) >= LEAST_RANK:
                values.add(f"{base}_p{rank}", value, factor)
    for key, metric in _GUIDELLM_RATES.items():
        values.add(metric, mapping(measured, key, "successful").get("mean"))
    totals = mapping(measured, "request_totals")
    sent, failed = whole(totals.get("total")), whole(totals.get("errored"))
    configuration = mapping(raw, "config") or mapping(raw, "args")
    strategy = mapping(configuration, "strategy")
    kind = str(strategy.get("type_", "load"))
    load = next(
        (plain(strategy[k]) for k in ("streams", "max_concurrency", "rate") if strategy.get(k)),
        None,
    )
    # The sweep finds rates by itself, so that no two runs have the same.
    name = kind if load is None else f"{kind} {Fact(load).text}"
    return ToolPoint(
        name=name,
        **values.fields,
        facts={
            "model": Fact(plain(mapping(configuration, "backend").get("model"))),
            "input tokens per request": _tokens(measured, "prompt_token_count"),
            "output tokens per request": _tokens(measured, "output_token_count"),
            "constraints": Fact(_constraints(configuration, whole_file)),
        },
        sent=sent,
        failed=failed,
        axis=load if isinstance(load, float) else None,
    )


def _tokens(measured: Mapping[str, Any], key: str) -> Fact:
    return Fact(positive(mapping(measured, key, "successful").get("mean")), tolerance=TOKENS)


def _constraints(configuration: Mapping[str, Any], whole_file: Mapping[str, Any]) -> str | None:
    """Return the limits of a benchmark as text, in the form of old or new files."""
    of = mapping(configuration, "constraints") or mapping(whole_file, "args")
    words = []
    for name in ("max_requests", "max_number", "max_seconds", "max_duration", "max_errors"):
        value = of.get(name)
        amounts = list(value.values()) if isinstance(value, Mapping) else [value]
        words += [f"{name} {amount:g}" for amount in map(number, amounts) if amount is not None]
    return ", ".join(words) or None


GUIDELLM = Reader(title="GuideLLM", recognise=_is_guidellm, read=_read)

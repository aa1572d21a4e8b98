"""Read InferenceX's (InferenceMAX's) aggregated results."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pytest_mlperf.addons.judge.files import Reader, ResultFile, run_of
from pytest_mlperf.addons.judge.model import Fact, ToolPoint, ToolRun
from pytest_mlperf.addons.judge.readers.fields import Values, facts_of, mapping, plain, texts, whole

_INFERENCEX_LATENCY = re.compile(
    r"(?P<statistic>mean|median|p[0-9.]+)_(?P<base>ttft|tpot|itl|e2el)"
)

_INFERENCEX_RATES = {
    "tokens_per_second_per_gpu": "tput_per_gpu",
    "output_tokens_per_second_per_gpu": "output_tput_per_gpu",
    "input_tokens_per_second_per_gpu": "input_tput_per_gpu",
}

_INFERENCEX_FACTS = {
    "hardware": "hw",
    "model": "infmax_model_prefix",
    "precision": "precision",
    "speculative decoding": "spec_decoding",
    "disaggregated": "disagg",
    "input length": "isl",
    "output length": "osl",
    "TP": "tp",
    "EP": "ep",
    "PP": "pp",
    "DP attention": "dp_attention",
}


def _is_aggregate(document: ResultFile) -> bool:
    head = document.head
    return "tput_per_gpu" in head or str(head.get("scenario_type", "")).startswith("agentic")


def _read(document: ResultFile) -> Iterator[ToolRun]:
    """Yield one run with all points of a file, the collected results of one job."""
    objects = document.objects
    head = objects[0]
    points = tuple(
        _agentic(raw) if "request_metrics" in raw else _fixed_length(raw) for raw in objects
    )
    yield run_of(
        document,
        "inferencex",
        points=points,
        details=texts(head, "image", "framework", "recipe_fingerprint", "model"),
    )


def _name(raw: Mapping[str, Any]) -> str:
    words = [f"concurrency {raw.get('conc')}"]
    if raw.get("isl") is not None:
        words.append(f"{raw['isl']} in, {raw.get('osl')} out")
    words += [f"{name}{raw[name]}" for name in ("tp", "ep") if raw.get(name) is not None]
    return ", ".join(map(str, words))


def _point(raw: Mapping[str, Any], **more: Any) -> ToolPoint:
    concurrency = plain(raw.get("conc"))
    axis = concurrency if isinstance(concurrency, float) else None
    return ToolPoint(name=_name(raw), facts=facts_of(raw, _INFERENCEX_FACTS), axis=axis, **more)


def _fixed_length(raw: Mapping[str, Any]) -> ToolPoint:
    values = Values(raw, _INFERENCEX_RATES)
    # In seconds, unlike the raw files of the same harness.
    values.matching(raw, _INFERENCEX_LATENCY, 1.0)
    return _point(raw, **values.fields)


def _agentic(raw: Mapping[str, Any]) -> ToolPoint:
    match = mapping(raw, "request_metrics")
    values = Values(
        mapping(match, "throughput", "per_gpu"), {"tokens_per_second_per_gpu": "total_tput_tps"}
    )
    values.add("requests_per_second", match.get("qps"))
    for key, base in (("ttft", "ttft"), ("itl", "itl"), ("e2e", "latency")):
        values.statistics(base, mapping(match, "latency", key))
    sent, succeeded = (whole(raw.get(f"num_requests_{kind}")) for kind in ("total", "successful"))
    failed = sent - succeeded if sent is not None and succeeded is not None else None
    return _point(raw, **values.fields, sent=sent, failed=failed)


INFERENCEX = Reader(title="InferenceX", recognise=_is_aggregate, read=_read)


def _is_llmperf(document: ResultFile) -> bool:
    return "results_ttft_s_mean" in document.head or "results_num_completed_requests" in (
        document.head
    )


_LLMPERF = re.compile(
    r"results_(?P<base>inter_token_latency|ttft|end_to_end_latency)_s_"
    r"(?:quantiles_)?(?P<statistic>mean|p\d+)"
)


def _llmperf(document: ResultFile) -> Iterator[ToolRun]:
    raw = document.head
    values = Values(raw, {"output_tokens_per_second": "results_mean_output_throughput_token_per_s"})
    values.add("requests_per_second", raw.get("results_num_completed_requests_per_min"), 1 / 60)
    values.matching(raw, _LLMPERF, 1.0)
    completed = whole(raw.get("results_num_completed_requests"))
    failed = whole(raw.get("results_number_errors"))
    concurrency = plain(raw.get("num_concurrent_requests"))
    facts = {
        "model": "model",
        "input length": "mean_input_tokens",
        "input length spread": "stddev_input_tokens",
        "output length": "mean_output_tokens",
        "output length spread": "stddev_output_tokens",
    }
    sent = None if completed is None else completed + (failed or 0)
    point = ToolPoint(
        name=f"concurrency {Fact(concurrency).text}",
        **values.fields,
        facts={**facts_of(raw, facts), "requests": Fact(sent)},
        sent=sent,
        failed=failed,
        axis=concurrency if isinstance(concurrency, float) else None,
    )
    from pytest_mlperf.addons.judge.readers.fields import moment

    started = moment(raw.get("timestamp"))
    yield run_of(document, "llmperf", points=(point,), started=started)


LLMPERF = Reader(title="LLMPerf", recognise=_is_llmperf, read=_llmperf)

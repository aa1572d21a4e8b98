"""Read InferenceX's (InferenceMAX's) aggregated results, and LLMPerf's summaries."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pytest_mlperf.addons.judge.files import Reader, ResultFile, has_keys, run_of
from pytest_mlperf.addons.judge.model import Fact, ToolPoint, ToolRun
from pytest_mlperf.addons.judge.readers.fields import JsonObject, Values

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
    "multi-node": "is_multinode",
    "input length": "isl",
    "output length": "osl",
    "TP": "tp",
    "EP": "ep",
    "PP": "pp",
    "DP attention": "dp_attention",
}


def _is_aggregate(document: ResultFile) -> bool:
    scenario = str(document.head.get("scenario_type", ""))
    return "tput_per_gpu" in document.head or scenario.startswith("agentic")


def _aggregate(document: ResultFile) -> Iterator[ToolRun]:
    points = tuple(map(_point, document.objects))
    details = document.head.texts("image", "framework", "recipe_fingerprint", "model")
    yield run_of(document, "inferencex", points=points, details=details)


def _point(raw: JsonObject) -> ToolPoint:
    further = [f"{raw['isl']} in, {raw.get('osl')} out"] if raw.get("isl") is not None else []
    further += [f"{name}{raw[name]}" for name in ("tp", "ep") if raw.get(name) is not None]
    disaggregated = {k: k for k in raw if k.startswith(("prefill_", "decode_", "num_p", "num_d"))}
    measured = raw.at("request_metrics")
    values = Values(raw, _INFERENCEX_RATES)
    if not measured:
        # In seconds, unlike the raw files of the same harness.
        values.latencies(raw, 1.0)
    rates = measured.at("throughput", "per_gpu")
    values.add("tokens_per_second_per_gpu", rates.get("total_tput_tps"))
    values.add("requests_per_second", measured.get("qps"))
    for key, base in (("ttft", "ttft"), ("itl", "itl"), ("e2e", "latency")):
        values.statistics(base, measured.at("latency", key))
    values.requests(raw.whole("num_requests_total"), raw.whole("num_requests_successful"))
    values.facts |= raw.facts(_INFERENCEX_FACTS | disaggregated)
    return values.at_load(raw.get("conc"), None, *further)


INFERENCEX = Reader(title="InferenceX", recognise=_is_aggregate, read=_aggregate)

_LLMPERF_LATENCY = re.compile(
    r"results_(?P<base>inter_token_latency|ttft|end_to_end_latency)_s_"
    r"(?:quantiles_)?(?P<statistic>mean|p\d+)"
)

_LLMPERF_FACTS = {
    "model": "model",
    "input length": "mean_input_tokens",
    "input length spread": "stddev_input_tokens",
    "output length": "mean_output_tokens",
    "output length spread": "stddev_output_tokens",
}


def _llmperf(document: ResultFile) -> Iterator[ToolRun]:
    raw = document.head
    values = Values(raw, {"output_tokens_per_second": "results_mean_output_throughput_token_per_s"})
    values.add("requests_per_second", raw.get("results_num_completed_requests_per_min"), 1 / 60)
    values.latencies(raw, 1.0, _LLMPERF_LATENCY)
    counts = ("num_requests_started", "num_completed_requests", "number_errors")
    values.requests(*(raw.whole(f"results_{count}") for count in counts))
    sides = ("input", "output")
    values.lengths(1, *(raw.get(f"results_number_{side}_tokens_mean") for side in sides))
    values.facts |= {**raw.facts(_LLMPERF_FACTS), "requests": Fact(values.sent)}
    point = values.at_load(raw.get("num_concurrent_requests"))
    yield run_of(document, "llmperf", points=(point,), started=raw.moment("timestamp"))


LLMPERF = Reader(
    title="LLMPerf",
    recognise=has_keys(marks=("results_ttft_s_mean", "results_num_completed_requests")),
    read=_llmperf,
)

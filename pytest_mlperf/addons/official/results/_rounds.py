"""Define the rounds v0.7 to v4.0: the settings that their checkers require in logs."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import Any

from pytest_mlperf.extension import Scenario
from pytest_mlperf.rounds import ROUNDS, Round, RoundScenario, RoundWorkload, load_round

_SEEDS = {
    "v0.7": 12786827339337101903,
    "v1.0": 7322528924094909334,
    "v1.1": 1624344308455410291,
    "v2.0": 6655344265603136530,
    "v2.1": 14284205019438841327,
    "v3.0": 10003631887983097364,
    "v3.1": 148687905518835231,
    "v4.0": 13281865557512327830,
}
"""Seed of the samples by round, in order."""

_WORKLOADS = (
    ("resnet50", "resnet", 1024, "v0.7", "v4.0"),
    ("ssd-mobilenet", "ssd-small", 256, "v0.7", "v2.0"),
    ("ssd-resnet34", "ssd-large", 64, "v0.7", "v2.0"),
    ("retinanet", "retinanet", 64, "v2.1", "v4.0"),
    ("rnnt", "rnnt", 2513, "v0.7", "v4.0"),
    ("bert", "bert", 10_833, "v0.7", "v4.0"),
    ("dlrm", "dlrm", 204_800, "v0.7", "v3.0"),
    ("dlrm-v2", "dlrm-v2", 204_800, "v3.1", "v4.0"),
    ("3d-unet", "3d-unet", 16, "v0.7", "v1.1"),
    ("3d-unet", "3d-unet", 42, "v2.0", "v2.1"),
    ("3d-unet", "3d-unet", 43, "v3.0", "v4.0"),
    ("gptj", "gptj", 13_368, "v3.1", "v4.0"),
    ("gpt3", "gpt3", 13_368, "v3.1", "v3.1"),
    ("llama2-70b", "llama2-70b", 24_576, "v4.0", "v4.0"),
    ("stable-diffusion-xl", "stable-diffusion-xl", 5000, "v4.0", "v4.0"),
)
"""LoadGen's name, checker's name, minimum performance samples, first and last round."""

_SUFFIXED = {"bert", "dlrm", "dlrm-v2", "3d-unet", "gptj", "gpt3", "llama2-70b"}

_OFFLINE_SAMPLES = {"bert": 10833, "3d-unet": 43, "rnnt": 2513, "gptj": 13368}
_OFFLINE_SAMPLES |= {"stable-diffusion-xl": 5000}
"""Minimum samples of Offline in v4.0 if they differ from the 24,576 of all earlier rounds."""

_UNKNOWN: dict[str, Any] = {
    **dict.fromkeys(("title", "task", "dataset", "scorer"), ""),
    "dataset_samples": 0,
    "metrics": {},
}
"""Fields of a workload that only suites need."""

_DETECTORS = re.compile(r"ssd|rcnn|yolo")
_LARGE = re.compile(r"rcnn-(resnet50|resnet101|inception.*|nas)-.*coco|ssd_resnet.*_1024x1024")
"""Models of the open division that v2.0 to v4.0 compare with SSD-Large, other detectors with
SSD-small."""


@cache
def every_round() -> tuple[Round, ...]:
    """Return the rounds whose results can be read, newest first."""
    return (*map(load_round, reversed(ROUNDS)), *map(_round, reversed(_SEEDS)))


def since(rules: Round | None, name: str) -> bool:
    """Return whether a round is `name` (such as "v5.1") or newer; True if the round is None."""
    return rules is None or rules.name >= name


def workload_of(rules: Round | None, name: str) -> RoundWorkload | None:
    """Return a round's workload by its own or the checker's name; None if there is none."""
    if rules is None:
        return None
    workloads = rules.workloads.values()
    return rules.find(name) or next((w for w in workloads if name in w.checker_names), None)


def open_workload(name: str, rules: Round) -> str | None:
    """Return the workload that a model of the open division corresponds to, or None."""
    if name == "ssd-resnet34":
        return "retinanet" if since(rules, "v2.1") else "ssd-large"
    if since(rules, "v4.1"):
        return None
    if _DETECTORS.search(name):
        return "ssd-large" if _LARGE.fullmatch(name) and since(rules, "v2.0") else "ssd-small"
    bert = re.search(r"bert-99(\.9)?", name)
    return bert[0] if bert and since(rules, "v2.1") else None


def _round(name: str) -> Round:
    workloads = {
        loadgen: RoundWorkload(
            name=loadgen,
            checker=checker,
            performance_samples=samples,
            targets=(0.99, 0.999),
            suffixed=loadgen in _SUFFIXED,
            scenarios=_scenarios(loadgen, name),
            **_UNKNOWN,
        )
        for loadgen, checker, samples, first, last in _WORKLOADS
        if first <= name <= last
    }
    seeds = replace(load_round(ROUNDS[0]).seeds, qsl=_SEEDS[name], sample_index=0, schedule=0)
    return Round(name=name, seeds=seeds, workloads=workloads)


def _scenarios(loadgen: str, round_name: str) -> dict[Scenario, RoundScenario]:
    tokens, stops_early = loadgen == "llama2-70b", round_name >= "v2.0"
    single = "early_stopping_latency_ss" if stops_early else "result_90.00_percentile_latency_ns"
    multi = "early_stopping_latency_ms" if stops_early else "effective_samples_per_query"
    results = {
        Scenario.OFFLINE: "result_tokens_per_second" if tokens else "result_samples_per_second",
        Scenario.SERVER: f"result_{'completed' if tokens else 'scheduled'}_samples_per_sec",
        Scenario.SINGLE_STREAM: single,
        Scenario.MULTI_STREAM: multi,
    }
    queries = dict.fromkeys(results, 1 if stops_early else 270_336)
    if not stops_early:
        queries[Scenario.SINGLE_STREAM] = 1024
    offline = _OFFLINE_SAMPLES.get(loadgen, 24_576) if round_name == "v4.0" else 24_576
    return {
        scenario: RoundScenario(
            min_query_count=offline if scenario == Scenario.OFFLINE else queries[scenario],
            min_duration_ms=60_000 if round_name == "v0.7" else 600_000,
            result=result,
        )
        for scenario, result in results.items()
    }

"""Compute the value and unit of a result from LoadGen's log, as in the round's table."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pytest_mlperf import MlperfError
from pytest_mlperf.addons.official.results._rounds import every_round, since, workload_of
from pytest_mlperf.extension import Scenario
from pytest_mlperf.rounds import Round
from pytest_mlperf.rounds.published import Unit
from pytest_mlperf.run.logs import Detail

SAMPLE_RATE_KEYS = {
    Scenario.OFFLINE: "result_samples_per_second",
    Scenario.SERVER: "result_completed_samples_per_sec",
    Scenario.INTERACTIVE: "result_completed_samples_per_sec",
}
"""Sample rates. Server and Interactive count completed samples, not scheduled ones."""

_TOKENS = {
    Scenario.OFFLINE: ("result_tokens_per_second", "result_inferred_tokens_per_second"),
    Scenario.SERVER: (
        "result_completed_tokens_per_second",
        "result_inferred_completed_tokens_per_second",
    ),
}

_SCHEDULED = "result_scheduled_samples_per_sec"
"""Figure of Server in rounds before v4.1."""

_STREAMS = "effective_samples_per_query"
"""Figure of MultiStream in rounds before v2.0: samples per query that met the latency."""

_LATENCIES = {
    Scenario.SINGLE_STREAM: ("early_stopping_latency_ss", "result_90.00_percentile_latency_ns"),
    Scenario.MULTI_STREAM: (
        "early_stopping_latency_ms",
        "result_99.00_percentile_per_query_latency_ns",
    ),
}
"""Keys of the latency with and without early stopping, which LoadGen has since v2.0."""

_STATISTICS = {
    "early_stopping_latency_ss": "p90 with early stopping",
    "early_stopping_latency_ms": "p99 with early stopping",
    "result_90.00_percentile_latency_ns": "p90",
    "result_99.00_percentile_per_query_latency_ns": "p99",
    "result_mean_latency_ns": "mean",
    _SCHEDULED: "scheduled",
}

_INFERRED = {
    (Scenario.OFFLINE, "SingleStream"): ("result_qps_without_loadgen_overhead", "v0.7"),
    (Scenario.OFFLINE, "MultiStream"): ("result_mean_query_latency_ns", "v2.0"),
    (Scenario.MULTI_STREAM, "SingleStream"): ("early_stopping_latency_ms", "v2.0"),
}
"""Figure of a result inferred from another scenario's log, and the first round that allows it."""

QUERY = 8
"""Samples per query of MultiStream."""

IN_SECONDS = ("wan-2.2-t2v-a14b",)
"""Models whose tables are in s, as one answer takes minutes."""


@dataclass(frozen=True, kw_only=True)
class TableValue:
    """Hold a result's value, unit and statistic as in MLCommons' results table of the round."""

    value: float
    unit: Unit
    statistic: str
    inferred: bool
    samples_per_s: float | None


def round_of(log: Detail) -> Round | None:
    """Return the round whose official seeds a run used; None if no round has its seeds."""
    seed = log.values.get("effective_qsl_rng_seed", log.values.get("requested_qsl_rng_seed"))
    return next((rules for rules in every_round() if rules.seeds.qsl == seed), None)


def value_of(log: Detail, model: str, scenario: Scenario, rules: Round | None) -> TableValue:
    """Return the value that the round's table shows for a log; `model` is the checker's name.

    The round determines which key of the log counts; without a round it is derived from the log.
    """
    logged = log.values.get("effective_scenario")
    inferred = logged != scenario.of_loadgen
    key, first = _INFERRED.get((scenario, str(logged)), ("", "")) if inferred else ("", "")
    key = key if inferred else _key(log, model, scenario, rules)
    if not key or not since(rules, first):
        raise MlperfError(
            f"{log.path} is the log of a {logged} run, and this round derives no {scenario} result "
            "from such a run; move it to the folder of its scenario"
        )
    number = _number(log, key)
    if scenario == Scenario.OFFLINE and key.endswith(
        "_ns"
    ):  # samples per query divided by its mean latency
        number = _number(log, _STREAMS) * 1e9 / number
    elif key.endswith("_ns") or key.startswith("early"):
        seconds = model in IN_SECONDS
        times = QUERY if inferred else 1
        return TableValue(
            value=number * times / (1e9 if seconds else 1e6),
            unit="s" if seconds else "ms",
            statistic=f"{QUERY} x SingleStream's p99" if inferred else _STATISTICS.get(key, key),
            inferred=inferred,
            samples_per_s=None,
        )
    counted = "tokens" in key
    samples = SAMPLE_RATE_KEYS.get(scenario, "") if counted else key
    rated = samples in log.values and key != _STREAMS
    unit: Unit = (
        "tokens/s" if counted else "samples/s" if scenario == Scenario.OFFLINE else "queries/s"
    )
    return TableValue(
        value=number,
        unit="streams" if key == _STREAMS else unit,
        statistic="69 tokens a sample" if "inferred" in key else _STATISTICS.get(key, ""),
        inferred=inferred,
        samples_per_s=number if inferred else _number(log, samples) if rated else None,
    )


def _key(log: Detail, model: str, scenario: Scenario, rules: Round | None) -> str:
    workload = workload_of(rules, model)
    if rules and not since(rules, "v4.1"):  # their tables show other models by its figure
        workload = workload or rules.workloads["resnet50"]
    constants = workload.scenarios.get(scenario) if workload else None
    if constants and constants.result:
        return constants.result
    if scenario in _LATENCIES:
        estimate, percentile = _LATENCIES[scenario]
        return percentile if percentile in log.values and estimate not in log.values else estimate
    if rules and workload is None:  # a table shows unknown models by sample rate
        return SAMPLE_RATE_KEYS[scenario]
    tokens = _TOKENS[scenario.of_loadgen]
    keys = (*tokens, SAMPLE_RATE_KEYS[scenario], _SCHEDULED)
    return next((key for key in keys if key in log.values), SAMPLE_RATE_KEYS[scenario])


def _number(log: Detail, key: str) -> float:
    value = log.values.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise MlperfError(f"{log.path}: {key} is {value!r}; it must be a number above 0")
    return float(value)

"""The value of a result: which of LoadGen's figures a round's table shows, and in which unit."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pytest_mlperf import MlperfError
from pytest_mlperf.rounds import ROUNDS, Round, load_round
from pytest_mlperf.rounds.published import Unit
from pytest_mlperf.run.logs import Detail

SAMPLE_RATE_KEYS = {
    "Offline": "result_samples_per_second",
    "Server": "result_completed_samples_per_sec",
    "Interactive": "result_completed_samples_per_sec",
}
"""Rates of samples. Server and Interactive count what was completed, not what was scheduled."""

_TOKENS = {
    "Offline": ("result_tokens_per_second", "result_inferred_tokens_per_second"),
    "Server": ("result_completed_tokens_per_second", "result_inferred_completed_tokens_per_second"),
}

_SCHEDULED = "result_scheduled_samples_per_sec"
"""What the first rounds showed of Server, whose LoadGen logged no other rate."""

_LATENCIES = {
    "SingleStream": "early_stopping_latency_ss",
    "MultiStream": "early_stopping_latency_ms",
}

_STATISTICS = {
    "early_stopping_latency_ss": "p90 with early stopping",
    "early_stopping_latency_ms": "p99 with early stopping",
    "result_90.00_percentile_latency_ns": "p90",
    "result_mean_latency_ns": "mean",
}

_INFERRED = {
    ("Offline", "SingleStream"): "result_qps_without_loadgen_overhead",
    ("MultiStream", "SingleStream"): "early_stopping_latency_ms",
}
"""What a result is made of whose log is one of another scenario."""

QUERY = 8
"""Samples of a query of MultiStream."""

IN_SECONDS = ("wan-2.2-t2v-a14b",)
"""What the tables give in s, as one answer takes minutes."""


@dataclass(frozen=True, kw_only=True)
class TableValue:
    """What a round's table has for a result."""

    value: float
    unit: Unit
    statistic: str
    inferred: bool
    samples_per_s: float | None


def round_of(log: Detail) -> Round | None:
    """Return the round whose seed a run used; None: another one's, or none."""
    seed = log.values.get("effective_qsl_rng_seed", log.values.get("requested_qsl_rng_seed"))
    return next((one for one in map(load_round, ROUNDS) if one.qsl_seed == seed), None)


def value_of(log: Detail, model: str, scenario: str, rules: Round | None) -> TableValue:
    """Return what a table shows for a log, by the checker's name of its model.

    The round's table names the figure; without a round the figures of the log do.
    """
    logged = log.values.get("effective_scenario")
    mine = "Server" if scenario == "Interactive" else scenario
    inferred = logged != mine
    key = _INFERRED.get((scenario, str(logged))) if inferred else _key(log, model, scenario, rules)
    if key is None:
        raise MlperfError(
            f"{log.path}: a run of {logged}, of which no result of {scenario} is made"
        )
    number = _number(log, key)
    if not key.endswith("_ns") and not key.startswith("early"):
        counted = "tokens" in key
        samples = SAMPLE_RATE_KEYS.get(scenario, key)
        return TableValue(
            value=number,
            unit="tokens/s" if counted else "samples/s" if scenario == "Offline" else "queries/s",
            statistic="69 tokens a sample" if "inferred" in key else "",
            inferred=inferred,
            samples_per_s=(_number(log, samples) if samples in log.values else None)
            if counted
            else number,
        )
    seconds = model in IN_SECONDS
    times = QUERY if inferred else 1
    return TableValue(
        value=number * times / (1e9 if seconds else 1e6),
        unit="s" if seconds else "ms",
        statistic=f"{QUERY} x SingleStream's p99" if inferred else _STATISTICS.get(key, key),
        inferred=inferred,
        samples_per_s=None,
    )


def _key(log: Detail, model: str, scenario: str, rules: Round | None) -> str:
    workload = rules.find(model) if rules else None
    constants = workload.scenarios.get(scenario) if workload else None
    if constants and constants.result:
        return constants.result
    if scenario in _LATENCIES:
        return _LATENCIES[scenario]
    if rules and workload is None:  # a table shows a model that it does not know by samples
        return SAMPLE_RATE_KEYS[scenario]
    tokens = _TOKENS["Offline" if scenario == "Offline" else "Server"]
    keys = (*tokens, SAMPLE_RATE_KEYS[scenario], _SCHEDULED)
    return next((key for key in keys if key in log.values), SAMPLE_RATE_KEYS[scenario])


def _number(log: Detail, key: str) -> float:
    value = log.values.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise MlperfError(f"{log.path}: {key} is {value!r}; a result needs it")
    return float(value)

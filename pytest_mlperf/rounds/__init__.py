"""MLPerf's constants, one TOML file per round: seeds, gates, limits, sample counts."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

ROUNDS = ("v4.1", "v5.0", "v5.1", "v6.0", "v6.1")


@dataclass(frozen=True, kw_only=True)
class RoundScenario:
    """What a round asks of one scenario of one workload.

    Attributes:
        min_query_count: Fewest queries (Offline: fewest samples).
        min_duration_ms: Shortest run.
        latency_limit_ms: Server and Interactive: the latency to be met, or None.
        latency_percentile: The percentile that is limited or reported.
        samples_per_query: MultiStream only.
    """

    min_query_count: int
    min_duration_ms: int
    latency_limit_ms: float | None = None
    latency_percentile: float = 0.99
    samples_per_query: int = 8


@dataclass(frozen=True, kw_only=True)
class RoundWorkload:
    """One benchmark of a round.

    Attributes:
        name: Our name, which is LoadGen's conf name.
        dataset_samples: Samples in the official data set.
        performance_samples: Samples held in memory during a performance run.
        scorer: Name of the scorer.
        reference: Reference score by metric.
        targets: Shares of the reference that are gates, e.g. (0.99,).
        equal_issue: Every sample is issued equally often.
        tokens: It is a language model with token latencies.
        scenarios: By scenario name.
    """

    name: str
    dataset_samples: int
    performance_samples: int
    scorer: str
    reference: Mapping[str, float]
    targets: tuple[float, ...]
    equal_issue: bool = False
    tokens: bool = False
    scenarios: Mapping[str, RoundScenario] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Round:
    """One MLPerf Inference round.

    Attributes:
        name: "v4.1" and so on.
        qsl_seed, sample_index_seed, schedule_seed: LoadGen's seeds of the round.
        workloads: By name.
    """

    name: str
    qsl_seed: int
    sample_index_seed: int
    schedule_seed: int
    workloads: Mapping[str, RoundWorkload]


@cache
def load_round(name: str) -> Round:
    """Read a round's constants.

    Raises:
        KeyError: There is no such round.
    """
    if name not in ROUNDS:
        raise KeyError(name)
    raw = tomllib.loads(files(__name__).joinpath(f"{name}.toml").read_text("utf-8"))
    return Round(
        name=name,
        qsl_seed=raw["seeds"]["qsl"],
        sample_index_seed=raw["seeds"]["sample_index"],
        schedule_seed=raw["seeds"]["schedule"],
        workloads={key: _workload(key, value) for key, value in raw["workloads"].items()},
    )


def _workload(name: str, raw: Mapping[str, Any]) -> RoundWorkload:
    scenarios = {key: RoundScenario(**value) for key, value in raw["scenarios"].items()}
    rest = {key: value for key, value in raw.items() if key not in {"scenarios", "targets"}}
    return RoundWorkload(name=name, targets=tuple(raw["targets"]), scenarios=scenarios, **rest)

"""MLPerf's constants, one TOML file per round: seeds, gates, limits, sample counts."""

from __future__ import annotations

import dataclasses
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
        latency_limit_ms: Server: the latency to be met, or None.
        ttft_limit_ms, tpot_limit_ms: Server and Interactive of language models: what 99 % of
            queries must meet, or None.
        latency_percentile: The percentile that is limited or reported.
        samples_per_query: MultiStream only.
    """

    min_query_count: int
    min_duration_ms: int
    latency_limit_ms: float | None = None
    ttft_limit_ms: float | None = None
    tpot_limit_ms: float | None = None
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
        windows: For metrics without a better or worse: lowest and highest share of the reference.
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
    windows: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    scenarios: Mapping[str, RoundScenario] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The plain name, and those with a target ("llama2-70b-99.9") where it has several."""
        suffixes = [f"{100 * target:g}" for target in self.targets]
        several = [f"{self.name}-{suffix}" for suffix in suffixes]
        return [self.name, *(several if self.tokens or len(several) > 1 else [])]


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

    @property
    def names(self) -> list[str]:
        """What a suite may call the workloads: those of several targets once for each."""
        return [name for own in self.workloads.values() for name in own.names]

    def find(self, name: str) -> RoundWorkload | None:
        """Return a workload by one of its names, with the target that the name says."""
        for own in self.workloads.values():
            if name in own.names:
                target = own.targets[max(0, own.names.index(name) - 1)]
                return dataclasses.replace(own, targets=(target,))
        return None


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
    windows = {key: (low, high) for key, (low, high) in raw.get("windows", {}).items()}
    own = {"scenarios": scenarios, "windows": windows, "targets": tuple(raw["targets"])}
    return RoundWorkload(name=name, **{**raw, **own})

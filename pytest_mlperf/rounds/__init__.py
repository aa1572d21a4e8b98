"""Define MLPerf's constants by round: seeds, gates, limits and sample counts.

Each round has a TOML file. Its scenarios list only the values that differ from `SCENARIOS` or
`TOKEN_RESULTS`.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.resources import files
from typing import Any, Literal

from pytest_mlperf.core.case import Scenario
from pytest_mlperf.core.job import Seeds

LOADGEN = "LoadGen"

ROUNDS = ("v4.1", "v5.0", "v5.1", "v6.0", "v6.1")

SCENARIOS: Mapping[Scenario, Mapping[str, Any]] = {
    Scenario.OFFLINE: {"result": "result_samples_per_second"},
    Scenario.SERVER: {"result": "result_completed_samples_per_sec"},
    Scenario.INTERACTIVE: {"result": "result_completed_samples_per_sec"},
    Scenario.SINGLE_STREAM: {"latency_percentile": 0.9, "result": "early_stopping_latency_ss"},
    Scenario.MULTI_STREAM: {"min_query_count": 662, "result": "early_stopping_latency_ms"},
}
"""Default requirements of each scenario, for all rounds and workloads."""

TOKEN_RESULTS = {
    Scenario.OFFLINE: "result_tokens_per_second",
    Scenario.SERVER: "result_completed_tokens_per_second",
    Scenario.INTERACTIVE: "result_completed_tokens_per_second",
}

Ends = tuple[float | None, float | None]
"""Lowest and highest value; None if there is no bound."""


@dataclass(frozen=True, kw_only=True)
class RoundMetric:
    """Describe a score that has a gate in a round.

    Attributes:
        name: Key of this package's scorer: "top1", "rouge1", "tokens_per_sample".
        checker: Key of the submission checker: "acc", "ROUGE1", "TOKENS_PER_SAMPLE"; "-" if only
            the rules have this gate.
        reference: Reference score on the checker's scale; a pass mark if MLPerf publishes no
            reference (the end-to-end RAG workloads).
        better: Direction of better scores; "neither" if `share` or `within` limits them.
        share: Lowest and highest passing score, as shares of the reference, instead of a target.
        within: Lowest and highest passing score, instead of a target.
        margin: Drop allowed by default in a paired comparison, as a share of the baseline score;
            None for the general default.
    """

    name: str
    checker: str
    reference: float
    better: Literal["higher", "lower", "neither"] = "higher"
    share: Ends | None = None
    within: Ends | None = None
    margin: float | None = None

    def bounds(self, target: float) -> Ends:
        """Return the lowest and highest score that pass a target; None without a bound.

        If lower is better, a score may exceed its reference by the share 1 - target. MLPerf's
        checker compares dlrm-v3's normalized entropy, for which lower is better, with ">= 0.999 x
        reference"; this function uses the intended direction.
        """
        if self.within:
            return self.within
        if self.share:
            low, high = self.share
            return (
                None if low is None else self.reference * low,
                None if high is None else self.reference * high,
            )
        if self.better == "lower":
            return None, self.reference * (2 - target)
        return (self.reference * target, None) if self.better == "higher" else (None, None)


@dataclass(frozen=True, kw_only=True)
class RoundScenario:
    """Hold the requirements of a round for one scenario of one workload.

    Attributes:
        min_query_count: Minimum queries (Offline: samples). LoadGen's 100 if the round gives none;
            the larger value if mlperf.conf and the checker differ.
        ttft_limit_ms, tpot_limit_ms: Limits that 99 % of a language model's queries must meet.
        latency_percentile: Percentile that is limited or reported.
        accuracy_samples: Samples of an accuracy run if the scenario has its own data set.
        metrics: Gates of this scenario; they replace the workload's.
        result: Field of LoadGen's detail log that MLPerf's checker reports.
    """

    min_query_count: int = 100
    min_duration_ms: int = 600_000
    latency_limit_ms: float | None = None
    ttft_limit_ms: float | None = None
    tpot_limit_ms: float | None = None
    latency_percentile: float = 0.99
    samples_per_query: int = 8
    accuracy_samples: int | None = None
    metrics: Mapping[str, RoundMetric] = field(default_factory=dict)
    result: str = ""


@dataclass(frozen=True, kw_only=True)
class Systems:
    """Hold the scenarios of one system type (datacenter or edge).

    Attributes:
        required: Scenarios that a closed submission must have.
        one_optional: Whether at least one optional scenario is required.
        targets: Targets of the workload that apply to this type; None for all.
    """

    required: tuple[Scenario, ...]
    optional: tuple[Scenario, ...] = ()
    one_optional: bool = False
    targets: tuple[float, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class AnswerLengths:
    """Hold the answer lengths of a language model [tokens]; None if the round sets none.

    Attributes:
        inferred_tokens: Tokens counted per sample if LoadGen infers them (gptj).
        min_output_tokens, max_output_tokens: Answer length that the reference requests.
        accuracy_output_tokens: Maximum in accuracy runs, if it differs.
        cut_share: Largest share of answers that the reference truncates at the maximum.
    """

    inferred_tokens: int | None = None
    min_output_tokens: int | None = None
    max_output_tokens: int | None = None
    accuracy_output_tokens: int | None = None
    cut_share: float | None = None


@dataclass(frozen=True, kw_only=True)
class RoundWorkload:
    """Describe a benchmark of a round.

    Attributes:
        name: This package's name, which is LoadGen's name in mlperf.conf.
        checker: Name in MLPerf's submission checker, without the target.
        performance_samples: Samples held in memory during a performance run.
        accuracy_samples: Samples of an accuracy run if it has its own data set.
        scorer: Scorer name; "" if this release has none.
        ungated_scorer: Scorer whose scores have no gate, as it needs a tool or a judge model; "" if
            there is none.
        temperatures: Sampling temperatures of the "reference", and of the "twin" (its tiny model in
            suites/tiny); empty if both decode greedily.
        metrics: Gated scores by this package's name; a scenario may replace them.
        targets: Gates as shares of the reference, e.g. (0.99,); (1,) if every gate is absolute.
        suffixed: Whether the checker's names end in the target: "bert-99" and "bert-99.9".
        interactive_checker: Checker's name for Interactive if it is a separate benchmark (v5.0).
        harnesses: Permitted harnesses: LOADGEN, ENDPOINTS.
        equal_issue: Whether every sample is issued equally often.
        tokens: Whether it is a language model with token latencies.
        log_dtype: Integer type that its scripts read from LoadGen's log by default; "" if answers
            are not tokens.
        compliance: Compliance tests of a closed submission.
        checksums: Published checksums by file name: "md5:..." or "sha256:...".
    """

    name: str
    checker: str
    title: str
    task: str
    dataset: str
    dataset_samples: int
    performance_samples: int
    accuracy_samples: int | None = None
    scorer: str
    ungated_scorer: str = ""
    temperatures: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, RoundMetric]
    targets: tuple[float, ...]
    suffixed: bool = False
    interactive_checker: str | None = None
    harnesses: tuple[str, ...] = (LOADGEN,)
    equal_issue: bool = False
    tokens: bool = False
    log_dtype: str = ""
    lengths: AnswerLengths = AnswerLengths()
    compliance: tuple[str, ...] = ()
    systems: Mapping[str, Systems] = field(default_factory=dict)
    scenarios: Mapping[Scenario, RoundScenario] = field(default_factory=dict)
    checksums: Mapping[str, str] = field(default_factory=dict)

    @property
    def named_targets(self) -> Mapping[str, float]:
        """Accuracy target by each name of this workload; the name without a target is first.

        The names are LoadGen's ("resnet50", "llama3_1-8b") and the checker's ("resnet",
        "llama3.1-8b"), and those with a target ("bert-99.9") if the checker has such names.
        """
        bases = dict.fromkeys((self.name, self.checker))
        targets = dict.fromkeys(bases, self.targets[0])
        if self.suffixed:
            targets |= {f"{base}-{100 * t:g}": t for base in bases for t in self.targets}
        return targets

    @property
    def loadgen(self) -> bool:
        """Whether the round permits LoadGen for this workload."""
        return LOADGEN in self.harnesses

    @property
    def names(self) -> list[str]:
        """Names that a suite may use for this workload."""
        return list(self.named_targets)

    def aiming_at(self, target: float) -> RoundWorkload:
        """Return a copy of this workload that has only one accuracy target."""
        systems = {
            kind: dataclasses.replace(system, targets=None)
            for kind, system in self.systems.items()
            if system.targets is None or target in system.targets
        }
        return dataclasses.replace(self, targets=(target,), systems=systems)

    @property
    def checker_names(self) -> tuple[str, ...]:
        """Names in MLCommons' submission checker, one per target if they contain the target."""
        bases = (self.checker, *([self.interactive_checker] if self.interactive_checker else []))
        suffixes = [f"-{100 * t:g}" for t in self.targets] if self.suffixed else [""]
        return tuple(base + suffix for base in bases for suffix in suffixes)


@dataclass(frozen=True, kw_only=True)
class Round:
    """Hold the seeds and workloads of an MLPerf Inference round."""

    name: str
    seeds: Seeds
    workloads: Mapping[str, RoundWorkload]

    @property
    def names(self) -> list[str]:
        """Names that a suite may use for the workloads, one per target."""
        return [name for workload in self.workloads.values() for name in workload.names]

    def find(self, name: str) -> RoundWorkload | None:
        """Return a workload by name, with only the target of that name ("bert-99.9"), or None."""
        return self._by_name.get(name)

    @cached_property
    def _by_name(self) -> Mapping[str, RoundWorkload]:
        workloads: dict[str, RoundWorkload] = {}
        for workload in self.workloads.values():
            for name, target in workload.named_targets.items():
                workloads.setdefault(name, workload.aiming_at(target))
        return workloads


@cache
def load_round(name: str) -> Round:
    """Return a round's constants; raise KeyError for an unknown round."""
    if name not in ROUNDS:
        raise KeyError(name)
    raw = tomllib.loads(files(__name__).joinpath(f"{name}.toml").read_text("utf-8"))
    return Round(
        name=name,
        seeds=Seeds(**raw["seeds"]),
        workloads={key: _workload(key, value) for key, value in raw["workloads"].items()},
    )


def _workload(name: str, raw: Mapping[str, Any]) -> RoundWorkload:
    parsed = {
        "targets": tuple(raw["targets"]),
        "compliance": tuple(raw["compliance"]),
        "harnesses": tuple(raw.get("harnesses", (LOADGEN,))),
        "metrics": _metrics(raw["metrics"]),
        "systems": {kind: _system(system) for kind, system in raw.get("systems", {}).items()},
        "scenarios": {
            Scenario(key): _scenario(Scenario(key), value, tokens=raw.get("tokens", False))
            for key, value in raw["scenarios"].items()
        },
    }
    lengths = {n: raw[n] for n in raw.keys() & AnswerLengths.__dataclass_fields__.keys()}
    others = {key: value for key, value in raw.items() if key not in lengths}
    return RoundWorkload(name=name, lengths=AnswerLengths(**lengths), **{**others, **parsed})


def _scenario(name: Scenario, raw: Mapping[str, Any], *, tokens: bool) -> RoundScenario:
    metrics = _metrics(raw.get("metrics", {}))
    defaults = dict(SCENARIOS[name])
    if tokens and name in TOKEN_RESULTS:
        defaults["result"] = TOKEN_RESULTS[name]
    return RoundScenario(**{**defaults, **raw, "metrics": metrics})


def _system(raw: Mapping[str, Any]) -> Systems:
    return Systems(
        required=tuple(map(Scenario, raw["required"])),
        optional=tuple(map(Scenario, raw.get("optional", ()))),
        one_optional=raw.get("one_optional", False),
        targets=tuple(raw["targets"]) if "targets" in raw else None,
    )


def _metrics(raw: Mapping[str, Any]) -> dict[str, RoundMetric]:
    metrics = {}
    for name, table in raw.items():
        bounds = {key: table[key] for key in ("share", "within") if key in table}
        ends = {key: (bound.get("low"), bound.get("high")) for key, bound in bounds.items()}
        metrics[name] = RoundMetric(name=name, **{**table, **ends})
    return metrics

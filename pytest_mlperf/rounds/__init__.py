"""MLPerf's constants, one TOML file per round: seeds, gates, limits, sample counts.

A scenario names only what differs from `SCENARIOS`, or with token latencies from `TOKEN_RESULTS`.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.resources import files
from typing import Any, Literal

LOADGEN, ENDPOINTS = "LoadGen", "MLPerf Endpoints"

ROUNDS = ("v4.1", "v5.0", "v5.1", "v6.0", "v6.1")

SCENARIOS: Mapping[str, Mapping[str, Any]] = {
    "Offline": {"result": "result_samples_per_second"},
    "Server": {"result": "result_completed_samples_per_sec"},
    "Interactive": {"result": "result_completed_samples_per_sec"},
    "SingleStream": {"latency_percentile": 0.9, "result": "early_stopping_latency_ss"},
    "MultiStream": {"min_query_count": 662, "result": "early_stopping_latency_ms"},
}
"""What every round asks of a scenario where it asks for nothing else of a workload."""

TOKEN_RESULTS = {
    "Offline": "result_tokens_per_second",
    "Server": "result_completed_tokens_per_second",
    "Interactive": "result_completed_tokens_per_second",
}
"""What is reported of language models with token latencies."""

Ends = tuple[float | None, float | None]
"""Lowest and highest; None: no such end."""


@dataclass(frozen=True, kw_only=True)
class RoundMetric:
    """One score that a round gates.

    Attributes:
        name: Our scorer's key: "top1", "rouge1", "tokens_per_sample".
        checker: The submission checker's key: "acc", "ROUGE1", "TOKENS_PER_SAMPLE"; "-": it has
            none, the gate is the rules'.
        reference: The reference score on the checker's scale; a pass mark where MLPerf publishes
            no reference (the end-to-end RAG workloads).
        better: Which scores are better. "neither" always has `share` or `within`.
        share: Lowest and highest share of the reference that pass, in place of the target.
        within: Lowest and highest score that pass, in place of the target.
        margin: What a paired comparison of this score allows unless a suite says otherwise, as a
            share of the baseline score; None: the general default.
    """

    name: str
    checker: str
    reference: float
    better: Literal["higher", "lower", "neither"] = "higher"
    share: Ends | None = None
    within: Ends | None = None
    margin: float | None = None

    def bounds(self, target: float) -> Ends:
        """Return the lowest and the highest score that pass a target, a share; None: no such bound.

        A better-when-lower score may exceed its reference by what a better-when-higher one may fall
        short of it. MLPerf's checker compares dlrm-v3's normalized entropy, which is better when
        lower, with ">= 0.999 x reference"; the direction here is the meant one.
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
    """What a round asks of one scenario of one workload.

    Attributes:
        min_query_count: Fewest queries (Offline: fewest samples). LoadGen's 100 where the round
            names none; the larger one where mlperf.conf and the checker differ.
        latency_limit_ms: Server and Interactive: the latency to be met, or None.
        ttft_limit_ms, tpot_limit_ms: Server and Interactive of language models: what 99 % of
            queries must meet, or None.
        latency_percentile: The percentile that is limited or reported.
        samples_per_query: MultiStream only.
        accuracy_samples: Samples of an accuracy run where the scenario has a data set of its own.
        metrics: Gates of the scenario's own, in place of the workload's.
        result: The field of LoadGen's detail log that MLPerf's checker reports.
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
    """The scenarios of one type of system.

    Attributes:
        required: What a closed submission must have.
        one_optional: At least one of the optional scenarios is required.
        targets: The workload's targets that this type of system has, where it lacks some.
    """

    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    one_optional: bool = False
    targets: tuple[float, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class AnswerLengths:
    """Lengths of answers of a language model, in tokens; None where the round sets none.

    Attributes:
        inferred_tokens: Tokens counted per sample where LoadGen infers them (gptj).
        min_output_tokens, max_output_tokens: Tokens of an answer that the reference asks for.
        accuracy_output_tokens: Most tokens of an answer in accuracy runs, where those differ.
        cut_share: Largest share of answers that the reference cuts at their most tokens.
    """

    inferred_tokens: int | None = None
    min_output_tokens: int | None = None
    max_output_tokens: int | None = None
    accuracy_output_tokens: int | None = None
    cut_share: float | None = None


@dataclass(frozen=True, kw_only=True)
class RoundWorkload:
    """One benchmark of a round.

    Attributes:
        name: Our name, which is LoadGen's conf name.
        checker: The submission checker's name, without target.
        task: What it does, in one word.
        performance_samples: Samples held in memory during a performance run.
        accuracy_samples: Samples of an accuracy run, where that has a data set of its own.
        scorer: Name of the scorer; "" where this release has none.
        metrics: What is gated, by our name; a scenario may have its own.
        targets: Shares of the reference that are gates, e.g. (0.99,). 1 where every gate is
            absolute.
        suffixed: The checker's names end in the target: "bert-99" and "bert-99.9".
        interactive_checker: The checker's name of Interactive where that was a benchmark of its
            own (v5.0), without target.
        harnesses: What it may be run by: LOADGEN, ENDPOINTS.
        equal_issue: Every sample is issued equally often.
        tokens: It is a language model with token latencies.
        log_dtype: Type of the integers that its scripts read from LoadGen's log unless told
            otherwise; "": its answers are no tokens.
        lengths: Lengths of answers.
        compliance: Compliance tests of a closed submission.
        checksums: What MLPerf publishes of data files: "md5:..." or "sha256:..." by file name.
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
    scenarios: Mapping[str, RoundScenario] = field(default_factory=dict)
    checksums: Mapping[str, str] = field(default_factory=dict)

    @property
    def named_targets(self) -> Mapping[str, float]:
        """Every name that means this workload, with the target that it says; the plain first.

        LoadGen's name ("resnet50", "llama3_1-8b") and the checker's ("resnet", "llama3.1-8b"),
        both with the target ("bert-99.9") where the checker's names have it.
        """
        bases = dict.fromkeys((self.name, self.checker))
        targets = dict.fromkeys(bases, self.targets[0])
        if self.suffixed:
            targets |= {f"{base}-{100 * t:g}": t for base in bases for t in self.targets}
        return targets

    @property
    def loadgen(self) -> bool:
        """LoadGen may run it."""
        return LOADGEN in self.harnesses

    @property
    def names(self) -> list[str]:
        """What a suite may call it."""
        return list(self.named_targets)

    def aiming_at(self, target: float) -> RoundWorkload:
        """Return this workload with one of its targets alone."""
        systems = {
            kind: dataclasses.replace(system, targets=None)
            for kind, system in self.systems.items()
            if system.targets is None or target in system.targets
        }
        return dataclasses.replace(self, targets=(target,), systems=systems)

    @property
    def checker_names(self) -> tuple[str, ...]:
        """The submission checker's names: one per target where they have it."""
        bases = (self.checker, *([self.interactive_checker] if self.interactive_checker else []))
        suffixes = [f"-{100 * t:g}" for t in self.targets] if self.suffixed else [""]
        return tuple(base + suffix for base in bases for suffix in suffixes)


@dataclass(frozen=True, kw_only=True)
class Round:
    """One MLPerf Inference round."""

    name: str
    qsl_seed: int
    sample_index_seed: int
    schedule_seed: int
    workloads: Mapping[str, RoundWorkload]

    @property
    def names(self) -> list[str]:
        """What a suite may call the workloads: those of several targets once for each."""
        return [name for workload in self.workloads.values() for name in workload.names]

    def find(self, name: str) -> RoundWorkload | None:
        """Return a workload by one of its names, with the target that the name says."""
        return self._by_name.get(name)

    @cached_property
    def _by_name(self) -> Mapping[str, RoundWorkload]:
        """Made once: every case of a suite asks, several times."""
        workloads: dict[str, RoundWorkload] = {}
        for workload in self.workloads.values():
            for name, target in workload.named_targets.items():
                workloads.setdefault(name, workload.aiming_at(target))
        return workloads


@cache
def load_round(name: str) -> Round:
    """Read a round's constants; a KeyError says that there is no such round."""
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
    parsed = {
        "targets": tuple(raw["targets"]),
        "compliance": tuple(raw["compliance"]),
        "harnesses": tuple(raw.get("harnesses", (LOADGEN,))),
        "metrics": _metrics(raw["metrics"]),
        "systems": {kind: _system(system) for kind, system in raw.get("systems", {}).items()},
        "scenarios": {
            key: _scenario(key, value, tokens=raw.get("tokens", False))
            for key, value in raw["scenarios"].items()
        },
    }
    lengths = {n: raw[n] for n in raw.keys() & AnswerLengths.__dataclass_fields__.keys()}
    others = {key: value for key, value in raw.items() if key not in lengths}
    return RoundWorkload(name=name, lengths=AnswerLengths(**lengths), **{**others, **parsed})


def _scenario(name: str, raw: Mapping[str, Any], *, tokens: bool) -> RoundScenario:
    metrics = _metrics(raw.get("metrics", {}))
    usual = dict(SCENARIOS[name])
    if tokens and name in TOKEN_RESULTS:
        usual["result"] = TOKEN_RESULTS[name]
    return RoundScenario(**{**usual, **raw, "metrics": metrics})


def _system(raw: Mapping[str, Any]) -> Systems:
    return Systems(
        required=tuple(raw["required"]),
        optional=tuple(raw.get("optional", ())),
        one_optional=raw.get("one_optional", False),
        targets=tuple(raw["targets"]) if "targets" in raw else None,
    )


def _metrics(raw: Mapping[str, Any]) -> dict[str, RoundMetric]:
    return {name: RoundMetric(name=name, **_with_ends(value)) for name, value in raw.items()}


def _with_ends(raw: Mapping[str, Any]) -> dict[str, Any]:
    ends = {key: raw[key] for key in ("share", "within") if key in raw}
    return {**raw, **{key: (own.get("low"), own.get("high")) for key, own in ends.items()}}

"""Baselines: the accepted runs of a case, one record per hardware identity."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Literal

from pytest_mlperf.core.errors import BaselineError

SCHEMA = 1
"""The version of the file format that this release reads and writes."""

Property = str | int | float | bool | None
"""One property of a machine; None is unknown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BaselineRun:
    """One accepted run.

    Attributes:
        metrics: Values by metric name, SI units, positive.
        within_se: Relative standard error within the run by metric name, where known.
        session: Runs of one session were made one after another on a machine in one state.
        started: ISO 8601 UTC.
        samples: Samples completed.
        duration_s: Length of the timed part.
        commit: Commit of the tested project, or None outside git.
        control: What the fixed micro-benchmark found just before it; empty: not made.
        state: Clocks, heat and power cap of its GPUs; empty: not sampled.
    """

    metrics: dict[str, float]
    within_se: dict[str, float]
    session: str
    started: str
    samples: int
    duration_s: float
    commit: str | None
    control: dict[str, float] = field(default_factory=dict)
    state: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in self.metrics.items():
            if not 0 < value < math.inf:
                raise ValueError(f"metric {name!r} is {value!r}; must be positive and finite")
        for name, value in self.within_se.items():
            if not 0 <= value < math.inf:
                raise ValueError(f"within_se of {name!r} is {value!r}; must be 0 or positive")
        for name, value in self.state.items():
            if not 0 <= value < math.inf:
                raise ValueError(f"state {name!r} is {value!r}; must be 0 or positive")
        for name, value in self.control.items():
            if not 0 < value < math.inf:
                raise ValueError(f"control {name!r} is {value!r}; must be positive and finite")


@dataclass(frozen=True, kw_only=True, slots=True)
class HistoryEntry:
    """One time a record was accepted.

    Attributes:
        date: ISO 8601, UTC.
        commit: Commit of the tested project, or None outside git.
        reason: Why, in the user's words.
        action: What was done to the record.
        runs: Runs of the record afterwards.
        old: Geometric means by metric before; empty for the first entry.
        new: Geometric means by metric afterwards.
    """

    date: str
    commit: str | None
    reason: str
    action: Literal["record", "append", "replace"]
    runs: int
    old: dict[str, float]
    new: dict[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """The accepted runs on one kind of machine.

    Attributes:
        identity: Properties of the hardware; a machine must equal all of them.
        target_qps: Rate the runs were offered or sized by, or None.
        qps_source: Where that rate came from, or None.
        fingerprint: Engine version, weights, options, data: shown under "what changed", never key.
        runs: At least one, oldest first.
        minimum_detectable_change: Smallest share these runs can prove, by metric.
        history: Oldest first.
        surroundings: Driver, kernel, card and the like: shown under "what changed", and never
            compared with anything.
    """

    identity: dict[str, Property]
    target_qps: float | None
    qps_source: Literal["suite", "probe"] | None
    fingerprint: dict[str, str]
    runs: tuple[BaselineRun, ...]
    minimum_detectable_change: dict[str, float]
    history: tuple[HistoryEntry, ...]
    surroundings: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.runs:
            raise ValueError("a record needs at least one run")


@dataclass(frozen=True, kw_only=True, slots=True)
class Baseline:
    """What one baseline file holds: a case of one profile, on every machine that has it.

    Attributes:
        schema: Version of the file format.
        round: MLPerf round, e.g. "v4.1".
        profile: "quick" or "official"; they never compare.
        workload: MLPerf benchmark with its accuracy target.
        scenario: MLPerf scenario.
        engine: Engine name of the suite.
        precision: The suite's word.
        accelerator: Class and count, e.g. "8xH100".
        records: One per hardware identity.
    """

    schema: int = SCHEMA
    round: str
    profile: str
    workload: str
    scenario: str
    engine: str
    precision: str
    accelerator: str
    records: tuple[Record, ...]

    def __post_init__(self) -> None:
        for i, record in enumerate(self.records):
            for j, earlier in enumerate(self.records[:i]):
                if not differences(earlier.identity, record.identity):
                    raise ValueError(f"records[{j}] and records[{i}] are of the same identity")


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """One property that keeps a record from applying to this machine.

    Attributes:
        name: Property name.
        theirs: The record's.
        ours: This machine's.
    """

    name: str
    theirs: Property
    ours: Property


def differences(theirs: Mapping[str, Property], ours: Mapping[str, Property]) -> list[Difference]:
    """Return the properties in which two identities differ; a missing one is unknown (None)."""
    return [
        Difference(name=name, theirs=theirs.get(name), ours=ours.get(name))
        for name in sorted({*theirs, *ours})
        if theirs.get(name) != ours.get(name)
    ]


def find(baseline: Baseline, identity: Mapping[str, Property]) -> Record | None:
    """Return the record of exactly this hardware, or None."""
    for record in baseline.records:
        if not differences(record.identity, identity):
            return record
    return None


def nearest(
    baseline: Baseline, identity: Mapping[str, Property]
) -> tuple[Record, list[Difference]] | None:
    """Return the record that differs in the fewest properties, the oldest of several, and these.

    None when there is no record at all.
    """
    pairs = [(record, differences(record.identity, identity)) for record in baseline.records]
    return min(pairs, key=lambda pair: len(pair[1]), default=None)


def with_record(baseline: Baseline, record: Record) -> Baseline:
    """Return the baseline with this record in the place of the one of its identity, or added."""
    old = find(baseline, record.identity)
    if old is None:
        return dataclasses.replace(baseline, records=(*baseline.records, record))
    records = tuple(record if other is old else other for other in baseline.records)
    return dataclasses.replace(baseline, records=records)


def append_runs(
    record: Record, runs: Sequence[BaselineRun], fingerprint: Mapping[str, str]
) -> Record:
    """Return the record with more runs of the same engine, weights, options and data.

    Args:
        record: The record to extend; its history and detectable change stay as they are.
        runs: The new runs, oldest first.
        fingerprint: The new runs' fingerprint.

    Raises:
        BaselineError: The fingerprints differ: a baseline that follows the code hides slow drift.
    """
    before = record.fingerprint
    changed = [
        f"{key} ({before.get(key, 'absent')!r} → {fingerprint.get(key, 'absent')!r})"
        for key in sorted({*before, *fingerprint})
        if before.get(key) != fingerprint.get(key)
    ]
    if changed:
        raise BaselineError(
            f"cannot append to the baseline: {', '.join(changed)} differ from its runs; "
            "measure what it was recorded with, or record anew with "
            '--mlperf-update=replace --mlperf-reason "..."'
        )
    return dataclasses.replace(record, runs=(*record.runs, *runs))


def geometric_means(runs: Sequence[BaselineRun]) -> dict[str, float]:
    """Return the geometric mean of each metric over the runs that have it."""
    names = dict.fromkeys(name for run in runs for name in run.metrics)
    return {
        name: math.exp(fmean(math.log(run.metrics[name]) for run in runs if name in run.metrics))
        for name in names
    }

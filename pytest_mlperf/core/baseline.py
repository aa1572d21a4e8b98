"""Define baselines: accepted runs of a case per kind of machine, and accepted scores."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import geometric_mean
from typing import Literal

from pytest_mlperf.core.case import Scenario
from pytest_mlperf.core.errors import BaselineError
from pytest_mlperf.core.measurement import RunHardware, RunServing, Subject, day_groups
from pytest_mlperf.core.notes import Note
from pytest_mlperf.judge.inputs import SessionNoise

SCHEMA_VERSION = 1
Property = str | int | float | bool | None
"""One property of a machine; None if unknown."""


def require_positive(noun: str, values: Mapping[str, float], *, or_zero: bool = False) -> None:
    """Raise ValueError, worded with `noun`, for values that are not positive and finite."""
    needed = "0 or positive" if or_zero else "positive and finite"
    for name, value in values.items():
        if not (0 < value < math.inf or (or_zero and value == 0)):
            raise ValueError(f"{noun} {name!r} is {value!r}; must be {needed}")


@dataclass(frozen=True, kw_only=True, slots=True)
class BaselineRun:
    """Hold one accepted run.

    Attributes:
        metrics: Values by metric name, SI units, positive.
        within_se: Relative standard error within the run by metric name, if known.
        session: Id of the pytest session that made the run.
        started: Start of the run, ISO 8601 UTC.
        samples: Number of completed samples.
        duration_s: Duration of the timed part [s].
        commit: Commit of the tested project; None outside git.
        control: Results of the micro-benchmark just before the run; empty if it was not run.
        state: Clocks, temperature and power cap of the GPUs; empty if not sampled.
        busy: Largest share of speed lost to other processes; None if unknown.
        late: Share of a latency that the client itself caused, by metric; only large shares.
        warmed: Whether the accelerator was used in this session before the run; None in old files.
        server: Metrics reported by the server, see `RunServing`; empty if not read.
        requests, lengths: By point of a curve, see `RunServing`; empty if unknown (old files).
        machine: Hashes of the machine and its GPUs, see `RunHardware.ids`.
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
    busy: float | None = None
    late: dict[str, float] = field(default_factory=dict)
    warmed: bool | None = None
    server: dict[str, float] = field(default_factory=dict)
    requests: dict[str, int] = field(default_factory=dict)
    lengths: dict[str, str] = field(default_factory=dict)
    machine: str = ""

    @property
    def hardware(self) -> RunHardware:
        """Hardware facts of the run, in the type of `Run.hardware`."""
        state, control = self.state, self.control
        return RunHardware(ids=self.machine, warmed=self.warmed, state=state, control=control)

    @property
    def serving(self) -> RunServing:
        """Requests, answer lengths and server metrics, in the type of `Run.serving`."""
        return RunServing(server=self.server, requests=self.requests, lengths=self.lengths)

    def __post_init__(self) -> None:
        require_positive("metric", self.metrics)
        require_positive("within_se of", self.within_se, or_zero=True)
        require_positive("state", self.state, or_zero=True)
        require_positive("server", self.server, or_zero=True)
        require_positive("control", self.control)
        if self.busy is not None and not 0 <= self.busy <= 1:
            raise ValueError(f"busy is {self.busy!r}; must be from 0 to 1")
        if not all(0 <= share < 1 for share in self.late.values()):
            raise ValueError(f"late is {self.late!r}; each value must be at least 0 and below 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class HistoryEntry:
    """Describe one acceptance of runs into a baseline record.

    Attributes:
        date: ISO 8601, UTC.
        commit: Commit of the tested project; None outside git.
        reason: The user's reason.
        action: What changed in the record.
        runs: Number of runs in the record afterwards.
        old, new: Geometric mean of each metric before (empty for the first entry) and afterwards.
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
    """Hold the accepted runs of a case on one kind of machine.

    Attributes:
        identity: Hardware properties; a machine must match all of them.
        target_qps: Offered rate, or the rate that sized the runs [1/s]; None if there is none.
        qps_source: "suite" or "probe": origin of `target_qps`; None without a rate.
        fingerprint: Engine version, weights, options, data: shown under "what changed".
        runs: Accepted runs, at least one, oldest first.
        minimum_detectable_change: Smallest change these runs can prove, as a share, by metric.
        history: All acceptances of runs, oldest first.
        surroundings: Driver, kernel and similar facts: shown under "what changed".
        session_noise: Between-session noise by metric, observed for this build and machine when the
            record was written; empty without two comparable sessions.
        skips_first_run: Whether each session's first run is excluded because it differs.
    """

    identity: dict[str, Property]
    target_qps: float | None
    qps_source: Literal["suite", "probe"] | None
    fingerprint: dict[str, str]
    runs: tuple[BaselineRun, ...]
    minimum_detectable_change: dict[str, float]
    history: tuple[HistoryEntry, ...]
    surroundings: dict[str, str] = field(default_factory=dict)
    session_noise: dict[str, SessionNoise] = field(default_factory=dict)
    skips_first_run: bool = False

    def __post_init__(self) -> None:
        if not self.runs:
            raise ValueError("a record needs at least one run")

    @property
    def sessions(self) -> tuple[str, ...]:
        """Ids of the sessions of the runs, oldest first."""
        return tuple(dict.fromkeys(run.session for run in self.runs))

    @property
    def id(self) -> str:
        """Identifier of the record: a hash of its runs, 12 hex digits."""
        runs = " ".join(f"{run.session} {run.started}" for run in self.runs)
        return hashlib.sha256(runs.encode()).hexdigest()[:12]

    @property
    def groups(self) -> dict[str, str]:
        """Group of each session, by session id; sessions of one day and machine share a group."""
        return day_groups((run.session, run.started, run.machine) for run in self.runs)

    @property
    def days(self) -> int:
        """Number of (day, machine) pairs with at least one of the record's sessions."""
        return len(set(self.groups.values()))

    def noise_of(self, metric: str | None) -> SessionNoise | None:
        """Return a metric's session noise; None if unknown, or if df counts one day's sessions."""
        noise = self.session_noise.get(metric or "")
        return noise if noise and (noise.by_days or len(self.sessions) == self.days) else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Baseline:
    """Hold one baseline file: one case in one profile, with a record per kind of machine.

    Attributes:
        schema: Version of the file format.
        round: MLPerf round, e.g. "v4.1".
        profile: "quick" or "official"; the two are never compared.
        workload: MLPerf benchmark with its accuracy target.
        scenario: MLPerf scenario.
        engine: Name of the engine entry in the suite.
        precision: Precision as named in the suite.
        accelerator: Class and count, e.g. "8xH100".
        records: One record per hardware identity.
    """

    schema: int = SCHEMA_VERSION
    round: str
    profile: str
    workload: str
    scenario: Scenario
    engine: str
    precision: str
    accelerator: str
    records: tuple[Record, ...]

    def __post_init__(self) -> None:
        for i, record in enumerate(self.records):
            for j, earlier in enumerate(self.records[:i]):
                if not differences(earlier.identity, record.identity):
                    raise ValueError(
                        f"records[{j}] and records[{i}] are of the same machine: delete one of them"
                    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """Describe a hardware property that differs: `theirs` in the baseline, `ours` here."""

    name: str
    theirs: Property
    ours: Property


def differences(theirs: Mapping[str, Property], ours: Mapping[str, Property]) -> list[Difference]:
    """Return the properties in which two hardware identities differ; a missing value is None."""
    return [
        Difference(name=name, theirs=theirs.get(name), ours=ours.get(name))
        for name in sorted({*theirs, *ours})
        if theirs.get(name) != ours.get(name)
    ]


def find_record(baseline: Baseline | None, identity: Mapping[str, Property]) -> Record | None:
    """Return the record of exactly this hardware; None without one, or without a baseline."""
    records = baseline.records if baseline else ()
    same = (one for one in records if not differences(one.identity, identity))
    return next(same, None)


def nearest(
    baseline: Baseline, identity: Mapping[str, Property]
) -> tuple[Record, list[Difference]] | None:
    """Return the record with the fewest differences, and these; None without records."""
    pairs = [(record, differences(record.identity, identity)) for record in baseline.records]
    return min(pairs, key=lambda pair: len(pair[1]), default=None)


def with_record(baseline: Baseline, record: Record) -> Baseline:
    """Return the baseline with this record added, or replacing that of the same identity."""
    old = find_record(baseline, record.identity)
    if old is None:
        return dataclasses.replace(baseline, records=(*baseline.records, record))
    records = tuple(record if other is old else other for other in baseline.records)
    return dataclasses.replace(baseline, records=records)


SERVER_FACT = "server."
"""Prefix of fingerprint keys for software facts that a remote server reports."""

ADDED_FACTS = {
    "engine.weights_sha256": "weights",
    "engine.external_data_sha256": "external weights",
    "engine.model_files_sha256": "model files",
    "engine.option_files_sha256": "files named in options",
    "engine.server.model": "model name on the server",
    "engine.server.revision": "model revision on the server",
    "engine.server.build": "system_fingerprint of the server",
    "engine.prompt_tokens_added": "tokens that the server adds to a prompt",
    "inputs.first": "inputs",
    "inputs.first_16": "inputs after the first",
}
"""Names of facts that a side may lack, as `SERVER_FACT`: such a fact is unknown, not changed."""


def changed_keys(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Return the keys whose values differ; skip digests and server facts that only one dict has."""
    lacking = {k for k in old.keys() ^ new.keys() if k in ADDED_FACTS or k.startswith(SERVER_FACT)}
    return sorted(key for key in {*old, *new} - lacking if old.get(key) != new.get(key))


def unknown_facts(
    baseline: Mapping[str, str], current: Mapping[str, str], title: str = "the baseline"
) -> tuple[str, ...]:
    """Return texts on the properties that only one fingerprint has; `title` names the baseline."""
    lacking = {
        name: f"{name}: not recorded in {title}"
        if key in current
        else f"{name}: not recorded in this run"
        for key, name in ADDED_FACTS.items()
        if (key in baseline) != (key in current)
    }
    if "dataset" in current and "inputs.first" not in current:
        lacking["inputs"] = "inputs: not compared, because inputs of this type have no checksum"
    if "inputs" in lacking:
        lacking.pop("inputs after the first", None)
    if "engine.weights" in baseline or "engine.weights" in current:
        lacking.pop("weights", None)
    elif "engine.weights_sha256" not in current and _is_behind_url(current):
        lacking["weights"] = "weights: unknown, the server at the url does not report them"
    return tuple(lacking.values())


def _is_behind_url(fingerprint: Mapping[str, str]) -> bool:
    try:
        options = json.loads(fingerprint.get("options", ""))
    except (ValueError, RecursionError):
        return False
    return isinstance(options, dict) and bool(options.get("url"))


def append_runs(
    record: Record, runs: Sequence[BaselineRun], fingerprint: Mapping[str, str]
) -> Record:
    """Return the record with more runs of the same engine, weights, options and data.

    History and detectable change are not updated.

    Raises:
        BaselineError: The fingerprints differ; a baseline of several builds would hide slow drift.
    """
    recorded = record.fingerprint
    changed = [
        f"{key} ({recorded.get(key, 'absent')!r} → {fingerprint.get(key, 'absent')!r})"
        for key in changed_keys(recorded, fingerprint)
    ]
    if changed:
        raise BaselineError(
            f"cannot append to the baseline: {', '.join(changed)} changed since its runs; "
            "restore the values of the baseline, or record a new one: "
            '--mlperf-update=replace --mlperf-reason "..."'
        )
    return dataclasses.replace(record, runs=(*record.runs, *runs))


def geometric_means(runs: Sequence[BaselineRun]) -> dict[str, float]:
    """Return the geometric mean of each metric over the runs that have it."""
    names = dict.fromkeys(name for run in runs for name in run.metrics)
    return {
        name: geometric_mean(run.metrics[name] for run in runs if name in run.metrics)
        for name in names
    }


ACCURACY_SCHEMA = 1

GENERATION = "engine.generation."
"""Prefix of the fingerprint keys that determine the output; they must equal the baseline's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Accepted:
    """Describe one acceptance of scores into an accuracy baseline.

    Attributes:
        date: ISO 8601, UTC.
        commit: Commit of the tested project; None outside git.
        reason: The user's reason.
        action: "record" for scores that are added, "replace" for scores that replace others.
        old, new: Aggregate score of each metric before (empty for the first entry) and afterwards.
    """

    date: str
    commit: str | None
    reason: str
    action: Literal["record", "replace"]
    old: dict[str, float]
    new: dict[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rerun:
    """Hold the variation of one metric between accuracy passes of one build.

    Attributes:
        sd: Standard deviation of a whole pass's score [points].
        correlation: Correlation of the sample scores of two passes; None if they are constant.
        passes: Number of passes compared with the recorded pass.
    """

    sd: float
    correlation: float | None
    passes: int

    def __post_init__(self) -> None:
        if not 0 <= self.sd < math.inf or self.passes < 1:
            raise ValueError(
                f"sd is {self.sd!r}, passes is {self.passes!r}; sd must be finite and at least 0, "
                "passes at least 1"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class AccuracyBaseline:
    """Hold one accuracy baseline file; the sample scores are in a second file.

    Attributes:
        schema: Version of the file format.
        round: MLPerf round, e.g. "v4.1".
        workload: MLPerf benchmark with its accuracy target.
        engine: Engine name of the suite.
        precision: Precision as named in the suite.
        scenario: Scenario of the recorded pass: the suite's first.
        samples: Number of samples of the data set; all are scored.
        scores: Aggregate score by metric, as MLPerf's reference script prints it.
        steps: Resolution of the recorded sample scores by metric [steps per point].
        scores_sha256: Digest of the file with the sample scores, which must match.
        scorer: Name and options of the scorer, as JSON.
        identity: Hardware of the measurement; recorded, but no part of any key.
        fingerprint: Engine version, weights, options, data.
        history: Acceptances of scores, oldest first.
        rerun: Variation between repeated passes of this build, by metric; empty if not repeated.
        answers: Number of answers, and of empty and cut ones, see `Accuracy.answers`; empty if
            unknown (old files).
    """

    schema: int = ACCURACY_SCHEMA
    round: str
    workload: str
    engine: str
    precision: str
    scenario: Scenario
    samples: int
    scores: dict[str, float]
    steps: dict[str, int]
    scores_sha256: str
    scorer: str
    identity: dict[str, Property]
    fingerprint: dict[str, str]
    history: tuple[Accepted, ...]
    rerun: dict[str, Rerun] = field(default_factory=dict)
    answers: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ValueError(f"samples is {self.samples!r}; at least 1 is needed")
        for name, value in self.scores.items():
            if not math.isfinite(value):
                raise ValueError(f"score {name!r} is {value!r}; must be finite")


def steps_per_point(values: Sequence[float | None]) -> int:
    """Return the stored resolution [steps per score point]: 10,000 for scores in ±1, else 100."""
    return 10_000 if all(value is None or -1 <= value <= 1 for value in values) else 100


def rounded_scores(values: Sequence[float | None], steps: int) -> list[float | None]:
    """Round scores to multiples of 1 / `steps`, as baselines store them; keep None."""
    return [None if value is None else round(value * steps) / steps for value in values]


SALT = "engine.salt"
"""Fingerprint key of how each run changes the prompts; "none", or absent, if it does not."""


def has_salt(fingerprint: Mapping[str, str]) -> bool:
    """Check whether each timed run adds a salt to its prompts, so that no cache holds them."""
    return fingerprint.get(SALT, "none") != "none"


def may_be_cached(fingerprint: Mapping[str, str]) -> bool:
    """Check whether a server's prefix cache may hold this run's prompts from an earlier run."""
    asks_alike = "engine.api" in fingerprint and not has_salt(fingerprint)
    return asks_alike and fingerprint.get("engine.server.enable_prefix_caching") != "False"


def is_drawn(subject: Subject) -> bool:
    """Check whether the engine samples its answers at random (temperature above 0)."""
    return subject.fingerprint.get(f"{GENERATION}temperature", "0") not in {"0", "0.0"}


def why_not_comparable(
    baseline: AccuracyBaseline, subject: Subject, scorer: str, samples: int
) -> Note | None:
    """Return why a pass's scores are not comparable with a baseline's, or None if they are."""
    theirs, ours = baseline.fingerprint, subject.fingerprint
    if theirs.get("dataset") != ours.get("dataset") or baseline.samples != samples:
        name, sides = "dataset options", [f.get("dataset.options", "") for f in (theirs, ours)]
        if sides[0] == sides[1]:
            name, sides = "checksum", [f.get("dataset", "")[:12] for f in (theirs, ours)]
        if sides[0] == sides[1]:
            name, sides = "samples", [f"{count:,}" for count in (baseline.samples, samples)]
        change = Note.of("changed", name=name, old=sides[0], new=sides[1])
        return Note.of("data_differ", changes=(change,))
    settings = sorted(key for key in {*theirs, *ours} if key.startswith(GENERATION))
    pairs = {key: [facts.get(key, "absent") for facts in (theirs, ours)] for key in settings}
    changes = tuple(
        Note.of("changed", name=key.removeprefix(GENERATION), old=old, new=new)
        for key, (old, new) in pairs.items()
        if old != new
    )
    if changes:
        return Note.of("settings_differ", changes=changes)
    if baseline.scorer != scorer:
        return Note.of("scorers_differ", old=baseline.scorer, new=scorer)
    return None

"""Define measurements of a case: its runs, its accuracy pass and the measured system."""

from __future__ import annotations

import datetime as dt
import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from pytest_mlperf.core.case import Scenario
from pytest_mlperf.core.contention import Contention
from pytest_mlperf.core.control import Control, State
from pytest_mlperf.core.energy import EnergyReading, Source, source_of
from pytest_mlperf.core.metrics import OF_ENERGY, official_metric
from pytest_mlperf.core.notes import Note, Words
from pytest_mlperf.core.numbers import Count, NotNegative, Number, Positive, Seconds
from pytest_mlperf.core.reason import Key, Reason, Sign
from pytest_mlperf.core.roofline import RooflineShare
from pytest_mlperf.core.search import SearchOutcome
from pytest_mlperf.judge.inputs import Leverage


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuRun:
    """Hold the measurements of one of several GPUs during a run.

    Attributes:
        uuid: UUID from the driver.
        name: Display name, "GPU 3"; "" in older results.
        joules: Energy of the GPU; None if unknown.
        uncertainty_j: Largest error of the energy in either direction; None if unknown.
        mean_w: Mean power; None if unknown.
        state: Clocks, temperature and share of time at the power cap, if read, and NVLink traffic
            (nvlink_sent, nvlink_received) [B/s].
    """

    uuid: str
    name: str = ""
    joules: NotNegative | None = None
    uncertainty_j: NotNegative | None = None
    mean_w: NotNegative | None = None
    state: State = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaRun:
    """Hold the measurements of one replica of the engine during a run.

    Attributes:
        name: "replica 3 (GPU 5)".
        gpus: UUIDs of the replica's GPUs; empty on a CPU.
        samples: Number of samples that the replica completed.
        throughput: Samples/s while the replica had samples to process.
        latency_s: Mean time of a sample [s].
        shares: Speed in equal parts of the run, relative to the median replica; empty if replicas
            cannot be compared, as in SingleStream, which uses only the first.
    """

    name: str
    gpus: tuple[str, ...] = ()
    samples: Count
    throughput: NotNegative
    latency_s: NotNegative
    shares: tuple[NotNegative, ...] = ()

    @property
    def share(self) -> float | None:
        """Speed in the whole run relative to the median replica; None if not compared."""
        return fmean(self.shares) if self.shares else None


@dataclass(frozen=True, kw_only=True, slots=True)
class RunLoad:
    """Hold external causes that may have slowed a run.

    Attributes:
        client: Delays of the client itself [s], see `Engine.client_lateness`; empty without a
            client.
        contention: CPU use by this run and other processes; None if it was not read.
        waited_s: Time that the run waited for an idle machine before it began; None if unknown.
    """

    client: Mapping[str, Number] = field(default_factory=dict)
    contention: Contention | None = None
    waited_s: NotNegative | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RunHardware:
    """Describe the machine of a run and its state.

    Attributes:
        ids: Hashes of the machine and of its GPUs, separated by spaces; "" if unknown.
        warmed: Whether the accelerator had worked in this session before; None if unknown.
        state: State of the GPUs during the run; empty if they were not sampled.
        control: Result of the fixed micro-benchmark just before the run; empty if it was not run.
        gpus: Measurements of each GPU during the run; empty for a single GPU.
    """

    ids: str = ""
    warmed: bool | None = None
    state: State = field(default_factory=dict)
    control: Control = field(default_factory=dict)
    gpus: tuple[GpuRun, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class RunServing:
    """Hold the requests, answers and server metrics of a run.

    Attributes:
        server: The server's own metrics during the run: means (waiting, running, kv_cache_use),
            their maxima (waiting_max), shares (prefix_hit_share, draft_acceptance), tokens of a
            decoding step (draft_length), and a count (preemptions); from its answers the share of
            counted tokens that are hidden (hidden_share); for a curve at each point, "waiting@64";
            empty if unknown. Metrics with limits are also in `Run.metrics`.
        finishes: Number of answers by finish reason, "stop" or "length"; for a curve at each point,
            "stop@64"; empty if unknown.
        requests: For a curve, number of counted requests by point, {"16": 54}; empty if unknown.
        lengths: For a curve, "sample:tokens" of the answers by point, {"16": "3:37 8:45"}.
        salt: Seed of the words that make the prompts differ between runs; "" if not used.
    """

    server: Mapping[str, NotNegative] = field(default_factory=dict)
    finishes: Mapping[str, Count] = field(default_factory=dict)
    requests: Mapping[str, Count] = field(default_factory=dict)
    lengths: Mapping[str, str] = field(default_factory=dict)
    salt: str = ""


@dataclass(frozen=True, kw_only=True)
class Run:
    """Hold one LoadGen performance run in a fresh process.

    Attributes:
        metrics: Values by metric name, SI units.
        within_se: Relative standard error inside the run by metric name, if known.
        samples: Number of completed samples.
        queries: Number of queries by LoadGen's count (Offline: samples).
        duration_s: Length of the timed part [s].
        target_qps: Offered rate, or the rate that sized the run [1/s].
        session: Id of the pytest session.
        started: Start of the run, ISO 8601 UTC.
        commit: Commit of the tested project; None outside git.
        folder: Folder with LoadGen's logs; in a result relative to pytest's root.
        invalid: Reasons why the run is INVALID and may not be judged; empty if it is valid.
        limit_missed: Whether the only reason is that LoadGen's latency limit was missed.
        energy: Energy of the timed part by source.
        energy_unknown: Why the GPUs could not be sampled, although they should have been.
        load: Load by other processes and by the client.
        hardware: The machine and its state.
        serving: Requests, answers and the server.
        notes: Other remarks that fail no test.
        signs: Warnings that fail no test, such as a power cap; empty in older results.
        light: Roofline shares, the main metric's first; empty on a CPU without datasheet figures.
        search: The search whose result is the throughput, or None. Other metrics are then of the
            run at the highest rate within the limits.
        zero: Metrics with the value 0, which `metrics` cannot hold: goodput and server metrics.
        replicas: Measurements of each replica; empty if the engine was one process.
    """

    metrics: Mapping[str, Positive]
    within_se: Mapping[str, NotNegative]
    samples: Count
    queries: Count
    duration_s: Seconds
    target_qps: NotNegative
    session: str
    started: str
    commit: str | None
    folder: str
    invalid: tuple[Reason, ...] = ()
    limit_missed: bool = False
    energy: Mapping[Source, EnergyReading] = field(default_factory=dict)
    energy_unknown: str | None = None
    load: RunLoad = RunLoad()
    hardware: RunHardware = RunHardware()
    serving: RunServing = RunServing()
    notes: tuple[Words, ...] = ()
    signs: tuple[Sign, ...] = ()
    light: tuple[RooflineShare, ...] = ()
    search: SearchOutcome | None = None
    zero: tuple[str, ...] = ()
    replicas: tuple[ReplicaRun, ...] = ()

    @property
    def too_slow(self) -> bool:
        """Whether the run is INVALID only because the server answered too few requests in time."""
        slow = {Key.TOO_FEW_REQUESTS, Key.OVERLOADED, Key.NO_RATE}
        return bool(self.invalid) and {reason.key for reason in self.invalid} <= slow

    def energy_of(self, metric: str) -> EnergyReading | None:
        """Return the energy reading for an efficiency metric; None if its source was not read."""
        return self.energy.get(source_of(metric))

    def may_judge(self, metric: str) -> bool:
        """Check whether the run has a metric, with accurate energy if it is an energy metric."""
        energy = self.energy_of(metric)
        believed = metric not in OF_ENERGY or (energy is not None and energy.gated)
        return metric in self.metrics and believed


def repeat_note(runs: Sequence[Run]) -> Note | None:
    """Return a note on why INVALID runs were repeated; None if there were none."""
    latest: dict[Key, tuple[Words, ...]] = {}
    for run in runs:
        keys = [reason.key for reason in run.invalid]
        latest |= {key: tuple(r.text for r in run.invalid if r.key is key) for key in keys}
    reasons = tuple(text for texts in latest.values() for text in texts)
    return Note.of("measured_again", count=len(runs), reasons=reasons) if runs else None


def median_run(runs: Sequence[Run], scenario: Scenario) -> Run:
    """Return the median run by the scenario's MLPerf metric; of two middle runs the worse one."""
    name = official_metric(scenario)
    ordered = sorted(runs, key=lambda run: run.metrics.get(name, 0.0))
    return ordered[(len(runs) - (not scenario.answers_one_at_a_time)) // 2]


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """Hold the scores and answer counts of one accuracy pass.

    Attributes:
        scores: Aggregate score by metric, on the metric's own scale (top1: 0–100).
        samples: Number of scored samples.
        full: Whether the whole data set was scored.
        folder: Folder with logs and per-sample scores.
        source: Origin of the pass for a verdict: "measured", "this session" or "stored".
        total: Number of samples in the data set; 0 in older results.
        lower: Metrics that are better when lower.
        whole: Metrics that only a whole data set has, e.g. mAP.
        finishes: Number of answers by finish reason, as in a run; empty if unknown.
        answer_counts: Counts of answers, see `Engine.answer_counts`; empty if unknown.
        fixed_lengths: Whether the data set or ignore_eos sets each answer's length, so that answers
            at the token limit are not flaws.
        baseline_answers: `answers` of the baseline; empty if unknown.
    """

    scores: Mapping[str, Number]
    samples: Count
    full: bool
    folder: str
    source: str = "measured"
    total: Count = 0
    lower: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()
    finishes: Mapping[str, Count] = field(default_factory=dict)
    answer_counts: Mapping[str, Count] = field(default_factory=dict)
    fixed_lengths: bool = False
    baseline_answers: Mapping[str, Count] = field(default_factory=dict)

    @property
    def answers(self) -> dict[str, int]:
        """Number of all "answers", and of answers with each of `FLAWS`; {} if unknown."""
        cut = 0 if self.fixed_lengths else self.finishes.get("length", 0)
        total = self.answer_counts.get("answers") or sum(self.finishes.values())
        counts = {"answers": total, **self.answer_counts, "cut": cut}
        return {name: counts[name] for name in ("answers", *FLAWS) if counts.get(name)}

    @property
    def answers_in_words(self) -> str:
        """Finish reasons and flaws of answers as text: "40 stop, 20 length; 20 empty"."""
        ends = ", ".join(f"{count:,} {reason}" for reason, count in self.finishes.items())
        flaws = [f"{n:,} {FLAWS[name]}" for name, n in self.answers.items() if FLAWS.get(name)]
        return "; ".join(filter(None, (ends, ", ".join(flaws))))


FLAWS = {
    "cut": "",  # as many have the finish reason "length"
    "empty": "empty",
    "cut_reasoning": "cut while reasoning",
    "refused": "refused",
    "bad_calls": "with tool calls that are not JSON",
}


@dataclass(frozen=True, kw_only=True)
class Scored:
    """Hold the scores of an accuracy pass, sample by sample.

    Attributes:
        indices: Data set indices, ascending.
        per_sample: Scores by metric, one for each of `indices`; None if the metric does not apply
            to the sample.
        groups: Group of each sample, such as its article; None if samples are independent or groups
            are unknown (older passes).
        leverage: `Leverage` by metric, for scores that are not sample means (mAP), if the scorer
            computes it; empty in older passes.
        outputs: A digest of each output; None in older passes.
        chance: Expected score of random guessing, by metric.
    """

    indices: tuple[int, ...]
    per_sample: Mapping[str, Sequence[float | None]]
    groups: tuple[int, ...] | None = None
    leverage: Mapping[str, Leverage] = field(default_factory=dict)
    outputs: tuple[int, ...] | None = None
    chance: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Describe the measured system: machine, engine, data.

    Attributes:
        identity: Properties of the hardware that must equal the baseline's.
        fingerprint: Versions, weights, options, data; must be equal within a case's runs, and may
            differ from the baseline's, which is shown under "what changed".
        surroundings: Driver, kernel, GPU board; shown too, and may differ between a case's runs.
    """

    identity: Mapping[str, str | int | float | bool | None]
    fingerprint: Mapping[str, str]
    surroundings: Mapping[str, str] = field(default_factory=dict)

    @property
    def dummy(self) -> bool:
        """Whether the weights are random (load_format dummy), so that only speed may be judged."""
        return self.fingerprint.get("engine.weights") == "dummy"


def moment_of(started: str) -> dt.datetime | None:
    """Return the time of an ISO 8601 text, as UTC if it has no zone; None if malformed."""
    try:
        moment = dt.datetime.fromisoformat(started)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)


def day_of(started: str) -> float | None:
    """Return the start of a run in days since 1970 (UTC); None if malformed or implausible."""
    moment = moment_of(started)
    # MLPerf began in 2018: an unset clock shows 1970.
    return moment.timestamp() / 86_400 if moment and 2018 <= moment.year < 2100 else None


def day_groups(runs: Iterable[tuple[str, str, str]]) -> dict[str, str]:
    """Return the group of each session: the first session of its day (UTC) on its machine.

    Sessions of unknown day or machine add no group. The day of a session is that of its first run.

    Args:
        runs: Session, start and machine of each run, oldest first, see `Run`.
    """
    first: dict[str, tuple[float | None, set[str]]] = {}
    for session, started, machine in runs:
        first.setdefault(session, (day_of(started), set(machine.split())))
    earliest = min((day for day, _ in first.values() if day is not None), default=0.0)
    groups: dict[str, str] = {}
    seen: dict[str, tuple[int, set[str]]] = {}
    for session, (day, hashes) in first.items():
        date = math.floor(earliest if day is None else day)
        same_day = {name: known for name, (other, known) in seen.items() if other == date}
        alike = (name for name, h in same_day.items() if h & hashes or not (h and hashes))
        group = groups[session] = next(alike, session)
        seen[group] = date, seen.get(group, (date, hashes))[1] | hashes
    return groups


DIGEST_BYTES = 2
"""Two bytes per sample, as many as a score takes in git; 1 of 65,536 changes is missed."""


def digest(output: bytes) -> int:
    """Return a 16-bit digest of one output, from 0 to 65,535."""
    return int.from_bytes(hashlib.blake2b(output, digest_size=DIGEST_BYTES).digest(), "big")


def changed_outputs(baseline: Sequence[int] | None, scored: Scored) -> int | None:
    """Return how many outputs have another digest than the baseline's; None if unknown."""
    if baseline is None or scored.outputs is None:
        return None
    pairs = zip(scored.indices, scored.outputs, strict=True)
    return sum(baseline[index] != own for index, own in pairs)

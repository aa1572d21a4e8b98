"""What was measured: runs of a case and its accuracy, with where they came from."""

from __future__ import annotations

import datetime as dt
import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from pytest_mlperf.core.contention import Contention
from pytest_mlperf.core.control import Control, State
from pytest_mlperf.core.energy import EnergyReading, Source, source_of
from pytest_mlperf.core.metrics import OF_ENERGY
from pytest_mlperf.core.numbers import Count, NotNegative, Number, Positive, Seconds
from pytest_mlperf.core.reason import Key, Reason, Sign
from pytest_mlperf.core.roofline import Light
from pytest_mlperf.core.search import SearchOutcome
from pytest_mlperf.judge.inputs import Leverage


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuRun:
    """One GPU of several in a run's window.

    Attributes:
        uuid: As its driver names it.
        name: What a person calls it: "GPU 3"; "": older results have none.
        joules: Its energy; None where that is not known.
        uncertainty_j: By which that may be off either way; None likewise.
        mean_w: Its mean power; None where it is not known.
        state: Its clocks, heat and how long its power cap held it back, as far as they were read,
            and what it sent and received over NVLink, B/s (nvlink_sent, nvlink_received).
    """

    uuid: str
    name: str = ""
    joules: NotNegative | None = None
    uncertainty_j: NotNegative | None = None
    mean_w: NotNegative | None = None
    state: State = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaRun:
    """One replica in a run.

    Attributes:
        name: "replica 3 (GPU 5)".
        gpus: UUIDs of its GPUs; empty on a CPU.
        samples: What it completed.
        throughput: Samples/s of the time in which it had any.
        latency_s: Mean time of a sample.
        shares: Its speed in equal parts of the run, as shares of the median replica's; empty where
            replicas cannot be compared, as in SingleStream, which only the first one answers.
    """

    name: str
    gpus: tuple[str, ...] = ()
    samples: Count
    throughput: NotNegative
    latency_s: NotNegative
    shares: tuple[NotNegative, ...] = ()

    @property
    def share(self) -> float | None:
        """Its speed over the run as a share of the median replica's; None: not compared."""
        return fmean(self.shares) if self.shares else None


@dataclass(frozen=True, kw_only=True, slots=True)
class RunLoad:
    """What else slowed a run down.

    Attributes:
        client: Delay by the client itself, seconds: "issue_p99" until a request began, "loop_p99"
            until an answer was seen; empty if the engine is no client.
        contention: Processor time of other processes in its window; None if it was not read.
        waited_s: How long it waited for other processes before it began; None if unknown.
    """

    client: Mapping[str, Number] = field(default_factory=dict)
    contention: Contention | None = None
    waited_s: NotNegative | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RunHardware:
    """The machine of a run, and its state.

    Attributes:
        ids: Hashes of the machine and of its GPUs, with spaces; "" if unknown.
        warmed: Its accelerator had worked in this session before; None if unknown.
        state: State of its GPUs in the window of the run; empty if they were not sampled.
        control: Result of the fixed micro-benchmark just before the run; empty if it was not run.
        gpus: Each GPU in the window, if there are several.
    """

    ids: str = ""
    warmed: bool | None = None
    state: State = field(default_factory=dict)
    control: Control = field(default_factory=dict)
    gpus: tuple[GpuRun, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class RunServing:
    """Requests and answers of a run, and its server.

    Attributes:
        server: The server's own metrics in the window of the run; empty if unknown. Means: waiting,
            running, kv_cache_use. Largest of these: waiting_max. Shares: prefix_hit_share,
            draft_acceptance. Others: draft_length (tokens of a decoding step), preemptions (count),
            hidden_share (share of tokens that were counted and not shown). Of a curve at each
            point: "waiting@64". Those that limits name are in the metrics of the run, too.
        finishes: Number of answers by finish reason, "stop" or "length"; of a curve at each point,
            "stop@64"; empty if unknown.
        requests: Of a curve, requests that count at each point, {"16": 54}; empty if unknown.
        lengths: Of a curve, tokens of answers by sample at each point, {"16": "3:37 8:45"}.
        salt: Seed of the words that make its prompts unlike those of other runs; "" without.
    """

    server: Mapping[str, NotNegative] = field(default_factory=dict)
    finishes: Mapping[str, Count] = field(default_factory=dict)
    requests: Mapping[str, Count] = field(default_factory=dict)
    lengths: Mapping[str, str] = field(default_factory=dict)
    salt: str = ""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One LoadGen performance run in a fresh process.

    Attributes:
        metrics: Values by metric name, SI units.
        within_se: Relative standard error inside the run by metric name, if known.
        samples: Samples completed.
        queries: Queries LoadGen counted (Offline: samples).
        duration_s: Length of the timed part.
        target_qps: Rate the run was offered or sized by.
        session: Id of the pytest session that made it.
        started: ISO 8601 UTC.
        commit: Commit of the tested project, or None outside git.
        folder: Folder with LoadGen's logs; in a result relative to pytest's root.
        invalid: Why the run may not be judged; empty if it may.
        limit_missed: LoadGen's latency constraint was missed, and nothing else was wrong.
        energy: Energy of the timed part by source.
        energy_unknown: Why the GPUs could not be sampled, although they should have been.
        load: Other processes and the client.
        hardware: The machine and its state.
        serving: Requests, answers and the server.
        notes: Remarks that fail no test, such as a power cap.
        signs: The same as values, if it has figures; empty in results of older releases.
        light: Shares of the roofline, the case's own first; empty on CPUs without figures.
        search: The search that found its throughput; None if it was offered, or measured. The other
            figures are those of the highest rate that held.
        zero: Metrics that are 0, which `metrics` cannot hold, see `core.rulings.sample.ZERO`.
        replicas: Figures of each replica, in their order; empty if the engine was one process.
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
    notes: tuple[str, ...] = ()
    signs: tuple[Sign, ...] = ()
    light: tuple[Light, ...] = ()
    search: SearchOutcome | None = None
    zero: tuple[str, ...] = ()
    replicas: tuple[ReplicaRun, ...] = ()

    @property
    def too_slow(self) -> bool:
        """Whether it may not be judged only because too little was answered in time."""
        slow = {Key.TOO_FEW_REQUESTS, Key.OVERLOADED, Key.NO_RATE}
        return bool(self.invalid) and {reason.key for reason in self.invalid} <= slow

    def energy_of(self, metric: str) -> EnergyReading | None:
        """Return the energy that a metric of efficiency rests on; None if it was not measured."""
        return self.energy.get(source_of(metric))

    def may_judge(self, metric: str) -> bool:
        """Whether it measured a metric, and an energy behind it well enough to be believed."""
        energy = self.energy_of(metric)
        believed = metric not in OF_ENERGY or (energy is not None and energy.gated)
        return metric in self.metrics and believed


def median_run(runs: Sequence[Run], scenario: str) -> Run:
    """Return the run in the middle by what MLPerf reports of a scenario, of two the worse one."""
    name = {"SingleStream": "latency_p90", "MultiStream": "latency_p99"}.get(scenario)
    if name:
        return sorted(runs, key=lambda run: run.metrics.get(name, 0.0))[len(runs) // 2]
    ordered = sorted(runs, key=lambda run: run.metrics.get("throughput", 0.0))
    return ordered[(len(runs) - 1) // 2]


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """One accuracy pass.

    Attributes:
        scores: Aggregate score by metric, on the metric's own scale (top1: 0–100).
        samples: Samples scored.
        full: The whole data set was scored.
        folder: Folder with logs and per-sample scores.
        source: "measured", "this session" or "stored": where a verdict took it from.
        total: Samples in the data set; 0 in results of older releases.
        lower: Metrics that are better when lower; the others are better when higher.
        whole: Metrics that only a whole data set has, e.g. mAP.
        finishes: How often answers ended for which reason, as those of a run; empty: unknown.
        answer_counts: What the answers were, see `Engine.answer_counts`; empty: unknown.
        fixed_lengths: Data set or ignore_eos say how long each answer is: none is cut by mistake.
        baseline_answers: `answers` of the accepted scores; empty: unknown, or there are none.
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
        """How many "answers" there were, and which of `FLAWS` some of them have; {}: unknown."""
        cut = 0 if self.fixed_lengths else self.finishes.get("length", 0)
        total = self.answer_counts.get("answers") or sum(self.finishes.values())
        counts = {"answers": total, **self.answer_counts, "cut": cut}
        return {name: counts[name] for name in ("answers", *FLAWS) if counts.get(name)}

    @property
    def answers_in_words(self) -> str:
        """How answers ended and what is wrong with some: "40 stop, 20 length; 20 empty"."""
        ends = ", ".join(f"{count:,} {reason}" for reason, count in self.finishes.items())
        flaws = [f"{n:,} {FLAWS[name]}" for name, n in self.answers.items() if FLAWS.get(name)]
        return "; ".join(filter(None, (ends, ", ".join(flaws))))


FLAWS = {
    "cut": "",  # as many have the finish reason "length"
    "empty": "empty",
    "cut_reasoning": "cut while reasoning",
    "refused": "refused",
    "bad_calls": "with calls that are no JSON",
}
"""What can be wrong with an answer, with words for it."""


@dataclass(frozen=True, kw_only=True)
class Scored:
    """The scores of an accuracy pass, sample by sample.

    Attributes:
        indices: Data set indices, ascending.
        per_sample: By metric, one score for each of `indices`; None where the metric does not apply
            to the sample.
        groups: The group of each of `indices`, such as its article; None: all are independent, or
            nobody knows (passes of older releases).
        leverage: Of metrics that only a whole data set has, where their scorer tells it; passes of
            older releases have none.
        outputs: A digest of each output; None: an older release kept none.
        chance: What guessing would score, by metric.
    """

    indices: tuple[int, ...]
    per_sample: Mapping[str, Sequence[float | None]]
    groups: tuple[int, ...] | None = None
    leverage: Mapping[str, Leverage] = field(default_factory=dict)
    outputs: tuple[int, ...] | None = None
    chance: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What was measured, as far as it was seen: machine, engine, data.

    Attributes:
        identity: Properties of the hardware that must equal the baseline's.
        fingerprint: Versions, weights, options, data: shown under "what changed", never a key.
        surroundings: Driver, kernel, card and the like, shown there too: runs of the same engine
            and data belong together whatever these are.
    """

    identity: Mapping[str, str | int | float | bool | None]
    fingerprint: Mapping[str, str]
    surroundings: Mapping[str, str] = field(default_factory=dict)

    @property
    def dummy(self) -> bool:
        """The weights are random: speed may be judged, accuracy never."""
        return self.fingerprint.get("engine.weights") == "dummy"


def moment_of(started: str) -> dt.datetime | None:
    """Return the time that ISO 8601 text names, without a zone UTC; None where it names none."""
    try:
        moment = dt.datetime.fromisoformat(started)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)


def day_of(started: str) -> float | None:
    """Return when a run started, in days since 1970 (UTC); None if the text names no such time."""
    moment = moment_of(started)
    # MLPerf began in 2018: a clock that was not set says 1970.
    return moment.timestamp() / 86_400 if moment and 2018 <= moment.year < 2100 else None


def day_groups(runs: Iterable[tuple[str, str, str]]) -> dict[str, str]:
    """Return by session the first session of its day (UTC) on its machine: they are one group.

    Days and machines that are not known add no group. A session is of the day of its first run.

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
"""Two bytes a sample, no more than a score takes in git; 1 change of 65,536 goes unseen."""


def digest(output: bytes) -> int:
    """Return the digest of one output, 0 to 65,535."""
    return int.from_bytes(hashlib.blake2b(output, digest_size=DIGEST_BYTES).digest(), "big")


def others(before: Sequence[int] | None, scored: Scored) -> int | None:
    """Return how many outputs are others than the baseline's, or None where nobody knows."""
    if before is None or scored.outputs is None:
        return None
    pairs = zip(scored.indices, scored.outputs, strict=True)
    return sum(before[index] != own for index, own in pairs)

"""What was measured: runs of a case and its accuracy, with where they came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pytest_mlperf.core.clocks import State
from pytest_mlperf.core.control import Control
from pytest_mlperf.core.found import Found
from pytest_mlperf.core.meter import WallEnergy
from pytest_mlperf.core.metrics import BY_METER, OF_ENERGY
from pytest_mlperf.core.power import Power
from pytest_mlperf.core.ranges import Count, NotNegative, Number, Positive, Seconds
from pytest_mlperf.core.reason import Reason
from pytest_mlperf.core.roofline.light import Light


@dataclass(frozen=True, kw_only=True)
class Run:
    """One LoadGen performance run in a fresh process.

    Attributes:
        metrics: Values by metric name, SI units.
        within_se: Relative standard error inside the run by metric name, where known.
        samples: Samples completed.
        queries: Queries LoadGen counted (Offline: samples).
        duration_s: Length of the timed part.
        target_qps: Rate the run was offered or sized by.
        session: Id of the pytest session that made it.
        started: ISO 8601 UTC.
        commit: Commit of the tested project, or None outside git.
        folder: Folder with LoadGen's logs; in a result from pytest's root on, where it lies there.
        invalid: Why the run may not be judged; empty when it may.
        limit_missed: LoadGen's latency constraint was missed, and nothing else was wrong.
        power: Energy of the timed part; None where it was not sampled.
        power_unknown: Why nothing could be sampled, where it should have been.
        wall: Energy of the whole machine in the timed part, by a wall meter; None without one.
        client: How late the client was by itself, seconds: "issue_p99" until a request began,
            "loop_p99" until an answer was seen; empty where the engine is no client.
        notes: What the sampler saw and nobody is failed for, such as a power cap.
        state: What its GPUs were like in its window; empty where nobody sampled them.
        timeline: Picture of power, clock and temperature; None where none was drawn.
        control: What the fixed micro-benchmark found just before it; empty: not made.
        light: How near its figures came to what is physically possible, the case's own first;
            empty on CPUs whose figures nobody gave.
        search: The search that found its throughput; None: it was offered, or measured. The other
            figures are those of the highest rate that held.
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
    power: Power | None = None
    power_unknown: str | None = None
    wall: WallEnergy | None = None
    client: Mapping[str, Number] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    state: State = field(default_factory=dict)
    timeline: str | None = None
    control: Control = field(default_factory=dict)
    light: tuple[Light, ...] = ()
    search: Found | None = None

    def energy_of(self, metric: str) -> Power | WallEnergy | None:
        """Return the energy that a metric of efficiency rests on; None: not sampled."""
        return self.wall if metric in BY_METER else self.power

    def may_judge(self, metric: str) -> bool:
        """Whether it measured a metric, and an energy behind it well enough to be believed."""
        energy = self.energy_of(metric)
        believed = metric not in OF_ENERGY or (energy is not None and energy.gated)
        return metric in self.metrics and believed


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
    """

    scores: Mapping[str, Number]
    samples: Count
    full: bool
    folder: str
    source: str = "measured"
    total: Count = 0
    lower: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Scored:
    """The scores of an accuracy pass, sample by sample.

    Attributes:
        indices: Data set indices, ascending.
        per_sample: By metric, one score for each of `indices`; None where the metric does not apply
            to the sample.
    """

    indices: tuple[int, ...]
    per_sample: Mapping[str, Sequence[float | None]]


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

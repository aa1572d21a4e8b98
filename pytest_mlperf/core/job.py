"""What a run is asked to do: what to build, and how LoadGen runs it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pytest_mlperf.core import errors

if TYPE_CHECKING:  # a worker in another Python imports this module, and as little else as possible
    from pytest_mlperf.core.case import Case
    from pytest_mlperf.core.roofline.gpu import GpuPrice, GpuSpec
    from pytest_mlperf.core.roofline.work import AnyWork
    from pytest_mlperf.core.search import Condition

Scenario = Literal["Offline", "Server", "SingleStream", "MultiStream", "Concurrency", "OpenLoop"]
"""LoadGen's scenarios, and Concurrency and OpenLoop, which LoadGen has no door for; MLPerf's
Interactive is LoadGen's Server with other limits."""

STREAMS = ("SingleStream", "MultiStream")
"""Scenarios that submit one query after the other."""

MLC_ENDPOINTS = "MLCommons endpoints"
"""MLCommons' client for MLPerf Endpoints, where it measures in place of LoadGen."""

LOADED_QUERIES = 662
"""Fewest queries that LoadGen's early stopping can call VALID at the 99th percentile with one query
over it (459 with none)."""


@dataclass(frozen=True, kw_only=True)
class Factory:
    """Something to build in the worker: `target` is "package.module:name"."""

    target: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What a data set must be, None: anything; checked before the engine is loaded."""

    samples: int | None = None
    whose: str = ""
    digest: str | None = None


@dataclass(frozen=True, kw_only=True)
class Seeds:
    """LoadGen's three seeds; each round has its own.

    Attributes:
        model: Of MLPerf Endpoints alone: what a server is to sample answers by; None: not told.
    """

    qsl: int
    sample_index: int
    schedule: int
    model: int | None = None


@dataclass(frozen=True, kw_only=True)
class LoadGenSettings:
    """Everything that a LoadGen run is told; nothing comes from LoadGen's own defaults.

    Attributes:
        target_qps: Offered samples/s (Server), expected samples/s (Offline), expected queries/s
            (SingleStream, MultiStream); None lets the worker probe it.
        fixed_work_s: Quick profile only: offer this many seconds' worth of work at `target_qps`
            as a fixed number of queries, so that every run does the same work however fast it is;
            `min_duration_ms` and `min_query_count` are then lower bounds of LoadGen's own check.
        performance_samples: Samples kept in memory during the run.
        latency_limit_ns: Server: the latency that `latency_percentile` of queries must meet.
        latency_percentile: Server, SingleStream, MultiStream: the percentile, e.g. 0.99.
        equal_issue: Offline: issue every sample equally often (sample_concatenate_permutation).
        ttft_limit_ns, tpot_limit_ns: Server, language models: what 99 % of queries must meet, in
            place of `latency_limit_ns`.
        points: Concurrency: how many requests are kept under way; OpenLoop: requests/s that
            arrive, or how fast a trace is replayed. Ascending; each for `min_duration_ms`.
        ramp_ms: Concurrency: the first requests of a point are spread over this time; None: over
            as long as a lone request takes. OpenLoop: arrivals begin so long before the window;
            None: until twice as many requests were answered as are under way.
        arrivals: OpenLoop: when requests arrive, see `core.case.Arrivals`; "": not that scenario.
        burstiness: OpenLoop, gamma: its shape; 1 is Poisson, less is burstier.
        max_failed: Concurrency, OpenLoop: share of a point's requests that may fail; None: none.
        audit: What LoadGen is told besides by an audit.config, by its keys: a compliance test.
    """

    scenario: Scenario
    seeds: Seeds
    target_qps: float | None = None
    min_duration_ms: int
    min_query_count: int
    fixed_work_s: float | None = None
    performance_samples: int
    latency_limit_ns: int | None = None
    latency_percentile: float = 0.99
    samples_per_query: int = 8
    equal_issue: bool = False
    tokens: bool = False
    ttft_limit_ns: int | None = None
    tpot_limit_ns: int | None = None
    points: Sequence[float] = ()
    ramp_ms: int | None = None
    arrivals: str = ""
    burstiness: float | None = None
    max_failed: float | None = None
    audit: Mapping[str, int] = field(default_factory=dict)

    @property
    def planned_s(self) -> float:
        """Seconds that a run lasts at `target_qps`; of a curve each point."""
        least_s = self.min_query_count / self.target_qps if self.target_qps else 0.0
        return max(self.fixed_work_s or self.min_duration_ms / 1000, least_s)


@dataclass(frozen=True, kw_only=True)
class AuditRun:
    """A run for a compliance test: what LoadGen is told besides, and other seeds where it asks.

    Attributes:
        data: What it asks in place of the data that are timed; None: those.
    """

    test: str
    settings: Mapping[str, int]
    seeds: Seeds | None = None
    data: ScoredData | None = None


# --- a case, resolved ------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Elsewhere:
    """Another Python, ready to be started: a script and its arguments are appended to `command`."""

    command: tuple[str, ...]
    title: str
    key: str


@dataclass(frozen=True, kw_only=True)
class EarlierBuild:
    """The build that a baseline was recorded with, ready to be measured beside this one.

    `wheels` are packages to exchange, files by their full path; `wheel` is what the suite writes.
    """

    elsewhere: Elsewhere | None
    suite: Path
    git: str | None
    wheels: tuple[str, ...]
    wheel: str
    key: str


@dataclass(frozen=True, kw_only=True)
class CalibrationData:
    """Samples that a builder looks at, spread over a data set; `registered`: not the user's own."""

    dataset: Factory
    count: int | None
    title: str
    registered: bool


@dataclass(frozen=True, kw_only=True)
class CheckpointBuild:
    """What makes a quantised checkpoint, ready to be carried out.

    Variables are expanded in `options`, and not in what is `written`: they may be secrets. A
    `registered` builder is an installed extension, not code of the user's own.
    """

    use: str
    target: str
    recipe: str
    options: Mapping[str, Any]
    written: Mapping[str, Any]
    source: Path
    calibration: CalibrationData | None
    python: Elsewhere | None
    suite: Path
    registered: bool

    @property
    def title(self) -> str:
        """What messages call it: "torchao int8"."""
        return f"{self.use} {self.recipe}"


@dataclass(frozen=True, kw_only=True)
class Search:
    """A search of the highest rate that holds latency limits, each run in a fresh process.

    Precision is the width of the final bracket relative to the rate; without a baseline it starts
    at so many samples/s, None: probed. With bounds it searches a number of requests in flight.
    """

    conditions: tuple[Condition, ...]
    precision: float
    max_runs: int
    start: float | None
    bounds: tuple[int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class ScoredData:
    """A data set that is only scored: what the worker builds, what it must be, what is recorded."""

    dataset: Factory
    expected: Expected
    facts: Mapping[str, str]


Part = Literal["python", "model", "dataset", "build", "engine", "scorer"]


@dataclass(frozen=True, kw_only=True)
class CaseProblem:
    """Something that keeps a case from running, or only its accuracy from being measured."""

    part: Part
    error: errors.MlperfError
    scoring: bool = False


@dataclass(frozen=True, kw_only=True)
class ScoringPlan:
    """How the accuracy of a case is measured.

    Attributes:
        data: The scored data set; None if the timed one is scored.
        scorer: The scorer; None if accuracy is not requested, or the case has performance only.
        written_scorer: The scorer as the suite writes it, whether accuracy is requested or not.
        answer_forms: Form of the engine's answers and that of LoadGen's log, see
            `core.answer_forms`; empty: both are alike.
        problems: Reasons why accuracy cannot be measured.
    """

    data: ScoredData | None = None
    scorer: Factory | None = None
    written_scorer: Factory | None = None
    answer_forms: tuple[str, ...] = ()
    problems: tuple[CaseProblem, ...] = ()


def require(problems: Iterable[CaseProblem]) -> None:
    """Raise all problems in one error; what a scorer lacks beside files is let pass."""
    by_kind: dict[type[errors.MlperfError], list[str]] = {}
    for problem in problems:
        if isinstance(problem.error, errors.EnvironmentFault) and problem.part != "scorer":
            raise errors.RunError(problem.part, str(problem.error))
        by_kind.setdefault(type(problem.error), []).append(str(problem.error))
    if errors.SuiteError in by_kind:
        raise errors.SuiteError("\n".join(by_kind[errors.SuiteError]))
    if errors.UnavailableError in by_kind:
        raise errors.UnavailableError("; also ".join(by_kind[errors.UnavailableError]))


@dataclass(frozen=True, kw_only=True)
class BenchmarkTest:
    """A test with pytest-benchmark's fixture, of which each run is a pytest of its own.

    Attributes:
        test: Pytest's node id.
        file: The test file, which that pytest collects.
        folder: Where pytest was called; relative paths among the options start there.
        options: Pytest's options by their names, each packed by whoever unpacks it.
        limits: What is judged of it, one of `core.metrics.OF_BENCHMARKS`, as a share.
        seconds: Planned length of its timed part.
    """

    test: str
    file: str
    folder: str
    options: Mapping[str, str]
    limits: Mapping[str, float]
    seconds: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """A case with all that its runs need, worked out once.

    Attributes:
        engine, dataset: What the worker builds: variables expanded, paths absolute.
        model: Absolute path of the model, or its name where no such file exists and none is meant.
        scoring: How its accuracy is measured.
        elsewhere: The other Python in which its engine runs; None: in this one.
        seconds_per_run: Planned length of the timed part of one run, seconds.
        find: Its search of a rate, or None: the rate is given.
        limits: The gated performance metrics with their limits, as shares.
        latency_limits: What LoadGen limits, seconds by metric.
        gpu: The suite's own figures of its accelerator, or None.
        work: What a sample costs, as the suite says; None: as counted for MLPerf's workload.
        price: What a GPU of its accelerator costs, or None.
        replicas: Processes that each load the engine; 1: the worker itself does.
        suite: Its suite file; None: it has none.
        benchmark: The test that is run in place of a worker; None: it is a case of a suite.
        variables: Environment variables of its worker beside the session's; None removes one.
    """

    case: Case
    engine: Factory
    dataset: Factory
    engine_use: str
    model: str | None
    elsewhere: Elsewhere | None
    build: CheckpointBuild | None
    expected: Expected
    settings: LoadGenSettings
    seconds_per_run: float
    find: Search | None
    limits: Mapping[str, float]
    latency_limits: Mapping[str, float]
    techniques: tuple[str, ...]
    gpu: GpuSpec | None
    work: AnyWork | None
    price: GpuPrice | None
    replicas: int
    facts: Mapping[str, str]
    scoring: ScoringPlan = ScoringPlan()
    suite: Path | None = None
    benchmark: BenchmarkTest | None = None
    variables: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def accelerator(self) -> str:
        """Class and count of what it runs on."""
        return self.case.accelerator

    @property
    def scored(self) -> Job:
        """This case on the data that are scored."""
        return self if self.scoring.data is None else self.on(self.scoring.data)

    def on(self, data: ScoredData) -> Job:
        """Return this case on other data, which are both timed and scored."""
        return replace(
            self,
            dataset=data.dataset,
            expected=data.expected,
            facts={**self.facts, **data.facts},
            scoring=replace(self.scoring, data=None),
        )

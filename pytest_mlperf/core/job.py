"""Define the job of a run: what to build, and LoadGen's settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pytest_mlperf.core import errors
from pytest_mlperf.core.case import Case, Scenario

if TYPE_CHECKING:  # a worker in another Python imports this module, which must import little
    from pytest_mlperf.core.roofline.gpu import GpuPrice, GpuSpec
    from pytest_mlperf.core.roofline.work import AnyWork
    from pytest_mlperf.core.search import Condition

MLC_ENDPOINTS = "MLCommons endpoints"
"""Name of MLCommons' client for MLPerf Endpoints, which measures in place of LoadGen."""

LOADED_QUERIES = 662
"""Fewest queries of a VALID 99th percentile with one query over it (459 with none)."""


@dataclass(frozen=True, kw_only=True)
class Factory:
    """Name a factory to call in the worker process; `target` is "package.module:name"."""

    target: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Expected:
    """Hold the required size and digest of a data set (None: any); `whose`: who requires them."""

    samples: int | None = None
    whose: str = ""
    digest: str | None = None


@dataclass(frozen=True, kw_only=True)
class Seeds:
    """Hold LoadGen's three seeds, which each MLPerf round sets.

    Attributes:
        model: Seed for token sampling in MLPerf Endpoints' requests; None to send no seed.
    """

    qsl: int
    sample_index: int
    schedule: int
    model: int | None = None


@dataclass(frozen=True, kw_only=True)
class LoadGenSettings:
    """Hold all settings of a LoadGen run, without LoadGen's own defaults.

    Attributes:
        target_qps: Offered samples/s (Server), expected samples/s (Offline), expected queries/s
            (SingleStream, MultiStream); None if the worker measures the rate first.
        fixed_work_s: Quick profile only: offer this many seconds' worth of work at `target_qps` as
            a fixed number of queries, so that every run does the same work at any speed;
            `min_duration_ms` and `min_query_count` are then only LoadGen's lower bounds.
        performance_samples: Samples kept in memory during the run.
        latency_limit_ns: Server: limit for the latency at `latency_percentile`.
        latency_percentile: Server, SingleStream, MultiStream: the percentile, e.g. 0.99.
        equal_issue: Offline: issue every sample equally often (sample_concatenate_permutation).
        ttft_limit_ns, tpot_limit_ns: Server, language models: limits for 99 % of the queries,
            instead of `latency_limit_ns`.
        points: Concurrency: requests in flight; OpenLoop: arriving requests/s, or the speed of a
            replayed trace. Points are ascending; each is measured for `min_duration_ms`.
        ramp_ms: Concurrency: time over which the first requests of a point are spread; None for the
            duration of a single request. OpenLoop: warm-up before the window; None to warm up until
            twice as many requests were answered as are in flight.
        arrivals: OpenLoop: arrival process, see `core.case.Arrivals`; "" for other scenarios.
        burstiness: OpenLoop, gamma arrivals: shape; 1 is Poisson, less is burstier.
        max_failed: Concurrency, OpenLoop: share of a point's requests that may fail; None if none
            may.
        audit: Further settings of a compliance test, by the keys of its audit.config.
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
    def per_query(self) -> int:
        """Number of samples per query."""
        return self.samples_per_query if self.scenario is Scenario.MULTI_STREAM else 1

    @property
    def planned_s(self) -> float:
        """Planned length of a run at `target_qps`, or of each point of a curve [s]."""
        least_s = self.min_query_count / self.target_qps if self.target_qps else 0.0
        return max(self.fixed_work_s or self.min_duration_ms / 1000, least_s)


@dataclass(frozen=True, kw_only=True)
class AuditRun:
    """Hold the settings of a compliance test; it uses the timed run's seeds or data if None."""

    test: str
    settings: Mapping[str, int]
    seeds: Seeds | None = None
    data: ScoredData | None = None


# --- a case, resolved ------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PythonEnvironment:
    """Describe another Python for an engine: `command` to run scripts, `title`, unique `key`."""

    command: tuple[str, ...]
    title: str
    key: str


@dataclass(frozen=True, kw_only=True)
class EarlierBuild:
    """Describe another build, whose runs are interleaved with those of the current build.

    Attributes:
        elsewhere: Other Python environment of the engine; None for this one.
        suite: Path of the suite file.
        git: Git ref, or `MERGE_BASE`; None for the code in the working folder.
        wheels: pip arguments with full paths; these packages precede those of this Python.
        wheel: These arguments as the suite writes them.
        requirements: Packages, installed with their dependencies into an environment of their own.
        key: Name of the suite's setting, for messages.
    """

    elsewhere: PythonEnvironment | None = None
    suite: Path
    git: str | None = None
    wheels: tuple[str, ...] = ()
    wheel: str = ""
    requirements: tuple[str, ...] = ()
    key: str


MERGE_BASE = "merge-base"
"""Stands for the commit at which a branch left the branch that it will be merged into."""


@dataclass(frozen=True, kw_only=True)
class CalibrationData:
    """Describe calibration samples; `registered` if an installed extension has the data set."""

    dataset: Factory
    count: int | None
    title: str
    registered: bool


@dataclass(frozen=True, kw_only=True)
class CheckpointBuild:
    """Describe a quantised checkpoint to build; `written` is `options` with `${VAR}` unexpanded."""

    use: str
    target: str
    recipe: str
    options: Mapping[str, Any]
    written: Mapping[str, Any]
    source: Path
    calibration: CalibrationData | None
    python: PythonEnvironment | None
    suite: Path
    registered: bool

    @property
    def title(self) -> str:
        """Builder and recipe, for messages: "torchao int8"."""
        return f"{self.use} {self.recipe}"


@dataclass(frozen=True, kw_only=True)
class Search:
    """Describe a search for the highest rate [samples/s] that meets latency limits.

    The first rate is `start`; None measures it. With `bounds`, search for requests in flight.
    """

    conditions: tuple[Condition, ...]
    precision: float
    max_runs: int
    start: float | None
    bounds: tuple[int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class ScoredData:
    """Describe a data set for accuracy only: its factory, requirements and fingerprint facts."""

    dataset: Factory
    expected: Expected
    facts: Mapping[str, str]


Part = Literal["python", "model", "dataset", "build", "engine", "scorer"]


@dataclass(frozen=True, kw_only=True)
class CaseProblem:
    """Hold a problem that prevents a case or, if `scoring`, only its accuracy measurement."""

    part: Part
    error: errors.MlperfError
    scoring: bool = False


@dataclass(frozen=True, kw_only=True)
class ScoringPlan:
    """Describe how the accuracy of a case is measured.

    Attributes:
        data: The scored data set; None if the timed data set is scored.
        scorer: The scorer; None if accuracy is not requested or the case has only performance.
        written_scorer: The scorer as the suite writes it, also if accuracy is not requested.
        answer_forms: (Form of the engine's answers, form in LoadGen's log); () if equal.
    """

    data: ScoredData | None = None
    scorer: Factory | None = None
    written_scorer: Factory | None = None
    answer_forms: tuple[str, ...] = ()
    problems: tuple[CaseProblem, ...] = ()


def raise_problems(problems: Iterable[CaseProblem]) -> None:
    """Raise one error for all problems, if any; ignore missing libraries of a scorer."""
    by_kind: dict[type[errors.MlperfError], list[str]] = {}
    for problem in problems:
        if isinstance(problem.error, errors.EnvironmentFault) and problem.part != "scorer":
            raise errors.RunError(problem.part, str(problem.error))
        by_kind.setdefault(type(problem.error), []).append(str(problem.error))
    if errors.SuiteError in by_kind:
        raise errors.SuiteError("\n".join(by_kind[errors.SuiteError]))
    if errors.UnavailableError in by_kind:
        raise errors.UnavailableError("; also ".join(by_kind[errors.UnavailableError]))


@dataclass(frozen=True, kw_only=True, eq=False)
class MeasuredCase:
    """Hold the settings to measure and judge the runs of a case.

    Attributes:
        seconds_per_run: Planned length of the timed part of one run [s].
        limits: The gated performance metrics with their limits, as shares.
        find: Search for the highest rate; None if the suite sets the rate.
        latency_limits: LoadGen's latency limits by metric [s].
        elsewhere: The other Python environment of the engine; None for this Python.
        replicas: Number of processes that load the engine; 1 for the worker itself.
    """

    case: Case
    engine_use: str
    seconds_per_run: float
    limits: Mapping[str, float]
    facts: Mapping[str, str]
    find: Search | None = None
    latency_limits: Mapping[str, float] = field(default_factory=dict)
    elsewhere: PythonEnvironment | None = None
    build: CheckpointBuild | None = None
    gpu: GpuSpec | None = None
    price: GpuPrice | None = None
    replicas: int = 1
    scoring: ScoringPlan = ScoringPlan()
    suite: Path | None = None

    @property
    def accelerator(self) -> str:
        """The case's accelerator, e.g. "8xH100"."""
        return self.case.accelerator

    @property
    def url(self) -> object:
        """URL of the measured server; None without a server."""
        return None

    @property
    def scored(self) -> Self:
        """The job, with the accuracy pass's data set for timed runs as well if it is another."""
        return self


@dataclass(frozen=True, kw_only=True, eq=False)
class BenchmarkTest(MeasuredCase):
    """Describe a pytest-benchmark test; each run is a separate pytest process in `folder`."""

    test: str
    file: str
    folder: str
    options: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, eq=False)
class Job(MeasuredCase):
    """Hold a case of a suite with everything that its runs need.

    Attributes:
        engine, dataset: Factories, with environment variables expanded and absolute paths.
        model: Absolute path of the model, or its name if it is not a file.
        work: Work (FLOP, bytes) per sample by the suite; None to use that of MLPerf's workload.
        variables: Environment variables to set in the worker; a value of None removes a variable.
    """

    engine: Factory
    dataset: Factory
    model: str | None
    expected: Expected
    settings: LoadGenSettings
    techniques: tuple[str, ...]
    work: AnyWork | None
    variables: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def url(self) -> object:
        """URL of the measured server; None without a server."""
        return self.engine.options.get("url")

    @property
    def scored(self) -> Self:
        """The job, with the accuracy pass's data set for timed runs as well if it is another."""
        return self if self.scoring.data is None else self.on(self.scoring.data)

    def on(self, data: ScoredData) -> Self:
        """Return this case with `data` as its data set, for timed runs and for accuracy."""
        return replace(
            self,
            dataset=data.dataset,
            expected=data.expected,
            facts={**self.facts, **data.facts},
            scoring=replace(self.scoring, data=None),
        )

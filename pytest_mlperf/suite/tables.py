"""Define the tables of a suite file as immutable values."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from functools import cached_property
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    StrictBool,
    StrictInt,
    StrictStr,
    WithJsonSchema,
    model_validator,
)

from pytest_mlperf.core import metrics
from pytest_mlperf.core.case import SUITE_SCENARIOS, AllowedWords, Arrivals, Scenario
from pytest_mlperf.core.untrusted_text import quoted
from pytest_mlperf.hardware.machine import split
from pytest_mlperf.rounds.endpoints import points_up_to, seed_sets
from pytest_mlperf.suite import values
from pytest_mlperf.suite.find import FindEntry

Options = dict[str, Any]

PythonPath = Annotated[StrictStr, Field(min_length=1)]


class Table(BaseModel):
    """A TOML table: unknown keys are errors, values are immutable.

    The text below a field is its description in the JSON Schema.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class ExtensionTable(Table):
    """An extension by name with its options; keys other than `use` are options."""

    model_config = ConfigDict(extra="allow", frozen=True)

    use: StrictStr
    """Registered name, or package.module:name of your own code."""

    @property
    def options(self) -> Options:
        """All keys except `use`."""
        return dict(self.model_extra or {})


class CalibrationSource(ExtensionTable):
    """Samples for calibration; keys other than `use` and `path` are options of the data set."""

    use: StrictStr
    """Registered data set, or package.module:name."""
    path: StrictStr | None = None
    """File or folder; relative to the suite file; ${VAR} is expanded."""


Count = Annotated[StrictInt, Field(gt=0)]


def _calibration(value: object) -> object:
    """Return a calibration unchanged; raise ValueError for a wrong form, before pydantic does."""
    if isinstance(value, CalibrationSource) or value is None:
        return value
    if isinstance(value, dict):
        if not isinstance(value.get("use"), str):
            raise ValueError('a calibration needs use = "...", the name of a data set')
        if not isinstance(value.get("path", ""), str):
            raise ValueError("path must be a string")
        return value
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(
            f"{quoted(value)} is not a calibration; write a number of samples of the workload's "
            'own data set, or a data set: { use = "openorca", path = "...", count = 64 }'
        )
    return value


class BuildStep(ExtensionTable):
    """A build of a quantised checkpoint, made once; other keys are options of the builder."""

    use: StrictStr
    """Registered builder, or package.module:name."""
    recipe: values.Name
    """Recipe of the builder; part of test ids."""
    calibration: Annotated[CalibrationSource | Count | None, BeforeValidator(_calibration)] = None
    """Calibration data: a number of samples of the workload's data set, or another data set."""
    python: PythonPath | None = None
    """Python of the environment that has the builder's libraries; relative to the suite file; ~ and
    ${VAR} are expanded; default: this one."""

    @property
    def command(self) -> None:
        """Always None: a build cannot run in a container, which could not write its checkpoint."""
        return

    @property
    def builder(self) -> str:
        """Registered name of the builder, or name of its class."""
        return self.use.rpartition(":")[2]

    def label(self, name: str | None, engine: str, precision: str) -> str:
        """Return an engine entry's name in test ids, with the recipe unless it is `precision`."""
        title = name or f"{engine}-{self.builder}"
        return title if self.recipe == precision else f"{title}-{self.recipe}"


_SHA256 = "^[0-9a-f]{64}$"


def _digest(value: str) -> str:
    if not re.fullmatch(_SHA256, value):
        raise ValueError(
            f"{quoted(value)} is not a SHA-256: write 64 hexadecimal digits (0-9, a-f)"
        )
    return value


Digest = Annotated[
    StrictStr, AfterValidator(_digest), WithJsonSchema({"type": "string", "pattern": _SHA256})
]


class DatasetSource(ExtensionTable):
    """A data set; keys other than `use`, `path` and `digest` are options of its adapter."""

    path: StrictStr | None = None
    """File or folder; relative to the suite file; ${VAR} is expanded."""
    digest: Digest | None = None
    """SHA-256 of its content, as shown in results; other content is an error."""

    @property
    def title(self) -> str:
        """Name in messages, with variables not expanded: "graded data/acc.parquet"."""
        return self.use if self.path is None else f"{self.use} {self.path}"

    @property
    def is_part(self) -> bool:
        """Whether only some samples of the data set are used."""
        return bool({"count", "samples"} & set(self.options))


class Workload(Table):
    """Model, data and scoring of a suite."""

    name: values.Name
    """An MLPerf workload of the round, or your own name."""
    twin_of: values.Name | None = None
    """The MLPerf workload whose rules (latency limits, scorer) apply."""
    model: StrictStr | None = None
    """Path or name; relative to the suite file; ${VAR} is expanded."""
    dataset: DatasetSource = Field(default_factory=lambda: DatasetSource(use="synthetic"))
    accuracy_dataset: DatasetSource | None = None
    """Data of the accuracy pass, if they differ from the timed data."""
    compliance_dataset: DatasetSource | None = None
    """Data of compliance test TEST07; default: the timed data."""
    tokens: bool | None = None
    """Whether it is a language model, whose tokens are counted and timed; default: round."""
    scorer: ExtensionTable | None = None
    """Scorer of the accuracy pass; MLPerf workloads have their own."""
    reference: dict[StrictStr, values.Rate] | None = None
    """This suite's own reference scores by metric; never MLPerf's."""
    timed_tokens: values.Rate | None = None
    """Mean tokens of this suite's own reference answers to the timed data, for compliance test
    TEST09; default: tokens_per_sample of its reference."""
    target: values.Share = 0.99
    """Share of the reference score that is the gate, e.g. "99%"."""
    work: dict[StrictStr, Any] | None = None
    """Operations and sizes of your own model, for its physical limit."""


CommandLine = Annotated[list[StrictStr], Field(min_length=1)]


class BaselineEngine(Table):
    """How to run the baseline's build of an engine, to measure it next to the current build."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1, "maxProperties": 1})

    python: PythonPath | None = None
    """Python of another virtual environment; relative to the suite file; ~ and ${VAR} are expanded.
    """
    command: CommandLine | None = None
    """Command that starts a Python elsewhere, e.g. in a container; the script and its arguments are
    appended; it must connect stdin and stdout; ${VAR} is expanded."""
    git: Annotated[StrictStr, AfterValidator(values.git_ref)] | None = None
    """Tag, branch or commit of the tested project, checked out separately."""
    wheel: Annotated[StrictStr, AfterValidator(values.pinned)] | None = None
    """Another version of a package, name==version or the path of a .whl file, installed separately
    by pip; several are separated by spaces; ${VAR} is expanded."""

    @model_validator(mode="after")
    def _require_one_key(self) -> Self:
        if len(self.model_fields_set) != 1:
            raise ValueError("write exactly one of python, command, git and wheel")
        return self


class OnAccelerator(Table):
    """Settings of an engine entry that apply to one of its accelerators."""

    replicas: values.Replicas | None = None
    """Processes on this accelerator; default: those of the entry."""
    power_limit_w: values.PowerLimits | None = None
    """Power limits on this accelerator; default: those of the entry."""
    options: Options = Field(default_factory=dict)
    """Different or additional options on this accelerator."""


def _command(value: str) -> str:
    if not shlex.split(value):  # raises ValueError for an open quote
        raise ValueError('an empty command; write for example "ssh gpu-box python3 -"')
    return value


class ServerEntry(Table):
    """Sources that identify the hardware of the server at the `url` of an engine entry."""

    probe: Annotated[StrictStr, AfterValidator(_command)] | None = None
    """Command that starts a Python beside the server, "ssh gpu-box python3 -", or runs
    pytest-mlperf machine --json there; ends within 10 s; ${VAR} is expanded."""
    exporter: StrictStr | None = None
    """Metrics page of a DCGM or AMD exporter: "http://gpu-box:9400/metrics"."""
    gpus: list[StrictStr] = Field(default_factory=list)
    """UUIDs or host names of the exporter's GPUs that serve; default: all."""
    kubernetes: StrictStr | None = Field(
        default=None, pattern=r"^[a-z0-9][a-z0-9.-]*/[A-Za-z0-9][A-Za-z0-9_./=,!() -]*$"
    )
    """Namespace and selector of the server's pods, "serving/app=vllm"; kubectl reads the labels of
    their nodes."""
    accelerator: values.Accelerator | None = None
    """What the server runs on, "8xH200", if `accelerators` is not set."""


class EngineEntry(Table):
    """An engine configuration; each of its accelerators gets tests."""

    model_config = ConfigDict(json_schema_extra={"not": {"required": ["python", "command"]}})

    use: StrictStr
    """Registered engine, or package.module:name."""
    name: values.Name | None = None
    """Name that distinguishes entries; default: use."""
    precision: values.Name = "fp32"
    accelerators: list[values.Accelerator] = Field(default=["cpu"], min_length=1)
    model: StrictStr | None = None
    """Model of this entry, e.g. a quantised one; default: the workload's."""
    techniques: list[values.Technique] = Field(default_factory=list)
    """Techniques of the open division that this entry uses; shown in every result."""
    python: PythonPath | None = None
    """Python of another virtual environment, in which engine and data set run; relative to the
    suite file; ~ and ${VAR} are expanded."""
    command: CommandLine | None = None
    """Command that starts a Python elsewhere, e.g. in a container; the script and its arguments are
    appended; it must connect stdin and stdout; ${VAR} is expanded."""
    build: BuildStep | None = None
    """Builds this entry's quantised model, once."""
    baseline_engine: BaselineEngine | None = None
    """Build of the baseline (python, command, git or wheel): a drop is confirmed by runs of both
    builds in turn (--mlperf-confirm)."""
    replicas: values.Replicas = 1
    """Number of processes that load the engine, with equal shares of the accelerator's GPUs and one
    common LoadGen; "all": one per GPU."""
    power_limit_w: values.PowerLimits | None = None
    """Power limit of each GPU during a case, in watts; needs permission; each entry of a list makes
    a case. Default: unchanged."""
    options: Options = Field(default_factory=dict)
    server: ServerEntry | None = None
    """Hardware of the server at the option url."""
    on: dict[values.Accelerator, OnAccelerator] = Field(
        default_factory=dict, json_schema_extra={"additionalProperties": False}
    )
    """Settings for one accelerator: [engines.on."8xH100"]."""
    _limit_w: int | None = PrivateAttr(default=None)

    @model_validator(mode="before")
    @classmethod
    def _accelerators_of_a_server(cls, raw: object) -> object:
        if not isinstance(raw, dict) or "accelerators" in raw:
            return raw
        server = raw.get("server")
        declared = server.get("accelerator") if isinstance(server, dict) else None
        return raw if declared is None else {**raw, "accelerators": [declared]}

    @model_validator(mode="after")
    def _require_one_python(self) -> Self:
        if self.python is not None and self.command is not None:
            raise ValueError("write python or command, not both")
        return self

    @property
    def label(self) -> str:
        """Name in test ids: `name`, else the last part of `use` (registered name or class).

        A build's recipe and this entry's power limit are appended: "vllm-500W".
        """
        use = self.use.rpartition(":")[2]
        name = self.build.label(self.name, use, self.precision) if self.build else self.name or use
        return name if self._limit_w is None else f"{name}-{self._limit_w}W"

    @property
    def limit_w(self) -> int | None:
        """Power limit [W] if this entry is a copy made by `at_limits`, else None."""
        return self._limit_w

    def limits_on(self, accelerator: str) -> tuple[int, ...]:
        """Return the power limits [W] of the entry on one accelerator; () if there are none."""
        override = self.on[accelerator].power_limit_w if accelerator in self.on else None
        return override or self.power_limit_w or ()

    @property
    def at_limits(self) -> tuple[EngineEntry, ...]:
        """Copies of the entry, one per power limit; the entry itself if it has no power limit."""
        return self._limited or (self,)

    @cached_property
    def _limited(self) -> tuple[EngineEntry, ...]:
        """Copies of the entry, one per power limit; () if it has no power limit."""
        having: dict[int | None, list[str]] = {}
        for accelerator in self.accelerators:
            for watts in self.limits_on(accelerator) or (None,):
                having.setdefault(watts, []).append(accelerator)
        if not having.keys() - {None}:
            return ()
        return tuple(self._at(watts, names) for watts, names in having.items())

    def _at(self, watts: int | None, accelerators: list[str]) -> EngineEntry:
        entry = self.model_copy(update={"accelerators": accelerators})
        entry._limit_w = watts
        return entry

    def replicas_on(self, accelerator: str) -> int:
        """Return the number of replicas, each a process with the engine, on `accelerator`."""
        stated = self.on[accelerator].replicas if accelerator in self.on else None
        replicas = self.replicas if stated is None else stated
        count, name = split(accelerator)
        if replicas == "all":
            return 1 if name == "cpu" else count
        return replicas

    def options_on(self, accelerator: str) -> Options:
        """Return the engine's options on one of its accelerators; those of `on` take precedence."""
        overrides = self.on[accelerator].options if accelerator in self.on else {}
        return {**self.options, **overrides}

    def key_of(self, accelerator: str, wrong_options: Iterable[str]) -> tuple[str, ...]:
        """Return the key path of the first of `wrong_options` that is set, else of all options."""
        overrides = self.on[accelerator].options if accelerator in self.on else {}
        for name in wrong_options:
            if name == "precision":
                return (name,)
            if name in overrides:
                return ("on", accelerator, "options", name)
            if name in self.options:
                return ("options", name)
        return ("on", accelerator, "options") if overrides and not self.options else ("options",)

    @property
    def full_label(self) -> str:
        """Name with the precision: "torch-fp32"."""
        return f"{self.label}-{self.precision}"


class AccuracyLimit(Table):
    """Tolerated accuracy drop: the margin of the paired accuracy rule."""

    margin: StrictStr | None = Field(
        default=None, pattern=r"^\s*([0-9]+(\.[0-9]+)?|\.[0-9]+)\s*(%|points?)\s*$"
    )
    """Relative to the baseline score: "0.5%"; absolute: "0.5 points"."""
    reference: values.Name | None = None
    """Engine entry whose scores are the reference of all, e.g. torch-fp32."""


OF_BEST = "of_best_published"
"""Key in `[limits]` of the smallest share of the best official result."""


def limits_schema(*, accuracy: bool) -> dict[str, Any]:
    """Return the JSON Schema of a `limits` table, generated from the metric table."""
    table: dict[str, Any] = {
        name: _limit_schema(
            metric.limit_key,
            f"{metric.title}, {metric.direction} is better; default {metric.limit:.0%} where it is "
            "gated.",
        )
        for name, metric in metrics.METRICS.items()
        if name not in metrics.UNGATED.union(metrics.OF_BENCHMARKS)
    }
    if accuracy:
        table["accuracy"] = AccuracyLimit.model_json_schema()
        table[OF_BEST] = {
            **values.SHARE_SCHEMA,
            "description": "Smallest share of the best official result of MLPerf on this GPU.",
        }
    at_points: dict[str, Any] = {}
    for key in ("max_drop", "max_rise"):
        points = metrics.AT_POINTS | metrics.SERVER_METRICS
        names = "|".join(sorted(n for n in points if metrics.METRICS[n].limit_key == key))
        text = "A metric at one point of a curve: tokens_per_second@64."
        at_points[f"^({names})@({metrics.POINT})$"] = _limit_schema(key, text)
    return {
        "type": "object",
        "properties": table,
        "patternProperties": at_points,
        "additionalProperties": False,
    }


def _limit_schema(key: str, description: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {key: values.SHARE_SCHEMA},
        "required": [key],
        "additionalProperties": False,
        "description": description,
    }


SuiteScenario = Annotated[Scenario, AllowedWords(SUITE_SCENARIOS)]


class ScenarioEntry(Table):
    """A scenario; `min_duration` and `min_query_count` apply only to the quick profile."""

    name: SuiteScenario
    target_qps: values.Rates | None = None
    """Offered samples/s (Offline: expected); one number or one per accelerator."""
    find: FindEntry | None = None
    """Instead of target_qps or points: search the highest load within limits."""
    min_duration: values.Seconds | None = None
    """Length of a quick run, e.g. "6s" (default 60 s)."""
    min_query_count: Annotated[StrictInt, Field(gt=0)] | None = None
    """Minimum queries of a quick run."""
    latency_limit: values.Seconds | None = None
    """Server: latency that 99 % of queries must meet; default: round."""
    ttft_limit: values.Seconds | None = None
    """Server, language models: time to the first token that 99 % must meet."""
    tpot_limit: values.Seconds | None = None
    """Server, language models: time per further token that 99 % must meet."""

    dataset: DatasetSource | None = None
    """Data of this scenario, timed and scored; default: the workload's."""
    accuracy_dataset: DatasetSource | None = None
    """Data of this scenario's accuracy pass; default: the workload's."""

    points: values.Points | None = None
    """Concurrency: requests in flight; OpenLoop: requests per second, or speed of a replayed trace
    relative to the recording. Ascending; each for min_duration."""
    max_concurrency: values.Maximum | None = None
    """Concurrency, instead of points: the declared maximum for MLPerf Endpoints, which defines
    seven points that meet its region rules."""
    seed_set: StrictStr | None = Field(
        default=None, json_schema_extra={"enum": [*seed_sets(), None]}
    )
    """Concurrency: published seeds of MLPerf Endpoints, instead of the round's."""
    ramp: values.Seconds | None = None
    """Concurrency: time over which the first requests of a point are spread; default: duration of a
    single request. OpenLoop: time before requests count; default: until twice the requests in
    flight were answered; 0 for a trace."""
    arrivals: Arrivals | None = None
    """OpenLoop: arrival process; default poisson. trace: as recorded in the data set."""
    burstiness: values.Rate | None = None
    """OpenLoop with arrivals gamma: its shape; 1 is Poisson, lower is burstier."""
    max_failed: values.Share | None = None
    """Concurrency, OpenLoop: share of each point's requests that may fail, at most 10 %; default:
    the first failure ends the run as ERROR."""

    limits: Annotated[dict[str, Any], WithJsonSchema(limits_schema(accuracy=False))] = Field(
        default_factory=dict
    )
    """Limits for this scenario; it gates every metric named here."""

    @model_validator(mode="before")
    @classmethod
    def _points_of_a_maximum(cls, raw: object) -> object:
        """Derive `points` from `max_concurrency` if only that is set and valid."""
        if not isinstance(raw, dict) or "points" in raw:
            return raw
        highest = raw.get("max_concurrency")
        return {**raw, "points": points_up_to(highest)} if values.is_maximum(highest) else raw

    @property
    def run_points(self) -> tuple[float, ...]:
        """Points of a curve; in a concurrency search its lower bound, which runs replace."""
        return self.points or ((self.find and self.find.bounds) or ())[:1]

    def rate_on(self, accelerator: str) -> float | None:
        """Return the suite's rate for an accelerator [samples/s]; None if the suite sets none."""
        rates = self.target_qps
        return rates.get(accelerator) if isinstance(rates, dict) else rates


class Price(Table):
    """Price of an accelerator, for tokens per dollar."""

    usd_per_gpu_hour: values.Rate
    as_of: values.Day
    source: StrictStr = ""
    """Source of the price."""


class ExpectedFailure(Table):
    """A known failure; an entry matches a failure that equals it in all fields that are set."""

    scenario: SuiteScenario | None = None
    engine: values.Name | None = None
    precision: values.Name | None = None
    accelerator: values.Accelerator | None = None
    metric: StrictStr | None = None
    reason: Annotated[StrictStr, Field(min_length=1)]
    until: values.Day
    """The last day on which the failure is expected."""
    strict: StrictBool = True
    """Whether the test fails if the failure does not occur; false for an intermittent one."""


class PairEntry(Table):
    """A claim about two engine entries, tested by interleaved runs."""

    a: StrictStr
    """An engine entry: "torch", "torch-int8", or "torch-int8-H200" for one of its accelerators."""
    b: StrictStr
    """The engine entry to compare `a` with."""
    expect: values.Times
    """Minimum ratio of a to b: ">= 1.2x"."""
    name: values.Name | None = None
    """Its name in test ids; default: a-vs-b with what differs."""
    scenario: SuiteScenario | None = None
    """Default: the suite's first scenario."""
    metric: StrictStr | None = None
    """Default: the first gated metric of the scenario."""


# --- other Pythons -------------------------------------------------------------------------

MAX_COMMAND_WORDS = 4
"""Longer commands are shown by their first two words and their last one."""


PythonTable = EngineEntry | BaselineEngine | BuildStep
"""A table whose extension may run in another Python, named by path or command."""


def title_of(table: PythonTable) -> str:
    """Return "python PATH" or "command WORDS" for messages; "" if the table sets neither."""
    if table.python is not None:
        return f"python {table.python}"
    words = table.command or []
    shortened = [*words[:2], "…", words[-1]] if len(words) > MAX_COMMAND_WORDS else words
    return f"command {' '.join(shortened)}" if words else ""

"""What a suite file may say. The published JSON Schema is generated from these types."""

from __future__ import annotations

import datetime as dt
import re
from collections import Counter
from collections.abc import Mapping
from math import inf
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictInt,
    StrictStr,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from pytest_mlperf.core.case import NAME, Profile, ScenarioName
from pytest_mlperf.core.metrics import METRICS
from pytest_mlperf.rounds import ROUNDS, RoundWorkload, load_round

SCHEMA_ID = "https://pytest-mlperf.dev/schema/suite-1.json"


def _name(value: str) -> str:
    if not NAME.fullmatch(value):
        raise ValueError(
            f"{value!r} is no name: letters, digits, '.', '_', '+' and single inner '-' only, "
            "because it becomes part of test ids and file names"
        )
    return value


def _accelerator(value: str) -> str:
    if not re.fullmatch(r"([1-9][0-9]*x)?[A-Za-z][A-Za-z0-9._]*", value):
        raise ValueError(f'{value!r} is no accelerator; write "cpu", "H200" or "8xH100"')
    return value


_SECONDS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}


def _seconds(value: object) -> object:
    if isinstance(value, str):
        found = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*(ms|s|min|m|h)\s*", value)
        if not found or float(found[1]) <= 0:
            raise ValueError(f'{value!r} is no duration; write "15ms", "6s" or "10min"')
        return float(found[1]) * _SECONDS[found[2]]
    raise ValueError(f'{value!r} is no duration; write it with its unit, e.g. "6s"')


def _share(value: object) -> object:
    if isinstance(value, str):
        found = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*%\s*", value)
        if found:
            return float(found[1]) / 100
    raise ValueError(f'{value!r} is no percentage; write it as a string, e.g. "3%"')


def _positive_share(value: float) -> float:
    if value <= 0:
        raise ValueError("must be above 0 %")
    return value


def _rate(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < inf:
        raise ValueError(f"{value!r} is no positive number")
    return float(value)


def _rates(value: object) -> float | dict[str, float]:
    if isinstance(value, Mapping):
        return {_accelerator(str(key)): _rate(rate) for key, rate in value.items()}
    return _rate(value)


_TEXT = {"type": "string"}
Name = Annotated[StrictStr, AfterValidator(_name)]
Accelerator = Annotated[StrictStr, AfterValidator(_accelerator)]
Seconds = Annotated[
    float,
    BeforeValidator(_seconds),
    WithJsonSchema({**_TEXT, "pattern": r"^\s*[0-9.]+\s*(ms|s|min|m|h)\s*$"}),
]
Share = Annotated[
    float,
    BeforeValidator(_share),
    AfterValidator(_positive_share),
    WithJsonSchema({**_TEXT, "pattern": r"^\s*[0-9.]+\s*%\s*$"}),
]
Rate = Annotated[
    float,
    BeforeValidator(_rate),
    WithJsonSchema({"type": "number", "exclusiveMinimum": 0}),
]
Rates = Annotated[
    float | dict[str, float],
    BeforeValidator(_rates),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "exclusiveMinimum": 0},
                {
                    "type": "object",
                    "additionalProperties": {"type": "number", "exclusiveMinimum": 0},
                },
            ]
        }
    ),
]
Options = dict[str, Any]


class _Table(BaseModel):
    """A TOML table: unknown keys are errors, values are fixed once read."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Source(_Table):
    """An extension by name with its options; keys other than `use` are options."""

    model_config = ConfigDict(extra="allow", frozen=True)

    use: StrictStr = Field(description="Registered name, or package.module:name of your own code.")

    @property
    def options(self) -> Options:
        """Every key but `use`."""
        return dict(self.model_extra or {})


class DatasetSource(Source):
    """The data set; keys other than `use` and `path` are options of its adapter."""

    path: StrictStr | None = Field(
        default=None, description="File or folder; relative to the suite file; ${VAR} is expanded."
    )


class Workload(_Table):
    """What is run and on which data."""

    name: Name = Field(description="An MLPerf workload of the round, or a name of your own.")
    twin_of: Name | None = Field(
        default=None,
        description="The MLPerf workload whose rules (latency limits, scorer) this one follows.",
    )
    model: StrictStr | None = Field(
        default=None, description="Path or name; relative to the suite file; ${VAR} is expanded."
    )
    dataset: DatasetSource = Field(default_factory=lambda: DatasetSource(use="synthetic"))
    scorer: Source | None = Field(
        default=None, description="Scores the accuracy pass; MLPerf workloads bring their own."
    )
    reference: dict[StrictStr, Rate] | None = Field(
        default=None, description="This suite's own reference scores by metric; never MLPerf's."
    )
    target: Share = Field(
        default=0.99, description='Share of the reference score that is the gate, e.g. "99%".'
    )


class EngineEntry(_Table):
    """One engine configuration; tests are made for each of its accelerators."""

    use: StrictStr = Field(description="Registered engine, or package.module:name.")
    name: Name | None = Field(
        default=None, description="Tells entries with other options apart; default: use."
    )
    precision: Name = "fp32"
    accelerators: list[Accelerator] = Field(default=["cpu"], min_length=1)
    options: Options = Field(default_factory=dict)

    @property
    def label(self) -> str:
        """The name in test ids."""
        return self.name or self.use


class ScenarioEntry(_Table):
    """One scenario; lengths here belong to the quick profile."""

    name: ScenarioName
    target_qps: Rates | None = Field(
        default=None,
        description="Offered samples/s (Offline: expected); one number or one per accelerator.",
    )
    min_duration: Seconds | None = Field(
        default=None, description='Length of a quick run, e.g. "6s" (default 60 s).'
    )
    min_query_count: Annotated[StrictInt, Field(gt=0)] | None = Field(
        default=None, description="Fewest queries of a quick run."
    )
    latency_limit: Seconds | None = Field(
        default=None, description="Server: latency that 99 % of queries must meet; default: round."
    )

    def rate_on(self, accelerator: str) -> float | None:
        """Return the suite's offered rate on an accelerator, samples/s, or None."""
        if isinstance(self.target_qps, dict):
            return self.target_qps.get(accelerator)
        return self.target_qps


class Drop(_Table):
    """Limit of a higher-is-better metric."""

    max_drop: Share


class Rise(_Table):
    """Limit of a lower-is-better metric."""

    max_rise: Share


class AccuracyLimit(_Table):
    """Margin of the paired accuracy rule."""

    margin: StrictStr | None = Field(
        default=None,
        pattern=r"^\s*[0-9.]+\s*(%|points)\s*$",
        description='Of the baseline score: "0.5%", or absolute: "0.5 points".',
    )
    reference: Name | None = Field(
        default=None, description="Name of the engine entry whose scores are the baseline."
    )


def _limits_schema() -> dict[str, Any]:
    drop = {"max_drop": {"type": "string", "pattern": r"^\s*[0-9.]+\s*%\s*$"}}
    rise = {"max_rise": {"type": "string", "pattern": r"^\s*[0-9.]+\s*%\s*$"}}
    table: dict[str, Any] = {
        name: {
            "type": "object",
            "properties": drop if metric.limit_key == "max_drop" else rise,
            "required": [metric.limit_key],
            "additionalProperties": False,
            "description": f"{metric.title}, {metric.direction} is better; "
            f"default {metric.limit:.0%} where it is gated.",
        }
        for name, metric in METRICS.items()
    }
    table["accuracy"] = AccuracyLimit.model_json_schema()
    return {"type": "object", "properties": table, "additionalProperties": False}


class Price(_Table):
    """What an accelerator costs; gives tokens per dollar."""

    usd_per_gpu_hour: Rate
    as_of: dt.date


class ExpectedFailure(_Table):
    """A failure that is known; matched by the fields that are given."""

    scenario: ScenarioName | None = None
    engine: Name | None = None
    precision: Name | None = None
    accelerator: Accelerator | None = None
    metric: StrictStr | None = None
    reason: Annotated[StrictStr, Field(min_length=1)]
    until: dt.date = Field(description="The last day on which the failure is expected.")


class Suite(_Table):
    """One suite file: one workload, its engines and its scenarios."""

    schema_: Literal[1] = Field(alias="schema", description="Version of this file format.")
    round: StrictStr = Field(
        description="MLPerf Inference round whose rules and seeds hold.",
        json_schema_extra={"enum": list(ROUNDS)},
    )
    profile: Profile = Field(
        default="quick", description="official: MLPerf's own durations, counts and gate."
    )
    workload: Workload
    engines: list[EngineEntry] = Field(min_length=1)
    scenarios: list[ScenarioEntry] = Field(min_length=1)
    limits: Annotated[dict[str, Any], WithJsonSchema(_limits_schema())] = Field(
        default_factory=dict, description="The smallest change that matters, by metric."
    )
    prices: dict[Accelerator, Price] = Field(default_factory=dict)
    expected_failures: list[ExpectedFailure] = Field(default_factory=list)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for check in (_known_round, _known_workload, _limits_match, _unique_ids, _own_reference):
            check(self)
        return self

    @property
    def rules(self) -> RoundWorkload | None:
        """The round's constants of this workload, or None for a workload of one's own."""
        return load_round(self.round).workloads.get(self.workload.twin_of or self.workload.name)

    @property
    def is_mlperf(self) -> bool:
        """The workload is MLPerf's own, so MLPerf's gate may be claimed."""
        return self.workload.twin_of is None and self.rules is not None

    def limit_of(self, metric: str) -> float | None:
        """Return the limit this suite sets for a metric, as a share, or None."""
        found = self.limits.get(metric)
        if not isinstance(found, Mapping):
            return None
        share = _share(found[METRICS[metric].limit_key])
        assert isinstance(share, float)
        return share


class Misplaced(ValueError):
    """A value that is wrong at a place that pydantic cannot name."""

    def __init__(self, where: tuple[str | int, ...], message: str) -> None:
        """Keep the key path beside the message."""
        super().__init__(message)
        self.where = where


def _known_round(suite: Suite) -> None:
    if suite.round not in ROUNDS:
        raise Misplaced(("round",), f"no round {suite.round!r}; rounds: {', '.join(ROUNDS)}")


def _known_workload(suite: Suite) -> None:
    workload, known = suite.workload, load_round(suite.round).workloads
    if workload.twin_of is not None and workload.twin_of not in known:
        raise Misplaced(
            ("workload", "twin_of"),
            f"{workload.twin_of!r} is no workload of {suite.round}; known: {', '.join(known)}",
        )
    if workload.twin_of is not None and workload.name in known:
        raise Misplaced(
            ("workload", "name"),
            f"{workload.name!r} is MLPerf's own name; give the twin a name of its own",
        )
    for index, scenario in enumerate(suite.scenarios):
        where = ("scenarios", index, "name")
        rules = suite.rules
        if scenario.name == "Interactive" and not (rules and rules.tokens):
            raise Misplaced(where, "Interactive is for language models only")
        if suite.is_mlperf and rules and scenario.name not in rules.scenarios:
            raise Misplaced(
                where,
                f"{workload.name} has no {scenario.name} in {suite.round}; "
                f"it has {', '.join(rules.scenarios)}",
            )
        if scenario.name == "Server" and not rules and scenario.latency_limit is None:
            raise Misplaced(
                ("scenarios", index),
                'Server of a workload of your own needs latency_limit, e.g. "15ms"',
            )


def _limits_match(suite: Suite) -> None:
    for name, given in suite.limits.items():
        if name == "accuracy":
            _accuracy_limit(given)
            continue
        if name not in METRICS:
            raise Misplaced(("limits", name), f"unknown metric {name!r}{nearest(name, METRICS)}")
        metric = METRICS[name]
        keys = set(given) if isinstance(given, Mapping) else set()
        if keys != {metric.limit_key}:
            raise Misplaced(
                ("limits", name),
                f"{name} is {metric.direction}-is-better: "
                f'write {name} = {{ {metric.limit_key} = "{metric.limit:.0%}" }}',
            )
        try:
            share = _positive_share(_share(given[metric.limit_key]))  # type: ignore[arg-type]
        except ValueError as error:
            raise Misplaced(("limits", name), str(error)) from None
        if metric.limit_key == "max_drop" and share >= 1:
            raise Misplaced(("limits", name), "a drop of 100 % or more cannot be measured")


def _accuracy_limit(given: object) -> None:
    try:
        AccuracyLimit.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise Misplaced(
            ("limits", "accuracy"),
            f"{'.'.join(map(str, first['loc']))}: {first['msg']}; "
            'write accuracy = { margin = "0.5%" } or { reference = "engine-name" }',
        ) from None


def _unique_ids(suite: Suite) -> None:
    engines = Counter(
        (e.label, e.precision, accelerator) for e in suite.engines for accelerator in e.accelerators
    )
    for index, entry in enumerate(suite.engines):
        if not NAME.fullmatch(entry.label):
            where = ("engines", index, "use")
            raise Misplaced(where, f'{entry.use!r} needs name = "..." beside it')
        if any(engines[entry.label, entry.precision, a] > 1 for a in entry.accelerators):
            raise Misplaced(
                ("engines", index),
                f"duplicate case: two engine entries are called {entry.label!r} with precision "
                f"{entry.precision!r} on the same accelerator; give one a name of its own",
            )
    names = [scenario.name for scenario in suite.scenarios]
    for index, name in enumerate(names):
        if names.index(name) != index:
            raise Misplaced(("scenarios", index), f"duplicate case: {name} is listed twice")


def _own_reference(suite: Suite) -> None:
    if suite.workload.reference and suite.is_mlperf:
        raise Misplaced(
            ("workload", "reference"),
            f"{suite.workload.name} has MLPerf's reference scores; "
            'only a twin (twin_of = "...") or a workload of your own brings its own',
        )


def nearest(word: str, known: Mapping[str, object] | list[str]) -> str:
    """Return "; did you mean 'x'?" or the list of what is known."""
    import difflib

    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"

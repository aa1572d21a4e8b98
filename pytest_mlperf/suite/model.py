"""Define the content of a suite file; its published JSON Schema is generated from this."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StrictStr, WithJsonSchema, model_validator

from pytest_mlperf import registry
from pytest_mlperf.core.case import NAME_PATTERN, Phase, Profile, Scenario
from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.core.metrics import METRICS, SERVER_METRICS, at_point, gated_metrics
from pytest_mlperf.core.roofline.gpu import PEAKS, GpuPrice, GpuSpec, parse_gpu
from pytest_mlperf.core.roofline.work import AnyWork
from pytest_mlperf.core.rulings.accuracy import Margin
from pytest_mlperf.core.untrusted_text import nearest, quoted
from pytest_mlperf.hardware.machine import split
from pytest_mlperf.rounds import ROUNDS, RoundWorkload, load_round
from pytest_mlperf.rounds.endpoints import points_up_to, seed_sets
from pytest_mlperf.rounds.published import benchmarks, official_results
from pytest_mlperf.rounds.work import find_work, parse_work
from pytest_mlperf.suite import tables, values
from pytest_mlperf.suite.find import find_defects, limits_of
from pytest_mlperf.suite.limits import gated_server_metrics, limit_defects, margin_of

Figures = Mapping[str, Mapping[str, Any]]
"""Peaks, bandwidth and memory of GPUs by class, from the suite's `[accelerators]`."""

_FIGURE_HELP = {
    **dict.fromkeys(PEAKS, 'Dense, FLOP/s: 989e12 or "989 TFLOP/s".'),
    "bandwidth": "Bandwidth of its memory, B/s.",
    "memory": "Memory size, B, as stated by the vendor.",
    "cache": "Size of its last-level cache, B.",
    "stated_clock": "Clock of the peaks, Hz.",
    "highest_clock": "Highest clock in use, Hz.",
}

FIGURES_SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "Accelerators that are not in the table of GPUs, by class; an empty table "
    "only declares the name.",
    "additionalProperties": {
        "type": "object",
        "properties": {
            **{
                name: {"type": ["number", "string"], "description": text}
                for name, text in _FIGURE_HELP.items()
            },
            "source": {"type": "string", "description": "Source of the figures."},
        },
        "additionalProperties": False,
    },
}


WORKLOAD: values.KeyPath = ("workload",)

PHASES: tuple[Phase, ...] = ("performance", "accuracy")

SCHEMA_ID = "https://pytest-mlperf.dev/schema/suite-1.json"

NEEDS_ACCURACY = "an official result needs its accuracy; "
NEEDS_HARNESS = "an official result needs the harness of its round; "

EXAMPLES = {"latency_limit": "15ms", "ttft_limit": "2s", "tpot_limit": "200ms"}


class Inconsistent(ValueError):
    """Report values that contradict each other; `defects` has their key paths."""

    def __init__(self, defects: list[values.Defect]) -> None:
        super().__init__("; ".join(message for _, message in defects))
        self.defects = defects


class Suite(tables.Table):
    """One suite file: one workload, its engines and its scenarios."""

    schema_: Literal[1] = Field(alias="schema")
    """Version of this file format."""
    round: StrictStr = Field(json_schema_extra={"enum": list(ROUNDS)})
    """MLPerf Inference round with the rules and seeds to use."""
    profile: Profile = "quick"
    """official: MLPerf's own durations and counts."""
    division: Literal["closed", "open"] = "closed"
    """open: other weights and shortcuts are allowed; has separate baselines."""
    workload: tables.Workload
    engines: list[tables.EngineEntry] = Field(min_length=1)
    scenarios: list[tables.ScenarioEntry] = Field(min_length=1)
    limits: Annotated[dict[str, Any], WithJsonSchema(tables.limits_schema(accuracy=True))] = Field(
        default_factory=dict
    )
    """The smallest change that matters, by metric."""
    prices: dict[values.Accelerator, tables.Price] = Field(
        default_factory=dict, json_schema_extra={"additionalProperties": False}
    )
    accelerators: Annotated[dict[StrictStr, dict[str, Any]], WithJsonSchema(FIGURES_SCHEMA)] = (
        Field(default_factory=dict)
    )
    expected_failures: list[tables.ExpectedFailure] = Field(default_factory=list)
    pairs: list[tables.PairEntry] = Field(default_factory=list)
    """Claims that one engine entry beats another."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.round not in ROUNDS:
            message = f"no round {self.round!r}; rounds: {', '.join(ROUNDS)}"
            raise Inconsistent([(("round",), message)])
        checks = (_data, _scenarios, _rates, _limits, _physics, _engines, _failure_defects)
        defects = [defect for check in checks for defect in check(self)]
        if defects:
            raise Inconsistent(defects)
        return self

    @property
    def rules(self) -> RoundWorkload | None:
        """Constants of this workload in the MLPerf round; None for a workload of the user."""
        if self.round not in ROUNDS:  # a benchmark has no round
            return None
        return load_round(self.round).find(self.workload.twin_of or self.workload.name)

    @property
    def tokens(self) -> bool:
        """Whether the workload is a language model, whose tokens are counted and timed."""
        stated = self.workload.tokens
        return bool(self.rules and self.rules.tokens) if stated is None else stated

    @property
    def scoring_gap(self) -> str:
        """Message if an MLPerf workload or a language model has no scorer, else ""."""
        rules = self.rules
        if self.workload.scorer or (rules.scorer if rules else not self.tokens):
            return ""
        unscored = f"no scorer for the answers of {self.workload.name}"
        scorer = 'add scorer = { use = "rouge" }, and references in the data set'
        if rules:
            gates = f", which MLPerf gates by {', '.join(rules.metrics)}" if rules.metrics else ""
            unscored = f"there is no scorer for {rules.name} of {self.round}{gates}"
            scorer = 'add your own: scorer = { use = "package.module:name" }'
        return f"performance only: {unscored}; a wrong model would pass; {scorer}"

    @property
    def scorer_gap(self) -> str:
        """Message if the scorer is not the round's, so that MLPerf's gate is undecided; else ""."""
        rules, source = self.rules, self.workload.scorer
        if not self.is_mlperf or rules is None or source is None:
            return ""
        use = registry.name_of("scorers", source.use)
        if rules.scorer and (use == rules.scorer or use not in registry.registered("scorers")):
            return ""
        round_scorer = f"by {rules.scorer}" if rules.scorer else "by a scorer that is not included"
        return (
            f"not the round's scorer: {rules.name} of {self.round} is scored {round_scorer}, "
            f"here by {use}; MLPerf's gate on {', '.join(rules.metrics)} is not decided"
        )

    @property
    def unofficial(self) -> str:
        """Reason why results of MLPerf's workload with this suite are unofficial, or ""."""
        if self.rules and (gap := self.scoring_gap or self.scorer_gap):
            return NEEDS_ACCURACY + gap
        return self.harness_gap and NEEDS_HARNESS + self.harness_gap

    @property
    def gaps(self) -> tuple[str, ...]:
        """Messages about deviations of this suite from its MLPerf round, shown in every result."""
        return tuple(filter(None, (self.harness_gap, self.scoring_gap, self.scorer_gap)))

    @property
    def harness_gap(self) -> str:
        """Message if the round uses another harness than LoadGen for this workload, else ""."""
        rules = self.rules
        if not self.is_mlperf or rules is None or rules.loadgen:
            return ""
        harnesses = " or ".join(rules.harnesses)
        return (
            f"not the round's harness: {rules.name} of {self.round} is run by {harnesses}, "
            "here by LoadGen; its results are not results of the round"
        )

    def data_of(
        self, scenario: tables.ScenarioEntry, phase: Phase
    ) -> tuple[values.KeyPath, tables.DatasetSource]:
        """Return the key and the data set that a scenario uses in a phase.

        A scenario's `dataset` is for both phases, unless it has an `accuracy_dataset`.
        """
        tested = self.workload.compliance_dataset
        if phase == "compliance" and tested:
            return (*WORKLOAD, "compliance_dataset"), tested
        names = ("accuracy_dataset", "dataset") if phase == "accuracy" else ("dataset",)
        owners = (
            (("scenarios", self.scenarios.index(scenario)), scenario),
            (WORKLOAD, self.workload),
        )
        return next(
            ((*where, name), source)
            for where, table in owners
            for name in names
            if (source := getattr(table, name)) is not None
        )

    @property
    def data_gap(self) -> tuple[values.KeyPath, str] | None:
        """Key and message if one of MLPerf's data sets is missing in the suite, or None.

        A quick suite that uses only a part of a data set does not need the other data sets.
        """
        rules = self.rules
        for index, scenario in enumerate(self.scenarios if rules and self.is_mlperf else ()):
            (key, timed), (_, scored) = (self.data_of(scenario, p) for p in PHASES)
            if self.profile == "quick" and timed.is_part:
                continue
            constants = rules.scenarios.get(scenario.name) if rules else None
            if constants and constants.accuracy_samples and key[0] == "workload":
                return (
                    ("scenarios", index),
                    f"{scenario.name} of {self.workload.name} has a data set of its own, of "
                    f"{constants.accuracy_samples:,} samples: add dataset to this scenario",
                )
            if rules and rules.accuracy_samples and timed == scored:
                return (
                    key,
                    f"{self.workload.name} is timed on {rules.dataset_samples:,} samples and "
                    f"scored on {rules.accuracy_samples:,} others: add accuracy_dataset beside it",
                )
        return None

    @property
    def is_mlperf(self) -> bool:
        """Whether the workload is MLPerf's and not its tiny twin: MLPerf's targets then apply."""
        return self.workload.twin_of is None and self.rules is not None

    @property
    def entries(self) -> list[tables.EngineEntry]:
        """Engine entries; one with several power limits is listed once for each of them."""
        return [one for entry in self.engines for one in entry.at_limits]

    @property
    def reference_engine(self) -> tables.EngineEntry | None:
        """Engine entry whose scores are the accuracy baseline of all entries, or None."""
        reference = self._accuracy.reference
        return next((e for e in self.engines if reference in (e.label, e.full_label)), None)

    @property
    def margin(self) -> Margin | None:
        """Accuracy drop that is tolerated; None if the suite sets none."""
        return margin_of(self._accuracy)

    @property
    def figures(self) -> dict[str, GpuSpec]:
        """Peak rates, bandwidth and memory of GPUs as the suite states them, by class."""
        return {name: parse_gpu(name, table) for name, table in self.accelerators.items() if table}

    @property
    def work(self) -> AnyWork | None:
        """Work (FLOP, bytes) per sample of the user's own model, if the suite states it."""
        return parse_work(self.workload.work) if self.workload.work is not None else None

    def price(self, accelerator: str) -> GpuPrice | None:
        """Return the price of one GPU: that of "8xH100", else that of "H100", else None."""
        price = self.prices.get(accelerator) or self.prices.get(split(accelerator)[1])
        return GpuPrice(**price.model_dump()) if price else None

    @property
    def _accuracy(self) -> tables.AccuracyLimit:
        return tables.AccuracyLimit.model_validate(self.limits.get("accuracy", {}))

    @property
    def min_official_share(self) -> float | None:
        """Minimum share of the best official result; None if the suite sets none."""
        return values.share(self.limits[tables.OF_BEST]) if tables.OF_BEST in self.limits else None

    def judged_metrics(self, scenario: tables.ScenarioEntry) -> list[str]:
        """Return the metrics that a scenario gates: its defaults, and those in its `limits`.

        Metrics of a server are also gated if they are in the suite's `[limits]`.
        """
        searched = scenario.find is not None
        defaults = gated_metrics(scenario.name, tokens=self.tokens, searched=searched)
        defaults += tuple(at_point(name, c) for name in defaults for c in scenario.points or ())
        own_metrics = (name for name in scenario.limits if name not in SERVER_METRICS)
        server_metrics = gated_server_metrics({**self.limits, **scenario.limits}, scenario)
        return list(dict.fromkeys((*defaults, *own_metrics, *server_metrics)))

    def gated(self, scenario: tables.ScenarioEntry) -> dict[str, float]:
        """Return the metrics that are gated in a scenario, with their limits as shares.

        A limit comes from the scenario's `limits`, else from the suite's `[limits]`, else from the
        metric table. At a point of a curve, the limit of the mean over the points applies if it is
        wider than the table's.
        """
        limits = {**self.limits, **scenario.limits}

        def limit_of(name: str) -> float:
            if name in limits:
                return values.share(limits[name][METRICS[name].limit_key])
            mean = name.partition("@")[0]
            default = METRICS[name].limit
            if mean in SERVER_METRICS and mean in limits:  # there is no mean over the points
                return limit_of(mean)
            return default if mean == name else max(default, limit_of(mean))

        return {name: limit_of(name) for name in self.judged_metrics(scenario)}


def _workload(suite: Suite) -> Iterator[values.Defect]:
    workload, workloads = suite.workload, load_round(suite.round).names
    twin = workload.twin_of
    if twin is not None and twin not in workloads:
        yield ("twin_of",), f"{twin!r} is not a workload of {suite.round}{nearest(twin, workloads)}"
    if twin is not None and workload.name in workloads:
        yield ("name",), f"{workload.name!r} is MLPerf's own name; give the twin a name of its own"
    if suite.profile == "official" and suite.unofficial:
        yield ("name",), suite.unofficial
    for key in ("reference", "timed_tokens") if suite.is_mlperf else ():
        if getattr(workload, key):
            yield (
                (key,),
                f"{key} of {workload.name} is MLPerf's; remove it, or rename the workload and add "
                'twin_of = "..."',
            )
    if workload.reference and workload.scorer is None and suite.rules is None:
        message = 'nothing scores this workload: add scorer = { use = "top1" }, or twin_of = "..."'
        yield ("reference",), message
    if suite.is_mlperf and workload.tokens not in {None, suite.rules and suite.rules.tokens}:
        yield ("tokens",), f"{workload.name} has MLPerf's own rules; remove tokens"
    if workload.target > 1:
        yield ("target",), "must be at most 100 % of the reference"


def _data(suite: Suite) -> Iterator[values.Defect]:
    yield from values.under(WORKLOAD, _workload(suite))
    if gap := suite.data_gap:
        yield gap
    rules = suite.rules
    for key, test in (("compliance_dataset", "TEST07"), ("timed_tokens", "TEST09")):
        is_read = rules is not None and test in rules.compliance
        if getattr(suite.workload, key) is not None and not is_read:
            reason = f"only {test} uses it, which {suite.round} does not require for this workload"
            yield (*WORKLOAD, key), f"{reason}: remove it"
    if not (suite.workload.scorer or (rules and rules.scorer)):
        sources = [(WORKLOAD, suite.workload.accuracy_dataset)]
        sources += [(("scenarios", i), s.accuracy_dataset) for i, s in enumerate(suite.scenarios)]
        for where, source in sources:
            if source:
                yield (*where, "accuracy_dataset"), "nothing scores it: add a scorer to [workload]"


def _scenarios(suite: Suite) -> Iterator[values.Defect]:
    names = [scenario.name for scenario in suite.scenarios]
    for index, scenario in enumerate(suite.scenarios):
        where = ("scenarios", index)
        if scenario.name in names[:index]:
            yield (*where, "name"), f"duplicate case: {scenario.name} is listed twice"
        yield from values.under(where, _scenario(suite, scenario))


def _scenario(suite: Suite, scenario: tables.ScenarioEntry) -> Iterator[values.Defect]:
    rules = suite.rules
    constants = rules.scenarios.get(scenario.name) if rules else None
    if scenario.name == Scenario.INTERACTIVE and not suite.tokens and not constants:
        yield ("name",), "Interactive is for language models only"
    elif scenario.name.is_curve:
        yield from _loop(scenario)
    elif suite.is_mlperf and rules and not constants:
        yield (
            ("name",),
            f"{suite.workload.name} has no {scenario.name} in {suite.round}; "
            f"it has {', '.join(rules.scenarios)}",
        )
    for key, owners in OF_LOOPS.items():
        if scenario.name not in owners and getattr(scenario, key) is not None:
            has = "has" if len(owners) == 1 else "have"
            yield (key,), f"{scenario.name} has no {key}; {' and '.join(owners)} {has}"
    if not scenario.name.is_curve:
        yield from _latency_limits(suite, scenario)
    if scenario.find:
        limits = limits_of(scenario, constants, tokens=suite.tokens)
        yield from find_defects(scenario, limits, tokens=suite.tokens)


_LOOPS = (Scenario.CONCURRENCY, Scenario.OPEN_LOOP)

OF_LOOPS: Mapping[str, Sequence[str]] = {
    "points": _LOOPS,
    "max_concurrency": (Scenario.CONCURRENCY,),
    "seed_set": (Scenario.CONCURRENCY,),
    "ramp": _LOOPS,
    "arrivals": (Scenario.OPEN_LOOP,),
    "burstiness": (Scenario.OPEN_LOOP,),
    "max_failed": _LOOPS,
}
"""Keys that only our own load loops use, with the scenarios that do."""

MAX_FAILED_SHARE = 0.1
NOT_OF_LOOPS = ("target_qps", "min_query_count", "latency_limit", "ttft_limit", "tpot_limit")


def _loop(scenario: tables.ScenarioEntry) -> Iterator[values.Defect]:
    is_open = scenario.name == Scenario.OPEN_LOOP
    if scenario.points is None and scenario.find is None:
        needs = "requests per second" if is_open else "requests in flight"
        yield ("name",), f"{scenario.name} needs points: {needs}"
    elif not is_open and (parts := [x for x in scenario.run_points if type(x) is not int]):
        defect = (
            f"{list(scenario.run_points)} are not points; write numbers of requests: [1, 8, 64]"
        )
        if parts == [x for x in parts if x < 1]:
            defect = f"a point is a number of requests from 1 to {values.MAX_CONCURRENCY:,}"
        yield ("points",), defect
    if scenario.max_concurrency and scenario.points != points_up_to(scenario.max_concurrency):
        yield ("points",), "write points or max_concurrency, not both"
    if scenario.seed_set is not None and scenario.seed_set not in seed_sets():
        names = ", ".join(seed_sets())
        yield ("seed_set",), f"unknown seed set {quoted(scenario.seed_set)}; published are: {names}"
    for name in NOT_OF_LOOPS:
        if getattr(scenario, name) is not None:
            yield (name,), f"{scenario.name} takes points, not {name}; remove it"
    if (scenario.max_failed or 0.0) > MAX_FAILED_SHARE:
        message = f"must be at most {MAX_FAILED_SHARE:.0%}, or nothing useful is measured"
        yield ("max_failed",), message
    if (scenario.arrivals == "gamma") != (scenario.burstiness is not None):
        yield (
            ("arrivals" if scenario.arrivals == "gamma" else "burstiness",),
            'burstiness is the shape of arrivals = "gamma": write both or neither (1 is Poisson, '
            "less is burstier)",
        )


def _latency_limits(suite: Suite, scenario: tables.ScenarioEntry) -> Iterator[values.Defect]:
    needed = ("ttft_limit", "tpot_limit") if suite.tokens else ("latency_limit",)
    written = [
        name
        for name in ("latency_limit", "ttft_limit", "tpot_limit")
        if getattr(scenario, name) is not None
    ]
    for name in written:
        if name not in needed:
            kind = "a language model" if suite.tokens else "not a language model (tokens = true)"
            yield (name,), f"{suite.workload.name} is {kind}: write {' and '.join(needed)}"
    if not scenario.name.rate_is_condition or suite.is_mlperf:
        return
    rules = suite.rules
    if rules and rules.tokens == suite.tokens and scenario.name in rules.scenarios:
        return
    if missing := [name for name in needed if name not in written]:
        example = " and ".join(f'{name} = "{EXAMPLES[name]}"' for name in missing)
        yield ("name",), f"no latency limit is known for {suite.workload.name}: write {example}"


def _rates(suite: Suite) -> Iterator[values.Defect]:
    used = dict.fromkeys(name for engine in suite.engines for name in engine.accelerators)
    for index, scenario in enumerate(suite.scenarios):
        start = scenario.find.start if scenario.find else None
        rate_tables = [(("target_qps",), scenario.target_qps), (("find", "start"), start)]
        for where, rates in rate_tables:
            for name in rates if isinstance(rates, dict) else ():
                if name not in used:
                    message = f"no engine entry runs on {name!r}{nearest(name, used)}"
                    yield ("scenarios", index, *where), message


def _limits(suite: Suite) -> Iterator[values.Defect]:
    judged = {name for scenario in suite.scenarios for name in suite.judged_metrics(scenario)}
    yield from limit_defects(suite.limits, suite.scenarios, suite.engines, judged)
    name, where = suite.workload.name, ("limits", tables.OF_BEST)
    if tables.OF_BEST not in suite.limits:
        return
    if suite.division == "open":
        yield where, "official results are of the closed division; remove this limit"
    elif not benchmarks(name):
        closed = {each.benchmark for each in official_results() if each.division == "closed"}
        yield where, f"no official result for workload {name!r}{nearest(name, sorted(closed))}"


def _physics(suite: Suite) -> Iterator[values.Defect]:
    kinds = dict.fromkeys(split(name)[1] for entry in suite.engines for name in entry.accelerators)
    for name, peaks in suite.accelerators.items():
        if name not in kinds:
            names = ", ".join(kinds)
            yield ("accelerators", name), f"no engine entry runs on {name!r}; they run on {names}"
        try:
            _ = peaks and parse_gpu(name, peaks)
        except SuiteError as error:
            yield ("accelerators", name), str(error)
    accelerators = dict.fromkeys(name for entry in suite.engines for name in entry.accelerators)
    for name in suite.prices:
        if name not in {**kinds, **accelerators}:
            yield ("prices", name), f"no engine entry runs on {name!r}{nearest(name, kinds)}"
    workload = suite.workload
    if workload.work is None:
        return
    if find_work(workload.name):
        yield ("workload", "work"), f"{workload.name} has MLPerf's own count; remove work"
    try:
        parse_work(workload.work)
    except ValueError as error:
        yield ("workload", "work"), str(error)


def _engines(suite: Suite) -> Iterator[values.Defect]:
    index_by_case: dict[str, int] = {}
    for index, entry in enumerate(suite.engines):
        where = ("engines", index)
        yield from values.under(where, _entry(suite, entry))
        for copy, accelerator in ((o, name) for o in entry.at_limits for name in o.accelerators):
            # As in test ids: different splits into name and precision can be the same id.
            key = f"{copy.label}-{copy.precision}-{accelerator}"
            if index_by_case.setdefault(key, index) != index:
                yield (
                    where,
                    f"duplicate case {key}: engines[{index_by_case[key]}] makes it too; "
                    'give one a name of its own (name = "...")',
                )
            elif copy.accelerators.count(accelerator) > 1:
                message = f"duplicate case: {accelerator!r} is listed twice"
                yield (*where, "accelerators"), message


def _entry(suite: Suite, entry: tables.EngineEntry) -> Iterator[values.Defect]:
    accelerators = ", ".join(entry.accelerators)
    if not NAME_PATTERN.fullmatch(entry.label):
        message = f'{entry.use!r} cannot be part of a test id; add name = "..." to this entry'
        yield ("use",), message
    if entry.techniques and suite.division == "closed":
        yield (
            ("techniques",),
            f"{', '.join(entry.techniques)}: not allowed in the closed division; write "
            'division = "open" at the top of the suite',
        )
    for name in entry.on:
        if name not in entry.accelerators:
            yield ("on", name), f"this entry does not run on {name!r}; it runs on {accelerators}"
    if entry.server and not all(entry.options_on(n).get("url") for n in entry.accelerators):
        message = "this table is only for engines with the option url; set url, or remove it"
        yield ("server",), message
    elif entry.server and entry.server.accelerator not in {None, *entry.accelerators}:
        message = f"contradicts accelerators ({accelerators}): remove one of the two"
        yield ("server", "accelerator"), message
    for name in dict.fromkeys(entry.accelerators):
        override = entry.on[name].power_limit_w if name in entry.on else None
        kind = split(name)[1]
        lack = "has no power limit to set" if kind == "cpu" else ""
        if values.MIG_INSTANCE.search(kind):
            lack = "is a part of a GPU, whose power limit is that of all its parts"
        if lack and entry.limits_on(name):
            where = ("on", name, "power_limit_w") if override else ("power_limit_w",)
            yield (
                where,
                f"{name} {lack}; set power_limit_w for other accelerators under "
                '[engines.on."H200"]',
            )


def _failure_defects(suite: Suite) -> Iterator[values.Defect]:
    """Yield a defect for each field of [[expected_failures]] that names nothing in the suite."""
    reference = suite.workload.reference or (suite.rules.metrics if suite.rules else {})
    choices: dict[str, list[str]] = {
        "scenario": [scenario.name for scenario in suite.scenarios],
        "engine": [entry.label for entry in suite.entries],
        "precision": [engine.precision for engine in suite.engines],
        "accelerator": [name for engine in suite.engines for name in engine.accelerators],
        "metric": [*METRICS, *reference],
    }
    for index, entry in enumerate(suite.expected_failures):
        for field, names in choices.items():
            text = getattr(entry, field)
            if text is not None and text not in names:
                message = f"this suite has no {field} {text!r}{nearest(text, dict.fromkeys(names))}"
                yield ("expected_failures", index, field), message

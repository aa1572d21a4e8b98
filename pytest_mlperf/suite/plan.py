"""Turn a suite into its cases, and each case into what a worker is told."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pytest_mlperf import registry
from pytest_mlperf.core.case import Case, Kind
from pytest_mlperf.core.errors import SuiteError, UnavailableError
from pytest_mlperf.core.judge.accuracy import Margin
from pytest_mlperf.core.metrics import EFFICIENCY
from pytest_mlperf.rounds import RoundScenario, load_round
from pytest_mlperf.run.protocol import Factory, LoadGenSettings, Seeds
from pytest_mlperf.suite.load import all_defects, line_of, lines_of_tables, load_suite
from pytest_mlperf.suite.model import Defect, Suite
from pytest_mlperf.suite.tables import EngineEntry, ScenarioEntry
from pytest_mlperf.suite.variables import expand, unset_variables

QUICK_DURATION_S = 60.0
"""Default length of a quick run (between-run noise dominates beyond this on typical GPUs)."""

QUICK_QUERIES = {"Server": 662, "Interactive": 662, "MultiStream": 662}
"""Fewest queries that LoadGen's early stopping can call VALID at the 99th percentile with one query
over it (459 with none)."""

QUICK_QUERIES_OTHERWISE = 64
"""Likewise for SingleStream's 90th percentile."""

OWN_WORKLOAD = RoundScenario(min_query_count=100, min_duration_ms=600_000)
OWN_SINGLE_STREAM = dataclasses.replace(OWN_WORKLOAD, latency_percentile=0.90)


@dataclass(frozen=True, kw_only=True, eq=False)
class Planned:
    """A case and everything the suite says about it.

    Compared by identity: pytest hashes every parameter when it orders tests.

    Attributes:
        case: Its name.
        suite: The parsed suite, shared by all its cases.
        path: The suite file.
        line: Line of the engine entry.
        engine: The suite's engine entry.
        scenario: The suite's scenario entry.
    """

    case: Case
    suite: Suite
    path: Path
    line: int
    engine: EngineEntry
    scenario: ScenarioEntry

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The tests this case has."""
        scored = self.suite.workload.scorer or self.suite.rules
        kinds: list[Kind] = ["accuracy", "performance"] if scored else ["performance"]
        if EFFICIENCY & set(self.suite.limits):
            kinds.append("efficiency")
        return tuple(kinds)

    @property
    def scorer(self) -> Factory | None:
        """The scorer of the accuracy pass, or None: performance only."""
        source = self.suite.workload.scorer
        rules = self.suite.rules
        if source is None and rules is None:
            return None
        use = source.use if source else rules.scorer if rules else ""
        options = source.options if source else {}
        return Factory(target=registry.target("scorers", use), options=options)

    @property
    def built_scorer(self) -> Factory | None:
        """The scorer as its child builds it: `${VAR}` expanded, paths of metrics resolved.

        Raises:
            SuiteError: A variable in an option is not set.
        """
        scorer = self.scorer
        if scorer is None:
            return None
        options = {name: self._metric(value) for name, value in expand(scorer.options).items()}
        return Factory(target=scorer.target, options=options)

    def _metric(self, value: Any) -> Any:
        """Resolve "evaluate:PATH" against the suite's folder, where such a path is there."""
        prefix, _, path = value.partition(":") if isinstance(value, str) else ("", "", "")
        if prefix != "evaluate" or not (self.path.parent / path).exists():
            return value
        return f"{prefix}:{(self.path.parent / path).resolve()}"

    @property
    def accuracy_reference(self) -> EngineEntry:
        """The engine entry whose scores this case's are compared with: its own, or the suite's."""
        return self.suite.reference_engine or self.engine

    @property
    def margin(self) -> Margin:
        """The drop of accuracy that does not matter."""
        return self.suite.margin

    @property
    def is_first_scenario(self) -> bool:
        """Accuracy baselines are written from the suite's first scenario."""
        return self.scenario is self.suite.scenarios[0]

    @property
    def reference(self) -> Mapping[str, float] | None:
        """Reference scores: the suite's own, or MLPerf's in the official profile."""
        if self.suite.is_mlperf:
            official = self.suite.profile == "official"
            return self.suite.rules.reference if official and self.suite.rules else None
        return self.suite.workload.reference

    @property
    def target(self) -> float:
        """Share of the reference score that is the gate."""
        rules = self.suite.rules
        return rules.targets[0] if self.suite.is_mlperf and rules else self.suite.workload.target

    @property
    def windows(self) -> Mapping[str, tuple[float, float]]:
        """Metrics that must stay within shares of their reference, e.g. tokens per sample."""
        return self.suite.rules.windows if self.suite.rules else {}

    @property
    def round_scenario(self) -> RoundScenario:
        """The round's constants of this scenario."""
        rules = self.suite.rules
        own = OWN_SINGLE_STREAM if self.case.scenario == "SingleStream" else OWN_WORKLOAD
        return rules.scenarios.get(self.case.scenario, own) if rules else own

    @property
    def limits(self) -> dict[str, float]:
        """The gated performance metrics with their limits, as shares."""
        return self.suite.gated(self.scenario)

    @property
    def seconds_per_run(self) -> float:
        """Planned length of the timed part of one run, seconds."""
        if self.suite.profile == "official":
            return self.round_scenario.min_duration_ms / 1000
        shortest = self.scenario.min_duration or QUICK_DURATION_S
        rate = self.scenario.rate_on(self.case.accelerator)
        if rate is None or self.case.scenario == "MultiStream":
            return shortest
        return max(shortest, self._fewest_queries / rate)

    @property
    def _fewest_queries(self) -> int:
        return self.scenario.min_query_count or QUICK_QUERIES.get(
            self.case.scenario, QUICK_QUERIES_OTHERWISE
        )

    def settings(self, *, samples: int | None = None, target_qps: float | None) -> LoadGenSettings:
        """Return what LoadGen is told for this case.

        Args:
            samples: Samples in the data set where the official count does not matter.
            target_qps: The rate to offer, or None to let the worker probe it.
        """
        constants, rules = self.round_scenario, self.suite.rules
        seeds = load_round(self.suite.round)
        quick = self.suite.profile == "quick"
        server = self.case.scenario in {"Server", "Interactive"}
        tokens = self.suite.tokens
        fewest = self._fewest_queries
        return LoadGenSettings(
            scenario="Server" if self.case.scenario == "Interactive" else self.case.scenario,
            seeds=Seeds(
                qsl=seeds.qsl_seed,
                sample_index=seeds.sample_index_seed,
                schedule=seeds.schedule_seed,
            ),
            target_qps=target_qps,
            min_duration_ms=1 if quick else constants.min_duration_ms,
            min_query_count=fewest if quick else constants.min_query_count,
            fixed_work_s=self.seconds_per_run if quick else None,
            performance_samples=rules.performance_samples if rules else samples or 1024,
            latency_limit_ns=self._limit_ns("latency") if server and not tokens else None,
            tokens=tokens,
            ttft_limit_ns=self._limit_ns("ttft") if tokens and server else None,
            tpot_limit_ns=self._limit_ns("tpot") if tokens and server else None,
            latency_percentile=constants.latency_percentile,
            samples_per_query=constants.samples_per_query,
            equal_issue=bool(rules and rules.equal_issue) and not quick,
        )

    def _limit_ns(self, of: Literal["latency", "ttft", "tpot"]) -> int | None:
        """Return the suite's limit, else the round's, in nanoseconds."""
        own: float | None = getattr(self.scenario, f"{of}_limit")
        rounds: float | None = getattr(self.round_scenario, f"{of}_limit_ms")
        if own is not None:
            return round(own * 1e9)
        return None if rounds is None else round(rounds * 1e6)

    @cached_property
    def factories(self) -> tuple[Factory, Factory]:
        """Engine and data set as the worker builds them, `${VAR}` and paths resolved.

        Raises:
            UnavailableError: A variable in a path is not set, or the file is not there.
            SuiteError: A variable in an option is not set.
        """
        workload = self.suite.workload
        engine = Factory(
            target=registry.target("engines", self.engine.use),
            options=expand(self.engine.options),
        )
        options = expand(workload.dataset.options)
        if workload.dataset.path is not None:
            options["path"] = self._local(("workload", "dataset"), workload.dataset.path)
        dataset = Factory(target=registry.target("datasets", workload.dataset.use), options=options)
        return engine, dataset

    @cached_property
    def model(self) -> str | None:
        """Absolute path of the model, or its name where no such file exists and none is meant.

        Raises:
            UnavailableError: A variable is not set, or the file is not there.
        """
        named = self.suite.workload.model
        return None if named is None else self._local(("workload", "model"), named)

    def _local(self, where: tuple[str, ...], text: str) -> str:
        """Resolve a path of the suite; a missing one is unavailable, with what to set."""
        place = f"{self.path}:{line_of(self.path.read_text('utf-8-sig'), where)}"
        missing = unset_variables(text)
        if missing:
            raise UnavailableError(
                f"{place}: ${{{missing[0]}}} is not set; set it so that {text} "
                f"is the {where[-1]}, e.g. export {missing[0]}=/path/to/it"
            )
        path = self.path.parent / Path(os.path.expandvars(text)).expanduser()
        if not path.exists():
            raise UnavailableError(
                f"{place}: the {where[-1]} {text} is not here (looked at {path})"
            )
        return str(path.resolve())


def plan_suite(path: Path) -> list[Planned]:
    """Read a suite file and return its cases, in the file's order; parsed once.

    Raises:
        SuiteError: Anything is wrong with the file.
    """
    suite, text = load_suite(path)
    if defects := list(_source_defects(suite)):
        raise all_defects(path, text, defects)
    lines = lines_of_tables(text, "engines") or [line_of(text, ("engines",))]
    return planned_cases(suite, path, lambda index: lines[min(index, len(lines) - 1)])


def planned_cases(suite: Suite, path: Path, line: Callable[[int], int]) -> list[Planned]:
    """Return the cases of a parsed suite.

    Args:
        suite: The suite.
        path: The file it stands in.
        line: Gives the line of an engine entry by its index.
    """
    return [
        Planned(
            case=Case(
                workload=suite.workload.name,
                scenario=scenario.name,
                engine=engine.label,
                precision=engine.precision,
                accelerator=accelerator,
            ),
            suite=suite,
            path=path,
            line=line(index),
            engine=engine,
            scenario=scenario,
        )
        for index, engine in enumerate(suite.engines)
        for accelerator in engine.accelerators
        for scenario in suite.scenarios
    ]


def _source_defects(suite: Suite) -> Iterator[Defect]:
    """Check that every extension is installed and takes its options."""
    dataset, scorer = suite.workload.dataset, suite.workload.scorer
    options = dataset.options if dataset.path is None else {**dataset.options, "path": ""}
    yield from _extension_defects("datasets", dataset.use, options, ("workload", "dataset"))
    if scorer:
        place = ("workload", "scorer")
        yield from _extension_defects("scorers", scorer.use, scorer.options, place)
    for index, engine in enumerate(suite.engines):
        yield from _extension_defects("engines", engine.use, engine.options, ("engines", index))


def _extension_defects(
    group: registry.Group, use: str, options: Mapping[str, Any], where: tuple[str | int, ...]
) -> Iterator[Defect]:
    try:
        registry.target(group, use)
    except SuiteError as error:
        yield (*where, "use"), str(error)
        return
    try:
        registry.check_options(group, use, options)
        expand(options)
    except SuiteError as error:
        yield (*where, "options") if group == "engines" else where, str(error)

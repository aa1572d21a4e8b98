"""Turn a suite into its cases, and each case into what a worker is told."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pytest_mlperf import registry
from pytest_mlperf.core.case import Case, Kind
from pytest_mlperf.core.judge.accuracy import Margin
from pytest_mlperf.core.judge.bounds import Bounds
from pytest_mlperf.core.metrics import EFFICIENCY
from pytest_mlperf.rounds import RoundScenario, load_round
from pytest_mlperf.run.protocol import Expected, Factory, LoadGenSettings, Seeds
from pytest_mlperf.suite import preflight
from pytest_mlperf.suite.build_defects import build_defects
from pytest_mlperf.suite.claims import claim_defects
from pytest_mlperf.suite.elsewhere import title_of
from pytest_mlperf.suite.find import LOADED, USUAL_RUNS, limits_of
from pytest_mlperf.suite.limits import efficiency_limits
from pytest_mlperf.suite.load import all_defects, line_of, lines_of_tables, load_suite
from pytest_mlperf.suite.model import Suite
from pytest_mlperf.suite.places import all_of, available, local, near
from pytest_mlperf.suite.scores import score_bounds, score_margin
from pytest_mlperf.suite.sources import source_defects
from pytest_mlperf.suite.tables import EngineEntry, ScenarioEntry
from pytest_mlperf.suite.variables import expand

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
        fewest_runs: Runs before anything can be decided.
    """

    case: Case
    suite: Suite
    path: Path
    line: int
    engine: EngineEntry
    scenario: ScenarioEntry
    fewest_runs: int = 1

    @property
    def accelerators(self) -> tuple[str, ...]:
        """What must be here."""
        return (self.case.accelerator,)

    @property
    def techniques(self) -> tuple[str, ...]:
        """What it does that only the open division allows."""
        return tuple(self.engine.techniques)

    @property
    def elsewhere(self) -> str:
        """The other Python in which its engine runs, as the suite writes it; "": this one."""
        return title_of(self.engine)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The tests this case has."""
        kinds: list[Kind] = ["accuracy", "performance"] if self.scorer_name else ["performance"]
        if EFFICIENCY & set(self.suite.limits):
            kinds.append("efficiency")
        return tuple(kinds)

    @property
    def scorer_name(self) -> str:
        """What the suite calls its scorer, else the round; "": performance only."""
        own, rules = self.suite.workload.scorer, self.suite.rules
        return own.use if own else rules.scorer if rules else ""

    @property
    def scorer(self) -> Factory | None:
        """The scorer of the accuracy pass, or None: performance only."""
        if not self.scorer_name:
            return None
        source = self.suite.workload.scorer
        target = registry.target("scorers", self.scorer_name)
        return Factory(target=target, options=source.options if source else {})

    @property
    def built_scorer(self) -> Factory | None:
        """The scorer as its child builds it: `${VAR}` expanded, paths near the suite resolved.

        Raises:
            UnavailableError: A variable in an option is not set.
        """
        scorer = self.scorer
        if scorer is None:
            return None
        expanded = available(self.path, ("workload", "scorer"), scorer.options)
        options = {name: near(self.path, value) for name, value in expanded.items()}
        return Factory(target=scorer.target, options=options)

    def require_scorer(self) -> None:
        """Ask a registered scorer whether it has what it needs, before anything is measured.

        Code of the user's own is not imported here.

        Raises:
            UnavailableError: A file is not here.
            SuiteError: An option is wrong.
            EnvironmentFault: This machine lacks something else.
        """
        preflight.require_scorer(self)

    @property
    def accuracy_reference(self) -> EngineEntry:
        """The engine entry whose scores this case's are compared with: its own, or the suite's."""
        return self.suite.reference_engine or self.engine

    def margin(self, metric: str) -> Margin:
        """Return the drop of a score that does not matter: the suite's, the round's, or 0.5 %."""
        return score_margin(self.suite, metric)

    @property
    def is_first_scenario(self) -> bool:
        """Accuracy baselines are written from the suite's first scenario."""
        return self.scenario is self.suite.scenarios[0]

    def bounds(self, lower: Collection[str]) -> Mapping[str, Bounds] | None:
        """Return what each score must keep within; see `score_bounds`."""
        return score_bounds(self.suite, self.round_scenario, lower)

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
    def efficiency_limits(self) -> dict[str, float]:
        """The metrics of `test_efficiency` with their limits, as shares."""
        return efficiency_limits(self.suite.limits, tokens=self.suite.tokens)

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
    def runs_per_value(self) -> tuple[int, int]:
        """Processes that one value takes, usually and at most: one, or those of a search."""
        find = self.scenario.find
        return (USUAL_RUNS, find.max_runs) if find else (1, 1)

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
        limits_ns = {name: round(limit * 1e9) for name, limit in self.latency_limits.items()}
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
            latency_limit_ns=limits_ns.get("latency_p99"),
            tokens=tokens,
            ttft_limit_ns=limits_ns.get("ttft_p99"),
            tpot_limit_ns=limits_ns.get("tpot_p99"),
            latency_percentile=constants.latency_percentile,
            samples_per_query=constants.samples_per_query,
            equal_issue=bool(rules and rules.equal_issue) and not quick,
        )

    @property
    def latency_limits(self) -> dict[str, float]:
        """What LoadGen limits, seconds by metric; nothing but in a loaded scenario."""
        if self.case.scenario not in LOADED:
            return {}
        return limits_of(self.scenario, self.round_scenario, tokens=self.suite.tokens)

    @cached_property
    def factories(self) -> tuple[Factory, Factory]:
        """Engine and data set as the worker builds them, `${VAR}` and paths resolved.

        Raises:
            UnavailableError: A variable of the data set is not set, or a file is not there.
            SuiteError: A variable in an engine's option is not set.
        """
        workload = self.suite.workload
        engine = Factory(
            target=registry.target("engines", self.engine.use),
            options=expand(self.engine.options),
        )
        where = ("workload", "dataset")
        named = workload.dataset.path
        path, options = all_of(
            lambda: {} if named is None else {"path": local(self.path, (*where, "path"), named)},
            lambda: available(self.path, where, workload.dataset.options),
        )
        options = {**options, **path}
        dataset = Factory(target=registry.target("datasets", workload.dataset.use), options=options)
        # A registered data set says whether its files are there; it opens none of them.
        if look := registry.look(workload.dataset.use):
            with preflight.placed(self, where, set(options) - {"path"}):
                look(**options)
        return engine, dataset

    @property
    def expected(self) -> Expected:
        """What the data set must be: of MLPerf's size, unless a quick suite asks for a part."""
        source, rules = self.suite.workload.dataset, self.suite.rules
        part = self.suite.profile == "quick" and {"count", "samples"} & set(source.options)
        whole = self.suite.is_mlperf and rules is not None and not part
        return Expected(
            samples=rules.dataset_samples if rules and whole else None,
            whose=f"MLPerf's {rules.name}" if rules else "",
            digest=source.digest,
        )

    @cached_property
    def model(self) -> str | None:
        """Absolute path of the model, or its name where no such file exists and none is meant.

        Raises:
            UnavailableError: A variable is not set, or the file is not there.
        """
        own = self.engine.model
        named = own if own is not None else self.suite.workload.model
        return None if named is None else local(self.path, self.model_key, named)

    @property
    def model_key(self) -> tuple[str | int, ...]:
        """The key that names the model, or would."""
        if self.engine.model is None:
            return "workload", "model"
        return "engines", self.suite.engines.index(self.engine), "model"


def plan_suite(path: Path) -> list[Planned]:
    """Read a suite file and return its cases, in the file's order; parsed once.

    Raises:
        SuiteError: Anything is wrong with the file.
    """
    suite, text = load_suite(path)
    if defects := [*source_defects(suite), *claim_defects(suite), *build_defects(suite)]:
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

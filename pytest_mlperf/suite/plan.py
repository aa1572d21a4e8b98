"""Plan the cases of a suite, each with the entries of the suite file that define it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pytest_mlperf import registry
from pytest_mlperf.core import metrics
from pytest_mlperf.core.case import AUDITS, Case, Kind, Phase, Profile, Scenario
from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.core.job import LOADED_QUERIES, Expected, Factory
from pytest_mlperf.core.rulings.accuracy import DEFAULT_MARGIN, Margin
from pytest_mlperf.core.rulings.gate import GateWindow
from pytest_mlperf.hardware.contention import port_here
from pytest_mlperf.rounds import RoundMetric, RoundScenario, RoundWorkload
from pytest_mlperf.rounds.compliance import constants
from pytest_mlperf.suite import tables
from pytest_mlperf.suite.claims import claim_defects
from pytest_mlperf.suite.find import USUAL_RUNS, FindEntry
from pytest_mlperf.suite.load import all_defects, line_of, load_suite
from pytest_mlperf.suite.model import Suite
from pytest_mlperf.suite.places import place_of
from pytest_mlperf.suite.rules import accelerator_defects, build_defects, source_defects
from pytest_mlperf.suite.values import KeyPath, share


def gate_samples(suite: Suite, scenario: RoundScenario) -> int | None:
    """Return the number of samples that MLPerf's accuracy target needs; None without a target."""
    rules = suite.rules
    if rules is None or not suite.is_mlperf:
        return None
    return scenario.accuracy_samples or rules.accuracy_samples or rules.dataset_samples


def _suite_metric(
    name: str, reference: float, rules: RoundWorkload | None, *, is_lower_better: bool
) -> RoundMetric:
    """Return the round's metric with the suite's reference score, and the tolerance as a share."""
    official = rules.metrics.get(name) if rules else None
    if official is None:
        better: Literal["higher", "lower"] = "lower" if is_lower_better else "higher"
        return RoundMetric(name=name, checker="", reference=reference, better=better)
    share = official.share
    if official.within:
        low, high = (None if end is None else end / official.reference for end in official.within)
        share = low, high
    return dataclasses.replace(official, reference=reference, share=share, within=None)


def _bounds(metric: RoundMetric, target: float, rules: RoundWorkload | None) -> GateWindow:
    low, high = metric.bounds(target)
    most = None if metric.name in metrics.COUNTS or metric.reference > 100 else 100.0
    if metric.name == "tokens_per_sample":
        most = rules.lengths.max_output_tokens if rules else None
    return GateWindow(reference=metric.reference, low=low, high=high, most=most)


QUICK_DURATION_S = 60.0
"""Default length of a quick run; beyond it, noise between runs dominates on typical GPUs."""

OFFICIAL_POINT_S = 600.0
"""Shortest steady state of MLPerf Endpoints; source: endpoints_rules.md of v1.0."""

QUICK_QUERIES_OTHERWISE = 64
"""Minimum queries for SingleStream's 90th percentile; gated metrics may need more."""

OWN_WORKLOAD = RoundScenario()
OWN_SINGLE_STREAM = dataclasses.replace(OWN_WORKLOAD, latency_percentile=0.90)


@dataclass(frozen=True)
class CaseData:
    """Select the data sets for timing and scoring a case; often both are the same."""

    suite: Suite
    scenario: tables.ScenarioEntry
    constants: RoundScenario

    def source(self, phase: Phase) -> tables.DatasetSource:
        """Return the data set of a phase as written in the suite file."""
        return self.suite.data_of(self.scenario, phase)[1]

    def key(self, phase: Phase) -> KeyPath:
        """Return the suite key of the data set that a phase uses."""
        return self.suite.data_of(self.scenario, phase)[0]

    @property
    def shared(self) -> bool:
        """Whether performance and accuracy use the same data, so that one process does both."""
        return self.source("performance") == self.source("accuracy")

    @property
    def accuracy_scenario(self) -> str:
        """Name of the first scenario with the same accuracy data; it writes their baseline."""
        scored, scenarios = self.source("accuracy"), self.suite.scenarios
        return next(s.name for s in scenarios if self.suite.data_of(s, "accuracy")[1] == scored)

    @property
    def baseline_label(self) -> str:
        """Scenario in the accuracy baseline's file name; "" for the suite's first scenario."""
        name = self.accuracy_scenario
        return "" if name == self.suite.scenarios[0].name else name

    def expected(self, phase: Phase = "performance") -> Expected:
        """Return the expected digest and size of MLPerf's whole data set; None for other data."""
        source, rules = self.source(phase), self.suite.rules
        part = self.suite.profile == "quick" and source.is_part
        is_whole = self.suite.is_mlperf and rules is not None and not part
        samples = self.constants.accuracy_samples or (rules.dataset_samples if rules else None)
        if phase == "accuracy" and not self.shared:
            samples = gate_samples(self.suite, self.constants)
        if phase == "compliance":
            samples = constants()["small"]["queries"]
        return Expected(
            samples=samples if is_whole else None,
            whose=f"MLPerf's {rules.name}" if rules else "",
            digest=source.digest,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Planned:
    """Hold a case with its suite and its entries in the suite file.

    Objects are compared by identity, because pytest hashes every parameter to order tests.

    Attributes:
        line: Line number of the engine entry in the suite file.
        engine: Engine entry, at one of its power limits if it has any.
        index: Index of that entry in the suite.
        fewest_runs: Minimum runs before a decision is possible.
        audited: Whether to run MLPerf's compliance tests, if the round has any.
    """

    case: Case
    suite: Suite
    path: Path
    line: int
    index: int
    engine: tables.EngineEntry
    scenario: tables.ScenarioEntry
    fewest_runs: int = 1
    audited: bool = False

    @property
    def accelerators(self) -> tuple[str, ...]:
        """Accelerators that the runner needs; only a CPU if the server is on another machine."""
        url = url_of(self)
        is_here = not url or (port_here(url) and not self.engine.server)
        return (self.case.accelerator,) if is_here else ("cpu",)

    @property
    def techniques(self) -> tuple[str, ...]:
        """Techniques that only the open division allows."""
        return tuple(self.engine.techniques)

    @property
    def options(self) -> Mapping[str, Any]:
        """Engine options on this accelerator."""
        return self.engine.options_on(self.case.accelerator)

    @property
    def limit_w(self) -> int | None:
        """Power limit to set on the GPUs [W]; None to leave it unchanged."""
        return self.engine.limit_w

    @property
    def baseline_engine(self) -> tables.BaselineEngine | None:
        """Build of the engine that the suite names as baseline of this entry; None without one."""
        return self.engine.baseline_engine

    @property
    def find(self) -> FindEntry | None:
        """Settings of the search for the highest load; None if the suite sets the load."""
        return self.scenario.find

    @property
    def elsewhere(self) -> str:
        """Other Python of the engine, as the suite writes it; "" if it is this Python."""
        return "" if registry.harness(self.engine.use) else tables.title_of(self.engine)

    @property
    def harness(self) -> str:
        """External harness of Concurrency runs, used instead of our own loop; "" if none."""
        closed = self.case.scenario is Scenario.CONCURRENCY
        return registry.harness(self.engine.use) if closed else ""

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Kinds of test of this case, such as accuracy and performance."""
        if self.scorer_name and not registry.is_timed(self.engine.use):
            return (Kind.ACCURACY,)
        kinds = {
            Kind.ACCURACY: bool(self.scorer_name),
            Kind.PERFORMANCE: True,
            Kind.EFFICIENCY: bool(metrics.EFFICIENCY & set(self.suite.limits)),
        }
        return (*(kind for kind, has in kinds.items() if has), *self.audits)

    @property
    def audits(self) -> tuple[Kind, ...]:
        """MLPerf's compliance tests to run: those of the closed division, if requested."""
        suite = self.suite
        requested = self.audited and suite.division == "closed" and suite.rules is not None
        if not requested or not suite.rules or self.case.scenario not in suite.rules.scenarios:
            return ()
        return tuple(test for test in AUDITS if test in suite.rules.compliance)

    @property
    def scorer_name(self) -> str:
        """Name of the suite's scorer, else the round's; "" if only performance is measured."""
        source, rules = self.suite.workload.scorer, self.suite.rules
        return source.use if source else rules.scorer if rules else ""

    @property
    def scorer(self) -> Factory | None:
        """Scorer as the suite writes it; None if only performance is measured."""
        if not self.scorer_name:
            return None
        source = self.suite.workload.scorer
        target = registry.target("scorers", self.scorer_name)
        return Factory(target=target, options=source.options if source else {})

    @property
    def accuracy_reference(self) -> tables.EngineEntry:
        """Engine entry whose scores are this case's accuracy baseline, at any power limit."""
        return self.suite.reference_engine or self.entry

    @property
    def entry(self) -> tables.EngineEntry:
        """Engine entry as the suite writes it, with all its power limits."""
        return self.suite.engines[self.index]

    def margin(self, metric: str) -> Margin:
        """Return the tolerated drop of a score: the suite's margin, the round's, or 0.5 %."""
        if self.suite.margin is not None:
            return self.suite.margin
        rule = self.suite.rules.metrics.get(metric) if self.suite.rules else None
        if rule is None or rule.margin is None:
            return DEFAULT_MARGIN
        return Margin(value=rule.margin, is_share=True)

    @property
    def data(self) -> CaseData:
        """Data sets that are timed and scored."""
        return CaseData(self.suite, self.scenario, self.round_scenario)

    def bounds(self, lower: Collection[str]) -> Mapping[str, GateWindow] | None:
        """Return the accuracy gate's bounds by score; None without a reference score.

        A tiny twin of an MLPerf workload has its own reference scores and MLPerf's relative bounds.
        `lower` has the metrics for which the scorer declares that lower is better.
        """
        rules, workload = self.suite.rules, self.suite.workload
        if self.suite.scorer_gap:
            return None
        if self.suite.is_mlperf and rules:
            official = {**rules.metrics, **self.round_scenario.metrics}
            return {name: _bounds(own, rules.targets[0], rules) for name, own in official.items()}
        if workload.reference is None:
            return None
        return {
            name: _bounds(
                _suite_metric(name, reference, rules, is_lower_better=name in lower),
                workload.target,
                rules,
            )
            for name, reference in workload.reference.items()
        }

    @property
    def round_scenario(self) -> RoundScenario:
        """MLPerf's constants for the case's scenario; defaults if the round does not define it."""
        rules = self.suite.rules
        single = self.case.scenario is Scenario.SINGLE_STREAM
        default = OWN_SINGLE_STREAM if single else OWN_WORKLOAD
        return rules.scenarios.get(self.case.scenario, default) if rules else default

    @property
    def limits(self) -> dict[str, float]:
        """Gated performance metrics with their limits, as shares."""
        limits = self.suite.gated(self.scenario)
        if self.engine.replicas_on(self.case.accelerator) == 1:
            limits.pop(metrics.SLOWEST_REPLICA, None)
        return limits

    @property
    def efficiency_limits(self) -> dict[str, float]:
        """Metrics of `test_efficiency` with their limits; default: samples or tokens per joule."""
        limits = self.suite.limits
        names = (name for name in limits if name in metrics.EFFICIENCY)
        gated = {name: share(limits[name][metrics.METRICS[name].limit_key]) for name in names}
        default = metrics.TOKENS_PER_JOULE if self.suite.tokens else metrics.SAMPLES_PER_JOULE
        return gated or {default: metrics.METRICS[default].limit}

    @property
    def seconds_per_run(self) -> float:
        """Planned length of the timed part of one run [s]."""
        points, official = len(self.scenario.run_points), self.suite.profile == "official"
        if points and official:
            return points * OFFICIAL_POINT_S
        if official:
            return self.round_scenario.min_duration_ms / 1000
        shortest = self.scenario.min_duration or QUICK_DURATION_S
        if points:
            return points * shortest
        rate = self.scenario.rate_on(self.case.accelerator)
        if rate is None or self.case.scenario == Scenario.MULTI_STREAM:
            return shortest
        return max(shortest, self.fewest_queries / rate)

    @property
    def runs_per_value(self) -> tuple[int, int]:
        """Usual and maximum number of processes per measured value; above 1 only in a search."""
        find = self.scenario.find
        return (USUAL_RUNS, find.max_runs) if find else (1, 1)

    @property
    def fewest_queries(self) -> int:
        """Minimum queries of a quick run: the suite's, else the most that a gated metric needs."""
        scenario = self.case.scenario
        loaded = scenario.rate_is_condition or scenario is Scenario.MULTI_STREAM
        loadgen = LOADED_QUERIES if loaded else QUICK_QUERIES_OTHERWISE
        gated = (
            metrics.METRICS[n].min_queries for n in self.limits if not self.scenario.run_points
        )
        return self.scenario.min_query_count or max((loadgen, *gated))

    @property
    def engine_key(self) -> KeyPath:
        """Key path of the engine entry in the suite file: ("engines", index)."""
        return "engines", self.index

    def place(self, key: KeyPath) -> str:
        """Return "file:line" of a key of the suite."""
        if self.path.suffix == ".toml":
            return place_of(self.path, key)
        return f"{self.path}:{self.line}"


def url_of(planned: object) -> str:
    """Return the address of the running server that a case measures; "" if it measures none."""
    if not isinstance(planned, Planned):
        return ""
    is_client = planned.engine.server or registry.is_client(planned.engine.use)
    url = planned.options.get("url") if is_client else None
    if not isinstance(url, str) or not url:
        return ""
    return os.path.expandvars(url if "://" in url else f"http://{url}")  # Triton's is HOST:PORT


def is_metered(planned: object) -> bool:
    """Return whether the case's server entry names an exporter or probe to read its energy."""
    server = planned.engine.server if isinstance(planned, Planned) else None
    return bool(server and (server.exporter or server.probe))


def plan_suite(path: Path) -> list[Planned]:
    """Read a suite file and return its cases in order; raise SuiteError for defects."""
    suite, text = load_suite(path)
    checks = (accelerator_defects, source_defects, claim_defects, build_defects)
    if defects := [defect for check in checks for defect in check(suite)]:
        raise all_defects(path, text, defects)
    return planned_cases(suite, path, lambda index: line_of(text, ("engines", index)))


def in_profile(
    planned: Sequence[Planned], profile: Profile | None, *, audited: bool = False
) -> list[Planned]:
    """Return the cases of one suite in another profile; None keeps the suite's profile.

    With `audited`, MLPerf's compliance tests are run too.

    Raises:
        SuiteError: The official profile lacks a scorer or the round's harness, or data are missing.
    """
    planned = [dataclasses.replace(one, audited=audited) for one in planned]
    if profile is None:
        return planned
    suite = planned[0].suite.model_copy(update={"profile": profile})
    if profile == "official" and suite.unofficial:
        raise SuiteError(f"{planned[0].path}: {suite.unofficial}")
    if gap := suite.data_gap:
        raise SuiteError(f"{planned[0].place(gap[0])}: {gap[1]}")
    return [dataclasses.replace(one, suite=suite) for one in planned]


def planned_cases(suite: Suite, path: Path, line: Callable[[int], int]) -> list[Planned]:
    """Return the cases of a parsed suite; `line` returns the line of an engine by its index."""
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
            index=index,
            engine=engine,
            scenario=scenario,
        )
        for index, entry in enumerate(suite.engines)
        for engine in entry.at_limits
        for accelerator in engine.accelerators
        for scenario in suite.scenarios
    ]

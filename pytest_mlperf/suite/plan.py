"""The cases of a suite: each with everything that the suite says of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pytest_mlperf import registry
from pytest_mlperf.core.case import AUDITS, LOADED_SCENARIOS, Case, Kind, Phase, Profile
from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.core.job import LOADED_QUERIES, BenchmarkTest, Expected, Factory
from pytest_mlperf.core.metrics import COUNTS, EFFICIENCY, METRICS, SLOWEST_REPLICA
from pytest_mlperf.core.rulings.accuracy import DEFAULT_MARGIN, Margin
from pytest_mlperf.core.rulings.gate import GateWindow
from pytest_mlperf.hardware.machine import Machine
from pytest_mlperf.rounds import RoundMetric, RoundScenario, RoundWorkload
from pytest_mlperf.suite.claims import claim_defects
from pytest_mlperf.suite.find import USUAL_RUNS, limits_of
from pytest_mlperf.suite.limits import efficiency_limits
from pytest_mlperf.suite.load import all_defects, line_of, lines_of_tables, load_suite
from pytest_mlperf.suite.model import Suite
from pytest_mlperf.suite.places import place_of
from pytest_mlperf.suite.rules import accelerator_defects, build_defects, source_defects
from pytest_mlperf.suite.tables import DatasetSource, EngineEntry, ScenarioEntry, title_of
from pytest_mlperf.suite.values import KeyPath


def score_bounds(
    suite: Suite, scenario: RoundScenario, lower: Collection[str]
) -> Mapping[str, GateWindow] | None:
    """Return what each score must keep within, or None where nobody gave a reference for it.

    A twin's reference takes the place of MLPerf's, with the same shares.

    Args:
        scenario: The round's constants of the scenario; some have gates of their own.
        lower: Metrics that the scorer calls better when lower.
    """
    rules, workload = suite.rules, suite.workload
    if suite.scorer_gap:
        return None
    if suite.is_mlperf and rules:
        metrics = {**rules.metrics, **scenario.metrics}
        return {name: _bounds(own, rules.targets[0], rules) for name, own in metrics.items()}
    if workload.reference is None:
        return None
    return {
        name: _bounds(
            _own_metric(name, reference, rules, lower=name in lower), workload.target, rules
        )
        for name, reference in workload.reference.items()
    }


def gate_samples(suite: Suite, scenario: RoundScenario) -> int | None:
    """Return the samples that MLPerf's gate is defined on; None: all that the data set has."""
    rules = suite.rules
    if rules is None or not suite.is_mlperf:
        return None
    return scenario.accuracy_samples or rules.accuracy_samples or rules.dataset_samples


def _own_metric(
    name: str, reference: float, rules: RoundWorkload | None, *, lower: bool
) -> RoundMetric:
    """Return a metric with a reference of its own, and the round's windows as shares of it."""
    theirs = rules.metrics.get(name) if rules else None
    if theirs is None:
        better: Literal["higher", "lower"] = "lower" if lower else "higher"
        return RoundMetric(name=name, checker="", reference=reference, better=better)
    share = theirs.share
    if theirs.within:
        low, high = (None if end is None else end / theirs.reference for end in theirs.within)
        share = low, high
    return dataclasses.replace(theirs, reference=reference, share=share, within=None)


def _bounds(metric: RoundMetric, target: float, rules: RoundWorkload | None) -> GateWindow:
    low, high = metric.bounds(target)
    return GateWindow(reference=metric.reference, low=low, high=high, most=_most(metric, rules))


def _most(metric: RoundMetric, rules: RoundWorkload | None) -> float | None:
    """Return the highest score that a sample can have: tokens are limited, scores are 0 to 100."""
    if metric.name == "tokens_per_sample":
        return rules.lengths.max_output_tokens if rules else None
    return None if metric.name in COUNTS or metric.reference > 100 else 100.0


QUICK_DURATION_S = 60.0
"""Default length of a quick run (between-run noise dominates beyond this on typical GPUs)."""

OFFICIAL_POINT_S = 600.0
"""MLPerf Endpoints' shortest steady state, endpoints_rules.md of v1.0."""

QUICK_QUERIES = dict.fromkeys(("Server", "Interactive", "MultiStream"), LOADED_QUERIES)

QUICK_QUERIES_OTHERWISE = 64
"""Fewest queries of SingleStream's 90th percentile; gated metrics may need more in both."""

OWN_WORKLOAD = RoundScenario()
OWN_SINGLE_STREAM = dataclasses.replace(OWN_WORKLOAD, latency_percentile=0.90)


@dataclass(frozen=True)
class CaseData:
    """The data sets of a case: one that is timed and one that is scored, often the same.

    Attributes:
        constants: The round's constants of the scenario.
    """

    suite: Suite
    scenario: ScenarioEntry
    constants: RoundScenario

    def source(self, phase: Phase) -> DatasetSource:
        """Return the data set of a phase as the suite writes it."""
        return self.suite.data_of(self.scenario, phase)[1]

    def key(self, phase: Phase) -> KeyPath:
        """Return the key of the data set of a phase."""
        return self.suite.data_of(self.scenario, phase)[0]

    @property
    def shared(self) -> bool:
        """Whether the same data are timed and scored, so that one process does both."""
        return self.source("performance") == self.source("accuracy")

    @property
    def accuracy_scenario(self) -> str:
        """The first scenario with the scored data: it writes their accuracy baseline."""
        scored, scenarios = self.source("accuracy"), self.suite.scenarios
        return next(s.name for s in scenarios if self.suite.data_of(s, "accuracy")[1] == scored)

    @property
    def baseline_label(self) -> str:
        """Suffix of the accuracy baseline: "" if the first scenario writes it."""
        name = self.accuracy_scenario
        return "" if name == self.suite.scenarios[0].name else name

    def expected(self, phase: Phase = "performance") -> Expected:
        """Return the expected size of data: MLPerf's, unless a quick suite asks for a part."""
        source, rules = self.source(phase), self.suite.rules
        part = self.suite.profile == "quick" and source.is_part
        whole = self.suite.is_mlperf and rules is not None and not part
        samples = self.constants.accuracy_samples or (rules.dataset_samples if rules else None)
        if phase == "accuracy" and not self.shared:
            samples = gate_samples(self.suite, self.constants)
        return Expected(
            samples=samples if whole else None,
            whose=f"MLPerf's {rules.name}" if rules else "",
            digest=source.digest,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Planned:
    """A case and everything the suite says about it.

    Compared by identity: pytest hashes every parameter when it orders tests.

    Attributes:
        case: Its name.
        suite: The parsed suite, shared by all its cases.
        path: The suite file.
        line: Line of the engine entry.
        engine: The suite's engine entry, at one of its power limits where it has any.
        index: Of that entry in the suite.
        scenario: The suite's scenario entry.
        fewest_runs: Runs before anything can be decided.
        benchmark: The test with pytest-benchmark that it is, in place of what a suite says.
        audited: MLPerf's compliance tests are made, where its round asks for them.
    """

    case: Case
    suite: Suite
    path: Path
    line: int
    index: int
    engine: EngineEntry
    scenario: ScenarioEntry
    fewest_runs: int = 1
    benchmark: BenchmarkTest | None = None
    audited: bool = False

    @property
    def accelerators(self) -> tuple[str, ...]:
        """What must be here."""
        return (self.case.accelerator,)

    @property
    def techniques(self) -> tuple[str, ...]:
        """What it does that only the open division allows."""
        return tuple(self.engine.techniques)

    @property
    def options(self) -> Mapping[str, Any]:
        """What the suite says to the engine on this accelerator."""
        return self.engine.options_on(self.case.accelerator)

    @property
    def limit_w(self) -> int | None:
        """The power limit that its GPUs are set to, watts; None: as they are."""
        return self.engine.limit_w

    def limited(self, machine: Machine) -> Machine:
        """Return a machine with its GPUs at the power limit of this case."""
        return dataclasses.replace(machine, limit_w=self.limit_w)

    @property
    def elsewhere(self) -> str:
        """The other Python in which its engine runs, as the suite writes it; "": this one."""
        return "" if registry.harness(self.engine.use) else title_of(self.engine)

    @property
    def harness(self) -> str:
        """Who measures it in place of LoadGen and our own loop; "": nobody."""
        return registry.harness(self.engine.use) if self.case.scenario == "Concurrency" else ""

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The tests this case has."""
        if self.scorer_name and not registry.is_timed(self.engine.use):
            return ("accuracy",)
        kinds: list[Kind] = ["accuracy", "performance"] if self.scorer_name else ["performance"]
        if EFFICIENCY & set(self.suite.limits):
            kinds.append("efficiency")
        return (*kinds, *self.audits)

    @property
    def audits(self) -> tuple[Kind, ...]:
        """MLPerf's compliance tests of a closed submission, where they are to be made."""
        suite = self.suite
        asked = self.audited and suite.division == "closed" and suite.rules is not None
        if not asked or not suite.rules or self.case.scenario not in suite.rules.scenarios:
            return ()
        return tuple(test for test in AUDITS if test in suite.rules.compliance)

    @property
    def scorer_name(self) -> str:
        """What the suite calls its scorer, else the round; "": performance only."""
        source, rules = self.suite.workload.scorer, self.suite.rules
        return source.use if source else rules.scorer if rules else ""

    @property
    def scorer(self) -> Factory | None:
        """The scorer of the accuracy pass as the suite writes it, or None: performance only."""
        if not self.scorer_name:
            return None
        source = self.suite.workload.scorer
        target = registry.target("scorers", self.scorer_name)
        return Factory(target=target, options=source.options if source else {})

    @property
    def accuracy_reference(self) -> EngineEntry:
        """The engine entry whose scores this case's are compared with: its own, or the suite's.

        All power limits of an entry share its scores.
        """
        return self.suite.reference_engine or self.entry

    @property
    def entry(self) -> EngineEntry:
        """The engine entry as the suite writes it, with all its power limits."""
        return self.suite.engines[self.index]

    def margin(self, metric: str) -> Margin:
        """Return the drop of a score that does not matter: the suite's, the round's, or 0.5 %."""
        if self.suite.margin is not None:
            return self.suite.margin
        rule = self.suite.rules.metrics.get(metric) if self.suite.rules else None
        if rule is None or rule.margin is None:
            return DEFAULT_MARGIN
        return Margin(value=rule.margin, is_share=True)

    @property
    def data(self) -> CaseData:
        """The data sets that are timed and scored."""
        return CaseData(self.suite, self.scenario, self.round_scenario)

    def bounds(self, lower: Collection[str]) -> Mapping[str, GateWindow] | None:
        """Return what each score must keep within; see `score_bounds`."""
        return score_bounds(self.suite, self.round_scenario, lower)

    @property
    def round_scenario(self) -> RoundScenario:
        """The round's constants of this scenario."""
        rules = self.suite.rules
        default = OWN_SINGLE_STREAM if self.case.scenario == "SingleStream" else OWN_WORKLOAD
        return rules.scenarios.get(self.case.scenario, default) if rules else default

    @property
    def limits(self) -> dict[str, float]:
        """The gated performance metrics with their limits, as shares."""
        if self.benchmark:
            return dict(self.benchmark.limits)
        limits = self.suite.gated(self.scenario)
        if self.engine.replicas_on(self.case.accelerator) == 1:
            limits.pop(SLOWEST_REPLICA, None)
        return limits

    @property
    def efficiency_limits(self) -> dict[str, float]:
        """The metrics of `test_efficiency` with their limits, as shares."""
        return efficiency_limits(self.suite.limits, tokens=self.suite.tokens)

    @property
    def seconds_per_run(self) -> float:
        """Planned length of the timed part of one run, seconds."""
        if self.benchmark:
            return self.benchmark.seconds
        points, official = len(self.scenario.points or ()), self.suite.profile == "official"
        if points and official:
            return points * OFFICIAL_POINT_S
        if official:
            return self.round_scenario.min_duration_ms / 1000
        shortest = self.scenario.min_duration or QUICK_DURATION_S
        if points:
            return points * shortest
        rate = self.scenario.rate_on(self.case.accelerator)
        if rate is None or self.case.scenario == "MultiStream":
            return shortest
        return max(shortest, self.fewest_queries / rate)

    @property
    def runs_per_value(self) -> tuple[int, int]:
        """Processes that one value takes, usually and at most: one, or those of a search."""
        find = self.scenario.find
        return (USUAL_RUNS, find.max_runs) if find else (1, 1)

    @property
    def fewest_queries(self) -> int:
        """Fewest queries of a quick run; windows of a curve hang on nothing that limits say."""
        loadgen = QUICK_QUERIES.get(self.case.scenario, QUICK_QUERIES_OTHERWISE)
        gated = (METRICS[n].min_queries for n in self.limits if not self.scenario.points)
        return self.scenario.min_query_count or max((loadgen, *gated))

    @property
    def latency_limits(self) -> dict[str, float]:
        """What LoadGen limits, seconds by metric; nothing but in a loaded scenario."""
        if self.case.scenario not in LOADED_SCENARIOS:
            return {}
        return limits_of(self.scenario, self.round_scenario, tokens=self.suite.tokens)

    @property
    def engine_key(self) -> KeyPath:
        """The key of the engine entry."""
        return "engines", self.index

    def place(self, key: KeyPath) -> str:
        """Return file and line of a key of the suite."""
        if self.path.suffix == ".toml":
            return place_of(self.path, key)
        return f"{self.path}:{self.line}"


def plan_suite(path: Path) -> list[Planned]:
    """Read a suite file, once, and return its cases in order; a defect is a SuiteError."""
    suite, text = load_suite(path)
    checks = (accelerator_defects, source_defects, claim_defects, build_defects)
    if defects := [defect for check in checks for defect in check(suite)]:
        raise all_defects(path, text, defects)
    lines = lines_of_tables(text, "engines") or [line_of(text, ("engines",))]
    return planned_cases(suite, path, lambda index: lines[min(index, len(lines) - 1)])


def in_profile(
    planned: Sequence[Planned], profile: Profile | None, *, audited: bool = False
) -> list[Planned]:
    """Return the cases of one suite as if it named this profile; None: its own.

    Args:
        audited: MLPerf's compliance tests are made too.

    Raises:
        SuiteError: It is official, and nothing here scores the workload or runs it as the round
            does.
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

"""Gates hold also where MLPerf's submission checker passes everything, or looks up other limits."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from pytest_mlperf import registry
from pytest_mlperf.cli.suites import read_suites
from pytest_mlperf.core.case import Profile, Scenario
from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.core.metrics import gated_metrics
from pytest_mlperf.rounds import ROUNDS, RoundWorkload, load_round
from pytest_mlperf.suite.model import Suite
from pytest_mlperf.suite.plan import in_profile, plan_suite
from pytest_mlperf.suite.resolve import latency_limits, settings_of
from pytest_mlperf.suite.tables import ExtensionTable

EVERY = [(own, name) for name in ROUNDS for own in load_round(name).workloads.values()]
INTERACTIVE = [
    pytest.param(workload, name, id=f"{name}-{workload.name}")
    for workload, name in EVERY
    if "Interactive" in workload.scenarios
]

ENDS = (-float("inf"), float("inf"))

SUITE = """\
schema = 1
round = "{round}"

[workload]
name = "{name}"
{workload}

[[engines]]
use = "null"
precision = "fp16"
accelerators = ["cpu"]
{scenarios}
"""
SERVER = """
[[scenarios]]
name = "Server"
target_qps = 1

[[scenarios]]
name = "Interactive"
target_qps = 1
"""
DATA = 'dataset = { use = "synthetic" }\n'


def alone(name: str, scenario: str) -> str:
    """Return a suite of v6.1 whose scorer is not the round's."""
    workload = 'dataset = { use = "synthetic", samples = 8 }\nscorer = { use = "mine:Scorer" }'
    scenarios = f'[[scenarios]]\nname = "{scenario}"'
    return SUITE.format(round="v6.1", name=name, workload=workload, scenarios=scenarios)


def test_a_gate_that_mlperfs_checker_never_closes() -> None:
    """And every gated score is one that the scorer gives: other bounds hold for every model."""
    uncomputed = [
        (round_name, workload.name, metric)
        for workload, round_name in EVERY
        if workload.scorer
        for own in (workload.metrics, *(each.metrics for each in workload.scenarios.values()))
        for metric in own
        if metric not in (registry.metrics(workload.scorer) or ())
    ]
    assert uncomputed == []
    cases: list[tuple[str, str, float | None, float, float]] = [
        ("rgat", "top1", 72.1314, 72.2, 0.73),
        ("pointpainting", "map", 54.19575, 54.2, 0.5425),
        ("dlrm-v3", "normalized_entropy", None, 0.8, 1.0),
        ("dlrm-v3", "gauc", 0.78584337, 0.79, 0.5),
        ("gpt-oss-120b", "tokens_per_sample", None, 4000.0, 11_000.0),
        ("qwen3.6-27b", "accuracy", 83.6431, 83.7, 83.6),
        ("qwen3.6-27b", "normalized", 85.3212, 85.4, 85.3),
        ("e2e-rag-db", "accuracy", 98.0, 98.0, 97.9),
    ]
    for name, score, least, passes, fails in cases:
        newest = next(each for each in reversed(ROUNDS) if name in load_round(each).workloads)
        workload = load_round(newest).workloads[name]
        bounds = workload.metrics[score].bounds(workload.targets[0])
        low, high = (
            bound if bound is not None else default
            for bound, default in zip(bounds, ENDS, strict=True)
        )
        assert bounds[0] == (least and pytest.approx(least, rel=1e-6)), name
        assert low <= passes <= high, name
        assert not low <= fails <= high, name


@pytest.mark.parametrize(("workload", "round_name"), INTERACTIVE)
def test_interactive_has_its_own_limits_though_the_log_says_server(
    workload: RoundWorkload, round_name: str, tmp_path: Path
) -> None:
    """The checker looks up those of the scenario in the log, which are looser."""
    file = tmp_path / "s.mlperf.toml"
    phases = 'accuracy_dataset = { use = "synthetic", samples = 4395 }'
    text = SUITE.format(
        round=round_name,
        name=workload.name,
        workload=DATA + (phases if workload.accuracy_samples else ""),
        scenarios=SERVER
        + (DATA if workload.scenarios[Scenario.INTERACTIVE].accuracy_samples else ""),
    )
    file.write_text(text, "utf-8")
    profile: Profile = "official" if workload.loadgen else "quick"
    server, interactive = (
        next(case for case in read_suites([file], profile) if case.case.scenario == name)
        for name in ("Server", "Interactive")
    )
    expected = workload.scenarios[Scenario.INTERACTIVE]
    stated = (expected.ttft_limit_ms, expected.tpot_limit_ms, expected.latency_limit_ms)
    ms = [None if stated_ms is None else stated_ms / 1e3 for stated_ms in stated]
    limits = latency_limits(interactive)

    assert [limits.get(name) for name in ("ttft_p99", "tpot_p99", "latency_p99")] == ms
    assert all(limits[name] < latency_limits(server)[name] for name in limits)
    loadgen_settings = settings_of(interactive, target_qps=1.0)
    assert loadgen_settings.scenario == "Server"
    assert loadgen_settings.equal_issue == workload.loadgen
    assert list(interactive.limits) == list(
        gated_metrics(Scenario.INTERACTIVE, tokens=workload.tokens)
    )


@pytest.mark.parametrize("name", load_round("v6.1").workloads)
def test_a_score_that_is_not_the_rounds_never_meets_mlperfs_gate(name: str, tmp_path: Path) -> None:
    """Many scorers have an "accuracy", a "map" or an "exact_match" of their own."""
    rules = load_round("v6.1").workloads[name]
    file = tmp_path / "s.mlperf.toml"
    (scenario, *_) = rules.scenarios
    file.write_text(alone(rules.names[0], scenario), "utf-8")
    (planned,) = plan_suite(file)

    for use in ("", *registry.registered("scorers"), "mine:Scorer"):
        suite = with_scorer(planned.suite, use)
        case = dataclasses.replace(planned, suite=suite)
        is_theirs = bool(rules.scorer) and use in ("", rules.scorer, "mine:Scorer")
        assert bool(case.bounds(())) is is_theirs or not suite.workload.scorer
        assert bool(suite.gaps) is not (is_theirs and rules.loadgen)
        if suite.gaps:
            with pytest.raises(SuiteError, match="an official result needs"):
                in_profile([case], "official")
        if use and not is_theirs:
            assert f"here by {use}; MLPerf's gate on" in suite.scorer_gap


def test_the_rounds_scorer_by_its_place_is_the_rounds(tmp_path: Path) -> None:
    file = tmp_path / "s.mlperf.toml"
    file.write_text(alone("whisper", "Offline"), "utf-8")
    (planned,) = plan_suite(file)

    for use, is_of_round in ("word_accuracy", True), ("ingestion", False):
        target = registry.target("scorers", use)
        assert bool(with_scorer(planned.suite, target).scorer_gap) is not is_of_round


def with_scorer(suite: Suite, use: str) -> Suite:
    """Return a suite with another scorer; "" is the round's."""
    scorer = ExtensionTable(use=use) if use else None
    return suite.model_copy(
        update={"workload": suite.workload.model_copy(update={"scorer": scorer})}
    )

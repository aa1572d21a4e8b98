"""Test that a slow start does not count as speed, and that a far too long run does not begin."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pytest_mlperf.core.reason import Key
from pytest_mlperf.core.verdict import Outcome, Verdict
from pytest_mlperf.reports.sentences import sentence
from tests.plugin.project import Project

pytestmark = pytest.mark.process


def verdicts(project: Project, scenarios: str, options: str, *more: str) -> dict[str, Verdict]:
    """Return the verdict of each scenario."""
    shutil.copy(Path(__file__).with_name("start_engine.py"), project.path / "start_engine.py")
    engine = f'[[engines]]\nuse = "start_engine:SlowStart"\naccelerators = ["cpu"]\n{options}\n'
    limits = '[limits]\nthroughput = { max_drop = "40%" }'
    project.suite(engines=engine, scenarios=scenarios, more=limits)
    project.run("suites", "-o", "mlperf_control=off", *more)
    return {one.verdict.case.scenario: one.verdict for one in project.results().cases}


def scenario(name: str, *lines: str) -> str:
    return "\n".join(["[[scenarios]]", f'name = "{name}"', *lines, ""])


def test_slow_first_queries_do_not_set_the_rate_and_the_run_lasts_as_planned(
    project: Project,
) -> None:
    """20 queries of 30 ms before those of 1 ms; the later runs do the work of the first."""
    planned = 'min_duration = "700ms"'
    scenarios = scenario("SingleStream", planned) + scenario("Offline", planned)
    options = "options = { first = 20, first_s = 0.03, then_s = 0.001 }"

    record = ("--mlperf-update=missing", "-omlperf_baseline_runs=2")
    judged = verdicts(project, scenarios, options, *record)

    for verdict in judged.values():
        assert verdict.outcome is Outcome.RECORDED, verdict.headline
    stream = judged["SingleStream"].runs
    assert all(run.metrics["latency_p90"] < 0.01 for run in stream)
    assert stream[0].duration_s > 0.65
    assert max(run.queries for run in stream) - min(run.queries for run in stream) <= 1
    assert all(run.duration_s > 0.35 for run in judged["Offline"].runs)


def test_a_slow_start_behind_the_warm_up_makes_runs_invalid(project: Project) -> None:
    """A warm-up lasts half a second here, and half of the offered rate is enough for it."""
    scenarios = scenario("SingleStream", "target_qps = 90", 'min_duration = "500ms"')
    options = "options = { first = 38, first_s = 0.02, then_s = 0.001 }"

    (verdict,) = verdicts(project, scenarios, options).values()

    assert verdict.outcome is Outcome.INVALID, verdict.headline
    assert {reason.key for reason in verdict.reasons} == {Key.SLOW_START}


@pytest.mark.parametrize("name", ["Offline", "Server", "SingleStream"])
def test_a_rate_far_too_high_is_an_error_before_the_run(project: Project, name: str) -> None:
    lines = ['min_duration = "500ms"', "target_qps = 100000"]
    lines += ['latency_limit = "1s"'] * (name == "Server")
    options = "options = { first = 0, first_s = 0.0, then_s = 0.005 }"

    (verdict,) = verdicts(project, scenario(name, *lines), options).values()

    assert verdict.outcome is Outcome.ERROR, sentence(verdict.headline)
    assert "the run would take" in sentence(verdict.headline)

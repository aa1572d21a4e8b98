"""Test that a result is compared with the best official one of its kind, and with no other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_mlperf.addons.official import mlperf_case_facts
from pytest_mlperf.addons.official.placing import placing_of
from pytest_mlperf.core.case import Scenario
from pytest_mlperf.core.results import CaseResult
from pytest_mlperf.core.verdict import Verdict
from pytest_mlperf.rounds.published import official_results
from tests.core.made import present
from tests.reports.verdicts import DROP, OFFICIAL, result


def of(verdict: Verdict = DROP, **changes: object) -> CaseResult:
    """Return the result of a case of ResNet-50, Offline, on one H200."""
    case = replace(verdict.case, **changes)  # type: ignore[arg-type]
    return result(replace(verdict, case=case))


def test_it_is_the_best_per_gpu_of_the_closed_division_on_that_kind_of_gpu() -> None:
    alike = [
        each.value / each.count
        for each in official_results()
        if each.benchmark == "resnet" and each.scenario == "Offline" and each.division == "closed"
        if each.accelerator.startswith("NVIDIA H200-SXM") and each.availability == "available"
    ]

    single, eight = present(placing_of(of())), present(placing_of(of(accelerator="8xH200")))

    assert single.best.value / single.best.count == max(alike)
    rate = DROP.runs[-1].metrics["throughput"]
    assert single.share == pytest.approx(rate / max(alike), rel=0.05)
    assert eight.share == pytest.approx(single.share / 8)
    assert eight.best == single.best


def test_a_case_unlike_every_official_result_has_no_share() -> None:
    """Another model, a rate, a time, a technique, a handicap, no run, and a CPU."""
    others = [
        of(workload="tiny-resnet50"),
        of(scenario=Scenario.SERVER),
        of(scenario=Scenario.SINGLE_STREAM),
    ]
    others += [replace(of(), techniques=("pruning",)), replace(of(), handicap=0.1)]
    others += [result(replace(DROP, runs=())), result(replace(DROP, subject=None))]

    assert [placing_of(unlike) for unlike in others] == [None] * 7
    assert mlperf_case_facts(others[0]) == {}


def test_the_fact_names_the_result_and_its_system() -> None:
    assert mlperf_case_facts(of()) == {"official": OFFICIAL}

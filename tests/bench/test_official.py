"""A result stands beside the best official one of its kind, and beside no other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_mlperf.bench.official import Placing, Unplaced, placed, placing_of
from pytest_mlperf.core.results import CaseResult
from pytest_mlperf.core.verdict import Verdict
from pytest_mlperf.rounds.published import official_results
from tests.reports import verdicts
from tests.reports.verdicts import result

DROP = verdicts.DROP


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

    placing = placing_of(of())

    assert placing is not None
    assert placing.best.value / placing.best.count == max(alike)
    rate = DROP.runs[-1].metrics["throughput"]
    assert placing.share == pytest.approx(rate / max(alike), rel=0.05)


def test_eight_gpus_are_compared_gpu_by_gpu() -> None:
    one, eight = placing_of(of()), placing_of(of(accelerator="8xH200"))

    assert one is not None
    assert eight is not None
    assert eight.share == pytest.approx(one.share / 8)
    assert eight.best == one.best


@pytest.mark.parametrize(
    "unlike",
    [
        of(workload="tiny-resnet50"),
        of(scenario="Server"),
        of(scenario="SingleStream"),
        replace(of(), techniques=("pruning",)),
        replace(of(), handicap=0.1),
        result(replace(DROP, runs=())),
        result(replace(DROP, subject=None)),
    ],
    ids=["another model", "a rate", "a time", "a technique", "handicapped", "no run", "a CPU"],
)
def test_what_is_unlike_every_official_result_stands_beside_none(unlike: CaseResult) -> None:
    assert placing_of(unlike) is None


@pytest.mark.parametrize(
    ("changes", "identity", "reason"),
    [
        ({}, {"cpu": "x"}, "H200 is no GPU that has official results"),
        ({"scenario": "Server"}, None, "its rate was offered, and an official one is the highest"),
        ({"scenario": "SingleStream"}, None, "the value of SingleStream is a latency, and"),
        ({"workload": "mine"}, None, "no result of mine, Offline, counts such samples or tokens"),
    ],
)
def test_it_is_said_why_a_case_stands_nowhere(
    changes: dict[str, object], identity: dict[str, object] | None, reason: str
) -> None:
    case = replace(DROP.case, **changes)  # type: ignore[arg-type]
    assert DROP.subject is not None

    standing = placed(case, identity or DROP.subject.identity, DROP.runs, searched=False)

    assert isinstance(standing, Unplaced)
    assert standing.reason.startswith(reason)


def test_results_of_another_source_are_taken_as_they_are() -> None:
    assert DROP.subject is not None
    results = official_results("v4.1")
    asked = (DROP.case, DROP.subject.identity, DROP.runs)

    of_round, of_none = (placed(*asked, searched=False, results=each) for each in (results, ()))

    assert isinstance(of_none, Unplaced)
    assert isinstance(of_round, Placing)
    assert of_round.best.round == "v4.1"

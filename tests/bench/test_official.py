"""A result stands beside the best official one of its kind, and beside no other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from pytest_mlperf.bench.official import Placing, Unplaced, placed, placing_of
from pytest_mlperf.core.baseline import Property
from pytest_mlperf.core.results import CaseResult
from pytest_mlperf.core.verdict import Verdict
from pytest_mlperf.rounds.published import official_results
from tests.core.made import present
from tests.reports import verdicts
from tests.reports.verdicts import result

DROP = verdicts.DROP


IDENTITY = present(DROP.subject).identity


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

    one, eight = present(placing_of(of())), present(placing_of(of(accelerator="8xH200")))

    assert one.best.value / one.best.count == max(alike)
    rate = DROP.runs[-1].metrics["throughput"]
    assert one.share == pytest.approx(rate / max(alike), rel=0.05)
    assert eight.share == pytest.approx(one.share / 8)
    assert eight.best == one.best


def test_what_is_unlike_every_official_result_stands_beside_none() -> None:
    """Another model, a rate, a time, a technique, a handicap, no run, and a CPU."""
    others = [of(workload="tiny-resnet50"), of(scenario="Server"), of(scenario="SingleStream")]
    others += [replace(of(), techniques=("pruning",)), replace(of(), handicap=0.1)]
    others += [result(replace(DROP, runs=())), result(replace(DROP, subject=None))]

    assert [placing_of(unlike) for unlike in others] == [None] * 7


def test_it_is_said_why_a_case_stands_nowhere() -> None:
    """Results of another source are taken as they are."""
    of_round, of_none = (
        placed(DROP.case, IDENTITY, DROP.runs, searched=False, results=results)
        for results in (official_results("v4.1"), ())
    )

    cases: list[tuple[dict[str, Any], Mapping[str, Property], str]] = [
        ({}, {"cpu": "x"}, "H200 is no GPU that has official results"),
        ({"scenario": "Server"}, IDENTITY, "its rate was offered, and an official one is the high"),
        ({"scenario": "SingleStream"}, IDENTITY, "the value of SingleStream is a latency, and"),
        ({"workload": "mine"}, IDENTITY, "no result of mine, Offline, counts such samples or tok"),
    ]
    for changes, identity, reason in cases:
        standing = placed(replace(DROP.case, **changes), identity, DROP.runs, searched=False)
        assert isinstance(standing, Unplaced)
        assert standing.reason.startswith(reason)
    assert isinstance(of_none, Unplaced)
    assert isinstance(of_round, Placing)
    assert of_round.best.round == "v4.1"

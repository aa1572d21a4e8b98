"""A case has a share of an official result of its kind, or a reason why it has none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pytest_mlperf.bench.official import Placing, compare_with_official
from pytest_mlperf.core.baseline import Property
from pytest_mlperf.core.case import Scenario
from pytest_mlperf.rounds.published import official_results
from tests.core.made import present
from tests.reports import verdicts

DROP = verdicts.DROP


IDENTITY = present(DROP.subject).identity


def test_the_reason_for_a_missing_official_share_is_stated() -> None:
    """Results of another source are taken as they are."""
    of_round, of_none = (
        compare_with_official(DROP.case, IDENTITY, DROP.runs, searched=False, results=results)
        for results in (official_results("v4.1"), ())
    )

    cases: list[tuple[dict[str, Any], Mapping[str, Property], str]] = [
        ({}, {"cpu": "x"}, "H200 is not a GPU that has official results"),
        (
            {"scenario": Scenario.SERVER},
            IDENTITY,
            "the case runs at a fixed rate, but an official result is",
        ),
        (
            {"scenario": Scenario.SINGLE_STREAM},
            IDENTITY,
            "SingleStream reports a latency, but",
        ),
        ({"workload": "mine"}, IDENTITY, "there is no official result of mine, Offline, in the"),
    ]
    for changes, identity, reason in cases:
        standing = compare_with_official(
            replace(DROP.case, **changes), identity, DROP.runs, searched=False
        )
        assert isinstance(standing, str)
        assert standing.startswith(reason)
    assert isinstance(of_none, str)
    assert isinstance(of_round, Placing)
    assert of_round.best.round == "v4.1"

"""Test the plan, and messages about cases that do not run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_mlperf.core.case import Case, Kind, Scenario
from pytest_mlperf.reports.costs import cost_of
from pytest_mlperf.reports.terminal.layout import relative
from pytest_mlperf.reports.terminal.selection import notices, plan
from pytest_mlperf.suite.pairs import Testable
from tests.reports.verdicts import CASE, texts_of

SUITE = Path("suites/rn.mlperf.toml")


def planned(case: Case, seconds_per_run: float, **fields: Any) -> Testable:
    """Return a case with what the plan needs of it."""
    usual = {
        "kinds": (Kind.PERFORMANCE,),
        "fewest_runs": 1,
        "runs_per_value": (1, 1),
        "elsewhere": "",
    }
    plan_fields = {**usual, **fields}
    made = SimpleNamespace(case=case, path=SUITE, seconds_per_run=seconds_per_run, **plan_fields)
    return cast(Testable, made)


QUICK = planned(CASE, 60.0)
OFFICIAL = planned(replace(CASE, scenario=Scenario.SERVER, accelerator="8xH200"), 600.0)


def test_a_search_counts_with_its_runs() -> None:
    """Four usually, eight at most: 4 minutes if one search decides, 40 if all five are needed.

    Each run has 2 s of set-up.
    """
    search = planned(CASE, 60.0, runs_per_value=(4, 8))

    cost = cost_of(search, {})

    assert (cost.first_s, cost.at_most_s(5)) == (248.0, 2480.0)


def test_the_plan_reads_as_designed() -> None:
    """It counts with the most runs allowed and says what runs in another Python."""
    kinds_by_case: dict[tuple[Path, str], set[Kind]] = {
        (SUITE, QUICK.case.id): {Kind.PERFORMANCE, Kind.ACCURACY},
        (SUITE, OFFICIAL.case.id): {Kind.PERFORMANCE},
    }
    plans = {
        f"QUICK {width}": "\n".join(plan([QUICK, OFFICIAL], kinds_by_case, width, max_runs=5))
        for width in (80, 60)
    }
    assert plans == texts_of("plan")
    lines = plan([QUICK], {}, 200, max_runs=2, idle_s=0.0)
    assert lines[-1] == "with --mlperf-against, which measures another build too, about 4 min 8 s"
    assert lines[-2] == (
        "1 case: usually 2 min 4 s; 1 min 2 s if one run decides each, 2 min 4 s if all 2 are "
        "needed; loading and accuracy passes come on top"
    )
    docker = planned(CASE, 60.0, elsewhere="command docker run … python3")

    lines = plan([docker, OFFICIAL, docker], {}, 120, max_runs=2)
    assert "2 cases in command docker run … python3" in lines


def test_suites_that_were_not_asked_for_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths are shown from the working folder."""
    monkeypatch.chdir(tmp_path)
    here = [
        tmp_path / "suites" / "tiny" / "a.mlperf.toml",
        tmp_path / "suites" / "b.mlperf.toml",
        tmp_path / "other" / "c.mlperf.toml",
    ]
    assert notices(here, {}, "cpu", 80) == ["3 suites not collected; run: pytest other suites"]
    assert notices(here[:1], {}, "cpu", 80) == ["1 suite not collected; run: pytest suites"]
    monkeypatch.chdir(tmp_path)
    assert relative(tmp_path / "a" / "b.json") == "a/b.json"
    assert relative(Path("/elsewhere/b.json")) == "/elsewhere/b.json"


def test_tests_whose_accelerator_is_not_here_are_one_line() -> None:
    """A long list is folded, an empty one says nothing."""
    assert notices([], {"8xH100": 1, "H200": 2}, "2xL40S, cpu", 100) == [
        "3 tests deselected, accelerator not here: 8xH100 (1), H200 (2); here: 2xL40S, cpu"
    ]
    lines = notices([], {f"GPU{n}": 1 for n in range(20)}, "cpu", 60)
    assert len(lines) > 1
    assert max(map(len, lines)) <= 60
    assert notices([], {}, "cpu", 80) == []
    assert notices([], {"H200": 2}, "cpu", 80, action="planned") == [
        "2 tests planned, accelerator not here: H200 (2); here: cpu"
    ]

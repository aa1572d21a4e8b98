"""Power limits of an engine entry: each makes cases of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.reports.terminal.selection import extra_time_lines
from pytest_mlperf.suite.pairs import plan_pairs
from pytest_mlperf.suite.plan import Planned, plan_suite
from pytest_mlperf.suite.tables import EngineEntry
from tests.suite.texts import with_


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "s.mlperf.toml"


def plan(file: Path, entry: str, more: str = "") -> list[Planned]:
    file.write_text(with_(('accelerators = ["cpu"]', entry), more=more), "utf-8")
    return plan_suite(file)


def seen(planned: list[Planned]) -> dict[str, int | None]:
    return {one.case.id.removeprefix("mine-Offline-"): one.limit_w for one in planned}


def test_each_limit_makes_a_case(file: Path) -> None:
    on_one = 'accelerators = ["cpu", "H200", "H100"]\non = { H200.power_limit_w = [400, 700] }'
    otherwise = 'accelerators = ["H200", "H100"]\npower_limit_w = 400\n'
    both = ("H200", "8xH200")
    several = {f"null-{watts}W-fp32-{name}": watts for watts in (700, 400) for name in both}
    apart = {"null-400W-fp32-H200": 400, "null-700W-fp32-H200": 700}
    entries: dict[str, dict[str, int | None]] = {
        'accelerators = ["H200"]': {"null-fp32-H200": None},
        'accelerators = ["H200"]\npower_limit_w = 500': {"null-500W-fp32-H200": 500},
        'accelerators = ["H200", "8xH200"]\npower_limit_w = [700, 400]': {**several},
        on_one: {"null-fp32-cpu": None, "null-fp32-H100": None, **apart},
        f"{otherwise}on = {{ H100.power_limit_w = 300 }}": {
            "null-400W-fp32-H200": 400,
            "null-300W-fp32-H100": 300,
        },
    }
    for entry, cases in entries.items():
        planned = plan(file, entry)
        assert seen(planned) == cases
        assert {case.engine_key for case in planned} == {("engines", 0)}


def test_two_limits_make_two_cases_of_one_entry(file: Path) -> None:
    """One accuracy baseline serves all limits; they can be compared, and a plan counts them."""
    first, second = plan(file, 'accelerators = ["H200"]\npower_limit_w = [400, 700]')
    assert first.accuracy_reference is second.accuracy_reference
    assert first.accuracy_reference.label == "null"
    pair = '\n[[pairs]]\na = "null-700W"\nb = "null-400W"\nexpect = ">= 1.1x"\n'
    expected_failure = (
        '[[expected_failures]]\nengine = "null-400W"\nreason = "slow"\nuntil = 2027-01-31\n'
    )
    planned = plan(
        file, 'accelerators = ["H200"]\npower_limit_w = [400, 700]', pair + expected_failure
    )
    (claim,) = plan_pairs(planned)
    assert (claim.a.limit_w, claim.b.limit_w) == (700, 400)
    planned = plan(file, 'accelerators = ["H200"]\npower_limit_w = [700, 400]')
    assert extra_time_lines(planned, max_runs=5, warmup="never") == [
        "2 cases with the GPUs' power limit at 400, 700 W: set before the case and restored "
        "after it, which needs permission unless the GPU has this limit already"
    ]


def test_entries_are_compared_also_when_their_limits_were_asked_for() -> None:
    rows: list[Any] = [None, [400, 700]]
    for limits in rows:
        entry, other = (EngineEntry(use="null", power_limit_w=limits) for _ in range(2))
        assert [each.limit_w for each in entry.at_limits] == (limits or [None])
        assert entry == other
        assert other.at_limits == entry.at_limits

"""Test the parts of a plan in addition to its runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pytest_mlperf.reports.terminal.selection import extra_time_lines
from pytest_mlperf.suite.pairs import Testable, plan_pairs
from pytest_mlperf.suite.plan import plan_suite

SUITE = """\
schema = 1
round = "v4.1"
[workload]
name = "mine"
[[engines]]
use = "acme:Acme"
accelerators = {accelerators}
{baseline_engine}
[[engines]]
use = "null"
accelerators = ["H200"]
[[scenarios]]
name = "Offline"
target_qps = 500
min_duration = "{seconds}s"
"""
PAIR = '[[pairs]]\na = "Acme-H200"\nb = "null-H200"\nexpect = ">= 1.2x"\n'


def planned(
    folder: Path, accelerators: str, *, named: bool = False, seconds: int = 90
) -> list[Testable]:
    file = folder / "s.mlperf.toml"
    build = 'baseline_engine = { git = "v1" }' if named else ""
    text = SUITE.format(accelerators=accelerators, baseline_engine=build, seconds=seconds)
    file.write_text(text, "utf-8")
    return [*plan_suite(file)]


def test_warm_ups_are_counted(tmp_path: Path) -> None:
    rows: list[Any] = [
        ('["cpu"]', "auto", 90, []),
        ('["H200"]', "never", 90, []),
        (
            '["H200"]',
            "auto",
            90,
            ["plus 1 warm-up run on H200, whose result does not count: 1 min"],
        ),
        ('["H200"]', "auto", 6, ["plus 1 warm-up run on H200, whose result does not count: 6 s"]),
        (
            '["H200", "8xH200", "cpu"]',
            "auto",
            90,
            [
                "plus 2 warm-up runs, one on each of H200, 8xH200, whose results do not count: "
                "2 min in all"
            ],
        ),
        (
            '["cpu"]',
            "always",
            90,
            [
                "plus 2 warm-up runs, one on each of cpu, H200, whose results do not count: "
                "2 min in all"
            ],
        ),
    ]
    for accelerators, warmup, seconds, expected in rows:
        cases = planned(tmp_path, accelerators, seconds=seconds)
        assert extra_time_lines(cases, max_runs=5, warmup=warmup) == expected


def test_drops_that_can_be_measured_again_are_counted(tmp_path: Path) -> None:
    """A pair warms up the accelerators of its sides."""
    cases = planned(tmp_path, '["cpu"]', named=True)
    assert extra_time_lines(cases, max_runs=5) == [
        "a drop of 1 case with a baseline_engine is measured again, in up to 5 pairs of runs each: "
        "15 min if all of them drop"
    ]
    assert extra_time_lines(cases, max_runs=5, confirm="never") == []
    planned(tmp_path, '["H200"]')
    file = tmp_path / "s.mlperf.toml"
    file.write_text(file.read_text("utf-8") + PAIR, "utf-8")

    pairs: list[Testable] = [*plan_pairs(plan_suite(file))]
    assert extra_time_lines(pairs, max_runs=5) == [
        "plus 1 warm-up run on H200, whose result does not count: 1 min"
    ]

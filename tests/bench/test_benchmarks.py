"""A test with pytest-benchmark is judged by its own facts: no suite, engine or job is made up."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mlperf.bench.earlier import decision_advice, earlier_side
from pytest_mlperf.core.job import BenchmarkTest
from pytest_mlperf.suite.benchmarks import BENCHMARK_USE, PlannedBenchmark, benchmark_case
from tests.sources import modules, parsed

MADE_UP = {"Suite", "Planned", "Job", "LoadGenSettings", "Factory", "Seeds", "Expected"}


def planned(folder: Path) -> PlannedBenchmark:
    test = BenchmarkTest(
        case=benchmark_case("tests/test_a.py::test_b[1]", accelerator="cpu", precision="any"),
        engine_use=BENCHMARK_USE,
        facts={"engine": BENCHMARK_USE},
        test="tests/test_a.py::test_b[1]",
        file=str(folder / "tests/test_a.py"),
        folder=str(folder),
        options={},
        limits={"time_median": 0.05},
        seconds_per_run=1.0,
    )
    return PlannedBenchmark(job=test, path=folder / "tests/test_a.py", line=3)


@pytest.mark.parametrize("module", ["suite.benchmarks", "plugin.benchmarks", "run.benchmark"])
def test_the_modules_of_benchmarks_make_no_part_of_a_suite(module: str) -> None:
    called = {
        node.func.id
        for node in ast.walk(parsed(modules()[module]))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert called.isdisjoint(MADE_UP)


def test_a_benchmark_names_its_case_by_file_and_test(tmp_path: Path) -> None:
    case = planned(tmp_path).case
    assert case.id == "tests.test_a.py-Benchmark-test_b-1-any-cpu"


def test_advice_on_a_drop_of_a_benchmark_names_no_suite(tmp_path: Path) -> None:
    case: Any = SimpleNamespace(planned=planned(tmp_path), record=object(), subject=object())
    assert "suite" not in decision_advice(case)
    assert "baseline_engine" not in decision_advice(case)
    assert earlier_side(case) is None

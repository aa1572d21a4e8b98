"""A promise that is not kept fails a test that would pass; one that is kept is a fact."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = "pytester"

SUITE = """
schema = 1
round = "v4.1"
workload = { name = "first", dataset = { use = "synthetic", samples = 32 } }
engines = [{ use = "null", accelerators = ["cpu"], options = { latency_s = 0.002 } }]
scenarios = [{ name = "Offline", target_qps = 500.0, min_duration = "100ms" }]
"""
FAST = ("-omlperf_control=off", "-omlperf_wait_idle=0")
CASE = "first-Offline-null-fp32-cpu"


@pytest.fixture
def folder(pytester: pytest.Pytester) -> Path:
    (pytester.path / "suites").mkdir()
    (pytester.path / "suites" / "first.mlperf.toml").write_text(SUITE, "utf-8")
    (pytester.path / "kept.toml").write_text(f"[{CASE}]\nthroughput = 1\n", "utf-8")
    (pytester.path / "missed.toml").write_text(f"[{CASE}]\nthroughput = 1e6\n", "utf-8")
    (pytester.path / "broken.toml").write_text("throughput", "utf-8")
    return pytester.path


@pytest.mark.usefixtures("folder")
def test_a_promise_is_a_fact_or_fails(pytester: pytest.Pytester) -> None:
    kept = pytester.runpytest_subprocess(
        *FAST, "suites", "--mlperf-contract=kept.toml", "--mlperf-report=contract=contract.md"
    )
    assert kept.ret == 0
    table = (pytester.path / "contract.md").read_text("utf-8")
    assert f"| {CASE} | throughput " in table

    missed = pytester.runpytest_subprocess(*FAST, "suites", "--mlperf-contract=missed.toml")
    assert missed.ret == 1
    missed.stdout.fnmatch_lines(["GATE FAIL contract: throughput * of 1e+06 promised (*"])


@pytest.mark.usefixtures("folder")
def test_a_contract_that_cannot_be_read_is_an_error(pytester: pytest.Pytester) -> None:
    broken = pytester.runpytest_subprocess(*FAST, "suites", "--mlperf-contract=broken.toml")
    assert broken.ret == 3
    broken.stdout.fnmatch_lines(["*broken.toml: the contract cannot be read: *"])

"""Export results as a JSON file like that of pytest-benchmark's `--benchmark-json`."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

from pytest_mlperf.extension import CaseResult, ReportedSession, Results
from pytest_mlperf.hardware.machine import detect
from pytest_mlperf.reports.for_pytest import benchmark_rounds


def report(session: ReportedSession) -> str:
    """Return a session's results as JSON in the format of pytest-benchmark's `--benchmark-json`."""
    results = session.results
    benchmarks = [_benchmark(result) for result in results.cases]
    content = {
        "machine_info": machine_info(results),
        "commit_info": commit_info(results),
        "benchmarks": [benchmark for benchmark in benchmarks if benchmark],
        "datetime": results.started,
        "version": import_module("pytest_benchmark").__version__,
    }
    return json.dumps(content, indent=4) + "\n"


def machine_info(results: Results) -> dict[str, Any]:
    """Return pytest-benchmark's machine_info if the results were measured on this machine.

    Otherwise return the identity of each measured machine, by accelerator.
    """
    subjects = {
        result.verdict.case.accelerator: result.verdict.subject.identity
        for result in results.cases
        if result.verdict.subject
    }
    machine = detect(gpus=any(name != "cpu" for name in subjects))
    here = all(
        machine.with_identity(identity).identity(name) == identity
        for name, identity in subjects.items()
    )
    if here and subjects:
        plugin = import_module("pytest_benchmark.plugin")
        return dict(plugin.pytest_benchmark_generate_machine_info())
    return {name: dict(identity) for name, identity in subjects.items()}


def commit_info(results: Results) -> dict[str, Any]:
    """Return pytest-benchmark's commit_info, without branch and time, which results do not have."""
    commit = results.commit
    return {
        "id": commit.removesuffix("+") if commit else "unversioned",
        "time": None,
        "author_time": None,
        "dirty": bool(commit and commit.endswith("+")),
        "project": "",
        "branch": "(unknown)",
    }


def _benchmark(result: CaseResult) -> dict[str, Any] | None:
    """Return a test's result as an item of `benchmarks`; None if it failed or has no times."""
    timing = None if result.failed else benchmark_rounds(result.verdict)
    if timing is None:
        return None
    seconds, about = timing
    stats = import_module("pytest_benchmark.stats").Stats()
    for duration_s in seconds:
        stats.update(duration_s)
    return {
        "group": about["group"],
        "name": result.test.rpartition("::")[2],
        "fullname": result.test,
        **about,
        "options": {},
        "stats": {**stats.as_dict(), "data": stats.data, "iterations": 1},
    }

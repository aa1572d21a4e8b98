"""Verdicts as pytest-benchmark keeps them: one entry per performance case, one round per run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from statistics import fmean
from typing import Any

from pytest_mlperf.core.measurement import Run
from pytest_mlperf.core.metrics import METRICS
from pytest_mlperf.core.results import CaseResult, Results
from pytest_mlperf.core.verdict import Verdict

ROUNDS = {
    "throughput": "seconds per sample: 1 / throughput of a run",
    "latency_p50": "seconds: p50 latency of a run",
    "ttft_p50": "seconds: p50 time to first token of a run",
}
"""What a round is, by the metric that it is made from."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One benchmark as pytest-benchmark describes it.

    Attributes:
        group: The workload: cases of one workload stand in one table.
        params: What tells it apart, by name.
        param: The same as text.
        extra_info: Everything of ours, under the key "mlperf".
        rounds: One number per run, seconds, oldest first; at least one.
    """

    group: str
    params: Mapping[str, str]
    param: str
    extra_info: Mapping[str, Any]
    rounds: Sequence[float]


def entry(verdict: Verdict) -> Entry | None:
    """Return the benchmark of a performance verdict, or None where nothing can be one.

    Offline a round is the time per sample, elsewhere the p50 latency of the run (of a query, in
    MultiStream), or the time to the first token where no latency was measured.
    """
    metric = _timed(verdict)
    if verdict.kind != "performance" or metric is None:
        return None
    values = [run.metrics[metric] for run in verdict.runs]
    return Entry(
        group=verdict.case.workload,
        params={"case": verdict.case.id},
        param=verdict.case.id,
        extra_info={"mlperf": {**_about(verdict), "round": ROUNDS[metric]}},
        rounds=[1 / value for value in values] if metric == "throughput" else values,
    )


def document(
    results: Results, *, machine_info: Mapping[str, Any], commit_info: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a file of pytest-benchmark that holds what a live session would have given.

    Args:
        results: One session.
        machine_info: What pytest-benchmark compares before it compares anything else.
        commit_info: Likewise, of the tested project.
    """
    import pytest_benchmark

    benchmarks = [_benchmark(result) for result in results.cases]
    return {
        "machine_info": dict(machine_info),
        "commit_info": dict(commit_info),
        "benchmarks": [benchmark for benchmark in benchmarks if benchmark],
        "datetime": results.started,
        "version": pytest_benchmark.__version__,
    }


def commit_info(results: Results) -> dict[str, Any]:
    """Return what pytest-benchmark would say of the commit; the results know no branch or time."""
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
    """Return one item of `benchmarks`; a test that failed has none, as in a live session."""
    found = None if result.failed else entry(result.verdict)
    if found is None:
        return None
    stats: Any = import_module("pytest_benchmark.stats").Stats()  # light: knows no pytest
    for seconds in found.rounds:
        stats.update(seconds)
    return {
        "group": found.group,
        "name": result.test.rpartition("::")[2],
        "fullname": result.test,
        "params": dict(found.params),
        "param": found.param,
        "extra_info": dict(found.extra_info),
        "options": {},
        "stats": {**stats.as_dict(), "data": stats.data, "iterations": 1},
    }


def _timed(verdict: Verdict) -> str | None:
    """Return the metric that rounds are made from: one that every run has."""
    names = ("throughput",) if verdict.case.scenario == "Offline" else ("latency_p50", "ttft_p50")
    runs = verdict.runs
    return next((n for n in names if runs and all(n in run.metrics for run in runs)), None)


def _about(verdict: Verdict) -> dict[str, Any]:
    scores = verdict.accuracy.scores if verdict.accuracy else {}
    return {
        "case": verdict.case.id,
        "outcome": str(verdict.outcome),
        "runs": len(verdict.runs),
        "metrics": {name: _metric(name, verdict.runs) for name in verdict.runs[-1].metrics},
        "baseline": {m.metric: m.baseline for m in verdict.metrics if m.baseline is not None},
        "accuracy": dict(scores),
        "gate": verdict.gate.in_words if verdict.gate else None,
    }


def _metric(name: str, runs: Sequence[Run]) -> dict[str, Any]:
    values = [run.metrics[name] for run in runs if name in run.metrics]
    return {
        "last": values[-1],
        "mean": math.exp(fmean(map(math.log, values))),
        "unit": METRICS[name].unit if name in METRICS else "",
    }

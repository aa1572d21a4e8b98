"""Results for other programs: CSV, Prometheus' text format, github-action-benchmark's JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from statistics import geometric_mean
from typing import Any

from pytest_mlperf.core.measurement import Run
from pytest_mlperf.core.metrics import METRICS
from pytest_mlperf.core.results import UNVERIFIED_LABEL, CaseResult, Results
from pytest_mlperf.core.untrusted_text import json_text, visible
from pytest_mlperf.core.verdict import GateState, MetricVerdict, Verdict
from pytest_mlperf.judge.inputs import Direction

CASE = ("workload", "scenario", "engine", "precision", "accelerator")

FIGURES = ("now", "baseline", "change", "low", "high", "limit", "detectable")

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""How a text begins that a spreadsheet takes for a formula."""

CSV_HEADER = (
    *("test", "case", *CASE, "kind", "verdict", "failed", "metric", "unit", "metric_verdict"),
    *FIGURES,
    *("gate", "gate_samples", "gate_total"),
    *("runs", "runs_baseline", "profile", "round", "division", "commit", "started", "headline"),
)


def csv_table(results: Results) -> str:
    """Return a line per metric and score; figures in SI units, changes as shares.

    Text that a spreadsheet would take for a formula begins with an apostrophe.
    """
    out = io.StringIO()
    writer = csv.DictWriter(out, CSV_HEADER, lineterminator="\n")
    writer.writeheader()
    for result in results.cases:
        # A case that was not judged has a line too.
        judged: Sequence[MetricVerdict | None] = figures(result) or [None]
        for metric in judged:
            writer.writerow(
                {name: cell(value) for name, value in _row(results, result, metric).items()}
            )
    return out.getvalue()


def figures(result: CaseResult) -> list[MetricVerdict]:
    """Return the metrics of a result, scores that were compared sample by sample among them."""
    paired = [
        MetricVerdict(
            metric=one.metric,
            outcome=one.outcome,
            now=one.now,
            baseline=one.baseline,
            change=one.change / one.baseline if one.baseline else None,
        )
        for one in result.verdict.paired
    ]
    names = {one.metric for one in paired}
    return [*paired, *(m for m in result.verdict.metrics if m.metric not in names)]


def _row(results: Results, result: CaseResult, metric: MetricVerdict | None) -> dict[str, Any]:
    verdict = result.verdict
    row: dict[str, Any] = {
        "test": result.test,
        "case": verdict.case.id,
        **{name: getattr(verdict.case, name) for name in CASE},
        "kind": verdict.kind,
        "verdict": str(verdict.outcome),
        "failed": result.failed,
        "profile": result.profile,
        "round": result.round,
        "division": result.division,
        "commit": results.commit,
        "started": results.started,
        "headline": verdict.headline,
    }
    if verdict.kind == "accuracy" and verdict.gate:
        gate = verdict.gate
        row |= {"gate": str(gate.state), "gate_samples": gate.samples, "gate_total": gate.total}
    if metric is not None:
        row |= {name: getattr(metric, name) for name in (*FIGURES, "runs", "runs_baseline")}
        row |= {
            "metric": metric.metric,
            "unit": _unit(metric.metric),
            "metric_verdict": str(metric.outcome or "reported"),
        }
    return row


def _unit(metric: str) -> str:
    return METRICS[metric].unit if metric in METRICS else ""


def cell(value: object) -> object:
    """Return what a cell of CSV holds: text that a spreadsheet takes for no formula."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return value
    return f"'{visible(value)}" if value.startswith(FORMULA) else visible(value)


# --- Prometheus ------------------------------------------------------------------------------


GAUGES = {
    "mlperf_failed": "1 where the test failed.",
    "mlperf_gate_kept": "1 where the accuracy gate was kept, 0 where not.",
    "mlperf_gate_samples": "Samples that the accuracy gate was held against.",
    "mlperf_gate_total_samples": "Samples that the accuracy gate is defined on.",
    "mlperf_value": f"Last measured value, SI units. {UNVERIFIED_LABEL}",
    "mlperf_change_ratio": "Change since the baseline, as a share.",
}


def prometheus(results: Results) -> str:
    """Return gauges for the node exporter's textfile collector, which takes no time stamps.

    Source: https://prometheus.io/docs/instrumenting/exposition_formats/
    """
    families: dict[str, dict[str, None]] = {}
    for result in results.cases:
        for name, labels, value in _samples(result):
            shown = ",".join(f'{key}="{_label(text)}"' for key, text in labels.items())
            families.setdefault(name, {})[f"{name}{{{shown}}} {value:.9g}"] = None
    lines = []
    for name, samples in families.items():
        lines += [f"# HELP {name} {GAUGES[name]}", f"# TYPE {name} gauge", *samples]
    return "".join(f"{line}\n" for line in lines)


def _samples(result: CaseResult) -> Iterator[tuple[str, dict[str, str], float]]:
    verdict = result.verdict
    labels = {
        "case": verdict.case.id,
        **{name: str(getattr(verdict.case, name)) for name in CASE},
        "kind": verdict.kind,
        "profile": result.profile,
    }
    yield "mlperf_failed", labels, result.failed
    if verdict.kind == "accuracy" and (gate := verdict.gate):
        if gate.evaluated:
            yield "mlperf_gate_kept", labels, gate.state is GateState.KEPT
        yield "mlperf_gate_samples", labels, gate.samples
        yield "mlperf_gate_total_samples", labels, gate.total
    for metric in figures(result):
        named = {**labels, "metric": metric.metric}
        if metric.now is not None:
            yield "mlperf_value", named, metric.now
        if metric.change is not None:
            yield "mlperf_change_ratio", named, metric.change


def _label(text: str) -> str:
    return visible(text, keep="\n").replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


# --- github-action-benchmark -----------------------------------------------------------------


def better(results: Results, direction: Direction) -> str:
    """Return what the tools "customBiggerIsBetter" and "customSmallerIsBetter" read."""
    benchmarks: dict[str, dict[str, Any]] = {}
    for one in (one for result in results.cases for one in _of(result, direction)):
        benchmarks.setdefault(one["name"], one)  # another test of the case reports it again
    return json_text(list(benchmarks.values())) + "\n"


def _of(result: CaseResult, direction: Direction) -> Iterator[dict[str, Any]]:
    verdict = result.verdict
    for metric in verdict.metrics:
        definition = METRICS.get(metric.metric)
        if definition is None or definition.direction is not direction or metric.now is None:
            continue
        yield {
            "name": f"{visible(verdict.case.id)} {definition.title}",
            "unit": definition.unit,
            "value": metric.now,
            "extra": f"{verdict.outcome} {visible(verdict.headline)}\n{UNVERIFIED_LABEL}",
        }


ROUNDS = {
    "throughput": "seconds per sample: 1 / throughput of a run",
    "latency_p50": "seconds: p50 latency of a run",
    "time_median": "seconds: median time of a run",
    "ttft_p50": "seconds: p50 time to first token of a run",
}
"""What a round is, by the metric that it is made from."""


def entry(verdict: Verdict) -> tuple[list[float], dict[str, Any]] | None:
    """Return the seconds of each round of a performance verdict, and what they are of.

    Offline a round is the time per sample, elsewhere the p50 latency of the run (of a query, in
    MultiStream), or the time to the first token where no latency was measured; of a benchmark its
    median time. None where no metric of these is there in every run.
    """
    offline, runs = verdict.case.scenario == "Offline", verdict.runs
    names = ("throughput",) if offline else ("latency_p50", "ttft_p50", "time_median")
    metric = next((n for n in names if runs and all(n in run.metrics for run in runs)), None)
    if verdict.kind != "performance" or metric is None:
        return None
    values = [run.metrics[metric] for run in runs]
    return [1 / value for value in values] if offline else values, {
        "group": verdict.case.workload,  # cases of one workload stand in one table
        "params": {"case": verdict.case.id},
        "param": verdict.case.id,
        "extra_info": {"mlperf": {**_about(verdict), "round": ROUNDS[metric]}},
    }


def document(
    results: Results, *, machine_info: Mapping[str, Any], commit_info: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a file of pytest-benchmark that holds what a live session would have given."""
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
    timing = None if result.failed else entry(result.verdict)
    if timing is None:
        return None
    seconds, about = timing
    stats: Any = import_module("pytest_benchmark.stats").Stats()  # light: knows no pytest
    for each in seconds:
        stats.update(each)
    return {
        "group": about["group"],
        "name": result.test.rpartition("::")[2],
        "fullname": result.test,
        **about,
        "options": {},
        "stats": {**stats.as_dict(), "data": stats.data, "iterations": 1},
    }


def _about(verdict: Verdict) -> dict[str, Any]:
    return {
        "case": verdict.case.id,
        "outcome": str(verdict.outcome),
        "runs": len(verdict.runs),
        "metrics": {name: _metric(name, verdict.runs) for name in verdict.runs[-1].metrics},
        "baseline": {m.metric: m.baseline for m in verdict.metrics if m.baseline is not None},
        "accuracy": dict(verdict.accuracy.scores) if verdict.accuracy else {},
        "gate": verdict.gate.in_words if verdict.gate else None,
    }


def _metric(name: str, runs: Sequence[Run]) -> dict[str, Any]:
    values = [run.metrics[name] for run in runs if name in run.metrics]
    return {"last": values[-1], "mean": geometric_mean(values), "unit": _unit(name)}

"""Convert a verdict for pytest's JUnit file and for pytest-benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import geometric_mean
from typing import Any

from pytest_mlperf.core.case import Kind, Scenario
from pytest_mlperf.core.measurement import Run
from pytest_mlperf.core.metrics import METRICS
from pytest_mlperf.core.results import CaseResult
from pytest_mlperf.core.untrusted_text import visible
from pytest_mlperf.core.verdict import Verdict
from pytest_mlperf.reports.promises import final_word
from pytest_mlperf.reports.sentences import search_result, sentence


def properties(result: CaseResult) -> list[tuple[str, str]]:
    """Return the JUnit properties of a test: its verdict, values and baseline values."""
    verdict = result.verdict
    pairs = [
        ("mlperf.case", verdict.case.id),
        ("mlperf.verdict", str(verdict.outcome)),
        ("mlperf.headline", sentence(verdict.headline)),
        ("mlperf.profile", result.profile),
        ("mlperf.division", result.division),
        *(("mlperf.technique", name) for name in result.techniques),
        ("mlperf.runs", str(len(verdict.runs))),
    ]
    for run in verdict.invalid_runs:
        pairs += [
            ("mlperf.invalid_run", f"{reason.key}: {sentence(reason.text)}")
            for reason in run.invalid
        ]
    if missing := final_word(verdict):
        pairs.append(("mlperf.settle", missing))
    if verdict.runs and verdict.runs[-1].light and verdict.runs[-1].light[0].share is not None:
        pairs.append(("mlperf.speed_of_light", f"{verdict.runs[-1].light[0].share:.4f}"))
    pairs += [(f"mlperf.fact.{title}", fact) for title, fact in result.facts.items()]
    if verdict.runs and (search := verdict.runs[-1].search):
        pairs += [
            ("mlperf.search", search_result(search)),
            ("mlperf.search.low", f"{search.low:.9g}"),
            ("mlperf.search.high", f"{search.high:.9g}"),
        ]
    if verdict.kind == Kind.ACCURACY and verdict.gate:
        pairs += [
            ("mlperf.gate", str(verdict.gate.state)),
            ("mlperf.gate.samples", str(verdict.gate.samples)),
            ("mlperf.gate.total", str(verdict.gate.total)),
        ]
    if verdict.interleaved:
        pairs += [
            ("mlperf.in_turns", str(verdict.interleaved.state)),
            ("mlperf.in_turns.runs", str(verdict.interleaved.runs)),
        ]
    if verdict.cost:
        pairs.append((f"mlperf.{verdict.cost.of}_per_usd", f"{verdict.cost.value:.6g}"))
    for metric in verdict.metrics:
        values = (
            (f"mlperf.{metric.metric}", metric.now, ".9g"),
            (f"mlperf.{metric.metric}.baseline", metric.baseline.value, ".9g"),
            (f"mlperf.{metric.metric}.change", metric.change, ".6f"),
            (f"mlperf.{metric.metric}.leans", metric.direction, ""),
        )
        pairs += [(n, format(value, form)) for n, value, form in values if value is not None]
    return [(visible(name), visible(value)) for name, value in pairs]


ROUNDS = {
    "throughput": "seconds per sample: 1 / throughput of a run",
    "latency_p50": "seconds: p50 latency of a run",
    "time_median": "seconds: median time of a run",
    "ttft_p50": "seconds: p50 time to first token of a run",
}
"""Description of a round, by the metric that supplies its seconds."""


def benchmark_rounds(verdict: Verdict) -> tuple[list[float], dict[str, Any]] | None:
    """Return the round times [s] for pytest-benchmark and a description of the case, or None.

    Each run is a round. Its time is the time per sample in Offline, else the run's p50 latency, its
    p50 time to first token, or a benchmark's median time. None if no such metric is in all runs.
    """
    offline, runs = verdict.case.scenario == Scenario.OFFLINE, verdict.runs
    names = ("throughput",) if offline else ("latency_p50", "ttft_p50", "time_median")
    metric = next((n for n in names if runs and all(n in run.metrics for run in runs)), None)
    if verdict.kind != Kind.PERFORMANCE or metric is None:
        return None
    values = [run.metrics[metric] for run in runs]
    return [1 / value for value in values] if offline else values, {
        "group": verdict.case.workload,  # cases of one workload stand in one table
        "params": {"case": verdict.case.id},
        "param": verdict.case.id,
        "extra_info": {"mlperf": {**_about(verdict), "round": ROUNDS[metric]}},
    }


def _about(verdict: Verdict) -> dict[str, Any]:
    return {
        "case": verdict.case.id,
        "outcome": str(verdict.outcome),
        "runs": len(verdict.runs),
        "metrics": {name: _metric(name, verdict.runs) for name in verdict.runs[-1].metrics},
        "baseline": {
            m.metric: m.baseline.value for m in verdict.metrics if m.baseline.value is not None
        },
        "accuracy": dict(verdict.accuracy.scores) if verdict.accuracy else {},
        "gate": sentence(verdict.gate.note) if verdict.gate else None,
    }


def _metric(name: str, runs: Sequence[Run]) -> dict[str, Any]:
    values = [run.metrics[name] for run in runs if name in run.metrics]
    unit = METRICS[name].unit if name in METRICS else ""
    return {"last": values[-1], "mean": geometric_mean(values), "unit": unit}

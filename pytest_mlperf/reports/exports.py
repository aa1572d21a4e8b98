"""Results for other programs: CSV, Prometheus' text format, github-action-benchmark's JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Any

from pytest_mlperf.core.foreign_text import json_text, visible
from pytest_mlperf.core.gate import GateState
from pytest_mlperf.core.metrics import METRICS, Direction
from pytest_mlperf.core.results import LABEL, CaseResult, Results
from pytest_mlperf.core.verdict import MetricVerdict

CASE = ("workload", "scenario", "engine", "precision", "accelerator")

FIGURES = ("now", "baseline", "change", "low", "high", "limit", "detectable")

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""How a text begins that a spreadsheet takes for a formula."""

HEAD = (
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
    writer = csv.DictWriter(out, HEAD, lineterminator="\n")
    writer.writeheader()
    for result in results.cases:
        # A case that was not judged has a line too.
        judged: Sequence[MetricVerdict | None] = figures(result) or [None]
        for metric in judged:
            writer.writerow(
                {name: _cell(value) for name, value in _row(results, result, metric).items()}
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
    found: dict[str, Any] = {
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
        found |= {"gate": str(gate.state), "gate_samples": gate.samples, "gate_total": gate.total}
    if metric is not None:
        found |= {name: getattr(metric, name) for name in (*FIGURES, "runs", "runs_baseline")}
        found |= {
            "metric": metric.metric,
            "unit": _unit(metric.metric),
            "metric_verdict": str(metric.outcome or "reported"),
        }
    return found


def _unit(metric: str) -> str:
    return METRICS[metric].unit if metric in METRICS else ""


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return value
    return f"'{visible(value)}" if value.startswith(FORMULA) else visible(value)


# --- Prometheus ------------------------------------------------------------------------------


def prometheus(results: Results) -> str:
    """Return gauges for the node exporter's textfile collector, which takes no time stamps.

    Source: https://prometheus.io/docs/instrumenting/exposition_formats/
    """
    families: dict[str, tuple[str, list[str]]] = {}

    def add(name: str, about: str, labels: dict[str, str], value: float) -> None:
        shown = ",".join(f'{key}="{_label(text)}"' for key, text in labels.items())
        families.setdefault(name, (about, []))[1].append(f"{name}{{{shown}}} {value:.9g}")

    for result in results.cases:
        case = result.verdict.case
        own = {
            "case": case.id,
            **{name: str(getattr(case, name)) for name in CASE},
            "kind": result.verdict.kind,
            "profile": result.profile,
        }
        add("mlperf_failed", "1 where the test failed.", own, float(result.failed))
        if result.verdict.kind == "accuracy" and (gate := result.verdict.gate):
            if gate.evaluated:
                kept = float(gate.state is GateState.KEPT)
                add(
                    "mlperf_gate_kept",
                    "1 where the accuracy gate was kept, 0 where not.",
                    own,
                    kept,
                )
            about = "Samples that the accuracy gate was held against."
            add("mlperf_gate_samples", about, own, float(gate.samples))
            about = "Samples that the accuracy gate is defined on."
            add("mlperf_gate_total_samples", about, own, float(gate.total))
        for metric in figures(result):
            named = {**own, "metric": metric.metric}
            if metric.now is not None:
                about = f"Last measured value, SI units. {LABEL}"
                add("mlperf_value", about, named, metric.now)
            if metric.change is not None:
                add(
                    "mlperf_change_ratio",
                    "Change since the baseline, as a share.",
                    named,
                    metric.change,
                )
    lines = []
    for name, (about, samples) in families.items():
        lines += [f"# HELP {name} {about}", f"# TYPE {name} gauge", *dict.fromkeys(samples)]
    return "".join(f"{line}\n" for line in lines)


def _label(text: str) -> str:
    shown = visible(text, keep="\n")
    return shown.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


# --- github-action-benchmark -----------------------------------------------------------------


def bigger_is_better(results: Results) -> str:
    """Return what the tool "customBiggerIsBetter" of github-action-benchmark reads."""
    return _benchmarks(results, Direction.HIGHER)


def smaller_is_better(results: Results) -> str:
    """Return what the tool "customSmallerIsBetter" of github-action-benchmark reads."""
    return _benchmarks(results, Direction.LOWER)


def _benchmarks(results: Results, direction: Direction) -> str:
    found = [one for result in results.cases for one in _of(result, direction)]
    return json_text(found) + "\n"


def _of(result: CaseResult, direction: Direction) -> Iterator[dict[str, Any]]:
    verdict = result.verdict
    for metric in verdict.metrics:
        known = METRICS.get(metric.metric)
        if known is None or known.direction is not direction or metric.now is None:
            continue
        yield {
            "name": f"{visible(verdict.case.id)} {known.title}",
            "unit": known.unit,
            "value": metric.now,
            "extra": f"{verdict.outcome} {visible(verdict.headline)}\n{LABEL}",
        }

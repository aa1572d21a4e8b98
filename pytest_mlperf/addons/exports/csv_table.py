"""Export results as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from pytest_mlperf.extension import (
    METRICS,
    CaseResult,
    Kind,
    MetricVerdict,
    ReportedSession,
    Results,
    csv_cell,
    sentence,
)

CASE = ("workload", "scenario", "engine", "precision", "accelerator")

OF_RESULT = ("test", "failed", "profile", "round", "division")

FIGURES = ("change", "low", "high", "limit")

CSV_HEADER = (
    *("test", "case", *CASE, "kind", "verdict", "failed", "metric", "unit", "metric_verdict"),
    *("now", "baseline", *FIGURES, "detectable"),
    *("gate", "gate_samples", "gate_total"),
    *("runs", "runs_baseline", "profile", "round", "division", "commit", "started", "headline"),
)


def report(session: ReportedSession) -> str:
    """Return a CSV table with one line per metric or score, in SI units.

    Changes are fractions: 0.01 is 1 %. Text that a spreadsheet would evaluate as a formula is
    prefixed with an apostrophe.
    """
    out = io.StringIO()
    writer = csv.DictWriter(out, CSV_HEADER, lineterminator="\n")
    writer.writeheader()
    for result in session.results.cases:
        # A case without metrics has a line too.
        judged: Sequence[MetricVerdict | None] = reported_metrics(result) or [None]
        for metric in judged:
            row = _row(session.results, result, metric)
            writer.writerow({name: csv_cell(value) for name, value in row.items()})
    return out.getvalue()


def reported_metrics(result: CaseResult) -> list[MetricVerdict]:
    """Return a result's scores from paired comparisons, then its other metrics."""
    paired = [score.as_metric for score in result.verdict.paired]
    names = {one.metric for one in paired}
    return [*paired, *(m for m in result.verdict.metrics if m.metric not in names)]


def _row(results: Results, result: CaseResult, metric: MetricVerdict | None) -> dict[str, Any]:
    verdict = result.verdict
    row: dict[str, Any] = {
        **{name: getattr(result, name) for name in OF_RESULT},
        "case": verdict.case.id,
        **{name: getattr(verdict.case, name) for name in CASE},
        "kind": verdict.kind,
        "verdict": str(verdict.outcome),
        "commit": results.commit,
        "started": results.started,
        "headline": sentence(verdict.headline),
    }
    if verdict.kind == Kind.ACCURACY and verdict.gate:
        gate = verdict.gate
        row |= {"gate": str(gate.state), "gate_samples": gate.samples, "gate_total": gate.total}
    if metric is not None:
        row |= {
            **{name: getattr(metric, name) for name in ("now", "runs", *FIGURES)},
            "baseline": metric.baseline.value,
            "detectable": metric.baseline.detectable,
            "runs_baseline": metric.baseline.runs,
            "metric": metric.metric,
            "unit": getattr(METRICS.get(metric.metric), "unit", ""),
            "metric_verdict": str(metric.outcome or "reported"),
        }
    return row

"""Verdicts as rows of text: what every table about them shows."""

from __future__ import annotations

from pytest_mlperf.core.metrics import METRICS
from pytest_mlperf.core.numbers import change, interval, limit, points, quantity, times
from pytest_mlperf.core.verdict import MetricVerdict, PairedVerdict, RatioVerdict, Verdict
from pytest_mlperf.reports.layout import table


def metric_table(verdict: Verdict, width: int) -> list[str]:
    """Return one line per metric; what is least needed is left out where it does not fit."""
    left = ["metric", "verdict"]
    if not verdict.metrics:
        return []
    if verdict.kind == "accuracy":
        columns = ["metric", "reference", "needed", "now", "change", "verdict"]
        rows = [score_cells(metric) for metric in verdict.metrics]
        return table(columns, rows, width, left=left, spare=["change"])
    columns = ["metric", "baseline", "now", "change", "interval", "limit", "verdict"]
    rows = [metric_cells(metric) for metric in verdict.metrics if _shown(metric)]
    return table(columns, rows, width, left=left, spare=["interval", "baseline"])


def _shown(metric: MetricVerdict) -> bool:
    """Whether a metric is named: what is only reported, and says what another one says, is not."""
    known = METRICS.get(metric.metric)
    return metric.outcome is not None or known is None or known.shown


def paired_table(verdict: Verdict, width: int) -> list[str]:
    """Return one line per score that was compared sample by sample."""
    columns = ["metric", "baseline", "now", "points", "interval", "margin", "verdict"]
    rows = [paired_cells(metric) for metric in verdict.paired]
    if not rows:
        return []
    return table(columns, rows, width, left=["metric", "verdict"], spare=["interval", "baseline"])


def paired_cells(metric: PairedVerdict) -> dict[str, str]:
    """Return the texts of a score that was compared sample by sample."""
    bounds = metric.low is not None and metric.high is not None
    return {
        "metric": metric.metric,
        "baseline": f"{metric.baseline:.3f}",
        "now": f"{metric.now:.3f}",
        "points": points(metric.change),
        "interval": f"{points(metric.low or 0.0)} to {points(metric.high or 0.0)}"
        if bounds
        else "",
        "margin": "" if metric.bound is None else points(metric.bound),
        "verdict": str(metric.outcome or "reported"),
    }


def ratio_table(verdict: Verdict, width: int) -> list[str]:
    """Return one line for each side of a pair, the first with what was found."""
    ratio = verdict.ratio
    if ratio is None:
        return []
    columns = ["side", "metric", "now", "ratio", "interval", "claim", "verdict"]
    both = f"{verdict.case.workload}-{verdict.case.scenario}-"
    rows = [
        {"side": ratio.a.removeprefix(both), **ratio_cells(ratio)},
        {
            "side": ratio.b.removeprefix(both),
            "metric": title(ratio.metric),
            "now": quantity(ratio.metric, ratio.value_b),
        },
    ]
    left = ["side", "metric", "verdict"]
    return table(columns, rows, width, left=left, spare=["verdict", "metric", "interval"])


def ratio_cells(ratio: RatioVerdict) -> dict[str, str]:
    """Return the texts of a claim about two engine entries."""
    return {
        "metric": title(ratio.metric),
        "now": quantity(ratio.metric, ratio.value_a),
        "ratio": times(ratio.ratio),
        "interval": f"{times(ratio.low)} to {times(ratio.high)}",
        "claim": f">= {ratio.least:g}x",
        "verdict": str(ratio.outcome),
    }


def score_cells(metric: MetricVerdict) -> dict[str, str]:
    """Return the texts of a score that was held against the gate."""
    needed = ""
    if metric.baseline is not None and metric.limit is not None:
        needed = f"{metric.baseline * (1 - metric.limit):.3f}"
    return {
        "metric": metric.metric,
        "reference": "" if metric.baseline is None else f"{metric.baseline:.3f}",
        "needed": needed,
        "now": "" if metric.now is None else f"{metric.now:.3f}",
        "change": "" if metric.change is None else change(metric.change),
        "verdict": str(metric.outcome or "reported"),
    }


def metric_cells(metric: MetricVerdict) -> dict[str, str]:
    """Return the texts of a performance metric."""
    bounds = metric.low is not None and metric.high is not None
    return {
        "metric": title(metric.metric),
        "baseline": "" if metric.baseline is None else quantity(metric.metric, metric.baseline),
        "now": "" if metric.now is None else quantity(metric.metric, metric.now),
        "change": "" if metric.change is None else change(metric.change),
        "interval": interval(metric.low or 0.0, metric.high or 0.0) if bounds else "",
        "limit": "" if metric.limit is None else limit(metric.metric, metric.limit),
        "verdict": str(metric.outcome or "reported"),
    }


def title(metric: str) -> str:
    """Return what tables call a metric."""
    return METRICS[metric].title if metric in METRICS else metric

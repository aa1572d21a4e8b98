"""A verdict as JUnit properties."""

from __future__ import annotations

from pytest_mlperf.core.foreign_text import visible
from pytest_mlperf.core.results import CaseResult


def properties(result: CaseResult) -> list[tuple[str, str]]:
    """Return the JUnit properties of a test: verdict, values, and what they were set against."""
    verdict = result.verdict
    found = [
        ("mlperf.case", verdict.case.id),
        ("mlperf.verdict", str(verdict.outcome)),
        ("mlperf.headline", verdict.headline),
        ("mlperf.profile", result.profile),
        ("mlperf.division", result.division),
        *(("mlperf.technique", name) for name in result.techniques),
        ("mlperf.runs", str(len(verdict.runs))),
    ]
    for run in verdict.invalid_runs:
        found += [("mlperf.invalid_run", f"{reason.key}: {reason}") for reason in run.invalid]
    if verdict.runs and verdict.runs[-1].light and verdict.runs[-1].light[0].share is not None:
        found.append(("mlperf.speed_of_light", f"{verdict.runs[-1].light[0].share:.4f}"))
    if verdict.runs and (search := verdict.runs[-1].search):
        found += [
            ("mlperf.search", search.in_words),
            ("mlperf.search.low", f"{search.low:.9g}"),
            ("mlperf.search.high", f"{search.high:.9g}"),
        ]
    if verdict.kind == "accuracy" and verdict.gate:
        found += [
            ("mlperf.gate", str(verdict.gate.state)),
            ("mlperf.gate.samples", str(verdict.gate.samples)),
            ("mlperf.gate.total", str(verdict.gate.total)),
        ]
    if verdict.cost:
        found.append((f"mlperf.{verdict.cost.of}_per_usd", f"{verdict.cost.value:.6g}"))
    for metric in verdict.metrics:
        if metric.now is not None:
            found.append((f"mlperf.{metric.metric}", f"{metric.now:.9g}"))
        if metric.baseline is not None:
            found.append((f"mlperf.{metric.metric}.baseline", f"{metric.baseline:.9g}"))
        if metric.change is not None:
            found.append((f"mlperf.{metric.metric}.change", f"{metric.change:.6f}"))
    return [(visible(name), visible(value)) for name, value in found]

"""One test as rows of text: what the summaries show of it."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_mlperf.core.results import CaseResult
from pytest_mlperf.core.verdict import Outcome, Verdict
from pytest_mlperf.reports.cells import metric_cells, paired_cells, ratio_cells, score_cells


def rows(result: CaseResult) -> Iterator[dict[str, str]]:
    """Yield one row of texts per gated metric, at least one per test.

    Args:
        result: The test. The first row of an accuracy test says what its gate says.
    """
    verdict = result.verdict
    gate = verdict.gate if verdict.kind == "accuracy" else None
    said = {"gate": gate.answer} if gate else {}
    for row in _rows(verdict):
        yield {**row, **said}
        said = {}


def _rows(verdict: Verdict) -> Iterator[dict[str, str]]:
    if verdict.paired:
        yield from _paired_rows(verdict)
        return
    if verdict.ratio:
        cells = ratio_cells(verdict.ratio)
        shown = {"vs base": cells["ratio"], "limit": cells["claim"]}
        yield {**cells, **shown, "test": str(verdict.kind)}
        return
    gated = [m for m in verdict.metrics if m.outcome is not None] or list(verdict.metrics)[:1]
    # A limit missed in LoadGen's sense, say, is the word of the test and of none of its metrics.
    whole = verdict.outcome not in {metric.outcome for metric in verdict.metrics}
    first = {"test": verdict.kind, "verdict": str(verdict.outcome)}
    if not gated:
        yield first
    for metric in gated:
        cells = metric_cells(metric)
        own = str(metric.outcome) if metric.outcome and not whole else first["verdict"]
        if verdict.kind == "accuracy":
            scores = score_cells(metric)
            reference = f"ref {scores['reference']}" if scores["reference"] else ""
            cells |= {"now": scores["now"], "change": reference}
        yield {**cells, "test": first["test"], "verdict": own, "vs base": cells["change"]}
        first = {"test": "", "verdict": ""}


def _paired_rows(verdict: Verdict) -> Iterator[dict[str, str]]:
    """Yield one row per score that was compared with the baseline; the gate's only if it failed."""
    gate_failed = [m for m in verdict.metrics if m.outcome is Outcome.GATE_FAIL]
    first = str(verdict.kind)
    for gate in gate_failed:
        cells = score_cells(gate)
        yield {
            "test": first,
            "verdict": str(gate.outcome),
            "metric": cells["metric"],
            "now": cells["now"],
            "vs base": f"gate {cells['needed']}",
        }
        first = ""
    for metric in (m for m in verdict.paired if m.outcome is not None):
        cells = paired_cells(metric)
        yield {
            "test": first,
            "verdict": cells["verdict"],
            "metric": metric.metric,
            "now": cells["now"],
            "vs base": cells["points"],
            "interval": cells["interval"],
            "limit": cells["margin"],
        }
        first = ""

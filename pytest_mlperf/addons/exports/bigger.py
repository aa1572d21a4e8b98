"""Export results as github-action-benchmark's customBiggerIsBetter."""

from typing import Any

from pytest_mlperf.core.metrics import METRICS
from pytest_mlperf.core.results import UNVERIFIED_LABEL
from pytest_mlperf.core.untrusted_text import json_text, visible
from pytest_mlperf.extension import ReportedSession
from pytest_mlperf.judge.inputs import Direction
from pytest_mlperf.reports.sentences import first_line


def report(session: ReportedSession, better: Direction = Direction.HIGHER) -> str:
    """Return the metrics of one direction as JSON."""
    benchmarks: dict[str, Any] = {}
    for verdict in (result.verdict for result in session.results.cases):
        for metric in verdict.metrics:
            definition = METRICS.get(metric.metric)
            if definition is None or definition.direction is not better or metric.now is None:
                continue
            benchmark = {
                "name": f"{visible(verdict.case.id)} {definition.title}",
                "unit": definition.unit,
                "value": metric.now,
                "extra": f"{visible(first_line(verdict))}\n{UNVERIFIED_LABEL}",
            }
            # Several tests of a case report the same metric.
            benchmarks.setdefault(str(benchmark["name"]), benchmark)
    return json_text(list(benchmarks.values())) + "\n"

"""Export results as JSON for github-action-benchmark's tool customBiggerIsBetter."""

from typing import Any

from pytest_mlperf.core.results import UNVERIFIED_LABEL
from pytest_mlperf.extension import METRICS, ReportedSession, json_text, sentence, visible


def report(session: ReportedSession, *, smaller: bool = False) -> str:
    """Return JSON of the metrics that are better if larger or, with `smaller`, if smaller."""
    benchmarks: dict[str, Any] = {}
    for verdict in (result.verdict for result in session.results.cases):
        headline = visible(sentence(verdict.headline))
        for metric in verdict.metrics:
            definition = METRICS.get(metric.metric)
            if definition is None or metric.now is None:
                continue
            if definition.is_neutral or definition.falls is not smaller:
                continue
            benchmark = {
                "name": f"{visible(verdict.case.id)} {definition.title}",
                "unit": definition.unit,
                "value": metric.now,
                "extra": f"{verdict.outcome} {headline}\n{UNVERIFIED_LABEL}",
            }
            # Several tests of a case report the same metric.
            benchmarks.setdefault(str(benchmark["name"]), benchmark)
    return json_text(list(benchmarks.values())) + "\n"

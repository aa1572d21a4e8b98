"""`--mlperf-report contract=FILE`: a Markdown table of facts that this add-on added."""

from __future__ import annotations

from pytest_mlperf.extension import ReportedSession


def report(session: ReportedSession) -> str:
    """Return the table."""
    rows = [
        f"| {result.verdict.case.id} | {result.facts['contract']} |"
        for result in session.results.cases
        if "contract" in result.facts
    ]
    return "\n".join(["| case | contract |", "|---|---|", *rows, ""])

"""Write a results file in the newest schema."""

from pytest_mlperf.reports.formats import ReportedSession
from pytest_mlperf.stores.results import as_text


def report(session: ReportedSession) -> str:
    """Return the JSON text of a results file."""
    return as_text(session.results)

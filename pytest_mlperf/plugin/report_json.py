"""Attach verdicts to test reports as JSON, for JUnit files and the xdist controller."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from _pytest.outcomes import Skipped
from pydantic import TypeAdapter

from pytest_mlperf.core.results import CaseResult
from pytest_mlperf.core.untrusted_text import visible
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.reports.for_pytest import properties
from pytest_mlperf.reports.sentences import first_line
from pytest_mlperf.suite.pairs import Testable

VERDICT: pytest.StashKey[CaseResult] = pytest.StashKey()

PLANNED: pytest.StashKey[Testable] = pytest.StashKey()
"""The case of a test outside of suites."""


class SkippedCase(Skipped):
    """Skip a test; pytest's report then shows the line of the case in its suite."""


PROPERTY = "mlperf."
"""Prefix of this plugin's JUnit properties."""


def planned_of(item: pytest.Item) -> Testable | None:
    """Return the case or pair that a test measures; None for other tests."""
    if PLANNED in item.stash:
        return item.stash[PLANNED]
    callspec = getattr(item, "callspec", None)
    planned = callspec.params.get("case") if callspec else None
    return planned if isinstance(planned, Testable) else None


def put(item: pytest.Item, result: CaseResult) -> CaseResult:
    """Attach a result to its test item; return the result."""
    item.stash[VERDICT] = result
    # A test that runs again has those of its earlier run.
    others = [pair for pair in item.user_properties if not pair[0].startswith(PROPERTY)]
    item.user_properties[:] = [*others, *properties(result)]
    return result


@cache
def case_result() -> TypeAdapter[CaseResult]:
    """Return the pydantic adapter that serialises results, built on first use."""
    return TypeAdapter(CaseResult)


def attach(item: pytest.Item, report: pytest.TestReport, error: BaseException | None) -> None:
    """Attach the verdict to a report as plain data; locate failures and skips in the suite."""
    result = item.stash.get(VERDICT, None)
    if result is not None:
        report.mlperf = case_result().dump_python(result, mode="json")  # type: ignore[attr-defined]
    line, skip = (item.location[1] or 0) + 1, report.longrepr
    if isinstance(skip, tuple) and isinstance(error, SkippedCase):
        report.longrepr = (str(item.path), line, f"Skipped: {error.msg}")
    ours = result is not None or planned_of(item) is not None
    if ours or "mlperf" in getattr(item, "fixturenames", ()):
        _make_visible(report.longrepr)
    if ours and isinstance(error, pytest.fail.Exception) and not error.pytrace:
        headline = first_line(result.verdict) if result else ""
        message = visible(headline) if result else visible(str(error.msg), keep="\n")
        _point(report.longrepr, message, str(item.path), line)


def _make_visible(exception: Any) -> None:
    for entry in traceback_entries(exception):
        entry.lines[:] = [visible(text, keep="\n\t") for text in entry.lines]
    for _, crash, _ in getattr(exception, "chain", ()):
        if crash:
            crash.message = visible(crash.message, keep="\n\t")


def traceback_entries(exception: Any) -> list[Any]:
    """Return the traceback entries that pytest will print; the caller may edit their lines."""
    chain = getattr(exception, "chain", [(getattr(exception, "reprtraceback", None), None, None)])
    return [entry for trace, *_ in chain for entry in getattr(trace, "reprentries", ())]


def attached(report: Any) -> CaseResult | None:
    """Return the result that is attached to a report, or None."""
    plain = getattr(report, "mlperf", None)
    return case_result().validate_python(plain) if plain else None


def conclude(
    reports: list[pytest.TestReport], result: CaseResult, message: str | None, root: Path
) -> None:
    """Set the final verdict of a test in its reports; `message` is None if the test passed."""
    for report in reports:
        if attached(report) is None and report.when != "teardown":
            continue
        others = [pair for pair in report.user_properties if not pair[0].startswith(PROPERTY)]
        if len(others) < len(report.user_properties):
            report.user_properties = [*others, *properties(result)]
        if attached(report) is not None:
            report.mlperf = case_result().dump_python(result, mode="json")  # type: ignore[attr-defined]
            report.outcome = "passed" if message is None else "failed"
            report.longrepr = None if message is None else _shown(message, result, root)


def report_of(
    item: pytest.Item, message: str, result: CaseResult | None = None, root: Path = Path()
) -> pytest.TestReport:
    """Return a failed report for a test of another process; an ERROR if there is no `result`."""
    report = pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords=dict.fromkeys(item.keywords, 1),
        outcome="failed",
        longrepr=message if result is None else _shown(message, result, root),
        when="setup" if result is None else "call",
        user_properties=[] if result is None else properties(result),
    )
    if result is not None:
        report.mlperf = case_result().dump_python(result, mode="json")  # type: ignore[attr-defined]
    return report


def _shown(message: str, result: CaseResult, root: Path) -> Any:
    try:
        raise pytest.fail.Exception(message, pytrace=False)
    except pytest.fail.Exception:
        exception = pytest.ExceptionInfo.from_current().getrepr(style="value")
    _point(exception, visible(first_line(result.verdict)), str(root / result.suite), result.line)
    return exception


def _point(exception: Any, message: str, path: str, line: int) -> None:
    crash = getattr(exception, "reprcrash", None)
    if crash:
        crash.message, crash.path, crash.lineno = message, path, line


def emit(config: pytest.Config, reports: Sequence[pytest.TestReport]) -> None:
    """Send one test's reports to pytest's logging hooks, as if the test had just run."""
    nodeid, location = reports[0].nodeid, reports[0].location
    config.hook.pytest_runtest_logstart(nodeid=nodeid, location=location)
    for report in reports:
        config.hook.pytest_runtest_logreport(report=report)
    config.hook.pytest_runtest_logfinish(nodeid=nodeid, location=location)


def emit_line(hook: Any, nodeid: str, line: str) -> None:
    """Send a progress line to the xdist controller, as a report that pytest does not count."""
    about: dict[str, Any] = {"nodeid": nodeid, "location": (nodeid, None, ""), "keywords": {}}
    report = pytest.TestReport(**about, outcome="passed", longrepr=None, when="setup")
    report.mlperf_line = line  # type: ignore[attr-defined]
    hook.pytest_runtest_logreport(report=report)


_WORDS = {
    Outcome.SUSPECT: ("suspect", "S", {"yellow": True}),
    Outcome.PROVISIONAL: ("provisional", "P", {"yellow": True}),
    Outcome.INCONCLUSIVE: ("inconclusive", "?", {"yellow": True}),
    Outcome.NO_BASELINE: ("no baseline", "N", {"yellow": True}),
    Outcome.NOT_EVALUATED: ("not evaluated", "n", {"yellow": True}),
    Outcome.RECORDED: ("recorded", "R", {"green": True}),
    Outcome.EXPECTED: ("expected failure", "x", {"yellow": True}),
}


def status(report: Any) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
    """Return category, letter and word (with its colour) that pytest shows for a judged report."""
    outcome = Outcome(report.mlperf["verdict"]["outcome"])
    if report.failed:
        return "failed", "F", (str(outcome), {"red": True})
    if outcome in _WORDS:
        category, letter, colour = _WORDS[outcome]
        return category, letter, (str(outcome), colour)
    return "passed", ".", (str(outcome), {"green": True})

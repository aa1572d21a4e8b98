"""Carry a verdict from its test to every report: terminal, JUnit, xdist's controller."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from pytest_mlperf.core.foreign_text import visible
from pytest_mlperf.core.results import CaseResult
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.reports.properties import properties
from pytest_mlperf.suite.pairs import Testable

VERDICT: pytest.StashKey[CaseResult] = pytest.StashKey()

RAISED_IN = str(Path(__file__).with_name("session.py"))
"""Where our skips are raised; a report shall name the suite instead."""


PROPERTY = "mlperf."
"""How the names of our JUnit properties begin."""


def planned_of(item: pytest.Item) -> Testable | None:
    """Return the case or pair of one of our tests, None for any other test."""
    callspec = getattr(item, "callspec", None)
    planned = callspec.params.get("case") if callspec else None
    return planned if isinstance(planned, Testable) else None


@cache
def case_result() -> TypeAdapter[CaseResult]:
    """Return what turns a result into plain data and back; made once, when it is needed."""
    return TypeAdapter(CaseResult)


def attach(item: pytest.Item, report: pytest.TestReport, error: BaseException | None) -> None:
    """Put the verdict on the report, as plain data that xdist can carry."""
    result = item.stash.get(VERDICT, None)
    if result is not None:
        report.mlperf = case_result().dump_python(result, mode="json")  # type: ignore[attr-defined]
    line, skip = (item.location[1] or 0) + 1, report.longrepr
    if isinstance(skip, tuple) and skip[0] == RAISED_IN:
        report.longrepr = (str(item.path), line, skip[2])
    ours = result is not None or planned_of(item) is not None
    if ours or "mlperf" in getattr(item, "fixturenames", ()):
        _make_visible(report.longrepr)
    if ours and isinstance(error, pytest.fail.Exception) and not error.pytrace:
        message = _first_line(result) if result else visible(str(error.msg), keep="\n")
        _point(report.longrepr, message, str(item.path), line)


def _make_visible(shown: Any) -> None:
    """Escape what no terminal should obey, and no pipe of xdist can carry, in an exception."""
    found = getattr(shown, "chain", [(getattr(shown, "reprtraceback", None), None, None)])
    for trace, crash, _ in found:
        for entry in getattr(trace, "reprentries", ()):
            entry.lines[:] = [visible(text, keep="\n\t") for text in entry.lines]
        if crash:
            crash.message = visible(crash.message, keep="\n\t")


def attached(report: Any) -> CaseResult | None:
    """Return the verdict on a report."""
    plain = getattr(report, "mlperf", None)
    return case_result().validate_python(plain) if plain else None


def conclude(
    reports: list[pytest.TestReport], result: CaseResult, message: str | None, root: Path
) -> None:
    """Give the reports of one test their last word, before anyone sees them.

    Args:
        reports: Setup, call and teardown.
        result: The verdict.
        message: The failure message; None where the test passes.
        root: Pytest's root folder.
    """
    for report in reports:
        if attached(report) is None and report.when != "teardown":
            continue
        report.user_properties = _with_verdict(report.user_properties, result)
        if attached(report) is not None:
            report.mlperf = case_result().dump_python(result, mode="json")  # type: ignore[attr-defined]
            report.outcome = "passed" if message is None else "failed"
            report.longrepr = None if message is None else _shown(message, result, root)


def _with_verdict(found: list[tuple[str, object]], result: CaseResult) -> list[tuple[str, object]]:
    """Return the properties of a report: its own, and those of the verdict in place of older."""
    own = [(name, value) for name, value in found if not name.startswith(PROPERTY)]
    return [*own, *properties(result)] if len(own) < len(found) else own


def _shown(message: str, result: CaseResult, root: Path) -> Any:
    """Return a failure as pytest shows it: the message, and where to look in the suite."""
    try:
        raise pytest.fail.Exception(message, pytrace=False)
    except pytest.fail.Exception:
        shown = pytest.ExceptionInfo.from_current().getrepr(style="value")
    _point(shown, _first_line(result), str(root / result.suite), result.line)
    return shown


def _first_line(result: CaseResult) -> str:
    return visible(f"{result.verdict.outcome} {result.verdict.headline}")


def _point(shown: Any, message: str, path: str, line: int) -> None:
    """Let the short summary and JUnit quote the verdict, not the exception that carries it."""
    crash = getattr(shown, "reprcrash", None)
    if crash:
        crash.message, crash.path, crash.lineno = message, path, line


_WORDS = {
    Outcome.SUSPECT: ("suspect", "S", {"yellow": True}),
    Outcome.INCONCLUSIVE: ("inconclusive", "?", {"yellow": True}),
    Outcome.NO_BASELINE: ("no baseline", "N", {"yellow": True}),
    Outcome.NOT_EVALUATED: ("not evaluated", "n", {"yellow": True}),
    Outcome.RECORDED: ("recorded", "R", {"green": True}),
    Outcome.EXPECTED: ("expected failure", "x", {"yellow": True}),
}


def status(report: Any) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
    """Return category, letter and word of a judged report, None for setup and teardown."""
    outcome = Outcome(report.mlperf["verdict"]["outcome"])
    if report.failed:
        return "failed", "F", (str(outcome), {"red": True})
    if outcome in _WORDS:
        category, letter, colour = _WORDS[outcome]
        return category, letter, (str(outcome), colour)
    return "passed", ".", (str(outcome), {"green": True})

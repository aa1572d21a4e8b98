"""Carry a verdict from its test to every report: terminal, JUnit, xdist's controller."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from pytest_mlperf.core.results import CaseResult
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.suite.pairs import Testable

VERDICT: pytest.StashKey[CaseResult] = pytest.StashKey()

RAISED_IN = str(Path(__file__).with_name("session.py"))
"""Where our skips are raised; a report shall name the suite instead."""


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
    crash = getattr(report.longrepr, "reprcrash", None)
    ours = result is not None or planned_of(item) is not None
    if crash and ours and isinstance(error, pytest.fail.Exception) and not error.pytrace:
        # The short summary and JUnit quote this: the verdict, not the exception that carries it.
        verdict = result.verdict if result else None
        message = f"{verdict.outcome} {verdict.headline}" if verdict else str(error.msg)
        crash.message, crash.path, crash.lineno = message, str(item.path), line


_WORDS = {
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

"""Command lines that every report offers after a verdict: see it again, accept it, record it."""

from __future__ import annotations

import shlex

from pytest_mlperf.core.results import CaseResult
from pytest_mlperf.core.verdict import Outcome

REPLACE = '--mlperf-update=replace --mlperf-reason "..."'

RECORD = "--mlperf-update=missing"

DROPS = frozenset({Outcome.PERF_DROP, Outcome.ACC_DROP, Outcome.POWER_DROP})
"""Verdicts that a new baseline accepts."""

LOG = "log: "
"""Notes that begin so are the last lines of the log."""


def again(result: CaseResult) -> str:
    """Return the command that runs a test as it was run."""
    return " ".join([f'pytest "{result.test}"', *map(shlex.quote, result.arguments)])


def may_be_recorded(result: CaseResult) -> bool:
    """Whether its values are the machine's and the engine's own."""
    return not (result.handicap or result.pretended)


def accept(result: CaseResult) -> str | None:
    """Return the command that accepts a drop; None where there is none, or none to be accepted."""
    if result.verdict.outcome not in DROPS or not may_be_recorded(result):
        return None
    return f"{again(result)} {REPLACE}"


def record(result: CaseResult) -> str | None:
    """Return the command that records a first baseline; None where there is one."""
    if result.verdict.outcome is not Outcome.NO_BASELINE or not may_be_recorded(result):
        return None
    return f"{again(result)} {RECORD}"

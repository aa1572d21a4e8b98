"""What may never become a baseline, whatever word its verdict ends in and whoever asks."""

from __future__ import annotations

from pytest_mlperf.core.gate import GateState
from pytest_mlperf.core.verdict import Verdict

MISSES = 2
"""Runs that miss their latency limit before the rate does not hold; one may be chance."""


def why_never(verdict: Verdict) -> str | None:
    """Return why neither scores nor speed of a verdict may be recorded, or None.

    An expected failure lets a test pass; what it excuses is no baseline all the same.
    """
    if verdict.gate is not None and verdict.gate.state is GateState.FAILED:
        return f"accuracy: {verdict.gate.in_words}"
    missed = sum(run.limit_missed for run in verdict.runs)
    if missed >= MISSES:
        return f"{missed} of {len(verdict.runs)} runs missed their latency limit"
    return None

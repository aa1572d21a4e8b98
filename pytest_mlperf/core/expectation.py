"""Known failures: let them pass until their day, and fail when they stop failing."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_mlperf.core.verdict import Outcome, Verdict


def expect(verdict: Verdict, known: Sequence[Mapping[str, Any]], today: dt.date) -> Verdict:
    """Apply a suite's expected failures to a verdict.

    Args:
        verdict: What was found.
        known: The suite's `[[expected_failures]]`; a field that is None matches everything.
        today: The date, UTC.

    Returns:
        The verdict itself, or one with outcome EXPECTED or UNEXPECTED_PASS.
    """
    case = dataclasses.asdict(verdict.case)
    for entry in known:
        fields = ("scenario", "engine", "precision", "accelerator")
        if any(entry[name] not in {None, case[name]} for name in fields):
            continue
        metric = entry["metric"]
        if metric is not None and metric not in {m.metric for m in verdict.metrics}:
            continue
        failed = verdict.outcome.fails and (
            metric is None
            or any(m.metric == metric and m.outcome and m.outcome.fails for m in verdict.metrics)
        )
        until, reason = entry["until"], entry["reason"]
        if failed and verdict.outcome not in {Outcome.ERROR, Outcome.INVALID}:
            if today > until:
                note = f"was expected until {until} ({reason}); that day is over"
                return dataclasses.replace(verdict, notes=(note, *verdict.notes))
            headline = f"{verdict.outcome} {verdict.headline}; until {until}: {reason}"
            return dataclasses.replace(verdict, outcome=Outcome.EXPECTED, headline=headline)
        if verdict.outcome in {Outcome.OK, Outcome.IMPROVED} and today <= until:
            headline = f"remove the expected failure ({reason}): {verdict.headline}"
            return dataclasses.replace(verdict, outcome=Outcome.UNEXPECTED_PASS, headline=headline)
    return verdict

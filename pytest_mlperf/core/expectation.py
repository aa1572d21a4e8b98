"""Known failures: let them pass until their day, and fail when they stop failing."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_mlperf.core.verdict import Outcome, Verdict

Entry = Mapping[str, Any]


def expect(verdict: Verdict, known: Sequence[Entry], today: dt.date) -> Verdict:
    """Apply a suite's expected failures to a verdict.

    A test is expected to fail when each of its metrics that failed is: a second one that falls
    beside a known one is news.

    Args:
        verdict: What was found.
        known: The suite's `[[expected_failures]]`; a field that is None matches everything.
        today: The date, UTC.

    Returns:
        The verdict itself, or one with outcome EXPECTED or UNEXPECTED_PASS.
    """
    case = dataclasses.asdict(verdict.case)
    fields = ("scenario", "engine", "precision", "accelerator")
    entries = [e for e in known if all(e[field] in {None, case[field]} for field in fields)]
    if verdict.outcome.fails and verdict.outcome not in {Outcome.ERROR, Outcome.INVALID}:
        failed = [m.metric for m in verdict.metrics if m.outcome and m.outcome.fails]
        covering = [_entry(entries, metric, today) for metric in failed or (None,)]
        return _expected(verdict, [e for e in covering if e], today) if all(covering) else verdict
    if verdict.outcome in {Outcome.OK, Outcome.IMPROVED}:
        judged = {None, *(m.metric for m in verdict.metrics if m.outcome)}
        for entry in entries:
            if entry["metric"] in judged and today <= entry["until"]:
                headline = f"remove the expected failure ({entry['reason']}): {verdict.headline}"
                return dataclasses.replace(
                    verdict, outcome=Outcome.UNEXPECTED_PASS, headline=headline
                )
    return verdict


def _entry(entries: Sequence[Entry], metric: str | None, today: dt.date) -> Entry | None:
    """Return the entry for a metric that failed: one that still holds before one that is over."""
    found = [e for e in entries if e["metric"] in {None, metric}]
    return next((e for e in found if today <= e["until"]), found[0] if found else None)


def _expected(verdict: Verdict, entries: Sequence[Entry], today: dt.date) -> Verdict:
    first = min(entries, key=lambda entry: entry["until"])
    until, reason = first["until"], first["reason"]
    if today > until:
        note = f"was expected until {until} ({reason}); that day is over"
        return dataclasses.replace(verdict, notes=(note, *verdict.notes))
    headline = f"{verdict.outcome} {verdict.headline}; until {until}: {reason}"
    return dataclasses.replace(verdict, outcome=Outcome.EXPECTED, headline=headline)

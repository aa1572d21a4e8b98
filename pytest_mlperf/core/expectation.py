"""Known failures: let them pass until their day, and fail when they stop failing."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_mlperf.core.verdict import Outcome, Verdict

FIELDS = ("scenario", "engine", "precision", "accelerator")


@dataclass(frozen=True, kw_only=True)
class Known:
    """A failure that a suite expects; None in a field matches everything.

    Attributes:
        scenario, engine, precision, accelerator: Of the case.
        metric: What may fail.
        reason: Why it is known.
        until: The last day on which it is expected.
        strict: The test fails when the failure stays away.
    """

    scenario: str | None = None
    engine: str | None = None
    precision: str | None = None
    accelerator: str | None = None
    metric: str | None = None
    reason: str
    until: dt.date
    strict: bool = True


def expect(verdict: Verdict, known: Sequence[Known], today: dt.date) -> Verdict:
    """Apply a suite's expected failures to a verdict.

    A test is expected to fail when each of its metrics that failed is: a second one that falls
    beside a known one is news. After its last day an entry excuses nothing. A failure that stays
    away fails the test, unless its entry is not strict: then it is only said.

    Args:
        verdict: What was found.
        known: The suite's `[[expected_failures]]`.
        today: The date, UTC.

    Returns:
        The verdict itself, one with outcome EXPECTED or UNEXPECTED_PASS, or one with a note.
    """
    case = verdict.case
    entries = [e for e in known if all(getattr(e, f) in {None, getattr(case, f)} for f in FIELDS)]
    judged = _judged(verdict)
    if verdict.outcome.fails and verdict.outcome not in {Outcome.ERROR, Outcome.INVALID}:
        failed = [name for name, outcome in judged if outcome.fails]
        covering = [_entry(entries, metric, today) for metric in failed or (None,)]
        return _expected(verdict, [e for e in covering if e], today) if all(covering) else verdict
    if verdict.outcome in {Outcome.OK, Outcome.IMPROVED}:
        names = {None, *(name for name, _ in judged)}
        return _passed(verdict, [e for e in entries if e.metric in names], today)
    return verdict


def _judged(verdict: Verdict) -> list[tuple[str, Outcome]]:
    """Return what was judged: metrics of runs, and scores by gate and by pairs, each once."""
    judged = [
        *((m.metric, m.outcome) for m in verdict.metrics if m.outcome),
        *((p.metric, p.outcome) for p in verdict.paired if p.outcome),
        *((r.metric, r.outcome) for r in (verdict.ratio,) if r),
    ]
    return list(dict.fromkeys(judged))


def _entry(entries: Sequence[Known], metric: str | None, today: dt.date) -> Known | None:
    """Return the entry for a metric that failed: one that still holds before one that is over."""
    found = [e for e in entries if e.metric in {None, metric}]
    return next((e for e in found if today <= e.until), found[0] if found else None)


def _expected(verdict: Verdict, entries: Sequence[Known], today: dt.date) -> Verdict:
    first = min(entries, key=lambda entry: entry.until)
    until, reason = first.until, first.reason
    if today > until:
        note = f"was expected until {until} ({reason}); that day is over"
        return dataclasses.replace(verdict, notes=(note, *verdict.notes))
    headline = f"{verdict.outcome} {verdict.headline}; until {until}: {reason}"
    return dataclasses.replace(verdict, outcome=Outcome.EXPECTED, headline=headline)


def _passed(verdict: Verdict, entries: Sequence[Known], today: dt.date) -> Verdict:
    """Return what is said when a known failure stays away."""
    holding = [entry for entry in entries if today <= entry.until]
    strict = next((entry for entry in holding if entry.strict), None)
    if strict:
        headline = f"remove the expected failure ({strict.reason}): {verdict.headline}"
        return dataclasses.replace(verdict, outcome=Outcome.UNEXPECTED_PASS, headline=headline)
    notes = [
        f"the expected failure ({entry.reason}) stayed away; it is not strict, so this passes"
        if entry in holding
        else f"remove the expected failure ({entry.reason}): its day, {entry.until}, is over"
        for entry in entries
    ]
    return dataclasses.replace(verdict, notes=(*verdict.notes, *notes)) if notes else verdict

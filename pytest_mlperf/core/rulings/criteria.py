"""Add the pass/fail criterion of an add-on to a verdict."""

from __future__ import annotations

from dataclasses import replace

from pytest_mlperf.core.addons import Criterion
from pytest_mlperf.core.notes import Note, NoteKey
from pytest_mlperf.core.verdict import Outcome, Verdict


def with_criterion(verdict: Verdict, criterion: Criterion) -> Verdict:
    """Apply an add-on's criterion to a verdict; one that already fails keeps its outcome."""
    if not criterion.fails or verdict.outcome.fails:
        notes = (criterion.headline, *criterion.notes, *verdict.notes)
        return replace(verdict, notes=notes)
    recorded = verdict.outcome is Outcome.RECORDED
    key: NoteKey = "alone_recorded" if recorded else "alone"
    note = Note.of(key, outcome=str(verdict.outcome), headline=verdict.headline)
    return replace(
        verdict,
        outcome=Outcome(criterion.outcome),
        headline=criterion.headline,
        notes=(note, *criterion.notes, *verdict.notes),
    )

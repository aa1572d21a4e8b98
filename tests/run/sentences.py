"""Sentences of what was seen of a run."""

from __future__ import annotations

from pytest_mlperf.core.measurement import Run
from pytest_mlperf.reports.sentences import sentence
from pytest_mlperf.run.figures import Findings


def notes_of(seen: Findings | Run) -> tuple[str, ...]:
    """Return the sentences of signs and notes."""
    return (*(sentence(sign.note) for sign in seen.signs), *map(sentence, seen.notes))


def reasons_of(seen: Findings | Run) -> tuple[str, ...]:
    """Return the sentences of the reasons why a run is INVALID."""
    return tuple(sentence(reason.text) for reason in seen.invalid)

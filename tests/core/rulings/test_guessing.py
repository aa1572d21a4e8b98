"""Scores that guessing beats."""

from __future__ import annotations

import pytest

from pytest_mlperf.core.measurement import Accuracy, Scored
from pytest_mlperf.core.notes import Note
from pytest_mlperf.core.rulings.accuracy import below_chance


@pytest.mark.parametrize(
    ("score", "chance", "samples", "noted"),
    [
        (0.0, 10.0, 1000, True),
        (8.5, 10.0, 1000, False),  # as chance may have it
        (0.0, 10.0, 20, False),
        (10.0, 10.0, 10**6, False),
        (95.0, 10.0, 1000, False),
        (0.0, 100.0, 1000, True),  # of one class, guessing is always right
        (40.0, 50.0, 1000, True),
    ],
)
def test_a_score_far_below_chance_is_noted(
    score: float, chance: float, samples: int, noted: bool
) -> None:
    accuracy = Accuracy(
        scores={"top1": score, "other": 0.0}, samples=samples, total=samples, full=True, folder=""
    )
    scored = Scored(indices=(), per_sample={}, chance={"top1": chance})
    note = Note.of("below_chance", metric="top1", score=score, chance=chance)
    assert below_chance(accuracy, scored) == ((note,) if noted else ())

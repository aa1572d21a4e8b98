"""Define the notes of a verdict: a key for decisions, and the values that its sentence holds.

`reports.sentences` has the sentence of each key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pytest_mlperf.core.numbers import Count, Number

NoteKey = Literal[
    # Headlines
    "metric", "nothing_gated", "unchecked", "with_unchecked", "until", "unexpected",
    # Rulings quoted in other rulings
    "not_judged", "accuracy_failed", "against_baseline", "against_stored", "beside_baseline",
    "alone", "alone_recorded", "compared_before", "not_recorded", "not_grown", "of_case",
    "accuracy_of_failed",
    # Metrics
    "no_metric", "no_metric_in_a", "if_sessions", "advisory", "drop_whatever", "load_explains",
    "load_explains_sides", "in_some_runs", "other_count", "other_cached", "cached_unevenly",
    "missing", "zero", "few_queries", "fewer_queries", "of_metric", "not_gated", "only_reported",
    "in_part", "gated_buffered", "gated_missing", "left_out", "energy_in_part",
    # Several metrics or sides together
    "interrupted", "scatter", "drop_among", "suspect_among", "suspect_again", "still_suspect",
    "few_sessions", "one_run", "sessions_unknown", "missing_on_side",
    # Accuracy
    "score", "scores", "gate", "gate_score", "proven_miss", "near_gate", "only_gate",
    "score_change", "unchanged_scores", "no_scores", "whole_only", "score_added", "score_lost",
    "below_chance", "empty_answers", "cut_answers", "unfit_answers", "more_empty", "more_cut",
    "outputs_only", "outputs_changed", "scores_only", "scored_alike", "chance_unseen", "grouped",
    "small_drop", "sampled_answers", "passes_disagree", "near_deterministic",
    # Runs
    "value", "first_run_differs", "first_run_skipped", "outlier", "limit_missed", "client_late",
    "busy", "not_idle", "load_unknown", "load_not_measured", "load_not_recorded",
    "load_missed_limit", "load_invalid", "recorded_under_load", "replaced",
    # Days
    "second_day", "first_day", "clock_set", "expectation_over", "expectation_missed",
    "expectation_stale",
]  # fmt: skip
"""Keys of sentences; results files hold these words, so that none ever changes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """State a fact about a verdict.

    Attributes:
        key: Key for decisions, and of the sentence in `reports.sentences`.
        values: Numbers (SI units, shares), names and further notes that the sentence holds.
    """

    key: NoteKey
    values: Mapping[
        str, bool | Count | Number | str | Note | tuple[Count | Number | str | Note, ...] | None
    ] = field(default_factory=dict)

    @classmethod
    def of(cls, key: NoteKey, **values: Any) -> Note:
        """Return a note with these values."""
        return cls(key=key, values=values)

    def __hash__(self) -> int:
        return hash((self.key, *sorted(self.values)))


Words = str | Note
"""A note, or a text that another program, an add-on or an older release wrote."""

"""Define the notes of a verdict: keys of sentences in `reports.sentences`, and their values."""

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
    "load_missed_limit", "load_invalid", "recorded_under_load", "replaced", "locked_clock",
    "control_not_run", "control_few", "control_library",
    # States and defects of runs
    "reasons", "invalid", "in_runs", "signs", "sign", "of_gpus", "at", "measured_again",
    "last_invalid", "sessions_invalid", "clock_event", "gpu_errors", "reset_waits", "pcie_link",
    "pcie_link_fell", "gpu_in_use", "gpu_used", "gpu_busy", "gpu_memory_in_use", "gpu_unused",
    "power_limit_changed", "gpu_hot", "xids", "nvlink_fell", "nvlink_retrained", "nvlinks_down",
    "nvlink_errors", "nvswitch_failed", "nvswitch_unhealthy", "seldom_read", "not_watched",
    "gpus_differ", "no_goodput", "goodput_unknown", "clock_moved", "slow_start", "too_short",
    "too_long", "client_share", "cores_unknown", "core_users", "client_at_limit", "client_queues",
    "requests_failed", "some_requests_failed", "few_requests", "overloaded", "latency_drifts",
    "throughput_drifts", "not_held", "not_held_by_rate", "turns", "cut_in_part", "stalled",
    "prompts_longer", "first_unsized", "builds_differ", "cache_unknown", "server_metric_missing",
    "server_shared", "prefix_share", "server_unread", "untimed_input", "of_loadgen",
    "run_too_short", "too_few_queries", "stopped_early", "invalid_by_loadgen", "loadgen_errors",
    "drafts", "not_complete", "ended_early", "requests_lost", "answers_missing", "miscounted",
    # Interleaved runs
    "interleaved", "ab_decided", "ab_not_confirmed", "ab_not_decided", "ab_open", "ab_no_drop",
    "ab_not_compared",
    # Days
    "second_day", "first_day", "clock_set", "expectation_over", "expectation_missed",
    "expectation_stale",
]  # fmt: skip
"""Keys of sentences; results files hold these words, so that none ever changes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """State a fact about a verdict.

    Attributes:
        key: Key that code compares and that selects the sentence in `reports.sentences`.
        values: Numbers (SI units, shares), names and nested notes for the sentence.
    """

    key: NoteKey
    values: Mapping[
        str, bool | Count | Number | str | Note | tuple[Count | Number | str | Note, ...] | None
    ] = field(default_factory=dict)

    @classmethod
    def of(cls, key: NoteKey, **values: Any) -> Note:
        """Create a note with this key and these values."""
        return cls(key=key, values=values)

    def __hash__(self) -> int:
        return hash((self.key, *sorted(self.values)))


Words = str | Note
"""A note, or a text that another program, an add-on or an older release wrote."""

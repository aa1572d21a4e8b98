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
    # Energy
    "no_trace", "trace_in_part", "trace_gap", "trace_thin", "trace_alone", "no_counter",
    "counter_constant", "counter_misread", "counter_jumped", "counter_too_fast", "counter_reset",
    "counter_in_part", "counter_unread", "counter_no_update", "counter_still", "counter_stale",
    "counter_seldom", "counter_paused", "counter_used", "energies_differ", "powers_differ",
    "power_too_low", "power_above_limit", "power_alone", "energy_short", "energy_unsure",
    "reader_unsure", "reader_no_gpu", "reader_no_power", "reader_stopped", "gpu_divided",
    "gpus_miscounted", "few_counted", "meter_failed", "meter_unsure", "meter_empty",
    "meter_clock_back", "meter_elsewhere", "meter_late", "meter_ended", "meter_gap", "meter_few",
    "host_energy", "host_unread", "host_constant", "host_shared", "energy_unknown",
    "energy_lacking", "run_unfit", "unjudged",
    # Baselines
    "same_day", "days_uncommitted", "days_missing", "fails_today", "change_in", "smaller_days",
    "smaller_interleaved", "step", "metric_lost", "record_worse", "record_made", "provable",
    "nothing_provable", "not_provable", "detectable", "data_differ", "settings_differ",
    "scorers_differ", "changed", "beside_record",
    # Machine and server
    "machine_moved", "clocks_moved", "replica_behind", "above_ceiling", "hardware_declared",
    "hardware_unknown", "server_hardware_changed", "was", "exporter_stale", "server_restarted",
    "stage_takes", "clock_change", "cap_change", "heat_change",
    # Roofline
    "roofline_share", "roofline_exceeded", "no_limit_asked", "no_limit", "no_formula",
    "gpu_unknown", "work_unknown", "format_unknown", "peak_unknown", "work_varies", "no_tokens",
    "output_tokens_unknown", "tokens_unknown", "sizes_unknown", "technique_unknown",
    "technique_unfit", "technique_needs",
    # Load
    "load_seen",
    # Compliance tests
    "audit", "audit_failed", "speed_differs", "repeated_faster", "seeds_slower",
    "reference_invalid", "test_invalid", "scenarios_differ", "no_score", "latency_limits_differ",
    "answers_differ", "no_common_sample", "ends_differ", "first_tokens_differ",
    "answers_continue", "lengths_differ", "no_first_token", "no_answer", "mean_length",
    "entropies_differ", "predictions_missing", "samples_unknown", "score_differs",
    "score_too_low", "scores_agree",
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

"""Each key of a note has one sentence; it is asserted here alone."""

from __future__ import annotations

import math
from typing import Any, get_args

from pytest_mlperf.core.contention import NOT_MEASURED
from pytest_mlperf.core.notes import Note, NoteKey
from pytest_mlperf.reports.sentences import runs_named, sentence
from tests.reports import test_measurement_sentences, test_run_sentences

METRIC: dict[str, Any] = {
    "metric": "throughput",
    "outcome": "PERF DROP",
    "now": 90.0,
    "change": -0.1,
    "low": -0.12,
    "high": -0.08,
    "limit": 0.05,
    "direction": None,
    "note": None,
}
FELL = Note.of("metric", **METRIC)
QUOTED = {"outcome": "PERF DROP", "headline": FELL}
FELL_TEXT = "samples/s −10.0 % (−12.0 to −8.0 %); limit −5 % exceeded"
FEWER = Note.of("fewer_queries", count=54, needed=100, baseline=120)
MISSING = Note.of("missing", runs=(2,), of=3, buffered=False)
BUFFERED = "answers arrived in one or a few reads, as behind a proxy that buffers"

GATE_SCORE = Note.of(
    "gate_score",
    metric="top1",
    score=75.695,
    bound=75.6954,
    missed=True,
    upper=False,
    share=0.99,
    whose="MLPerf's",
)
SCORE_CHANGE: dict[str, Any] = {
    "metric": "top1",
    "outcome": "ACC DROP",
    "change": -2.0,
    "low": -2.07,
    "high": -1.92,
    "bound": -0.5,
    "beyond": True,
}
CUT = Note.of("cut_answers", count=4, of=60, allowed=0.05, limit="")
RISEN = {"count": 20, "of": 60, "limit": "64", "baseline": 0, "baseline_of": 60}
VALUE = Note.of("value", metric="throughput", value=97.2)
BUSY = Note.of("busy", share=0.2, load="others used 0.4 of 2 cores")

SENTENCES: tuple[tuple[Note, str], ...] = (
    (FELL, FELL_TEXT),
    (
        Note.of("metric", **{**METRIC, "limit": 0.09}),
        "samples/s −10.0 % (−12.0 to −8.0 %); limit −9 % possibly exceeded",
    ),
    (
        Note.of("metric", **{**METRIC, "outcome": "ok", "limit": 0.2}),
        "samples/s −10.0 % (−12.0 to −8.0 %); within limit −20 %",
    ),
    (
        Note.of("metric", **{**METRIC, "outcome": "INCONCLUSIVE"}),
        "samples/s −10.0 % (−12.0 to −8.0 %); undecided at −5 %",
    ),
    (
        Note.of(
            "metric",
            **{
                **METRIC,
                "outcome": "PROVISIONAL",
                "direction": "drop",
                "note": Note.of("if_sessions", robust_to=0.0118),
            },
        ),
        "samples/s −10.0 % (−12.0 to −8.0 %); drop if day-to-day variation < 1.18 %",
    ),
    (Note.of("metric", **{**METRIC, "change": None}), "samples/s: no record of this machine"),
    (
        Note.of("metric", **{**METRIC, "change": None, "note": MISSING}),
        "samples/s: not measured in run 2 of 3",
    ),
    (
        Note.of("metric", **METRIC, condition="ttft_p99 < 1 s", at_least=True),
        f"at least 90 samples/s at ttft_p99 < 1 s{FELL_TEXT.removeprefix('samples/s')}",
    ),
    (Note.of("nothing_gated"), "no metric is gated"),
    (
        Note.of("unchecked", state="dummy weights"),
        "accuracy not evaluated (dummy weights)",
    ),
    (
        Note.of("with_unchecked", headline=FELL, note=Note.of("unchecked", state="scorer broke")),
        f"{FELL_TEXT}, accuracy not checked: the scorer failed",
    ),
    (Note.of("of_case", case="a-cpu", note="text"), "a-cpu: text"),
    (
        Note.of("until", until="2027-01-31", reason="issue 9", **QUOTED),
        f"PERF DROP {FELL_TEXT}; until 2027-01-31: issue 9",
    ),
    (
        Note.of("unexpected", reason="issue 9", headline="fast"),
        "remove the expected failure (issue 9): fast",
    ),
    (Note.of("not_judged", **QUOTED), f"not judged: PERF DROP {FELL_TEXT}"),
    (Note.of("accuracy_failed", **QUOTED), f"not judged: accuracy failed, PERF DROP {FELL_TEXT}"),
    (
        Note.of("accuracy_of_failed", case="a-cpu", **QUOTED),
        f"not judged: accuracy of a-cpu failed, PERF DROP {FELL_TEXT}",
    ),
    (Note.of("against_baseline", **QUOTED), f"against the baseline: PERF DROP {FELL_TEXT}"),
    (Note.of("against_stored", **QUOTED), f"against the stored baseline: PERF DROP {FELL_TEXT}"),
    (Note.of("beside_baseline", **QUOTED), f"against its baseline: PERF DROP {FELL_TEXT}"),
    (Note.of("alone", **QUOTED), f"against the baseline alone: PERF DROP {FELL_TEXT}"),
    (
        Note.of("alone_recorded", outcome="recorded", headline="8 runs in a.json"),
        "recorded anyway, do not commit it: recorded 8 runs in a.json",
    ),
    (
        Note.of("compared_before", judged=1, of=2, **QUOTED),
        "judged with 1 of these 2 runs before this session was added to the baseline: PERF DROP "
        f"{FELL_TEXT}",
    ),
    (
        Note.of("compared_before", judged=2, of=2, **QUOTED),
        f"judged before this session was added to the baseline: PERF DROP {FELL_TEXT}",
    ),
    (Note.of("not_recorded", note=MISSING), "nothing recorded: not measured in run 2 of 3"),
    (
        Note.of("not_grown", days=2, needed=4, note="INVALID: text"),
        "no session added to the baseline, which has 2 of 4 days: INVALID: text",
    ),
    (Note.of("no_metric"), "not in the baseline"),
    (Note.of("no_metric_in_a"), "A has no value"),
    (Note.of("if_sessions", robust_to=0.038), "if day-to-day variation < 3.8 %"),
    (
        Note.of("advisory", runs=2, needed=5),
        "the baseline has 2 of the 5 runs that a verdict needs",
    ),
    (
        Note.of("drop_whatever", others=1199, p=1e-6),
        "a drop, whatever the verdicts on the other 1,199 pairs, p=1e-06",
    ),
    (
        Note.of("load_explains", now=0.5, before=0.0),
        "load may have cost up to 50 % now and 0 % in the baseline: measure on an idle machine, or "
        "interleaved with the old build (--mlperf-against REF)",
    ),
    (
        Note.of("load_explains_sides", now=0.5, before=0.0),
        (
            "load may have cost B up to 50 % and A 0 %: measure on an idle machine, or A and B "
            "interleaved"
        ),
    ),
    (Note.of("in_some_runs", count=1, of=2), "in 1 of 2 runs"),
    (
        Note.of("other_count", metric="tokens_per_sample@8", value=44.1, low=36.0, high=44.0),
        "44.1 tokens/sample at 8, more than in the baseline (36 to 44)",
    ),
    (
        Note.of("other_count", metric="tokens_per_sample", value=511.0, low=512.0, high=512.0),
        "511 tokens/sample, less than in the baseline (512)",
    ),
    (
        Note.of("other_cached", point=2.0, now=(0.1, 0.2), other=(0.9, 0.9)),
        "at 2: 10 % to 20 % of the prompts' tokens were in the server's cache, 90 % in the "
        "baseline",
    ),
    (
        Note.of("cached_unevenly", point=None, now=(0.1, 0.1), other=(0.9, 0.9)),
        "10 % of the prompts' tokens were in the server's cache, 90 % in the first run",
    ),
    (MISSING, "not measured in run 2 of 3"),
    (Note.of("missing", runs=(1, 2), of=2, buffered=True), f"not measured: {BUFFERED}"),
    (
        Note.of("zero", metric="goodput@8", count=2, of=2, baseline=12.3),
        "no request met its limits in 2 of 2 runs; 12.3/s in the baseline",
    ),
    (
        Note.of("zero", metric="draft_length", count=1, of=2, baseline=None),
        "nothing was drafted in 1 of 2 runs",
    ),
    (Note.of("few_queries", needed=1000), "only reported: a gate needs 1,000 queries per run"),
    (FEWER, "54 queries per run, 100 are needed (120 in the baseline)"),
    (
        Note.of("fewer_queries", count=781, needed=1000, baseline=None),
        "781 queries per run, 1,000 are needed",
    ),
    (
        Note.of("of_metric", metric="tpot_p90@16", note=FEWER),
        "p90 TPOT at 16: 54 queries per run, 100 are needed (120 in the baseline)",
    ),
    (
        Note.of("not_gated", metrics=("ttft_p50@4", "ttft_p50@8", "tpot_p50")),
        f"p50 TTFT, p50 TPOT: not gated, {BUFFERED}",
    ),
    (
        Note.of("only_reported", metric="latency_p99", needed=1000),
        "p99 latency is only reported: a gate needs 1,000 queries a run",
    ),
    (
        Note.of("in_part", metric="goodput", count=7, of=8),
        "goodput/s: only 7 of 8 runs of the baseline have this metric; these are compared",
    ),
    (
        Note.of("gated_buffered", metrics=("ttft_p50",)),
        f"p50 TTFT: gated, but not measured: {BUFFERED}. Turn buffering off there, or gate a "
        'metric that is known: limits = { latency_p50 = { max_rise = "5%" } }',
    ),
    (
        Note.of("gated_missing", metric="goodput", note=MISSING, folder="a/b.2"),
        (
            "goodput/s: gated, but not measured in run 2 of 3. Read the notes and the log of "
            "that run (a/b.2), or remove the metric from the limits."
        ),
    ),
    (
        Note.of("left_out", metric="tpot_p90@16", note=FEWER),
        "p90 TPOT at 16: 54 queries per run, 100 are needed (120 in the baseline); not judged "
        "unless its drop is proven. A slower run of the same duration has fewer queries: raise "
        "min_query_count or min_duration, or record again with --mlperf-update=replace.",
    ),
    (
        Note.of("energy_in_part", metric="samples_per_joule", runs=(1, 3), of=4),
        "samples/J: energy unknown in runs 1 and 3 of 4",
    ),
    (Note.of("interrupted"), "the session ended before it was decided"),
    (
        Note.of("scatter", p=0.02),
        "within the variation of unchanged pairs in this session, p=0.02",
    ),
    (
        Note.of("drop_among", drops=1, among=1200, p=1e-4),
        "the only drop among 1,200 pairs judged together, p=0.0001",
    ),
    (
        Note.of("drop_among", drops=2, among=3, noun="metrics", p=1e-6),
        "one of 2 drops among 3 metrics judged together, p=1e-06",
    ),
    (
        Note.of("suspect_among", among=25, p=0.009),
        "a drop if judged alone, but not among 25 pairs judged together, p=0.009",
    ),
    (
        Note.of("suspect_again", since="2026-11-20", p=0.004),
        "SUSPECT since 2026-11-20 and again now, p=0.004",
    ),
    (
        Note.of("still_suspect", since="2026-11-20", needed=0.0012, p=0.004),
        "SUSPECT since 2026-11-20, p=0.004; a drop only if p < 0.0012",
    ),
    (
        Note.of("few_sessions", since=None),
        "if judged with all other pairs, but their baselines have too few sessions to prove it",
    ),
    (
        Note.of("few_sessions", since="2026-11-20"),
        "if judged with all other pairs, but their baselines have too few sessions to prove it; "
        "SUSPECT since 2026-11-20",
    ),
    (Note.of("one_run"), "one run is never enough to fail"),
    (
        Note.of("sessions_unknown", sessions=2, more=2, direction="drop"),
        "probably a regression: 2 sessions are too few to know the day-to-day variation; record "
        "2 more on other days",
    ),
    (
        Note.of(
            "missing_on_side",
            metric="throughput",
            count=1,
            of=3,
            side="A",
            started="2026-11-20T10:00:00",
        ),
        "samples/s is missing in 1 of 3 runs of A, first in the run of 2026-11-20T10:00:00",
    ),
    (Note.of("score", metric="top1", score=76.5234), "top1 76.523"),
    (
        Note.of(
            "scores",
            scores=(
                Note.of("score", metric="rouge1", score=45.0),
                Note.of("score", metric="rouge2", score=23.0),
            ),
            gate=Note.of("gate", state="none", samples=5, total=5, unscored=()),
        ),
        "rouge1 45.000, rouge2 23.000; no gate: no reference score is known",
    ),
    (
        Note.of("gate", state="not decided", samples=1024, total=50_000, unscored=("a", "b")),
        "gate not decided on 1,024 of 50,000 samples, without a, b",
    ),
    (GATE_SCORE, "top1 75.6950 < 75.6954, 99 % of MLPerf's reference"),
    (
        Note.of("proven_miss", note=GATE_SCORE, samples=1024, total=50_000),
        "top1 75.6950 < 75.6954, 99 % of MLPerf's reference; proven on 1,024 of 50,000 samples",
    ),
    (
        Note.of("near_gate", metric="top1", distance=0.0054, missed=True, sd=0.01),
        "NEAR-GATE: top1 is 0.0054 points short of its gate, 0.5 re-run standard deviations (0.01 "
        "points): another pass of this build may fall on the other side; repeat it before you call "
        "it a change",
    ),
    (Note.of("only_gate", note="record it"), "only the gate was checked: record it"),
    (
        Note.of("score_change", **SCORE_CHANGE),
        "top1 −2.00 points (−2.07 to −1.92); limit −0.50 exceeded",
    ),
    (
        Note.of("score_change", **{**SCORE_CHANGE, "low": None, "outcome": "INCONCLUSIVE"}),
        "top1 −2.00 points; undecided at −0.50",
    ),
    (
        Note.of("unchanged_scores", metric="top1", score=76.0, samples=1024, total=50_000),
        "top1 76.000, every sample of 1,024 scored as in the baseline",
    ),
    (Note.of("no_scores"), "the baseline has no scores by sample"),
    (
        Note.of("whole_only", metrics=("fid", "clip")),
        "fid, clip: judged only on the whole data set",
    ),
    (
        Note.of("score_added", metric="top1", sample=7),
        "top1: sample 7 has a score now, but none in the baseline. Did the data change?",
    ),
    (
        Note.of("score_lost", metric="top1", sample=7),
        "top1: sample 7 has no score now, but one in the baseline. Did the data change?",
    ),
    (
        Note.of("below_chance", metric="top1", score=0.0, chance=10.0),
        "top1 0.000 is worse than guessing (10.000): check the order of the labels and the "
        "preprocessing",
    ),
    (
        Note.of("empty_answers", count=20, of=60, reasoning=18, limit="64"),
        "20 of 60 answers are empty: 18 cut at max_new_tokens = 64 while reasoning",
    ),
    (CUT, "4 of 60 answers are cut at their token limit (5 % allowed)"),
    (
        Note.of("unfit_answers", note=CUT),
        "nothing recorded: 4 of 60 answers are cut at their token limit (5 % allowed); raise "
        "max_new_tokens, or accept it with --mlperf-accept-cut",
    ),
    (
        Note.of("more_empty", reasoning=20, **RISEN),
        "20 of 60 answers are empty, 0 of 60 in the baseline: cut at max_new_tokens = 64 while "
        "reasoning",
    ),
    (
        Note.of("more_cut", **RISEN),
        "20 of 60 answers are cut, 0 of 60 in the baseline, at max_new_tokens = 64",
    ),
    (
        Note.of("outputs_only", changed=40, of=4000, rescored=0),
        "40 of 4,000 outputs changed, no score did",
    ),
    (
        Note.of("outputs_changed", changed=40, of=4000, rescored=20),
        "40 of 4,000 outputs changed, and the scores of 20",
    ),
    (
        Note.of("scores_only", changed=0, of=4000, rescored=20),
        "20 scores changed, no output did: the scorer, or a library that it uses, changed",
    ),
    (
        Note.of("scored_alike", metric="top1", samples=4000, unseen=0.1),
        "top1: all 4,000 samples scored as in the baseline; on other samples, a drop below 0.10 "
        "points could go unnoticed",
    ),
    (
        Note.of("chance_unseen", metric="map", samples=4000, seen=0.25, needed=0.5),
        "map: 4,000 samples are too few to estimate chance: they show 25 % of its variance (50 % "
        "needed), because many classes have one sample, or few samples hold most of the data. "
        "Score more samples.",
    ),
    (
        Note.of("grouped", metric="f1", groups=40, widened=10.12),
        "f1: samples of one group change together. Judged by the 40 groups of the data set, the "
        "interval is 10.1 times as wide.",
    ),
    (
        Note.of("small_drop", metric="fid", p=1e-5),
        "fid: a drop smaller than the margin is proven (paired test, p=1e-05)",
    ),
    (
        Note.of("sampled_answers", metric="exact_match", samples=1230, margin=3.4),
        "exact_match: answers are sampled, and with 1,230 of them a drop below 3.40 points may be "
        "chance: that is the margin. More repeats of each question make it smaller.",
    ),
    (
        Note.of("passes_disagree", metric="top1", correlation=0.1, same_build=False),
        "top1: scores of the two passes differ sample by sample (correlation 0.10): changed "
        "outputs, or nondeterministic generation",
    ),
    (
        Note.of("near_deterministic", metric="top1", changed=6, samples=1024, correlation=0.99996),
        "top1: 6 of 1,024 scores differ from the baseline of the same build: near-deterministic "
        "(correlation 1.0000)",
    ),
    (VALUE, "97.2 samples/s"),
    (Note.of("value", metric="", value=None), "no value"),
    (
        Note.of("first_run_differs", metric="throughput", change=-0.03),
        (
            "the first run of a session differs by −3.0 % in samples/s: not recorded; later "
            "sessions make one warm-up run that does not count"
        ),
    ),
    (
        Note.of("first_run_skipped", value=VALUE),
        "the first run does not count, as in the baseline: 97.2 samples/s",
    ),
    (
        Note.of("outlier", run=4, of=9, value=VALUE),
        "run 4 of 9 is an outlier, 97.2 samples/s: not recorded",
    ),
    (Note.of("limit_missed", count=2, of=4), "2 of 4 runs missed their latency limit"),
    (
        Note.of("locked_clock", now=1860.0, baseline=1900.0, change=-0.021),
        (
            "the SM clock is locked, but it changed: 1860 MHz now, 1900 MHz when the baseline was "
            "recorded (−2.1 %)"
        ),
    ),
    (
        Note.of("control_not_run"),
        "the machine's micro-benchmark was not run in this session",
    ),
    (
        Note.of("control_few", needed=2),
        "fewer than 2 runs of the baseline have results of the machine's micro-benchmark",
    ),
    (
        Note.of("control_library"),
        (
            "the matrix product of the machine's micro-benchmark is not compared: the baseline "
            "used another library"
        ),
    ),
    (Note.of("client_late"), "the client sent requests late: see the notes of its runs"),
    (BUSY, "load may have cost up to 20 %: others used 0.4 of 2 cores"),
    (
        Note.of("not_idle", share=0.34, of=3, load="others used 1 of 2 cores"),
        "load may have slowed one of 3 runs by up to 34 %: others used 1 of 2 cores",
    ),
    (
        Note.of("not_idle", share=0.34, of=1, load=Note.of("cores_unknown")),
        "load may have slowed the run by up to 34 %: " + sentence(Note.of("cores_unknown")),
    ),
    (Note.of("load_unknown", count=1, of=2), "load unknown in 1 of 2 runs"),
    (
        Note.of("load_not_measured", count=1, of=2),
        f"load unknown in 1 of 2 runs: {NOT_MEASURED}",
    ),
    (
        Note.of("load_not_recorded", count=1, of=2),
        "load not recorded in 1 of 2 runs of the baseline: they count as undisturbed",
    ),
    (
        Note.of("load_missed_limit", load=BUSY),
        "a latency limit was missed, but load may have cost up to 20 %: others used 0.4 of 2 cores",
    ),
    (
        Note.of("load_invalid", load=BUSY),
        "the runs are INVALID, perhaps by load: load may have cost up to 20 %: others used 0.4 of "
        "2 cores",
    ),
    (
        Note.of("recorded_under_load"),
        ("recorded under load: a baseline from an idle machine detects smaller regressions"),
    ),
    (Note.of("second_day", since="2026-11-20"), "for the second day in a row (since 2026-11-20)"),
    (
        Note.of("first_day", note=Note.of("if_sessions", robust_to=0.1)),
        "if day-to-day variation < 10 %; it fails on the first day (fail-on provisional)",
    ),
    (
        Note.of("clock_set", day="2026-11-20"),
        "the last session was on 2026-11-20, later than this one: a clock was set; this drop "
        "counts as the first",
    ),
    (
        Note.of("expectation_over", until="2027-01-31", reason="issue 9"),
        "this failure was expected until 2027-01-31 (issue 9); that day is over",
    ),
    (
        Note.of("expectation_missed", until="2027-01-31", reason="issue 9"),
        "the expected failure (issue 9) did not occur; it is not strict, so this passes",
    ),
    (
        Note.of("expectation_stale", until="2027-01-31", reason="issue 9"),
        "remove the expected failure (issue 9): its last day was 2027-01-31",
    ),
)


EVERY = (*SENTENCES, *test_run_sentences.SENTENCES, *test_measurement_sentences.SENTENCES)


def test_each_key_has_its_sentence() -> None:
    assert [sentence(note) for note, _ in SENTENCES] == [text for _, text in SENTENCES]
    assert {note.key for note, _ in EVERY} == {*get_args(NoteKey)}


def test_sentences_fit_three_lines_of_a_terminal() -> None:
    assert [text for _, text in EVERY if len(text) > 3 * 100] == []


def test_a_text_of_another_origin_is_its_own() -> None:
    assert sentence("{metric:title} is 3 % {") == "{metric:title} is 3 % {"


def test_a_note_of_a_file_whose_values_are_missing_or_odd_shows_them() -> None:
    for note, _ in EVERY:
        odd: tuple[dict[str, Any], ...] = (
            {},
            dict.fromkeys(note.values, "x"),
            dict.fromkeys(note.values, math.pi),
        )
        for values in (*odd, dict.fromkeys(note.values)):
            assert isinstance(sentence(Note(key=note.key, values=values)), str)
    assert sentence(Note.of("scatter", q=1)) == "scatter q=1"


def test_runs_are_named_by_number() -> None:
    named = [runs_named(*runs) for runs in (([2], 3), ([2, 4], 5), ([1, 2, 4], 5), ([1, 2], 2))]
    assert named == ["run 2 of 3", "runs 2 and 4 of 5", "runs 1, 2 and 4 of 5", "every run"]

"""Apply MLPerf's compliance tests to logged values, and create the text of their files.

Source: run_verification.py and verify_*.py below compliance/ of
    https://github.com/mlcommons/inference at b66003e; for TEST05 at its tag v4.1. The submission
    checker searches the files for "TEST PASS" and the lines of TEST06.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp, inf, log

from pytest_mlperf.core.answer_forms import candidates
from pytest_mlperf.core.case import Kind, Scenario
from pytest_mlperf.core.notes import Note, NoteKey

PASS_LINE, FAIL_LINE = "TEST PASS", "TEST FAIL"
ACCURACY_FILE, PERFORMANCE_FILE, LENGTH_FILE = (
    "verify_accuracy.txt",
    "verify_performance.txt",
    "verify_output_len.txt",
)

SCORE_SLACK_SHARE, LATENCY_SLACK_SHARE, SEED_SLACK_SHARE = 0.10, 0.20, 0.05
"""Tolerated relative difference of a score: usually, with short latencies, with other seeds."""

SHORT_NS = {Scenario.SINGLE_STREAM: 200_000, Scenario.MULTI_STREAM: 1_600_000}
"""Latency up to which the wider tolerance applies [ns], by scenario."""

NE_SLACK = 0.001
EPSILON = 1e-7


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggedAnswer:
    """Hold one answer from LoadGen's log; token fields are None if tokens were not logged."""

    index: int
    data: bytes
    tokens: int | None = None
    first: bytes | None = None


@dataclass(frozen=True, kw_only=True)
class SpeedScore:
    """Hold a run's speed for compliance tests: samples/s (Offline, Server) or a latency [ns]."""

    scenario: Scenario
    value: float
    valid: bool
    limit_ns: int | None = None

    @property
    def is_latency(self) -> bool:
        """Whether the value is a latency, so that lower is better."""
        return self.scenario in SHORT_NS


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Hold one check's result: the report's file name and text, why it failed (`faults`), notes."""

    file: str
    text: str
    faults: tuple[Note, ...] = ()
    notes: tuple[Note, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether the reference script would report a pass."""
        return not self.faults


# --- speed ---------------------------------------------------------------------------------


def speed(test: str, reference: SpeedScore, timed: SpeedScore) -> Finding:
    """Compare the speed of compliance test `test` with that of the performance run, `reference`."""
    if test == Kind.TEST05:
        return other_seeds_speed(reference, timed)
    return same_speed(reference, timed, one_sample=test == Kind.TEST04)


def load_explains(test: str, scores: tuple[SpeedScore, SpeedScore], lost: Sequence[float]) -> bool:
    """Check whether other processes' load may explain a failed compliance check of speed.

    `lost` is the log slowdown that load may have caused in each of the two runs.
    """
    speeds = [1 / (one.value or inf) if one.is_latency else one.value for one in scores]
    slower = speeds.index(min(speeds))
    raised = min(max(speeds), speeds[slower] * exp(lost[slower]))
    without = [replace(one, valid=True) if any(lost) else one for one in scores]
    value = 1 / (raised or inf) if scores[slower].is_latency else raised
    without[slower] = replace(without[slower], value=value)
    return any(lost) and not speed(test, *without).faults


def same_speed(reference: SpeedScore, test: SpeedScore, *, one_sample: bool = False) -> Finding:
    """Compare speeds: TEST01 must be as fast as the reference, TEST04 (one sample) not faster."""
    faults = _comparable(reference, test)
    ours, theirs = reference.value, test.value
    if one_sample and reference.is_latency and ours and theirs:
        ours, theirs = 1e9 / ours, 1e9 / theirs
    slack = _slack(reference, ours)
    if not faults and theirs > ours * (1 + slack):
        faults = [_moved("repeated_faster" if one_sample else "speed_differs", ours, theirs, slack)]
    if not faults and not one_sample and theirs < ours * (1 - slack):
        faults = [_moved("speed_differs", ours, theirs, slack)]
    return _speed(ours, theirs, faults)


def other_seeds_speed(reference: SpeedScore, test: SpeedScore) -> Finding:
    """Compare the speed of TEST05's run (other seeds) with that of the performance run."""
    faults = _comparable(reference, test)
    slack = _slack(reference, reference.value, SEED_SLACK_SHARE)
    moved = test.value / reference.value - 1 if reference.value else 0.0
    if not faults and (moved >= slack if reference.is_latency else moved <= -slack):
        faults = [_moved("seeds_slower", reference.value, test.value, slack)]
    return _speed(reference.value, test.value, faults)


def _moved(key: NoteKey, reference: float, score: float, allowed: float) -> Note:
    moved = score / reference - 1
    return Note.of(key, score=score, reference=reference, change=moved, allowed=allowed)


def _comparable(reference: SpeedScore, test: SpeedScore) -> list[Note]:
    runs = {"test": str(test.scenario), "reference": str(reference.scenario)}
    causes: tuple[tuple[bool, Note], ...] = (
        (not reference.valid, Note.of("reference_invalid")),
        (not test.valid, Note.of("test_invalid")),
        (reference.scenario != test.scenario, Note.of("scenarios_differ", **runs)),
        (not (reference.value and test.value), Note.of("no_score")),
        (reference.limit_ns != test.limit_ns, Note.of("latency_limits_differ")),
    )
    return [note for differs, note in causes if differs][:1]


def _slack(reference: SpeedScore, score: float, usual: float = SCORE_SLACK_SHARE) -> float:
    short = SHORT_NS.get(reference.scenario)
    return LATENCY_SLACK_SHARE if short is not None and score <= short else usual


def _speed(ours: float, theirs: float, faults: Sequence[Note]) -> Finding:
    lines = ["Verifying performance.", f"reference score = {ours}", f"test score = {theirs}"]
    lines += [FAIL_LINE if faults else PASS_LINE, ""]
    return Finding(file=PERFORMANCE_FILE, text="\n".join(lines), faults=tuple(faults))


# --- answers -------------------------------------------------------------------------------


def same_answers(accuracy: Iterable[LoggedAnswer], timed: Iterable[LoggedAnswer]) -> Finding:
    """Compare the answers of a timed run and the accuracy run, by their first byte.

    Samples missing in the accuracy run are skipped, as in MLPerf's script.
    """
    accepted: dict[int, bytes] = {}
    seen = {"entries": 0, "duplicates": 0, "unlike": 0}
    for answer in accuracy:
        seen["entries"] += 1
        if answer.index in accepted:
            seen["duplicates"] += 1
            seen["unlike"] += accepted[answer.index] != answer.data
        else:
            accepted[answer.index] = answer.data
    entries = matched = differing = missing = whole = 0
    for answer in timed:
        entries += 1
        other = accepted.get(answer.index)
        if other is None:
            missing += 1
        else:
            matched += 1
            differing += other[:1] != answer.data[:1]
            whole += other != answer.data
        accepted[answer.index] = answer.data
    lines = [
        f"num_acc_log_entries = {seen['entries']}",
        f"num_acc_log_duplicate_keys = {seen['duplicates']}",
        f"num_acc_log_data_mismatch = {seen['unlike']}",
        f"num_perf_log_entries = {entries}",
        f"num_perf_log_qsl_idx_match = {matched}",
        f"num_perf_log_data_mismatch = {differing}",
        f"num_missing_qsl_idxs = {missing}",
    ]
    faults, notes = [], []
    if differing:
        faults.append(Note.of("answers_differ", count=differing, of=matched))
    elif not matched:
        faults.append(Note.of("no_common_sample"))
    elif whole:
        notes.append(Note.of("ends_differ", count=whole, of=matched))
    return _accuracy(lines, faults, notes)


def _accuracy(lines: Sequence[str], faults: Sequence[Note], notes: Sequence[Note] = ()) -> Finding:
    text = "\n".join(["Verifying accuracy.", *lines, FAIL_LINE if faults else PASS_LINE, ""])
    return Finding(file=ACCURACY_FILE, text=text, faults=tuple(faults), notes=tuple(notes))


def check_token_counts(
    timed: Iterable[LoggedAnswer], *, scenario: Scenario, end_token: int, token_bytes: int
) -> Finding:
    """Check TEST06: token counts, the first token, and at most one end token (id `end_token`)."""
    answers = list(timed)
    checked = scenario != Scenario.OFFLINE
    # As in the reference, an empty report does not contradict.
    firsts = [
        a for a in answers if checked and not a.data.startswith((a.first or b"")[: len(a.data)])
    ]
    ends = [
        answer
        for answer in answers
        if _ends(answer.data, end_token.to_bytes(token_bytes, "little")) > 1
    ]
    lengths = [a for a in answers if a.tokens is None or len(a.data) // token_bytes != a.tokens]
    first = str(not firsts) if checked else "Skipped"
    wrong: dict[NoteKey, Sequence[LoggedAnswer]] = {
        "first_tokens_differ": firsts,
        "answers_continue": ends,
        "lengths_differ": lengths,
    }
    faults = [Note.of(k, count=len(w), of=len(answers)) for k, w in wrong.items() if w]
    notes = []
    if checked and not any(answer.first for answer in answers):
        notes.append(Note.of("no_first_token"))
    if not answers:
        notes.append(Note.of("no_answer"))
    lines = [
        f"First token check pass: {first}",
        f"EOS check pass: {not ends}",
        f"Sample length check pass: {not lengths}",
        "TEST06 verification " + ("failed" if faults else "complete"),
        "",
    ]
    return Finding(
        file=ACCURACY_FILE, text="\n".join(lines), faults=tuple(faults), notes=tuple(notes)
    )


def _ends(data: bytes, token: bytes) -> int:
    count, width = 0, len(token)
    while len(data) > (count + 1) * width:
        stop = len(data) - count * width
        if data[stop - width : stop] != token:
            break
        count += 1
    return count


def check_mean_length(
    timed: Iterable[LoggedAnswer], *, low: float, high: float, width: int
) -> Finding:
    """Check TEST09: the mean length of answers, in tokens of `width` bytes, is in range."""
    lengths = [len(answer.data) // width for answer in timed]
    mean = sum(lengths) / len(lengths) if lengths else 0.0
    spread = (sum((x - mean) ** 2 for x in lengths) / len(lengths)) ** 0.5 if lengths else 0.0
    faults = []
    if not low <= mean <= high:
        faults.append(Note.of("mean_length", mean=mean, low=low, high=high))
    lines = [
        "TEST09: Verify Output Token Length in Performance Mode",
        f"Total samples: {len(lengths)}",
        f"Mean output tokens: {mean:.2f}",
        f"Min output tokens: {min(lengths, default=0)}",
        f"Max output tokens: {max(lengths, default=0)}",
        f"Std deviation: {spread:.2f}",
        f"Min threshold: {low}",
        f"Max threshold: {high}",
        f"Min check pass: {mean >= low}",
        f"Max check pass: {mean <= high}",
        FAIL_LINE if faults else PASS_LINE,
        "",
    ]
    return Finding(file=LENGTH_FILE, text="\n".join(lines), faults=tuple(faults))


def same_predictions(accuracy: Iterable[LoggedAnswer], timed: Iterable[LoggedAnswer]) -> Finding:
    """Check TEST08: each sample has the normalised entropy of the accuracy run, within 0.1 %.

    The first two numbers of a dlrm-v3 answer identify the sample; `candidates` explains the others.
    """
    accepted = {}
    entries = 0
    for answer in accuracy:
        entries += 1
        if count := candidates(answer.data):
            row = _floats(answer.data)
            parts = (row[2 + k * count : 2 + (k + 1) * count] for k in range(3))
            accepted[tuple(row[:2])] = tuple(parts)
    logged = matched = unmatched = misshapen = differing = 0
    for answer in timed:
        row = _floats(answer.data)
        logged += 1
        ranked = accepted.get(tuple(row[:2]))
        if ranked is None:
            unmatched += 1
            continue
        matched += 1
        predictions, labels, weights = ranked
        if len(row[2:]) != len(labels):
            misshapen += 1
            continue
        old, new = (_entropy(each, labels, weights) for each in (predictions, row[2:]))
        differing += abs(new - old) > NE_SLACK * abs(old)
    counts: dict[NoteKey, int] = {
        "entropies_differ": differing,
        "predictions_missing": misshapen,
        "samples_unknown": unmatched,
        "no_common_sample": int(not matched),
    }
    faults = [Note.of(k, count=n, of=matched, most=NE_SLACK) for k, n in counts.items() if n]
    lines = [
        f"num_acc_log_entries = {entries}",
        f"num_perf_log_entries = {logged}",
        f"num_matched = {matched}",
        f"num_unmatched = {unmatched}",
        f"num_ne_mismatch = {differing + misshapen}",
        f"tolerance = {100 * NE_SLACK:.2f}%",
    ]
    return _accuracy(lines, faults)


def _floats(data: bytes) -> Sequence[float]:
    row = array("f")
    row.frombytes(data[: len(data) // 4 * 4])
    return row


def _entropy(
    predictions: Sequence[float], labels: Sequence[float], weights: Sequence[float]
) -> float:
    """Return the normalised cross entropy of predictions; 0 if the weights sum to 0."""
    total = sum(weights)
    if not total:
        return 0.0
    inside = list(map(_inside, labels))
    rows = zip(weights, inside, map(_inside, predictions), strict=True)
    cross = -sum(w * (y * log(p) + (1 - y) * log(1 - p)) for w, y, p in rows)
    share = _inside(sum(w * y for w, y in zip(weights, inside, strict=True)) / total)
    base = -share * log(share) - (1 - share) * log(1 - share)
    return cross / (base * total) if base else 0.0


def _inside(value: float) -> float:
    return min(max(value, EPSILON), 1 - EPSILON)


def score_differences(
    baseline: Mapping[str, float], timed: Mapping[str, float], allowed: Mapping[str, float]
) -> tuple[Note, ...]:
    """Return notes on TEST01 scores that differ from the baseline by more than `allowed` shares."""
    scores = {name: (timed.get(name, 0.0), baseline.get(name, 0.0)) for name in allowed}
    return tuple(
        Note.of("score_differs", metric=name, score=ours, reference=theirs, allowed=allowed[name])
        for name, (ours, theirs) in scores.items()
        if not ours or abs(1 - theirs / ours) > allowed[name]
    )


def check_accuracy(score: float, min_score: float) -> Finding:
    """Check TEST07: the score of the timed run on a small data set is at least `min_score`."""
    low = Note.of("score_too_low", score=score, least=min_score)
    faults = [] if score >= min_score else [low]
    return _accuracy([f"'exact_match': {score}", f"Accuracy threshold: {min_score}"], faults)


@dataclass(frozen=True, kw_only=True)
class Audit:
    """Hold the findings of all checks of a compliance test."""

    test: str
    findings: tuple[Finding, ...] = field(default_factory=tuple)

    @property
    def faults(self) -> tuple[Note, ...]:
        """Reasons for all failed checks."""
        return tuple(fault for finding in self.findings for fault in finding.faults)

    @property
    def notes(self) -> tuple[Note, ...]:
        """Remarks that do not fail the test."""
        return tuple(note for finding in self.findings for note in finding.notes)

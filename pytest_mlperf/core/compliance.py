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
from pytest_mlperf.core.numbers import change

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
    """Hold a performance result: samples/s (Offline, Server) or a latency [ns]."""

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
    """Hold the result of one check: file name and text of its report, its faults, and remarks."""

    file: str
    text: str
    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

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
        difference = f"{change(theirs / ours - 1)} from {ours:,.6g}"
        words = f"the score is {theirs:,.6g} ({difference}); at most ±{_share(slack)} is allowed"
        if one_sample:
            words = (
                f"{theirs:,.6g} samples/s if one sample is repeated ({difference}/s with all "
                f"samples); at most +{_share(slack)} is allowed: the engine may cache answers"
            )
        faults.append(words)
    if not faults and not one_sample and theirs < ours * (1 - slack):
        faults.append(
            f"the score is {theirs:,.6g} ({change(theirs / ours - 1)} from {ours:,.6g}); at most "
            f"±{_share(slack)} is allowed"
        )
    return _speed(ours, theirs, faults)


def other_seeds_speed(reference: SpeedScore, test: SpeedScore) -> Finding:
    """Compare the speed of TEST05's run (other seeds) with that of the performance run."""
    faults = _comparable(reference, test)
    slack = _slack(reference, reference.value, SEED_SLACK_SHARE)
    moved = test.value / reference.value - 1 if reference.value else 0.0
    if not faults and (moved >= slack if reference.is_latency else moved <= -slack):
        faults.append(
            f"with other seeds the score is {test.value:,.6g} ({change(moved)} from "
            f"{reference.value:,.6g}); at most {_share(slack)} worse is allowed"
        )
    return _speed(reference.value, test.value, faults)


def _share(share: float) -> str:
    return f"{100 * share:g} %"


def _comparable(reference: SpeedScore, test: SpeedScore) -> list[str]:
    if not reference.valid:
        return ["the performance run is INVALID"]
    if not test.valid:
        return ["LoadGen reports the run INVALID"]
    if reference.scenario != test.scenario:
        return [
            f"the test run is of scenario {test.scenario}, the performance run of "
            f"{reference.scenario}"
        ]
    if not (reference.value and test.value):
        return ["LoadGen logged no score"]
    if reference.limit_ns != test.limit_ns:
        return ["the test run and the performance run have different latency limits"]
    return []


def _slack(reference: SpeedScore, score: float, usual: float = SCORE_SLACK_SHARE) -> float:
    short = SHORT_NS.get(reference.scenario)
    return LATENCY_SLACK_SHARE if short is not None and score <= short else usual


def _speed(ours: float, theirs: float, faults: Sequence[str]) -> Finding:
    lines = ["Verifying performance.", f"reference score = {ours}", f"test score = {theirs}"]
    end = f"{FAIL_LINE}: {'; '.join(faults)}" if faults else PASS_LINE
    return Finding(file=PERFORMANCE_FILE, text="\n".join([*lines, end, ""]), faults=tuple(faults))


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
        faults.append(f"{differing:,} of {matched:,} answers differ from the accuracy run's")
    elif not matched:
        faults.append("no logged answer belongs to a sample of the accuracy run")
    elif whole:
        notes.append(
            f"{whole:,} of {matched:,} answers differ after their first element; the "
            "reference script compares only the first"
        )
    return _accuracy(lines, faults, notes)


def _accuracy(lines: Sequence[str], faults: Sequence[str], notes: Sequence[str] = ()) -> Finding:
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
    faults = [
        words
        for wrong, words in (
            (firsts, "{} of {} answers do not begin with the token that was reported as the first"),
            (ends, "{} of {} answers continue after their end token"),
            (lengths, "{} of {} answers have a length other than the reported number of tokens"),
        )
        if wrong
        for words in [words.format(f"{len(wrong):,}", f"{len(answers):,}")]
    ]
    notes = []
    if checked and not any(answer.first for answer in answers):
        notes.append("the engine reports no first token, so nothing is compared")
    if not answers:
        notes.append("no answer was logged")
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
        faults.append(
            f"answers have {mean:,.2f} tokens on average; {low:g} to {high:g} are required"
        )
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

    The first two numbers of a dlrm-v3 answer identify the sample; for the rest see `candidates`.
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
    faults = [
        words
        for wrong, words in (
            (differing, f"entropies of {differing:,} of {matched:,} samples differ by over 0.1 %"),
            (misshapen, f"{misshapen:,} samples have more or fewer predictions than labels"),
            (unmatched, f"{unmatched:,} samples are not in the accuracy run"),
            (not matched, "no logged answer belongs to a sample of the accuracy run"),
        )
        if wrong
    ]
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
) -> tuple[str, ...]:
    """Return messages on scores of the TEST01 run that differ by more than `allowed` (shares)."""
    return tuple(
        f"{name} is {timed.get(name, 0):g} in the test run and {baseline.get(name, 0):g} in the "
        f"accuracy run; at most {_share(most)} apart is allowed"
        for name, most in allowed.items()
        if not timed.get(name) or abs(1 - baseline.get(name, 0.0) / timed[name]) > most
    )


def check_accuracy(score: float, min_score: float) -> Finding:
    """Check TEST07: the score of the timed run on a small data set is at least `min_score`."""
    faults = (
        []
        if score >= min_score
        else [f"the score is {score:g}; at least {min_score:g} is required"]
    )
    return _accuracy([f"'exact_match': {score}", f"Accuracy threshold: {min_score}"], faults)


@dataclass(frozen=True, kw_only=True)
class Audit:
    """Hold the findings of all checks of a compliance test."""

    test: str
    findings: tuple[Finding, ...] = field(default_factory=tuple)

    @property
    def faults(self) -> tuple[str, ...]:
        """Reasons for all failed checks."""
        return tuple(fault for finding in self.findings for fault in finding.faults)

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks that do not fail the test."""
        return tuple(note for finding in self.findings for note in finding.notes)

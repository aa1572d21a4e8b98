"""Define session results, expected failures and suspects (drops to confirm); merge parts."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pytest_mlperf.core.case import Division, Kind, Profile
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.notes import Note
from pytest_mlperf.core.numbers import AtLeastOne, Count, Positive, Runs, Seconds, Slowdown
from pytest_mlperf.core.rulings.multiplicity import (
    DROP_OUTCOMES,
    SuspectSince,
    is_open,
    judge_pairs_jointly,
    reset_outcomes,
    with_metrics,
)
from pytest_mlperf.core.verdict import MetricVerdict, Outcome, Verdict
from pytest_mlperf.judge.inputs import DAYS
from pytest_mlperf.judge.multiplicity import MAX_LONE_PAIRS
from pytest_mlperf.judge.rule_r import RuleR

CASE_FIELDS = ("scenario", "engine", "precision", "accelerator")


@dataclass(frozen=True, kw_only=True)
class KnownFailure:
    """Hold a failure that a suite expects; a field of None matches everything.

    Attributes:
        scenario, engine, precision, accelerator: Names in the case's id.
        metric: The metric that may fail.
        reason: The known cause.
        until: The last day on which it is expected.
        strict: Whether the test fails if the failure does not occur.
    """

    scenario: str | None = None
    engine: str | None = None
    precision: str | None = None
    accelerator: str | None = None
    metric: str | None = None
    reason: str
    until: dt.date
    strict: bool = True


def expect(verdict: Verdict, expected: Sequence[KnownFailure], today: dt.date) -> Verdict:
    """Apply a suite's expected failures to a verdict.

    Each failed metric needs an entry, which expires after its last day. If the failure does not
    occur, the test fails with a strict entry and gets a note otherwise.
    """
    case = verdict.case
    entries = [
        e for e in expected if all(getattr(e, f) in {None, getattr(case, f)} for f in CASE_FIELDS)
    ]
    metrics = [(m.metric, m.fails) for m in verdict.metrics if m.outcome]
    ratios = [*verdict.paired, *((verdict.ratio,) if verdict.ratio else ())]
    judged = dict.fromkeys([*metrics, *((r.metric, r.outcome.fails) for r in ratios if r.outcome)])
    if verdict.fails and verdict.outcome not in {Outcome.ERROR, Outcome.INVALID}:
        failed = [name for name, fails in judged if fails]
        covering = [_entry(entries, metric, today) for metric in failed or (None,)]
        return _expected(verdict, [e for e in covering if e], today) if all(covering) else verdict
    if verdict.outcome in {Outcome.OK, Outcome.IMPROVED}:
        names = {None, *(name for name, _ in judged)}
        return _passed(verdict, [e for e in entries if e.metric in names], today)
    return verdict


def _entry(
    entries: Sequence[KnownFailure], metric: str | None, today: dt.date
) -> KnownFailure | None:
    matching = [e for e in entries if e.metric in {None, metric}]
    return next((e for e in matching if today <= e.until), matching[0] if matching else None)


def _expected(verdict: Verdict, entries: Sequence[KnownFailure], today: dt.date) -> Verdict:
    first = min(entries, key=lambda entry: entry.until)
    until, reason = first.until, first.reason
    if today > until:
        note = Note.of("expectation_over", until=str(until), reason=reason)
        return replace(verdict, notes=(note, *verdict.notes))
    values = {"outcome": str(verdict.outcome), "headline": verdict.headline}
    headline = Note.of("until", until=str(until), reason=reason, **values)
    return replace(verdict, outcome=Outcome.EXPECTED, headline=headline)


def _passed(verdict: Verdict, entries: Sequence[KnownFailure], today: dt.date) -> Verdict:
    holding = [entry for entry in entries if today <= entry.until]
    strict = next((entry for entry in holding if entry.strict), None)
    if strict:
        values = {"reason": strict.reason, "headline": verdict.headline}
        headline = Note.of("unexpected", **values)
        return replace(verdict, outcome=Outcome.UNEXPECTED_PASS, headline=headline)
    notes = [
        Note.of(
            "expectation_missed" if entry in holding else "expectation_stale",
            reason=entry.reason,
            until=str(entry.until),
        )
        for entry in entries
    ]
    return replace(verdict, notes=(*verdict.notes, *notes)) if notes else verdict


Key = tuple[str, str, frozenset[tuple[str, object]]]


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """Record that a test was SUSPECT or a PROVISIONAL drop; the next session judges it again.

    Attributes:
        test: Pytest's node id.
        metrics: Metrics that would have failed if judged alone.
        date: Start of the first session in which the test is suspect, ISO 8601, UTC.
        profile: "quick" or "official", which have separate runs.
        identity: Properties of the hardware; each hardware has its own entry.
        drops: For each metric with a PROVISIONAL drop in the last session, the start of the first
            of the consecutive sessions with this drop.
        baseline: Id of the baseline of these drops.
        seen: Start of the last session that judged the test; "" in older files means `date`.
    """

    test: str
    metrics: tuple[str, ...]
    date: str
    profile: Profile
    identity: Mapping[str, str | int | float | bool | None]
    drops: Mapping[str, str] = field(default_factory=dict)
    baseline: str = ""
    seen: str = ""

    def __post_init__(self) -> None:
        for text in filter(None, (self.date, self.seen, *self.drops.values())):
            dt.datetime.fromisoformat(text)  # dates are compared as text, so they must be dates

    @property
    def sort_key(self) -> tuple[str, str]:
        """Sort key, oldest first: (start of the last session, start of the first session)."""
        return self.seen or self.date, self.date

    @property
    def key(self) -> Key:
        """Key that is equal for the same test, profile and hardware in other sessions."""
        return self.test, self.profile, frozenset(self.identity.items())


def newest(suspects: Iterable[Suspect]) -> tuple[Suspect, ...]:
    """Return the newest record per test, profile and hardware, in order of first occurrence."""
    latest: dict[Key, Suspect] = {}
    for suspect in suspects:
        there = latest.get(suspect.key)
        if there is None or suspect.sort_key > there.sort_key:
            latest[suspect.key] = suspect
    return tuple(latest.values())


SCHEMA_VERSION = 3
UNVERIFIED_LABEL = "Result not verified by MLCommons Association."

IMPORTED = "imported"
"""Replaces the suite of another harness's result, which cannot be reproduced."""


@dataclass(frozen=True, kw_only=True)
class CaseResult:
    """Hold one test with its verdict.

    Attributes:
        test: Pytest's node id.
        suite: Suite or test file, relative to the root folder.
        line: Line of the engine entry in the suite.
        round: MLPerf round.
        profile: "quick" or "official".
        verdict: The verdict with its runs.
        failed: Whether the test failed under the session's options.
        limits: Gated metrics with their limits, as shares.
        scored: Whether recording the case requires an accuracy pass.
        handicap: Share of speed that --mlperf-handicap removed; if above 0, nothing may be
            recorded.
        pretended: Whether the accelerator was simulated; then nothing may be recorded.
        max_runs: Most runs before INCONCLUSIVE, the number of interim analyses.
        arguments: Options of the session needed to repeat the test.
        target_qps: Offered or expected rate [1/s].
        qps_source: Origin of the rate: "suite", "probe" or None.
        division: "closed" or "open".
        techniques: Techniques of the engine entry that only the open division allows.
        elsewhere: The other Python of the engine, as the suite writes it; "" for this Python.
        pairs: Number of (case, metric) pairs judged jointly; 0 if judged alone.
        expected_failures: Failures that the suite expects.
        suspected: The test's suspect entry from an earlier session, or None.
        rests_on: SHA-256 of suite and baseline when the test was judged or recorded, by path
            relative to the root.
        facts: Texts that add-ons add to reports, by title.
    """

    test: str
    suite: str
    line: Count
    round: str
    profile: Profile
    verdict: Verdict
    failed: bool
    limits: Mapping[str, Positive]
    scored: bool
    handicap: Slowdown
    pretended: bool
    arguments: tuple[str, ...] = ()
    max_runs: Runs = 5
    target_qps: Positive | None
    qps_source: str | None
    division: Division = "closed"
    techniques: tuple[str, ...] = ()
    elsewhere: str = ""
    pairs: Count = 0
    expected_failures: tuple[KnownFailure, ...] = ()
    suspected: Suspect | None = None
    rests_on: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Results:
    """Hold the results of one session.

    Attributes:
        schema: Version of this document.
        run: Id of the session; also the name of its folder.
        started: ISO 8601 UTC.
        seconds: Wall-clock length of the session [s].
        commit: Commit of the tested project, or None.
        versions: Versions of this package and its tools.
        deselected: Number of deselected cases by accelerator that this machine lacks.
        cases: One entry per judged test.
        skipped: Reason by collected test that did not run.
        pairs: Number of (case, metric) pairs judged jointly; 0 if each was judged alone.
        suspects: Tests with an unconfirmed drop, new or older; the next session judges each alone.
        resumes: Id of the interrupted session that this one resumed; "" if none.
        label: Label that MLCommons requires next to figures.
    """

    schema: AtLeastOne = SCHEMA_VERSION
    run: str
    started: str
    seconds: Seconds
    commit: str | None
    versions: Mapping[str, str]
    deselected: Mapping[str, Count]
    cases: tuple[CaseResult, ...]
    skipped: Mapping[str, str] = field(default_factory=dict)
    pairs: Count = 0
    suspects: tuple[Suspect, ...] = ()
    resumes: str = ""
    label: str = UNVERIFIED_LABEL


def by_case(results: Iterable[CaseResult]) -> tuple[CaseResult, ...]:
    """Return results grouped by case, because deferred verdicts come last in a session."""
    cases: dict[tuple[str, str], list[CaseResult]] = {}
    for result in results:
        cases.setdefault((result.suite, result.verdict.case.id), []).append(result)
    return tuple(result for case in cases.values() for result in case)


DECIDED_OUTCOMES = {
    Outcome.OK,
    Outcome.IMPROVED,
    Outcome.SUSPECT,
    Outcome.EXPECTED,
    Outcome.UNEXPECTED_PASS,
    *DROP_OUTCOMES.values(),
}
"""Outcomes that end an earlier suspicion. All others, from NO BASELINE to RECORDED, keep it."""

OPEN = {Outcome.INCONCLUSIVE, Outcome.PROVISIONAL}
"""Outcomes of a metric that leave it suspect if another metric of the test is."""


def next_suspects(
    suspects: Iterable[Suspect], results: Iterable[CaseResult], *, date: str, cleared: bool = False
) -> tuple[Suspect, ...]:
    """Return the suspects after `results`: tested ones, then those of `suspects` not tested now.

    Tests that are no longer suspect are left out unless `cleared`; `date` is the session's start.
    """
    earlier = newest(suspects)
    tested = [
        _after(result, suspected(earlier, result), date)
        for result in results
        if result.verdict.kind in DROP_OUTCOMES and _counts(result)
    ]
    keys = {one.key for one in tested}
    everything = (*tested, *(one for one in earlier if one.key not in keys))
    return tuple(one for one in everything if one.metrics or one.drops or cleared)


def _after(result: CaseResult, earlier: Suspect | None, date: str) -> Suspect:
    outcome = result.verdict.outcome
    suspect = earlier or _suspect(result, (), date)
    if outcome in DECIDED_OUTCOMES:
        names = _metrics(result, earlier)
        since = earlier.date if earlier and {*earlier.metrics} & {*names} else date
        suspect = replace(suspect, metrics=names, date=since)
    if outcome in DECIDED_OUTCOMES | OPEN:
        drops = {
            m.metric: _first_date(m.metric, result.verdict, earlier) or date
            for m in result.verdict.metrics
            if result.verdict.baseline.id and (m.seems_drop or m.outcome in DROP_OUTCOMES.values())
        }
        baseline = result.verdict.baseline.id if drops else ""
        suspect = replace(suspect, drops=drops, baseline=baseline, seen=date)
        if not suspect.metrics:
            suspect = replace(suspect, date=min(drops.values(), default=date))
    return suspect


def _first_date(metric: str, verdict: Verdict, earlier: Suspect | None) -> str:
    if earlier is None or not earlier.baseline or earlier.baseline != verdict.baseline.id:
        return ""
    return earlier.drops.get(metric, "")


def second_day(
    verdict: Verdict, earlier: Suspect | None, date: str, *, at_once: bool = False
) -> Verdict:
    """Return the verdict, failed by PROVISIONAL drops that a session of an earlier day showed too.

    Args:
        earlier: The test's suspect entry of the last session.
        date: Start of this session, ISO 8601, UTC.
        at_once: Whether a drop fails on its first day if the baseline's runs are from `DAYS` days.
    """
    today = date[:10]

    def marked(metric: MetricVerdict) -> MetricVerdict:
        since = _first_date(metric.metric, verdict, earlier)[:10] or today
        if not metric.seems_drop:
            return metric
        if metric.likely and since < today:
            return replace(metric, since=since, note=Note.of("second_day", since=since))
        if at_once and metric.baseline.days >= DAYS and not metric.since:
            note = Note.of("first_day", note=metric.note)
            return replace(metric, since=today, note=note)
        return metric if at_once else replace(metric, since="")

    metrics = tuple(map(marked, verdict.metrics))
    if any(metric.fails for metric in metrics) and metrics != verdict.metrics:
        verdict = with_metrics(verdict, metrics)
    later = [day for day in earlier.drops.values() if day > date] if earlier else []
    if later and verdict.warns:
        note = Note.of("clock_set", day=max(later)[:10])
        verdict = replace(verdict, notes=(*verdict.notes, note))
    return verdict


def suspected(suspects: Iterable[Suspect], result: CaseResult) -> Suspect | None:
    """Return the suspect entry of a test for the same hardware and profile, or None."""
    key = _suspect(result, (), "").key
    return next((one for one in suspects if one.key == key), None)


def earlier_suspicions(results: Iterable[CaseResult]) -> dict[int, SuspectSince]:
    """Return date and metrics of earlier SUSPECT verdicts of the tests, by index in `results`."""
    return {
        index: SuspectSince(suspect.date[:10], suspect.metrics)
        for index, result in enumerate(results)
        if (suspect := result.suspected) and _counts(result)
    }


def _counts(result: CaseResult) -> bool:
    return not result.handicap and not result.pretended


def _metrics(result: CaseResult, suspect: Suspect | None) -> tuple[str, ...]:
    if result.verdict.outcome is not Outcome.SUSPECT:
        return ()
    earlier = suspect.metrics if suspect else ()
    return tuple(
        metric.metric
        for metric in result.verdict.metrics
        if metric.outcome is Outcome.SUSPECT
        or (metric.outcome in OPEN and metric.metric in earlier)
    )


def _suspect(result: CaseResult, metrics: tuple[str, ...], date: str) -> Suspect:
    subject = result.verdict.subject
    identity: Mapping[str, str | int | float | bool | None] = subject.identity if subject else {}
    return Suspect(
        test=result.test, metrics=metrics, date=date, profile=result.profile, identity=identity
    )


COMMIT_DIGITS = 12


@dataclass(frozen=True, kw_only=True)
class Absent:
    """Report a planned test without a verdict, and the reason."""

    test: str
    reason: str


def performance(results: Results) -> list[CaseResult]:
    """Return the performance tests of a session."""
    return [result for result in results.cases if result.verdict.kind == Kind.PERFORMANCE]


def unjudged_tests(planned: Iterable[str], merged: Results) -> list[Absent]:
    """Return the planned tests without a verdict in the merged results, each with the reason."""
    judged = {result.test for result in merged.cases}
    never = "not in any results file: the test was deselected, or its session ended before it ran"
    return [
        Absent(test=test, reason=merged.skipped.get(test, never))
        for test in planned
        if test not in judged
    ]


def merge(
    parts: Mapping[str, Results],
    *,
    run: str,
    pairs: int,
    today: dt.date,
    fail_on: Collection[str] = (),
) -> Results:
    """Merge partial sessions, given by name; decide the verdicts that depend on other parts.

    A drop in a part may be only SUSPECT after correction for all parts, or all cases of the machine
    may have changed alike. Its outcome is then replaced.

    Args:
        run: Id of the merged session.
        pairs: Number of (case, metric) pairs in the plan; the parts' number is used if larger.
        today: Day on which expected failures are checked for expiry.
        fail_on: Further outcomes that fail a test: "inconclusive", "provisional".
    """
    _check(parts)
    results = list(parts.values())
    cases = [result for part in results for result in part.cases]
    held = sum(len(c.limits) for c in cases if _is_judged(c.verdict))
    total = max(pairs, held, *(part.pairs for part in results))
    last = _together(cases, total) if total > MAX_LONE_PAIRS else {}
    started = min(part.started for part in results)
    cases = [_ended(case, last.get(case.test), started, today, fail_on) for case in cases]
    if total > MAX_LONE_PAIRS:
        cases = [replace(c, pairs=total) if _is_judged(c.verdict) else c for c in cases]
    order = sorted(range(len(cases)), key=lambda i: (cases[i].suite, cases[i].verdict.case.id, i))
    deselected: Counter[str] = Counter()
    for part in results:
        deselected.update(part.deselected)
    judged = {case.test for case in cases}
    suspects = [suspect for part in results for suspect in part.suspects]
    suspects += [case.suspected for case in cases if case.suspected]
    return Results(
        run=run,
        started=started,
        seconds=round(sum(part.seconds for part in results), 1),
        commit=next((part.commit for part in results if part.commit), None),
        versions=_versions(results),
        deselected=dict(deselected),
        cases=tuple(cases[i] for i in order),
        skipped={t: why for p in results for t, why in p.skipped.items() if t not in judged},
        pairs=total if total > MAX_LONE_PAIRS else 0,
        suspects=next_suspects(suspects, cases, date=started),
    )


def _is_judged(verdict: Verdict) -> bool:
    return verdict.kind in DROP_OUTCOMES and verdict.outcome is not Outcome.RECORDED


def _together(cases: Sequence[CaseResult], pairs: int) -> dict[str, Verdict]:
    judged = [case for case in cases if _is_judged(case.verdict)]
    anew = {case.test: reset_outcomes(case.verdict, pairs) for case in judged}
    open_ = {test: verdict for test, verdict in anew.items() if is_open(verdict)}
    final = [verdict for test, verdict in anew.items() if test not in open_]
    waiting = [case for case in judged if case.test in open_]
    settled = judge_pairs_jointly(
        list(open_.values()), final, pairs, RuleR(), earlier_suspicions(waiting)
    )
    return dict(zip(open_, settled, strict=True))


def _ended(
    case: CaseResult,
    settled: Verdict | None,
    started: str,
    today: dt.date,
    fail_on: Collection[str],
) -> CaseResult:
    verdict, at_once = settled or case.verdict, "provisional" in fail_on
    if _is_judged(verdict):
        suspect = case.suspected if _counts(case) else None
        verdict = second_day(verdict, suspect, started, at_once=at_once)
    if verdict is not case.verdict:
        verdict = expect(verdict, case.expected_failures, today)
    undecided = verdict.outcome in OPEN | {Outcome.SUSPECT}
    failed = verdict.fails or (undecided and "inconclusive" in fail_on)
    return replace(case, verdict=verdict, failed=failed or (case.failed and settled is None))


def _check(parts: Mapping[str, Results]) -> None:
    commits = {part.commit: name for name, part in parts.items() if part.commit}
    if len(commits) > 1:
        (commit, a), (other, b) = list(commits.items())[:2]
        raise MlperfError(
            f"{a} measured commit {commit[:COMMIT_DIGITS]}, {b} commit "
            f"{other[:COMMIT_DIGITS]}: all parts of a plan must measure one commit"
        )
    rests_on: dict[str, tuple[str, str]] = {}
    for name, part in parts.items():
        for result in part.cases:
            digest = result.rests_on.get(result.suite, "")
            other, theirs = rests_on.setdefault(result.suite, (name, digest))
            if digest and theirs and digest != theirs:
                raise MlperfError(
                    f"{result.suite} differs between {other} and {name}: all parts of a plan "
                    "must use the same suite"
                )
    seen: dict[str, str] = {}
    for name, part in parts.items():
        for test in (result.test for result in part.cases):
            if test in seen:
                raise MlperfError(
                    f"{test} is in {seen[test]} and in {name}: name each part once; if a part "
                    "was repeated, name only its newer file"
                )
            seen[test] = name


def _versions(parts: Collection[Results]) -> dict[str, str]:
    names = dict.fromkeys(name for part in parts for name in part.versions)
    return {
        name: " and ".join(dict.fromkeys(p.versions[name] for p in parts if name in p.versions))
        for name in names
    }

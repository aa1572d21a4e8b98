"""Format verdicts for a terminal: failure messages and the session's summary."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from pytest_mlperf.core.case import Kind, Scenario
from pytest_mlperf.core.guarantees import MISSING_OPTION, REPLACE_OPTIONS
from pytest_mlperf.core.notes import Note, Words
from pytest_mlperf.core.numbers import duration, plural
from pytest_mlperf.core.reason import ranges_of
from pytest_mlperf.core.results import IMPORTED, UNVERIFIED_LABEL, CaseResult, Results
from pytest_mlperf.core.untrusted_text import clean, visible
from pytest_mlperf.core.verdict import SEVERITY, MetricVerdict, Outcome, Verdict
from pytest_mlperf.reports import promises, rows
from pytest_mlperf.reports.causes import Cause, Siblings, Strength, causes
from pytest_mlperf.reports.failures import NO_DIFFERENCE, failure_groups, group_sentences
from pytest_mlperf.reports.formats import ReportedSession
from pytest_mlperf.reports.sentences import first_line, gate_result, sentence
from pytest_mlperf.reports.terminal import advice
from pytest_mlperf.reports.terminal.layout import (
    column_widths,
    fold,
    line,
    paragraphs,
    table,
    unbroken,
)
from pytest_mlperf.reports.terminal.precisions import precision_lines

PROMISE = f"{promises.LIMIT_PROMISE}; {promises.BELOW_LIMIT_PROMISE}"

ACCURACY_PROMISE = (
    f"{promises.FALSE_ALARM_PROMISE}, misses of a regression as large as the margin at most 5 %"
)

PAIR_PROMISE = (
    "a true claim is refuted at most 1 % of the time, a false claim is accepted at most 5 % of the "
    "time"
)

MIN_WAIT_SECONDS = 5.0
NOT_COMPARED = (
    "nothing was compared. In CI this fails on named accelerators; allow it with "
    "--mlperf-fail-on=no:no-baseline"
)


def failure(result: CaseResult, width: int, likely_causes: Sequence[Cause] = ()) -> str:
    """Return the message of a failed test: verdict, command, likely cause, then the evidence."""
    verdict = result.verdict
    lines = fold(first_line(verdict), width, rest="  ")
    if result.suite != IMPORTED:
        lines.append(line("reproduce", advice.rerun_command(result)))
    first, others = rows.strongest_cause(likely_causes)
    lines += paragraphs("likely", first, width)
    lines.append(line("case", f"{verdict.case.id}  {result.suite}:{result.line}"))
    for name, text in rows.setup_rows(result).items():
        lines += paragraphs(name, [text], width)
    if verdict.kind == Kind.ACCURACY and verdict.gate:
        lines += paragraphs("gate", [gate_result(verdict.gate)], width)
    tables = [one.lines(width) for one in rows.verdict_tables(verdict)]
    for table_lines in tables:
        lines += ["", *table_lines]
    lines += [""] if tables else []
    lines += paragraphs("also", others, width)
    blocks = chain(_reasons(result, width, likely_causes), _next_steps(result, width))
    lines += chain.from_iterable(blocks)
    return "\n".join(visible(text.rstrip()) for text in lines)


def failure_message(results: Results, columns: int) -> Callable[[CaseResult], str]:
    """Return a function that formats a test's failure message as in the pytest session."""
    verdicts = Siblings(result.verdict for result in results.cases)
    return lambda r: failure(r, columns, causes(r.verdict, None, verdicts))


def _reasons(result: CaseResult, width: int, likely_causes: Sequence[Cause]) -> Iterator[list[str]]:
    verdict = result.verdict
    yield paragraphs("note", rows.notes_of(verdict), width)
    yield paragraphs("invalid", [rows.invalid_runs(verdict)], width)
    yield paragraphs("search", rows.searched(verdict), width)
    yield paragraphs("physics", [rows.roofline_text(verdict)], width)
    yield paragraphs("fact", [f"{title}: {fact}" for title, fact in result.facts.items()], width)
    yield paragraphs("cost", [rows.cost(verdict)], width)
    if verdict.outcome is Outcome.NO_BASELINE:
        yield paragraphs("rule", [NOT_COMPARED], width)
    by_rule = [metric for metric in verdict.metrics if metric.baseline.runs and metric.outcome]
    same = [metric for metric in by_rule if metric.outcome is verdict.outcome]
    judged = next(iter(same or by_rule), None)
    if verdict.kind == Kind.PERFORMANCE and judged:
        yield paragraphs("rule", [_evidence_text(verdict, judged, joint=bool(result.pairs))], width)
    compared = next((m for m in verdict.paired if m.outcome), None)
    if compared:
        total = verdict.accuracy.total if verdict.accuracy else compared.samples
        of = f" of {total:,}" if compared.samples < total else ""
        counts = (
            f"{compared.samples:,}{of} samples compared in pairs: "
            f"{compared.down:,} worse, {compared.up:,} better; {ACCURACY_PROMISE}"
        )
        yield paragraphs("rule", [counts], width)
    if verdict.ratio:
        runs = plural(verdict.ratio.pairs, "run")
        counts = f"{runs} of each entry, interleaved, in fresh processes"
        yield paragraphs("rule", [f"{counts}; {PAIR_PROMISE}"], width)
    if verdict.baseline.source:
        file = verdict.baseline.file
        yield [line("baseline", file)] if file else []
        yield paragraphs("" if file else "baseline", [verdict.baseline.source], width)
        yield paragraphs("changed", _changed(verdict, likely_causes), width)
        yield paragraphs("unknown", verdict.baseline.unknown, width)


def _changed(verdict: Verdict, likely_causes: Sequence[Cause]) -> list[str]:
    baseline = verdict.baseline
    if baseline.changed or any(cause.strength is Strength.NONE for cause in likely_causes):
        return rows.unexplained(baseline.changed, likely_causes)
    return ["nothing that is recorded for both builds" if baseline.unknown else NO_DIFFERENCE]


def _evidence_text(verdict: Verdict, judged: MetricVerdict, *, joint: bool) -> str:
    """Return a metric's run counts and error guarantee as text; `joint`: tests judged jointly."""
    if verdict.replaces_baseline:
        return PROMISE
    counts = f"{plural(judged.runs, 'run')} now, {judged.baseline.runs} in the baseline"
    promise = verdict.baseline.guarantee
    if promise is not None:
        counts += f" of {plural(promise.days, 'day')}{promises.renewal(promise)}"
    if joint and judged.baseline.lacks is None:
        return f"{counts}; {advice.PROMISE}"
    if promise is None:
        return f"{counts}; {PROMISE}"
    provisional = verdict.outcome is Outcome.PROVISIONAL
    return f"{counts}; {promises.guarantee_of(promise, judged, provisional=provisional)}"


def _next_steps(result: CaseResult, width: int) -> Iterator[list[str]]:
    verdict = result.verdict
    if verdict.outcome is Outcome.INCONCLUSIVE:
        yield paragraphs("undecided", [advice.what_decides(verdict)], width)
    yield paragraphs("settle", [promises.final_word(verdict)], width)
    commands = advice.commands(result)
    yield [line(name, command) for name, command in commands if name in {"accept", "record"}]
    if verdict.logs.file:
        yield [line("log", verdict.logs.file)]
        yield [line("", text) for text in verdict.logs.tail]
    if verdict.logs.folder:
        yield [line("files", verdict.logs.folder)]


MAX_LISTED_TESTS = 10
"""A session with more tests lists a part of those that came out alike, and folds its notes."""

MAX_LISTED_ALIKE = 4
"""Cases with the same outcomes that such a session lists."""


def report(session: ReportedSession) -> str:
    """Return the common causes of failures and the summary as plain text."""
    causes = group_sentences(failure_groups(session.results))
    lines = [line for cause in causes for line in fold(cause, session.columns)]
    lines += summary(session.results, session.columns, colour=False)
    return "".join(f"{clean(line)}\n" for line in lines)


def summary(
    results: Results,
    width: int,
    *,
    colour: bool,
    failures_shown: bool = False,
    precisions: bool = True,
) -> list[str]:
    """Return the terminal summary: a table of the cases, advice, and a line of counts.

    Args:
        failures_shown: Omit the reasons of failed tests, whose messages are printed above.
        precisions: Compare the precisions of each workload.
    """
    of_case, unlisted = _listed(results)
    tests = [result for case in of_case.values() for result in case]
    listed = [(result, row) for result in tests for row in rows.rows(result)]
    columns = ["test", "verdict", "metric", "now", "vs base", "interval", "limit"]
    cells = [row for _, row in listed]
    head, *body = table(
        cells,
        width,
        left=["test", "verdict", "metric"],
        spare=["interval", "limit", "vs base"],
        columns=columns,
        indent="  ",
        colour=colour,
    )
    lines = [head]
    test_width, verdict_width = column_widths(columns[:2], cells)
    indent = 2 + test_width + 2 + verdict_width + 2
    last = ""
    for (result, row), text in zip(listed, body, strict=True):
        if result.verdict.case.id != last:
            last = result.verdict.case.id
            lines.append(visible(last))
            shown = failures_shown and any(result.failed for result in of_case[last])
            for fact in () if shown else _facts(of_case[last]):
                lines += fold(fact, width, first="  ", rest="    ")
        if row.get("metric") or (failures_shown and result.failed):
            lines.append(text)
            continue
        # Nothing was measured: the reason replaces the figures.
        first, *rest = fold(sentence(result.verdict.headline), width - indent) or [""]
        gap = " " * (verdict_width - len(row["verdict"]) + 2)
        lines.append(f"{text}{gap}{first}")
        lines += [" " * indent + part for part in rest]
    if unlisted:
        more = ", ".join(unbroken(f"{count} {word}") for word, count in unlisted.items())
        lines += fold(f"  and {more}: see results.json, or pytest-mlperf explain CASE", width)
    if precisions and len({result.verdict.case.precision for result in results.cases}) > 1:
        lines += precision_lines(results, width)
    for block in _advice(results, width):
        lines += block
    for text in advice.joint_verdict_notes(results):
        lines += fold(text, width)
    lines += fold(_counts(results), width)
    lines.append(UNVERIFIED_LABEL)
    return lines


def _listed(results: Results) -> tuple[dict[str, list[CaseResult]], Counter[str]]:
    of_case = defaultdict[str, list[CaseResult]](list)
    for result in results.cases:
        of_case[result.verdict.case.id].append(result)
    unlisted = Counter[str]()
    if len(results.cases) > MAX_LISTED_TESTS:
        alike = Counter[tuple[str, ...]]()
        for case, tests in [*of_case.items()]:
            words = tuple(str(result.verdict.outcome) for result in tests)
            alike[words] += 1
            if alike[words] > MAX_LISTED_ALIKE:
                unlisted.update(words)
                del of_case[case]
    return of_case, unlisted


def _facts(tests: Sequence[CaseResult]) -> Iterator[str]:
    """Yield lines on a case's setup, accuracy gate and runs (of the test with the most runs)."""
    fullest = max(
        tests, key=lambda test: (len(test.verdict.runs), test.verdict.kind != Kind.ACCURACY)
    )
    yield from rows.setup_rows(tests[-1]).values()
    yield from filter(None, (rows.gate(test.verdict) for test in tests))
    yield from rows.extra_facts(fullest)


NEXT_SESSION_NOTE = "the test fails if the next session, on another day, sees this drop again"

WARNING_NOTE = (
    "this drop is only a warning: the days of the baseline differ as much, or the baseline is old "
    "(then record it anew: --mlperf-update=replace)"
)


def _advice(results: Results, width: int) -> Iterator[list[str]]:
    missing = [
        result
        for result in results.cases
        if result.verdict.outcome is Outcome.NO_BASELINE and advice.may_be_recorded(result)
    ]
    if missing:
        suites = " ".join(sorted({result.suite for result in missing}))
        benchmarks = any(r.verdict.case.scenario == Scenario.BENCHMARK for r in missing)
        judge = f"{advice.JUDGE} " * benchmarks
        yield [line("record", f"pytest {suites} {judge}{MISSING_OPTION}")]
    for remedy, cases in advice.finalizing_advice(results.cases):
        yield paragraphs("settle", [f"{cases}: {remedy}"], width)
    texts = defaultdict[str, list[tuple[str, str]]](list)
    for label, case, text in _labelled_notes(results):
        texts[label].append((case, text))
    for label, of_label in texts.items():
        merged = of_label
        if len(results.cases) > MAX_LISTED_TESTS:
            merged = [(advice.in_short(cases), text) for cases, text in ranges_of(of_label)]
        for case, text in dict.fromkeys(merged):
            yield paragraphs(label, [f"{case}: {text}"], width)


def _labelled_notes(results: Results) -> Iterator[tuple[str, str, str]]:
    """Yield (label, case id, text) of the summary's notes; labels are "warning", "changed" etc."""
    changes = {
        (result.verdict.case.id, result.verdict.baseline.changed)
        for result in results.cases
        if result.verdict.baseline.source
    }
    of_case = Counter(case for case, _ in changes)
    many = len(results.cases) > MAX_LISTED_TESTS
    loads: list[tuple[float, str, str]] = []
    for result in results.cases:
        verdict, case = result.verdict, result.verdict.case.id
        reasons = {
            Outcome.INCONCLUSIVE: ("undecided", advice.what_decides(verdict)),
            Outcome.SUSPECT: ("suspect", sentence(verdict.headline)),
            Outcome.IMPROVED: ("improved", f"keep it with {unbroken(REPLACE_OPTIONS)}"),
            Outcome.EXPECTED: ("expected", sentence(verdict.headline)),
        }
        if verdict.warns and not (result.failed or result.expected_failures):
            likely = any(metric.seems_drop and metric.likely for metric in verdict.metrics)
            yield "warning", case, NEXT_SESSION_NOTE if likely else WARNING_NOTE
        if verdict.outcome in reasons:
            label, text = reasons[verdict.outcome]
            yield label, case, text
        if result.failed:
            continue
        if since := rows.changed(verdict, apart=of_case[case] > 1):
            yield "changed", case, since
        shares = {note: share for note in verdict.notes if (share := _load_share(note)) is not None}
        loads += [(share, case, sentence(note)) for note, share in shares.items()]
        notes = tuple(note for note in verdict.notes if note not in shares)
        for text in advice.lines_of(replace(verdict, notes=notes)):
            yield "note", case, advice.without_file(verdict, text) if many else text
    if loads:
        _, case, text = max(loads)
        others = len({other for _, other, _ in loads} - {case})
        yield "note", case, text + (f"; less in {plural(others, 'other case')}" if others else "")


def _load_share(note: Words) -> float | None:
    share = note.values.get("share") if isinstance(note, Note) and note.key == "not_idle" else None
    return share if isinstance(share, float) else None


def _counts(results: Results) -> str:
    counts = Counter(result.verdict.outcome for result in results.cases)
    runs = {run.folder: run for r in results.cases for run in r.verdict.runs}
    invalid = {run.folder: run for r in results.cases for run in r.verdict.invalid_runs}
    waited_s = sum(run.load.waited_s or 0.0 for run in {**runs, **invalid}.values())
    waited_s = min(waited_s, results.seconds)  # workers of xdist wait at the same time
    waited = f", {duration(waited_s)} of it waiting" if waited_s > MIN_WAIT_SECONDS else ""
    also = f" and {len(invalid)} INVALID" if invalid else ""
    turns = sum(r.verdict.interleaved.runs for r in results.cases if r.verdict.interleaved)
    also += f" and {turns} interleaved" if turns else ""
    words = {word: f"{counts[word]} {word}" for word in SEVERITY if counts[word]}
    open_ = [r.verdict for r in results.cases if r.verdict.outcome is Outcome.PROVISIONAL]
    if leaning := sum(any(m.direction == "drop" for m in verdict.metrics) for verdict in open_):
        failed = sum(verdict.fails for verdict in open_)
        red = f", {failed} failed" if failed else ""
        words[Outcome.PROVISIONAL] += f", {leaning} towards a drop{red}"
    shown = ", ".join(map(unbroken, words.values()))
    profiles = " and ".join(sorted({result.profile for result in results.cases}))
    return (
        f"{plural(len(results.cases), 'test')}: {shown}; "
        f"{unbroken(plural(len(runs), 'run'))}{unbroken(also)}, "
        f"{unbroken(duration(results.seconds))}{unbroken(waited)}, "
        f"profile {profiles}"
    )

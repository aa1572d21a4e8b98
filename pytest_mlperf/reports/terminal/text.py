"""The texts a user reads about verdicts: failure message, summary table, JUnit properties."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence

from pytest_mlperf.core.causes import Cause, Siblings, causes
from pytest_mlperf.core.guarantees import (
    BELOW_LIMIT_PROMISE,
    FALSE_ALARM_PROMISE,
    MISSING_OPTION,
    REPLACE_OPTIONS,
)
from pytest_mlperf.core.numbers import duration, plural
from pytest_mlperf.core.results import IMPORTED, UNVERIFIED_LABEL, CaseResult, Results
from pytest_mlperf.core.untrusted_text import clean, visible
from pytest_mlperf.core.verdict import SEVERITY, MetricVerdict, Outcome, Verdict, final_word
from pytest_mlperf.reports.formats import ReportedSession
from pytest_mlperf.reports.rows import (
    beside,
    changed,
    cost,
    declared,
    gate,
    invalid_runs,
    light,
    likely,
    metric_notes,
    rows,
    searched,
    verdict_tables,
)
from pytest_mlperf.reports.terminal.advice import (
    JUDGE,
    MIN_COMMON_CASES,
    accept,
    again,
    lines_of,
    may_be_recorded,
    record,
    settling,
    together,
    what_decides,
)
from pytest_mlperf.reports.terminal.advice import PROMISE as PROMISE_TOGETHER
from pytest_mlperf.reports.terminal.layout import (
    column_widths,
    fold,
    line,
    paragraph,
    paragraphs,
    table,
    unbroken,
)
from pytest_mlperf.reports.terminal.precisions import precision_lines

PROMISE = f"{FALSE_ALARM_PROMISE}, a drop of the limit is passed at most 5 %; {BELOW_LIMIT_PROMISE}"

ACCURACY_PROMISE = (
    "no change is failed at most 1 % of the time, a drop of the margin is passed at most 5 %"
)

PAIR_PROMISE = (
    "a claim that holds is refuted at most 1 % of the time, one that does not hold is taken as "
    "proven at most 5 %"
)

MIN_WAIT_SECONDS = 5.0
NOT_COMPARED = (
    "nothing was compared, so nothing is shown; under CI that fails on named accelerators, and "
    "--mlperf-fail-on=no:no-baseline lets it pass"
)

# --- failure message -------------------------------------------------------------------------


def failure(
    verdict: Verdict, result: CaseResult, width: int, likely_causes: Sequence[Cause] = ()
) -> str:
    """Return the message of a failed test; its first line holds the verdict.

    Prose wraps, paths and commands do not.
    """
    lines = fold(f"{verdict.outcome} {verdict.headline}", width, rest="  ")
    lines.append(line("case", f"{verdict.case.id}  {result.suite}:{result.line}"))
    for name, sentence in declared(result).items():
        lines += paragraph(name, sentence, width)
    if verdict.kind == "accuracy" and verdict.gate:
        lines += paragraph("gate", verdict.gate.answer, width)
    tables = [one.lines(width) for one in verdict_tables(verdict)]
    for table_lines in tables:
        lines += ["", *table_lines]
    lines += [""] if tables else []
    reasons, steps = _reasons(verdict, result, width), _next_steps(verdict, result, width)
    for block in (*reasons, likely(likely_causes, width), *steps):
        lines += block
    return "\n".join(visible(text.rstrip()) for text in lines)


def failure_message(results: Results, columns: int) -> Callable[[CaseResult], str]:
    """Return what tells a failed test of a session as pytest did, in lines of so many columns."""
    verdicts = Siblings(result.verdict for result in results.cases)
    return lambda r: failure(r.verdict, r, columns, causes(r.verdict, None, verdicts))


def _reasons(verdict: Verdict, result: CaseResult, width: int) -> Iterator[list[str]]:
    yield paragraphs("note", [*verdict.notes, *metric_notes(verdict)], width)
    yield paragraphs("invalid", [text for text in (invalid_runs(verdict),) if text], width)
    yield paragraphs("search", searched(verdict), width)
    if sentence := light(verdict):
        yield paragraph("physics", sentence, width)
    yield paragraphs("fact", [f"{title}: {fact}" for title, fact in result.facts.items()], width)
    if sentence := cost(verdict):
        yield paragraph("cost", sentence, width)
    if verdict.outcome is Outcome.NO_BASELINE:
        yield paragraph("rule", NOT_COMPARED, width)
    by_rule = [metric for metric in verdict.metrics if metric.baseline.runs and metric.outcome]
    same = [metric for metric in by_rule if metric.outcome is verdict.outcome]
    judged = next(iter(same or by_rule), None)
    if verdict.kind == "performance" and judged:
        yield paragraph("rule", _rule(verdict, judged, together=bool(result.pairs)), width)
    compared = next((m for m in verdict.paired if m.outcome), None)
    if compared:
        total = verdict.accuracy.total if verdict.accuracy else compared.samples
        of = f" of {total:,}" if compared.samples < total else ""
        counts = (
            f"{compared.samples:,}{of} samples compared one by one, "
            f"{compared.down:,} got worse and {compared.up:,} better; {ACCURACY_PROMISE}"
        )
        yield paragraph("rule", counts, width)
    if verdict.ratio:
        counts = f"{plural(verdict.ratio.pairs, 'run')} of each in turns, each a fresh process"
        yield paragraph("rule", f"{counts}; {PAIR_PROMISE}", width)
    if verdict.baseline.source:
        yield [line("baseline", str(verdict.baseline.file))]
        yield paragraph("", verdict.baseline.source, width)
        unchanged = "nothing that is recorded: engine, weights, options and data are the same"
        if verdict.baseline.unknown:
            unchanged = "nothing that both sides know"
        yield paragraphs("changed", verdict.baseline.changed or [unchanged], width)
        yield paragraphs("unknown", verdict.baseline.unknown, width)


def _rule(verdict: Verdict, judged: MetricVerdict, *, together: bool) -> str:
    """Return what a verdict rests on, and which promise it keeps."""
    counts = f"{plural(judged.runs, 'run')} now, {judged.baseline.runs} in the baseline"
    promise = verdict.baseline.guarantee
    if promise is not None:
        counts += f" of {plural(promise.days, 'day')}{promise.ends}"
    if together and judged.baseline.lacks is None:
        return f"{counts}; {PROMISE_TOGETHER}"
    if promise is None:
        return f"{counts}; {PROMISE}"
    provisional = verdict.outcome is Outcome.PROVISIONAL
    lacking = judged.lacking_sessions
    return f"{counts}; {promise.of(lacking, judged.robust_to, provisional=provisional)}"


def _next_steps(verdict: Verdict, result: CaseResult, width: int) -> Iterator[list[str]]:
    if verdict.outcome is Outcome.INCONCLUSIVE:
        yield paragraph("undecided", what_decides(verdict), width)
    if remedy := final_word(verdict):
        yield paragraph("settle", remedy, width)
    if result.suite != IMPORTED:
        yield [line("reproduce", again(result))]
    if command := accept(result):
        yield [line("accept", command)]
    if command := record(result):
        yield [line("record", command)]
    if verdict.logs.file:
        yield [line("log", verdict.logs.file)]
        yield [line("", text) for text in verdict.logs.tail]
    if verdict.logs.folder:
        yield [line("files", verdict.logs.folder)]


# --- summary ---------------------------------------------------------------------------------


def report(session: ReportedSession) -> str:
    """Return the summary as a text."""
    lines = summary(session.results, session.columns, colour=False)
    return "".join(f"{clean(line)}\n" for line in lines)


def summary(results: Results, width: int, *, colour: bool) -> list[str]:
    """Return the terminal summary: a table by case, what to do about it, one line of counts.

    Where an engine ran in several precisions, what each of them costs and gives stands between.
    """
    listed = [(result, row) for result in results.cases for row in rows(result)]
    columns = ["test", "verdict", "metric", "now", "vs base", "interval", "limit"]
    cells = [row for _, row in listed]
    head, *body = table(
        columns,
        cells,
        width - 2,
        left=["test", "verdict", "metric"],
        spare=["interval", "limit", "vs base"],
        colour=colour,
    )
    lines = [f"  {head}"]
    test_width, verdict_width = column_widths(columns[:2], cells)
    indent = 2 + test_width + 2 + verdict_width + 2
    last, of_case = "", defaultdict[str, list[CaseResult]](list)
    for result in results.cases:
        of_case[result.verdict.case.id].append(result)
    for (result, row), text in zip(listed, body, strict=True):
        if result.verdict.case.id != last:
            last = result.verdict.case.id
            lines.append(visible(last))
            # Of the tests of a case, the first that knows most of its runs tells of them.
            fullest = max(
                of_case[last],
                key=lambda each: (len(each.verdict.runs), each.verdict.kind != "accuracy"),
            )
            gates = [gate(each.verdict) for each in of_case[last]]
            texts = (*declared(result).values(), *gates, *beside(fullest))
            for text_beside in filter(None, texts):
                lines += fold(text_beside, width, first="  ", rest="    ")
        if row.get("metric"):
            lines.append(f"  {text}")
            continue
        # Nothing was measured: the reason stands in the place of the figures.
        first, *rest = fold(result.verdict.headline, width - indent) or [""]
        gap = " " * (verdict_width - len(row["verdict"]) + 2)
        lines.append(f"  {text}{gap}{first}")
        lines += [" " * indent + part for part in rest]
    if len({result.verdict.case.precision for result in results.cases}) > 1:
        lines += precision_lines(results, width)
    for block in _advice(results, width):
        lines += block
    if results.pairs or len(results.cases) >= MIN_COMMON_CASES:
        for sentence in together(results):
            lines += fold(sentence, width)
    lines += fold(_counts(results), width)
    lines.append(UNVERIFIED_LABEL)
    return lines


NEXT_SESSION_NOTE = "if the next session, on another day, sees this drop again, the test fails"

WARNING_NOTE = (
    "this drop is a warning only: the baseline's own days differ by as much, or it is old"
)


def _advice(results: Results, width: int) -> Iterator[list[str]]:
    missing = [
        result
        for result in results.cases
        if result.verdict.outcome is Outcome.NO_BASELINE and may_be_recorded(result)
    ]
    if missing:
        suites = " ".join(sorted({result.suite for result in missing}))
        judge = f"{JUDGE} " * any(r.verdict.case.scenario == "Benchmark" for r in missing)
        yield [line("record", f"pytest {suites} {judge}{MISSING_OPTION}")]
    for remedy, cases in settling(results.cases):
        yield paragraph("settle", f"{cases}: {remedy}", width)
    noted: set[str] = set()
    changes = {
        (one.verdict.case.id, one.verdict.baseline.changed)
        for one in results.cases
        if one.verdict.baseline.source
    }
    of_case = Counter(case for case, _ in changes)
    for result in results.cases:
        verdict = result.verdict
        advice = {
            Outcome.INCONCLUSIVE: ("undecided", what_decides(verdict)),
            Outcome.SUSPECT: ("suspect", verdict.headline),
            Outcome.IMPROVED: ("improved", f"keep it with {unbroken(REPLACE_OPTIONS)}"),
            Outcome.EXPECTED: ("expected", verdict.headline),
        }
        if verdict.warns and not (result.failed or result.expected_failures):
            likely = any(metric.seems_drop and metric.likely for metric in verdict.metrics)
            text = NEXT_SESSION_NOTE if likely else WARNING_NOTE
            yield paragraph("warning", f"{verdict.case.id}: {text}", width)
        if verdict.outcome in advice:
            label, text = advice[verdict.outcome]
            yield paragraph(label, f"{verdict.case.id}: {text}", width)
        if not result.failed:
            yield from _beside(verdict, noted, width, apart=of_case[verdict.case.id] > 1)


def _beside(verdict: Verdict, printed: set[str], width: int, *, apart: bool) -> Iterator[list[str]]:
    """Yield what changed and what was noted, of a case once, whichever of its tests says it."""
    since = changed(verdict, apart=apart)
    labelled = [("changed", since), *(("note", note) for note in lines_of(verdict))]
    for label, content in labelled:
        text = f"{verdict.case.id}: {content}"
        if content and text not in printed:
            yield paragraph(label, text, width)
            printed.add(text)


def _counts(results: Results) -> str:
    counts = Counter(result.verdict.outcome for result in results.cases)
    runs = {run.folder: run for r in results.cases for run in r.verdict.runs}
    invalid = {run.folder: run for r in results.cases for run in r.verdict.invalid_runs}
    waited_s = sum(run.load.waited_s or 0.0 for run in {**runs, **invalid}.values())
    waited_s = min(waited_s, results.seconds)  # workers of xdist wait at the same time
    waited = (
        f", {duration(waited_s)} of it waiting for others" if waited_s > MIN_WAIT_SECONDS else ""
    )
    also = f" and {len(invalid)} INVALID" if invalid else ""
    turns = sum(r.verdict.interleaved.runs for r in results.cases if r.verdict.interleaved)
    also += f" and {turns} in turns" if turns else ""
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

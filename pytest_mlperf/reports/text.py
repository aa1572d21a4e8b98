"""The texts a user reads about verdicts: failure message, summary table, JUnit properties."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from pytest_mlperf.core.causes import Cause
from pytest_mlperf.core.foreign_text import visible
from pytest_mlperf.core.judge.together import INTERRUPTED
from pytest_mlperf.core.numbers import percent
from pytest_mlperf.core.results import LABEL, CaseResult, Results
from pytest_mlperf.core.verdict import SEVERITY, Outcome, Verdict
from pytest_mlperf.reports.causes import likely
from pytest_mlperf.reports.cells import (
    metric_table,
    paired_table,
    ratio_table,
    title,
)
from pytest_mlperf.reports.commands import (
    LOG,
    RECORD,
    REPLACE,
    accept,
    again,
    may_be_recorded,
    record,
)
from pytest_mlperf.reports.figures import (
    beside,
    changed,
    cost,
    declared,
    gate,
    invalid_runs,
    light,
    searched,
)
from pytest_mlperf.reports.layout import (
    column_widths,
    duration,
    fold,
    line,
    paragraph,
    paragraphs,
    plural,
    table,
    unbroken,
)
from pytest_mlperf.reports.rows import rows
from pytest_mlperf.reports.text_together import PROMISE as PROMISE_TOGETHER
from pytest_mlperf.reports.text_together import together

PROMISE = (
    "no change is failed at most 1 % of the time, a drop of the limit is passed at most 5 %; "
    "between 0 and the limit either answer may come"
)

ACCURACY_PROMISE = (
    "no change is failed at most 1 % of the time, a drop of the margin is passed at most 5 %"
)

PAIR_PROMISE = (
    "a claim that holds is refuted at most 1 % of the time, one that does not hold is taken as "
    "proven at most 5 %"
)

NOT_COMPARED = (
    "nothing was compared, so nothing is shown; under CI that fails on named accelerators, and "
    "--mlperf-no-baseline=pass lets it pass"
)

APPEND = '--mlperf-update=append --mlperf-reason "..."'

# --- failure message -------------------------------------------------------------------------


def failure(verdict: Verdict, result: CaseResult, width: int, causes: Sequence[Cause] = ()) -> str:
    """Return the message of a failed test; its first line holds the verdict.

    Args:
        verdict: What was found.
        result: Where it was found.
        width: Columns; prose wraps, paths and commands do not.
        causes: Why it came out so, the strongest first.
    """
    lines = fold(f"{verdict.outcome} {verdict.headline}", width, rest="  ")
    lines.append(line("case", f"{verdict.case.id}  {result.suite}:{result.line}"))
    for name, said in declared(result).items():
        lines += paragraph(name, said, width)
    if verdict.kind == "accuracy" and verdict.gate:
        lines += paragraph("gate", verdict.gate.answer, width)
    tables = [find(verdict, width) for find in (paired_table, metric_table, ratio_table)]
    for found in filter(None, tables):
        lines += ["", *found]
    lines += [""] if any(tables) else []
    reasons, steps = _reasons(verdict, result, width), _next_steps(verdict, result, width)
    for block in (*reasons, likely(causes, width), *steps):
        lines += block
    return "\n".join(visible(text.rstrip()) for text in lines)


def _reasons(verdict: Verdict, result: CaseResult, width: int) -> Iterator[list[str]]:
    """Yield what stands below the table: by which rule, against what, since what changed."""
    notes = [note for note in verdict.notes if not note.startswith(LOG)]
    for metric in verdict.metrics:
        if metric.note and metric.note not in verdict.headline:
            notes.append(f"{title(metric.metric)}: {metric.note}")
    yield paragraphs("note", notes, width)
    yield paragraphs("invalid", [text for text in (invalid_runs(verdict),) if text], width)
    yield paragraphs("search", searched(verdict), width)
    if found := light(verdict):
        yield paragraph("physics", found, width)
    if found := cost(verdict):
        yield paragraph("cost", found, width)
    if verdict.outcome is Outcome.NO_BASELINE:
        yield paragraph("rule", NOT_COMPARED, width)
    judged = next((m for m in verdict.metrics if m.runs_baseline and m.outcome), None)
    if verdict.kind == "performance" and judged:
        counts = f"{plural(judged.runs, 'run')} now, {judged.runs_baseline} in the baseline"
        promise = PROMISE_TOGETHER if result.pairs else PROMISE
        yield paragraph("rule", f"{counts}; {promise}", width)
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
    if verdict.baseline_set:
        yield [line("baseline", str(verdict.baseline_file))]
        yield paragraph("", verdict.baseline_set, width)
        unchanged = "nothing that is recorded: engine, weights, options and data are the same"
        yield paragraphs("changed", verdict.changed or [unchanged], width)


def _next_steps(verdict: Verdict, result: CaseResult, width: int) -> Iterator[list[str]]:
    """Yield what to do and where to look; commands and paths stay on one line."""
    if verdict.outcome is Outcome.INCONCLUSIVE:
        yield paragraph("undecided", _what_decides(verdict), width)
    yield [line("reproduce", again(result))]
    if command := accept(result):
        yield [line("accept", command)]
    if command := record(result):
        yield [line("record", command)]
    if verdict.log:
        yield [line("log", verdict.log)]
        tail = [note.removeprefix(LOG) for note in verdict.notes if note.startswith(LOG)]
        yield [line("", text) for text in tail]
    if verdict.timeline:
        yield [line("timeline", verdict.timeline)]
    if verdict.folder:
        yield [line("files", verdict.folder)]


# --- summary ---------------------------------------------------------------------------------


def summary(results: Results, width: int, *, colour: bool) -> list[str]:
    """Return the terminal summary: a table by case, what to do about it, one line of counts."""
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
    last, fullest, gates = "", _fullest(results), _gates(results)
    for (result, row), text in zip(listed, body, strict=True):
        if result.verdict.case.id != last:
            last = result.verdict.case.id
            lines.append(visible(last))
            said = [*declared(result).values(), *gates.get(last, ()), *beside(fullest[last])]
            for text_beside in said:
                lines += fold(text_beside, width, first="  ", rest="    ")
        if row.get("metric"):
            lines.append(f"  {text}")
            continue
        # Nothing was measured: the reason stands in the place of the figures.
        first, *rest = fold(result.verdict.headline, width - indent) or [""]
        gap = " " * (verdict_width - len(row["verdict"]) + 2)
        lines.append(f"  {text}{gap}{first}")
        lines += [" " * indent + part for part in rest]
    for block in _advice(results, width):
        lines += block
    for found in together(results):
        lines += fold(found, width)
    lines += fold(_counts(results), width)
    lines.append(LABEL)
    return lines


def _gates(results: Results) -> dict[str, list[str]]:
    """Return, by case, what is said of the gate of its accuracy."""
    found: dict[str, list[str]] = {}
    for verdict in (result.verdict for result in results.cases):
        if said := gate(verdict):
            found.setdefault(verdict.case.id, []).append(said)
    return found


def _fullest(results: Results) -> dict[str, Verdict]:
    """Return, by case, the verdict of the test that knows most of its runs, the first of equals."""

    def runs(verdict: Verdict) -> tuple[int, bool]:
        return len(verdict.runs), verdict.kind != "accuracy"

    fullest: dict[str, Verdict] = {}
    for verdict in (result.verdict for result in results.cases):
        before = fullest.get(verdict.case.id)
        if before is None or runs(verdict) > runs(before):
            fullest[verdict.case.id] = verdict
    return fullest


def _advice(results: Results, width: int) -> Iterator[list[str]]:
    """Yield what to do about verdicts that print no failure message."""
    missing = [
        result
        for result in results.cases
        if result.verdict.outcome is Outcome.NO_BASELINE and may_be_recorded(result)
    ]
    if missing:
        suites = " ".join(sorted({result.suite for result in missing}))
        yield [line("record", f"pytest {suites} {RECORD}")]
    noted: set[str] = set()
    for result in results.cases:
        verdict = result.verdict
        if verdict.outcome is Outcome.INCONCLUSIVE:
            text = f"{verdict.case.id}: {_what_decides(verdict)}"
            yield paragraph("undecided", text, width)
        elif verdict.outcome is Outcome.SUSPECT:
            yield paragraph("suspect", f"{verdict.case.id}: {verdict.headline}", width)
        elif verdict.outcome is Outcome.IMPROVED:
            yield paragraph(
                "improved", f"{verdict.case.id}: keep it with {unbroken(REPLACE)}", width
            )
        elif verdict.outcome is Outcome.EXPECTED:
            yield paragraph("expected", f"{verdict.case.id}: {verdict.headline}", width)
        if not result.failed:
            yield from _beside(verdict, noted, width)


def _beside(verdict: Verdict, said: set[str], width: int) -> Iterator[list[str]]:
    """Yield what changed and what was noted, of a case once, whichever of its tests says it."""
    found = [("changed", changed(verdict)), *(("note", note) for note in verdict.notes)]
    for label, what in found:
        text = f"{verdict.case.id}: {what}"
        if what and text not in said:
            yield paragraph(label, text, width)
            said.add(text)


def _what_decides(verdict: Verdict) -> str:
    open_ = [m for m in verdict.paired if m.outcome is Outcome.INCONCLUSIVE]
    if open_:
        return (
            f"{verdict.headline}; all {open_[0].samples:,} samples were compared: a larger data "
            "set or a wider margin ([limits] accuracy) would decide"
        )
    if verdict.ratio:
        return (
            f"{verdict.headline} after {plural(verdict.ratio.pairs, 'run')} of each; longer runs "
            "(min_duration), more of them (--mlperf-max-runs) or a quieter machine would decide"
        )
    metric = next((m for m in verdict.metrics if m.outcome is Outcome.INCONCLUSIVE), None)
    if metric is None:
        return f"{verdict.headline}; a longer min_duration would decide"
    if metric.note == INTERRUPTED:
        return f"{metric.note}; run it again"
    if metric.note:
        return f"{metric.note}; add a session to the baseline: {unbroken(APPEND)}"
    detectable = percent(metric.detectable) if metric.detectable else "more"
    return (
        f"after {plural(metric.runs, 'run')} {title(metric.metric)} could prove changes of "
        f"{detectable}; a longer baseline ({unbroken(APPEND)}), more runs (--mlperf-max-runs) or "
        "a quieter machine would decide"
    )


def _counts(results: Results) -> str:
    counts = Counter(result.verdict.outcome for result in results.cases)
    runs = {run.folder for result in results.cases for run in result.verdict.runs}
    invalid = {run.folder for r in results.cases for run in r.verdict.invalid_runs}
    also = f" and {len(invalid)} INVALID" if invalid else ""
    shown = ", ".join(unbroken(f"{counts[word]} {word}") for word in SEVERITY if counts[word])
    profiles = " and ".join(sorted({result.profile for result in results.cases}))
    return (
        f"{plural(len(results.cases), 'test')}: {shown}; "
        f"{unbroken(plural(len(runs), 'run'))}{unbroken(also)}, "
        f"{unbroken(duration(results.seconds))}, "
        f"profile {profiles}"
    )

"""Write results as Markdown: the summary of a job, and parts of a pull request's comment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from pytest_mlperf.core.results import UNVERIFIED_LABEL
from pytest_mlperf.core.verdict import SEVERITY
from pytest_mlperf.extension import (
    CaseResult,
    Kind,
    ReportedSession,
    Results,
    duration,
    plural,
    sentence,
)
from pytest_mlperf.extension import markdown_text as escape
from pytest_mlperf.reports.failures import failure_groups
from pytest_mlperf.reports.rows import cells_of, facts_of, notes_of, rows
from pytest_mlperf.reports.terminal import precisions
from pytest_mlperf.reports.terminal.advice import (
    finalizing_advice,
    machine_noise_notes,
    session_verdict,
)

SUMMARY_LIMIT = 1_048_576
"""GitHub's maximum size of a step's summary [bytes]."""

COLUMNS = ("test", "verdict", "metric", "baseline", "now", "vs base", "interval", "limit")
MAX_LISTED_NOTES = 3


def report(session: ReportedSession, *, limit: int = SUMMARY_LIMIT) -> str:
    """Return the summary of a job: the verdict, failures by cause, precisions, and every test.

    It has at most `limit` bytes, and says how many rows are left out.
    """
    results = session.results
    blocks = [
        *opening(session, "## "),
        *section("What failed", failures(results, len(results.cases), notes=True)),
        *settling_lines(results),
        *_precisions(results),
        *section("Facts", _facts(results)),
        *results_table("Every test", results.cases, open_=True),
    ]
    return within(blocks, [f"\n{UNVERIFIED_LABEL}\n"], limit)


def _facts(results: Results) -> Iterator[str]:
    facts = [(r.verdict.case.id, *fact) for r in results.cases for fact in r.facts.items()]
    for case, title, text in dict.fromkeys(facts):
        yield f"- {code(case)}: {escape(f'{title}: {text}')}\n"


def code(text: str) -> str:
    """Format untrusted text, backticks included, as a Markdown code span; "" becomes a space."""
    shown = "".join(c if c.isprintable() else " " for c in text) or " "
    ticks = 1
    while "`" * ticks in shown:
        ticks += 1
    fence, pad = "`" * ticks, " " if "`" in shown else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def opening(session: ReportedSession, before: str, after: str = "") -> Iterator[str]:
    """Yield the session's verdict, the number of tests per outcome, and the tests without a result.

    `before` and `after` are Markdown that encloses the verdict.
    """
    results, absent = session.results, session.absent
    yield f"{before}mlperf: {session_verdict(results, absent)[1]}{after}\n\n{_counts(results)}\n"
    for text in machine_noise_notes(results):
        yield f"\n{escape(text[0].upper() + text[1:])}.\n"
    lines = (f"- {code(one.test)}: {escape(one.reason)}\n" for one in absent)
    yield from section("Planned tests without a result", lines)


def _counts(results: Results) -> str:
    counts = Counter(result.verdict.outcome for result in results.cases)
    shown = ", ".join(f"{counts[word]} {word}" for word in SEVERITY if counts[word])
    commit = f" at commit {escape(results.commit[:12])}" if results.commit else ""
    among = f"; {results.pairs} pairs of case and metric judged together" if results.pairs else ""
    tests = plural(len(results.cases), "test")
    return f"{tests}: {shown or 'none'}; {duration(results.seconds)} of measuring{commit}{among}"


def section(title: str, lines: Iterable[str]) -> Iterator[str]:
    """Yield a heading and then the lines; nothing if there are no lines."""
    for place, line in enumerate(lines):
        if not place:
            yield f"\n### {title}\n\n"
        yield line


def failures(results: Results, most: int, *, notes: bool = False) -> Iterator[str]:
    """Yield the failed tests, grouped by common cause, with numbers and commands to reproduce.

    Args:
        most: Maximum number of tests listed per cause; further tests are only counted.
        notes: Whether to add how to decide the verdict, its first notes, and what has changed since
            the baseline.
    """
    groups = failure_groups(results)
    for group in groups:
        if group.cause or len(groups) > 1:
            yield f"**{escape(group.title)}** ({plural(len(group.failures), 'test')})\n\n"
        for failure in group.failures[:most]:
            verdict = failure.result.verdict
            text = ": ".join(filter(None, [sentence(verdict.headline), failure.changes]))
            yield f"- **{verdict.outcome}** {escape(text)} ({code(verdict.case.id)})\n"
            if failure.reproduce:
                yield f"  - reproduce: {code(failure.reproduce)}\n"
            for note in _notes(failure.result) if notes else ():
                yield f"  - {escape(note)}\n"
        if len(group.failures) > most:
            yield f"- and {len(group.failures) - most} more, listed below\n"
        yield "\n"


def _notes(result: CaseResult) -> list[str]:
    verdict = result.verdict
    changed = "; ".join(verdict.baseline.changed)
    lines = [*notes_of(verdict), *(f"log: {line}" for line in verdict.logs.tail)]
    notes = [facts_of(result).get("to settle it"), *lines[:MAX_LISTED_NOTES]]
    return [note for note in (*notes, changed and f"changed: {changed}") if note]


def settling_lines(results: Results) -> Iterator[str]:
    """Yield Markdown: actions for undecided verdicts, then why cases were measured again."""
    actions = (
        f"- {escape(cases)}: {escape(text)}\n" for text, cases in finalizing_advice(results.cases)
    )
    yield from section("Provisional", actions)
    facts = ((result.verdict.case.id, facts_of(result)) for result in results.cases)
    again = {case: known["invalid"] for case, known in facts if "invalid" in known}
    lines = (f"- {code(case)}: {escape(text)}\n" for case, text in again.items())
    yield from section("Measured again", lines)


def results_table(title: str, results: Iterable[CaseResult], *, open_: bool) -> Iterator[str]:
    """Yield a Markdown table of results row by row; inside a closed <details> unless `open_`."""
    listed = list(results)
    if not listed:
        return
    gated = any(result.verdict.kind == Kind.ACCURACY and result.verdict.gate for result in listed)
    listed_rows = [(result, list(_with_baseline(result))) for result in listed]
    wordy = not all(row.get("metric") for _, found in listed_rows for row in found)
    columns = (*COLUMNS, *["gate"] * gated, *["note"] * wordy)
    head = f"| {' | '.join(('case', *columns))} |\n|{' --- |' * (len(columns) + 1)}\n"
    above = f"### {title}" if open_ else f"<details><summary>{escape(title)}</summary>"
    yield f"\n{above}\n\n{head}"
    for result, cells_of_rows in listed_rows:
        for row in cells_of_rows:
            cells = [escape(row.get(name, "")) for name in columns]
            yield f"| {' | '.join((escape(result.verdict.case.id), *cells))} |\n"
    if not open_:
        yield "\n</details>\n"


def _with_baseline(result: CaseResult) -> Iterator[dict[str, str]]:
    """Yield a test's table rows with baseline values; without metrics, a row with its headline."""
    verdict = result.verdict
    scores = {score.metric: cells_of(score)["baseline"] for score in verdict.paired}
    for row in rows(result):
        base = row.get("baseline", "") if verdict.kind != Kind.ACCURACY else ""
        note = "" if row.get("metric") else sentence(verdict.headline)
        yield {**row, "baseline": base or scores.get(row.get("metric", ""), ""), "note": note}


def _precisions(results: Results) -> Iterator[str]:
    tables, remarks = precisions.precision_section(results.cases)
    if tables:
        yield "\n### Precisions\n"
    for table in tables:
        kept, cells = table.filled
        aligned = [":--" if name in table.left else "--:" for name in kept]
        head = f"| {' | '.join(map(escape, kept))} |\n| {' | '.join(aligned)} |\n"
        yield f"\n**{escape(table.heading)}**\n\n{head}"
        for row in cells:
            yield f"| {' | '.join(map(escape, row))} |\n"
    if tables:
        yield f"\nMeasured {escape(precisions.origin(results))}.\n\n"
    for text in remarks:
        yield f"- {escape(text)}\n"


def within(blocks: Iterable[str], last: Iterable[str], limit: int) -> str:
    """Join the blocks that fit into `limit` bytes, then `last`; close an open <details>."""
    end = "".join(last)
    reserve = len(end.encode()) + 200
    shown, size, cut, folded = list[str](), 0, 0, False
    for block in blocks:
        length = len(block.encode())
        if cut or size + length > limit - reserve:
            cut += block.startswith(("|", "-"))
            continue
        folded = (folded or "<details>" in block) and "</details>" not in block
        shown.append(block)
        size += length
    if folded:
        shown.append("\n</details>\n")
    if cut:
        text = f"{plural(cut, 'line')} left out because of GitHub's size limit: see the artifact."
        shown.append(f"\n{text}\n")
    return "".join(shown) + end

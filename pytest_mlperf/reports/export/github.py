"""Results as Markdown: a job's summary, and the comment of a pull request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pytest_mlperf.core.causes import EXPLAINED, Siblings, Strength, causes
from pytest_mlperf.core.numbers import duration, plural
from pytest_mlperf.core.results import UNVERIFIED_LABEL, Absent, CaseResult, Results
from pytest_mlperf.core.untrusted_text import some, visible
from pytest_mlperf.core.verdict import SEVERITY, Outcome, final_word
from pytest_mlperf.reports.rows import invalid_runs, rows, with_gate
from pytest_mlperf.reports.terminal.advice import (
    is_drop,
    lines_of,
    machine_wide,
    may_be_recorded,
    open_words,
    settling,
)
from pytest_mlperf.reports.terminal.precisions import (
    compared,
    origin,
    precision_tables,
    remarks,
)

MARKER = "<!-- pytest-mlperf -->"
"""First line of the comment: by it the next run finds the one to replace."""

COMMENT_LIMIT = 65_536
"""Characters of a comment on GitHub."""

PATHS_SHOWN = 20
"""Files of a change that are named above its verdict; the rest are counted."""

PATH_LENGTH = 200
"""Characters of such a file's path."""

SUMMARY_LIMIT = 1_048_576
"""Bytes of a step's summary on GitHub."""

COLUMNS = ("test", "verdict", "metric", "now", "vs base", "interval", "limit")

FOLDED_OUTCOMES = frozenset({Outcome.OK, Outcome.IMPROVED, Outcome.RECORDED})
_SPECIAL = str.maketrans(
    {
        **{c: f"\\{c}" for c in "\\`*_{}[]()#+!|~$"},
        "<": "&lt;",
        ">": "&gt;",
        "&": "&amp;",
        "@": "&#64;",
        "\n": " ",
        "\r": " ",
    }
)


@dataclass(frozen=True, kw_only=True)
class Links:
    """Pages of the run and of its HTML report; None leaves a link out."""

    run: str | None = None
    report: str | None = None


def summary(results: Results, absent: Sequence[Absent] = (), *, limit: int = SUMMARY_LIMIT) -> str:
    """Return a job's summary: the verdict, what failed and why, precisions, and every test.

    It has so many bytes at most; what is cut is counted.
    """
    blocks = [
        f"## {_verdict(results, absent)}\n\n{_counts(results)}\n",
        *_wide(results),
        *_missing(absent),
        *_section("What failed", _failures(results)),
        *_settling(results),
        *_precisions(results),
        *_section("Facts", _facts(results)),
        *_table("Every test", results.cases, open_=True),
    ]
    return _within(blocks, [f"\n{UNVERIFIED_LABEL}\n"], limit)


def comment(
    results: Results,
    absent: Sequence[Absent] = (),
    *,
    links: Links | None = None,
    own_files: Sequence[str] = (),
) -> str:
    """Return a pull request's comment: the verdict first, what is not ok, the rest folded.

    It has so many characters at most, counted as bytes; what is cut is counted.

    Args:
        results: The session.
        absent: Planned tests without a result.
        links: Pages of the run and its report.
        own_files: Files that the verdicts rest on and that the branch does not have like this. They
            stand before the verdict, because whoever changes them decides what passes.
    """
    loud = [result for result in results.cases if result.verdict.outcome not in FOLDED_OUTCOMES]
    quiet = [result for result in results.cases if result.verdict.outcome in FOLDED_OUTCOMES]
    blocks = [
        f"{MARKER}\n{_judged_by(own_files)}**{_verdict(results, absent)}**\n\n{_counts(results)}\n",
        *_wide(results),
        *_missing(absent),
        *_table("Not ok", loud, open_=True),
        *_section("Likely causes", _likely(results)),
        *_settling(results),
        *_accepting(results),
        *_table(f"{plural(len(quiet), 'test')} without a drop", quiet, open_=False),
    ]
    return _within(blocks, [_further(links or Links()), f"\n{UNVERIFIED_LABEL}\n"], COMMENT_LIMIT)


def escape(text: str) -> str:
    """Return foreign text as plain words in a cell: no markup, HTML, mention or new line."""
    return visible(text, keep="\n\r").translate(_SPECIAL)


def code(text: str) -> str:
    """Return foreign text as code, whatever backticks it holds; of none, a space."""
    shown = "".join(c if c.isprintable() else " " for c in text) or " "
    ticks = 1
    while "`" * ticks in shown:
        ticks += 1
    fence, pad = "`" * ticks, " " if "`" in shown else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


# --- parts -----------------------------------------------------------------------------------


def _verdict(results: Results, absent: Sequence[Absent]) -> str:
    failed = Counter(str(r.verdict.outcome) for r in results.cases if r.failed)
    parts = [f"{count} {word}" for word, count in failed.items()]
    if absent:
        parts.append(f"{plural(len(absent), 'planned test')} without a result")
    if parts:
        return f"mlperf: failed: {', '.join(parts)}"
    if not results.cases:
        return "mlperf: nothing was measured"
    return f"mlperf: no drop proven in {plural(len(results.cases), 'test')}{open_words(results)}"


def _judged_by(own_files: Sequence[str]) -> str:
    if not own_files:
        return ""
    listed = [f"- {code(path[:PATH_LENGTH])}\n" for path in own_files[:PATHS_SHOWN]]
    rest = len(own_files) - len(listed)
    more = [f"- and {rest} more\n"] if rest else []
    return (
        "**This change decides what passes: its verdicts rest on "
        f"{plural(len(own_files), 'file')} that the branch does not have like this.** "
        f"Review them first:\n\n{''.join(listed + more)}\n"
    )


def _counts(results: Results) -> str:
    counts = Counter(result.verdict.outcome for result in results.cases)
    shown = ", ".join(f"{counts[word]} {word}" for word in SEVERITY if counts[word])
    commit = f" at commit {escape(results.commit[:12])}" if results.commit else ""
    among = f"; {results.pairs} pairs judged together" if results.pairs else ""
    tests = plural(len(results.cases), "test")
    return f"{tests}: {shown or 'none'}; {duration(results.seconds)} of measuring{commit}{among}"


def _wide(results: Results) -> Iterator[str]:
    for text in machine_wide(results):
        yield f"\n{escape(text[0].upper() + text[1:])}.\n"


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    for place, line in enumerate(lines):
        if not place:
            yield f"\n### {title}\n\n"
        yield line


def _missing(absent: Sequence[Absent]) -> Iterator[str]:
    lines = (f"- {code(one.test)}: {escape(one.reason)}\n" for one in absent)
    return _section("Planned, and without a result", lines)


def _failures(results: Results) -> Iterator[str]:
    for verdict in (result.verdict for result in results.cases if result.failed):
        yield f"- **{verdict.outcome}** {escape(verdict.headline)} ({code(verdict.case.id)})\n"
        if missing := final_word(verdict):
            yield f"  - {escape(missing)}\n"
        for note in lines_of(verdict)[:3]:
            yield f"  - {escape(note)}\n"
        if verdict.changed:
            yield f"  - changed: {escape('; '.join(verdict.changed))}\n"


def _likely(results: Results) -> Iterator[str]:
    """Yield the strongest cause of each failed test, once for all tests that share it."""
    verdicts = Siblings(result.verdict for result in results.cases)
    cases: dict[str, list[str]] = {}
    for verdict in [result.verdict for result in results.cases if result.failed][:EXPLAINED]:
        for cause in causes(verdict, None, verdicts)[:1]:
            if cause.strength > Strength.HINT:
                cases.setdefault(cause.says, []).append(verdict.case.id)
    for says, named in cases.items():
        yield f"- {escape(says)}: {escape(some(list(dict.fromkeys(named))))}\n"


def _settling(results: Results) -> Iterator[str]:
    actions = (f"- {escape(cases)}: {escape(text)}\n" for text, cases in settling(results.cases))
    yield from _section("Provisional", actions)
    again = {r.verdict.case.id: text for r in results.cases if (text := invalid_runs(r.verdict))}
    lines = (f"- {code(case)}: {escape(text)}\n" for case, text in again.items())
    yield from _section("Measured again", lines)


def _accepting(results: Results) -> Iterator[str]:
    fell = [r for r in results.cases if r.failed and is_drop(r.verdict) and may_be_recorded(r)]
    if fell:
        yield "\nA drop that is meant is accepted by recording it, with a reason, for review:\n\n"
    for suite in sorted({result.suite for result in fell}):
        command = f'pytest {suite} --mlperf-update=replace --mlperf-reason "why"'
        yield f"- {code(command)}\n"


def _facts(results: Results) -> Iterator[str]:
    """Yield what add-ons add to the cases, once for all tests of a case."""
    facts = [(r.verdict.case.id, *fact) for r in results.cases for fact in r.facts.items()]
    for case, title, text in dict.fromkeys(facts):
        yield f"- {code(case)}: {escape(f'{title}: {text}')}\n"


def _table(title: str, results: Iterable[CaseResult], *, open_: bool) -> Iterator[str]:
    """Yield a table piece by piece, so that it can be cut between its rows."""
    listed = list(results)
    if not listed:
        return
    gated = any(result.verdict.kind == "accuracy" and result.verdict.gate for result in listed)
    columns = (*COLUMNS, "gate") if gated else COLUMNS
    head = f"| {' | '.join(('case', *columns))} |\n|{' --- |' * (len(columns) + 1)}\n"
    above = f"### {title}" if open_ else f"<details><summary>{escape(title)}</summary>"
    yield f"\n{above}\n\n{head}"
    for result in listed:
        for row in rows(result):
            cells = [escape(row.get(name, "")) for name in columns]
            if not row.get("metric"):
                cells[2] = escape(result.verdict.headline)
            yield f"| {' | '.join((escape(result.verdict.case.id), *cells))} |\n"
    if not open_:
        yield "\n</details>\n"


def _precisions(results: Results) -> Iterator[str]:
    blocks = compared(results.cases)
    if blocks:
        yield "\n### Precisions\n"
    for table in precision_tables(blocks):
        kept, cells = table.filled
        aligned = [":--" if name in table.left else "--:" for name in kept]
        head = f"| {' | '.join(map(escape, kept))} |\n| {' | '.join(aligned)} |\n"
        yield f"\n**{escape(table.heading)}**\n\n{head}"
        for row in cells:
            yield f"| {' | '.join(map(escape, row))} |\n"
    if blocks:
        yield f"\nMeasured {escape(origin(results))}.\n\n"
    for text in remarks(blocks):
        yield f"- {escape(text)}\n"


def _further(links: Links) -> str:
    linked = [
        f"[{name}]({url})"
        for name, url in (("the run", links.run), ("the report", links.report))
        if url and url.startswith("https://") and not set(url) & set("()<>[] \n\"'")
    ]
    return f"\nMore in {' and '.join(linked)}.\n" if linked else ""


def _within(blocks: Iterable[str], last: Iterable[str], limit: int) -> str:
    """Join the blocks that fit into the limit, then `last`; close a fold that was cut."""
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
        shown.append(f"\n{plural(cut, 'line')} more do not fit GitHub's limit: see the artifact.\n")
    return "".join(shown) + end


MAX_ANNOTATIONS = 10
WARNED_OUTCOMES = frozenset(
    {Outcome.SUSPECT, Outcome.PROVISIONAL, Outcome.INCONCLUSIVE, Outcome.NO_BASELINE}
)


def commands(results: Results, absent: Sequence[Absent] = ()) -> str:
    """Return workflow commands: errors for what failed or is absent, warnings for what is open."""
    failed = [result for result in results.cases if result.failed]
    warned = [r for r in results.cases if not r.failed and r.verdict.outcome in WARNED_OUTCOMES]
    lines = []
    if absent:
        text = f"{plural(len(absent), 'planned test')} without a result; the first: "
        lines.append(_command("error", f"{text}{absent[0].test}: {absent[0].reason}"))
    lines += _of("error", failed, MAX_ANNOTATIONS - len(lines))
    lines += _of("warning", warned, MAX_ANNOTATIONS)
    return "".join(f"{line}\n" for line in lines)


def _of(kind: str, results: Sequence[CaseResult], room: int) -> list[str]:
    """Return a line for each, the last one for what does not fit."""
    fits = results if len(results) <= room else results[: room - 1]
    lines = [
        _command(
            kind,
            with_gate(result.verdict),
            file=result.suite,
            line=str(result.line),
            title=result.verdict.case.id,
        )
        for result in fits
    ]
    if len(fits) < len(results):
        lines.append(_command(kind, f"{len(results) - len(fits)} more; see the summary"))
    return lines


def _command(kind: str, message: str, **where: str) -> str:
    """Return a workflow command; its parts cannot end it or begin another.

    Source: https://docs.github.com/en/actions/reference/workflow-commands-for-github-actions
    """
    properties = ",".join(f"{name}={_escape(value, inside=True)}" for name, value in where.items())
    return f"::{' '.join(filter(None, (kind, properties)))}::{_escape(message)}"


def _escape(text: str, *, inside: bool = False) -> str:
    shown = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    if inside:
        shown = shown.replace(":", "%3A").replace(",", "%2C")
    return "".join(c if c.isprintable() else "?" for c in shown)

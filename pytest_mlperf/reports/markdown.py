"""Results as Markdown: a job's summary, and the comment of a pull request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pytest_mlperf.core.foreign_text import visible
from pytest_mlperf.core.merging import Absent
from pytest_mlperf.core.results import LABEL, CaseResult, Results
from pytest_mlperf.core.verdict import SEVERITY, Outcome
from pytest_mlperf.reports.commands import DROPS, may_be_recorded
from pytest_mlperf.reports.figures import invalid_runs
from pytest_mlperf.reports.layout import duration, plural
from pytest_mlperf.reports.rows import rows

MARKER = "<!-- pytest-mlperf -->"
"""First line of the comment: by it the next run finds the one to replace."""

COMMENT_LIMIT = 65_536
"""Characters of a comment on GitHub."""

SUMMARY_LIMIT = 1_048_576
"""Bytes of a step's summary on GitHub."""

COLUMNS = ("test", "verdict", "metric", "now", "vs base", "interval", "limit")

QUIET = frozenset({Outcome.OK, Outcome.IMPROVED, Outcome.RECORDED})
"""What a comment folds away."""

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
    """Where to look further; None leaves a link out.

    Attributes:
        run: The page of the run.
        report: The HTML report.
    """

    run: str | None = None
    report: str | None = None


def summary(results: Results, absent: Sequence[Absent] = (), *, limit: int = SUMMARY_LIMIT) -> str:
    """Return a job's summary: the verdict, what failed and why, and every test.

    Args:
        results: What was found.
        absent: Planned tests without a result.
        limit: Bytes at most; what is cut is counted.
    """
    blocks = [f"## {_verdict(results, absent)}\n\n{_counts(results)}\n"]
    blocks += _missing(absent)
    blocks += _failures(results)
    blocks += _again(results)
    blocks += _table("Every test", results.cases, open_=True)
    return _within(blocks, [f"\n{LABEL}\n"], limit)


def comment(
    results: Results,
    absent: Sequence[Absent] = (),
    *,
    links: Links | None = None,
    limit: int = COMMENT_LIMIT,
) -> str:
    """Return a pull request's comment: the verdict first, what is not ok, the rest folded.

    Args:
        results: What was found.
        absent: Planned tests without a result.
        links: Where to look further.
        limit: Characters at most (counted as bytes); what is cut is counted.
    """
    loud = [result for result in results.cases if result.verdict.outcome not in QUIET]
    quiet = [result for result in results.cases if result.verdict.outcome in QUIET]
    blocks = [f"{MARKER}\n**{_verdict(results, absent)}**\n\n{_counts(results)}\n"]
    blocks += _missing(absent)
    blocks += _table("Not ok", loud, open_=True)
    blocks += _again(results)
    blocks += _accepting(results)
    blocks += _table(f"{plural(len(quiet), 'test')} without a drop", quiet, open_=False)
    return _within(blocks, [_further(links or Links()), f"\n{LABEL}\n"], limit)


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
    """Return the first line: what decides about the change."""
    failed = Counter(str(r.verdict.outcome) for r in results.cases if r.failed)
    parts = [f"{count} {word}" for word, count in failed.items()]
    if absent:
        parts.append(f"{plural(len(absent), 'planned test')} without a result")
    if parts:
        return f"mlperf: failed: {', '.join(parts)}"
    open_ = sum(
        r.verdict.outcome in {Outcome.INCONCLUSIVE, Outcome.SUSPECT, Outcome.NO_BASELINE}
        for r in results.cases
    )
    undecided = f", {plural(open_, 'test')} undecided or without a baseline" if open_ else ""
    return f"mlperf: no drop proven in {plural(len(results.cases), 'test')}{undecided}"


def _counts(results: Results) -> str:
    counts = Counter(result.verdict.outcome for result in results.cases)
    shown = ", ".join(f"{counts[word]} {word}" for word in SEVERITY if counts[word])
    commit = f" at commit {escape(results.commit[:12])}" if results.commit else ""
    among = f"; {results.pairs} pairs judged together" if results.pairs else ""
    tests = plural(len(results.cases), "test")
    return f"{tests}: {shown or 'none'}; {duration(results.seconds)} of measuring{commit}{among}"


def _missing(absent: Sequence[Absent]) -> Iterator[str]:
    if absent:
        yield "\n### Planned, and without a result\n\n"
    for one in absent:
        yield f"- {code(one.test)}: {escape(one.why)}\n"


def _failures(results: Results) -> Iterator[str]:
    failed = [result for result in results.cases if result.failed]
    if failed:
        yield "\n### What failed\n\n"
    for result in failed:
        verdict = result.verdict
        yield f"- **{verdict.outcome}** {escape(verdict.headline)} ({code(verdict.case.id)})\n"
        for note in verdict.notes[:3]:
            yield f"  - {escape(note)}\n"
        if verdict.changed:
            yield f"  - changed: {escape('; '.join(verdict.changed))}\n"


def _again(results: Results) -> Iterator[str]:
    """Yield which runs were INVALID and measured again, once for each case."""
    found = {r.verdict.case.id: said for r in results.cases if (said := invalid_runs(r.verdict))}
    if found:
        yield "\n### Measured again\n\n"
    for case, said in found.items():
        yield f"- {code(case)}: {escape(said)}\n"


def _accepting(results: Results) -> Iterator[str]:
    suites = sorted(
        {
            result.suite
            for result in results.cases
            if result.failed and result.verdict.outcome in DROPS and may_be_recorded(result)
        }
    )
    if suites:
        yield "\nA drop that is meant is accepted by recording it, with a reason, for review:\n\n"
        for suite in suites:
            command = f'pytest {suite} --mlperf-update=replace --mlperf-reason "why"'
            yield f"- {code(command)}\n"


def _table(title: str, found: Iterable[CaseResult], *, open_: bool) -> Iterator[str]:
    """Yield a table piece by piece, so that it can be cut between its rows."""
    listed = list(found)
    if not listed:
        return
    gated = any(result.verdict.kind == "accuracy" and result.verdict.gate for result in listed)
    columns = (*COLUMNS, "gate") if gated else COLUMNS
    head = f"| {' | '.join(('case', *columns))} |\n|{' --- |' * (len(columns) + 1)}\n"
    yield (
        f"\n### {title}\n\n{head}"
        if open_
        else (f"\n<details><summary>{escape(title)}</summary>\n\n{head}")
    )
    for result in listed:
        for row in rows(result):
            cells = [escape(row.get(name, "")) for name in columns]
            if not row.get("metric"):
                cells[2] = escape(result.verdict.headline)
            yield f"| {' | '.join((escape(result.verdict.case.id), *cells))} |\n"
    if not open_:
        yield "\n</details>\n"


def _further(links: Links) -> str:
    found = [
        f"[{name}]({url})"
        for name, url in (("the run", links.run), ("the report", links.report))
        if url and url.startswith("https://") and not set(url) & set("()<>[] \n\"'")
    ]
    return f"\nMore in {' and '.join(found)}.\n" if found else ""


def _within(blocks: Iterable[str], last: Iterable[str], limit: int) -> str:
    """Return pieces as far as they fit; the last ones always stand.

    An open fold is closed, or everything behind it would be folded too.
    """
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

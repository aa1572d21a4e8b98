"""Failures as GitHub annotations, at the line of the suite that makes the case."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_mlperf.core.merging import Absent
from pytest_mlperf.core.results import CaseResult, Results
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.reports.figures import with_gate
from pytest_mlperf.reports.layout import plural

MOST = 10
"""Annotations of one kind that GitHub shows of a step."""

WARNED = frozenset({Outcome.SUSPECT, Outcome.INCONCLUSIVE, Outcome.NO_BASELINE})


def commands(results: Results, absent: Sequence[Absent] = ()) -> str:
    """Return workflow commands: errors for what failed, warnings for what is not decided.

    Args:
        results: What was found.
        absent: Planned tests without a result: one error for all.
    """
    failed = [result for result in results.cases if result.failed]
    warned = [r for r in results.cases if not r.failed and r.verdict.outcome in WARNED]
    lines = []
    if absent:
        text = f"{plural(len(absent), 'planned test')} without a result; the first: "
        lines.append(_command("error", f"{text}{absent[0].test}: {absent[0].why}"))
    lines += _of("error", failed, MOST - len(lines))
    lines += _of("warning", warned, MOST)
    return "".join(f"{line}\n" for line in lines)


def _of(kind: str, found: Sequence[CaseResult], room: int) -> list[str]:
    """Return a line for each, the last one for what does not fit."""
    fits = found if len(found) <= room else found[: room - 1]
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
    if len(fits) < len(found):
        lines.append(_command(kind, f"{len(found) - len(fits)} more; see the summary"))
    return lines


def _command(kind: str, message: str, **where: str) -> str:
    """Return a workflow command; its parts cannot end it or begin another.

    Source: https://docs.github.com/en/actions/reference/workflow-commands-for-github-actions
    """
    given = ",".join(f"{name}={_escape(value, inside=True)}" for name, value in where.items())
    return f"::{kind} {given}::{_escape(message)}" if given else f"::{kind}::{_escape(message)}"


def _escape(text: str, *, inside: bool = False) -> str:
    shown = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    if inside:
        shown = shown.replace(":", "%3A").replace(",", "%2C")
    return "".join(c if c.isprintable() else "?" for c in shown)

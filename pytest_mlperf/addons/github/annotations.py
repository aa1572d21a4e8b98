"""Report results as GitHub workflow commands, which appear as annotations of the suite's lines."""

from collections.abc import Sequence

from pytest_mlperf import Outcome
from pytest_mlperf.core.results import IMPORTED
from pytest_mlperf.extension import CaseResult, ReportedSession, plural
from pytest_mlperf.reports.rows import with_gate

MAX_ANNOTATIONS = 10
WARNED_OUTCOMES = (Outcome.SUSPECT, Outcome.PROVISIONAL, Outcome.INCONCLUSIVE, Outcome.NO_BASELINE)


def report(session: ReportedSession) -> str:
    """Return workflow commands: errors for failed or missing tests, warnings for undecided ones."""
    cases, absent = session.results.cases, session.absent
    failed = [result for result in cases if result.failed]
    warned = [r for r in cases if not r.failed and r.verdict.outcome in WARNED_OUTCOMES]
    lines = []
    if absent:
        text = f"{plural(len(absent), 'planned test')} without a result; the first: "
        lines.append(_command("error", f"{text}{absent[0].test}: {absent[0].reason}"))
    lines += _result_commands("error", failed, MAX_ANNOTATIONS - len(lines))
    lines += _result_commands("warning", warned, MAX_ANNOTATIONS)
    return "".join(f"{line}\n" for line in lines)


def _result_commands(kind: str, results: Sequence[CaseResult], room: int) -> list[str]:
    """Return a workflow command per result, at most `room`; the last may count those left out."""
    fits = results if len(results) <= room else results[: room - 1]
    lines = [
        _command(kind, with_gate(r.verdict), **_place(r), title=r.verdict.case.id) for r in fits
    ]
    if len(fits) < len(results):
        lines.append(_command(kind, f"{len(results) - len(fits)} more tests: see the job summary"))
    return lines


def _place(result: CaseResult) -> dict[str, str]:
    return {} if result.suite == IMPORTED else {"file": result.suite, "line": str(result.line)}


def _command(kind: str, message: str, **where: str) -> str:
    """Return a workflow command; escape text that would end it or start another one.

    `kind` is "error" or "warning"; `where` are properties such as the file and line.
    Source: https://docs.github.com/en/actions/reference/workflow-commands-for-github-actions
    """
    properties = ",".join(f"{name}={_escape(value, inside=True)}" for name, value in where.items())
    return f"::{' '.join(filter(None, (kind, properties)))}::{_escape(message)}"


def _escape(text: str, *, inside: bool = False) -> str:
    shown = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    if inside:
        shown = shown.replace(":", "%3A").replace(",", "%2C")
    return "".join(c if c.isprintable() else "?" for c in shown)

"""Write results and reports at the end of a session, and print the summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest

from pytest_mlperf.core.numbers import plural
from pytest_mlperf.core.results import Results
from pytest_mlperf.plugin.addons import EXIT_ENVIRONMENT, AddOns, as_lines
from pytest_mlperf.plugin.report_json import traceback_entries
from pytest_mlperf.plugin.session import SKIPS_FAIL, MlperfSession, skips_fail
from pytest_mlperf.reports.costs import measured_costs
from pytest_mlperf.reports.failures import duplicate_failures, failure_groups, group_sentences
from pytest_mlperf.reports.terminal import selection, text
from pytest_mlperf.reports.terminal.layout import fold, relative
from pytest_mlperf.stores.atomic import unforeseen
from pytest_mlperf.stores.results import write_results
from pytest_mlperf.stores.sessions import Sessions


def refuse_broken_addons(addons: AddOns) -> NoReturn:
    """End the session with exit code 3, because an add-on that may change verdicts failed."""
    pytest.exit(f"mlperf: {'; '.join(addons.errors)}", returncode=EXIT_ENVIRONMENT)


def finish(state: MlperfSession, session: pytest.Session) -> None:
    """Write results and reports; an xdist worker only sends its notices to the controller.

    If a file cannot be written, a session that would pass exits with code 3.
    """
    state.close()
    if state.is_worker:
        state.config.workeroutput["mlperf_notices"] = state.notices  # type: ignore[attr-defined]
        return
    stopped = session.shouldfail or session.shouldstop
    over = session.exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED} and not stopped
    state.progress.end(over=over)
    if state.results and not over:
        state.notice("interrupted; to continue, repeat the command with --mlperf-resume")
    reports = () if state.options.plan else state.options.report
    if state.results or state.skipped or reports:
        _write(state, session, reports)
    if state.unjudged:
        state.notice(state.unjudged + (f" ({SKIPS_FAIL})" if skips_fail(state.options) else ""))
        if skips_fail(state.options):
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
    for line in state.addons.warnings:
        state.notice(line)
    for line in state.addons.errors:
        state.notice(f"ERROR {line}")
    if state.addons.errors and session.exitstatus in {0, pytest.ExitCode.TESTS_FAILED}:
        session.exitstatus = EXIT_ENVIRONMENT


def _write(
    state: MlperfSession, session: pytest.Session, reports: tuple[tuple[str, Path], ...]
) -> None:
    summary = state.summary  # once: its length of time goes on
    kept = state.folder / "results.json"
    copy = state.options.json if state.results or state.skipped else None
    for path in filter(None, (kept if state.results else None, copy)):
        write = partial(_write_results, state, path, summary)
        line = None if path is copy and _is_trial(state) else f"results: {relative(path)}"
        _keep(state, session, "the results", write, line)
    if state.results or state.skipped:
        for lines in state.addons.call(
            "mlperf_session_finished",
            as_lines,
            results=summary,
            folder=state.folder,
            options=state.options.by_name,
        ):
            for line in lines:
                state.notice(line)
    remember = partial(state.suspicion.remember, state.results)
    state.keeping.try_write("the suspects for the next session", remember)
    if reason := state.suspicion.line(state.results):
        state.notice(reason)
    if reports:
        _write_reports(state, session, reports, summary, kept)


def _write_results(state: MlperfSession, path: Path, summary: Results) -> None:
    if reason := write_results(path, summary, readable=False):
        state.notice(
            f"WARNING {relative(path)} is complete, but commands will not read it: {reason}; "
            "measure fewer tests per session"
        )


def _write_reports(
    state: MlperfSession,
    session: pytest.Session,
    reports: tuple[tuple[str, Path], ...],
    summary: Results,
    file: Path,
) -> None:
    from pytest_mlperf.reports.formats import ReportedSession, write_report

    whole = ReportedSession(
        results=summary, file=file, root=state.config.rootpath, options=state.options.by_name
    )
    for form, path in reports:
        write = partial(write_report, form, path, whole)
        _keep(state, session, f"the {form} report", write, f"{form}: {relative(path)}")


def _keep(
    state: MlperfSession,
    session: pytest.Session,
    content: str,
    write: Callable[[], object],
    line: str | None,
) -> None:
    if not state.keeping.try_write(content, write, line):
        session.exitstatus = session.exitstatus or EXIT_ENVIRONMENT


def fold_failures(state: MlperfSession, reporter: Any) -> None:
    """Print causes that failures have in common; pytest then prints one message per cause.

    With -v pytest prints all messages. Headlines are red on a terminal.
    """
    reports = [report for report in reporter.stats.get("failed", ()) if hasattr(report, "mlperf")]
    if not reports or reporter.no_summary:
        return
    try:
        groups = failure_groups(state.summary)
        lines = [t for one in group_sentences(groups) for t in fold(one, reporter._tw.fullwidth)]
    except Exception as error:  # pytest's own summary must follow all the same
        state.notice(unforeseen("failures cannot be grouped", error))
        return
    alike = duplicate_failures(groups) if state.config.get_verbosity() < 1 else ()
    for report in reports:
        if report.nodeid in alike:
            report._pdbshown = True  # pytest's mark of a failure that was shown already
        for entry in traceback_entries(report.longrepr) if reporter._tw.hasmarkup else ():
            entry.lines[0] = f"\x1b[1;31m{entry.lines[0]}\x1b[0m"
    if lines:
        reporter.write_sep("=", "mlperf: common causes")
        lines += [f"{plural(len(alike), 'similar message')} left out below; -v prints all"] * bool(
            alike
        )
    for line in lines:
        reporter.write_line(line)


def summarise(state: MlperfSession, reporter: Any) -> None:
    """Print the terminal summary of the session."""
    style = reporter.config.option.tbstyle
    failures_shown = not reporter.no_summary and style not in {"no", "line"}
    try:
        width, colour = reporter._tw.fullwidth, reporter._tw.hasmarkup
        lines = _lines(state, width, colour=colour, failures_shown=failures_shown)
    except Exception as error:  # pytest's own summary must follow all the same
        lines = [unforeseen("the summary cannot be printed", error), *state.keeping.lines]
        session = reporter._session
        session.exitstatus = session.exitstatus or EXIT_ENVIRONMENT
    if lines:
        reporter.write_sep("=", "mlperf")
        for line in lines:
            reporter.write_line(line)


def _lines(state: MlperfSession, width: int, *, colour: bool, failures_shown: bool) -> list[str]:
    lines = state.selection.lines(width)
    for reason, count in Counter(state.skipped.values()).items():
        skipped = reason.replace("Skipped", "skipped")
        lines += fold(f"{plural(count, 'test')} {skipped}", width)
    if state.options.plan and state.plan:
        options, conditions = state.options, state.options.conditions
        runs, warmup, idle_s = options.max_runs, conditions.warmup, conditions.wait_idle
        tests = list({(test.path, test.case.id): test for test in state.plan}.values())
        costs = measured_costs(tests, Sessions(options.runs_dir))
        more = selection.extra_time_lines(
            tests, max_runs=runs, warmup=warmup, confirm=options.confirm
        )
        return lines + selection.plan(
            tests, state.kinds, width, max_runs=runs, measured=costs, idle_s=idle_s, more=more
        )
    if resumes := state.progress.resumes:
        lines.append(f"continues interrupted session {resumes}")
    if state.results:
        summary = state.summary
        if _is_trial(state):  # nothing of it is to be committed
            cases = [replace(one, verdict=replace(one.verdict, notes=())) for one in summary.cases]
            summary = replace(summary, cases=tuple(cases))
        lines += text.summary(
            summary,
            width,
            colour=colour,
            failures_shown=failures_shown,
            precisions=bool(state.options.report),
        )
    return lines + state.keeping.lines


def _is_trial(state: MlperfSession) -> bool:
    """Check whether `pytest-mlperf update` runs this session, on a temporary copy of baselines."""
    folder = state.options.baselines
    return folder is not None and folder.is_relative_to(state.options.runs_dir)

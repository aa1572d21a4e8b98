"""`pytest-mlperf explain`: how a verdict was reached, step by step."""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pytest_mlperf.calibrated import rule_beside, rule_for
from pytest_mlperf.case_runs import load_checked
from pytest_mlperf.cli.history import Sessions, add_runs_dir
from pytest_mlperf.cli.judged_against import judged_against
from pytest_mlperf.cli.looks import looks
from pytest_mlperf.cli.output import add_parser, show, width
from pytest_mlperf.cli.turns import turns
from pytest_mlperf.core.baseline import Record, find
from pytest_mlperf.core.causes import causes
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.foreign_text import visible
from pytest_mlperf.core.judge.rule_r import RuleR
from pytest_mlperf.core.recording import set_by
from pytest_mlperf.core.results import CaseResult, Results
from pytest_mlperf.core.verdict import Verdict
from pytest_mlperf.reports import text
from pytest_mlperf.reports.causes import section
from pytest_mlperf.reports.explanation import environment, evidence
from pytest_mlperf.reports.selection import relative
from pytest_mlperf.stores.results import read_results

Session = tuple[Path, Results]


def add_command(commands: Any) -> None:
    """Register the subcommand."""
    parser = add_parser(
        commands,
        "explain",
        summary="how a verdict was reached, run by run",
        description=(
            "Prints what pytest said about a case, then retraces it: each run, each look of\n"
            "the rule with its bounds, which one decided, what would have decided otherwise,\n"
            "the accuracy, likely causes with their evidence, the machine and engine, and\n"
            "where every file is."
        ),
        needs="a session's results; the baseline in git to retrace the bounds",
        examples=[
            (
                "explain tiny-resnet50-Offline-onnxruntime-fp32-cpu",
                "both tests of the case, from the newest session that has it",
            ),
            (
                "explain Offline --results r.json",
                "a part of the name is enough where it fits one case; from this file",
            ),
            (
                'explain "test_performance[demo-Offline-null-fp32-cpu]"',
                "only this test of the case",
            ),
        ],
    )
    parser.add_argument("case", metavar="CASE", help="case id, a unique part of it, or a test id")
    parser.add_argument(
        "--results", type=Path, metavar="FILE", help="default: the newest session with the case"
    )
    add_runs_dir(parser)
    parser.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Explain the tests of one case; what they found does not change the exit code.

    Raises:
        MlperfError: No case fits, or several do.
    """
    sessions = Sessions(parsed.runs_dir)
    file = parsed.results
    if file and file.is_dir():
        file = file / "results.json"
    given = [(file, read_results(file))] if file else None
    found = choose(parsed.case, sessions if given is None else given)
    if isinstance(found, str):
        raise MlperfError("\n".join([found, *sessions.notes]))
    path, results, tests = found
    for result in tests:
        try:
            show([*_explain(result, path, results), ""])
        except ValueError as error:  # a file from elsewhere may hold what no run can measure
            raise MlperfError(f"{path}: {result.test}: {error}") from None
    show(environment(tests[-1].verdict, width()))
    show(sessions.notes)
    return 0


def choose(
    wanted: str, sessions: Iterable[Session]
) -> tuple[Path, Results, list[CaseResult]] | str:
    """Return the newest session that has the case, and its tests of it; else why there is none.

    Args:
        wanted: Case id, a part of it, or a test id.
        sessions: Newest first.
    """
    known: dict[str, None] = {}
    for path, results in sessions:
        tests = [one for one in results.cases if f"::{one.test}".endswith(f"::{wanted}")]
        ids = dict.fromkeys(result.verdict.case.id for result in results.cases)
        known |= ids
        fitting = [] if tests else matching(wanted, list(ids))
        if len(fitting) > 1:
            return _listed(f"{wanted!r} fits {len(fitting)} cases of {relative(path)}", fitting)
        if tests or fitting:
            return (
                path,
                results,
                tests
                or [result for result in results.cases if result.verdict.case.id == fitting[0]],
            )
    if not known:
        return "no results to explain; measure first: pytest suites"
    return _listed(f"no case fits {wanted!r}; measured were", known)


def _listed(head: str, cases: Iterable[str]) -> str:
    return "\n".join([f"{head}:", *(f"  {visible(case)}" for case in cases)])


def matching(wanted: str, ids: Sequence[str]) -> list[str]:
    """Return the case that is named exactly, else all whose id holds the text.

    Of a test id the part between the brackets names the case.
    """
    named = re.search(r"\[(.+)\]$", wanted)
    exact = named[1] if named else wanted
    if exact in ids:
        return [exact]
    return [] if named else [case for case in ids if wanted.lower() in case.lower()]


def _explain(result: CaseResult, path: Path, results: Results) -> Iterator[str]:
    verdict = _with_short_paths(result.verdict)
    result = dataclasses.replace(result, verdict=verdict)
    file = judged_against(result, (Path(), *path.resolve().parents))
    record = baseline_record(verdict, file)
    baseline = record.runs if record else ()
    rule = rule_of(verdict, file, result.max_runs)
    judged = [
        looks(metric, verdict.runs, baseline, rule, width())
        for metric in verdict.metrics
        if metric.metric in result.limits
    ]
    if verdict.ratio:
        judged = [turns(verdict, verdict.ratio, rule, width())]
    yield f"{result.test}"
    at = f" at commit {results.commit}" if results.commit else ""
    yield f"{results.started[:16].replace('T', ' ')} UTC{at}, profile {result.profile}"
    yield f"from {relative(path.absolute())}"
    yield ""
    yield from text.failure(verdict, result, width()).splitlines()
    yield from evidence(result, baseline, judged, width(), _likely(verdict, record, results))


def _likely(verdict: Verdict, record: Record | None, results: Results) -> list[str]:
    """Return why a verdict came out so, in the light of the whole session."""
    others = [one.verdict for one in results.cases if one.verdict.case != verdict.case]
    # What was accepted since is not what the verdict was judged against.
    same = record if record and set_by(record.history) == verdict.baseline_set else None
    return section(causes(verdict, same, others), len(others), width())


def baseline_record(verdict: Verdict, file: Path | None) -> Record | None:
    """Return the record that a verdict was judged against, as its file is now.

    Raises:
        BaselineError: The file is damaged.
    """
    loaded = load_checked(file, verdict.case) if file else None
    return find(loaded, verdict.subject.identity) if loaded and verdict.subject else None


def _with_short_paths(verdict: Verdict) -> Verdict:
    """Return the verdict with the folders of its runs relative to the working folder."""
    runs = tuple(dataclasses.replace(run, folder=_short(run.folder)) for run in verdict.runs)
    accuracy = verdict.accuracy
    if accuracy:
        accuracy = dataclasses.replace(accuracy, folder=_short(accuracy.folder))
    return dataclasses.replace(verdict, runs=runs, accuracy=accuracy)


def _short(folder: str) -> str:
    return relative(Path(folder))


def rule_of(verdict: Verdict, file: Path | None, max_runs: int) -> RuleR:
    """Return the rule that a verdict was reached by, with the noise as it is calibrated now."""
    accelerator = verdict.case.accelerator
    if file and verdict.subject:
        return rule_beside(file, accelerator, verdict.subject.identity, max_runs)[0]
    return rule_for(accelerator, max_runs)

"""`pytest-mlperf update`: accept measured values as baselines; a dry run unless told to write."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pytest_mlperf.calibrated import rule_beside
from pytest_mlperf.case_runs import baseline_file, baselines_root, load_checked
from pytest_mlperf.cli.history import RUNS_DIR, add_runs_dir, results_files
from pytest_mlperf.cli.output import add_parser, show
from pytest_mlperf.core.baseline import Baseline, Record, find, geometric_means, with_record
from pytest_mlperf.core.errors import BaselineError, MlperfError
from pytest_mlperf.core.judge.rule_r import GATING_RUNS
from pytest_mlperf.core.judge.ruling import is_worse
from pytest_mlperf.core.numbers import change, quantity
from pytest_mlperf.core.recording import baseline_run, empty_baseline, new_record
from pytest_mlperf.core.results import CaseResult
from pytest_mlperf.core.run_plan import USUAL_RUNS
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.reports.selection import relative
from pytest_mlperf.stores import baselines
from pytest_mlperf.stores.results import read_results

NOISE = 0.1
"""A step of less than this share of the limit is no worsening worth a word."""


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """What accepting one case would write."""

    result: CaseResult
    file: Path
    old: Record | None
    new: Record

    def put(self, found: Baseline | None) -> Baseline:
        """Return the baseline file with this record in it."""
        case, result = self.result.verdict.case, self.result
        empty = empty_baseline(case, round_name=result.round, profile=result.profile)
        return with_record(found or empty, self.new)

    @property
    def worse(self) -> list[str]:
        """Gated metrics that would get worse."""
        before = geometric_means(self.old.runs) if self.old else {}
        after = geometric_means(self.new.runs)
        return [
            metric
            for metric, limit in self.result.limits.items()
            if metric in before
            and metric in after
            and is_worse(metric, before[metric], after[metric])
            and abs(after[metric] / before[metric] - 1) > limit * NOISE
        ]


def add_command(commands: Any) -> None:
    """Register the subcommand."""
    parser = add_parser(
        commands,
        "update",
        summary="accept a session's values as baselines",
        description=(
            "Shows what a session's values would change in the performance baselines; with\n"
            "--write --reason TEXT it writes them. Values that get worse are only taken with\n"
            "--accept-regression CASE. Refused are slowed, pretended and invalid\n"
            f"measurements, and cases of fewer than {GATING_RUNS} runs, with the command that\n"
            "makes more.\n"
            "Scores are accepted by pytest itself: --mlperf-update=missing or replace.\n"
            "\n"
            "Exit 1 when a case was refused."
        ),
        needs="a session that made enough runs; run it where pytest ran",
        examples=[
            ("update", "a dry run: old and new value of every case of the newest session"),
            (
                'update --write --reason "ORT 1.32, #455"',
                "writes baselines/; review and commit them",
            ),
            (
                "update r.json --case demo-Offline-null-fp32-cpu",
                "only this case, from this file",
            ),
        ],
    )
    parser.add_argument(
        "results", nargs="?", type=Path, help="results.json (default: the newest in .mlperf/runs)"
    )
    parser.add_argument("--write", action="store_true", help="write; without it nothing changes")
    parser.add_argument("--reason", help="why the values are accepted; kept in the history")
    parser.add_argument(
        "--accept-regression", action="append", default=[], metavar="CASE", help="repeatable"
    )
    parser.add_argument("--case", action="append", default=[], metavar="CASE", help="only these")
    parser.add_argument("--baselines", type=Path, help="folder (default: nearest to the suite)")
    add_runs_dir(parser)
    parser.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Show, and with --write accept, what a results file holds.

    Returns:
        0 when every named case was acceptable, 1 when one was refused.

    Raises:
        MlperfError: The file is unreadable, or an argument is missing or unknown.
    """
    if parsed.write and not (parsed.reason or "").strip(" ."):
        raise MlperfError('update --write needs --reason "why these values are accepted"')
    path = parsed.results or newest_results(parsed.runs_dir)
    results = read_results(path)
    cases = [r for r in results.cases if r.verdict.kind == "performance"]
    known = {r.verdict.case.id for r in cases}
    for name in [*parsed.case, *parsed.accept_regression]:
        if name not in known:
            raise MlperfError(f"{path} has no case {name!r}; it has: {', '.join(sorted(known))}")
    if parsed.case:
        cases = [r for r in cases if r.verdict.case.id in parsed.case]
    show([f"from {path}, run {results.run}"])
    proposals, refused = [], 0
    for result in cases:
        outcome = consider(result, parsed)
        if isinstance(outcome, str):
            refused += 1
            show([result.verdict.case.id, f"  refused: {outcome}"])
        else:
            proposals.append(outcome)
            show(describe(outcome))
    return finish(proposals, refused, repeat=repeated(parsed), write=parsed.write)


def newest_results(runs_dir: Path) -> Path:
    """Return the results file of the newest run.

    Raises:
        MlperfError: There is none.
    """
    found = results_files(runs_dir)
    if not found:
        raise MlperfError(f"no results in {runs_dir}/runs; measure first: pytest suites")
    return found[0]


def consider(result: CaseResult, parsed: argparse.Namespace) -> Proposal | str:
    """Return what would be written for a case, or why it is refused."""
    if reason := unfit(result):
        return reason
    verdict, case = result.verdict, result.verdict.case
    assert verdict.subject is not None
    root = baselines_root(parsed.baselines, Path(result.suite), result.division)
    file = baseline_file(root, case, result.profile)
    if not parsed.baselines and (elsewhere := other_place(result, file)):
        return elsewhere
    try:
        loaded = load_checked(file, case)
    except BaselineError as error:
        return str(error)
    old = find(loaded, verdict.subject.identity) if loaded else None
    fresh = tuple(baseline_run(run) for run in verdict.runs)
    if old and old.runs == fresh:
        return "these very runs are the baseline already"
    proposal = Proposal(
        result=result,
        file=file,
        old=old,
        new=new_record(
            fresh,
            old,
            action="replace" if old else "record",
            reason=parsed.reason or "",
            subject=verdict.subject,
            target_qps=result.target_qps,
            qps_source=_source(result),
            limits=result.limits,
            rule=rule_beside(file, case.accelerator, verdict.subject.identity, USUAL_RUNS)[0],
        ),
    )
    if proposal.worse and case.id not in parsed.accept_regression:
        worse = "; ".join(_step(proposal, metric) for metric in proposal.worse)
        return f"gets worse ({worse}); to accept it: --accept-regression {shlex.quote(case.id)}"
    return proposal


def _source(result: CaseResult) -> Literal["suite", "probe"] | None:
    """Return where the rate comes from; a rate that was found is none that was offered."""
    if result.target_qps is None:
        return None
    return "probe" if result.qps_source == "probe" else "suite"


def other_place(result: CaseResult, file: Path) -> str | None:
    """Return why this is not where the session's baselines are, or None."""
    if not Path(result.suite).exists():
        return f"{result.suite} is not here: run this in the folder that the tests ran in"
    used = result.verdict.baseline_file
    if used is None or Path(used).resolve() == file.resolve():
        return None
    return f"it was judged against {used}; name that folder of baselines with --baselines"


def unfit(result: CaseResult) -> str | None:
    """Return why a result may never become a baseline, or None."""
    verdict = result.verdict
    if result.handicap or result.pretended:
        option = "--mlperf-handicap" if result.handicap else "--mlperf-pretend"
        return f"measured with {option}"
    if verdict.outcome in {Outcome.INVALID, Outcome.ERROR, Outcome.GATE_FAIL}:
        return f"{verdict.outcome} {verdict.headline}"
    if verdict.subject is None or not verdict.runs:
        return "nothing was measured"
    if result.scored and verdict.accuracy is None:
        return f'accuracy was not checked; run pytest "{result.suite}" without selecting tests'
    if len(verdict.runs) < GATING_RUNS:
        action = "missing" if verdict.outcome is Outcome.NO_BASELINE else "replace"
        more = "" if action == "missing" else ' --mlperf-reason "..."'
        return (
            f"{len(verdict.runs)} runs, a baseline needs {GATING_RUNS}; record them with: "
            f'pytest "{result.test}" --mlperf-update={action}{more}'
        )
    return None


def describe(proposal: Proposal) -> Iterable[str]:
    """Yield what would change, one line a metric."""
    yield proposal.result.verdict.case.id
    for metric in proposal.result.limits:
        if metric in proposal.new.minimum_detectable_change:
            yield f"  {_step(proposal, metric)}"
    yield f"  {len(proposal.new.runs)} runs -> {relative(proposal.file)}"


def _step(proposal: Proposal, metric: str) -> str:
    after = geometric_means(proposal.new.runs)[metric]
    before = geometric_means(proposal.old.runs).get(metric) if proposal.old else None
    if before is None:
        return f"{metric} new {quantity(metric, after)}"
    step = change(after / before - 1)
    return f"{metric} {quantity(metric, before)} -> {quantity(metric, after)} ({step})"


def repeated(parsed: argparse.Namespace) -> str:
    """Return the command that was given, without what only its writing form has."""
    words = ["pytest-mlperf", "update"]
    words += [str(parsed.results)] if parsed.results else []
    for option, values in (
        ("--case", parsed.case),
        ("--accept-regression", parsed.accept_regression),
    ):
        words += [word for value in values for word in (option, value)]
    words += ["--baselines", str(parsed.baselines)] if parsed.baselines else []
    words += ["--runs-dir", str(parsed.runs_dir)] if parsed.runs_dir != RUNS_DIR else []
    return shlex.join(words)


def finish(proposals: list[Proposal], refused: int, *, repeat: str, write: bool) -> int:
    """Write the proposals if asked to, and say what happened."""
    if write:
        for proposal in proposals:
            baselines.update(proposal.file, proposal.put)
    counts = f"{len(proposals)} to write, {refused} refused"
    if write and proposals:
        show([f"wrote {len(proposals)}, refused {refused}; review and commit: git add baselines"])
    elif proposals:
        show([f'dry run: {counts}; to write: {repeat} --write --reason "..."'])
    else:
        show([f"nothing to write, {refused} refused"])
    return 1 if refused else 0

"""`pytest-mlperf update`: accept a session as baselines; a dry run unless told to write."""

from __future__ import annotations

import argparse
import shlex
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_mlperf.case_runs import Policy
from pytest_mlperf.cli.history import RUNS_DIR, add_runs_dir, costs, results_files
from pytest_mlperf.cli.output import add_parser, complain, show
from pytest_mlperf.cli.update_cases import Kept, Terms, ToMeasure, consider
from pytest_mlperf.cli.update_proposals import Proposal
from pytest_mlperf.cli.update_runs import Session, elsewhere
from pytest_mlperf.core.errors import BaselineError, MlperfError
from pytest_mlperf.core.judge.rule_r import GATING_RUNS
from pytest_mlperf.core.results import CaseResult, Results
from pytest_mlperf.hardware.machine import detect
from pytest_mlperf.reports.layout import duration, plural
from pytest_mlperf.reports.selection import relative
from pytest_mlperf.stores.results import read_results

USUAL = Policy.baseline_runs
"""Runs of a baseline, unless pytest is set up otherwise."""


@dataclass
class Acceptance:
    """What accepting a session takes, test by test.

    Attributes:
        proposals: What is there to be written.
        wanted: What must be measured before.
        refused: Tests that are refused.
    """

    proposals: list[Proposal] = field(default_factory=list)
    wanted: list[ToMeasure] = field(default_factory=list)
    refused: int = 0

    def take(self, result: CaseResult, outcome: Proposal | ToMeasure | Kept | str) -> None:
        """Count what accepting a test takes, and show it."""
        case = result.verdict.case.id
        head = case if result.verdict.kind == "performance" else f"{case} accuracy"
        if isinstance(outcome, str):
            self.refused += 1
            show([head, f"  refused: {outcome}"])
        elif isinstance(outcome, Kept):
            show([head, f"  kept: {outcome.why}"])
        elif isinstance(outcome, ToMeasure):
            self.wanted.append(outcome)
            show([head, f"  to measure: {outcome.why}"])
        else:
            self.proposals.append(outcome)
            show([head, *outcome.lines()])


def add_command(commands: Any) -> None:
    """Register the subcommand."""
    parser = add_parser(
        commands,
        "update",
        summary="accept a session as baselines, with the runs that it lacks",
        description=(
            "Shows what accepting a session would change in the baselines; with --write\n"
            f"--reason TEXT it does. A case with fewer than {GATING_RUNS} runs is measured first,\n"
            "by pytest on exactly its tests: all runs of the baseline anew, and the scores\n"
            "of the whole data set. Cases that are ok with the build of their baseline stay\n"
            "as they are. What gets worse is only taken with --accept-regression CASE.\n"
            "Refused are slowed, pretended and invalid measurements, scores below the gate,\n"
            "and runs of another build than the session's.\n"
            "\n"
            "Exit 1 when a case was refused or the runs were interrupted (nothing is written\n"
            "then), 2 on wrong usage, 3 where pytest cannot run here."
        ),
        needs="a session's results; run it where pytest ran",
        examples=[
            ("update", "a dry run: what would be written, and what must be measured before"),
            (
                'update --write --reason "ORT 1.32, #455"',
                "measures what is missing, writes baselines/; review and commit them",
            ),
            (
                'update r.json --write --no-runs --reason "from CI"',
                "only speed that this file has enough runs of",
            ),
        ],
    )
    parser.add_argument(
        "results",
        nargs="?",
        type=Path,
        help="results.json (default: the newest in .mlperf/runs that has the cases)",
    )
    parser.add_argument("--write", action="store_true", help="write; without it nothing changes")
    parser.add_argument("--reason", help="why the values are accepted; kept in the history")
    parser.add_argument(
        "--accept-regression", action="append", default=[], metavar="CASE", help="repeatable"
    )
    parser.add_argument("--case", action="append", default=[], metavar="CASE", help="only these")
    parser.add_argument(
        "--runs",
        type=_runs,
        metavar="N",
        help=f"runs of a measured baseline, from {GATING_RUNS} (default: pytest's, {USUAL})",
    )
    parser.add_argument(
        "--no-runs",
        action="store_true",
        help="measure nothing: only cases with enough runs, and no scores",
    )
    parser.add_argument("--baselines", type=Path, help="folder (default: nearest to the suite)")
    add_runs_dir(parser)
    parser.set_defaults(run=run)


def _runs(text: str) -> int:
    runs = int(text)
    if not GATING_RUNS <= runs <= 1000:
        raise argparse.ArgumentTypeError(f"from {GATING_RUNS} to 1000")
    return runs


def run(parsed: argparse.Namespace) -> int:
    """Show, and with --write accept, what a results file holds.

    Returns:
        0 when every named case was acceptable, 1 when one was refused.

    Raises:
        MlperfError: The file is unreadable, an argument is missing or unknown, or pytest does not
            take its arguments.
        EnvironmentFault: Pytest cannot run here.
    """
    if parsed.write and not (parsed.reason or "").strip(" ."):
        raise MlperfError('update --write needs --reason "why these values are accepted"')
    names = [*parsed.case, *parsed.accept_regression]
    path = parsed.results or newest_results(parsed.runs_dir, names)
    results = read_results(path)
    terms = Terms(
        baselines=parsed.baselines,
        reason=parsed.reason or "",
        regressions=frozenset(parsed.accept_regression),
        chosen=frozenset(parsed.case),
        measure=not parsed.no_runs,
    )
    _check_names(path, results, names)
    show([f"from {path}, run {results.run}"])
    acceptance = _considered(results, terms)
    if parsed.write and acceptance.wanted:
        session = Session(terms=terms, runs_dir=parsed.runs_dir, runs=parsed.runs)
        try:
            _measure(acceptance, session)
        except KeyboardInterrupt:
            complain("interrupted; nothing was written")
            return 1
    missing = _missing(path, results, acceptance.wanted, parsed.runs or USUAL)
    return _finish(acceptance, missing, repeat=repeated(parsed), write=parsed.write)


def _check_names(path: Path, results: Results, names: Sequence[str]) -> None:
    ids = {result.verdict.case.id for result in results.cases}
    for name in names:
        if name not in ids:
            raise MlperfError(f"{path} has no case {name!r}; it has: {', '.join(sorted(ids))}")


def newest_results(runs_dir: Path, names: Collection[str]) -> Path:
    """Return the results file of the newest run, of those that have all named cases.

    Where none has, the newest one. The runs that this command made are a session, too, of some of
    the cases only.

    Raises:
        MlperfError: There is none.
    """
    files = results_files(runs_dir)
    if not files:
        raise MlperfError(
            f"no results in {runs_dir}/runs: measure first (pytest suites), or run this in "
            "pytest's root folder, where it keeps them"
        )
    if not names:
        return files[0]
    wanted = set(names)
    return next((file for file in files if wanted <= _ids(file)), files[0])


def _ids(file: Path) -> set[str]:
    """Return the cases of a results file; none of one that cannot be read."""
    try:
        return {result.verdict.case.id for result in read_results(file).cases}
    except MlperfError:
        return set()


def _considered(results: Results, terms: Terms) -> Acceptance:
    """Return what accepting each test takes, after showing it."""
    acceptance = Acceptance()
    kinds = {"performance", "accuracy"} if terms.measure else {"performance"}
    energy = {
        (result.suite, result.verdict.case): result
        for result in results.cases
        if result.verdict.kind == "efficiency"
    }
    # Several Python tests may share a case, and with it one baseline.
    cases = {(one.suite, one.verdict.kind, one.verdict.case): one for one in results.cases}
    for result in cases.values():
        case = result.verdict.case
        if result.verdict.kind in kinds and (not terms.chosen or case.id in terms.chosen):
            try:
                outcome = consider(result, terms, energy.get((result.suite, case)))
            except BaselineError as error:
                acceptance.take(result, str(error))
            else:
                acceptance.take(result, _here(outcome))
    return acceptance


def _here(outcome: Proposal | ToMeasure | Kept) -> Proposal | ToMeasure | Kept | str:
    """Return what must be measured only where this machine can."""
    if not isinstance(outcome, ToMeasure):
        return outcome
    machine = detect(gpus=outcome.result.verdict.case.accelerator != "cpu")
    return elsewhere(outcome, machine) or outcome


def _measure(acceptance: Acceptance, session: Session) -> None:
    """Make the runs that are missing, and count what came of them."""
    show([f"measuring {plural(len(acceptance.wanted), 'test')}; nothing else should run here"])
    wanted, acceptance.wanted = acceptance.wanted, []
    for one, outcome in session.measure(wanted):
        acceptance.take(one.result, str(outcome) if isinstance(outcome, BaselineError) else outcome)


def _missing(path: Path, results: Results, wanted: Sequence[ToMeasure], runs: int) -> str:
    """Return what must be measured first and how long it takes, by what the session's runs took."""
    if not wanted:
        return ""
    tests: dict[tuple[str, str], set[str]] = defaultdict(set)
    for result in (one.result for one in wanted):
        tests[result.verdict.case.id, result.profile].add(result.verdict.kind)
    spent = costs([(path, results)])
    seconds = [
        spent[case].at_most_s(runs if "performance" in kinds else 1)
        for case, kinds in tests.items()
        if case in spent
    ]
    about = f", about {duration(sum(seconds))}" if len(seconds) == len(tests) else ""
    return f"{len(wanted)} to measure first ({runs} runs a case{about}), "


def repeated(parsed: argparse.Namespace) -> str:
    """Return the command that was given, without what only its writing form has."""
    words = ["pytest-mlperf", "update"]
    words += [str(parsed.results)] if parsed.results else []
    for option, values in (
        ("--case", parsed.case),
        ("--accept-regression", parsed.accept_regression),
    ):
        words += [word for value in values for word in (option, value)]
    words += ["--runs", str(parsed.runs)] if parsed.runs else []
    words += ["--no-runs"] if parsed.no_runs else []
    words += ["--baselines", str(parsed.baselines)] if parsed.baselines else []
    words += ["--runs-dir", str(parsed.runs_dir)] if parsed.runs_dir != RUNS_DIR else []
    return shlex.join(words)


def _write(acceptance: Acceptance) -> list[Proposal]:
    """Write the proposals, each by itself, and return those that were written."""
    written = []
    for proposal in acceptance.proposals:
        try:
            proposal.write()
        except BaselineError as error:
            acceptance.take(proposal.result, str(error))
        else:
            written.append(proposal)
    return written


def _finish(acceptance: Acceptance, missing: str, *, repeat: str, write: bool) -> int:
    """Write the proposals if asked to, and say what happened."""
    if write and acceptance.proposals:
        written = _write(acceptance)
        folders = shlex.join(sorted({relative(one.folder) for one in written}))
        commit = f"; review and commit: git add {folders}" if written else ""
        show([f"wrote {len(written)}, refused {acceptance.refused}{commit}"])
        return 1 if acceptance.refused else 0
    count, refused = len(acceptance.proposals), acceptance.refused
    if count or missing:
        counts = f"{count} to write, {missing}{refused} refused"
        show([f'dry run: {counts}; to write: {repeat} --write --reason "..."'])
    else:
        show([f"nothing to write, {refused} refused"])
    return 1 if refused else 0

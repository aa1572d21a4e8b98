"""`pytest-mlperf update`: accept a session as baselines; a dry run without --write."""

from __future__ import annotations

import argparse
import contextlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from pytest_mlperf.bench.policy import Policy
from pytest_mlperf.cli import stored_results
from pytest_mlperf.cli.arguments import REPEATABLE, add, again
from pytest_mlperf.cli.output import integer_type, show
from pytest_mlperf.cli.update._proposals import (
    COPY,
    AccuracyProposal,
    Kept,
    PerformanceProposal,
    Proposal,
    Terms,
    ToMeasure,
    proposal_for,
    record_command,
    recorded,
    require_accepted,
    require_fit,
    scores_file,
)
from pytest_mlperf.core.baseline import differences
from pytest_mlperf.core.case import Case, Kind
from pytest_mlperf.core.errors import BaselineError, EnvironmentFault, MlperfError
from pytest_mlperf.core.numbers import MAX_RUNS, duration, plural
from pytest_mlperf.core.recording import changes
from pytest_mlperf.core.results import CaseResult, Results
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.hardware.machine import Machine, detect
from pytest_mlperf.judge.rule_r import GATING_RUNS
from pytest_mlperf.reports.costs import costs
from pytest_mlperf.reports.sentences import first_line, sentence
from pytest_mlperf.reports.terminal.layout import relative
from pytest_mlperf.reports.terminal.selection import idle_in_words
from pytest_mlperf.run.project import is_tracked
from pytest_mlperf.stores import accuracy_baselines
from pytest_mlperf.stores.results import digest_of, read_results
from pytest_mlperf.stores.sessions import Sessions

REPEATED = re.compile(
    r"--mlperf-(profile=(quick|official)|accelerator=[A-Za-z0-9._]+|power=(auto|require|off)"
    r"|timeout=[0-9.]+)|-o=mlperf_(control=(auto|off)|(lease_timeout|wait_idle)=[0-9.]+)"
)
"""Session options that new runs repeat; others are dropped, as results files are untrusted."""

PYTEST_ENVIRONMENT, PYTEST_USAGE = 3, 4
"""Exit codes of pytest: the accelerator is not here; a wrong option or test."""

EXIT_WAIT_SECONDS = 30.0
"""Maximum time for pytest to end after Ctrl-C, which the terminal also sends to it."""

Outcomes = Iterator[tuple[ToMeasure, Proposal | Kept | str]]
"""Tests with their proposals; a text is the reason for a refusal."""


def machine_mismatch(test: ToMeasure, machine: Machine) -> str | None:
    """Return why the missing runs of a test cannot be made on this machine; None if they can."""
    verdict = test.result.verdict
    assert verdict.subject is not None
    accelerator = verdict.case.accelerator
    there, command = verdict.subject.identity, record_command(test.result)
    machine = machine.with_identity(there)
    if not machine.has(accelerator):
        return (
            f"{test.reason}; {accelerator} is not on this machine; run on one that has it: "
            f"{command}"
        )
    apart = differences(there, machine.identity(accelerator))
    if not apart or verdict.kind == Kind.ACCURACY:  # scores hold on every machine
        return None
    texts = [f"{one.name} {one.theirs} there, {one.ours} here" for one in apart[:3]]
    return f"{test.reason}; measured on another machine ({', '.join(texts)}); run there: {command}"


def measure_tests(
    tests: Sequence[ToMeasure], terms: Terms, runs_dir: Path, runs: int | None
) -> Outcomes:
    """Measure the missing runs (or `runs`) of tests; yield (test, proposal or refusal text)."""
    groups: dict[tuple[Path, tuple[str, ...]], list[ToMeasure]] = defaultdict(list)
    for test in tests:
        groups[test.root, repeated(test.result.arguments)].append(test)
    for (root, arguments), group in groups.items():
        parent = stored_results.folder_in(runs_dir).resolve()
        with tempfile.TemporaryDirectory(dir=parent, prefix=COPY) as folder:
            copy, file = Path(folder) / _relative_root(root), Path(folder) / "results.json"
            _copy(root, copy)
            options = [
                "--mlperf-update=replace",
                "--mlperf-accept-regression",
                f"--mlperf-reason={terms.reason}",
                f"--mlperf-baselines={copy}",
                f"--mlperf-json={file}",
                f"--mlperf-runs-dir={runs_dir.resolve()}",
                *([f"--override-ini=mlperf_baseline_runs={runs}"] if runs else []),
            ]
            made = _made([*options, *arguments], [test.result for test in group], file)
            for test in group:
                try:
                    yield test, make_proposal(test, made.get(_key(test.result)), copy, terms)
                except BaselineError as error:
                    yield test, str(error)


def _made(
    options: Sequence[str], results: Sequence[CaseResult], file: Path
) -> Mapping[tuple[str, Kind, Case], CaseResult]:
    # The whole path of a test's file: it cannot pass for an option.
    tests = [f"{Path(one.suite).resolve()}::{one.test.partition('::')[2]}" for one in results]
    code = _run([sys.executable, "-m", "pytest", *options, *tests])
    if not file.exists() and code in {PYTEST_ENVIRONMENT, PYTEST_USAGE}:
        kind = EnvironmentFault if code == PYTEST_ENVIRONMENT else MlperfError
        raise kind(f"pytest ended with exit code {code} (output above); nothing was written")
    cases = read_results(file).cases if file.exists() else ()
    return {_key(result): result for result in cases}


def _relative_root(root: Path) -> Path:
    """Return `root` relative to the working folder; Path("elsewhere") if it is not inside."""
    here, there = Path.cwd().resolve(), root.resolve()
    inside = there != here and there.is_relative_to(here)
    return there.relative_to(here) if inside else Path("elsewhere")


def _copy(root: Path, copy: Path) -> None:
    try:
        if root.is_dir():
            shutil.copytree(root, copy, ignore=shutil.ignore_patterns(".*"))
        copy.mkdir(parents=True, exist_ok=True)
    except (OSError, shutil.Error) as error:
        raise MlperfError(f"the baselines folder {root} cannot be copied: {error}") from None


def repeated(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return those options of a session that its new runs must repeat, as OPTION=VALUE."""
    words = [one if "=" in one else f"{one}={after}" for one, after in pairwise([*arguments, ""])]
    return tuple(word for word in words if REPEATED.fullmatch(word))


def _key(result: CaseResult) -> tuple[str, Kind, Case]:
    return result.suite, result.verdict.kind, result.verdict.case


def _run(command: Sequence[str]) -> int:
    sys.stdout.flush()
    process = subprocess.Popen(command)
    try:
        return process.wait()
    except KeyboardInterrupt:
        # Pytest ends its own processes: a terminal has interrupted it already.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(EXIT_WAIT_SECONDS)
        process.terminate()
        process.wait()
        raise


def make_proposal(
    test: ToMeasure, measured_result: CaseResult | None, copy: Path, terms: Terms
) -> Proposal | Kept:
    """Return a proposal to accept new runs, or why not; BaselineError if refused or unmeasured."""
    if measured_result is None:
        raise BaselineError("pytest did not measure it; see its output above")
    require_fit(measured_result)
    old, new = test.result.verdict.subject, measured_result.verdict.subject
    assert old is not None
    assert new is not None
    if apart := changes(old.fingerprint, new.fingerprint):
        raise BaselineError(
            f"the build or its options changed since that session ({', '.join(apart[:3])}); run "
            "pytest again, then accept the new session"
        )
    if measured_result.verdict.outcome is not Outcome.RECORDED:
        if measured_result.verdict.kind == Kind.ACCURACY:
            return Kept(
                reason=f"no new scores to record: {sentence(measured_result.verdict.headline)}"
            )
        raise BaselineError(first_line(measured_result.verdict))
    if measured_result.verdict.kind == Kind.ACCURACY:
        return _scores(test, measured_result, copy, terms)
    return _speed(test, measured_result, copy, terms)


def _speed(test: ToMeasure, made: CaseResult, copy: Path, terms: Terms) -> PerformanceProposal:
    _, new = recorded(copy, made)
    if new is None:
        raise BaselineError("pytest recorded nothing: see its output above")
    file, old = recorded(test.root, made)
    proposal = PerformanceProposal(result=made, file=file, old=old, new=new, limits=test.limits)
    require_accepted(made, "; ".join(proposal.worse), terms)
    return proposal


def _scores(test: ToMeasure, made: CaseResult, copy: Path, terms: Terms) -> AccuracyProposal:
    there, file = scores_file(copy, made), scores_file(test.root, made)
    loaded = accuracy_baselines.load(there)
    if loaded is None:
        raise BaselineError("pytest recorded nothing: see its output above")
    fell = [p.metric for p in made.verdict.paired if p.outcome is Outcome.ACC_DROP]
    require_accepted(made, ", ".join(f"{metric} ACC DROP" for metric in fell), terms)
    return AccuracyProposal(
        result=made,
        file=file,
        old=accuracy_baselines.ACCURACY_DOCUMENT.load(file),
        new=loaded[0],
        scores=loaded[1],
        outputs=accuracy_baselines.load_outputs(there),
    )


USUAL_BASELINE_RUNS = Policy.baseline_runs

AGAIN = (
    *("results", "--case", "--accept-regression", "--runs", "--no-runs", "--baselines"),
    "--runs-dir",
)
"""Arguments of the dry run that the command with --write repeats."""


@dataclass
class Acceptance:
    """Collect the decisions of `update`: proposed baselines, tests to measure, number refused."""

    proposals: list[Proposal] = field(default_factory=list)
    to_measure: list[ToMeasure] = field(default_factory=list)
    refused: int = 0

    def add_decision(self, result: CaseResult, outcome: Proposal | ToMeasure | Kept | str) -> None:
        """Store and print the decision on a test; a str `outcome` is why it is refused."""
        case = result.verdict.case.id
        head = case if result.verdict.kind == Kind.PERFORMANCE else f"{case} accuracy"
        if isinstance(outcome, str):
            self.refused += 1
            show([head, f"  refused: {outcome}"])
        elif isinstance(outcome, Kept):
            show([head, f"  kept: {outcome.reason}"])
        elif isinstance(outcome, ToMeasure):
            self.to_measure.append(outcome)
            show([head, f"  to measure: {outcome.reason}"])
        else:
            self.proposals.append(outcome)
            show([head, *outcome.lines()])


HELP = f"""\
Shows how accepting a session would change the baselines; with --write and
--reason TEXT, changes them. For a case with fewer than {GATING_RUNS} runs, pytest first
measures all runs of a new baseline, and the scores of the whole data set. A
baseline is left as it is if its case is ok and the build has not changed. Worse
values need --accept-regression CASE. Refused: INVALID results, results with
--mlperf-handicap or --mlperf-pretend, scores below the gate, and cases whose
build changed after the session.

Exit 1 if a case was refused, 2 on wrong usage, 3 if pytest cannot run. An
interruption leaves all baselines unchanged.

needs: results of a session; run it in the folder where pytest ran

examples:
  $ pytest-mlperf update
      dry run: shows what would be written, and what must be measured first
  $ pytest-mlperf update --write --reason "ORT 1.32, #455"
      measures missing runs, writes baselines/; review and commit them
  $ pytest-mlperf update r.json --write --no-runs --reason "from CI"
      only performance, and only cases with enough runs in this file
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    add(parser, "results", "--write")
    parser.add_argument("--reason", help="why the values are accepted; stored in the baseline")
    parser.add_argument(
        "--accept-regression",
        **REPEATABLE,
        metavar="CASE",
        help="accept worse values of this case: its id, or a part that matches only one case; "
        "repeatable",
    )
    add(parser, "--case", **REPEATABLE, help="accept only this case (id or part of it); repeatable")
    parser.add_argument(
        "--runs",
        type=integer_type(GATING_RUNS, MAX_RUNS),
        metavar="N",
        help=f"runs to measure for a new baseline, at least {GATING_RUNS} (default: "
        f"{USUAL_BASELINE_RUNS}, or pytest's mlperf_baseline_runs)",
    )
    parser.add_argument(
        "--no-runs",
        action="store_true",
        help="measure nothing: accept only cases with enough runs, and no scores",
    )
    add(parser, "--baselines", "--verify", "--runs-dir")


def run(parsed: argparse.Namespace) -> int:
    """Show what would be accepted (accept it with --write); return 1 if a case is refused."""
    if parsed.write and not (parsed.reason or "").strip(" ."):
        raise MlperfError('--write needs a reason: add --reason "why these values are accepted"')
    names = [*parsed.case, *parsed.accept_regression]
    path = stored_results.results_path(parsed.results, parsed.runs_dir, names)
    results, signed = stored_results.verified_results(path, parsed.verify)
    ids = [result.verdict.case.id for result in results.cases]
    cases = {name: stored_results.case_named(name, ids, f" in {path}") for name in names}
    terms = Terms(
        baselines=parsed.baselines,
        reason=parsed.reason or "",
        regressions=frozenset(cases[name] for name in parsed.accept_regression),
        chosen=frozenset(cases[name] for name in parsed.case),
        measure=not parsed.no_runs,
    )
    show([f"from {path}, run {results.run}", *signed])
    acceptance = _considered(results, terms, parsed.runs_dir)
    if parsed.write and acceptance.to_measure:
        tests, acceptance.to_measure = acceptance.to_measure, []
        show([f"measuring {plural(len(tests), 'test')}; keep the machine idle"])
        try:
            for test, outcome in measure_tests(tests, terms, parsed.runs_dir, parsed.runs):
                acceptance.add_decision(test.result, outcome)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("nothing was written") from None
    missing = _missing(path, results, acceptance.to_measure, parsed.runs or USUAL_BASELINE_RUNS)
    return _finish(acceptance, missing, repeat=again(parsed, *AGAIN), write=parsed.write)


def foreign_suite(test: ToMeasure, runs_dir: Path) -> str | None:
    """Return why the suite that a results file names is not trusted to run, or None."""
    suite, digest = test.result.suite, digest_of(Path(test.result.suite))
    if is_tracked(Path(suite)):
        return None
    for _, results in Sessions(runs_dir):
        if any(digest and case.rests_on.get(suite) == digest for case in results.cases):
            return None
    return (
        f"{test.reason}; {suite} is not run, because git does not track it and no session in "
        f"{runs_dir} used this version; run: git add {suite}, or use --no-runs"
    )


def _considered(results: Results, terms: Terms, runs_dir: Path) -> Acceptance:
    acceptance = Acceptance()
    kinds = {Kind.PERFORMANCE, Kind.ACCURACY} if terms.measure else {Kind.PERFORMANCE}
    energy = {
        (result.suite, result.verdict.case): result
        for result in results.cases
        if result.verdict.kind == Kind.EFFICIENCY
    }
    # Several Python tests may share a case, and with it one baseline.
    cases = {(one.suite, one.verdict.kind, one.verdict.case): one for one in results.cases}
    for result in cases.values():
        case = result.verdict.case
        if result.verdict.kind in kinds and (not terms.chosen or case.id in terms.chosen):
            outcome: Proposal | ToMeasure | Kept | str
            try:
                outcome = proposal_for(result, terms, energy.get((result.suite, case)))
                if isinstance(outcome, ToMeasure):
                    machine = detect(gpus=case.accelerator != "cpu")
                    refusal = machine_mismatch(outcome, machine) or foreign_suite(outcome, runs_dir)
                    outcome = refusal or outcome
            except BaselineError as error:
                outcome = str(error)
            acceptance.add_decision(result, outcome)
    return acceptance


def _missing(path: Path, results: Results, tests: Sequence[ToMeasure], runs: int) -> str:
    if not tests:
        return ""
    kinds: dict[tuple[str, str], set[str]] = defaultdict(set)
    for result in (one.result for one in tests):
        kinds[result.verdict.case.id, result.profile].add(result.verdict.kind)
    spent = costs([(path, results)])
    seconds = [
        spent[case].at_most_s(runs if Kind.PERFORMANCE in of_case else 1)
        for case, of_case in kinds.items()
        if case in spent
    ]
    all_timed = len(seconds) == len(kinds)
    about = f", about {duration(sum(seconds))}{idle_in_words()}" if all_timed else ""
    return f"{len(tests)} to measure first ({runs} runs per case{about}), "


def _finish(acceptance: Acceptance, missing: str, *, repeat: str, write: bool) -> int:
    if write and acceptance.proposals:
        written = []
        for proposal in acceptance.proposals:
            try:
                proposal.write()
            except BaselineError as error:
                acceptance.add_decision(proposal.result, str(error))
            else:
                written.append(proposal)
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

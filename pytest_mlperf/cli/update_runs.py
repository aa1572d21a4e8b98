"""Make the runs that a session has too few of, by pytest, on exactly these tests.

Every run of a baseline is made anew and in one session: one or two runs of another day would be of
another state of the machine. Pytest records into a copy of the baselines, so that nothing is
written before it is known that the build is the accepted session's and what got worse.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from pytest_mlperf.case_runs import baseline_file, load_checked
from pytest_mlperf.cli.update_cases import (
    COPY,
    Kept,
    Terms,
    ToMeasure,
    division_root,
    recording,
    require_accepted,
    scores_file,
    unfit,
)
from pytest_mlperf.cli.update_proposals import AccuracyProposal, PerformanceProposal, Proposal
from pytest_mlperf.core.baseline import differences, find
from pytest_mlperf.core.case import Case, Kind
from pytest_mlperf.core.errors import BaselineError, EnvironmentFault, MlperfError
from pytest_mlperf.core.recording import changes
from pytest_mlperf.core.results import CaseResult
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.hardware.machine import Machine
from pytest_mlperf.run.folders import ignored_in_git
from pytest_mlperf.stores import accuracy_baselines
from pytest_mlperf.stores.results import read_results

REPEATED = re.compile(
    r"--mlperf-(profile=(quick|official)|accelerator=[A-Za-z0-9._]+|power=(auto|require|off)"
    r"|control=(auto|off)|timeout=[0-9.]+|lease-timeout=[0-9.]+)"
)
"""Options of the session that are given again; a results file may be from elsewhere."""

PYTEST_ENVIRONMENT, PYTEST_USAGE = 3, 4
"""Exit codes of pytest: the accelerator is not here; a wrong option or test."""

ENDS_WITHIN_S = 30.0
"""Pytest has so long to end after an interruption that the terminal sent to it as well."""

Outcomes = Iterator[tuple[ToMeasure, Proposal | Kept | BaselineError]]


def elsewhere(wanted: ToMeasure, machine: Machine) -> str | None:
    """Return why the runs of a test cannot be made on this machine, or None."""
    verdict = wanted.result.verdict
    assert verdict.subject is not None
    accelerator = verdict.case.accelerator
    there, command = verdict.subject.identity, recording(wanted.result)
    if not machine.has(accelerator):
        return f"{wanted.why}, and {accelerator} is not here; where it is: {command}"
    apart = differences(there, machine.identity(accelerator))
    if not apart or verdict.kind == "accuracy":  # scores hold on every machine
        return None
    shown = ", ".join(f"{one.name} {one.theirs} there, {one.ours} here" for one in apart[:3])
    return f"{wanted.why}, and it was measured on another machine ({shown}); there: {command}"


@dataclass(frozen=True, kw_only=True)
class Session:
    """What all runs share.

    Attributes:
        terms: On which terms values are accepted.
        runs_dir: Folder of results and logs.
        runs: Of each baseline; None: as pytest is set up.
    """

    terms: Terms
    runs_dir: Path
    runs: int | None

    def measure(self, wanted: Sequence[ToMeasure]) -> Outcomes:
        """Make the runs, and yield what accepting them would write, or why they are refused.

        Raises:
            KeyboardInterrupt: The user ended it; nothing was written.
            EnvironmentFault: Pytest lacks what it needs here.
            MlperfError: Pytest did not take its arguments, or a file cannot be written.
        """
        groups: dict[tuple[Path, tuple[str, ...]], list[ToMeasure]] = defaultdict(list)
        for one in wanted:
            groups[one.root, repeated(one.result.arguments)].append(one)
        for (root, arguments), group in groups.items():
            yield from self._session(root, arguments, group)

    def _session(
        self, root: Path, arguments: Sequence[str], group: Sequence[ToMeasure]
    ) -> Outcomes:
        with _beside(self.runs_dir) as folder:
            copy, file = Path(folder) / _place(root), Path(folder) / "results.json"
            _copy(root, copy)
            tests = [_node(one.result) for one in group]
            code = _run([*self._command(copy, file), *arguments, *tests])
            if not file.exists() and code in {PYTEST_ENVIRONMENT, PYTEST_USAGE}:
                kind = EnvironmentFault if code == PYTEST_ENVIRONMENT else MlperfError
                raise kind(f"pytest ended with exit code {code}, see above; nothing was written")
            cases = read_results(file).cases if file.exists() else ()
            made = {_key(result): result for result in cases}
            for one in group:
                try:
                    yield one, taken(one, made.get(_key(one.result)), copy, self.terms)
                except BaselineError as error:
                    yield one, error

    def _command(self, copy: Path, file: Path) -> list[str]:
        return [
            *(sys.executable, "-m", "pytest", "--mlperf-update=replace"),
            f"--mlperf-reason={self.terms.reason}",
            f"--mlperf-baselines={copy}",
            f"--mlperf-json={file}",
            f"--mlperf-runs-dir={self.runs_dir.resolve()}",
            *([f"--mlperf-baseline-runs={self.runs}"] if self.runs else []),
        ]


def _beside(runs_dir: Path) -> tempfile.TemporaryDirectory[str]:
    """Return a folder for the copy that git ignores."""
    try:
        parent = ignored_in_git(runs_dir).resolve()
        return tempfile.TemporaryDirectory(dir=parent, prefix=COPY)
    except OSError as error:
        raise MlperfError(f"{runs_dir} cannot be written: {error.strerror}") from None


def _place(root: Path) -> Path:
    """Return where a copy lies in its folder: there results still say whose copy it was."""
    here, there = Path.cwd().resolve(), root.resolve()
    inside = there != here and there.is_relative_to(here)
    return there.relative_to(here) if inside else Path("elsewhere")


def _copy(root: Path, copy: Path) -> None:
    """Copy the baselines, for rates and references that the runs need."""
    try:
        if root.is_dir():
            shutil.copytree(root, copy, ignore=shutil.ignore_patterns(".*", "published"))
        copy.mkdir(parents=True, exist_ok=True)
    except (OSError, shutil.Error) as error:
        raise MlperfError(f"{root} cannot be copied: {error}") from None


def repeated(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the session's options that the runs need, each as one word."""
    words = [one if "=" in one else f"{one}={after}" for one, after in pairwise([*arguments, ""])]
    return tuple(word for word in words if REPEATED.fullmatch(word))


def _node(result: CaseResult) -> str:
    """Return a test's node id with its file's whole path: it cannot pass for an option."""
    return f"{Path(result.suite).resolve()}::{result.test.partition('::')[2]}"


def _key(result: CaseResult) -> tuple[str, Kind, Case]:
    return result.suite, result.verdict.kind, result.verdict.case


def _run(command: Sequence[str]) -> int:
    """Run pytest, which prints for itself, and return its exit code.

    Raises:
        KeyboardInterrupt: The user ended it; pytest has ended, too.
    """
    sys.stdout.flush()
    process = subprocess.Popen(command)
    try:
        return process.wait()
    except KeyboardInterrupt:
        _end(process)
        raise


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let pytest end its own processes: a terminal has interrupted it already."""
    try:
        process.wait(ENDS_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.terminate()
        process.wait()


# --- what was measured -----------------------------------------------------------------------


def taken(one: ToMeasure, made: CaseResult | None, copy: Path, terms: Terms) -> Proposal | Kept:
    """Return what accepting new runs would write.

    Raises:
        BaselineError: They are refused; the message says why.
    """
    if made is None:
        raise BaselineError("pytest did not measure it: see above what it says")
    if why := unfit(made):
        raise BaselineError(why)
    _require_same_build(one.result, made)
    if made.verdict.outcome is not Outcome.RECORDED:
        if made.verdict.kind == "accuracy":
            return Kept(why=f"no scores to keep: {made.verdict.headline}")
        raise BaselineError(f"{made.verdict.outcome} {made.verdict.headline}")
    if made.verdict.kind == "accuracy":
        return _scores(one, made, copy, terms)
    return _speed(one, made, copy, terms)


def _require_same_build(before: CaseResult, made: CaseResult) -> None:
    """Refuse runs of another build or machine than the session that is accepted.

    Raises:
        BaselineError: They are.
    """
    subjects = before.verdict.subject, made.verdict.subject
    assert subjects[0] is not None
    assert subjects[1] is not None
    apart = changes(subjects[0].fingerprint, subjects[1].fingerprint)
    if apart:
        raise BaselineError(
            f"changed since that session: {', '.join(apart[:3])}; run pytest again, look at its "
            "verdict, and accept that session"
        )


def _speed(one: ToMeasure, made: CaseResult, copy: Path, terms: Terms) -> PerformanceProposal:
    case, subject = made.verdict.case, made.verdict.subject
    assert subject is not None
    there = baseline_file(division_root(copy, made), case, made.profile)
    file = baseline_file(division_root(one.root, made), case, made.profile)
    recorded, loaded = load_checked(there, case), load_checked(file, case)
    new = find(recorded, subject.identity) if recorded else None
    if new is None:
        raise BaselineError("pytest recorded nothing: see above what it says")
    old = find(loaded, subject.identity) if loaded else None
    proposal = PerformanceProposal(result=made, file=file, old=old, new=new, limits=one.limits)
    require_accepted(made, "; ".join(proposal.worse), terms)
    return proposal


def _scores(one: ToMeasure, made: CaseResult, copy: Path, terms: Terms) -> AccuracyProposal:
    there, file = scores_file(copy, made), scores_file(one.root, made)
    loaded = accuracy_baselines.load(there)
    if loaded is None:
        raise BaselineError("pytest recorded nothing: see above what it says")
    fell = [p.metric for p in made.verdict.paired if p.outcome is Outcome.ACC_DROP]
    require_accepted(made, ", ".join(f"{metric} ACC DROP" for metric in fell), terms)
    return AccuracyProposal(
        result=made,
        file=file,
        old=accuracy_baselines.FILE.load(file),
        new=loaded[0],
        scores=loaded[1],
        outputs=accuracy_baselines.load_outputs(there),
    )

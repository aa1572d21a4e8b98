"""Baselines of a named machine for everybody: with the sessions that they rest on, checkable.

A folder holds `machine.json`, the records of one machine below `baselines/`, the results of the
sessions that made their runs below `sessions/`, and their suites below `project/`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from pytest_mlperf.bench.files import case_of
from pytest_mlperf.core.baseline import SESSIONS, Baseline, BaselineRun, Record, differences
from pytest_mlperf.core.errors import BaselineError, MlperfError
from pytest_mlperf.core.foreign_text import json_text
from pytest_mlperf.core.judge.rule_r import GATING_RUNS, RuleR
from pytest_mlperf.core.measurement import Run
from pytest_mlperf.core.recording import baseline_run, new_record
from pytest_mlperf.core.results import LABEL, CaseResult, Results
from pytest_mlperf.run.project import CHANGED
from pytest_mlperf.stores import baselines
from pytest_mlperf.stores.foreign import (
    UnfitError,
    as_document,
    read_foreign,
    read_regular,
    shape_of,
)
from pytest_mlperf.stores.results import as_text, read_whole

SCHEMA: Literal[1] = 1
TITLE = "description of a contributed machine"
MACHINE, RECORDS, RAN, PROJECT = "machine.json", "baselines", "sessions", "project"

REASON = "contributed"

LARGEST = 64 * 2**20
"""Bytes of any file of a contribution."""

Lookup = Callable[[str], Results | None]
"""Gives the results of a session by its id; None: they are not here."""


@dataclass(frozen=True, kw_only=True)
class ContributedMachine:
    """What `machine.json` says.

    Attributes:
        name: What others can rent or buy by: "AWS p5.48xlarge", "DGX H200".
        by: Who measured.
        source: Where the measured project is, a URL; "": nowhere that all can see.
        files: SHA-256 of every other file, by its path in the folder.
        label: How MLCommons wants such figures to be labelled.
    """

    schema: int = SCHEMA
    name: str
    by: str
    source: str = ""
    files: Mapping[str, str]
    label: str = LABEL

    def __post_init__(self) -> None:
        for key in ("name", "by"):
            if not getattr(self, key).strip():
                raise ValueError(f"{key} is empty")


_SHAPE = shape_of(ContributedMachine)


@dataclass(frozen=True, kw_only=True)
class Proven:
    """A record of a baseline with what it rests on.

    Attributes:
        record: What its sessions make of it: runs, fingerprint and rate are theirs; what was learnt
            elsewhere, and earlier acceptances, are left out.
    """

    path: Path
    baseline: Baseline
    record: Record
    sessions: tuple[Results, ...]

    @property
    def results(self) -> Iterator[tuple[Results, CaseResult]]:
        """The tests that measured its runs."""
        for session in self.sessions:
            for result in session.cases:
                if _is_of(result, self.baseline):
                    yield session, result


def slug(name: str) -> str:
    """Return a machine's name as the name of a folder: "aws-p5.48xlarge"."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.")


def prove(path: Path, baseline: Baseline, record: Record, lookup: Lookup) -> Proven:
    """Return a record with the sessions of its runs.

    Raises:
        BaselineError: One is not here, or did not measure what the record says; too few runs or
            sessions; code that nobody can check out; random weights.
    """
    if len(record.runs) < GATING_RUNS or len(record.sessions) < SESSIONS:
        raise BaselineError(
            f"{len(record.runs)} runs of {len(record.sessions)} sessions; others need at least "
            f"{GATING_RUNS} of {SESSIONS} to judge by"
        )
    if record.fingerprint.get("engine.weights") == "dummy":
        raise BaselineError("its weights are random")
    sessions = []
    for name in record.sessions:
        session = lookup(name)
        if session is None:
            raise BaselineError(f"the results of its session {name} are not here")
        sessions.append(session)
    proven = Proven(path=path, baseline=baseline, record=record, sessions=tuple(sessions))
    measured = [_measured(run, proven) for run in record.runs]
    newest = measured[-1][0]
    assert newest.verdict.subject is not None
    made = new_record(
        [baseline_run(run) for _, run in measured],
        None,
        action="record",
        reason=REASON,
        subject=newest.verdict.subject,
        target_qps=newest.target_qps,
        qps_source="suite" if newest.qps_source == "suite" else "probe",
        limits=newest.limits,
        rule=RuleR(),
    )
    return replace(proven, record=made)


def _measured(run: BaselineRun, proven: Proven) -> tuple[CaseResult, Run]:
    """Return the test that made a run, and the run as it is in the results."""
    if run.commit is None or run.commit.endswith(CHANGED):
        raise BaselineError(f"a run of session {run.session} is of no commit: {run.commit}")
    for session, result in proven.results:
        if session.run != run.session:
            continue
        subject = result.verdict.subject
        if result.handicap or result.pretended or subject is None:
            continue
        if differences(subject.identity, proven.record.identity):
            continue
        for one in result.verdict.runs:
            values = (one.metrics.get(name) == value for name, value in run.metrics.items())
            if one.started == run.started and all(values):
                return result, one
    raise BaselineError(f"session {run.session} has no run of {run.started} with its values")


def _is_of(result: CaseResult, baseline: Baseline) -> bool:
    return (
        result.verdict.kind == "performance"
        and result.verdict.case == case_of(baseline)
        and result.profile == baseline.profile
    )


# --- making one ------------------------------------------------------------------------------


def contents(
    proven: Sequence[Proven], root: Path, *, name: str, by: str, source: str
) -> dict[str, bytes]:
    """Return the files of a contribution, by their path in it.

    Of each session only the tests of these baselines are in it.

    Args:
        root: The folder that the paths of suites begin at.

    Raises:
        MlperfError: A suite is not here as it was measured.
    """
    files: dict[str, bytes] = {}
    for one in proven:
        alone = replace(one.baseline, records=(one.record,))
        files[f"{RECORDS}/{place_of(one.path)}"] = baselines.FILE.written(alone)
    tests = {id(result) for one in proven for _, result in one.results}
    for session in {s.run: s for one in proven for s in one.sessions}.values():
        measured = tuple(result for result in session.cases if id(result) in tests)
        kept = replace(session, cases=measured, skipped={}, deselected={})
        files[f"{RAN}/{session.run}.json"] = as_text(kept).encode()
    for suite, digest in _suites(proven).items():
        files[f"{PROJECT}/{suite}"] = _suite(root / suite, digest)
    digests = {path: hashlib.sha256(content).hexdigest() for path, content in files.items()}
    machine = ContributedMachine(name=name, by=by, source=source, files=digests)
    text = json_text(asdict(machine))
    return {MACHINE: f"{text}\n".encode(), **files}


def place_of(path: Path) -> Path:
    """Return ACCELERATOR/PROFILE/WORKLOAD/CASE.json of a baseline's path."""
    return Path(*path.parts[-4:])


def _suites(proven: Sequence[Proven]) -> dict[str, str]:
    """Return the digest of each suite in its newest session."""
    digests: dict[str, tuple[str, str]] = {}
    for session, result in (pair for one in proven for pair in one.results):
        suite = Path(result.suite)
        if suite.is_absolute() or ".." in suite.parts:
            raise MlperfError(f"session {session.run}: suite {result.suite!r} leads elsewhere")
        newest = session.started, result.rests_on.get(result.suite, "")
        digests[result.suite] = max(digests.get(result.suite, ("", "")), newest)
    return {suite: digest for suite, (_, digest) in digests.items()}


def _suite(path: Path, digest: str) -> bytes:
    try:
        content = read_regular(path, LARGEST)
    except (OSError, UnfitError) as error:
        raise MlperfError(
            f"{path}: the suite cannot be read ({error}); run this in its project"
        ) from None
    if hashlib.sha256(content).hexdigest() != digest:
        raise MlperfError(
            f"{path}: changed since it was measured; check out the commit of the newest session"
        )
    return content


# --- checking one ----------------------------------------------------------------------------


def read_machine(folder: Path) -> ContributedMachine:
    """Read `machine.json`; what is none is an MlperfError."""
    path = folder / MACHINE
    cure = "pytest-mlperf contribute writes one"
    return as_document(path, read_foreign(path, TITLE), TITLE, _SHAPE, SCHEMA, cure)


def faults(folder: Path) -> Iterator[str]:
    """Yield what is wrong with a contribution: another file than described, or nothing proves it.

    Raises:
        MlperfError: It has no description.
    """
    machine = read_machine(folder)
    there = {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_symlink() or not path.is_dir()
    }
    yield from (f"{name}: not in {MACHINE}" for name in sorted(there - {MACHINE, *machine.files}))
    yield from (f"{name}: missing" for name in sorted(machine.files.keys() - there))
    for name in sorted(there & machine.files.keys()):
        if _digest(folder / name) != machine.files[name]:
            yield f"{name}: not as {MACHINE} says"
    for path in sorted((folder / RECORDS).rglob("*.json")):
        try:
            baseline = baselines.load(path)
            assert baseline is not None
            for record in baseline.records:
                proven = prove(path, baseline, record, lambda run: _session(folder, run))
                yield from _otherwise(path.relative_to(folder), record, proven, machine)
        except MlperfError as error:
            yield f"{path.relative_to(folder)}: {error}"


def _otherwise(
    name: Path, record: Record, proven: Proven, machine: ContributedMachine
) -> Iterator[str]:
    """Yield what a record says that its sessions do not, and suites that they did not run."""
    for key in Record.__dataclass_fields__:
        if getattr(record, key) != getattr(proven.record, key):
            yield f"{name}: {key} is not what its sessions make of it"
    for suite, digest in _suites([proven]).items():
        if machine.files.get(f"{PROJECT}/{suite}") != digest:
            yield f"{PROJECT}/{suite}: not the suite that was measured"


def _session(folder: Path, run: str) -> Results | None:
    path = folder / RAN / f"{run}.json"
    return read_whole(path) if path.is_file() and path.parent == folder / RAN else None


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(read_regular(path, LARGEST)).hexdigest()
    except (OSError, UnfitError):
        return ""

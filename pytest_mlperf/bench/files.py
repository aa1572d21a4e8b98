"""Find baseline files, and read their earlier versions from git."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any

from pytest_mlperf.bench.case import baseline_file, load_checked
from pytest_mlperf.core.baseline import Baseline, Record, differences, find_record, geometric_means
from pytest_mlperf.core.case import Case
from pytest_mlperf.core.errors import BaselineError
from pytest_mlperf.core.recording import acceptance_text
from pytest_mlperf.core.results import CaseResult
from pytest_mlperf.core.trend import TrendPoint, distinct, version_labels
from pytest_mlperf.core.verdict import Verdict
from pytest_mlperf.run.project import git, git_text
from pytest_mlperf.stores import baselines
from pytest_mlperf.stores.foreign import MAX_PART_BYTES


def judged_against(result: CaseResult, folders: Iterable[Path]) -> Path | None:
    """Return the baseline file of a performance or energy verdict, or None if it does not exist.

    Results may be untrusted, so the recorded path must end like the path of this case's baseline.
    """
    verdict = result.verdict
    if not verdict.kind.compares_runs or not verdict.baseline.file:
        return None
    named = Path(verdict.baseline.file)
    end = baseline_file(Path(), verdict.case, result.profile).parts
    if named.parts[-len(end) :] != end or ".." in named.parts:
        return None
    file = _first_of(folders, named)
    return file if file and file.stat().st_size <= MAX_PART_BYTES else None


def suite_of(result: CaseResult, folders: Iterable[Path]) -> Path | None:
    """Return the suite file of a test if one of the folders contains it, else None."""
    named = Path(result.test.partition("::")[0])
    return None if named.is_absolute() or ".." in named.parts else _first_of(folders, named)


def _first_of(folders: Iterable[Path], named: Path) -> Path | None:
    try:
        return next((folder / named for folder in folders if (folder / named).is_file()), None)
    except (OSError, ValueError):  # a name that is too long, or contains a 0 byte
        return None


def tracked_baselines() -> Iterator[tuple[Path, Case]]:
    """Yield each performance baseline that git tracks in the working folder, with its case."""
    for file in map(Path, git_text("ls-files", "-z", "--", "*.json").split("\0")):
        loaded = None
        with contextlib.suppress(BaselineError):
            loaded = baselines.load(file) if baselines.is_baseline_path(file) else None
        if loaded:
            yield file, case_of(loaded)


class JudgedBaseline:
    """Find and read the baseline file of a verdict; properties may raise BaselineError."""

    def __init__(self, result: CaseResult, folders: Iterable[Path]) -> None:
        self._verdict = result.verdict
        self.file = judged_against(result, folders)

    @cached_property
    def record(self) -> Record | None:
        """Baseline record of the verdict's machine, or None."""
        subject = self._verdict.subject
        loaded = load_checked(self.file, self._verdict.case) if self.file and subject else None
        return find_record(loaded, subject.identity) if subject else None

    @property
    def was_replaced(self) -> bool:
        """Whether another baseline was accepted after the verdict."""
        source = self._verdict.baseline.source
        return bool(self.record and source and acceptance_text(self.record.history) != source)

    @property
    def versions(self) -> list[tuple[str, str]]:
        """(day, engine version) of each acceptance on this machine, from git history."""
        if self.file is None or self.record is None:
            return []
        identity = self.record.identity
        points = [
            point
            for point in points_of(self.file, [])
            if point.fingerprint and not differences(point.identity, identity)
        ]
        marks = [("", ""), *zip((p.date for p in points), version_labels(points), strict=True)]
        return [after for before, after in pairwise(marks) if before[1] != after[1]]


class AcceptedBaselines(Sequence[TrendPoint]):
    """Read a case's accepted baselines on one machine from git, oldest first, on access."""

    def __init__(self, verdict: Verdict, root: Path) -> None:
        self._verdict, self._root = verdict, root

    @cached_property
    def _points(self) -> list[TrendPoint]:
        if not self._verdict.baseline.file or self._verdict.subject is None:
            return []
        named, identity = Path(self._verdict.baseline.file), self._verdict.subject.identity
        file = named if named.is_file() else self._root / named
        points = points_of(file, []) if file.is_file() else []
        return [point for point in points if not differences(point.identity, identity)]

    def __len__(self) -> int:
        return len(self._points)

    def __getitem__(self, index: Any) -> Any:
        return self._points[index]


NOT_COMMITTED = "not committed"
"""Commit of a point that is in the work tree only."""


def points_of(file: Path, notes: list[str]) -> list[TrendPoint]:
    """Return all accepted versions of a baseline file, from git and from the history in the file.

    They are grouped by machine, oldest first. Versions missing in git, as in a shallow clone, have
    means but no runs.
    """
    by_machine: dict[str, list[tuple[TrendPoint, Record]]] = {}
    for commit, baseline in _versions(file, notes):
        for record in baseline.records:
            point = _point(baseline, record, commit)
            machine = repr((point.case.accelerator, sorted(record.identity.items())))
            by_machine.setdefault(machine, []).append((point, record))
    points: list[TrendPoint] = []
    for made in by_machine.values():
        kept = distinct([point for point, _ in made])
        points += [*_from_history(made[-1], kept), *kept]
    return points


def _versions(file: Path, notes: list[str]) -> Iterator[tuple[str, Baseline]]:
    """Yield (commit, baseline), oldest first, uncommitted version last; add errors to `notes`."""
    if git("rev-parse", "--is-shallow-repository") == b"true\n":
        notes.append(
            "this clone is shallow, so older baselines have no runs; fetch them: git fetch "
            "--unshallow"
        )
    for commit, name in reversed(list(_commits(file))):
        try:
            yield commit, baseline_at(commit, name)
        except BaselineError as error:
            notes.append(f"left out: {error}")
    loaded = baselines.load(file)
    if loaded:
        yield NOT_COMMITTED, loaded


def _commits(file: Path) -> Iterator[tuple[str, str]]:
    """Yield (commit, file name in it) of each change of a file, newest first.

    `git log --follow` may report a new baseline as a copy of a similar one of another case, so only
    renames within one commit are followed.
    """
    name, revision = git_text("ls-files", "-z", "--full-name", "--", str(file)), "HEAD"
    while name := name.rstrip("\0"):
        top = f":(top,literal){name}"
        commits = git_text("log", "--diff-filter=AMT", "--format=%H", revision, "--", top).split()
        yield from ((commit, name) for commit in commits)
        if not commits:
            return
        revision = f"{commits[-1]}^"
        renamed = git_text(
            "show", "-M", "--diff-filter=R", "--name-status", "-z", "--format=", revision[:-1]
        )
        parts = renamed.split("\0")
        moved = dict(zip(parts[2::3], parts[1::3], strict=False))
        name = moved.get(name, "")


def _point(baseline: Baseline, record: Record, commit: str) -> TrendPoint:
    last = record.history[-1] if record.history else None
    means = geometric_means(record.runs)
    gated = [name for name in record.minimum_detectable_change if name in means]
    return TrendPoint(
        date=last.date if last else record.runs[-1].started[:10],
        commit=commit,
        reason=last.reason if last else "",
        case=case_of(baseline),
        profile=baseline.profile,
        identity=record.identity,
        fingerprint=record.fingerprint,
        rate=record.target_qps if baseline.scenario.rate_is_condition else None,
        means={name: means[name] for name in (*gated, *(n for n in means if n not in gated))},
        runs=record.runs,
    )


def _from_history(
    newest: tuple[TrendPoint, Record], kept: Sequence[TrendPoint]
) -> Iterator[TrendPoint]:
    """Yield a point without runs for each accepted baseline in the history that `kept` lacks."""
    point, record = newest
    kept_means = [one.means for one in kept]
    for entry, after in zip_longest(record.history, record.history[1:]):
        # An appended record includes the one before it.
        if entry.new in kept_means or (after is not None and after.action == "append"):
            continue
        yield replace(
            point,
            date=entry.date,
            commit="",
            reason=entry.reason,
            fingerprint={},
            rate=None,
            means=entry.new,
            runs=(),
        )


def case_of(baseline: Baseline) -> Case:
    """Return the case that a baseline file describes."""
    return Case(
        workload=baseline.workload,
        scenario=baseline.scenario,
        engine=baseline.engine,
        precision=baseline.precision,
        accelerator=baseline.accelerator,
    )


def baseline_at(commit: str, name: str) -> Baseline:
    """Read a baseline file from a commit."""
    content = git("cat-file", "blob", f"{commit}:{name}") or b""
    return baselines.BASELINE_DOCUMENT.read(content, f"{commit[:12]}:{name}")

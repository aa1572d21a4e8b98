"""The baselines that are committed at a git ref."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from pytest_mlperf.cli.measured import LOADED, Measured, Side
from pytest_mlperf.core.baseline import Baseline, Record
from pytest_mlperf.core.case import Case
from pytest_mlperf.core.errors import BaselineError, MlperfError
from pytest_mlperf.core.measurement import Run
from pytest_mlperf.reports.layout import plural
from pytest_mlperf.stores import baselines


def from_git(ref: str, folder: Path | None) -> Side:
    """Return the baselines that are committed at a ref.

    Args:
        ref: Anything that git takes for a commit.
        folder: Only below this folder of the work tree.

    Raises:
        MlperfError: There is no such commit, or it holds no baseline.
    """
    commit = commit_of(ref)
    if commit is None:
        raise MlperfError(f"{ref!r} is no commit of the git repository here")
    names = [name for name in _listed(commit) if _is_baseline(name, folder)]
    if not names:
        where = folder or "a folder called baselines"
        raise MlperfError(f"commit {ref} holds no performance baseline in {where}")
    cases: dict[str, list[Measured]] = defaultdict(list)
    notes = []
    for name in names:
        try:
            found = baseline_at(commit, name)
        except BaselineError as error:
            notes.append(f"left out: {error}")
            continue
        for record in found.records:
            one = _recorded(found, record)
            cases[one.case.id].append(one)
    return Side(
        name=f"git:{ref}: {plural(len(cases), 'baseline')} at {commit[:12]}",
        cases=cases,
        notes=tuple(notes),
    )


def commit_of(ref: str) -> str | None:
    """Return the commit that a ref names, or None."""
    if ref.startswith("-"):
        return None
    found = git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
    return found.decode().strip() if found else None


def _listed(commit: str) -> list[str]:
    found = git("ls-tree", "-r", "-z", "--name-only", "--full-tree", commit) or b""
    return [name.decode("utf-8", "surrogateescape") for name in found.split(b"\0") if name]


def _is_baseline(name: str, folder: Path | None) -> bool:
    """Whether a tracked file lies where `baselines.path_for` puts one."""
    parts = Path(name).parts
    root = parts[:-4]
    if len(parts) < 5 or parts[-3] not in {"quick", "official"} or not name.endswith(".json"):
        return False
    root = root[:-1] if root[-1] == "open" else root
    return root[-1:] == ("baselines",) if folder is None else _in_tree(folder) == root


def _in_tree(folder: Path) -> tuple[str, ...] | None:
    """Return a folder's parts below the top of the work tree."""
    top = Path(os.fsdecode((git("rev-parse", "--show-toplevel") or b"/\n").removesuffix(b"\n")))
    resolved = folder.resolve()
    return resolved.relative_to(top).parts if resolved.is_relative_to(top) else None


def baseline_at(commit: str, name: str) -> Baseline:
    """Return a committed baseline file.

    Raises:
        BaselineError: It is damaged, or of a newer release.
    """
    content = git("cat-file", "blob", f"{commit}:{name}") or b""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "baseline.json"
        file.write_bytes(content)
        try:
            found = baselines.load(file)
        except BaselineError as error:
            reason = str(error).removeprefix(f"{file}: ").partition(". Restore it")[0]
            raise BaselineError(f"{commit[:12]}:{name}: {reason}") from None
    assert found is not None
    return found


def _recorded(file: Baseline, record: Record) -> Measured:
    case = Case(
        workload=file.workload,
        scenario=file.scenario,  # type: ignore[arg-type]
        engine=file.engine,
        precision=file.precision,
        accelerator=file.accelerator,
    )
    return Measured(
        case=case,
        profile=file.profile,
        identity=record.identity,
        fingerprint=record.fingerprint,
        surroundings=record.surroundings,
        rate=record.target_qps if case.scenario in LOADED else None,
        runs=tuple(_runs(record)),
        gated=frozenset(record.minimum_detectable_change),
    )


def _runs(record: Record) -> Iterator[Run]:
    for run in record.runs:
        yield Run(
            metrics=run.metrics,
            within_se=run.within_se,
            samples=run.samples,
            queries=run.samples,
            duration_s=run.duration_s,
            target_qps=record.target_qps or 0.0,
            session=run.session,
            started=run.started,
            commit=run.commit,
            folder="",
        )


def git(*arguments: str) -> bytes | None:
    """Return what git prints, or None where it fails or is not installed."""
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None

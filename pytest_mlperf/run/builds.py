"""Where a worker runs when that is not here: another environment, a container, a commit in git."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.suite.elsewhere import Elsewhere, baseline_elsewhere, baseline_ref, elsewhere
from pytest_mlperf.suite.plan import Planned

PACKAGE = Path(__file__).parents[1]

LABEL = "baseline-build"
"""What folders of another build carry in their names."""

GIT_S = 600.0
"""Longest time of one call of git: a checkout may fetch large files."""


@dataclass(frozen=True, kw_only=True)
class Build:
    """How a worker elsewhere is started.

    Attributes:
        python: What starts its Python; the script and its arguments are appended.
        code: Folder with a copy of this package, which its worker runs.
        title: What messages call it.
        key: The key of the suite that names it.
        baseline: It is the build of a baseline, not where every run of the case is.
        first: Folders that come first on its import path.
        last: Folders that come last on it.
        never: Folders that are taken off it.
    """

    python: Sequence[str]
    code: Path
    title: str
    key: str
    baseline: bool = False
    first: Sequence[str] = ()
    last: Sequence[str] = ()
    never: Sequence[str] = ()

    def command(self, spec: Path) -> list[str]:
        """Return the command line of a worker."""
        script = self.code / "pytest_mlperf" / "run" / "elsewhere.py"
        return [*self.python, str(script), str(spec), self.key]


@contextlib.contextmanager
def build_for(planned: Planned, folder: Path, given: Build | None) -> Iterator[Build | None]:
    """Provide where a case's worker runs; None: in this Python.

    Args:
        planned: The case.
        folder: The worker's own folder; what is put there is removed in the end.
        given: Where it runs whatever the engine entry says, or None.

    Raises:
        UnavailableError: A variable is not set, or a Python is not there.
    """
    named = None if given else elsewhere(planned)
    if named is None:
        yield given
        return
    code = folder / "code"
    try:
        _copy_package(code)
        yield _there(named, code, baseline=False)
    finally:
        shutil.rmtree(code, ignore_errors=True)


@contextlib.contextmanager
def baseline_build(planned: Planned, folder: Path) -> Iterator[Build]:
    """Provide the build that a case's `baseline_engine` names, and clean up after it.

    Args:
        planned: The case; its engine entry has a `baseline_engine`.
        folder: A fresh folder of its own; it is removed in the end.

    Raises:
        UnavailableError: A variable is not set, or a Python is not there.
        RunError: Git cannot check the ref out.
    """
    code = folder / "code"
    try:
        named, ref = baseline_elsewhere(planned), baseline_ref(planned)
        _copy_package(code)
        if ref is None:
            assert named is not None
            yield _there(named, code, baseline=True)
            return
        with _worktree(planned, ref, folder / "tree") as build:
            yield build(code, named)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _there(named: Elsewhere, code: Path, *, baseline: bool) -> Build:
    """Return a build in another Python; only the tested project's own folders go with it."""
    own = [entry for entry in import_path() if not _installed(entry)]
    return Build(
        python=named.command,
        code=code,
        title=named.title,
        key=named.key,
        baseline=baseline,
        last=own,
    )


def _copy_package(code: Path) -> None:
    """Copy this package, without what Python makes of it.

    A link, or a place in an environment, would not be seen in a container, or show more.

    Raises:
        RunError: The folder cannot be written.
    """
    ignore = shutil.ignore_patterns("__pycache__")
    try:
        shutil.copytree(PACKAGE, code / PACKAGE.name, ignore=ignore)
    except OSError as error:
        raise RunError("worker", f"cannot copy this package to {code}: {error}") from None


# --- git -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Tree:
    """A checked-out ref, waiting for the copy of this package."""

    folder: Path
    top: Path
    title: str
    key: str

    def __call__(self, code: Path, named: Elsewhere | None) -> Build:
        """Return the build: the ref's folders in place of today's, in this Python or in another."""
        path = import_path()
        today = [entry for entry in path if self._is_today(entry)]
        then = [self.folder / Path(entry).resolve().relative_to(self.top) for entry in today]
        first = dict.fromkeys([self.folder, self.folder / "src", *then])
        return Build(
            python=named.command if named else [sys.executable],
            code=code,
            title=f"{self.title} in {named.title}" if named else self.title,
            key=named.key if named else self.key,
            baseline=True,
            first=[str(entry) for entry in first if entry.is_dir()],
            last=[e for e in path if e not in today and not (named and _installed(e))],
            never=today,
        )

    def _is_today(self, entry: str) -> bool:
        return Path(entry).resolve().is_relative_to(self.top) and not _installed(entry)


@contextlib.contextmanager
def _worktree(planned: Planned, ref: str, folder: Path) -> Iterator[_Tree]:
    """Check a ref of the suite's repository out, and remove it afterwards.

    No hook of the repository runs.

    Raises:
        RunError: There is no git, no repository or no such ref, or it cannot be checked out.
    """
    beside = planned.path.resolve().parent
    top = Path(_git(beside, "rev-parse", "--show-toplevel")).resolve()
    commit = _git(top, "rev-parse", "--verify", "--end-of-options", f"{ref}^{{commit}}")
    _git(top, "worktree", "add", "--detach", "--quiet", str(folder), commit)
    try:
        key = f"engines[{planned.suite.engines.index(planned.engine)}].baseline_engine"
        yield _Tree(folder=folder, top=top, title=f"git {ref} ({commit[:12]})", key=key)
    finally:
        with contextlib.suppress(RunError):
            _git(top, "worktree", "remove", "--force", str(folder))


def _git(folder: Path, *arguments: str) -> str:
    """Return what git prints.

    Raises:
        RunError: There is no git, it fails, or it hangs.
    """
    command = ["git", "-C", str(folder), "-c", f"core.hooksPath={os.devnull}", *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=GIT_S, check=False, errors="replace"
        )
    except OSError as error:
        raise RunError("worker", f"git cannot be started: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise RunError("worker", f"git {arguments[0]} took longer than {GIT_S:g} s") from None
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise RunError("worker", f"git {' '.join(arguments[:2])}: {said}")
    return done.stdout.strip()


# --- import paths ----------------------------------------------------------------------------


def import_path() -> list[str]:
    """Return the folders that this Python imports from, absolute."""
    return [str(Path(entry).absolute()) for entry in sys.path]


def _installed(entry: str) -> bool:
    """Whether a folder of the import path belongs to this Python and not to the tested project."""
    path = Path(entry)
    if {"site-packages", "dist-packages"} & set(path.parts) or path.suffix == ".zip":
        return True
    places = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return any(path.is_relative_to(place) for place in places if place)

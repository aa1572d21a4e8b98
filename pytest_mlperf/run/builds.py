"""Another build of what is measured: another environment, a container, or a commit in git."""

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

from pytest_mlperf.core.errors import RunError, UnavailableError
from pytest_mlperf.suite.places import available
from pytest_mlperf.suite.plan import Planned
from pytest_mlperf.suite.tables import BaselineEngine

PACKAGE = Path(__file__).parents[1]

LABEL = "baseline-build"
"""What folders of another build carry in their names."""

GIT_S = 600.0
"""Longest time of one call of git: a checkout may fetch large files."""


@dataclass(frozen=True, kw_only=True)
class Build:
    """How a worker of another build is started.

    Attributes:
        python: What starts its Python; the script and its argument are appended.
        code: Folder with a copy of this package, which its worker runs.
        title: What messages call it.
        first: Folders that come first on its import path.
        last: Folders that come last on it.
        never: Folders that are taken off it.
    """

    python: Sequence[str]
    code: Path
    title: str
    first: Sequence[str] = ()
    last: Sequence[str] = ()
    never: Sequence[str] = ()

    def command(self, spec: Path) -> list[str]:
        """Return the command line of a worker."""
        script = self.code / "pytest_mlperf" / "run" / "elsewhere.py"
        return [*self.python, str(script), str(spec)]


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
        named = _named(planned)
        # A link, or a place in an environment, would not be seen in a container, or show more.
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(PACKAGE, code / PACKAGE.name, ignore=ignore)
        if named.git is not None:
            with _worktree(planned, named.git, folder / "tree") as build:
                yield build(code)
            return
        if named.python is not None:
            command, title = [_python(planned, named.python)], f"python {named.python}"
        else:
            command = list(named.command or ())
            title = f"command {' '.join(command)}"
        own = [entry for entry in _import_path() if not _installed(entry)]
        yield Build(python=command, code=code, title=title, last=own)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _named(planned: Planned) -> BaselineEngine:
    """Return a case's `baseline_engine` with `${VAR}` expanded.

    Raises:
        UnavailableError: A variable is not set.
    """
    entry = planned.engine
    assert entry.baseline_engine is not None
    where = ("engines", planned.suite.engines.index(entry), "baseline_engine")
    given = entry.baseline_engine.model_dump(exclude_none=True)
    return BaselineEngine.model_validate(available(planned.path, where, given))


def _python(planned: Planned, text: str) -> str:
    """Return the path of a Python; links stay: what they point to has another environment.

    Raises:
        UnavailableError: It is not there, or is no program.
    """
    given = Path(text).expanduser()
    found = planned.path.parent / given if "/" in text else Path(shutil.which(text) or text)
    path = found.absolute()
    if not path.is_file() or not os.access(path, os.X_OK):
        advice = "make the environment: python -m venv, then install into it"
        if (path / "bin/python").exists():
            advice = f"did you mean {text}/bin/python?"
        raise UnavailableError(
            f"{planned.path}:{planned.line}: the python of baseline_engine, {text}, is no program "
            f"here (looked at {path}); {advice}"
        )
    return str(path)


# --- git -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Tree:
    """A checked-out ref, waiting for the copy of this package."""

    folder: Path
    top: Path
    title: str

    def __call__(self, code: Path) -> Build:
        """Return the build: this Python, with the ref's folders in place of today's."""
        path = _import_path()
        today = [entry for entry in path if self._is_today(entry)]
        then = [self.folder / Path(entry).resolve().relative_to(self.top) for entry in today]
        first = dict.fromkeys([self.folder, self.folder / "src", *then])
        return Build(
            python=[sys.executable],
            code=code,
            title=self.title,
            first=[str(entry) for entry in first if entry.is_dir()],
            last=[entry for entry in path if entry not in today],
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
        yield _Tree(folder=folder, top=top, title=f"git {ref} ({commit[:12]})")
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


def _import_path() -> list[str]:
    return [str(Path(entry).absolute()) for entry in sys.path]


def _installed(entry: str) -> bool:
    """Whether a folder of the import path belongs to this Python and not to the tested project."""
    path = Path(entry)
    if {"site-packages", "dist-packages"} & set(path.parts) or path.suffix == ".zip":
        return True
    places = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return any(path.is_relative_to(place) for place in places if place)

"""Run a worker in another environment, a container, or a git commit."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.imports import is_installed
from pytest_mlperf.core.job import EarlierBuild, Elsewhere
from pytest_mlperf.run.child.protocol import PACKAGE, import_path
from pytest_mlperf.run.project import CHECKOUT_S, ignored_in_git, new_folder, run_git

INSTALL_S = 1800.0
"""Time limit of an installation, as a wheel may have gigabytes."""

PIP = (
    "-m",
    "pip",
    "install",
    "--quiet",
    "--disable-pip-version-check",
    "--no-input",
    "--retries=1",
    "--no-deps",
    "--only-binary=:all:",
)
"""Install exactly the named wheels, without their dependencies, and build nothing."""


def installed(wheels: Sequence[str], python: Sequence[str], folder: Path) -> Path:
    """Return a folder with these wheels, and install them if it does not exist."""
    wheels_folder = folder / _key(wheels, python)
    if wheels_folder.is_dir():
        return wheels_folder
    making = folder / f".{wheels_folder.name}.{secrets.token_hex(4)}.tmp"
    try:
        ignored_in_git(folder.parent)
        making.mkdir(parents=True)
        _install(wheels, python, making)
        with contextlib.suppress(OSError):  # another process was faster; use its folder
            making.rename(wheels_folder)
    except OSError as error:
        raise RunError("worker", f"{folder} cannot be written: {error.strerror}") from None
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return wheels_folder


def _key(wheels: Sequence[str], python: Sequence[str]) -> str:
    """Return the key of an installation, by the wheels' content: a wheel may be rebuilt."""
    files = {
        wheel: hashlib.sha256(Path(wheel).read_bytes()).hexdigest()
        for wheel in wheels
        if wheel.endswith(".whl")
    }
    version = list(sys.version_info) if list(python) == [sys.executable] else None
    content = json.dumps([sorted(wheels), files, list(python), version])
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _install(wheels: Sequence[str], python: Sequence[str], target: Path) -> None:
    named = " ".join(wheels)
    try:
        done = run_pip(python, *PIP, "--target", str(target), "--", *wheels, limit_s=INSTALL_S)
    except subprocess.TimeoutExpired:
        raise RunError(
            "worker",
            f"pip needs longer than {INSTALL_S:g} s for {named}; install it by hand and "
            "name its Python: baseline_engine = { python = ... }",
        ) from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise RunError(
            "worker",
            f"{named} cannot be installed by {python[0]} -m pip: {last.removeprefix('ERROR: ')}; "
            "without network name a .whl file, or a folder of them in PIP_FIND_LINKS",
        )


def run_pip(
    python: Sequence[str], *arguments: str, limit_s: float
) -> subprocess.CompletedProcess[str]:
    """Run pip in a Python; RunError if it cannot start, TimeoutExpired if it takes too long."""
    try:
        return subprocess.run(
            [*python, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": ""},
        )
    except OSError as error:
        raise RunError("worker", f"{python[0]} cannot be started: {error.strerror}") from None


FOLDER_LABEL = "baseline-build"


@dataclass(frozen=True, kw_only=True)
class Build:
    """Describe how to start a worker in another environment.

    Attributes:
        python: Command of the Python; the script and its arguments are appended.
        code: Folder with a copy of this package for the worker.
        baseline: Whether it is the baseline's build, run next to the current one.
        first, last: Folders to put at the front and at the end of the import path.
        never: Folders to remove from the import path.
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
        script = self.code / "pytest_mlperf" / "run" / "child" / "environments.py"
        return [*self.python, str(script), str(spec), self.key]


@contextlib.contextmanager
def build_for(named: Elsewhere, folder: Path, suite: Path | None) -> Iterator[Build]:
    """Yield the build of a suite's other Python; remove its copy of this package afterwards."""
    code = folder / "code"
    try:
        _copy_package(code)
        yield _there(named, code, suite, baseline=False)
    finally:
        shutil.rmtree(code, ignore_errors=True)


@contextlib.contextmanager
def baseline_build(earlier: EarlierBuild, parent: Path, name: str) -> Iterator[Build]:
    """Yield an earlier build in a new subfolder `name` of `parent`; remove its files afterwards."""
    folder = new_folder(parent, name)
    code = folder / "code"
    try:
        _copy_package(code)
        if earlier.wheels:
            yield _with_wheels(earlier, folder, code)
            return
        if earlier.git is None:
            assert earlier.elsewhere is not None
            yield _there(earlier.elsewhere, code, earlier.suite, baseline=True)
            return
        with _worktree(earlier, earlier.git, folder / "tree", code) as build:
            yield build
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _there(named: Elsewhere, code: Path, suite: Path | None, *, baseline: bool) -> Build:
    """Return a build in another Python, with the tested project on its import path."""
    folders = [entry for entry in import_path(suite) if not is_installed(entry)]
    return Build(
        python=named.command,
        code=code,
        title=named.title,
        key=named.key,
        baseline=baseline,
        last=folders,
    )


def _with_wheels(earlier: EarlierBuild, folder: Path, code: Path) -> Build:
    """Return a build that imports `earlier.wheels` first, in this or the engine entry's Python."""
    named = earlier.elsewhere
    python = named.command if named else [sys.executable]
    wheels = folder.parents[2] / "wheels"  # next to the runs of all sessions
    first = installed(earlier.wheels, python, wheels)
    title = f"wheel {earlier.wheel}"
    return Build(
        python=python,
        code=code,
        title=f"{title} in {named.title}" if named else title,
        key=earlier.key,
        baseline=True,
        first=[str(first)],
        last=[e for e in import_path(earlier.suite) if not (named and is_installed(e))],
    )


def _copy_package(code: Path) -> None:
    """Copy this package to `code`, because a container does not see the installed one."""
    ignore = shutil.ignore_patterns("__pycache__")
    try:
        shutil.copytree(PACKAGE, code / PACKAGE.name, ignore=ignore)
    except OSError as error:
        raise RunError("worker", f"cannot copy this package to {code}: {error}") from None


# --- git -------------------------------------------------------------------------------------


@contextlib.contextmanager
def _worktree(earlier: EarlierBuild, ref: str, folder: Path, code: Path) -> Iterator[Build]:
    """Yield a build that imports from a worktree of `ref`; remove the worktree afterwards."""
    top = Path(_git(earlier.suite.resolve().parent, "rev-parse", "--show-toplevel")).resolve()
    commit = _git(top, "rev-parse", "--verify", "--end-of-options", f"{ref}^{{commit}}")
    named, path = earlier.elsewhere, import_path(earlier.suite)
    today = [
        entry
        for entry in path
        if Path(entry).resolve().is_relative_to(top) and not is_installed(entry)
    ]
    try:
        _git(top, "worktree", "add", "--detach", "--quiet", str(folder), commit)
        title = f"git {commit[:12]}" if commit.startswith(ref) else f"git {ref} ({commit[:12]})"
        then = [folder / Path(entry).resolve().relative_to(top) for entry in today]
        first = dict.fromkeys([folder, folder / "src", *then])
        yield Build(
            python=named.command if named else [sys.executable],
            code=code,
            title=f"{title} in {named.title}" if named else title,
            key=named.key if named else earlier.key,
            baseline=True,
            first=[str(entry) for entry in first if entry.is_dir()],
            last=[e for e in path if e not in today and not (named and is_installed(e))],
            never=today,
        )
    finally:
        _remove_worktree(top, folder)


def _remove_worktree(top: Path, folder: Path) -> None:
    # Twice, because a worktree that was interrupted during its creation is locked.
    with contextlib.suppress(RunError):
        _git(top, "worktree", "remove", "--force", "--force", str(folder))


def remove_left(suite: Path, session: Path) -> None:
    """Remove the worktrees that a killed session left."""
    if not session.is_dir():
        return
    top, session = suite.resolve().parent, session.resolve()
    with contextlib.suppress(RunError):
        for line in _git(top, "worktree", "list", "--porcelain").splitlines():
            folder = Path(line.removeprefix("worktree "))
            if line.startswith("worktree ") and folder.is_relative_to(session):
                _remove_worktree(top, folder)
                shutil.rmtree(folder.parent, ignore_errors=True)


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = run_git(folder, *arguments, limit_s=CHECKOUT_S)
    except OSError as error:
        raise RunError("worker", f"git cannot be started: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise RunError("worker", f"git {arguments[0]} took longer than {CHECKOUT_S:g} s") from None
    if done.returncode:
        words = " ".join(done.stderr.decode(errors="replace").split())
        reason = words or f"exit code {done.returncode}"
        raise RunError("worker", f"git {' '.join(arguments[:2])}: {reason}")
    return os.fsdecode(done.stdout).strip()

"""Prepare a worker's run in another environment, in a container, or from a git commit."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import secrets
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from packaging.specifiers import SpecifierSet

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.imports import is_installed
from pytest_mlperf.core.job import MERGE_BASE, EarlierBuild, PythonEnvironment
from pytest_mlperf.core.results import COMMIT_DIGITS
from pytest_mlperf.run.child.protocol import PACKAGE, import_path
from pytest_mlperf.run.project import CHECKOUT_S, ignored_in_git, new_folder, run_git
from pytest_mlperf.stores import atomic

_error = partial(RunError, "worker")

INSTALL_S = 1800.0
"""Time limit of an installation, as a wheel may have gigabytes."""

PIP = ("install", "--quiet", "--disable-pip-version-check", "--no-input", "--retries=1")
ONLY_WHEELS = ("--no-deps", "--only-binary=:all:")
"""Install exactly the named wheels, without their dependencies, and build nothing."""


def install_wheels(wheels: Sequence[str], python_command: Sequence[str], folder: Path) -> Path:
    """Return the subfolder of `folder` with these wheels; install them if it does not exist."""
    wheels_folder = folder / _key(wheels, python_command)
    if wheels_folder.is_dir():
        return wheels_folder
    making = folder / f".{wheels_folder.name}.{secrets.token_hex(4)}.tmp"
    try:
        ignored_in_git(folder.parent)
        making.mkdir(parents=True)
        _install(wheels, python_command, (*PIP, *ONLY_WHEELS, "--target", str(making)))
        with contextlib.suppress(OSError):  # another process was faster; use its folder
            making.rename(wheels_folder)
    except OSError as error:
        raise _error(f"{folder} cannot be written: {error.strerror}") from None
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return wheels_folder


def _key(wheels: Sequence[str], python: Sequence[str]) -> str:
    """Return a hash of an installation's inputs, with wheel contents: wheels may be rebuilt."""
    files = {
        wheel: hashlib.sha256(Path(wheel).read_bytes()).hexdigest()
        for wheel in wheels
        if wheel.endswith(".whl")
    }
    version = list(sys.version_info) if list(python) == [sys.executable] else None
    content = json.dumps([sorted(wheels), files, list(python), version])
    return hashlib.sha256(content.encode()).hexdigest()[:16]


PRINT_PATH = "import sys; print(*sys.path[1:], sep='\\n')"
READY_FILE = "ready"
"""File in an environment whose installation is complete."""


def environment(packages: Sequence[str], python: Sequence[str], folder: Path) -> Path:
    """Return the Python of an environment with these packages; create it if it does not exist.

    It also sees the packages of the command `python`. Leftovers of a killed session are removed.
    """
    home = folder / _key(packages, python)
    program = home / "bin" / "python"
    try:
        ignored_in_git(folder.parent)
        with atomic.locked_folder(folder / f"{home.name}.lock", timeout_s=INSTALL_S):
            if (home / READY_FILE).exists():
                return program
            shutil.rmtree(home, ignore_errors=True)
            done = run_python(python, "-m", "venv", "--without-pip", str(home), limit_s=INSTALL_S)
            if done.returncode:
                words = " ".join((done.stderr or done.stdout).split())
                raise _error(f"{python[0]} -m venv {home} failed: {words}")
            _install(packages, python, ("--python", str(program), *PIP))
            behind = run_python(python, "-c", PRINT_PATH, limit_s=INSTALL_S).stdout
            (packages_folder,) = home.glob("lib/python*/site-packages")
            (packages_folder / "behind.pth").write_text(behind, "utf-8")
            (home / READY_FILE).touch()
    except atomic.BusyError:
        raise _error(f"another session is still installing {home}; end it, and run again") from None
    except (atomic.NoLocksError, OSError) as error:
        raise _error(f"{folder} cannot be written: {error}") from None
    return program


def _install(wheels: Sequence[str], python: Sequence[str], options: Sequence[str]) -> None:
    named = " ".join(wheels)
    try:
        done = run_python(python, "-m", "pip", *options, "--", *wheels, limit_s=INSTALL_S)
    except subprocess.TimeoutExpired:
        raise _error(
            f"pip needs longer than {INSTALL_S:g} s for {named}; install it by hand and name that "
            'Python: baseline_engine = { python = "PATH" }, or --mlperf-against=python:PATH',
        ) from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise _error(
            f"{named} cannot be installed by {python[0]} -m pip: {last.removeprefix('ERROR: ')}; "
            "without a network, name a .whl file, or set PIP_FIND_LINKS to a folder of them",
        )


def run_python(
    python: Sequence[str], *arguments: str, limit_s: float
) -> subprocess.CompletedProcess[str]:
    """Run Python with arguments; raise RunError if it cannot start, TimeoutExpired if too late."""
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
        raise _error(f"{python[0]} cannot be started: {error.strerror}") from None


FOLDER_LABEL = "baseline-build"
IN_USE_FILE = "in-use"
"""File in the folder of a build, locked while its session lives."""


@dataclass(frozen=True, kw_only=True)
class Build:
    """Describe how to start a worker in another environment.

    Attributes:
        python: Command of the Python; the script and its arguments are appended.
        code: Folder with a copy of this package for the worker.
        baseline: Whether it is the baseline's build, run next to the current one.
        commit: Short hash of its commit; "" if it has the working folder's code.
        first, last: Folders to put at the front and at the end of the import path.
        never: Folders to remove from the import path.
    """

    python: Sequence[str]
    code: Path
    title: str
    key: str
    baseline: bool = False
    commit: str = ""
    first: Sequence[str] = ()
    last: Sequence[str] = ()
    never: Sequence[str] = ()

    @property
    def for_servers(self) -> Mapping[str, str]:
        """Environment variables that make the worker's servers import the code of this build."""
        if not self.first:
            return {}
        tree = {"PYTEST_MLPERF_TREE": self.first[0]} if self.commit else {}
        return {"PYTHONPATH": os.pathsep.join(self.first), **tree}

    def command(self, spec: Path) -> list[str]:
        """Return the command line of a worker."""
        script = self.code / "pytest_mlperf" / "run" / "child" / "environments.py"
        return [*self.python, str(script), str(spec), self.key]


@contextlib.contextmanager
def build_for(environment: PythonEnvironment, folder: Path, suite: Path | None) -> Iterator[Build]:
    """Copy this package for a suite's other Python; yield the build, then remove the copy."""
    code = folder / "code"
    try:
        _copy_package(code)
        yield _there(environment, code, suite, baseline=False)
    finally:
        shutil.rmtree(code, ignore_errors=True)


@contextlib.contextmanager
def baseline_build(earlier: EarlierBuild, parent: Path, name: str) -> Iterator[Build]:
    """Yield an earlier version's build in a new folder `parent`/`name`; then remove its files."""
    folder = new_folder(parent, name)
    code, elsewhere = folder / "code", earlier.elsewhere
    unlocked = folder / "lock"
    with unlocked.open("wb") as lock, contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # without locks a killed session's files stay
            atomic.lock(lock.fileno())
            unlocked.rename(folder / IN_USE_FILE)
        _copy_package(code)
        if earlier.wheels:
            yield _with_wheels(earlier, folder, code)
        elif earlier.git:
            yield stack.enter_context(_worktree(earlier, earlier.git, folder / "tree", code))
        else:
            if earlier.requirements:
                elsewhere = _environment_of(earlier, folder)
            assert elsewhere is not None
            yield _there(elsewhere, code, earlier.suite, baseline=True)


def _environment_of(earlier: EarlierBuild, folder: Path) -> PythonEnvironment:
    named = earlier.elsewhere
    python = named.command if named else (sys.executable,)
    if named and len(python) > 1:
        raise _error(
            f"pip cannot install the other version with {named.title}, only into a Python here: "
            "install it there yourself, and name it: --mlperf-against='command:...'",
        )
    environments = folder.parents[2] / "environments"  # next to the runs of all sessions
    program = environment(earlier.requirements, python, environments)
    return PythonEnvironment(command=(str(program),), title=f"pip {earlier.wheel}", key=earlier.key)


def _there(named: PythonEnvironment, code: Path, suite: Path | None, *, baseline: bool) -> Build:
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
    named = earlier.elsewhere
    python = named.command if named else [sys.executable]
    wheels = folder.parents[2] / "wheels"  # next to the runs of all sessions
    first = install_wheels(earlier.wheels, python, wheels)
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
        raise _error(f"cannot copy this package to {code}: {error}") from None


# --- git -------------------------------------------------------------------------------------


@contextlib.contextmanager
def _worktree(earlier: EarlierBuild, ref: str, folder: Path, code: Path) -> Iterator[Build]:
    top = Path(_git(earlier.suite.resolve().parent, "rev-parse", "--show-toplevel")).resolve()
    commit = commit_named(top, ref)
    linked = _submodules(top, commit)
    _require_python(top, commit)
    named, path = earlier.elsewhere, import_path(earlier.suite)
    today = [
        entry
        for entry in path
        if Path(entry).resolve().is_relative_to(top) and not is_installed(entry)
    ]
    try:
        _git(top, "worktree", "add", "--detach", "--quiet", str(folder), commit)
        for place in linked:
            (folder / place).rmdir()
            (folder / place).symlink_to(top / place)
        short = commit[:COMMIT_DIGITS]
        title = f"git {short}" if commit.startswith(ref) else f"git {ref} ({short})"
        then = [folder / Path(entry).resolve().relative_to(top) for entry in today]
        first = dict.fromkeys([folder, folder / "src", *then])
        yield Build(
            python=named.command if named else [sys.executable],
            code=code,
            title=f"{title} in {named.title}" if named else title,
            key=named.key if named else earlier.key,
            baseline=True,
            commit=short,
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


def remove_left(suite: Path, runs: Path) -> None:
    """Remove git worktrees of earlier builds that killed sessions left in the folder `runs`."""
    for mark in runs.glob(f"*/*/{IN_USE_FILE}"):
        with contextlib.suppress(OSError, RunError), mark.open("ab") as file:
            atomic.lock(file.fileno())
            _remove_worktree(suite.resolve().parent, mark.parent / "tree")
            shutil.rmtree(mark.parent, ignore_errors=True)


def commit_named(folder: Path, ref: str) -> str:
    """Return the full hash of a ref; for `MERGE_BASE`, of the merge base with the target branch."""
    if ref != MERGE_BASE:
        return _commit(folder, ref)
    targets = [f"origin/{name}" for key in TARGETS if (name := os.environ.get(key))]
    branch = next((b for b in targets or BRANCHES if _is(folder, b)), None)
    if branch is None:
        names = " and ".join(targets) or f"a target branch ({', '.join(BRANCHES)})"
        raise _error(
            f"{names} is not in this clone: fetch it with its history (git fetch --unshallow), or "
            "name a commit: git:REF",
        )
    try:
        return _git(folder, "merge-base", "HEAD", branch)
    except RunError:
        raise _error(
            f"this clone has no common commit with {branch}: fetch the whole history (git fetch "
            "--unshallow)",
        ) from None


BRANCHES = ("origin/HEAD", "origin/main", "origin/master", "main", "master")
"""Branches that others are usually merged into, the first that exists."""

TARGETS = ("GITHUB_BASE_REF", "CI_MERGE_REQUEST_TARGET_BRANCH_NAME")
"""Variables by which GitHub and GitLab name the branch that a request is merged into."""


def _is(folder: Path, ref: str) -> bool:
    with contextlib.suppress(RunError):
        return bool(_commit(folder, ref))
    return False


def _commit(folder: Path, ref: str) -> str:
    _git(folder, "rev-parse", "--show-toplevel")
    try:
        return _git(folder, "rev-parse", "--verify", "--end-of-options", f"{ref}^{{commit}}")
    except RunError:
        raise _error(
            f"{ref} is not a commit of this clone: git fetch it, or name another"
        ) from None


SUBMODULE_MODE = "160000"


def _submodules(top: Path, commit: str) -> list[str]:
    lines = _git(top, "diff", "--raw", "--no-renames", commit).splitlines()
    changed = [line.partition("\t")[2] for line in lines if SUBMODULE_MODE in line[:14]]
    if changed:
        raise _error(
            f"commit {commit[:COMMIT_DIGITS]} uses another commit of submodule {changed[0]}, which "
            "is not checked out here: make a full checkout of it elsewhere, install it, and name "
            "its Python: python:PATH",
        )
    tree = _git(top, "ls-tree", "-r", commit).splitlines()
    return [line.partition("\t")[2] for line in tree if line.startswith(SUBMODULE_MODE)]


def _require_python(top: Path, commit: str) -> None:
    try:
        project = tomllib.loads(_git(top, "show", f"{commit}:pyproject.toml")).get("project", {})
        needs = SpecifierSet(str(project.get("requires-python", "")))
    except (RunError, ValueError, AttributeError):
        return  # no such file, or one that its own tools will refuse
    here = platform.python_version()
    if not needs.contains(here, prereleases=True):
        raise _error(
            f"commit {commit[:COMMIT_DIGITS]} requires Python {needs}, and this is Python {here}: "
            "set python in the engine entry, or name a Python that has this build: python:PATH",
        )


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = run_git(folder, *arguments, limit_s=CHECKOUT_S)
    except OSError as error:
        raise _error(f"git cannot be started: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise _error(f"git {arguments[0]} took longer than {CHECKOUT_S:g} s") from None
    if done.returncode:
        words = " ".join(done.stderr.decode(errors="replace").split())
        reason = words or f"exit code {done.returncode}"
        raise _error(f"git {' '.join(arguments[:2])}: {reason}")
    return os.fsdecode(done.stdout).strip()

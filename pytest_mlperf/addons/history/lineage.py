"""List the commits or library versions that a bisect searches, from good to bad."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from pytest_mlperf import EnvironmentFault, MlperfError
from pytest_mlperf.core.job import EarlierBuild, PythonEnvironment
from pytest_mlperf.extension import nearest
from pytest_mlperf.run.builds import run_python
from pytest_mlperf.run.project import run_git

PIP_TIMEOUT_SECONDS = 120.0
SHORT_HASH_DIGITS = 12
_FIELDS = ("%H", "%P", "%an", "%ad", "%s")


@dataclass(frozen=True, kw_only=True)
class BuildAt:
    """Identify a build: a commit, or a version of a library.

    Attributes:
        name: Full hash of the commit, or the version.
        wheel: Library and version, "vllm==0.31"; "" for a commit.
        parent: Hash of the commit's first parent; "" if it has none.
        merged: Whether the commit is a merge.
    """

    name: str
    wheel: str = ""
    subject: str = ""
    author: str = ""
    date: str = ""
    parent: str = ""
    merged: bool = False

    @property
    def title(self) -> str:
        """Short name of the build for tables and folders."""
        return self.name if self.wheel else self.name[:SHORT_HASH_DIGITS]

    def earlier(self, suite: Path, elsewhere: PythonEnvironment | None) -> EarlierBuild:
        """Describe this build for interleaved runs; `elsewhere`: another Python of the engine."""
        return EarlierBuild(
            elsewhere=elsewhere,
            suite=suite,
            git=None if self.wheel else self.title,
            wheels=(self.wheel,) if self.wheel else (),
            wheel=self.wheel,
            key="bisect",
        )


# --- commits ---------------------------------------------------------------------------------


def commits(folder: Path, good: str, bad: str) -> list[BuildAt]:
    """Return first-parent commits, `good` to `bad` included; MlperfError if unknown or reversed."""
    if _git(folder, "rev-parse", "--show-toplevel").returncode:
        raise MlperfError(
            f"{folder} is not in a git repository: use --versions, or name a suite that is in one"
        )
    first, last = (_commit(folder, name, ref) for name, ref in (("GOOD", good), ("BAD", bad)))
    if first == last:
        raise MlperfError(
            f"GOOD and BAD are the same commit, {first[:SHORT_HASH_DIGITS]}; name two commits"
        )
    if _git(folder, "merge-base", "--is-ancestor", first, last).returncode:
        swapped = not _git(folder, "merge-base", "--is-ancestor", last, first).returncode
        base = f"they are on different branches; give as GOOD: git merge-base {good} {bad}"
        more = "they are in the wrong order" if swapped else base
        raise MlperfError(f"GOOD {good!r} is not an ancestor of BAD {bad!r}: {more}")
    line = ("--first-parent", "--ancestry-path", "--reverse", f"{first}..{last}")
    return [*_log(folder, "-1", first), *_log(folder, *line)]


def _commit(folder: Path, name: str, ref: str) -> str:
    done = _git(folder, "rev-parse", "--verify", "--end-of-options", f"{ref}^{{commit}}")
    if done.returncode:
        raise MlperfError(f"{name} {ref!r} is not a commit of this clone; fetch it, or correct it")
    return _text(done)


def _log(folder: Path, *arguments: str) -> list[BuildAt]:
    form = "%x00".join(_FIELDS)
    done = _git(
        folder, "log", f"--format={form}", "--date=short", "--no-show-signature", *arguments, "--"
    )
    if done.returncode:
        raise MlperfError(f"git log: {' '.join(done.stderr.decode(errors='replace').split())}")
    rows = [line.split("\0") for line in _text(done).split("\n") if line]
    return [
        BuildAt(
            name=name,
            subject=subject,
            author=author,
            date=date,
            parent=parents.partition(" ")[0],
            merged=" " in parents,
        )
        for name, parents, author, date, subject in rows
    ]


def _git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    try:
        return run_git(folder, *arguments)
    except OSError as error:
        raise EnvironmentFault(f"git cannot be started: {error.strerror}") from None
    except subprocess.TimeoutExpired as error:
        raise EnvironmentFault(f"git {arguments[0]} took longer than {error.timeout:g} s") from None


def _text(done: subprocess.CompletedProcess[bytes]) -> str:
    return done.stdout.decode("utf-8", "replace").strip()


# --- versions --------------------------------------------------------------------------------

_RANGE = re.compile(r"([A-Za-z0-9][\w.-]*)==(\w[\w.+]*?)\.\.(\w[\w.+]*)")


def versions(text: str, elsewhere: PythonEnvironment | None) -> list[BuildAt]:
    """Return the versions in "LIBRARY==A..B" that pip can install, A and B included.

    `elsewhere` is the Python environment whose pip is asked; None for this one. Raises MlperfError
    for invalid text or unknown versions.
    """
    match = _RANGE.fullmatch(text)
    if match is None:
        raise MlperfError(f"--versions {text!r} is not LIBRARY==A..B, such as vllm==0.30..0.33")
    library, *ends = match.groups()
    try:
        limits = [Version(end) for end in ends]
    except InvalidVersion as error:
        raise MlperfError(f"--versions {text}: {error}") from None
    early = any(version.is_prerelease for version in limits)
    there = _available(library, elsewhere.command if elsewhere else [sys.executable], early=early)
    known_versions = [Version(one) for one in there]
    for end, version in zip(ends, limits, strict=True):
        if version not in known_versions:
            raise MlperfError(f"pip finds no {library}=={end}{nearest(end, there)}")
    first, last = map(known_versions.index, limits)
    if first >= last:
        raise MlperfError(f"--versions {text}: {ends[0]} is not older than {ends[1]}")
    return [BuildAt(name=one, wheel=f"{library}=={one}") for one in there[first : last + 1]]


def _available(library: str, python: Sequence[str], *, early: bool) -> list[str]:
    """Return the versions of a library that pip can install, oldest first.

    `python` is the command of the Python to ask; `early` includes pre-releases, such as 1.3.0rc5.
    """
    options = ["--disable-pip-version-check", "--no-input", "--retries=1", *["--pre"] * early]
    arguments = ("-m", "pip", "index", "versions", *options, library)
    try:
        done = run_python(python, *arguments, limit_s=PIP_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        raise EnvironmentFault(
            f"pip did not list the versions of {library} within {PIP_TIMEOUT_SECONDS:g} s"
        ) from None
    listed = re.search(r"^Available versions: (.+)$", done.stdout, re.MULTILINE)
    if done.returncode or not listed:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise MlperfError(
            f"pip cannot list the versions of {library}: {last.removeprefix('ERROR: ')}; "
            "without a network, set PIP_FIND_LINKS to a folder with its wheels"
        )
    return listed[1].split(", ")[::-1]

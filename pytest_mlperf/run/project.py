"""Call git: read a repository's files, its commit, and its differences."""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import os
import re
import secrets
import shlex
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from pytest_mlperf.core.case import path_part
from pytest_mlperf.core.errors import BaselineError, RunError


def new_id() -> str:
    """Return an id that sorts by time: UTC and four hex digits, "20261121-144232-db7d"."""
    return f"{dt.datetime.now(dt.UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def ignored_in_git(folder: Path) -> Path:
    """Create a folder with a .gitignore file that excludes all its content; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    ignore = folder / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n", "utf-8")
    return folder


def new_folder(parent: Path, name: str) -> Path:
    """Create and return a new folder called `name`, or `name-2`, … if that exists."""
    path_part("case", name)
    for attempt in range(1, 1000):
        path = parent / (name if attempt == 1 else f"{name}-{attempt}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise RunError("worker", f"cannot make {path}: {error.strerror}") from None
        return path.resolve()
    raise RunError("worker", f"{parent} has 999 folders named {name} or {name}-N: remove old ones")


CURRENT_FOLDER = Path()

CHANGED_MARK = "+"
READ_TIMEOUT_SECONDS = 60.0
CHECKOUT_S = 600.0
"""Time limit of a checkout, whose files may be large."""

_COMMIT = re.compile(r"[0-9a-f]{7,64}")


def run_git(
    folder: Path, *arguments: str, limit_s: float = READ_TIMEOUT_SECONDS
) -> subprocess.CompletedProcess[bytes]:
    """Run git in a folder without the repository's hooks; raise OSError if it cannot start."""
    command = ["git", "-C", str(folder), "-c", f"core.hooksPath={os.devnull}", *arguments]
    return subprocess.run(command, capture_output=True, timeout=limit_s, check=False)


def git(*arguments: str, folder: Path = CURRENT_FOLDER) -> bytes | None:
    """Return git's output; None if it fails, hangs or is not installed."""
    done = _done(folder, *arguments)
    return done.stdout if done is not None and done.returncode == 0 else None


def git_text(*arguments: str) -> str:
    """Return git's output in the working folder as text; "" if it fails."""
    return (git(*arguments) or b"").decode("utf-8", "surrogateescape")


def require_checked_out(file: Path, root: Path, suite: Path) -> None:
    """Raise BaselineError if a missing baseline is in git but left out by a sparse checkout.

    `file` is below `root`, the folder of baselines, which is also missing if all of it is left out.
    """
    folder, end = suite.resolve().parent, file.relative_to(root)
    if not _may_be_sparse(folder):
        return
    if git("config", "--type=bool", "core.sparseCheckout", folder=folder) != b"true\n":
        return
    top = Path(os.fsdecode(git("rev-parse", "--show-toplevel", folder=folder) or b"").strip())
    ask = ("ls-files", "-t", "-z", "--full-name", "--", f":(top,glob)**/{end.as_posix()}")
    for listed in os.fsdecode(git(*ask, folder=folder) or b"").split("\0"):
        place = Path(*Path(listed[2:]).parts[: -len(end.parts)])
        nearest = not root.exists() and (top / place).parent in (folder, *folder.parents)
        if listed.startswith("S ") and (nearest or top / place == root.resolve()):
            raise BaselineError(
                f"{top / listed[2:]} is in git, but this sparse checkout leaves it out; run: git "
                f"-C {shlex.quote(str(top))} sparse-checkout add {shlex.quote(str(place))}"
            )


def _may_be_sparse(folder: Path) -> bool:
    """Return whether a folder's repository has sparse-checkout patterns, without running git."""
    for parent in (folder, *folder.parents):
        repository = parent / ".git"
        with contextlib.suppress(OSError):  # the file of a worktree or submodule: "gitdir: PATH"
            repository = parent / os.fsdecode(repository.read_bytes()).partition(": ")[2].strip()
        if repository.is_dir():
            return (repository / "info" / "sparse-checkout").exists()
    return False


def is_tracked(file: Path) -> bool:
    """Check whether the repository of the working folder tracks this file."""
    literal = ("--literal-pathspecs", "ls-files", "--error-unmatch", "--")
    return git(*literal, str(file.resolve())) is not None


def _done(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes] | None:
    try:
        return run_git(folder, *arguments)
    except (OSError, subprocess.SubprocessError):
        return None


def commit_of(folder: Path, recorded: Sequence[Path] = ()) -> str | None:
    """Return the short commit, or None; "+" marks uncommitted changes of files except baselines."""
    commit = git("rev-parse", "--short=12", "HEAD", folder=folder)
    if commit is None:
        return None
    code = _code(folder, recorded)
    changed = git("status", "--porcelain", "--untracked-files=no", *code, folder=folder)
    return commit.decode().strip() + (CHANGED_MARK if changed and changed.strip() else "")


def changes_digest(folder: Path, recorded: Sequence[Path] = ()) -> str:
    """Return a digest of uncommitted changes of tracked files but `recorded` ones; "" if none."""
    changed = git("diff", "HEAD", *_code(folder, recorded), folder=folder)
    return hashlib.sha256(changed).hexdigest()[:12] if changed else ""


def code_differs(
    folder: Path, earlier: str | None, later: str | None, recorded: Sequence[Path] = ()
) -> str | None:
    """Return why two measured commits may have different code, or None.

    Baselines (`recorded`) are ignored. Two unknown commits, as outside git, are equal.
    """
    if earlier is None and later is None:
        return None
    if earlier is None or later is None:
        return f"commit {earlier or 'unknown'} → {later or 'unknown'}"
    if unclear := next((one for one in (earlier, later) if one.endswith(CHANGED_MARK)), None):
        return f"{unclear.removesuffix(CHANGED_MARK)} was measured with uncommitted changes"
    if earlier == later:
        return None
    diff = None
    if _COMMIT.fullmatch(earlier):  # it is from a file, and must not be a git option
        diff = _done(folder, "diff", "--quiet", earlier, later, *_code(folder, recorded))
    if diff is None or diff.returncode > 1:
        return f"commit {earlier} is not in this clone"
    return f"commit {earlier} → {later}" if diff.returncode else None


def files_since(
    folder: Path, commit: str, loaded: Iterable[str], recorded: Sequence[Path] = ()
) -> tuple[list[Path], list[Path] | None] | None:
    """Return files that differ from a commit, and files in `loaded` that git does not track.

    Uncommitted changes are included; ignored files and `recorded` baselines are not. Paths are
    absolute. The second list is None if git fails; the result is None without this commit.
    """
    top, diff = git("rev-parse", "--show-toplevel", folder=folder), None
    if top is not None and _COMMIT.fullmatch(commit):
        words = ("diff", "--name-only", "--no-renames", "-z", commit)
        diff = git(*words, *_code(folder, recorded), folder=folder)
    if top is None or diff is None:
        return None
    root = Path(os.fsdecode(top.removesuffix(b"\n")))
    inside = [path for path in loaded if Path(path).is_relative_to(root)]
    ask = ("--literal-pathspecs", "ls-files", "--others", "--exclude-standard", "--full-name", "-z")
    new = git(*ask, "--", *inside, folder=folder) if inside else b""

    def paths(listed: bytes) -> list[Path]:
        return [root / name for name in os.fsdecode(listed).split("\0") if name]

    return paths(diff), None if new is None else paths(new)


def same_code(folder: Path, commit: str | None, recorded: Sequence[Path] = ()) -> bool:
    """Return whether tracked files equal those of a commit, except suites and baselines."""
    files = files_since(folder, commit or "", (), recorded)
    return files is not None and all(file.match("*.mlperf.toml") for file in files[0])


def _code(folder: Path, recorded: Sequence[Path]) -> list[str]:
    top = folder.resolve()
    others = [path.resolve() for path in recorded]
    return [
        *("--", ":(top)", ":(top,exclude,glob)**/baselines/**", ":(top,exclude,glob)**/*.pyc"),
        *(
            f":(exclude,literal){path.relative_to(top)}"
            for path in others
            if path.is_relative_to(top)
        ),
    ]

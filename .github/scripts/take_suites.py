"""Take suites and baselines of a fork's commit into a checkout of the branch, as data.

The branch's code then plans them: which labels, accelerators, minutes and jobs a run has, and what
must report, is no word of the fork's code. Prints, as JSON, by which files the commit is judged
that the branch has not, or has otherwise.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path, PurePosixPath
from typing import NoReturn

SUITE = ".mlperf.toml"

SETTINGS = frozenset(
    {"pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini"}
    | {"setup.cfg", "conftest.py"}
)
"""Files whose settings change verdicts; they are told, and the plan is by the branch's."""

REGULAR = frozenset({"100644", "100755"})

Tree = dict[str, tuple[str, str]]
"""Mode and object by path, as git has them: a file's content is its object's name."""


def tree(folder: Path, commit: str = "HEAD") -> Tree:
    """Return the files of a commit."""
    command = ["git", "-C", str(folder), "ls-tree", "-r", "-z", "--full-tree", commit]
    text = subprocess.run(command, capture_output=True, check=True).stdout
    entries = [entry.split(b"\t", 1) for entry in text.split(b"\0") if entry]
    found = {}
    for about, name in entries:
        mode, _, digest = about.decode().split()
        found[name.decode("utf-8", "surrogateescape")] = (mode, digest)
    return found


def is_data(path: str) -> bool:
    """Check whether a plan reads this file."""
    return path.endswith(SUITE) or (path.startswith("baselines/") and path.endswith(".json"))


def judges(path: str) -> bool:
    """Check whether a verdict can depend on this file, beside the code that is measured."""
    return is_data(path) or path.startswith("baselines/") or PurePosixPath(path).name in SETTINGS


def take(change: Path, theirs: Tree, ours: Tree) -> None:
    """Replace the suites and baselines here by those of the change."""
    for path in filter(is_data, ours):
        if ours[path] != theirs.get(path):
            Path(path).unlink()
    for path in filter(is_data, theirs):
        if ours.get(path) == theirs[path]:
            continue
        if theirs[path][0] not in REGULAR:
            fail(f"{path} is no regular file: suites and baselines of a fork must be")
        target = Path(path)
        if any(folder.is_symlink() for folder in target.parents):
            fail(f"{path} lies behind a link of the branch")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(change / path, target, follow_symlinks=False)


def fail(why: str) -> NoReturn:
    """End the step with an annotation."""
    shown = "".join(c if c.isprintable() else "?" for c in why).replace("::", ": :")
    print(f"::error::{shown.replace('%', '%25')}", file=sys.stderr)
    sys.exit(1)


def main() -> None:
    """Take the files of the folder that is named first; the second word is its commit."""
    change, sha = Path(sys.argv[1]), sys.argv[2]
    theirs, ours = tree(change, sha), tree(Path())
    differing = {path for path in theirs.keys() | ours.keys() if theirs.get(path) != ours.get(path)}
    take(change, theirs, ours)
    print(json.dumps({"judged_by_other": sorted(filter(judges, differing))}))


if __name__ == "__main__":
    main()

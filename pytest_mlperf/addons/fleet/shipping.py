"""Pack the project for the nodes, and unpack the result files that they return."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

from pytest_mlperf import MlperfError
from pytest_mlperf.addons.fleet.node import BASELINES
from pytest_mlperf.run.project import git

LIMIT = 256 << 20
"""Maximum size of a project, bytes: nodes have models and data sets themselves."""

LEFT_OUT = frozenset(
    {".git", ".hg", ".mlperf", ".venv", "venv", "__pycache__", ".pytest_cache", "node_modules"}
)
"""Folders that are never packed."""


def files_of(root: Path) -> Iterator[Path]:
    """Yield project files that git tracks or does not ignore; without git, all but `LEFT_OUT`."""
    listed = git("ls-files", "-z", "--cached", "--others", "--exclude-standard", folder=root)
    if listed is None:
        for folder, folders, names in os.walk(root):
            folders[:] = sorted(set(folders) - LEFT_OUT)
            yield from (Path(folder, name) for name in sorted(names))
        return
    for name in sorted(filter(None, listed.split(b"\0"))):
        path = root / os.fsdecode(name)
        if not LEFT_OUT.intersection(Path(os.fsdecode(name)).parts):
            yield path


def pack(root: Path) -> tuple[bytes, str]:
    """Return the project as a tar archive and its SHA-256; raise MlperfError if too large."""
    packed, total, largest = io.BytesIO(), 0, (0, "")
    folders: set[Path] = set()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path in files_of(root):
            if not (path.is_file() or path.is_symlink()):
                continue  # a file removed without git, or a socket
            name, size = str(path.relative_to(root)), path.lstat().st_size
            total, largest = total + size, max(largest, (size, name))
            if total > LIMIT:
                raise MlperfError(
                    f"{root} has more than {LIMIT >> 20} MB to copy to every node; add what the "
                    f"nodes already have to .gitignore (the largest file: {largest[1]})"
                )
            archive.add(path, name, recursive=False, filter=_nameless)
            folders |= {
                folder / BASELINES for folder in path.parents if folder.is_relative_to(root)
            }
        for path in sorted(folders):
            if path.is_dir():  # an empty one is where baselines get recorded
                archive.add(path, str(path.relative_to(root)), recursive=False, filter=_nameless)
    content = packed.getvalue()
    return content, hashlib.sha256(content).hexdigest()


def _nameless(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Remove the owner from an archive member, so that the digest depends only on the content."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def unpack_results(archive: Path, *, runs_dir: Path, root: Path) -> None:
    """Unpack a case's runs into `runs_dir` and new baselines below `root`; delete the archive."""
    with tarfile.open(archive) as packed:
        for member in packed.getmembers():
            root_name, _, name = member.name.partition("/")
            folder = runs_dir if root_name == "runs-dir" else root
            if member.isfile() and name:
                packed.extract(member.replace(name=name, deep=False), folder, filter="data")
    archive.unlink()

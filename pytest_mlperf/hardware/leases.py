"""Provide the folder for GPU leases and power limit notes, shared by all users."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.stores.atomic import opened_folder, require_descriptors

MACHINE_WIDE = "/tmp"  # noqa: S108 - sticky, and what is opened in it is never a link
"""Default location, independent of TMPDIR."""


def lease_place() -> Path:
    """Return the path of the lease folder, which may not exist yet."""
    return Path(os.environ.get("PYTEST_MLPERF_LEASES") or MACHINE_WIDE) / "pytest-mlperf"


def lease_folder() -> Path:
    """Return the folder of the lease files, shared by all users (mode 1777); create it."""
    with opened_lease_folder() as (path, _):
        return path


@contextlib.contextmanager
def opened_lease_folder() -> Iterator[tuple[Path, int]]:
    """Yield the lease folder and its descriptor; raise RunError if it is not safe."""
    path = lease_place()
    if not path.is_absolute():
        raise RunError(
            "lease",
            f"PYTEST_MLPERF_LEASES={path.parent} is a relative path, so two sessions could measure "
            "on one GPU at once; set it to an absolute path that all users share",
        )
    with contextlib.ExitStack() as stack:
        try:
            require_descriptors()
            with contextlib.suppress(FileExistsError):
                path.parent.mkdir(parents=True)
            parent = stack.enter_context(opened_folder(path.parent, follow=True))
            made = False
            with contextlib.suppress(FileExistsError):
                os.mkdir(path.name, dir_fd=parent)
                made = True
            try:
                folder = stack.enter_context(opened_folder(path.name, parent))
            except NotADirectoryError:
                raise RunError(
                    "lease",
                    f"{path} is not a folder, but a link or a file; locks on GPUs are kept there: "
                    "remove it, or set PYTEST_MLPERF_LEASES to a folder that all users share",
                ) from None
            if made:
                os.fchmod(folder, 0o1777)
        except OSError as error:
            raise RunError(
                "lease",
                f"{path}, the folder for locks on GPUs, cannot be created: {error.strerror}; set "
                "PYTEST_MLPERF_LEASES to a folder that all users share",
            ) from None
        for folder_path, status in ((path.parent, os.fstat(parent)), (path, os.fstat(folder))):
            if status.st_uid not in {0, os.geteuid()} and not status.st_mode & stat.S_ISVTX:
                raise RunError(
                    "lease",
                    f"{folder_path} belongs to user {status.st_uid}, who could delete your lock "
                    f"on a GPU; ask them or root to run chmod +t {folder_path}, or set "
                    "PYTEST_MLPERF_LEASES to a folder that all users share",
                )
        yield path, folder


def file_name(name: str) -> str:
    """Return the name of the lock file for a GPU or for "cpu"."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name)

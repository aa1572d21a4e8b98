"""The folder in which all who measure on a machine meet: leases, and notes of power limits."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from pathlib import Path

from pytest_mlperf.core.errors import RunError

MACHINE_WIDE = "/tmp"  # noqa: S108 - sticky, and what is opened in it is never a link
"""Where all who measure on a machine meet, whatever TMPDIR each of them has."""


def lease_place() -> Path:
    """Return where the folder is, or would be."""
    return Path(os.environ.get("PYTEST_MLPERF_LEASES") or MACHINE_WIDE) / "pytest-mlperf"


def lease_folder() -> Path:
    """Return the folder of the lease files, shared by all users (mode 1777), made if absent."""
    path = lease_place()
    if not path.is_absolute():
        raise RunError(
            "lease",
            f"PYTEST_MLPERF_LEASES={path.parent}: sessions in two folders would measure on one GPU "
            "at once; set it to an absolute path that all users share",
        )
    try:
        with contextlib.suppress(FileExistsError):
            path.mkdir(parents=True)
            path.chmod(0o1777)
    except OSError as error:
        raise RunError(
            "lease",
            f"{path}: leases are kept there, and it cannot be made: {error.strerror}; set "
            "PYTEST_MLPERF_LEASES to a folder that all users share",
        ) from None
    if not stat.S_ISDIR(path.lstat().st_mode):
        raise RunError(
            "lease",
            f"{path} is no folder (a link or a file); leases are kept there: remove it, "
            "or set PYTEST_MLPERF_LEASES to a folder that all users share",
        )
    return path


def file_name(name: str) -> str:
    """Return a name of a file for a GPU or the processors."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name)

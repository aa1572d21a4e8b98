"""Let one process at a time measure on an accelerator, across users and pytest processes.

Plain `flock` on files in a folder shared by all users. The filelock library opens its file with
O_CREAT each time, which Linux refuses for another user's file in a sticky folder
(fs.protected_regular), so two users could never share a machine with it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pytest_mlperf.core.errors import RunError

POLL_S = 0.1

MACHINE_WIDE = "/tmp"  # noqa: S108 - sticky, and what is opened in it is never a link
"""Where all who measure on a machine meet, whatever TMPDIR each of them has."""


def folder() -> Path:
    """Return the folder of the lease files, shared by all users (mode 1777), made if absent.

    Raises:
        RunError: Something else lies at its place, such as a symbolic link.
    """
    path = Path(os.environ.get("PYTEST_MLPERF_LEASES") or MACHINE_WIDE) / "pytest-mlperf"
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


@contextlib.contextmanager
def hold(names: Sequence[str], *, limit_s: float, waiting: Callable[[str], None]) -> Iterator[None]:
    """Hold the leases of these accelerators, taken in sorted order so that no two wait crosswise.

    Args:
        names: Accelerator ids: "cpu" or GPU UUIDs.
        limit_s: Longest wait for all of them together.
        waiting: Called again and again with whom we wait for: a wait is no hang.

    Raises:
        RunError: The wait exceeded the limit.
    """
    deadline = time.monotonic() + limit_s
    with contextlib.ExitStack() as stack:
        for name in sorted(names):
            stack.enter_context(_one(name, deadline, limit_s, waiting))
        yield


@contextlib.contextmanager
def _one(
    name: str, deadline: float, limit_s: float, waiting: Callable[[str], None]
) -> Iterator[None]:
    path = folder() / (re.sub(r"[^A-Za-z0-9_.-]", "_", name) + ".lock")
    descriptor = _open(path)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                holder = os.pread(descriptor, 100, 0).decode("ascii", "replace").strip()
                if time.monotonic() > deadline:
                    raise RunError(
                        "lease",
                        f"waited {limit_s:.0f} s for {name}, held by {holder or 'another process'}"
                        f" ({path}); raise mlperf_lease_timeout or end that process",
                    ) from None
                waiting(f"waiting for {name}, held by {holder or 'another process'}")
                time.sleep(POLL_S)
            except OSError as error:
                raise RunError(
                    "lease",
                    f"{path}: its file system has no locks ({error.strerror}), and two sessions "
                    f"would measure on {name} at once; set PYTEST_MLPERF_LEASES to a folder on a "
                    "local disk that all users share",
                ) from None
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, flags)
        with contextlib.suppress(FileExistsError):
            descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
            os.fchmod(descriptor, 0o666)
            return descriptor
        return os.open(path, flags)
    except OSError as error:
        raise RunError(
            "lease",
            f"cannot open {path}: {error.strerror}; set PYTEST_MLPERF_LEASES to a folder that all "
            "users share",
        ) from None

"""Run a program that nobody has read, so that it can do no harm; refuse where that cannot be had.

What a command has (Linux only; sandbox_child.py builds it):

- Namespaces of its own for user, mounts, processes, network, IPC and host name. The network has no
  route and not even a loopback.
- To read: the system's programs and libraries (/usr, /lib, /etc/alternatives), five devices and
  what `readable` names. No home folder, no temporary folder, no project, no /proc, no /sys, and no
  environment variable but those given.
- To write: one folder in memory, of limited size, gone afterwards.
- No privileges and none to gain; a filter refuses system calls that no limit covers.
- Limits on time, memory, processes, open files and the size of a file; see Step.
- No life after it: when a command ends, its time is up, or the process that called `run_isolated`
  is gone, the kernel ends all that the command started.

It protects from programs that are wrong or hostile, as far as the kernel has no hole; programs on
the same kernel can still slow each other down.
"""

from __future__ import annotations

from collections.abc import Mapping

from pytest_mlperf.scorers.sandbox_check import why_not
from pytest_mlperf.scorers.sandbox_launch import (
    BOX,
    MIB,
    Finished,
    Step,
    UnisolatedError,
    launch,
    readable_python,
    settings,
    shown,
)

__all__ = [
    "BOX",
    "MIB",
    "Finished",
    "Step",
    "UnisolatedError",
    "readable_python",
    "require_sandbox",
    "run_isolated",
    "shown",
    "why_not",
]


def require_sandbox() -> None:
    """Refuse to go on where commands cannot be isolated.

    Raises:
        EnvironmentFault: They cannot; says why, and what to do.
    """
    if reason := why_not():
        raise UnisolatedError(reason)


def run_isolated(
    *steps: Step,
    files: Mapping[str, str | bytes],
    readable: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    output_bytes: int = 64 * 1024,
    disk_bytes: int = 64 * MIB,
) -> Finished:
    """Run commands one after another in one sandbox; the sandbox of this module's description.

    Args:
        steps: Each runs only if the one before it ended with one of its `goes_on`.
        files: Contents of the files that are in the commands' folder, by name, without folders.
        readable: Further files and folders of the machine that commands may read: the path that
            they see, and the real path (no link in it).
        environment: Variables besides PATH, HOME, TMPDIR and LANG.
        output_bytes: How much of stdout and of stderr is kept; the rest is read and dropped.
        disk_bytes: Size of the commands' folder, and of a file.

    Raises:
        EnvironmentFault: The commands cannot be isolated here, or one cannot be started.
        RunError: The sandbox ended without saying how.
    """
    require_sandbox()
    made = settings(steps, files, readable or {}, environment or {}, disk_bytes)
    return launch(made, output_bytes)

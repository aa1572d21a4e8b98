"""Try to break out of a sandbox, before generated code runs in it; a script, never imported.

`python sandbox_inside.py EXPECTATIONS`, JSON from sandbox.py. The script prints a sentence for each
forbidden action that succeeded, and "checked" at the end.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

AF_VSOCK = 40
CLONE_NEWUSER = 0x10000000


def works(attempt: Callable[[], Any]) -> bool:
    """Return whether an attempt runs without OSError or MemoryError."""
    try:
        attempt()
    except (OSError, MemoryError):
        return False
    return True


def connect(port: int) -> None:
    """Connect to a port of this machine, outside the sandbox."""
    with socket.socket() as client:
        client.settimeout(1)
        client.connect(("127.0.0.1", port))


def make(path: str) -> None:
    """Write a short text to a new file, to test whether the sandbox forbids it."""
    with open(path, "w") as file:  # noqa: PTH123
        file.write("here")


def user_namespace() -> None:
    """Create a user namespace, in which code could gain privileges; raise OSError if refused."""
    if ctypes.CDLL(None).unshare(CLONE_NEWUSER):
        raise OSError("refused")


def processes(limit: int) -> int:
    """Start up to `limit` processes; then end them and return how many could be started."""
    started: list[int] = []
    try:
        while len(started) < limit:
            started.append(os.fork())
            if started[-1] == 0:
                signal.pause()
    except OSError:
        pass
    for process in started:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    return len(started)


def route() -> None:
    """Connect a UDP socket to 192.0.2.1 (reserved for documentation); OSError without a route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.connect(("192.0.2.1", 9))


def attempts(expectations: dict[str, Any]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield (description, function) of each action that must fail in the sandbox."""
    yield "reach a port of this machine", partial(connect, expectations["port"])
    yield "find a route to a network", route
    yield "open a socket to a virtual machine's host", partial(socket.socket, AF_VSOCK)
    for path in expectations["hidden"]:
        yield f"see {path}", partial(os.lstat, path)
    for folder in filter(os.path.isdir, ("/", "/usr", "/etc", "/dev", *expectations["readable"])):
        yield f"write to {folder}", partial(make, f"{folder}/made-here")
    yield "become root", partial(os.setuid, 0)
    yield "make a user namespace", user_namespace
    yield "exceed its memory limit", partial(bytearray, expectations["memory_bytes"])


def isolation_faults(expectations: dict[str, Any]) -> Iterator[str]:
    """Yield isolation failures: forbidden actions that work, limits unlike `expectations`."""
    for escape, attempt in attempts(expectations):
        if works(attempt):
            yield f"a program can {escape}"
    if extra := set(os.environ) - set(expectations["environment"]) - {"LC_CTYPE"}:
        yield f"a program sees the environment variable {min(extra)}"
    if os.getuid() == 0:
        yield "a program is root"
    if resource.getrlimit(resource.RLIMIT_CPU)[1] != expectations["cpu_s"]:
        yield "a program has no limit on processor time"
    count = processes(2 * expectations["processes"])
    if count >= expectations["processes"]:
        yield "a program can start processes without limit"
    if count < expectations["processes"] // 2:
        yield (
            f"a program can start only {count} processes, because Linux before 5.14 also counts "
            "this user's other processes"
        )


if __name__ == "__main__":
    for sentence in isolation_faults(json.loads(sys.argv[1])):
        print(sentence)
    print("checked")

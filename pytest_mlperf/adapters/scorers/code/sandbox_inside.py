"""What a program finds in a sandbox: run there before generated code is; a script, never imported.

`python sandbox_inside.py ASKED`, where ASKED is JSON from sandbox.py. It prints what it could
do and should not, one sentence a line, and then "checked".
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
    """Return whether what should fail does not."""
    try:
        attempt()
    except (OSError, MemoryError):
        return False
    return True


def connect(port: int) -> None:
    """Connect to a port on which the other side of the sandbox listens."""
    with socket.socket() as client:
        client.settimeout(1)
        client.connect(("127.0.0.1", port))


def make(path: str) -> None:
    """Write a file where no program may."""
    with open(path, "w") as file:  # noqa: PTH123
        file.write("here")


def user_namespace() -> None:
    """Enter a user namespace, in which there are privileges."""
    if ctypes.CDLL(None).unshare(CLONE_NEWUSER):
        raise OSError("refused")


def processes(most: int) -> int:
    """Return how many processes can be started, at most `most`; end them."""
    started: list[int] = []
    try:
        while len(started) < most:
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
    """Find a way to an address that is nobody's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.connect(("192.0.2.1", 9))


def attempts(asked: dict[str, Any]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield what must fail, each with what is wrong where it does not."""
    yield "reach a port of this machine", partial(connect, asked["port"])
    yield "find a route to a network", route
    yield "open a socket to a virtual machine's host", partial(socket.socket, AF_VSOCK)
    for path in asked["hidden"]:
        yield f"see {path}", partial(os.lstat, path)
    for folder in filter(os.path.isdir, ("/", "/usr", "/etc", "/dev", *asked["readable"])):
        yield f"write to {folder}", partial(make, f"{folder}/made-here")
    yield "become root", partial(os.setuid, 0)
    yield "make a user namespace", user_namespace
    yield "have more memory than it should", partial(bytearray, asked["memory_bytes"])


def findings(asked: dict[str, Any]) -> Iterator[str]:
    """Yield what is not as it should be."""
    for escape, attempt in attempts(asked):
        if works(attempt):
            yield f"a program can {escape}"
    if extra := set(os.environ) - set(asked["environment"]) - {"LC_CTYPE"}:
        yield f"a program sees the environment variable {min(extra)}"
    if os.getuid() == 0:
        yield "a program is root"
    if resource.getrlimit(resource.RLIMIT_CPU)[1] != asked["cpu_s"]:
        yield "a program has no limit on processor time"
    count = processes(2 * asked["processes"])
    if count >= asked["processes"]:
        yield "a program can start processes without limit"
    if count < asked["processes"] // 2:
        yield (
            f"a program can start only {count} processes, since others of this user count (Linux "
            "before 5.14)"
        )


if __name__ == "__main__":
    for sentence in findings(json.loads(sys.argv[1])):
        print(sentence)
    print("checked")

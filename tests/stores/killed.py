"""Processes that are killed before each file operation of an action, or that act together."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

OPERATIONS = (
    *("open", "os.mkdir", "os.chmod", "os.link", "os.rename", "os.remove", "os.rmdir"),
    *("os.truncate", "fcntl.flock", "os.listdir", "os.scandir"),
)
"""What Python announces before it does it; `fsync` is announced by nobody, and wrapped."""

DRIVER = """
import importlib, os, signal, sys

def before_each(function, number):
    left = number
    def count(name, *_):
        nonlocal left
        if name in {operations!r}:
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
    sys.addaudithook(count)
    really = os.fsync
    os.fsync = lambda descriptor: (count("open"), really(descriptor))
    function()

module, name, *given = sys.argv[1:]
act = getattr(importlib.import_module(module), name)
act(*given, prepare=True)
number = 0
while True:
    child = os.fork()
    if not child:
        before_each(lambda: act(*given), number)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    print(number, status, flush=True)
    sys.stdin.readline()
    if status == 0:
        break
    number += 1
"""


def deaths(module: str, function: str, *arguments: str | Path) -> Iterator[bool]:
    """Let an action die before its first, second, ... file operation; at last it lives.

    The action is called once more with `prepare=True`, so that its modules are imported.

    Yields:
        Whether it was killed. The files then stay unchanged until the next one is requested.
    """
    script = DRIVER.replace("{operations!r}", repr(OPERATIONS))
    command = [sys.executable, "-c", script, module, function, *map(str, arguments)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path.cwd()
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        for line in process.stdout:
            _, status = map(int, line.split())
            assert status in {0, signal.SIGKILL}, line
            yield status != 0
            process.stdin.write("\n")
            process.stdin.flush()
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def git(folder: Path, *command: str) -> str:
    """Run git, which no setting of this machine reaches."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"}
    who = ["-c", "user.name=x", "-c", "user.email=x@localhost"]
    done = subprocess.run(
        ["git", *who, *command], cwd=folder, env=environment, capture_output=True, check=True
    )
    return done.stdout.decode()


def taken(folder: Path) -> list[str]:
    status = git(folder, "status", "--porcelain", "--untracked-files=all", "-z")
    return sorted(entry[3:] for entry in status.split("\0") if entry)


def started(function: Callable[..., None], *calls: tuple[Any, ...]) -> list[Any]:
    """Start a process for each call of a function; all are forked from one that imported it."""
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(["tests.stores.acting", "tests.stores.test_suspects"])
    processes = [forks.Process(target=function, args=arguments) for arguments in calls]
    for process in processes:
        process.start()
    return processes


def exit_codes(processes: list[Any]) -> list[int]:
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]

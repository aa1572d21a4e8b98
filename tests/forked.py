"""Start the package's modules and pytest as forks of the test's process: no new interpreter.

A fork runs the same module with the same arguments, descriptors, environment and LoadGen. It
differs from a process of its own in three ways: the parent's imports are there already, so that a
missing import does not show; functions of `atexit` do not run; and an exception ends it with exit
code 1, also a KeyboardInterrupt. Use a process of its own where a test is about one of these, and
where the child computes with a library whose threads do not survive a fork (torch, ONNX Runtime).
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import io
import os
import runpy
import signal
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import pytest

import pytest_mlperf.run.score
import pytest_mlperf.run.worker.worker  # noqa: F401  (for the forks)
from pytest_mlperf.addons.official.published_table import results_in
from pytest_mlperf.plugin import report_json
from pytest_mlperf.rounds.published import official_results
from pytest_mlperf.run.worker._replica_group import BOOT
from pytest_mlperf.stores import results

NVML = "libnvidia-ml.so.1"

FORGETFUL = tuple(
    f"pytest_mlperf.{part}"
    for part in (
        "bench.baseline",
        "cli",
        "hardware.machine",
        "registry",
        "run",
        "adapters.scorers.code",
    )
)
"""Modules whose caches hold what a fork may find changed; all others cache what never changes."""


EXECUTE = subprocess.Popen._execute_child  # type: ignore[attr-defined]

XDIST = "import sys;exec(eval(sys.stdin.readline()))"
"""What a worker of xdist runs."""


def use_no(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `subprocess` start interpreters again."""
    monkeypatch.setattr(subprocess.Popen, "_execute_child", EXECUTE)


@cache
def _prepare() -> None:
    """Read once, for all forks, the package's own data."""
    official_results()
    for kind in (results._results, results._verdict, report_json.case_result):
        kind().rebuild()


def use(monkeypatch: pytest.MonkeyPatch, *, replicas: bool = False) -> None:
    """Let `subprocess` fork in place of starting this Python for such a module.

    Args:
        monkeypatch: Undoes it.
        replicas: Fork the replicas of an engine as well.
    """
    _prepare()

    def execute_child(popen: Any, args: Sequence[Any], *rest: Any) -> None:
        words = [str(word) for word in args]
        if words[1:2] == ["-mpytest"]:  # as pytester writes it
            words[1:2] = ["-m", "pytest"]
        if words[1:2] == ["-u"]:  # as execnet writes it
            del words[1]
        if _forks(words) and (replicas or BOOT not in words):
            _fork(popen, words[1:], *rest)
        else:
            EXECUTE(popen, args, *rest)

    monkeypatch.setattr(subprocess.Popen, "_execute_child", execute_child)


def _forks(words: Sequence[str]) -> bool:
    """Return whether a command starts pytest, the package, a replica or a worker of xdist."""
    if words[:1] != [sys.executable] or len(words) < 3:
        return False
    if words[1] == "-c":
        return words[2] in (XDIST, BOOT)
    return words[1] == "-m" and words[2].partition(".")[0] in ("pytest", "pytest_mlperf")


def _fork(popen: Any, words: list[str], *rest: Any) -> None:
    """Start the child; `rest` is what `Popen` of Python 3.11 to 3.14 passes after the command."""
    pass_fds, folder, environment = rest[3:6]
    pipes = rest[9:15]  # stdin, stdout and stderr, each as the end to read and the end to write
    ready, becoming = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside other threads
        files = _open_files()
        pid = os.fork()
    if pid == 0:
        try:
            # libuv opens a pipe in each fork, and closes it by its number in a fork of that.
            kept = [number for number, file in _open_files().items() if files.get(number) != file]
            streams = (pipes[0], pipes[3], pipes[5])
            _become([*pass_fds, *kept], folder, environment, streams, own_session=rest[20])
        except BaseException:
            traceback.print_exc()
            os._exit(255)
        _run(words)
    popen.pid, popen._child_created = pid, True
    os.close(becoming)
    # The child closes its end with all other descriptors: it has its session and streams then.
    os.read(ready, 1)
    os.close(ready)
    popen._close_pipe_fds(*pipes)


def _open_files() -> dict[int, str]:
    """Return the target of each open descriptor of this process."""
    files = {}
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the descriptor of the listing itself
            files[int(descriptor.name)] = str(descriptor.readlink())
    return files


def _become(
    pass_fds: Sequence[int],
    folder: str | None,
    environment: Mapping[str, str] | None,
    streams: Sequence[int],
    *,
    own_session: bool,
) -> None:
    """Become like a fresh interpreter."""
    if own_session:
        os.setsid()
    _take_streams(streams, pass_fds)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    if folder:
        os.chdir(folder)
    if environment is not None:
        os.environ.clear()
        os.environ.update(environment)
    sys.excepthook, threading.excepthook = sys.__excepthook__, threading.__excepthook__
    sys.unraisablehook = sys.__unraisablehook__
    faulthandler.disable()
    gc.freeze()  # the objects of the test are not the child's to collect
    gc.set_threshold(50_000)  # a child that lives for a second has little garbage
    warnings.resetwarnings()
    added = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    sys.path[:0] = [str(Path.cwd()), *(part for part in added if part not in sys.path)]
    _forget()


def _take_streams(streams: Sequence[int], pass_fds: Sequence[int]) -> None:
    """Use these as stdin, stdout and stderr, and close all descriptors that are not passed on."""
    for stream, number in enumerate(streams):
        if number != -1:
            os.dup2(number, stream)
    first = 3
    for descriptor in sorted(number for number in pass_fds if number > 2):
        os.closerange(first, descriptor)
        first = descriptor + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))
    sys.stdin, sys.stdout, sys.stderr = (
        io.TextIOWrapper(os.fdopen(number, mode, 0, closefd=False), write_through=True)
        for number, mode in ((0, "rb"), (1, "wb"), (2, "wb"))
    )


def _forget() -> None:
    """Clear the caches of the package and of NVML about the machine and files."""
    results_in.cache_clear()
    for name, module in list(sys.modules.items()):
        if name.startswith(FORGETFUL):
            for value in list(vars(module).values()):
                if clear := getattr(value, "cache_clear", None):
                    clear()
    if nvml := sys.modules.get("pynvml"):
        setattr(nvml, "nvmlLib", None)  # noqa: B010  (mypy does not know it)
    # The loader of shared libraries read the variable when the test's process started.
    for part in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep):
        if part and (library := Path(part) / NVML).exists():
            ctypes.CDLL(str(library))


def _run(words: list[str]) -> NoReturn:
    """Run a module or code as `python -m` or `-c` does, and end as its process would."""
    code = 1
    option, program, *arguments = words
    try:
        if option == "-c":
            sys.argv = [option, *arguments]
            exec(program, {"__name__": "__main__"})
        else:
            sys.argv = [program, *arguments]
            # runpy warns of a module that is imported already
            sys.modules.pop(program if program != "pytest_mlperf" else f"{program}.__main__", None)
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)
    raise AssertionError

"""Start workers and pytest runs as forks of the test's process: no interpreter, no imports.

A fork runs the same `main` with the same arguments, descriptors, environment and LoadGen. Use a
process of its own where the start of the interpreter is what a test is about, and where the child
computes with a library whose threads do not survive a fork (torch, ONNX Runtime).
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import io
import os
import signal
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

from pytest_mlperf.run.worker import worker

MAIN: Mapping[str, Callable[[list[str]], object]] = {
    worker.__name__: worker.main,
    "pytest": pytest.main,
}
"""What runs in a fork, by the module that a command line names after `-m`."""

NVML = "libnvidia-ml.so.1"


def use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `subprocess` fork in place of starting this Python for one of the modules above."""
    execute = subprocess.Popen._execute_child  # type: ignore[attr-defined]

    def execute_child(popen: Any, args: Sequence[Any], *rest: Any) -> None:
        words = [str(word) for word in args]
        if words[1:2] == ["-mpytest"]:  # as pytester writes it
            words[1:2] = ["-m", "pytest"]
        if words[:2] == [sys.executable, "-m"] and words[2] in MAIN:
            _fork(popen, words[2:], *rest)
        else:
            execute(popen, args, *rest)

    monkeypatch.setattr(subprocess.Popen, "_execute_child", execute_child)


def _fork(popen: Any, words: list[str], *rest: Any) -> None:
    """Start the child; `rest` is what `Popen` of Python 3.11 to 3.14 passes after the command."""
    pass_fds, folder, environment = rest[3:6]
    pipes = rest[9:15]  # stdin, stdout and stderr, each as the end to read and the end to write
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside other threads
        pid = os.fork()
    if pid == 0:
        try:
            streams = (pipes[0], pipes[3], pipes[5])
            _become(pass_fds, folder, environment, streams, own_session=rest[20])
        except BaseException:
            traceback.print_exc()
            os._exit(255)
        _run(words)
    popen.pid, popen._child_created = pid, True
    popen._close_pipe_fds(*pipes)


def _become(
    pass_fds: Sequence[int],
    folder: str | None,
    environment: Mapping[str, str] | None,
    streams: Sequence[int],
    *,
    own_session: bool,
) -> None:
    """Become what a fresh interpreter would be."""
    if own_session:
        os.setsid()
    for stream, number in enumerate(streams):
        if number != -1:
            os.dup2(number, stream)
    first = 3
    for descriptor in sorted(pass_fds):
        os.closerange(first, descriptor)
        first = descriptor + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    if folder:
        os.chdir(folder)
    if environment is not None:
        os.environ.clear()
        os.environ.update(environment)
    sys.stdin, sys.stdout, sys.stderr = (
        io.TextIOWrapper(os.fdopen(number, mode, 0), write_through=True)
        for number, mode in ((0, "rb"), (1, "wb"), (2, "wb"))
    )
    sys.excepthook, threading.excepthook = sys.__excepthook__, threading.__excepthook__
    sys.unraisablehook = sys.__unraisablehook__
    faulthandler.disable()
    gc.freeze()  # the objects of the test are not the child's to collect
    warnings.resetwarnings()
    added = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    sys.path[:0] = [str(Path.cwd()), *(part for part in added if part not in sys.path)]
    # The loader of shared libraries read the variable when this process started.
    for part in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep):
        if part and (library := Path(part) / NVML).exists():
            ctypes.CDLL(str(library))


def _run(words: list[str]) -> NoReturn:
    """Run the main function of a module, and end as its process would."""
    code = 1
    sys.argv = words
    try:
        result = MAIN[words[0]](words[1:])
        code = int(result) if isinstance(result, int) else 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    raise AssertionError

"""Start workers as forks of the test's process: no interpreter to start, nothing to import.

A forked worker runs the same `main` with the same arguments, descriptors, environment and LoadGen.
Use a process of its own where the start of the interpreter is what a test is about, and where the
worker computes with a library whose threads do not survive a fork (torch, ONNX Runtime).
"""

from __future__ import annotations

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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

from pytest_mlperf.run.worker import worker

WORKER = worker.__name__


def use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `subprocess` fork in place of starting this Python for a worker."""
    execute = subprocess.Popen._execute_child  # type: ignore[attr-defined]

    def execute_child(popen: Any, args: Sequence[str], *rest: Any) -> None:
        if list(args[:3]) == [sys.executable, "-m", WORKER]:
            _fork(popen, args[3:], *rest)
        else:
            execute(popen, args, *rest)

    monkeypatch.setattr(subprocess.Popen, "_execute_child", execute_child)


def _fork(popen: Any, arguments: Sequence[str], *rest: Any) -> None:
    """Start the worker; `rest` is what `Popen` of Python 3.11 to 3.14 passes after the command."""
    pass_fds, environment = rest[3], rest[5]
    pipes = rest[9:15]  # stdin, stdout and stderr, each as the end to read and the end to write
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside other threads
        pid = os.fork()
    if pid == 0:
        _work(arguments, environment, pass_fds, (pipes[0], pipes[3], pipes[5]))
    popen.pid, popen._child_created = pid, True
    popen._close_pipe_fds(*pipes)


def _work(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    pass_fds: Sequence[int],
    streams: Sequence[int],
) -> NoReturn:
    """Become what a fresh interpreter would be, and run the worker."""
    code = 1
    try:
        os.setsid()
        for stream, number in enumerate(streams):
            os.dup2(number, stream)
        first = 3
        for descriptor in sorted(pass_fds):
            os.closerange(first, descriptor)
            first = descriptor + 1
        os.closerange(first, os.sysconf("SC_OPEN_MAX"))
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        os.environ.clear()
        os.environ.update(environment)
        sys.stdin, sys.stdout, sys.stderr = (
            io.TextIOWrapper(os.fdopen(number, mode, 0), write_through=True)
            for number, mode in ((0, "rb"), (1, "wb"), (2, "wb"))
        )
        sys.excepthook, threading.excepthook = sys.__excepthook__, threading.__excepthook__
        sys.unraisablehook = sys.__unraisablehook__
        faulthandler.disable()
        gc.freeze()  # the objects of the test are not the worker's to collect
        warnings.resetwarnings()
        sys.path.insert(0, str(Path.cwd()))
        worker.main(arguments)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
    raise AssertionError

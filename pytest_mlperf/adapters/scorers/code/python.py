"""Run one Python program of MBXP in a sandbox as mxeval does; a script, never imported.

The script reads program.py and word.txt from its folder. If the program runs to its end, the script
writes the secret word to stdout: a program could fake an exit code by exiting early.
livecodebench_inside.py uses `prepare` too.

As in mxeval, `__name__` is "builtins", so that code under `if __name__ == "__main__"` does not run.
Reading stdin fails. Functions that end processes or change files are removed, so that programs that
use them fail, but the protection is the sandbox.

Source: check_correctness in mxeval/execution.py of https://github.com/amazon-science/mxeval.
"""

# ruff: noqa: PTH107, PTH123
from __future__ import annotations

import builtins
import contextlib
import faulthandler
import importlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import NoReturn

PYTHON_LIBRARIES_FOLDER = "/libraries/python"

PRELOADED = ("multiprocessing", "random", "shutil", "signal", "tempfile", "threading")
"""Modules that mxeval imports; some keep functions that are removed, or read the working folder."""

MISSING = {
    os: (
        "kill system putenv remove removedirs rmdir fchdir setuid fork forkpty killpg rename "
        "renames truncate replace unlink fchmod fchown chmod chown chroot lchflags lchmod lchown "
        "getcwd chdir"
    ),
    shutil: "rmtree move chown",
    subprocess: "Popen",
}
"""Names that are None while the program runs."""

MODULES = ("ipdb", "joblib", "resource", "psutil", "tkinter")
"""Modules that cannot be imported."""


class Closed(io.StringIO):
    """Replace stdin, stdout and stderr: accept output, and raise OSError on every read."""

    def read(self, *_: object) -> NoReturn:
        """Raise OSError."""
        raise OSError

    readline = readlines = read

    def readable(self) -> bool:
        """Return False, as nothing can be read."""
        return False


def prepare(program: str, *, ending: Sequence[str]) -> None:
    """Import modules that programs expect; remove dangerous functions, as mxeval does.

    `ending` names built-in functions to remove as well, such as "exit".
    """
    sys.path = [*(entry for entry in sys.path if entry), PYTHON_LIBRARIES_FOLDER]
    for name in PRELOADED:
        importlib.import_module(name)
    tempfile.gettempdir()  # cached; mxeval has made a temporary folder before
    if "numpy" in program:  # its import needs functions that are removed below
        with contextlib.suppress(ImportError):
            importlib.import_module("numpy")
    faulthandler.disable()
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in ending:
        setattr(builtins, name, None)
    for module, names in MISSING.items():
        for name in names.split():
            setattr(module, name, None)
    for name in MODULES:
        sys.modules[name] = None  # type: ignore[assignment]


def main() -> None:
    """Run the program; if it runs to its end, write the secret word from word.txt to stdout."""
    with open("program.py", encoding="utf-8", newline="") as file:
        program = file.read()
    with open("word.txt", "rb") as file:
        word = file.read()
    os.remove("word.txt")
    out = os.dup(1)
    write, leave = os.write, os._exit
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    del sys.argv[1:]
    prepare(program, ending=("exit", "quit", "help"))
    sys.stdin = sys.stdout = sys.stderr = Closed()
    try:
        exec(program, {})  # noqa: S102 -- in a sandbox
    except BaseException:  # SystemExit fails too
        leave(1)
    write(out, word)
    leave(0)


if __name__ == "__main__":
    main()

"""Runs one Python program of MBXP in a sandbox as mxeval does; a script, never imported.

livecodebench_inside.py prepares programs as this does.

It reads program.py and word.txt from its folder, and writes the word to its stdout if the program
ran to its end: an exit code says less, since a program can leave early with any.

As in mxeval: the program has no name (`__name__` is "builtins", so what follows `if __name__ ==
"__main__"` is not run), cannot read stdin, and lacks functions that end processes or change files.
The sandbox is what protects; they are missing so that programs that use them fail as they do there.

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
"""Modules that a program meets imported already, as in mxeval, which forks with them.

Some of them keep functions that are missing later, or ask for the working folder as they load.
"""

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
"""What cannot be imported."""


class Closed(io.StringIO):
    """Takes what is printed; there is nothing to read."""

    def read(self, *_: object) -> NoReturn:
        """Refuse."""
        raise OSError

    readline = readlines = read

    def readable(self) -> bool:
        """Return False."""
        return False


def prepare(program: str, *, ending: Sequence[str]) -> None:
    """Import the modules that programs expect; remove the built-in functions `ending`.

    Most of these functions end a program.
    """
    sys.path = [*(entry for entry in sys.path if entry), PYTHON_LIBRARIES_FOLDER]
    for name in PRELOADED:
        importlib.import_module(name)
    tempfile.gettempdir()  # it is looked for once; mxeval has made a temporary folder by now
    if "numpy" in program:  # it cannot be imported without the functions that will be missing
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
    """Run the program and write the word."""
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
        exec(program, {})  # noqa: S102 -- what this is for
    except BaseException:  # SystemExit is no end either
        leave(1)
    write(out, word)
    leave(0)


if __name__ == "__main__":
    main()

"""Take from Python what other systems lack, in every process whose PYTHONPATH has this folder.

LACKING names it, separated by blanks: a module, a name of a module ("os.killpg"), or a folder, of
which nothing can be opened or listed.
"""

import errno
import importlib
import os
import sys


def _lose(lacking: str) -> None:
    if lacking.startswith("/"):
        sys.addaudithook(lambda event, about: _refuse(lacking, event, about))
    elif "." in lacking:
        module, name = lacking.split(".")
        of = importlib.import_module(module)
        if hasattr(of, name):
            delattr(of, name)
    else:
        sys.modules[lacking] = None  # type: ignore[assignment]


def _refuse(folder: str, event: str, about: tuple[object, ...]) -> None:
    if event in {"open", "os.listdir", "os.scandir"} and isinstance(about[0], str | bytes):
        path = os.fsdecode(about[0])
        if f"{path}/".startswith(folder):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


for _one in os.environ.get("LACKING", "").split():
    _lose(_one)

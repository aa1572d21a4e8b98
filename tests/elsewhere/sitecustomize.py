"""Remove from Python parts that other systems lack, if PYTHONPATH has this folder.

LACKING names it, separated by blanks: a module, a name of a module ("os.killpg"), or a folder
("/proc/").
"""

import errno
import importlib
import os
import sys
from typing import Any


def _lose(lacking: str) -> None:
    if lacking.startswith("/"):
        stat = os.stat

        def look(event: str, about: tuple[object, ...]) -> None:
            if event in {"open", "os.listdir", "os.scandir"}:
                _refuse(lacking, about[0])

        def stat_elsewhere(path: Any, *args: Any, **named: Any) -> os.stat_result:
            _refuse(lacking, path)
            return stat(path, *args, **named)

        os.stat = stat_elsewhere
        for able in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
            able.add(stat_elsewhere)
        sys.addaudithook(look)
    elif "." in lacking:
        module, name = lacking.split(".")
        of = importlib.import_module(module)
        if hasattr(of, name):
            delattr(of, name)
    else:
        sys.modules[lacking] = None  # type: ignore[assignment]


def _refuse(folder: str, target: object) -> None:
    if isinstance(target, str | bytes | os.PathLike):
        path = os.fsdecode(target)
        if f"{path}/".startswith(folder):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


for _one in os.environ.get("LACKING", "").split():
    _lose(_one)

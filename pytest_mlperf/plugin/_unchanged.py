"""Imports this package as it is written, without pytest's rewriting of assert statements.

pytest rewrites every module of a distribution that has a plugin: here some 200, none of which shows
an assert to anybody. That is half of what the start of a session costs where no bytecode may be
kept, as in containers and read-only environments.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

PACKAGE = "pytest_mlperf."


class _Unchanged(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, _target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(fullname, path) if fullname.startswith(PACKAGE) else None


_FINDER = _Unchanged()


def import_unchanged() -> None:
    """Find this package's modules before pytest does, also after another session has begun."""
    if _FINDER in sys.meta_path:
        sys.meta_path.remove(_FINDER)
    sys.meta_path.insert(0, _FINDER)

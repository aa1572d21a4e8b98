"""Import this package without pytest's assert rewriting.

pytest rewrites the asserts in every module of a plugin's distribution, here some 200. Without a
bytecode cache, as in containers, that is half of a session's start time.
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
    """Put the finder that skips assert rewriting first in `sys.meta_path`, once per session."""
    if _FINDER in sys.meta_path:
        sys.meta_path.remove(_FINDER)
    sys.meta_path.insert(0, _FINDER)

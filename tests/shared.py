"""What takes long to make is made once, however many processes run the tests."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from filelock import FileLock

T = TypeVar("T")


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], T]) -> T:
    """Return the result of `make` in a new folder, computed once for all xdist workers.

    Args:
        factory: Of the test session.
        name: Of the folder; one maker for each.
        make: Gets the folder; its result can be pickled, and is read-only afterwards.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return make(factory.mktemp(name))
    together = factory.getbasetemp().parent
    made = together / f"{name}.pickle"
    with FileLock(together / f"{name}.lock"):
        if made.exists():
            kept: T = pickle.loads(made.read_bytes())
            return kept
        value = make(factory.mktemp(name))
        made.write_bytes(pickle.dumps(value))
        return value

"""Remember which tests were SUSPECT: they are measured first in the next session."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.stores import atomic

SCHEMA = 1


def load(path: Path) -> list[str]:
    """Return the node ids of the suspects, none where the file is absent or damaged.

    The file only orders tests, so a damaged one is started anew and fails nothing.
    """
    try:
        content = json.loads(path.read_bytes())
        found = content["tests"] if content["schema"] == SCHEMA else []
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return []
    return [test for test in found if isinstance(test, str)] if isinstance(found, list) else []


def save(path: Path, tests: Iterable[str]) -> None:
    """Write the node ids of the suspects; none and no file stay so.

    Raises:
        MlperfError: It cannot be written.
    """
    kept = list(tests)
    if kept == load(path):
        return
    try:
        atomic.write_text(path, json.dumps({"schema": SCHEMA, "tests": kept}, indent=1) + "\n")
    except OSError as error:
        raise MlperfError(f"{path}: the suspects cannot be written: {error.strerror}") from None

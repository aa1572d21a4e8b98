"""JSON that comes from elsewhere: bounded in size and depth before anything looks at it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pytest_mlperf.core.errors import MlperfError

LARGEST = 256 * 2**20
"""Bytes of a file: some 20,000 cases with five runs each."""


def read_foreign(path: Path, what: str) -> Any:
    """Return the content of a JSON file.

    Args:
        path: The file.
        what: What it should be, for messages: "results file".

    Raises:
        MlperfError: It cannot be read, is larger than `LARGEST`, or is no JSON.
    """
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
    except OSError as error:
        raise MlperfError(f"{path}: cannot be read: {error.strerror}") from None
    if len(content) > LARGEST:
        raise MlperfError(
            f"{path}: larger than {LARGEST >> 20} MiB, which no {what} is; is it the right file?"
        )
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise MlperfError(f"{path}: not a {what}: {error}") from None

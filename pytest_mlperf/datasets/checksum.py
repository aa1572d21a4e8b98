"""Compare a file with the checksum that its source publishes."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from pytest_mlperf.core.errors import RunError, SuiteError

_FORMS = {"md5": 32, "sha256": 64}
"""Algorithms that sources publish, and the hex digits of each."""


def parse_checksum(what: str, text: str | None) -> tuple[str, str] | None:
    """Return (algorithm, hex digits) of "md5:..." or "sha256:...", or None.

    Args:
        what: Who asks, e.g. "data set squad".
        text: The option.

    Raises:
        SuiteError: It is no such text.
    """
    if text is None:
        return None
    algorithm, _, digits = str(text).lower().partition(":")
    if len(digits) != _FORMS.get(algorithm) or not re.fullmatch("[0-9a-f]+", digits):
        raise SuiteError(
            f'{what}: checksum = {text!r} must be "md5:" with 32 hex digits or "sha256:" with 64'
        )
    return algorithm, digits


def check_file(path: Path, expected: tuple[str, str] | None) -> None:
    """Read a whole file once and compare it with what `parse_checksum` returned; None passes.

    Raises:
        RunError: Its bytes are others.
    """
    if expected is None:
        return
    algorithm, digits = expected
    with path.open("rb") as file:
        found = hashlib.file_digest(file, algorithm).hexdigest()
    if found != digits:
        raise RunError(
            "dataset",
            f"{path}: {algorithm} is {found}, not the {digits} asked for: the file is damaged, "
            "incomplete or another one; get it from its source again, or correct checksum",
        )

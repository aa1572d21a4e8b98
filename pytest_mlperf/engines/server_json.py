"""JSON that a server sent, which may be anything: read so that only a ValueError can come of it."""

from __future__ import annotations

import json
from typing import Any

LARGEST_PAGE = 1 << 24
"""Bytes that are read of a page about a server; vLLM's metrics, the longest, are below 1 MiB."""

DEEPEST = 100
"""Lists and objects in each other; deeper ones could be read and not be written again."""

LARGEST_COUNT = 1 << 53
"""Counts are below this: JSON of other languages has no whole numbers beyond."""


def parse_json(data: bytes) -> Any:
    """Return what a page says.

    Raises:
        ValueError: It is no JSON, is nested too deep, or holds text that UTF-8 cannot carry.
    """
    try:
        text = data.decode()
        value = json.loads(text)
    except RecursionError:
        raise ValueError("JSON that is nested too deep") from None
    _require_flat(value)
    if "\\ud" in text.lower():  # half a character that is escaped passes the parser
        json.dumps(value, ensure_ascii=False).encode()
    return value


def whole_number(value: object) -> int:
    """Return a count.

    Raises:
        ValueError: It is none: infinite, negative, a fraction, text.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < LARGEST_COUNT:
        raise ValueError("not a whole number from 0 to 2^53")
    return value


def words(value: object) -> str:
    """Return a value of JSON as text for a message; what is nested too deep to be shown says so."""
    try:
        return str(value)
    except RecursionError:
        return "(JSON that is nested too deep to be shown)"


def _require_flat(value: Any) -> None:
    level = [value]
    for _ in range(DEEPEST):
        level = [
            child
            for each in level
            if isinstance(each, dict | list)
            for child in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return
    raise ValueError("JSON that is nested too deep")

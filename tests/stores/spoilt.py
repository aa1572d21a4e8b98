"""Documents with one other value, as a hand or a bad merge leaves them."""

from __future__ import annotations

from functools import reduce
from operator import getitem
from typing import Any


def changed(document: Any, path: str, value: object) -> Any:
    """Put a value at a dotted place of a document, and return the document."""
    *folders, last = (int(key) if key.isdigit() else key for key in path.split("."))
    reduce(getitem, folders, document)[last] = value
    return document

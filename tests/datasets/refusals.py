"""Calls that must be refused, each with a part of the message that it must give."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from pytest_mlperf.core.errors import RunError


def not_refused(
    kind: type[Exception],
    rows: Iterable[Any],
    *calls: Callable[..., object],
    start: object = "",
    advice: Iterable[str] = ("",),
) -> list[str]:
    """Return what is wrong with the refusals of calls.

    Args:
        kind: The error that each call must raise; a RunError must be one of the data set.
        rows: The arguments of a call, and last a part of the message or a pattern of it.
        calls: Each is called with every row.
        start: What every message begins with.
        advice: Parts of which every message has at least one.
    """
    failures = []
    for *arguments, part in rows:
        for call in calls:
            try:
                call(*arguments)
            except kind as error:
                text = str(error)
                right = bool(part in text or re.search(part, text))
                right &= text.startswith(str(start))
                right &= any(words in text for words in advice)
                right &= not isinstance(error, RunError) or error.layer == "dataset"
                if not right:
                    failures.append(f"{part!r}: {text[:400]}")
            else:
                failures.append(f"{part!r}: accepted")
    return failures

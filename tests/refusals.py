"""Calls that must be refused, as a table."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pytest_mlperf.core.errors import RunError


def unrefused(
    call: Callable[..., object],
    error: type[Exception],
    rows: Iterable[Sequence[Any]],
    *,
    layer: str | None = None,
    start: str = "",
    advice: Sequence[str] = ("",),
) -> list[str]:
    """Return a line for each row that is not refused as expected.

    Args:
        call: Called with each row but its last item.
        error: The error that each call must raise.
        rows: Arguments, and last a part of the message or a pattern of it.
        layer: The layer that a RunError must name; None accepts any.
        start: Prefix of every message.
        advice: Parts of which every message has at least one.
    """
    failures = []
    for *arguments, message in rows:
        text = "not refused"
        try:
            call(*arguments)
        except error as caught:
            text = str(caught)
            if (
                (message in text or re.search(message, text))
                and text.startswith(start)
                and any(words in text for words in advice)
                and (layer is None or not isinstance(caught, RunError) or caught.layer == layer)
            ):
                continue
        failures.append(f"{arguments}: {text[:400]!r} is not {start!r} ... {message!r}")
    return failures

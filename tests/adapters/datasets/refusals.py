"""Calls that a data set must refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tests.refusals import unrefused


def not_refused(
    error: type[Exception],
    rows: Iterable[Sequence[Any]],
    *calls: Callable[..., object],
    start: object = "",
    advice: Sequence[str] = ("",),
) -> list[str]:
    """Return a line for each row whose refusal differs between several calls."""
    rows = list(rows)
    return [
        line
        for call in calls
        for line in unrefused(call, error, rows, layer="dataset", start=str(start), advice=advice)
    ]

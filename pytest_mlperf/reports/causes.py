"""Causes as a reader sees them: numbered, the strongest first, each with its evidence."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_mlperf.core.causes import Cause, Strength
from pytest_mlperf.reports.layout import fold, paragraphs

INDENT = "  "


def likely(found: Sequence[Cause], width: int) -> list[str]:
    """Return the paragraph of a failure message; nothing where there is nothing to explain."""
    return paragraphs("likely", _numbered(found), width)


def section(found: Sequence[Cause], others: int, width: int) -> list[str]:
    """Return a section of `explain`: a heading, then one line per cause.

    Args:
        found: What was found; nothing gives no section.
        others: Other tests of the session that were looked at.
        width: Columns.
    """
    if not found:
        return []
    beside = f", beside {others} other tests of the session" if others > 1 else ""
    lines = [
        line
        for text in _numbered(found)
        for line in fold(text, width, first=INDENT, rest=INDENT * 2)
    ]
    return [f"Likely causes, each with its evidence{beside}", *lines]


def _numbered(found: Sequence[Cause]) -> list[str]:
    """Return the sentences; that no cause was found has no number."""
    causes = [cause.says for cause in found if cause.strength is not Strength.NONE]
    rest = [cause.says for cause in found if cause.strength is Strength.NONE]
    if len(causes) < 2:
        return causes + rest
    return [f"{number}. {says}" for number, says in enumerate(causes, start=1)] + rest

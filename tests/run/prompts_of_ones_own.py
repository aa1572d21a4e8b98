"""A data set of the tested project: two prompts as token ids."""

from __future__ import annotations


def prompts(first: int = 0) -> list[list[int]]:
    """Return prompts that begin with one token."""
    return [[first, first + 1], [first + 1, first + 2, first + 3]]

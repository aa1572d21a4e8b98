"""A data set of the tested project: two prompts as token ids, and slow ones."""

from __future__ import annotations

import time

from pytest_mlperf.run.worker.samples import Samples


def prompts(first: int = 0) -> list[list[int]]:
    """Return prompts that begin with one token."""
    return [[first, first + 1], [first + 1, first + 2, first + 3]]


class Slow(Samples):
    """These prompts, each after a millisecond of preprocessing."""

    def __init__(self) -> None:
        """Take them."""
        super().__init__(prompts())

    def input(self, index: int) -> list[int]:
        """Return a prompt."""
        time.sleep(0.001)
        tokens: list[int] = super().input(index)
        return tokens

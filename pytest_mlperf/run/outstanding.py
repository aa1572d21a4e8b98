"""Which samples the engine still owes: each leaves exactly once, whichever threads race."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Sequence
from operator import length_hint

ROW = 64
"""A list at least this long is first kept as it came: most engines complete in that order."""


class Outstanding:
    """Ids that were issued and not completed.

    A long list stays a list with a cursor for as long as it is completed in its own order, which
    costs a tenth of a set; the first completion out of order spreads the rest into the set.

    Attributes:
        ids: What is outstanding outside the list.
        take: Removes one id from `ids`; raises KeyError, also for an id that is in the list.
    """

    def __init__(self) -> None:
        self.ids: set[int] = set()
        self.take = self.ids.remove  # bound once: it runs for every sample
        self._lock = threading.Lock()
        self._row: list[int] = []
        self._row_left = 0

    def __len__(self) -> int:
        """Return how many are outstanding; while threads race it may be too high, never too low."""
        return len(self.ids) + self._row_left

    def add(self, ids: Sequence[int]) -> None:
        """Note ids about to be submitted."""
        if len(ids) < ROW:
            self.ids.update(ids)
            return
        with self._lock:
            self._spread()
            self._row = list(ids)  # a copy, because the engine may change the list it is given
            self._row_left = len(ids)

    def claim(self, ids: Sequence[int]) -> Collection[int]:
        """Take ids out; return the positions of those that were not outstanding."""
        if self._row and self._claim_in_row(ids):
            return ()
        rest = iter(ids)
        bad: set[int] = set()
        while True:
            try:
                # Each removal is atomic, so of two threads with one id exactly one succeeds.
                deque(map(self.take, rest), 0)
            except KeyError:
                bad.add(len(ids) - length_hint(rest) - 1)
            else:
                return bad

    def claim_late(self, sample: int) -> bool:
        """Take out an id that `take` did not find; return whether it was in the list."""
        with self._lock:
            self._spread()
        try:
            self.take(sample)
        except KeyError:
            return False
        return True

    def holds_any(self, ids: Sequence[int]) -> bool:
        """Return whether any of these is outstanding."""
        if self._row_left:
            with self._lock:
                self._spread()
        return not self.ids.isdisjoint(ids)

    def _claim_in_row(self, ids: Sequence[int]) -> bool:
        with self._lock:
            start = len(self._row) - self._row_left
            wanted = ids if type(ids) is list else list(ids)
            if self._row[start : start + len(ids)] == wanted:
                self._row_left -= len(ids)
                return True
            self._spread()
            return False

    def _spread(self) -> None:
        """Move what is left of the list into the set."""
        if self._row:
            self.ids.update(self._row[len(self._row) - self._row_left :])
            self._row_left = 0
            self._row = []

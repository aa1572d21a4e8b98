"""An engine whose first queries are slow."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import count
from typing import Any

from pytest_mlperf.builtin.null import NullEngine
from pytest_mlperf.core.extension import Sink


class SlowStart(NullEngine):
    """Takes `first_s` for each of its `first` samples, then `then_s`; one after the other."""

    def __init__(self, *, first: int, first_s: float, then_s: float, **others: Any) -> None:
        """Have answered nothing yet."""
        super().__init__(**others)
        self._first, self._first_s, self._then_s = first, first_s, then_s
        self._answered = count()

    def submit(self, ids: Sequence[int], samples: Sequence[int], sink: Sink) -> None:
        """Answer one after the other."""
        for sample_id, sample in zip(ids, samples, strict=True):
            slow = next(self._answered) < self._first
            time.sleep(self._first_s if slow else self._then_s)
            super().submit([sample_id], [sample], sink)

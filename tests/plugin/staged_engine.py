"""An engine of three stages that sleep, and says how long each of them took."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_mlperf.builtin.null import NullEngine
from pytest_mlperf.core.extension import Sink

BATCH = 16


class Staged(NullEngine):
    """Sleeps for 20 ms, `unet_s` and 20 ms in each batch."""

    def __init__(self, *, unet_s: float, **others: Any) -> None:
        """Have worked on nothing yet."""
        super().__init__(**others)
        self._stages = {"text_encoder": 0.02, "unet": unet_s, "vae": 0.02}
        self._seconds: Counter[str] = Counter()

    def submit(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        """Answer batch by batch."""
        for start in range(0, len(ids), BATCH):
            for stage, seconds in self._stages.items():
                begun = time.perf_counter()
                time.sleep(seconds)
                self._seconds[stage] += time.perf_counter() - begun  # type: ignore[assignment]
            batch = slice(start, start + BATCH)
            super().submit(ids[batch], indices[batch], sink)

    def stage_seconds(self) -> Mapping[str, float]:
        """Return the sums since the last call."""
        seconds, self._seconds = self._seconds, Counter()
        return seconds

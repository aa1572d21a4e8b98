"""An engine whose work has two stages, or that reports impossible ones."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence

from pytest_mlperf.core.extension import Dataset, Engine, Sink

REFUSED: Mapping[str, object] = {
    "nan": {"unet": math.nan},
    "negative": {"unet": -0.1},
    "too much": {"unet": 1e6},
    "name": {"U-Net": 0.1},
    "list": ["unet"],
}


class Stages(Engine):
    """Sleeps for a millisecond a list in stage "first" and for three in "second"."""

    def __init__(self, dataset: Dataset, model: str | None, precision: str, how: str = "") -> None:
        self._how = how
        self._seconds: Counter[str] = Counter()

    def submit(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        for stage, seconds in (("first", 0.001), ("second", 0.003)):
            begun = time.perf_counter()
            time.sleep(seconds)
            self._seconds[stage] += time.perf_counter() - begun  # type: ignore[assignment]
        sink.done(ids)

    def stage_seconds(self) -> Mapping[str, float]:
        seconds, self._seconds = self._seconds, Counter()
        return REFUSED[self._how] if self._how else seconds  # type: ignore[return-value]

"""Measure how long each stage of a torch engine takes; import torch only when needed."""

from __future__ import annotations

import threading
from collections import defaultdict
from time import perf_counter
from typing import Any


class StageTimes:
    """Sum the time of each stage until `take` returns and resets the sums; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def add(self, stage: str, seconds: float) -> None:
        with self._lock:
            self._seconds[stage] += seconds

    def take(self) -> dict[str, float]:
        with self._lock:
            seconds, self._seconds = dict(self._seconds), defaultdict(float)
        return seconds


class Stopwatch:
    """Measure how long each of the successive stages of a batch takes."""

    def __init__(self, stages: StageTimes, device: Any) -> None:
        self._stages, self._device = stages, device
        self._begun_s = perf_counter()

    def end(self, stage: str) -> None:
        """Wait for the GPU to finish queued work, end a stage, and add its time."""
        if self._device.type == "cuda":
            import torch

            torch.cuda.synchronize(self._device)
        now_s = perf_counter()
        self._stages.add(stage, now_s - self._begun_s)
        self._begun_s = now_s

"""The rate that an engine is offered where the suite names none."""

from __future__ import annotations

from typing import Any

from pytest_mlperf.run.worker.worker import (
    LOADGEN_QPS,
    MIN_PROBE_SECONDS,
    WARMUP_BATCH,
    probe_offline,
)


class TimedDriver:
    def __init__(self, sample_s: float) -> None:
        self.sample_s = sample_s
        self.lists: list[int] = []

    def submit(self, samples: int) -> float:
        self.lists.append(samples)
        return samples * self.sample_s


def test_an_engine_is_asked_for_no_more_than_loadgen_completes() -> None:
    """Else LoadGen issues tens of millions of samples, and a run of one second lasts a minute."""
    instant: Any = TimedDriver(1e-12)
    usual: Any = TimedDriver(1e-4)

    assert probe_offline(instant) == LOADGEN_QPS
    assert instant.lists == [WARMUP_BATCH << n for n in range(len(instant.lists))]
    assert instant.lists[-2] < LOADGEN_QPS * MIN_PROBE_SECONDS <= instant.lists[-1]
    assert round(probe_offline(usual)) == 10_000
    assert usual.lists[-2] * 1e-4 < MIN_PROBE_SECONDS <= usual.lists[-1] * 1e-4

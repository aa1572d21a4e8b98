"""What a GPU does and holds before an engine is loaded: what others do there, if anything.

The fixed micro-benchmark works on the GPU just before the sampler starts, and a board's utilisation
is a mean of up to a second, shown for as long: a reading at once would blame others for it. So it
is read again until it has faded, or has had the time to.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from pytest_mlperf.hardware.nvml import Lost
from pytest_mlperf.hardware.sampler_gpu import Gpu

BUSY_PERCENT = 10
"""Utilisation that someone's work must be behind."""

LONGEST_MEAN_S = 1.0
"""No board is known to average its utilisation over more."""

FADES_S = 2.25 * LONGEST_MEAN_S
"""What is still high after so long is someone's work: a mean may be shown until the next one."""

LOOK_S = 0.05

AT_REST = ("utilization_percent", "processes", "memory_used")


def read_at_rest(gpus: Sequence[Gpu], stop: threading.Event) -> dict[int, Lost]:
    """Read each GPU's state at rest, again while its utilisation is high and may yet fade.

    Returns:
        Which GPUs were lost meanwhile, by index.
    """
    lost: dict[int, Lost] = {}
    end = time.monotonic() + FADES_S
    busy = list(gpus)
    while busy:
        for gpu in list(busy):
            try:
                gpu.first |= {
                    probe.name: value
                    for probe in gpu.group(AT_REST)
                    if (value := probe.read()) is not None
                }
            except Lost as error:
                lost[gpu.index] = error
                busy.remove(gpu)
        busy = [gpu for gpu in busy if gpu.first.get("utilization_percent", 0) >= BUSY_PERCENT]
        if time.monotonic() >= end or stop.wait(LOOK_S):
            break
    return lost

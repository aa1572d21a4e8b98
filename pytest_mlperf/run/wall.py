"""Put onto a run what a wall meter saw of it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.measurement import Run
from pytest_mlperf.core.meter import wall_energy
from pytest_mlperf.run.meter import read_meter
from pytest_mlperf.run.power_run import per_joule, window_s


@dataclass(frozen=True, kw_only=True)
class Meter:
    """A wall meter that logs to a file while runs are made.

    Attributes:
        path: The file.
        offset_s: How far its clock is ahead of UTC where it writes no zone, seconds.
    """

    path: Path
    offset_s: float = 0.0

    @classmethod
    def at(cls, path: Path | None, offset_s: float) -> Self | None:
        """Return the meter of an option; None where no file is named."""
        return cls(path=path, offset_s=offset_s) if path else None


def with_wall(run: Run, meter: Meter | None) -> Run:
    """Return a run with the wall energy of its timed part, and samples and tokens per joule of it.

    A file that broke since the session began costs the energy, never the run.
    """
    if meter is None:
        return run
    begin_s, end_s = window_s(run)
    try:
        readings = read_meter(meter.path, until_s=end_s, local_offset_s=meter.offset_s)
    except MlperfError as error:
        wall = dataclasses.replace(wall_energy((), begin_s, end_s), notes=(str(error),))
    else:
        wall = wall_energy(readings, begin_s, end_s)
    metrics = {**run.metrics, **per_joule(run, wall.joules, "_wall")}
    return dataclasses.replace(run, wall=wall, metrics=metrics)

"""Points of a curve that an engine's harness measures, in place of a loop of our own."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_mlperf.core.extension import Engine
from pytest_mlperf.core.job import LoadGenSettings
from pytest_mlperf.rounds.endpoints import scored_points
from pytest_mlperf.run.worker._sink import Faults
from pytest_mlperf.run.worker.closed_loop import order
from pytest_mlperf.run.worker.point_window import SCHEMA_VERSION


@dataclass
class Pulse:
    """How often a harness was seen to work: progress of a load that is not our own."""

    completed: int = 0
    outstanding: int = 0
    faults: Faults = field(default_factory=Faults)

    def repeated(self) -> None:
        """Return nothing: it has no indices."""

    def beat(self) -> None:
        """Note that it works."""
        self.completed += 1


def measured(
    engine: Engine,
    settings: LoadGenSettings,
    folder: Path,
    pulse: Pulse,
    at_edges: Callable[[], None],
) -> dict[str, Any]:
    """Have the harness measure all points, each in a folder of its own below `folder`.

    Returns for the log the order, and by folder the seconds by which the monotonic clock began
    later than the wall clock.
    """
    clocks, points = dict[str, float](), order(settings, folder.parent.name)
    at_edges()
    for point in points:
        name = f"c{point:g}"
        scored = round(point) in scored_points([round(each) for each in points])
        engine.measure_point(round(point), settings, folder / name, pulse.beat, scored=scored)
        clocks[name] = time.time() - time.monotonic()
    at_edges()
    return {"schema": SCHEMA_VERSION, "order": points, "recorded": clocks}

"""Measure the points of a curve with an engine's own harness instead of our loops."""

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
    """Count a harness's signs of life as progress."""

    completed: int = 0
    outstanding: int = 0
    faults: Faults = field(default_factory=Faults)

    def repeated(self) -> None:
        """Return None, as there are no indices."""

    def beat(self) -> None:
        self.completed += 1


def measured(
    engine: Engine,
    settings: LoadGenSettings,
    folder: Path,
    pulse: Pulse,
    at_edges: Callable[[], None],
) -> dict[str, Any]:
    """Let the harness measure all points in folders below `folder`, and return the log."""
    offsets_s, points = dict[str, float](), order(settings, folder.parent.name)
    at_edges()
    for point in points:
        name = f"c{point:g}"
        scored = round(point) in scored_points([round(each) for each in points])
        engine.measure_point(round(point), settings, folder / name, pulse.beat, scored=scored)
        offsets_s[name] = time.time() - time.monotonic()
    at_edges()
    return {"schema": SCHEMA_VERSION, "order": points, "recorded": offsets_s}

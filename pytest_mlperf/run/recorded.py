"""Read the results of a curve that MLCommons' client measured in our run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pytest_mlperf.core.errors import MlperfError, RunError
from pytest_mlperf.core.untrusted import parse_json
from pytest_mlperf.run.curve import CurveLog, unsteady
from pytest_mlperf.run.figures import Findings
from pytest_mlperf.run.worker.point_window import SCHEMA_VERSION, WINDOW_PARTS, PointWindow
from pytest_mlperf.stores import endpoints
from pytest_mlperf.stores.foreign import MAX_FILE_BYTES, read_regular


def read_recorded(path: Path, harness: str) -> tuple[CurveLog, Findings]:
    """Return a run's points, each from a folder next to the worker's log, and findings.

    `harness` is the client's version before the run. Raises RunError if a folder is incomplete, or
    another version wrote it.
    """
    try:
        content = parse_json(read_regular(path, MAX_FILE_BYTES))
        if content["schema"] != SCHEMA_VERSION:
            raise ValueError(f"schema {content['schema']!r}, not {SCHEMA_VERSION}")
        clocks = {str(name): float(clock_s) for name, clock_s in content["recorded"].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise RunError("worker", f"{path} is no log of a curve: {error}", str(path)) from error
    try:
        points = sorted(
            (
                (endpoints.read_point(path.parent / name), clock_s)
                for name, clock_s in clocks.items()
            ),
            key=lambda pair: pair[0].concurrency,
        )
        windows = tuple(_tracked(point, clock_s) for point, clock_s in points)
    except MlperfError as error:
        raise RunError("engine", str(error), str(path.parent)) from error
    for point, _ in points:
        if (measured_by := endpoints.version_of(point.facts)) != harness:
            text = f"{measured_by} measured, and not {harness}: it was exchanged meanwhile"
            raise RunError("engine", text, str(point.folder))
    log = CurveLog(
        path=str(path),
        samples=sum(point.requests for point, _ in points),
        points=windows,
        scored=any(endpoints.file_of(point.folder, endpoints.ACCURACY_FILE) for point, _ in points),
    )
    reasons = [reason for point, _ in points for reason in point.invalid]
    return log, Findings(
        invalid=(*reasons, *(reason for window in windows for reason in unsteady(window))),
        notes=tuple(note for point, _ in points for note in point.notes),
    )


def _tracked(point: endpoints.RecordedPoint, clock_s: float) -> PointWindow:
    """Return a point with its window's parts; `clock_s` is wall minus monotonic clock."""
    events = endpoints.read_events(point.folder)
    begin_s, end_s = events.begin_ns / 1e9, events.end_ns / 1e9
    parts = [0] * WINDOW_PARTS
    for ended_ns in events.completed_ns:
        part = int((ended_ns / 1e9 - begin_s) / (end_s - begin_s) * WINDOW_PARTS)
        parts[min(WINDOW_PARTS - 1, part)] += 1
    window = recorded_window(point, begin_s + clock_s, end_s + clock_s)
    return replace(window, parts=tuple((count, 0, 0.0) for count in parts))


def recorded_curve(points: Sequence[endpoints.RecordedPoint]) -> CurveLog:
    """Return the curve of a session of the client, from its results alone."""
    windows = (recorded_window(one, one.ended_s - one.duration_s, one.ended_s) for one in points)
    return CurveLog(path="", samples=sum(one.requests for one in points), points=tuple(windows))


def recorded_window(point: endpoints.RecordedPoint, begin_s: float, end_s: float) -> PointWindow:
    """Return a point as the client counted it; its reader checked the concurrency."""
    return PointWindow(
        point=point.concurrency,
        begin_s=begin_s,
        end_s=end_s,
        duration_s=point.duration_s,
        requests=point.requests,
        tokens=0,
        under_way=float(point.concurrency),
        metrics=point.metrics,
        parts=(),
        length_se=point.length_se,
    )

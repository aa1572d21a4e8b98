"""Read what runs left in their folders, for an HTML report, and nothing outside these."""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import TypeGuard

from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.measurement import Run
from pytest_mlperf.core.trace import Reading
from pytest_mlperf.reports.html.model import (
    GpuTrace,
    Moment,
    Percentiles,
    PowerTrace,
    Readings,
    Spent,
)
from pytest_mlperf.reports.timeline_model import decimate, merged
from pytest_mlperf.run.logs import DETAIL, Detail, Timed, parse_detail
from pytest_mlperf.run.over_time import FILE as LATENCIES
from pytest_mlperf.run.power import FILE
from pytest_mlperf.run.timeline import read_timeline

LARGEST = 64 * 2**20
"""Bytes of a log that is read; a longer one is left out."""

DEEPEST = 6
"""Folders of a run's path, from its end, that may lie below the results file."""

COLUMNS, BANDS = 150, 60
"""A line over time has at most twice so many points; a reason so many spans."""

_PERCENTILES = (0.5, 0.9, 0.95, 0.97, 0.99, 0.999)

_TIMED: dict[str, Timed] = {"latency": "latency", "ttft": "ttft", "tpot": "tpot"}

_LIMITS = {"latency": "latency_limit_ns", "ttft": "ttft_limit_ns", "tpot": "tpot_limit_ns"}


def folder_below(root: Path, named: str) -> Path | None:
    """Return a run's folder below the folder of its results file; None: it is not there.

    A results file names folders of the machine that measured, so only the path's end is looked
    for, and whatever leads elsewhere is not followed.

    Args:
        root: Folder of the results file, resolved.
        named: The folder's path as the results file has it.
    """
    parts = PurePath(named).parts
    for length in range(min(DEEPEST, len(parts)), 0, -1):
        tail = parts[-length:]
        if any(part in {"..", "/"} for part in tail):
            continue
        try:
            found = root.joinpath(*tail)
            if found.is_dir() and found.resolve() == found:
                return found
        except (OSError, ValueError):  # a name that is too long, or holds a 0 byte
            continue
    return None


def _file(folder: Path, name: str) -> Path | None:
    """Return a file of a folder that is no link to elsewhere and not too large."""
    path = folder / name
    if not path.is_file() or path.resolve().parent != folder.resolve():
        return None
    return path if path.stat().st_size <= LARGEST else None


def _detail(folder: Path) -> Detail | None:
    path = _file(folder, DETAIL)
    return parse_detail(path) if path else None


# --- latencies -------------------------------------------------------------------------------


def percentiles_of(folder: Path, scenario: str) -> list[Percentiles]:
    """Return the percentiles that LoadGen logged, with its limits.

    Raises:
        RunError: A log is damaged.
    """
    detail = _detail(folder)
    if detail is None or scenario == "Offline":
        return []
    settings = _told(folder, "settings")
    found = []
    for what, timed in _TIMED.items():
        points = _logged(detail, "query_latency" if scenario == "MultiStream" else timed)
        limit = settings.get(_LIMITS[what])
        if points:
            found.append(
                Percentiles(
                    what=what,
                    points=points,
                    limit_s=limit / 1e9 if limit else None,
                    limit_share=settings.get("latency_percentile", 0.99) if limit else None,
                )
            )
    return found


def _logged(detail: Detail, timed: Timed) -> list[tuple[float, float]]:
    points = [
        (share, nanoseconds / 1e9)
        for share in _PERCENTILES
        if (nanoseconds := detail.percentile_ns(timed, share))
    ]
    fastest = detail.values.get("result_min_latency_ns")
    if timed == "latency" and points and _positive(fastest):
        points.insert(0, (0.0, fastest / 1e9))
    return [point for point in points if point[1] > 0]


def _told(folder: Path, part: str) -> dict[str, float]:
    """Return the numbers in a part of run.json; what is damaged is not known."""
    path = _file(folder, "run.json")
    try:
        told = json.loads(path.read_bytes())[part] if path else {}
        return {key: value for key, value in told.items() if _positive(value)}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}


def _positive(value: object) -> TypeGuard[float]:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 < value < math.inf  # type: ignore[operator]


def moments_of(folder: Path) -> list[Moment]:
    """Return latencies over a run's time, where the worker kept them; empty where it did not."""
    path = _file(folder, LATENCIES)
    if path is None:
        return []
    try:
        rows = json.loads(path.read_bytes())["moments"]
        return [
            Moment(time_s=float(s), p50_s=float(p50), p99_s=float(p99), outstanding=int(waiting))
            for s, p50, p99, waiting in rows[:1000]
            if all(map(math.isfinite, (s, p50, p99, waiting)))
        ]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise MlperfError(f"{path}: no latencies over time: {error}") from None


# --- time and power --------------------------------------------------------------------------


def spent_of(folder: Path, run: Run) -> Spent | None:
    """Return where the time of a run's process went.

    Args:
        folder: With LoadGen's logs of the performance run.
        run: The run; it began when its process was about to be started.

    Raises:
        RunError: A log is damaged.
    """
    detail = _detail(folder)
    if detail is None:
        return None
    begin_s, end_s = detail.window_s
    try:
        started_s = dt.datetime.fromisoformat(run.started).timestamp()
    except ValueError:
        started_s = begin_s
    blocks = sorted((folder.parent / "accuracy").glob("block-*"))
    windows = [found.window_s for block in blocks if (found := _detail(block))]
    told = _told(folder, "spent")
    load_s, warm_s = (min(told.get(name, 0.0), 86_400.0) for name in ("load_s", "warmup_s"))
    return Spent(
        before_s=max(begin_s - started_s - load_s - warm_s, 0.0),
        load_s=load_s,
        warm_s=warm_s,
        window_s=max(end_s - begin_s, 0.0),
        accuracy_s=math.fsum(end - begin for begin, end in windows),
    )


def power_of(folder: Path) -> PowerTrace | None:
    """Return power, clock and temperature of the GPUs over a run; None where none were sampled.

    Raises:
        RunError: What was sampled is damaged, or LoadGen's window is not in it.
    """
    above = folder.parent
    if _file(above, FILE) is None or _file(folder, DETAIL) is None:
        return None
    timeline = read_timeline(above)
    return PowerTrace(
        window_s=timeline.window_s,
        gpus=[
            GpuTrace(
                name=gpu.name,
                power=_thin(gpu.power),
                clock=_thin(gpu.clock),
                temperature=_thin(gpu.temperature),
                limit_w=gpu.limit_w,
            )
            for gpu in timeline.gpus
        ],
        held=[
            (lane.label, lane.kind, merged(lane.spans, _length(timeline.shown) / BANDS))
            for lane in timeline.lanes
        ],
    )


def _length(shown: tuple[float, float]) -> float:
    return max(shown[1] - shown[0], 1e-9)


def _thin(readings: Sequence[Reading]) -> Readings:
    return [(reading.time_s, reading.value) for reading in decimate(readings, COLUMNS)]

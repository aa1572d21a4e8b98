"""Measure the client's maximum rate against a null server, after all windows."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_mlperf.core.extension import Engine
from pytest_mlperf.core.job import LoadGenSettings
from pytest_mlperf.run.worker._sink import Fail
from pytest_mlperf.run.worker.closed_loop import ClosedLoop, SlotSink
from pytest_mlperf.run.worker.conversations import Conversations

MAX_IDLE_CORES = 0.1
"""A single-threaded client that uses fewer cores has over half of its capacity left."""

LASTS_MS = 1000

MIN_LOOP_REQUESTS = 16
"""Minimum concurrency of the check for an open loop, or for conversations with pauses."""

TOKENS_UNDER_WAY = 32_768
"""Longer answers are cut to this many tokens in flight, as warming up would take minutes."""


def with_reach(
    points: Sequence[Mapping[str, Any]],
    engine: Engine,
    loaded: Sequence[int],
    settings: LoadGenSettings,
    fail: Fail,
    *,
    lasts_ms: int = LASTS_MS,
) -> list[dict[str, Any]]:
    """Return the logged points, each with the client's maximum rate if the client was busy.

    Call it while the engine is idle; it has `loaded` these samples. Each measurement takes
    `lasts_ms`.
    """
    brief = dataclasses.replace(settings, min_duration_ms=lasts_ms, ramp_ms=0, arrivals="")
    return [
        {**point_row, "client_reach": _reach(point_row, engine, loaded, brief, fail)}
        if point_row["client_busy"] >= MAX_IDLE_CORES and point_row["requests"]
        else dict(point_row)
        for point_row in points
    ]


def _reach(
    point_row: Mapping[str, Any],
    engine: Engine,
    loaded: Sequence[int],
    settings: LoadGenSettings,
    fail: Fail,
) -> float | None:
    """Return the client's maximum requests/s at a point's mean length; None without a client."""
    concurrency = int(point_row["point"])
    if point_row["open"] is not None or point_row["paused"]:
        concurrency = max(MIN_LOOP_REQUESTS, math.ceil(point_row["under_way"]))
    length = max(2.0, point_row["tokens"] / point_row["requests"])
    tokens = max(2, min(round(length), TOKENS_UNDER_WAY // concurrency))
    client = engine.null_client(tokens)
    if client is None:
        return None
    settings_of_point = dataclasses.replace(settings, points=[concurrency])
    sink = SlotSink(fail, tokens=settings.tokens)
    with client as driven:
        log = ClosedLoop(driven, sink, Conversations(loaded), settings_of_point).run(
            "client check", 0.0, lambda: None
        )
    (window,) = log["points"]
    return float(window["requests"] / window["duration_s"] * tokens / length)

"""What the client reaches against a server that computes nothing, after all windows."""

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
"""Cores below which a client has surely more than half of itself left: it works in one thread."""

LASTS_MS = 1000

MIN_LOOP_REQUESTS = 16
"""Requests that are kept under way at least in place of an open loop's, or of conversations that
wait for their next turn."""

TOKENS_UNDER_WAY = 32_768
"""Longer answers are cut to so many tokens in all that are under way, or warming up took minutes;
their cost is that of their tokens."""


def with_reach(
    points: Sequence[Mapping[str, Any]],
    engine: Engine,
    loaded: Sequence[int],
    settings: LoadGenSettings,
    fail: Fail,
    *,
    lasts_ms: int = LASTS_MS,
) -> list[dict[str, Any]]:
    """Return points as they are logged, with the client's reach if it had much to do.

    Nothing of the engine, which `loaded` these samples, is under way. `fail` gets a broken server
    or client. Each measurement lasts `lasts_ms`.
    """
    brief = dataclasses.replace(settings, min_duration_ms=lasts_ms, ramp_ms=0, arrivals="")
    return [
        {**one, "client_reach": _reach(one, engine, loaded, brief, fail)}
        if one["client_busy"] >= MAX_IDLE_CORES and one["requests"]
        else dict(one)
        for one in points
    ]


def _reach(
    one: Mapping[str, Any],
    engine: Engine,
    loaded: Sequence[int],
    settings: LoadGenSettings,
    fail: Fail,
) -> float | None:
    """Return requests/s of the point's mean length; None where the engine is no client."""
    concurrency = int(one["point"])
    if one["open"] is not None or one["paused"]:
        concurrency = max(MIN_LOOP_REQUESTS, math.ceil(one["under_way"]))
    length = max(2.0, one["tokens"] / one["requests"])
    tokens = max(2, min(round(length), TOKENS_UNDER_WAY // concurrency))
    client = engine.null_client(tokens)
    if client is None:
        return None
    asked = dataclasses.replace(settings, points=[concurrency])
    sink = SlotSink(fail, tokens=settings.tokens)
    with client as driven:
        log = ClosedLoop(driven, sink, Conversations(loaded), asked).run(
            "client check", 0.0, lambda: None
        )
    (window,) = log["points"]
    return float(window["requests"] / window["duration_s"] * tokens / length)

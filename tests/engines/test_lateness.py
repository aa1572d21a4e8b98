"""A loop that is held up is late for whatever comes in meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from pytest_mlperf.engines.llm.streaming import EVERY_S, RESOLUTION_S, Lateness


class ByHand:
    """A loop whose time a test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        self.timers.append((self.now_s + delay_s, callback))

    def fire(self, late_s: float = 0.0) -> None:
        """Let the one timer go off, so much after it was due."""
        ((due_s, callback),) = self.timers
        self.timers.clear()
        self.now_s = due_s + late_s
        callback()


def watching(loop: Any, under_way: Callable[[], bool] = lambda: True) -> Lateness:
    found = Lateness(loop, under_way, loop.time)
    found.begun(found.now())
    return found


def test_one_long_block_is_not_lost_among_many_short_looks() -> None:
    """Two seconds of ten are a fifth of all moments, though they are one look of hundreds."""
    loop = ByHand()
    found = watching(loop)
    for _ in range(round(8 / EVERY_S)):
        loop.fire(late_s=RESOLUTION_S / 2)
    assert set(found.take().values()) == {0.0}
    loop = ByHand()
    found = watching(loop)
    for _ in range(round(8 / EVERY_S)):
        loop.fire()
    loop.fire(late_s=2.0 + RESOLUTION_S)
    taken = found.take()
    assert taken["loop_p50"] == 0.0
    assert taken["loop_p90"] == pytest.approx(1.0, abs=2 * EVERY_S)
    assert taken["loop_p99"] == pytest.approx(1.9, abs=2 * EVERY_S)

    async def blocked() -> None:
        real = watching(asyncio.get_running_loop())
        await asyncio.sleep(0)
        time.sleep(0.5)
        await asyncio.sleep(2 * EVERY_S)
        assert real.take()["loop_p99"] > 0.3

    asyncio.run(blocked())


def test_requests_that_begin_late_are_counted_and_nobody_looks_while_none_is_under_way() -> None:
    under_way = [True]
    loop = ByHand()
    found = watching(loop, lambda: under_way[0])
    for late_s in (*[0.0] * 97, 0.3, 0.3):
        found.begun(loop.now_s - late_s)
    loop.fire()
    taken = found.take()
    assert taken["issue_p50"] == 0.0
    assert taken["issue_p99"] == pytest.approx(0.3)
    assert found.take() == {}

    under_way[0] = False
    loop.fire()
    assert not loop.timers
    found.begun(loop.now_s)
    assert len(loop.timers) == 1

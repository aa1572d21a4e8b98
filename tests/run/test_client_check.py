"""Test that the client is measured on a server that computes nothing, if it was busy."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from typing import Any

from pytest_mlperf.core.case import Scenario
from pytest_mlperf.core.extension import Engine
from pytest_mlperf.run.worker._handicap import EngineAround, HandicapEngine
from pytest_mlperf.run.worker.closed_loop import MAX_IDLE_CORES, TOKENS_UNDER_WAY, with_reach
from pytest_mlperf.run.worker.point_window import OpenWindow
from tests.run.harness import settings
from tests.run.test_curve import Answers, point, refuse

LOADED = range(10)


class CountingAnswers(Answers):
    """Is a client; keeps how long the answers of its null server were to be."""

    def __init__(self) -> None:
        super().__init__()
        self.token_counts: list[int] = []
        self.null = Answers(tokens=2, takes_s=0.05)

    def null_client(self, tokens: int) -> AbstractContextManager[Engine]:
        self.token_counts.append(tokens)
        return contextlib.nullcontext(self.null)


def checked(engine: Engine, **changes: Any) -> float | None:
    """Return what the client reaches at a point, in windows of 50 ms."""
    curve_settings = replace(settings("Offline"), scenario=Scenario.CONCURRENCY, tokens=True)
    log_point = asdict(point(**{"client_busy": MAX_IDLE_CORES, **changes}))
    (checked_point,) = with_reach([log_point], engine, LOADED, curve_settings, refuse, lasts_ms=50)
    assert {**log_point, "client_reach": checked_point["client_reach"]} == checked_point
    reach: float | None = checked_point["client_reach"]
    return reach


def test_it_has_as_many_under_way_and_answers_as_long() -> None:
    """An open loop has as many as were under way, and sixteen at least."""
    engine = CountingAnswers()
    reach = checked(engine, concurrency=4)
    assert engine.token_counts == [10]
    assert engine.null.most == 4
    assert set(engine.null.seen) <= set(LOADED)
    assert reach is not None
    assert 0 < reach < 4 / engine.null.takes_s
    assert not engine.seen

    window = OpenWindow(before=1, after=1, most=40, unanswered=0, late={})
    few, many = CountingAnswers(), CountingAnswers()
    checked(few, point=9.5, open=window, under_way=3.0)
    checked(many, point=9.5, open=window, under_way=30.2)
    assert (few.null.most, many.null.most) == (16, 31)


def test_long_answers_are_cut_and_an_idle_client_is_not_measured() -> None:
    whole, cut = CountingAnswers(), CountingAnswers()
    checked(whole, concurrency=4, requests=10, tokens=10 * TOKENS_UNDER_WAY // 4)
    reach = checked(cut, concurrency=4, requests=10, tokens=1000 * TOKENS_UNDER_WAY)
    assert whole.token_counts == cut.token_counts == [TOKENS_UNDER_WAY // 4]
    assert reach is not None
    assert reach < 4 / cut.null.takes_s / 400

    idle: list[dict[str, Any]] = [{"client_busy": MAX_IDLE_CORES / 2}, {"requests": 0, "tokens": 0}]
    for changes in idle:
        engine = CountingAnswers()
        assert checked(engine, **changes) is None
        assert not engine.token_counts
    assert checked(Answers()) is None
    assert checked(EngineAround(Answers())) is None
    assert checked(HandicapEngine(CountingAnswers(), 0.1)) is None, "slow on purpose"
    assert checked(EngineAround(CountingAnswers())) is not None

"""Test `research/positions.py` on runs with a known effect of first runs."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pytest_mlperf.core.noise.calibration import CalibratedCase, CalibrationRun


@pytest.fixture
def tool(lib: Any) -> Any:
    return lib("positions")


def case(name: str, session: str, logs: list[float], metric: str = "throughput") -> CalibratedCase:
    runs = tuple(
        CalibrationRun(
            number=number,
            session=session,
            started=f"2026-11-22T12:{len(name):02}:{number:02}+00:00",
            metrics={metric: 100 * math.exp(value)},
            within_se={},
            duration_s=1.0,
            start_s=1.0,
        )
        for number, value in enumerate(logs, start=1)
    )
    return CalibratedCase(
        case=name, profile="quick", digest="x", target_qps=None, limits={metric: 0.03}, runs=runs
    )


def test_common_effects_of_sessions_cancel(tool: Any) -> None:
    """The first run is 2 % better than the later ones, in sessions that lie far apart."""
    sessions = [
        [case("a", "1", [0.02, 0, 0, 0]), case("bb", "1", [0.0, 0, 0, 0])],
        [case("a", "2", [0.52, 0.5, 0.5, 0.5]), case("bb", "2", [0.3, 0.3, 0.3, 0.3])],
    ]

    effects = tool.positions(sessions)

    assert effects["a throughput"][1].mean == pytest.approx(0.02)
    assert effects["a throughput"][1].half == pytest.approx(0.0, abs=1e-9)
    assert effects["first of all"][1].mean == pytest.approx(0.02)
    assert effects["all cases"][1].mean == pytest.approx(0.01)
    assert effects["bb throughput"][2].mean == pytest.approx(0.0, abs=1e-12)


def test_a_latency_that_is_longer_is_worse_and_the_interval_is_that_of_t(tool: Any) -> None:
    """scipy.stats.t.interval(0.95, 2, 2, 1 / sqrt(3))."""
    worse = tool.positions([[case("a", "1", [0.02, 0, 0, 0], "latency_p90")]])["a latency_p90"][1]
    assert worse.mean == pytest.approx(-0.02)
    assert worse.half == math.inf

    effect = tool.effect([1.0, 2.0, 3.0])
    assert (effect.sessions, effect.mean) == (3, 2.0)
    assert effect.half == pytest.approx(2.4841377, rel=1e-6)

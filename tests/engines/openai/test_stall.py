"""A server that stalls is seen by all who would have asked it meanwhile, not by those who could."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.stream_server import Pace, stream_server
from pytest_mlperf.run.curve import curve_validity, read_curve
from pytest_mlperf.run.worker.closed_loop import LOG, SlotSink
from pytest_mlperf.run.worker.conversations import Conversations
from pytest_mlperf.run.worker.open_loop import OpenLoop
from tests.engines.openai.recorder import open_engine
from tests.run.harness import settings
from tests.run.test_curve import refuse

RATE, WINDOW_S, STALL_S = 50, 2.5, 1.0

PACE = Pace(tokens=3, every_s=0.005, spread=True, stall_s=STALL_S)
"""The stall begins a second after the first answer, which is asked for before the window."""


@pytest.mark.process
@pytest.mark.quiet
def test_a_stall_of_a_second_is_in_the_99th_percentile(tmp_path: Path) -> None:
    """Requests go on arriving: two fifths of the window's wait, by up to the whole second."""
    told = replace(
        settings("Offline"),
        scenario="OpenLoop",
        points=[RATE],
        arrivals="constant",
        tokens=True,
        ramp_ms=0,
        min_duration_ms=int(1e3 * WINDOW_S),
    )
    with stream_server(PACE) as url, open_engine(url, ["a prompt"]) as engine:
        engine.load_samples([0])
        engine.client_lateness()
        loop = OpenLoop(engine, SlotSink(refuse, tokens=True), Conversations([0]), told)
        log = loop.run("run", 0.02, lambda: None)
        late = engine.client_lateness()

    (tmp_path / LOG).write_text(json.dumps(log))
    curve = read_curve(tmp_path / LOG)
    (point,) = curve.points
    assert point.requests == RATE * WINDOW_S
    assert 0.9 * STALL_S < point.metrics["latency_p99"] < STALL_S + 0.5
    assert point.metrics["ttft_p90"] > 0.5 * STALL_S
    assert point.metrics["latency_p50"] < 0.5 * STALL_S
    assert not curve_validity(curve, ["latency_p99"], late).invalid, "the client was not late"

"""Requests arrive whatever the server does: when, what counts, and what makes a point INVALID."""

from __future__ import annotations

import gzip
import json
import queue
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.core.case import Scenario
from pytest_mlperf.core.contention import late_share
from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.extension import Engine, Sink
from pytest_mlperf.core.job import LoadGenSettings
from pytest_mlperf.core.reason import Key, SignKey
from pytest_mlperf.reports.sentences import sentence
from pytest_mlperf.run.curve import (
    CurveLog,
    curve_figures,
    curve_finishes,
    curve_lateness,
    curve_validity,
    read_curve,
)
from pytest_mlperf.run.figures import Findings
from pytest_mlperf.run.worker.closed_loop import ClosedLoop, Loop, SlotSink
from pytest_mlperf.run.worker.conversations import Conversations
from pytest_mlperf.run.worker.open_loop import OpenLoop, trace_arrivals, window_arrivals
from pytest_mlperf.run.worker.point_window import (
    CURVE_LOG,
    REQUEST_COLUMNS,
    REQUESTS,
    WINDOW_PARTS,
    OpenWindow,
    PointWindow,
    write_requests,
)
from tests.run.harness import FEWER, settings
from tests.run.sentences import notes_of
from tests.run.test_curve import Answers, refuse

ARRIVALS = ("poisson", "constant", "gamma")


def open_loop_settings(
    points: Sequence[float], arrivals: str = "poisson", *, ms: int = 200, **changes: Any
) -> LoadGenSettings:
    return replace(
        settings("Offline"),
        scenario=Scenario.OPEN_LOOP,
        points=points,
        arrivals=arrivals,
        min_duration_ms=ms,
        **{"ramp_ms": 0, "burstiness": 0.25 if arrivals == "gamma" else None, **changes},
    )


def run(
    engine: Engine,
    loop_settings: LoadGenSettings,
    *,
    tokens: bool = False,
    trace: Sequence[float] = (),
) -> dict[str, Any]:
    sink = SlotSink(refuse, tokens=tokens)
    loaded = Conversations(range(len(trace) or 10))
    log = OpenLoop(engine, sink, loaded, loop_settings, trace).run("run", 0.004, lambda: None)
    assert sink.outstanding == sink.under_way == sink.closed.left == 0
    assert sink.faults.count == 0
    return log


class OneByOne(Engine):
    """Answers requests one after the other; is silent once, for a while."""

    def __init__(self, takes_s: float = 0.0, stall: tuple[int, float] = (-1, 0.0)) -> None:
        self.takes_s, self.stall = takes_s, stall
        self.seen: list[int] = []
        self.queue: queue.SimpleQueue[tuple[int, Sink] | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.thread.start()

    def submit(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        self.seen += indices
        self.queue.put((ids[0], sink))

    def work(self) -> None:
        answered = 0
        while (query := self.queue.get()) is not None:
            time.sleep(self.stall[1] if answered == self.stall[0] else self.takes_s)
            query[1].done([query[0]])
            answered += 1


@FEWER
@given(st.sampled_from(ARRIVALS), st.floats(0.01, 500), st.integers(0, 9))
def test_a_window_offers_the_requests_of_its_rate(arrivals: str, rate: float, seed: int) -> None:
    window_settings = open_loop_settings([rate], arrivals, ms=2000)
    times = window_arrivals(window_settings, rate, random.Random(seed))

    assert len(times) == max(1, round(2 * rate))
    assert times == sorted(times)
    assert 0 <= times[0] <= times[-1] <= 2
    assert times == window_arrivals(window_settings, rate, random.Random(seed))


def test_times_between_arrivals_vary_as_asked_and_no_more_of_a_trace_is_loaded() -> None:
    for arrivals, shape, expected in (
        ("constant", None, 0.0),
        ("poisson", None, 1.0),
        ("gamma", 0.25, 2.0),
        ("gamma", 4.0, 0.5),
    ):
        settings = open_loop_settings([1000], arrivals, ms=20_000, burstiness=shape)
        times = window_arrivals(settings, 1000, random.Random(7))
        between = [after - before for before, after in pairwise(times)]
        assert stdev(between) / fmean(between) == pytest.approx(expected, abs=0.06)

    dataset: Any = Trace()
    assert trace_arrivals(dataset, open_loop_settings([1.0], "trace")) == [0.0]
    assert trace_arrivals(dataset, open_loop_settings([1.0], "trace", ms=60_000)) == [0.0, 100.0]
    assert trace_arrivals(dataset, open_loop_settings([10.0], "trace")) == [0.0]
    match = "the trace lasts 300 s, but the ramp, which is not measured, takes 900 s"
    with pytest.raises(RunError, match=match):
        trace_arrivals(dataset, open_loop_settings([1.0], "trace", ramp_ms=900_000))
    nothing: Any = [1, 2]
    with pytest.raises(RunError, match="needs a data set with arrival times: prompts with trace"):
        trace_arrivals(nothing, open_loop_settings([1.0], "trace"))


def test_every_run_offers_the_same_samples_at_the_same_times() -> None:
    """The window begins when twice as many were answered as are under way."""
    first_engine, other = Answers(), Answers()
    first, second = (run(each, open_loop_settings([100])) for each in (first_engine, other))
    assert first["points"][0]["requests"] == second["points"][0]["requests"] == 20
    assert first_engine.seen[:20] == other.seen[:20]

    edges: list[int] = []
    sink = SlotSink(refuse, tokens=False)
    loop_settings = open_loop_settings([200], "constant", ms=100, ramp_ms=None)
    loop = OpenLoop(Answers(), sink, Conversations(range(10)), loop_settings)
    loop.run("run", 0.004, lambda: edges.append(sink.completed))
    assert edges[0] >= 2


@pytest.mark.parametrize("arrivals", ARRIVALS)
def test_requests_that_arrive_in_the_window_count_however_long_they_take(arrivals: str) -> None:
    log = run(Answers(tokens=4, takes_s=0.15), open_loop_settings([50], arrivals), tokens=True)

    (point,) = log["points"]
    assert point["requests"] == sum(part[0] for part in point["parts"]) == 10
    assert point["tokens"] == 40
    assert point["metrics"]["latency_p50"] >= 0.15
    assert point["metrics"]["ttft_p50"] >= 0.15
    assert 0 < point["open"]["unanswered"] <= 10
    assert point["open"]["most"] >= point["open"]["after"] >= point["open"]["unanswered"]


def test_a_stall_and_an_overload_show(tmp_path: Path) -> None:
    """Latencies count from when a request was due: requests of the meantime waited as well."""
    (point,) = run(OneByOne(stall=(20, 0.3)), open_loop_settings([150], "constant", ms=600))[
        "points"
    ]
    assert point["requests"] == 90
    assert point["metrics"]["latency_p99"] > 0.27
    assert point["metrics"]["latency_p90"] > 0.2

    log = run(OneByOne(takes_s=0.005), open_loop_settings([800], "constant", ms=200))
    reasons = reasons_of(tmp_path, log)[1]
    assert "at 800: overloaded: requests in flight grew" in reasons[Key.OVERLOADED]


def reasons_of(folder: Path, log: dict[str, Any]) -> tuple[CurveLog, dict[Key, str]]:
    """Return a log as it is read, and why it is invalid."""
    (folder / CURVE_LOG).write_text(json.dumps(log))
    curve = read_curve(folder / CURVE_LOG)
    seen = curve_validity(curve).invalid
    return curve, {reason.key: sentence(reason.text) for reason in seen}


def test_a_client_that_is_held_up_counts_from_when_requests_were_due(tmp_path: Path) -> None:
    """An engine that answers inside `submit` delays the next requests."""

    class Inline(Engine):
        def submit(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
            del indices
            time.sleep(0.02)
            sink.done(list(ids))

    log, reasons = reasons_of(tmp_path, run(Inline(), open_loop_settings([100], "constant")))

    latency_s = log.points[0].metrics["latency_p90"]
    assert latency_s > 0.1
    assert Key.CLIENT_LATE not in reasons
    (note,) = notes_of(curve_validity(log))
    assert note.startswith("at 100: p50 latency is ")
    assert late_share("latency_p90@100", latency_s, curve_lateness(log, {})) > 0.5


def test_a_trace_is_asked_for_in_its_order_at_its_times_and_faster() -> None:
    """One that ends early ends the window, and its ramp does not count."""
    engine = OneByOne()
    trace = [0.0, 0.01, 0.02, 0.1, 0.15, 0.5]
    (point,) = run(engine, open_loop_settings([2], "trace", ms=200), trace=trace)["points"]
    assert engine.seen[:5] == [0, 1, 2, 3, 4], "0.5 s at twice the speed is past the window"
    assert point["requests"] == 5
    assert point["duration_s"] > 0.199

    trace = [0, 0.04, 0.05, 0.1, 0.2]
    (point,) = run(
        OneByOne(), open_loop_settings([1], "trace", ms=60_000, ramp_ms=50), trace=trace
    )["points"]
    assert point["requests"] == 3
    assert 0.199 < point["duration_s"] < 60


class Trace:
    """A data set of four requests, one each 100 s from 5 s on."""

    def __len__(self) -> int:
        return 4

    def arrival_s(self, index: int) -> float:
        return 5.0 + 100 * index


QUIET = {"issue_p50": 1e-4, "issue_p90": 1e-4, "issue_p99": 1e-3}


def point(rate: float = 4, **changes: Any) -> PointWindow:
    """Return a steady point of 240 requests in 60 s."""
    window_fields: dict[str, Any] = {
        "before": 8,
        "after": 9,
        "most": 20,
        "unanswered": 6,
        "late": QUIET,
    }
    window_fields |= {name: changes.pop(name) for name in set(changes) & set(window_fields)}
    usual: dict[str, Any] = {
        "point": rate,
        "begin_s": 100.0 * rate,
        "end_s": 100.0 * rate + 60,
        "duration_s": 60.0,
        "requests": 240,
        "tokens": 0,
        "under_way": 8.0,
        "metrics": {"latency_p50": 2.0, "latency_p99": 5.0, "throughput": 4.0},
        "parts": [(24, 0, 2.0 + 0.1 * (n % 3)) for n in range(WINDOW_PARTS)],
        "open": OpenWindow(**window_fields),
    }
    return PointWindow(**{**usual, **changes})


def log_of(*points: PointWindow, arrivals: str = "poisson") -> CurveLog:
    return CurveLog(path="log", samples=300, points=points, arrivals=arrivals)


LATE = {"issue_p50": 0.6, "issue_p90": 1.0, "issue_p99": 2.0}
SLOWING = [(24, 0, 2.0 + 0.3 * n) for n in range(WINDOW_PARTS)]


def test_a_window_must_be_served_as_it_arrives() -> None:
    queue = "requests in flight grew from 8 to 80"
    cases: list[tuple[dict[str, Any], str, Key | None, str]] = [
        ({}, "poisson", None, ""),
        ({"requests": 9}, "poisson", Key.TOO_FEW_REQUESTS, "at 4: 9 requests in 60 s, 10 are"),
        ({"after": 80}, "poisson", Key.OVERLOADED, queue),
        ({"after": 22}, "poisson", None, ""),
        ({"after": 80}, "trace", None, ""),
        ({"unanswered": 130}, "trace", Key.OVERLOADED, "130 of 240 were not answered"),
        ({"parts": SLOWING}, "poisson", Key.NOT_STEADY, "latency rose by"),
        ({"parts": SLOWING}, "trace", None, ""),
        ({"late": LATE}, "poisson", None, ""),
        ({"most": 900}, "poisson", None, ""),
        ({"most": 901}, "poisson", Key.CLIENT_LATE, "but the engine sends 900 at a time"),
    ]
    for changes, arrivals, key, words in cases:
        log = log_of(point(**changes), arrivals=arrivals)
        reasons = curve_validity(log, at_a_time=900).invalid
        assert [reason.key for reason in reasons] == ([key] if key else [])
        assert all(words in sentence(reason.text) for reason in reasons)


def test_late_tails_means_over_points_and_ends_of_answers_are_noted() -> None:
    log = log_of(point(late={**QUIET, "issue_p99": 2.0}))
    assert curve_validity(log, ["latency_p50@4"]) == Findings()
    (note,) = notes_of(curve_validity(log, ["latency_p99@4"]))
    assert "p99 latency is 5 s; the client itself may have added up to 2 s" in note
    late = curve_lateness(log, {"issue_p99": 0.5, "loop_p99": 0.5})
    assert late_share("latency_p99@4", 6.0, late) == pytest.approx(3 / 6)

    slow = point(8, metrics={"latency_p50": 8.0, "throughput": 8.0})
    metrics = curve_figures(log_of(point(0.5), slow), "cpu").metrics
    assert metrics["latency_p50"] == pytest.approx(4.0)
    assert metrics["latency_p50@0.5"] == 2.0
    assert "latency_p99" not in metrics

    mixed = point(finishes={"stop": 200, "length": 40})
    log = log_of(point(0.5, finishes={"length": 240}), mixed)
    figures = curve_figures(log, "cpu")
    assert curve_finishes(log) == {"length@0.5": 240, "stop@4": 200, "length@4": 40}
    (note,) = notes_of(figures)
    assert note.startswith("answers were cut at their token limit (17% at 4); the others")
    assert [(sign.key, sentence(sign.text)) for sign in figures.signs] == [
        (SignKey.ANSWERS_CUT, note)
    ]


class Told(Answers):
    """Tells why answers end and how long prompts were, as streaming engines do."""

    def _answer(self, ids: list[int], sink: Sink) -> None:
        reason = "stop" if ids[0] % 2 else "length"
        sink.ended(ids, [reason], [7])
        super()._answer(ids, sink)


def lines_of(folder: Path) -> list[dict[str, Any]]:
    with gzip.open(folder / REQUESTS, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


@pytest.mark.parametrize("loop", [OpenLoop, ClosedLoop])
def test_a_record_of_each_request_that_counts(tmp_path: Path, loop: type[Loop]) -> None:
    sink = SlotSink(refuse, tokens=True, records=True)
    loop_settings = open_loop_settings([50] if loop is OpenLoop else [2])
    loaded = Conversations(range(10))
    log = loop(Told(tokens=5), sink, loaded, loop_settings).run("run", 0.004, lambda: None)
    assert sink.records is not None

    write_requests(tmp_path, sink.records)

    (point,), lines = log["points"], lines_of(tmp_path)
    assert len(lines) == point["requests"] == sum(point["finishes"].values()) > 5
    for line in lines:
        assert tuple(line) == REQUEST_COLUMNS
        assert (line["status"], line["prompt_tokens"], line["output_tokens"]) == ("ok", 7, 5)
        assert line["reference_tokens"] is None
        assert line["finish"] in ("stop", "length")
        assert line["index"] in range(10)
        assert line["scheduled_s"] <= line["issued_s"] <= line["first_token_s"]
        assert line["first_token_s"] <= line["last_token_s"]
        expected = line["first_token_s"] - line["scheduled_s"]
        assert line["ttft_s"] == pytest.approx(expected, abs=2e-6)
    took = sorted(line["last_token_s"] - line["scheduled_s"] for line in lines)
    assert took[len(took) // 2] == pytest.approx(point["metrics"]["latency_p50"], abs=2e-6)


def test_a_run_that_breaks_off_has_records_too(tmp_path: Path) -> None:
    kept: list[Any] = []
    sink = SlotSink(lambda _: kept.extend(sink.cut_records()), tokens=False, records=True)
    begun_s = sink.begin(2.5, lasts_s=60).begun_s
    for sample in (1, 2, 3):
        sink.arrived(sample, 10 * sample, begun_s + sample, counts=True)
    sink.done([1])
    sink.ended([2], ["HTTP 503 (Service Unavailable)"])
    sink.failed(RunError("engine", "gave up"))
    write_requests(tmp_path, kept)

    lines = lines_of(tmp_path)

    assert [(line["index"], line["status"]) for line in lines] == [
        (10, "ok"),
        (20, "failed"),
        (30, "unfinished"),
    ]
    assert lines[1]["finish"] == "HTTP 503 (Service Unavailable)"
    assert [line["scheduled_s"] for line in lines] == [1, 2, 3]
    assert {line["point"] for line in lines} == {2.5}
    assert {line["ttft_s"] for line in lines} == {None}

"""A number of requests is kept under way: the load, its figures and what makes them INVALID."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.core.case import Scenario
from pytest_mlperf.core.contention import Contention
from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.extension import Engine, Sink
from pytest_mlperf.core.job import LoadGenSettings
from pytest_mlperf.core.reason import Key
from pytest_mlperf.reports.sentences import sentence
from pytest_mlperf.run.curve import (
    CurveLog,
    curve_figures,
    curve_validity,
    drift,
    read_curve,
)
from pytest_mlperf.run.worker.closed_loop import (
    MAX_WINDOW_LENGTHS,
    MIN_REQUESTS,
    WARMUP_TURNS,
    ClosedLoop,
    SlotSink,
    shuffled_points,
)
from pytest_mlperf.run.worker.conversations import Conversations, NextRequest
from pytest_mlperf.run.worker.point_window import (
    CURVE_LOG,
    KEPT_ANSWERS,
    REQUEST_COLUMNS,
    WINDOW_PARTS,
    PointWindow,
)
from pytest_mlperf.run.worker.worker import require_room
from tests.run.harness import FEWER, settings
from tests.run.sentences import notes_of


class Answers(Engine):
    """Answer each request from a thread of its own; keep the number in flight."""

    def __init__(self, tokens: int = 0, takes_s: float = 0.004) -> None:
        self.tokens, self.takes_s = tokens, takes_s
        self.lock = threading.Lock()
        self.under_way = self.most = 0
        self.seen: list[int] = []
        self.over = threading.Event()

    def submit(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        assert len(ids) == 1
        with self.lock:
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            self.seen += indices
        threading.Thread(target=self._answer, args=(list(ids), sink)).start()

    def _answer(self, ids: list[int], sink: Sink) -> None:
        self.over.wait(self.takes_s)
        if self.tokens:
            sink.first_tokens(ids)
        with self.lock:
            self.under_way -= 1
        sink.done(ids, None, [self.tokens] if self.tokens else None)


def refuse(error: BaseException) -> None:
    raise error


def asked_for(points: Sequence[float], *, ms: int = 60) -> LoadGenSettings:
    return replace(
        settings("Offline"), scenario=Scenario.CONCURRENCY, points=points, min_duration_ms=ms
    )


def closed(
    engine: Engine,
    sink: SlotSink,
    points: Sequence[float],
    begun: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    loop = ClosedLoop(engine, sink, Conversations(range(10)), asked_for(points))
    return loop.run("run", 0.004, begun)


def run(engine: Engine, points: Sequence[int], *, tokens: bool = False) -> dict[str, Any]:
    """Return the log of a closed loop with windows of 60 ms."""
    sink = SlotSink(refuse, tokens=tokens)
    log = closed(engine, sink, points)
    assert sink.outstanding == 0
    assert sink.faults.count == 0
    return log


def test_every_point_keeps_its_number_under_way_and_no_more() -> None:
    engine = Answers(takes_s=0.03)  # eight are asked in less, also on a busy machine
    log = run(engine, [1, 3, 8])
    assert [point["point"] for point in log["points"]] == [1, 3, 8]
    assert sorted(log["order"]) == [1, 3, 8]
    assert engine.most == 8
    for point in log["points"]:
        in_flight = point["point"]
        assert 0 < point["under_way"] <= in_flight * 1.001
        assert point["requests"] == sum(requests for requests, _, _ in point["parts"])
        assert point["metrics"]["throughput"] == point["requests"] / point["duration_s"]

    sink = SlotSink(refuse, tokens=False)
    completed: list[int] = []
    closed(Answers(), sink, [4], lambda: completed.append(sink.completed))
    assert completed[0] >= WARMUP_TURNS * 4


def test_tokens_are_those_of_requests_that_ended_in_the_window() -> None:
    """A window with too few requests goes on by whole lengths."""
    log = run(Answers(tokens=5), [2], tokens=True)
    (point,) = log["points"]
    assert point["tokens"] == 5 * point["requests"]
    assert point["metrics"]["tokens_per_sample"] == 5
    assert point["metrics"]["ttft_p90"] > 0
    assert point["metrics"]["tps_per_user"] == 1 / point["metrics"]["tpot_p90"]

    log = run(Answers(takes_s=0.03), [2])
    (point,) = log["points"]
    assert point["requests"] >= MIN_REQUESTS
    lengths = point["duration_s"] / 0.06
    assert 2 <= round(lengths) <= MAX_WINDOW_LENGTHS
    assert lengths == pytest.approx(round(lengths), abs=0.5)


def test_a_window_keeps_the_tokens_of_the_answers_that_were_asked_first() -> None:
    """So both sides of a comparison keep those of the same samples, however far each came."""
    sink = SlotSink(refuse, tokens=False)
    sink.expect_request(0, NextRequest(100), 0)
    sink.done([0], None, [9])
    sink.begin(2)
    for sample in range(1, KEPT_ANSWERS + 3):
        sink.expect_request(sample, NextRequest(100 + sample), 0)
    for sample in reversed(range(2, KEPT_ANSWERS + 3)):
        sink.done([sample], None, [sample])
    kept = sink.close().lengths.split()
    assert kept == [f"{100 + sample}:{sample}" for sample in range(2, KEPT_ANSWERS + 2)]
    (window,) = run(Answers(tokens=5), [2], tokens=True)["points"]
    counts = [int(pair.split(":")[1]) for pair in window["lengths"].split()]
    assert counts == [5] * min(KEPT_ANSWERS, window["requests"])
    figures = curve_figures(log_of(point(lengths="3:37")), "cpu")
    assert figures.lengths == {"4": "3:37"}
    assert figures.requests == {"4": 100}
    assert not run(Answers(), [2])["points"][0]["lengths"]


def test_the_reason_says_who_had_the_cores() -> None:
    load = Contention(window_s=10.0, cores=2, own_s=19.0, foreign_s=0.5, serves=True)
    (reason,) = curve_validity(log_of(point(under_way=3.83, client_busy=0.2)), load=load).invalid
    assert sentence(reason.text) == (
        "at 4: 3.83 of 4 requests were in flight on average: the server's processes used "
        "1.7, this client used 0.2, other processes used 0.05 of 2 cores: start the client on "
        "cores of its own (taskset), or on another machine"
    )


def test_a_wall_clock_that_jumps_moves_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour back at every look: windows lie elsewhere, and are as long as they were."""
    hours = itertools.count()
    monkeypatch.setattr(time, "time", lambda: 1e9 - 3600 * next(hours))

    log = run(Answers(tokens=5), [1, 3], tokens=True)

    for curve_point in log["points"]:
        assert curve_point["end_s"] - curve_point["begin_s"] == pytest.approx(
            curve_point["duration_s"]
        )
        assert curve_point["duration_s"] >= 0.06
        assert (
            curve_point["metrics"]["throughput"]
            == curve_point["requests"] / curve_point["duration_s"]
        )
    assert next(hours) > 1


def test_runs_draw_the_same_samples_and_order_their_points_anew() -> None:
    first, other = Answers(), Answers()
    run(first, [2])
    run(other, [2])
    points = replace(settings("Offline"), points=[1, 2, 4, 8, 16])

    both = min(len(first.seen), len(other.seen))
    assert first.seen[:both] == other.seen[:both]
    assert len({tuple(shuffled_points(points, f"run {n}")) for n in range(5)}) > 1
    assert shuffled_points(points, "run 1") == shuffled_points(points, "run 1")


def test_a_client_that_holds_requests_back_is_refused_or_named(tmp_path: Path) -> None:
    class Inline(Answers):
        def submit(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
            del indices
            self.over.wait(0.001)
            sink.done(list(ids))

    (tmp_path / CURVE_LOG).write_text(json.dumps(run(Inline(), [2])))
    reasons = curve_validity(read_curve(tmp_path / CURVE_LOG)).invalid
    texts = {reason.key: sentence(reason.text) for reason in reasons}  # a busy machine has others
    assert "of 2 requests were in flight" in texts[Key.CONCURRENCY_NOT_HELD]

    for most in ("64", "1000", "auto"):
        require_room({"concurrency": most}, [1, 64])
    require_room({}, [1, 64])
    require_room({"concurrency": "1"}, [])
    with pytest.raises(RunError, match="but the engine sends 63 at a time: set its option"):
        require_room({"concurrency": "63"}, [1, 64])


def test_requests_that_may_fail_free_their_slots_and_count_as_failed(tmp_path: Path) -> None:
    """The load goes on, and the share decides; no other figure has them."""

    class Loses(Answers):
        def _answer(self, ids: list[int], sink: Sink) -> None:
            if ids[0] % 8:
                super()._answer(ids, sink)
                return
            with self.lock:
                self.under_way -= 1
            sink.ended(ids, ["time-out"])
            assert isinstance(sink, SlotSink)
            sink.lost(ids)

    sink = SlotSink(refuse, tokens=True, records=True, may_fail=0.1)
    log = closed(Loses(tokens=5), sink, [4])

    (tmp_path / CURVE_LOG).write_text(json.dumps(log))
    curve = read_curve(tmp_path / CURVE_LOG)
    (curve_point,) = curve.points
    assert sink.records is not None
    assert (
        [r[REQUEST_COLUMNS.index("status")] for r in sink.records].count("failed")
        >= curve_point.failed
        > 0
    )
    assert (
        curve_point.tokens
        == 5 * curve_point.requests
        == 5 * sum(requests for requests, _, _ in curve_point.parts)
    )
    assert sink.outstanding == sink.under_way == 0
    (note,) = [text for text in notes_of(curve_figures(curve, "cpu")) if "failed" in text]
    assert note.startswith(
        f"at 4: {curve_point.failed} of {curve_point.failed + curve_point.requests} requests failed"
    )
    failed = [
        [r.key for r in curve_validity(curve, may_fail=share).invalid].count(Key.REQUESTS_FAILED)
        for share in (0.0, 0.01, 0.3)
    ]
    assert failed == [1, 1, 0]


def test_unexpected_answers_free_no_slot_and_uncounted_ones_end_the_run() -> None:
    sink = SlotSink(refuse, tokens=False)
    sink.expect_request(1, NextRequest(5), 0)
    sink.done([7])
    sink.done([1])
    sink.done([1])
    assert sink.faults.count == 2
    assert sink.freed.qsize() == 1

    for tokens, text in ((None, "no n_tokens"), ([1], "at least 2 tokens")):
        sink = SlotSink(refuse, tokens=True)
        sink.expect_request(1, NextRequest(5), 0)
        with pytest.raises(RunError, match=text):
            sink.done([1], None, tokens)
    assert SlotSink(refuse, tokens=True).needs_first_tokens
    assert not SlotSink(refuse, tokens=False).needs_first_tokens


def point(concurrency: int = 4, **changes: Any) -> PointWindow:
    """Return a steady point of 100 requests with 10 tokens each in 10 s."""
    usual: dict[str, Any] = {
        "point": concurrency,
        "begin_s": 100.0 * concurrency,
        "end_s": 100.0 * concurrency + 10,
        "duration_s": 10.0,
        "requests": 100,
        "tokens": 1000,
        "under_way": float(concurrency),
        "metrics": {"throughput": 10.0, "tokens_per_second": 100.0, "tokens_per_sample": 10.0},
        "parts": [(10, 100, 0.4)] * WINDOW_PARTS,
    }
    return PointWindow(**{**usual, **changes})


def log_of(*points: PointWindow) -> CurveLog:
    return CurveLog(path="log", samples=300, points=points)


RISING = [(10, 80 + 5 * n, 0.4) for n in range(WINDOW_PARTS)]


def test_a_curve_has_the_mean_of_its_points_and_their_reasons() -> None:
    cases: list[tuple[dict[str, Any], Key | None, str]] = [
        ({}, None, ""),
        ({"under_way": 3.93}, None, ""),
        ({"under_way": 3.9}, Key.CONCURRENCY_NOT_HELD, "at 4: 3.9 of 4 requests"),
        ({"requests": 9}, Key.TOO_FEW_REQUESTS, "at 4: 9 requests in 10 s, 10 are needed"),
        ({"parts": RISING}, Key.NOT_STEADY, "throughput rose by 44%"),
        ({"parts": RISING[::-1]}, Key.NOT_STEADY, "throughput fell by 44%"),
        ({"parts": [(10, 100 + n % 2, 0.4) for n in range(WINDOW_PARTS)]}, None, ""),
        ({"client_busy": 1.0, "client_reach": 20.0}, None, ""),
        ({"client_reach": 19.9}, Key.CLIENT_LATE, "10 requests/s of 10 tokens, and it reaches"),
        ({"client_reach": 19.9, "tokens": 0}, Key.CLIENT_LATE, "10 requests/s, and it reaches"),
    ]
    for changes, key, words in cases:
        reasons = curve_validity(log_of(point(**changes))).invalid
        assert [reason.key for reason in reasons] == ([key] if key else [])
        assert all(words in sentence(reason.text) for reason in reasons)

    fast = point(8, metrics={"throughput": 40.0, "tokens_per_second": 400.0, "latency_p50": 0.2})
    figures = curve_figures(log_of(point(2), fast), "2xH100")
    assert figures.metrics["tokens_per_second"] == pytest.approx(200)
    assert figures.metrics["tokens_per_second_per_gpu"] == pytest.approx(100)
    assert figures.metrics["tokens_per_second@8"] == 400
    assert figures.metrics["latency_p50@8"] == 0.2
    assert "latency_p50" not in figures.metrics
    assert (figures.samples, figures.queries) == (300, 200)
    assert figures.duration_s == 610

    parts = [(10, 100, 0.4)] * (WINDOW_PARTS - 1) + [(1, 10, 4.0)]
    notes = notes_of(curve_figures(log_of(point(parts=parts)), "cpu"))
    assert notes == (
        "at 4: in 1 of 10 parts of the window, less than half of the usual work was done",
    )


@FEWER
@given(st.lists(st.floats(1, 1e6), min_size=3, max_size=20), st.floats(0.01, 100))
def test_drift_is_a_share_and_turns_with_time(values: list[float], factor: float) -> None:
    moved, p_value = drift(values)

    assert 0 <= p_value <= 1
    assert drift([factor * x for x in values])[0] == pytest.approx(moved, abs=1e-9)
    assert drift(values[::-1])[0] == pytest.approx(-moved, abs=1e-9)


def test_a_log_that_is_none_is_named(tmp_path: Path) -> None:
    logs = {
        "": "Expecting value",
        '{"schema": 9, "points": [], "samples": 1}': "schema 9, not 2",
        '{"schema": 2, "samples": 1}': "'points'",
        '{"schema": 2, "samples": 1, "points": []}': "no points",
        '{"schema": 2, "samples": 1, "points": [{}]}': "missing",
    }
    for value in (0.0, -1.0, float("nan"), float("inf")):
        damaged = asdict(point(metrics={"throughput": value}))
        text = json.dumps({"schema": 2, "samples": 1, "points": [damaged]})
        logs[text] = "throughput at 4 is"
    for content, words in logs.items():
        (tmp_path / CURVE_LOG).write_text(content)
        with pytest.raises(RunError, match=words):
            read_curve(tmp_path / CURVE_LOG)

    point_of_older_log = {
        key: value for key, value in asdict(point()).items() if "client" not in key
    }
    rest = {"schema": 2, "samples": 1, "arrivals": "", "burstiness": None}
    (tmp_path / CURVE_LOG).write_text(json.dumps({**rest, "points": [point_of_older_log]}))
    (read,) = read_curve(tmp_path / CURVE_LOG).points
    assert read.client_reach is None

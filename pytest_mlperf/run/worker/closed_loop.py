"""Measure a curve: at each point a fixed number of requests is in flight (concurrency).

An engine with its own harness measures the points itself. The open loop shares this code.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.extension import Counts, Engine
from pytest_mlperf.core.job import LoadGenSettings
from pytest_mlperf.rounds.endpoints import scored_points
from pytest_mlperf.run.worker._delivery import count_fault, token_fault
from pytest_mlperf.run.worker._sink import MAX_FINISH_CHARACTERS, Clock, Fail, Faults, GuardedSink
from pytest_mlperf.run.worker.clocks import TokenTimes
from pytest_mlperf.run.worker.conversations import Conversations, NextRequest, Slots
from pytest_mlperf.run.worker.point_window import (
    NOTE,
    REFERENCE,
    SCHEMA_VERSION,
    PointRequest,
    PointWindow,
    Record,
    WindowMeter,
    first_lengths,
    recounted,
)

WARMUP_TURNS = 2
"""Requests that every slot completes before a point's window begins."""

MIN_SLOT_REQUESTS, MIN_REQUESTS = 2, 10
"""Minimum requests of a window, per slot and in total."""

MAX_WINDOW_LENGTHS = 8
"""A closed loop's window with too few requests is extended up to this many times its length."""


class SlotSink(GuardedSink):
    """Measure requests in time windows; free the slot of each completed request.

    Attributes:
        freed: Slots (places for one request in flight) of completed requests, with end times.
        point: Concurrency or rate being measured; 0 if none is.
        closed: Meter of the time window that ended last.
        records: One row per request that counts for metrics; None if rows are not kept.
        recounts: Whether to keep each request of a window, to count its tokens again later.
        cpu_clock: Returns the processor time of this process and its clients [s].
        may_fail: Share of requests that may fail; engines give up above it.
    """

    _times: TokenTimes
    closed: WindowMeter

    def __init__(
        self, fail: Fail, *, tokens: bool, records: bool = False, may_fail: float = 0.0
    ) -> None:
        """Create a sink; `tokens`: first tokens must be reported; `records`: store each request."""
        super().__init__(fail)
        self.may_fail = may_fail
        self.times_tokens = self.needs_first_tokens = tokens
        self.freed: SimpleQueue[tuple[int, float]] = SimpleQueue()
        self.point = 0.0
        self.records: list[Record] | None = [] if records else None
        self.recounts = False
        self.cpu_clock: Clock = time.process_time
        self._lock = threading.Lock()
        self._pauses_s: list[tuple[float, float]] = []
        self._under_way: dict[int, PointRequest] = {}
        self._uncounted: dict[int, Record] = {}
        self._times = TokenTimes()
        self._window: WindowMeter | None = None

    @property
    def under_way(self) -> int:
        """Number of requests in flight."""
        return len(self._under_way)

    def expect_request(self, sample: int, request: NextRequest, slot: int) -> None:
        """Record a slot's request just before it is submitted under the id `sample`."""
        self.expect([sample])
        with self._lock:
            now_s = perf_counter()
            self._under_way[sample] = PointRequest(request, now_s, now_s, slot, counts=True)

    def pause(self, begin_s: float, lasts_s: float) -> None:
        """Record that a conversation pauses before its next turn."""
        self._pauses_s.append((begin_s, begin_s + lasts_s))

    def session(self, sample: int) -> str:
        """Return the name of a request's conversation; "" without one."""
        request = self._under_way.get(sample)
        if request is None or request.asked.conversation is None:
            return ""
        return f"{self.run}-{request.asked.conversation}"

    def arrived(self, sample: int, index: int, due_s: float, *, counts: bool) -> None:
        """Record an open loop's request before it is submitted; metrics include it if `counts`."""
        self.expect([sample])
        with self._lock:
            request = PointRequest(NextRequest(index), due_s, perf_counter(), 0, counts)
            self._under_way[sample] = request
            if self._window is not None:
                self._window.arrive(request, len(self._under_way))

    def ended(
        self, ids: Sequence[int], reasons: Sequence[str], prompt_tokens: Counts = None
    ) -> None:
        """Record why requests finished, and their prompt lengths."""
        super().ended(ids, reasons)
        prompts = prompt_tokens or [None] * len(ids)
        with self._lock:
            for sample, reason, prompt in zip(ids, reasons, prompts, strict=False):
                if request := self._under_way.get(sample):
                    request.finish, request.prompt = str(reason)[:MAX_FINISH_CHARACTERS], prompt

    def first_tokens(self, ids: Sequence[int], tokens: Sequence[bytes] | None = None) -> None:
        """Record the times of first tokens."""
        del tokens
        with self._lock:
            self._times.first([sample for sample in ids if sample in self._under_way])

    def next_tokens(self, ids: Sequence[int]) -> None:
        """Record the time of one more token of each sample id."""
        with self._lock:
            for sample in self._times.further(ids):
                self.faults.add(f"next_tokens() was given id {sample!r} before its first token")

    def done(
        self, ids: Sequence[int], outputs: object = None, n_tokens: Sequence[int] | None = None
    ) -> None:
        """Complete requests, and free their slots; their outputs are ignored."""
        del outputs
        wrong = token_fault(ids, n_tokens) if self.times_tokens else ""
        if wrong := wrong or (count_fault(ids, n_tokens) if n_tokens is not None else ""):
            self._fail(RunError("engine", wrong))
            return
        self._end_all(ids, n_tokens if n_tokens is not None else [0] * len(ids))

    def lost(self, ids: Sequence[int]) -> None:
        """Count requests as failed, and free their slots."""
        self._end_all(ids, [None] * len(ids))

    def _end_all(self, ids: Sequence[int], counts: Sequence[int | None]) -> None:
        bad = self._claim(ids)
        for position, (sample, tokens) in enumerate(zip(ids, counts, strict=True)):
            if position not in bad:
                self._end(sample, tokens)
        self._count(len(ids))

    def _end(self, sample: int, tokens: int | None) -> None:
        """Complete a request with a number of tokens, or count it as failed if that is None."""
        now_s, after = self._clock(), 0
        with self._lock:
            request, first_s = self._under_way.pop(sample), self._times.first_s(sample)
            window, status = self._window, "failed" if tokens is None else "ok"
            if tokens is not None:
                after = self._times.after_first(sample, tokens)
            if tokens is None or not request.counts:
                self._times.forget(sample)
            elif self.times_tokens and (odd := self._times.end(sample, tokens, request.from_s)):
                self.faults.add(f"sample with id {sample!r}: {odd}")
            if window and tokens is None:
                window.record_failure(request, now_s)
            elif window and tokens is not None:
                window.complete(sample, request, now_s, tokens, first_s, after)
                if request.counts and tokens:
                    self.answer_tokens.add(request.asked.index, tokens)
            if window and request.counts and self.records is not None:
                times = window.begun_s, first_s, now_s
                self.records.append(request.record(self.point, status, *times, tokens, after))
                if self.recounts and tokens is not None:
                    self._uncounted[sample] = self.records[-1]
        self.freed.put((request.slot, now_s))

    def count_records(self, counts: Mapping[int, tuple[int, int]]) -> None:
        """Store each request's reference token count, `counts[sample][0]`, in its record."""
        for sample, record in self._uncounted.items():
            record[REFERENCE] = counts[sample][0]
        self._uncounted.clear()

    def cut_records(self) -> list[Record]:
        """Return the records of an aborted run, including requests in flight."""
        with self._lock:
            begun_s = None if self._window is None else self._window.begun_s
            rows = [
                request.record(
                    self.point,
                    "failed" if request.finish else "unfinished",
                    begun_s,
                    self._times.first_s(sample),
                )
                for sample, request in self._under_way.items()
            ]
            return [*(self.records or ()), *rows]

    def begin(self, point: float, lasts_s: float = math.inf) -> WindowMeter:
        """Open a window at `point` that lasts `lasts_s` seconds; return its meter."""
        with self._lock:
            self.point, self._times = point, self._times.afresh()
            window = WindowMeter(
                point, lasts_s, len(self._under_way), self.cpu_clock, recounts=self.recounts
            )
            self._pauses_s = [pause for pause in self._pauses_s if pause[1] > window.begun_s]
            self._window = window
            return window

    def close(self) -> PointWindow:
        """Close the window, and return its measurements."""
        with self._lock:
            assert self._window is not None
            self.closed, self._window = self._window, None
            under_way_s = [request.from_s for request in self._under_way.values()]
            timed = self.times_tokens
            return self.closed.close(under_way_s, self._pauses_s, self._times, timed=timed)


def shuffled_points(settings: LoadGenSettings, run: str) -> list[float]:
    """Return a curve's points, shuffled (seed: run name) so that heating affects all alike."""
    points = list(settings.points)
    random.Random(f"{settings.seeds.schedule} {run}").shuffle(points)
    return points


class Loop:
    """Measure the points of a curve one after another on one engine."""

    def __init__(
        self,
        engine: Engine,
        sink: SlotSink,
        conversations: Conversations,
        settings: LoadGenSettings,
        trace: Sequence[float] = (),
    ) -> None:
        """Store the engine and its samples; `trace` has arrival times [s], () for none."""
        self._engine, self._sink, self._trace = engine, sink, trace
        self._asked, self._settings = conversations, settings
        self._ids = itertools.count(1)

    def run(
        self, name: str, single_latency_s: float, at_edges: Callable[[], None]
    ) -> dict[str, Any]:
        """Measure all points, and return the log for `CURVE_LOG`.

        The run's `name` decides the order of points; `single_latency_s` is that of one request.
        `at_edges` is called at the begin of the first window and at the end of the last one.
        """
        sink, points, completed = self._sink, list[PointWindow](), list[int]()
        ordered_points = shuffled_points(self._settings, name)

        def edge() -> None:
            if not completed:
                at_edges()
            completed.append(sink.completed)
            if len(completed) == 2 * len(ordered_points):
                at_edges()

        sink.recounts = self._engine.counted_again() is not None
        for point in ordered_points:
            sink.point = point
            window = self._with_recounts(self._measure_point(point, single_latency_s, edge))
            points.append(replace(window, answer_counts=dict(self._engine.answer_counts())))
        sink.point = 0.0
        return {
            "schema": SCHEMA_VERSION,
            "samples": completed[-1] - completed[0],
            "order": ordered_points,
            "arrivals": self._settings.arrivals,
            "burstiness": self._settings.burstiness,
            "points": [asdict(row) for row in sorted(points, key=attrgetter("point"))],
        }

    def _measure_point(
        self, point: float, single_latency_s: float, on_edge: Callable[[], None]
    ) -> PointWindow:
        """Warm up, then measure `point` in a window; call `on_edge` at its begin and its end."""
        raise NotImplementedError

    def _with_recounts(self, window: PointWindow) -> PointWindow:
        """Return a closed window, with tokens recounted by a reference tokenizer if one is used."""
        if not self._sink.recounts:
            return window
        counts, closed = self._engine.counted_again() or {}, self._sink.closed
        ended = closed.ended
        metrics, note = recounted(window.metrics, ended, counts, window.duration_s)
        self._sink.count_records(counts)
        tokens = [counts[request.sample][0] for request in ended if request.counts]
        return replace(
            window,
            tokens=sum(tokens),
            metrics=metrics,
            parts=list(closed.parts(tokens)),
            notes={**window.notes, **({NOTE: note} if note else {})},
            lengths=first_lengths({i: (n, counts[i][0]) for i, (n, _) in closed.answers.items()}),
        )

    def _draw(self, point: float) -> random.Random:
        return random.Random(f"{self._settings.seeds.sample_index} {point}")


class ClosedLoop(Loop):
    """Keep a fixed number of requests in flight; draw samples with replacement, with a fixed seed.

    With conversations, each slot has one: it issues a turn after the previous answer and a pause.
    """

    _conversations = 0

    def _measure_point(self, point: float, alone_s: float, edge: Callable[[], None]) -> PointWindow:
        settings, sink, concurrency = self._settings, self._sink, int(point)
        self._slots = Slots(self._asked, self._draw(concurrency), self._conversations)
        ramp_s = alone_s if settings.ramp_ms is None else settings.ramp_ms / 1000
        warming_s = perf_counter()
        turns = self._ramp(concurrency, ramp_s)
        while min(turns) < WARMUP_TURNS:
            slot = self._freed(math.inf)
            assert slot is not None
            turns[slot] += 1
            self._issue(slot)
        edge()
        meter = sink.begin(concurrency)
        begun_s = meter.begun_s
        least = max(MIN_REQUESTS, MIN_SLOT_REQUESTS * concurrency)
        for number in range(
            MAX_WINDOW_LENGTHS
        ):  # whole lengths: ending at a count would bias the rate
            until_s = begun_s + (number + 1) * settings.min_duration_ms / 1000
            while (slot := self._freed(until_s)) is not None:
                self._issue(slot)
            if meter.counted >= least:
                break
        window = replace(sink.close(), warm_requests=sum(turns), warm_s=begun_s - warming_s)
        edge()
        for _ in range(concurrency - self._slots.waiting):
            sink.freed.get()
        self._conversations = self._slots.count
        return window

    def _ramp(self, concurrency: int, ramp_s: float) -> list[int]:
        """Fill the slots one by one over `ramp_s`; return how often each completed a request."""
        turns = [0] * concurrency
        begun_s = perf_counter()
        for slot in range(concurrency):
            due_s = begun_s + ramp_s * slot / concurrency
            while (again := self._freed(due_s)) is not None:
                turns[again] += 1
                self._issue(again)
            self._issue(slot)
        return turns

    def _freed(self, until_s: float) -> int | None:
        """Wait for a slot that may issue its next request; return it, or None after `until_s`."""
        slots = self._slots
        while (now_s := perf_counter()) < until_s:
            if slots.due_s <= now_s:
                return slots.pop()
            next_s = min(until_s, slots.due_s)
            try:
                left_s = None if next_s == math.inf else next_s - now_s
                slot, ended_s = self._sink.freed.get(timeout=left_s)
            except Empty:
                continue
            if not (pause_s := slots.pause(slot, ended_s)):
                return slot
            self._sink.pause(ended_s, pause_s)
        return None

    def _issue(self, slot: int) -> None:
        sample, request = next(self._ids), self._slots.next(slot)
        self._sink.expect_request(sample, request, slot)
        self._engine.submit([sample], [request.index], self._sink)


@dataclass
class HarnessProgress:
    """Count the progress reports of an engine's own harness, in place of a `Sink`'s completions."""

    completed: int = 0
    outstanding: int = 0
    faults: Faults = field(default_factory=Faults)

    def repeated(self) -> None:
        """Return None: without sample indices, unanswered repeats of samples cannot be found."""

    def beat(self) -> None:
        """Count a progress report of the engine's harness."""
        self.completed += 1


def run_engine_harness(
    engine: Engine,
    settings: LoadGenSettings,
    folder: Path,
    pulse: HarnessProgress,
    at_edges: Callable[[], None],
) -> dict[str, Any]:
    """Measure points by the engine's harness; return "order", and clock offsets "recorded" [s]."""
    offsets_s, points = dict[str, float](), shuffled_points(settings, folder.parent.name)
    at_edges()
    for point in points:
        name = f"c{point:g}"
        scored = round(point) in scored_points([round(each) for each in points])
        engine.measure_point(round(point), settings, folder / name, pulse.beat, scored=scored)
        offsets_s[name] = time.time() - time.monotonic()
    at_edges()
    return {"schema": SCHEMA_VERSION, "order": points, "recorded": offsets_s}


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
    """Return the points; add `client_reach`, the client's maximum requests/s, if it was busy.

    The client is busy if it used `MAX_IDLE_CORES` or more. The rate is None if the engine has no
    null server. The engine must be idle, with samples `loaded`. A measurement takes `lasts_ms`.
    """
    brief = dataclasses.replace(settings, min_duration_ms=lasts_ms, ramp_ms=0, arrivals="")

    def limit(point_row: Mapping[str, Any]) -> float | None:
        concurrency = int(point_row["point"])
        if point_row["open"] is not None or point_row["paused"]:
            concurrency = max(MIN_LOOP_REQUESTS, math.ceil(point_row["under_way"]))
        length = max(2.0, point_row["tokens"] / point_row["requests"])
        tokens = max(2, min(round(length), TOKENS_UNDER_WAY // concurrency))
        client = engine.null_client(tokens)
        if client is None:
            return None
        settings_of_point = dataclasses.replace(brief, points=[concurrency])
        sink = SlotSink(fail, tokens=settings.tokens)
        with client as driven:
            loop = ClosedLoop(driven, sink, Conversations(loaded), settings_of_point)
            (window,) = loop.run("client check", 0.0, lambda: None)["points"]
        return float(window["requests"] / window["duration_s"] * tokens / length)

    return [
        {**point_row, "client_reach": limit(point_row)}
        if point_row["client_busy"] >= MAX_IDLE_CORES and point_row["requests"]
        else dict(point_row)
        for point_row in points
    ]

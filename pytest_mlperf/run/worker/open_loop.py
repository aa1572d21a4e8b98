"""Issue requests at a rate or at recorded times, however slowly the server answers."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from queue import Empty
from time import perf_counter

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.extension import Dataset
from pytest_mlperf.core.job import LoadGenSettings
from pytest_mlperf.run.worker.closed_loop import WARMUP_TURNS, Loop
from pytest_mlperf.run.worker.point_window import PointWindow, WindowMeter

POLL_SECONDS = 0.1
Arrival = tuple[float, int]
"""Time from the begin of a window [s], and data set index."""


def gaps(settings: LoadGenSettings, rate: float, random_source: random.Random) -> Iterator[float]:
    """Yield endless times between arrivals [s]: constant, gamma or exponential by `settings`."""
    shape = settings.burstiness or 1.0
    while True:
        if settings.arrivals == "constant":
            yield 1 / rate
        elif settings.arrivals == "gamma":
            yield random_source.gammavariate(shape, 1 / (rate * shape))
        else:
            yield random_source.expovariate(rate)


def window_arrivals(settings: LoadGenSettings, rate: float, draw: random.Random) -> list[float]:
    """Return the arrival times in a window [s]; their number is rate · length, rounded.

    Gaps are scaled to the window's length, so that every seed offers the same load. For Poisson
    arrivals this is the distribution of arrival times given their number.
    """
    lasts_s = settings.min_duration_ms / 1000
    count = max(1, round(rate * lasts_s))
    if settings.arrivals == "constant":
        return [n * lasts_s / count for n in range(count)]
    between = gaps(settings, rate, draw)
    steps = [next(between) for _ in range(count + 1)]
    total = sum(steps)
    return [at / total * lasts_s if total else 0.0 for at in accumulate(steps[:-1])]


def trace_arrivals(dataset: Dataset, settings: LoadGenSettings) -> Sequence[float]:
    """Return a trace's arrival times relative to the first [s], up to the end of all windows.

    Raises RunError if the data set is not a trace, or ends before a window begins.
    """
    arrival = getattr(dataset, "arrival_s", None)
    if arrival is None:
        raise RunError(
            "dataset",
            'arrivals = "trace" needs a data set with arrival times: prompts with trace = true',
        )
    ramp_s = (settings.ramp_ms or 0) / 1000
    needed_s = (ramp_s + 2 * settings.min_duration_ms / 1000) * max(settings.points)
    times, first_s = list[float](), arrival(0)
    for index in range(len(dataset)):
        if (at := arrival(index) - first_s) > needed_s:
            break
        times.append(at)
    if times[-1] < ramp_s * max(settings.points):
        raise RunError(
            "dataset",
            f"the trace lasts {times[-1]:g} s, but the ramp, which is not measured, takes "
            f"{ramp_s * max(settings.points):g} s: lower ramp, or use a longer trace",
        )
    return times


class OpenLoop(Loop):
    """Issue requests at scheduled times, which are seeded and equal in every run.

    Latency counts from the scheduled time, even if a request is issued late. After the window,
    arrivals continue until its requests are completed, at most for the length of the window.
    """

    def _measure_point(self, point: float, alone_s: float, edge: Callable[[], None]) -> PointWindow:
        sink, lead, counted, rest, lasts_s = self._sink, *self._plan_arrivals(point)
        self._lead_in(lead, alone_s)
        edge()
        meter = sink.begin(point, lasts_s)
        begun_s = meter.begun_s
        for offset_s, index in counted:
            self._issue(begun_s + offset_s, index, counts=True)
        end_s = begun_s + lasts_s
        _sleep_until(end_s)
        edge()
        for offset_s, index in rest:
            if offset_s > lasts_s or self._wait_for_window(meter, end_s + offset_s):
                break
            self._issue(end_s + offset_s, index, counts=False)
        self._wait(lambda: not meter.left)
        measured = sink.close()
        self._wait(lambda: not sink.under_way)
        return measured

    def _plan_arrivals(
        self, point: float
    ) -> tuple[Iterator[Arrival], Sequence[Arrival], Iterator[Arrival], float]:
        """Return the arrivals before, in and after a load level's window, and its length [s]."""
        settings, lasts_s = self._settings, self._settings.min_duration_ms / 1000
        if not self._trace:
            # Independent requests, even if the samples belong to conversations.
            drawn = iter(partial(self._draw(point).choice, self._asked.indices), None)
            seed = f"{settings.seeds.schedule} {point}"
            times = window_arrivals(settings, point, random.Random(f"{seed} window"))
            counted = list(zip(times, drawn, strict=False))
            between = (
                gaps(settings, point, random.Random(f"{seed} {part}"))
                for part in ("before", "after")
            )
            lead, rest = (zip(accumulate(times_s), drawn, strict=False) for times_s in between)
            return lead, counted, rest, lasts_s
        ramp_s = (settings.ramp_ms or 0) / 1000
        arrivals = [(at / point, index) for index, at in enumerate(self._trace)]
        counted = [(at - ramp_s, n) for at, n in arrivals if ramp_s <= at < ramp_s + lasts_s]
        last_s = arrivals[-1][0]
        if last_s < ramp_s + lasts_s:  # the trace is shorter: its last request gets a mean gap
            lasts_s = last_s - ramp_s + last_s / max(1, len(arrivals) - 1) or lasts_s
        lead_arrivals, end_s = (one for one in arrivals if one[0] < ramp_s), ramp_s + lasts_s
        late_arrivals = ((at - end_s, index) for at, index in arrivals if at >= end_s)
        return lead_arrivals, counted, late_arrivals, lasts_s

    def _lead_in(self, lead: Iterator[Arrival], alone_s: float) -> None:
        settings, sink = self._settings, self._sink
        begun_s, completed_before = perf_counter(), sink.completed
        ramp_s = None if settings.ramp_ms is None else settings.ramp_ms / 1000
        if ramp_s is None and self._trace:
            ramp_s = 0.0
        longest_s = settings.min_duration_ms / 1000 if ramp_s is None else ramp_s
        for offset_s, index in lead:
            if offset_s >= longest_s:
                break
            self._issue(begun_s + offset_s, index, counts=False)
            answered = sink.completed - completed_before
            full = (
                answered >= max(1, WARMUP_TURNS * sink.under_way)
                and offset_s >= WARMUP_TURNS * alone_s
            )
            if ramp_s is None and full:
                return
        if ramp_s is not None:
            _sleep_until(begun_s + ramp_s)

    def _issue(self, due_s: float, index: int, *, counts: bool) -> None:
        _sleep_until(due_s)
        sample = next(self._ids)
        self._sink.arrived(sample, index, due_s, counts=counts)
        self._engine.submit([sample], [index], self._sink)

    def _wait_for_window(self, meter: WindowMeter, due_s: float) -> bool:
        """Wait until `due_s` or all counted requests have ended; return whether they have."""
        self._wait(lambda: not meter.left or perf_counter() >= due_s, due_s)
        return not meter.left

    def _wait(self, over: Callable[[], bool], until_s: float | None = None) -> None:
        while not over():
            left_s = (
                POLL_SECONDS if until_s is None else min(POLL_SECONDS, until_s - perf_counter())
            )
            with contextlib.suppress(Empty):
                self._sink.freed.get(timeout=max(0.0, left_s))


def _sleep_until(due_s: float) -> None:
    if (left_s := due_s - perf_counter()) > 0:
        time.sleep(left_s)

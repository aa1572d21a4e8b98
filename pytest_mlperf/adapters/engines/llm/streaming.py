"""Answer requests with coroutines on an event loop, which runs in one long-lived thread."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from array import array
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, inf
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

from pytest_mlperf import Sink

PROBE_PERIOD_SECONDS = 25e-3
"""Mean time between two probes of the loop, while requests are open; they use 0.4 % of a core."""

RESOLUTION_S = 1e-3
"""Lateness that is ignored: a selector waits for whole milliseconds."""

CLOSE_TIMEOUT_SECONDS = 10.0
"""Maximum wait for a loop's cancelled connections; then it ends with the process."""

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}

KEPT_PROBES = 2_400
"""Number of kept probes: (time, processor time, wait for a core, summed lateness, timers)."""

LATE_SHARE = 0.5
"""Share of an answer's duration, or of its time per message, above which the client was late."""

SCHEDSTAT = Path("/proc/thread-self/schedstat")
"""Linux: nanoseconds of computing, and of waiting for a core, of the calling thread."""


def _waited_s() -> float:
    """Return this thread's total wait for a CPU core [s]; 0 if the platform does not report it."""
    try:
        return int(SCHEDSTAT.read_bytes().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


class Lateness:
    """Measure how late this process sends requests and receives SSE events (parts of answers).

    "issue" is the time from receiving a sample to starting its request. "loop" is the time for
    which an event at a random moment waits for the event loop, measured by how late timers run. If
    the loop is blocked for several timer periods, each missed timer counts with the remaining time
    of the block, so that rare long blocks are not lost among short ones.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        is_busy: Callable[[], bool],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Measure the delays of event loop `loop` while `is_busy` returns true, by `clock` [s]."""
        self.now = clock
        self._loop = loop
        self._is_busy = is_busy
        self._issue = array("d")
        self._lag = array("d")
        self._due_s: float | None = None
        self._lag_s, self._lags, self._waited = 0.0, 0, (-inf, 0.0)
        self._probes: deque[tuple[float, float, float, float, int]] = deque(maxlen=KEPT_PROBES)

    def begun(self, issued_s: float) -> None:
        """Record the delay from `issued_s`, the call of `submit`, to now, the request's start."""
        self._issue.append(self.now() - issued_s)
        if self._due_s is None:
            self._schedule_probe()

    def held_up(self, since_s: float, events: int) -> bool:
        """Return whether this process may have merged SSE events of an answer that ends now.

        True if, for at least half of the time since the request at `since_s`, the loop's thread
        computed or waited for a CPU core. Also true if timers were late by at least half of the
        mean time between the answer's `events` SSE events.
        """
        now_s, probes = self.now(), self._probes
        begin = next((probe for probe in reversed(probes) if probe[0] <= since_s), probes[0])
        begin_s, cpu_s, waited_s, lag_s, lags = begin
        duration_s, busy_s = now_s - begin_s, time.thread_time() - cpu_s
        if busy_s >= LATE_SHARE * duration_s:
            return True
        # Reading it takes 20 us, too long for each of thousands of answers a second.
        if now_s - self._waited[0] > PROBE_PERIOD_SECONDS / 5:
            self._waited = now_s, _waited_s()
        if busy_s + self._waited[1] - waited_s >= LATE_SHARE * duration_s:
            return True
        overdue_s = 0.0 if self._due_s is None else max(0.0, now_s - self._due_s - RESOLUTION_S)
        mean_s = (self._lag_s + overdue_s - lag_s) / max(1, self._lags + (overdue_s > 0) - lags)
        return mean_s >= LATE_SHARE * duration_s / events

    def take(self) -> Mapping[str, float]:
        """Return and reset percentiles [s] of "issue", "loop" (see class); {} without requests."""
        issue, self._issue = self._issue, array("d")
        lag, self._lag = self._lag, array("d")
        times = {"issue": issue, "loop": lag} if issue and lag else {}
        return {
            f"{name}_{label}": percentile(values, share)
            for name, values in times.items()
            for label, share in QUANTILES.items()
        }

    def _schedule_probe(self) -> None:
        spent_s = time.thread_time(), _waited_s()
        self._probes.append((self.now(), *spent_s, self._lag_s, self._lags))
        # Random intervals, so that probes do not miss periodic blocks.
        every_s = random.uniform(0.5, 1.5) * PROBE_PERIOD_SECONDS
        self._due_s = self.now() + every_s
        self._loop.call_later(every_s, self._probe)

    def _probe(self) -> None:
        assert self._due_s is not None
        late_s = max(0.0, self.now() - self._due_s - RESOLUTION_S)
        missed = int(late_s / PROBE_PERIOD_SECONDS)
        lags = [late_s - number * PROBE_PERIOD_SECONDS for number in range(missed + 1)]
        self._lag.extend(lags)
        self._lag_s += sum(lags)
        self._lags += len(lags)
        self._due_s = None
        if self._is_busy():
            self._schedule_probe()


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least a share of the values do not exceed."""
    return sorted(values)[ceil(share * len(values)) - 1]


T = TypeVar("T")

Answer = Callable[["StreamedRequest"], Awaitable[None]]
"""Answers one sample: reports its tokens as they come, then calls `StreamedRequest.done`."""


@dataclass(eq=False, slots=True)
class StreamedRequest:
    """Report the progress of one sample's request; `stamped` counts the tokens reported so far.

    `sent_s` is when the request was sent, on the event loop's clock [s]. Each token is reported at
    once, because the sink records its time; tokens collected over a pass of the loop would be late.
    """

    sample: int
    index: int
    sink: Sink
    _ends: Ends
    _lateness: Lateness
    sent_s: float = 0.0
    stamped: int = 0

    def tokens(self, count: int = 1) -> None:
        """Report `count` new tokens; needed only if `sink.times_tokens`.

        An engine that cannot count the tokens of an SSE event reports one token for the first
        event, and nothing for later ones. Then the time per output token is known, but not the time
        between tokens.
        """
        if count < 1 or not self.sink.times_tokens:
            return
        further = count
        if not self.stamped:
            self.sink.first_tokens([self.sample])
            further -= 1
        if further:  # tokens that came together have no time between them
            self.sink.next_tokens([self.sample] * further)
        self.stamped += count

    def done(
        self,
        output: bytes | None,
        tokens: int | None,
        reason: str | None = None,
        prompt_tokens: int | None = None,
    ) -> None:
        """Report a completed sample and its finish `reason`; None if unknown or not wanted."""
        ended = self._ends.collector_for(self.sink)
        if reason is not None:
            ended.reasons.append((self.sample, reason, prompt_tokens))
        ended.done.append((self.sample, output, tokens))

    def streamed(self, after_first: int | None, hidden: int | None) -> None:
        """Report an answer's numbers of tokens; call this before `done`.

        `after_first`: tokens after the first message. `hidden`: tokens that the user does not see.
        None if unknown.
        """
        if self.sink.times_tokens:
            self._ends.collector_for(self.sink).streamed.append((self.sample, after_first, hidden))

    def held_up(self, events: int) -> bool:
        return self._lateness.held_up(self.sent_s, events)

    def lost(self) -> None:
        """Report a failed request; allowed only if the sink allows failures (`may_fail`)."""
        lost = getattr(self.sink, "lost")  # noqa: B009 - only such sinks have it
        lost([self.sample])


@dataclass(slots=True)
class _EndedSamples:
    """Collect ended samples for a sink: streaming data, finish reasons, outputs, token counts."""

    sink: Sink
    streamed: list[tuple[int, int | None, int | None]] = field(default_factory=list)
    reasons: list[tuple[int, str, int | None]] = field(default_factory=list)
    done: list[tuple[int, bytes | None, int | None]] = field(default_factory=list)

    def tell(self) -> None:
        if self.streamed:
            self.sink.streamed(*zip(*self.streamed, strict=True))
        if self.reasons:
            self.sink.ended(*zip(*self.reasons, strict=True))
        ids, outputs, counts = zip(*self.done, strict=True)
        counted = None if None in counts else counts
        self.sink.done(ids, outputs if self.sink.wants_output else None, counted)


class Ends:
    """Collect the samples that end in one pass of the event loop; report them once per sink."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ended: dict[int, _EndedSamples] = {}

    def collector_for(self, sink: Sink) -> _EndedSamples:
        """Return the collector for samples of a sink that end in this pass of the event loop."""
        if not self._ended:
            self._loop.call_soon(self._tell)
        return self._ended.setdefault(id(sink), _EndedSamples(sink))

    def _tell(self) -> None:
        gathered, self._ended = self._ended, {}
        for ended in gathered.values():
            try:
                ended.tell()
            except BaseException as error:  # an error of the sink ends the run
                ended.sink.failed(error)


class Streams:
    """Answer each sample in a task of an event loop, which has its own thread.

    LoadGen can crash if a thread that completed samples ends during a run, so this thread lives
    until `close`. An exception in an answer ends the run with outcome ERROR.
    """

    def __init__(
        self,
        answer: Answer,
        *,
        concurrency: int | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """Start the event loop's thread; it answers `concurrency` samples at once (None: all)."""
        if concurrency is not None and concurrency < 1:
            raise ValueError(f"concurrency={concurrency!r}; at least 1")
        self._answer = answer
        self.loop = loop or asyncio.new_event_loop()
        self._ends = Ends(self.loop)
        self._tasks: set[asyncio.Task[None]] = set()
        self._lateness = Lateness(self.loop, lambda: bool(self._tasks))
        self._room = asyncio.Semaphore(concurrency) if concurrency else None
        self._thread = threading.Thread(target=self._live, name="streams", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def put(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        arguments = (tuple(ids), tuple(indices), sink, self._lateness.now())
        if threading.get_ident() == self._thread.ident:
            self._begin(*arguments)
        else:
            self.loop.call_soon_threadsafe(self._begin, *arguments)

    def take_lateness(self) -> Mapping[str, float]:
        """Return and reset this process's lateness, see `Lateness.take`."""

        async def taken() -> Mapping[str, float]:
            await asyncio.sleep(0)  # a due probe runs first
            return self._lateness.take()

        return self.run(taken())

    def close(self) -> None:
        """Cancel open requests, end the thread, and wait for it."""
        if self._thread.is_alive():
            self.run(self._cancel())
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(CLOSE_TIMEOUT_SECONDS)

    def _live(self) -> None:
        with contextlib.closing(self.loop):
            self.loop.run_forever()

    def _begin(
        self, ids: Sequence[int], indices: Sequence[int], sink: Sink, issued_s: float
    ) -> None:
        for sample, index in zip(ids, indices, strict=True):
            request = StreamedRequest(sample, index, sink, self._ends, self._lateness)
            task = self.loop.create_task(self._serve(request, issued_s))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, request: StreamedRequest, issued_s: float) -> None:
        self._lateness.begun(issued_s)
        try:
            async with self._room or contextlib.nullcontext():
                request.sent_s = self._lateness.now()
                await self._answer(request)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # a sample without an answer would hang the run
            request.sink.failed(error)

    async def _cancel(self) -> None:
        # Answers cancel their own work, such as requests to a server, before this returns.
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.loop.shutdown_asyncgens()

"""Requests as coroutines: one long-lived thread with an event loop answers and reports them."""

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
"""Mean time between two looks at the loop, while something is under way: 0.4 % of a core."""

RESOLUTION_S = 1e-3
"""A selector waits for whole milliseconds, so that no timer is late that is late by less."""

CLOSE_TIMEOUT_SECONDS = 10.0
"""A loop that waits longer for connections that it gave up is left to end with the process."""

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}

KEPT_LOOKS = 2_400
"""Looks that are kept, each as time, the thread's processor time and its wait for a core, and the
sum of the timers' lateness with their number."""

LATE_SHARE = 0.5
"""Share of an answer's life, or of its time per message, from which on the client was late."""

SCHEDSTAT = Path("/proc/thread-self/schedstat")
"""Linux: nanoseconds that the calling thread computed, and that it waited for a core."""


def _waited_s() -> float:
    """Return how long this thread has waited for a core; 0 if the platform does not report it."""
    try:
        return int(SCHEDSTAT.read_bytes().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


class Lateness:
    """Holds the moments at which things happen against those at which they were due.

    "issue" is the time from a sample's hand-over to the start of its request. "loop" is how long
    what comes in at any moment waits until the loop looks: a timer's lateness. A loop that was held
    up for long missed many looks, and what came meanwhile waited for what was left of it: each
    missed look counts with its rest, or a rare long block would vanish among short ones.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        under_way: Callable[[], bool],
        now: Callable[[], float] = monotonic,
    ) -> None:
        """Start with nothing; `now` is in seconds: a loop's own time may stand still in a pass."""
        self.now = now
        self._loop = loop
        self._under_way = under_way
        self._issue = array("d")
        self._lag = array("d")
        self._due_s: float | None = None
        self._lag_s, self._lags, self._waited = 0.0, 0, (-inf, 0.0)
        self._looks: deque[tuple[float, float, float, float, int]] = deque(maxlen=KEPT_LOOKS)

    def begun(self, issued_s: float) -> None:
        """Note that the request of a sample that was handed over then starts now."""
        self._issue.append(self.now() - issued_s)
        if self._due_s is None:
            self._look_again()

    def held_up(self, since_s: float, events: int) -> bool:
        """Return whether this process may have merged messages of an answer that ends now.

        This is so if the loop's thread computed or waited for a core in half of the time since the
        request, at `since_s`. It is also so if timers were late by half of the mean time between
        its `events`, the messages.
        """
        now_s, looks = self.now(), self._looks
        begin = next((look for look in reversed(looks) if look[0] <= since_s), looks[0])
        begin_s, cpu_s, waited_s, lag_s, lags = begin
        lasted_s, busy_s = now_s - begin_s, time.thread_time() - cpu_s
        if busy_s >= LATE_SHARE * lasted_s:
            return True
        # A client of thousands of answers a second asks this of each of them, and it costs 20 us.
        if now_s - self._waited[0] > PROBE_PERIOD_SECONDS / 5:
            self._waited = now_s, _waited_s()
        if busy_s + self._waited[1] - waited_s >= LATE_SHARE * lasted_s:
            return True
        overdue_s = 0.0 if self._due_s is None else max(0.0, now_s - self._due_s - RESOLUTION_S)
        mean_s = (self._lag_s + overdue_s - lag_s) / max(1, self._lags + (overdue_s > 0) - lags)
        return mean_s >= LATE_SHARE * lasted_s / events

    def take(self) -> Mapping[str, float]:
        """Return percentiles of both, seconds, and reset them; {} if nothing was issued."""
        issue, self._issue = self._issue, array("d")
        lag, self._lag = self._lag, array("d")
        times = {"issue": issue, "loop": lag} if issue and lag else {}
        return {
            f"{name}_{label}": percentile(values, share)
            for name, values in times.items()
            for label, share in QUANTILES.items()
        }

    def _look_again(self) -> None:
        spent_s = time.thread_time(), _waited_s()
        self._looks.append((self.now(), *spent_s, self._lag_s, self._lags))
        # Looks at even intervals would never meet what holds up the loop as evenly.
        every_s = random.uniform(0.5, 1.5) * PROBE_PERIOD_SECONDS
        self._due_s = self.now() + every_s
        self._loop.call_later(every_s, self._look)

    def _look(self) -> None:
        assert self._due_s is not None
        late_s = max(0.0, self.now() - self._due_s - RESOLUTION_S)
        missed = int(late_s / PROBE_PERIOD_SECONDS)
        lags = [late_s - number * PROBE_PERIOD_SECONDS for number in range(missed + 1)]
        self._lag.extend(lags)
        self._lag_s += sum(lags)
        self._lags += len(lags)
        self._due_s = None
        if self._under_way():
            self._look_again()


def percentile(values: Sequence[float], share: float) -> float:
    """Return the least of some values that a share of them is not above."""
    return sorted(values)[ceil(share * len(values)) - 1]


T = TypeVar("T")

Answer = Callable[["StreamedRequest"], Awaitable[None]]
"""Answers one sample: tells its tokens as they come, and ends with `StreamedRequest.done`."""


@dataclass(eq=False, slots=True)
class StreamedRequest:
    """One sample on its way; `stamped` of its tokens are told so far.

    `sent_s` is when its request began, on the clock of `_lateness`.

    Tokens are told to the sink at once, which stamps them: gathered over a pass of the event loop,
    those that came first in it would be stamped late by the rest of it.
    """

    sample: int
    index: int
    sink: Sink
    _ends: Ends
    _lateness: Lateness
    sent_s: float = 0.0
    stamped: int = 0

    def tokens(self, count: int = 1) -> None:
        """Report `count` new tokens, now; needed only where `sink.times_tokens`.

        An engine that cannot count a message's tokens reports one token for the first message only:
        then time per token is known, and time between tokens is not.
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
        """Report a finished sample; its tokens are None if unknown.

        `reason` and `prompt_tokens` are those of `Sink.ended`; None if unknown.
        """
        ended = self._ends.of(self.sink)
        if reason is not None:
            ended.reasons.append((self.sample, reason, prompt_tokens))
        ended.done.append((self.sample, output, tokens))

    def streamed(self, after_first: int | None, hidden: int | None) -> None:
        """Tell before `done` how the answer was streamed, see `Sink.streamed`."""
        if self.sink.times_tokens:
            self._ends.of(self.sink).streamed.append((self.sample, after_first, hidden))

    def held_up(self, events: int) -> bool:
        """Return whether this process may have joined messages of the answer."""
        return self._lateness.held_up(self.sent_s, events)

    def lost(self) -> None:
        """Tell that the sample failed, to a sink that lets some fail."""
        lost = getattr(self.sink, "lost")  # noqa: B009 - of such sinks alone, see `Sink`
        lost([self.sample])


@dataclass(slots=True)
class Arrivals:
    """Tokens that came in for one sink: ids whose first one is here, and one for each further."""

    sink: Sink
    first: list[int] = field(default_factory=list)
    further: list[int] = field(default_factory=list)

    def tell_tokens(self) -> None:
        if self.first:
            self.sink.first_tokens(self.first)
        if self.further:
            self.sink.next_tokens(self.further)


@dataclass(slots=True)
class _Ended:
    """Samples that ended: how they were streamed, why they ended, their outputs and tokens."""

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
    """Gathers what ended in one pass of the event loop, and tells each sink when it is over.

    Who waits for an end to issue what is next is then woken once for all of them.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ended: dict[int, _Ended] = {}

    def of(self, sink: Sink) -> _Ended:
        """Return where to put what ended for a sink."""
        if not self._ended:
            self._loop.call_soon(self._tell)
        return self._ended.setdefault(id(sink), _Ended(sink))

    def _tell(self) -> None:
        gathered, self._ended = self._ended, {}
        for ended in gathered.values():
            try:
                ended.tell()
            except BaseException as error:  # a sink that refuses ends the run
                ended.sink.failed(error)


class Streams:
    """An event loop in a thread of its own that answers samples, each in a task of its own.

    LoadGen can crash when a thread that completed samples ends during a run: this one lives until
    `close`. What an answer raises ends the run as ERROR.
    """

    def __init__(
        self,
        answer: Answer,
        *,
        concurrency: int | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """Start the thread, which answers at most `concurrency` samples at a time; None for all.

        A given loop is closed with the rest; the default is asyncio's.
        """
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
        """Run a coroutine from another thread and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def put(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        handed = (tuple(ids), tuple(indices), sink, self._lateness.now())
        if threading.get_ident() == self._thread.ident:
            self._begin(*handed)
        else:
            self.loop.call_soon_threadsafe(self._begin, *handed)

    def take_lateness(self) -> Mapping[str, float]:
        """Return how late this process was since the last time, see `Lateness.take`."""

        async def taken() -> Mapping[str, float]:
            await asyncio.sleep(0)  # a look that is due comes first
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
        except BaseException as error:  # a lost sample would hang the run
            request.sink.failed(error)

    async def _cancel(self) -> None:
        # What an answer cancels, as a request to a server, is done when this returns.
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.loop.shutdown_asyncgens()

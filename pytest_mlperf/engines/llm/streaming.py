"""Requests as coroutines: one long-lived thread with an event loop answers and reports them."""

from __future__ import annotations

import asyncio
import threading
from array import array
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from time import monotonic
from typing import Any, TypeVar

from pytest_mlperf.core.extension import Sink

EVERY_S = 25e-3
"""Time between two looks at the loop, while something is under way: 0.4 % of a core."""

RESOLUTION_S = 1e-3
"""A selector waits for whole milliseconds, so that no timer is late that is late by less."""

CLOSE_S = 10.0
"""A loop that waits longer for connections that it gave up is left to end with the process."""

SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


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

    def begun(self, issued_s: float) -> None:
        """Note that the request of a sample that was handed over then starts now."""
        self._issue.append(self.now() - issued_s)
        if self._due_s is None:
            self._look_again()

    def take(self) -> Mapping[str, float]:
        """Return percentiles of both, seconds, and start anew; {} where nothing was issued."""
        issue, self._issue = self._issue, array("d")
        lag, self._lag = self._lag, array("d")
        times = {"issue": issue, "loop": lag} if issue and lag else {}
        return {
            f"{name}_{label}": percentile(values, share)
            for name, values in times.items()
            for label, share in SHARES.items()
        }

    def _look_again(self) -> None:
        self._due_s = self.now() + EVERY_S
        self._loop.call_later(EVERY_S, self._look)

    def _look(self) -> None:
        assert self._due_s is not None
        late_s = max(0.0, self.now() - self._due_s - RESOLUTION_S)
        missed = int(late_s / EVERY_S)
        self._lag.extend(late_s - number * EVERY_S for number in range(missed + 1))
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
    """One sample on its way; `stamped` of its tokens are told so far."""

    sample: int
    index: int
    sink: Sink
    _reports: Reports
    stamped: int = 0

    def tokens(self, count: int = 1) -> None:
        """Tell that `count` more tokens are here, now; needed only where `sink.times_tokens`.

        An engine that cannot count the tokens of a message tells the first message as one token
        and leaves out the rest: time per token is then known, the time between tokens is not.
        """
        if count < 1 or not self.sink.times_tokens:
            return
        news = self._reports.of(self.sink)
        if not self.stamped:
            news.first.append(self.sample)
        # Tokens that came together have no time between them.
        news.further.extend([self.sample] * (count - (not self.stamped)))
        self.stamped += count

    def done(
        self,
        output: bytes | None,
        tokens: int | None,
        reason: str | None = None,
        prompt_tokens: int | None = None,
    ) -> None:
        """Tell that the sample is finished; its tokens are None where nothing counts them.

        Args:
            reason: Why it ended, and how long its prompt was, see `Sink.ended`; None: unknown.
        """
        news = self._reports.of(self.sink)
        if reason is not None:
            news.ended.append((self.sample, reason, prompt_tokens))
        news.done.append((self.sample, output, tokens))


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
class _StreamArrivals(Arrivals):
    """Also what ended: ids with why and the prompt's tokens; and with outputs and tokens."""

    ended: list[tuple[int, str, int | None]] = field(default_factory=list)
    done: list[tuple[int, bytes | None, int | None]] = field(default_factory=list)


class Reports:
    """Gathers what one pass of the event loop found, and tells each sink at its end.

    A call into LoadGen costs as much for one sample as for many.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._news: dict[int, _StreamArrivals] = {}

    def of(self, sink: Sink) -> _StreamArrivals:
        """Return where to put news for a sink; they are told when this pass ends."""
        if not self._news:
            self._loop.call_soon(self._tell)
        news = self._news.get(id(sink))
        if news is None:
            news = self._news[id(sink)] = _StreamArrivals(sink)
        return news

    def _tell(self) -> None:
        gathered, self._news = self._news, {}
        for news in gathered.values():
            try:
                self._tell_sink(news)
            except BaseException as error:  # a sink that refuses ends the run
                news.sink.failed(error)

    def _tell_sink(self, news: _StreamArrivals) -> None:
        sink = news.sink
        news.tell_tokens()
        if news.ended:
            sink.ended(*zip(*news.ended, strict=True))
        if news.done:
            ids, outputs, counts = zip(*news.done, strict=True)
            counted = None if None in counts else counts
            sink.done(ids, outputs if sink.wants_output else None, counted)


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
        """Start the thread; `concurrency` samples are answered at a time at most, None: all.

        The loop is asyncio's unless one is given, which is closed with the rest.
        """
        if concurrency is not None and concurrency < 1:
            raise ValueError(f"concurrency={concurrency!r}; at least 1")
        self._answer = answer
        self._loop = loop or asyncio.new_event_loop()
        self._reports = Reports(self._loop)
        self._tasks: set[asyncio.Task[None]] = set()
        self._lateness = Lateness(self._loop, lambda: bool(self._tasks))
        self._room = asyncio.Semaphore(concurrency) if concurrency else None
        self._thread = threading.Thread(target=self._live, name="streams", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what a coroutine returns, called from another thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def put(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        handed = (tuple(ids), tuple(indices), sink, self._lateness.now())
        self._loop.call_soon_threadsafe(self._begin, *handed)

    def take_lateness(self) -> Mapping[str, float]:
        """Return how late this process was since the last time, see `Lateness.take`."""

        async def taken() -> Mapping[str, float]:
            await asyncio.sleep(0)  # a look that is due comes first
            return self._lateness.take()

        return self.run(taken())

    def close(self) -> None:
        """Cancel what is under way, end the thread, and wait for it."""
        if self._thread.is_alive():
            self.run(self._cancel())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CLOSE_S)

    def _live(self) -> None:
        """Run the loop, and close it in the thread that it belongs to."""
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def _begin(
        self, ids: Sequence[int], indices: Sequence[int], sink: Sink, issued_s: float
    ) -> None:
        for sample, index in zip(ids, indices, strict=True):
            request = StreamedRequest(sample, index, sink, self._reports)
            task = self._loop.create_task(self._serve(request, issued_s))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, request: StreamedRequest, issued_s: float) -> None:
        self._lateness.begun(issued_s)
        try:
            if self._room is None:
                await self._answer(request)
            else:
                async with self._room:
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
        await self._loop.shutdown_asyncgens()

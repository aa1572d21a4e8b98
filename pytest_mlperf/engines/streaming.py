"""Requests as coroutines: one long-lived thread with an event loop answers and reports them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from math import ceil
from typing import Any, TypeVar

from pytest_mlperf.core.extension import Sink
from pytest_mlperf.engines.lateness import Lateness

LATE_S = 20e-3
"""A median gap above this is told: so much of a time to first token is then this process's."""

T = TypeVar("T")

Answer = Callable[["Request"], Awaitable[None]]
"""Answers one sample: tells its tokens as they come, and ends with `Request.done`."""


class Request:
    """One sample on its way.

    Attributes:
        sample: LoadGen's id.
        index: Its index in the data set.
        sink: Where it is reported.
        stamped: Tokens told so far.
    """

    __slots__ = ("_reports", "index", "sample", "sink", "stamped")

    def __init__(self, sample: int, index: int, sink: Sink, reports: Reports) -> None:
        """Start with no token."""
        self.sample = sample
        self.index = index
        self.sink = sink
        self.stamped = 0
        self._reports = reports

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

    def done(self, output: bytes | None, tokens: int | None) -> None:
        """Tell that the sample is finished.

        Args:
            output: What it gave; read only where `sink.wants_output`.
            tokens: Its output tokens; None where nothing counts them.
        """
        self._reports.of(self.sink).done.append((self.sample, output, tokens))


class OneSample:
    """A sink for `generation.Answers` that reports through a request, which keeps the order."""

    def __init__(self, request: Request) -> None:
        self.wants_output = request.sink.wants_output
        self.times_tokens = request.sink.times_tokens
        self.first_tokens = request.sink.first_tokens
        self.next_tokens = request.sink.next_tokens
        self.failed = request.sink.failed
        self._request = request

    def done(
        self,
        ids: Sequence[int],  # noqa: ARG002 - the request knows its sample
        outputs: Sequence[bytes] | None = None,
        n_tokens: Sequence[int] | None = None,
    ) -> None:
        """Report the one sample."""
        self._request.done(outputs[0] if outputs else None, n_tokens[0] if n_tokens else None)


@dataclass(slots=True)
class _News:
    """What came in for one sink in one pass of the event loop."""

    sink: Sink
    first: list[int] = field(default_factory=list)
    further: list[int] = field(default_factory=list)
    done: list[tuple[int, bytes | None, int | None]] = field(default_factory=list)


class Reports:
    """Gathers what one pass of the event loop found, and tells each sink at its end.

    A call into LoadGen costs as much for one sample as for many.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Report from the thread of `loop`."""
        self._loop = loop
        self._news: dict[int, _News] = {}

    def of(self, sink: Sink) -> _News:
        """Return where to put news for a sink; they are told when this pass ends."""
        if not self._news:
            self._loop.call_soon(self._tell)
        news = self._news.get(id(sink))
        if news is None:
            news = self._news[id(sink)] = _News(sink)
        return news

    def _tell(self) -> None:
        gathered, self._news = self._news, {}
        for news in gathered.values():
            try:
                self._tell_sink(news)
            except BaseException as error:  # a sink that refuses ends the run
                news.sink.failed(error)

    def _tell_sink(self, news: _News) -> None:
        sink = news.sink
        if news.first:
            sink.first_tokens(news.first)
        if news.further:
            sink.next_tokens(news.further)
        if news.done:
            ids, outputs, counts = zip(*news.done, strict=True)
            counted = None if None in counts else counts
            sink.done(ids, outputs if sink.wants_output else None, counted)


class Streams:
    """An event loop in a thread of its own that answers samples, each in a task of its own.

    LoadGen can crash when a thread that completed samples ends during a run: this one lives until
    `close`. What an answer raises ends the run as ERROR.
    """

    def __init__(self, answer: Answer, *, concurrency: int | None = None) -> None:
        """Start the thread.

        Args:
            answer: Called for each sample on the loop.
            concurrency: Samples answered at a time at most; the others wait here. None: all.

        Raises:
            ValueError: `concurrency` is below 1.
        """
        if concurrency is not None and concurrency < 1:
            raise ValueError(f"concurrency={concurrency!r}; at least 1")
        self._answer = answer
        self._loop = asyncio.new_event_loop()
        self._reports = Reports(self._loop)
        self._tasks: set[asyncio.Task[None]] = set()
        self._lateness = Lateness(self._loop, lambda: bool(self._tasks))
        self._room = asyncio.Semaphore(concurrency) if concurrency else None
        self._thread = threading.Thread(target=self._loop.run_forever, name="streams", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run a coroutine on the loop and return its result; called from another thread.

        Raises:
            TimeoutError: It took longer than `timeout_s`.
        """
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s)
        except TimeoutError:
            future.cancel()
            raise

    def put(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        """Hand samples over and return at once."""
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
            self._thread.join()
        self._loop.close()

    def _begin(
        self, ids: Sequence[int], indices: Sequence[int], sink: Sink, issued_s: float
    ) -> None:
        for sample, index in zip(ids, indices, strict=True):
            request = Request(sample, index, sink, self._reports)
            task = self._loop.create_task(self._serve(request, issued_s))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, request: Request, issued_s: float) -> None:
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


def median_and_tail(gaps_s: Sequence[float]) -> tuple[float, float]:
    """Return p50 and p99 of times, of which there are some: values that occurred."""
    ordered = sorted(gaps_s)
    return ordered[ceil(0.5 * len(ordered)) - 1], ordered[ceil(0.99 * len(ordered)) - 1]


def warning(median_s: float) -> str:
    """Return what a line says besides of first tokens that were here late; "" of others."""
    if median_s <= LATE_S:
        return ""
    return (
        f"; WARNING: the median is above {LATE_S * 1e3:.0f} ms, so the time to first token of this "
        "run is in part this process's, which may be short of CPU"
    )

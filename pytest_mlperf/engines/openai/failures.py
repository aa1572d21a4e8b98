"""The requests of one run: those under way, those that failed, and the one error they end in."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.extension import Sink

if TYPE_CHECKING:
    from pytest_mlperf.engines.serving import Server

COLLECT_S = 1.0
"""Time after the first failure in which others are counted before the run ends."""

POLL_S = 0.02
"""Time between two looks whether the server died or nothing is under way any more."""

DRAIN_S = 1.0
"""Time a server gets to end a stream whose answer is complete."""

KINDS = 6
"""Kinds of failure that a message counts apart; the others are counted together."""

HINTS = {
    429: "set concurrency to what the server takes at a time, or raise its limit",
    503: "the server is overloaded or not ready; see its log",
}


class Failed(Exception):
    """One request failed.

    Attributes:
        kind: What happened, in words that are the same for all such failures.
        status: The HTTP status, where the server refused the request.
    """

    def __init__(self, kind: str, detail: str = "", *, status: int | None = None) -> None:
        """Keep the kind beside what this request's failure says."""
        super().__init__(f"{kind}: {detail}" if detail else kind)
        self.kind = kind
        self.status = status


def refused(status: int, said: str) -> Failed:
    """Return the failure of a request that a server answered with another status than 200."""
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        words = "rate limit"
    else:
        words = HTTPStatus(status).phrase if status in set(HTTPStatus) else "unknown status"
    return Failed(f"HTTP {status} ({words})", said, status=status)


@dataclass(slots=True, eq=False)
class Flight:
    """A request under way.

    Attributes:
        task: Works on it.
        index: Of its sample.
        heard_s: When its stream last said something, on the loop's clock.
        begun: Its stream has begun.
        reported: Its sample is done, and its stream only has to end.
    """

    task: asyncio.Task[None]
    index: int
    heard_s: float
    begun: bool = False
    reported: bool = False


class Run:
    """The requests made for one sink; lives on the event loop's thread."""

    def __init__(
        self, sink: Sink, server: Server | None, timeout_s: float, more: Callable[[], bool]
    ) -> None:
        """Start with no request.

        Args:
            sink: Is told the error, once.
            server: One that was started here and may be dead; None for one that runs anyway.
            timeout_s: A stream that began may be silent so long, and so may all of them together.
            more: Tells whether any sample has not come to its end.
        """
        self.sink = sink
        self.over = False
        self._server = server
        self._timeout_s = timeout_s
        self._more = more
        self._loop = asyncio.get_running_loop()
        self._flights: set[Flight] = set()
        self._sent = 0
        self._counts: Counter[str] = Counter()
        self._first = ""
        self._status: int | None = None
        self._heard_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._ending: asyncio.Task[None] | None = None

    def begin(self, index: int) -> Flight:
        """Note a request that is about to be sent by this task."""
        now = self._loop.time()
        task = asyncio.current_task()
        assert task is not None
        flight = Flight(task, index, now)
        if not self._flights:
            self._heard_s = now
        if self._timer is None:
            self._watch()
        self._flights.add(flight)
        self._sent += 1
        return flight

    def heard(self, flight: Flight) -> None:
        """Note that its stream said something."""
        self._heard_s = flight.heard_s = self._loop.time()
        flight.begun = True

    def end(self, flight: Flight) -> None:
        """Note that it is no longer under way."""
        self._flights.discard(flight)

    def failed(self, flight: Flight, failure: Failed) -> None:
        """Count a failure; the first starts the end of the run."""
        if self.over or flight.reported:
            return
        self._counts[failure.kind] += 1
        if not self._first:
            self._first = f"sample {flight.index}: {failure}"
            self._status = failure.status
        if self._ending is None:
            self._ending = self._loop.create_task(self._conclude())

    def stop(self, error: BaseException) -> None:
        """End the run with an error at once; the first one wins."""
        if self.over:
            return
        self.over = True
        for flight in self._flights:
            if flight.task is not asyncio.current_task():
                flight.task.cancel()
        self.sink.failed(error)

    def close(self) -> None:
        """Forget everything; nothing is told any more."""
        self.over = True
        if self._timer is not None:
            self._timer.cancel()
        if self._ending is not None:
            self._ending.cancel()

    async def _conclude(self) -> None:
        """Wait for further failures, and for a dying server to be dead; then tell."""
        deadline = self._loop.time() + COLLECT_S
        dead = self._death()
        while dead is None and self._loop.time() < deadline and (self._server or self._more()):
            await asyncio.sleep(POLL_S)
            dead = self._death()
        told = self._told()
        if dead is not None:
            self.stop(RunError("engine", f"{dead} ({told})", dead.log))
            return
        if hint := HINTS.get(self._status or 0):
            told += f"; {hint}"
        log = None
        if self._server is not None:
            told, log = told + self._server.said(), str(self._server.log)
        self.stop(RunError("engine", told, log))

    def _death(self) -> RunError | None:
        try:
            if self._server is not None:
                self._server.check()
        except RunError as error:
            return error
        return None

    def _told(self) -> str:
        kinds = self._counts.most_common()
        parts = [f"{count} x {kind}" for kind, count in kinds[:KINDS]]
        if others := sum(count for _, count in kinds[KINDS:]):
            parts.append(f"{others} x something else")
        failed, sent = self._counts.total(), self._sent
        return (
            f"{failed} of {sent} request{'s' * (sent != 1)} failed: {', '.join(parts)}; "
            f"first: {self._first}"
        )

    def _watch(self) -> None:
        """Look every now and then for streams that hang."""
        now = self._loop.time()
        silent = now - self._heard_s > self._timeout_s
        for flight in tuple(self._flights):
            if flight.reported:
                late = now - flight.heard_s > DRAIN_S
            else:
                late = silent or (flight.begun and now - flight.heard_s > self._timeout_s)
                if late:
                    self.failed(flight, self._too_late(flight))
            if late:
                self._flights.discard(flight)
                flight.task.cancel()
        # A server can be dead while something it started still holds its connections.
        if self._flights and not self.over and self._death() is not None:
            for flight in self._flights:
                self.failed(flight, Failed("no answer", "the server is gone"))
        self._timer = self._loop.call_later(min(1.0, self._timeout_s / 4), self._watch)

    def _too_late(self, flight: Flight) -> Failed:
        if flight.begun:
            what = f"a stream said nothing more for {self._timeout_s:g} s"
        else:
            what = f"no stream of the server said anything for {self._timeout_s:g} s"
        return Failed("time-out", f"{what} (request_timeout)")

"""The sinks an engine reports to: nothing but ids that are outstanding ever reaches LoadGen."""

from __future__ import annotations

import ctypes
import math
import statistics
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, repeat
from operator import length_hint
from time import perf_counter
from typing import Any

from pytest_mlperf.core.errors import RunError

KEPT_FAULTS = 20
"""Fault texts kept; the rest are counted."""

POOL = 1024
"""Response objects reused per completing thread."""

BATCHES = 20
"""Batches of the batch-means estimate; fewer stamps than this give no estimate."""

KEPT_STAMPS = 2048
"""Stamps kept before every second one is forgotten."""

Fail = Callable[[BaseException], object]
"""Ends the run as ERROR; in the worker it does not return."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Port:
    """The three doors into LoadGen that a sink needs.

    Attributes:
        response: Builds a response from id, address, size and optionally a token count.
        complete: Takes a list of responses of finished samples.
        first_token: Takes a list of responses of samples whose first token is there.
    """

    response: Any
    complete: Callable[[list[Any]], None]
    first_token: Callable[[list[Any]], None]


class Faults:
    """Texts of what an engine did wrong, capped; safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._texts: list[str] = []
        self.count = 0

    def add(self, text: str) -> None:
        """Keep one more fault."""
        with self._lock:
            self.count += 1
            if len(self._texts) < KEPT_FAULTS:
                self._texts.append(text)

    @property
    def texts(self) -> tuple[str, ...]:
        """The kept texts, and how many were not kept."""
        with self._lock:
            left_out = self.count - len(self._texts)
            more = (f"and {left_out} more",) if left_out else ()
            return (*self._texts, *more)


class GuardedSink:
    """Knows which samples are outstanding; each leaves that set exactly once, whoever races.

    Attributes:
        issued: Samples handed to the engine.
        faults: What was kept from LoadGen.
        threads: Identifiers of the threads that completed samples.
    """

    wants_output = False

    def __init__(self, fail: Fail) -> None:
        """Start with nothing outstanding; `fail` is called with what cannot be survived."""
        self.issued = 0
        self.faults = Faults()
        self.threads: set[int] = set()
        self._fail = fail
        self._outstanding: set[int] = set()
        self._remove = self._outstanding.remove  # bound once: it runs for every sample
        self._first_issue_s = 0.0
        self._last_completion_s = 0.0
        self._stamps: list[tuple[float, int]] = []
        self._stamp_every = 1
        self._until_stamp = 1

    @property
    def outstanding(self) -> int:
        """Samples the engine has not completed."""
        return len(self._outstanding)

    @property
    def completed(self) -> int:
        """Samples the engine has completed, each counted once."""
        return max(0, self.issued - len(self._outstanding))

    @property
    def duration_s(self) -> float:
        """Seconds from the first issue to the time nothing was outstanding."""
        return max(0.0, self._last_completion_s - self._first_issue_s)

    @property
    def within_se(self) -> float:
        """Relative standard error of the throughput by batch means; 0 when unknown."""
        return batch_means_error(self._stamps)

    def expect(self, ids: Sequence[int]) -> None:
        """Note samples about to be submitted; called by one thread only."""
        if not self.issued:
            self._first_issue_s = perf_counter()
        # In this order `completed` is never too high, whenever another thread reads it.
        self._outstanding.update(ids)
        self.issued += len(ids)

    def first_tokens(self, ids: Sequence[int], tokens: Sequence[bytes] | None = None) -> None:
        """Ignore first tokens: this run does not measure them."""

    def done(
        self,
        ids: Sequence[int],
        outputs: Sequence[bytes] | None = None,
        n_tokens: Sequence[int] | None = None,
    ) -> None:
        """Take these samples as finished."""
        raise NotImplementedError

    def failed(self, error: BaseException) -> None:
        """End the run as ERROR with this exception."""
        self._fail(error)

    def _claim(self, ids: Sequence[int]) -> Collection[int]:
        """Take ids out of the outstanding set; return the positions that were not in it."""
        return _take(self._remove, ids, self._refuse)

    def _refuse(self, sample: object) -> None:
        self.faults.add(
            f"done() was given id {sample!r}, which is not outstanding: "
            "it was never issued, or it was completed before"
        )

    def _count(self, samples: int) -> None:
        """Stamp the time now and then, and whenever nothing is outstanding."""
        # Threads may race on this countdown: a stamp more or less changes nothing.
        self._until_stamp -= samples
        if self._until_stamp <= 0:
            self._stamp()
        if not self._outstanding:
            self._last_completion_s = perf_counter()

    def _stamp(self) -> None:
        self._until_stamp = self._stamp_every
        self._stamps.append((perf_counter(), self.completed))
        if len(self._stamps) >= KEPT_STAMPS:
            self._stamps = self._stamps[::2]
            self._stamp_every *= 2


class CountingSink(GuardedSink):
    """Completes nothing but its own count: warm-up and probe run without LoadGen.

    Attributes:
        idle: Set while nothing is outstanding.
    """

    def __init__(self, fail: Fail) -> None:
        super().__init__(fail)
        self.idle = threading.Event()

    def expect(self, ids: Sequence[int]) -> None:
        """Note samples about to be submitted."""
        self.idle.clear()
        super().expect(ids)

    def done(
        self,
        ids: Sequence[int],
        outputs: Sequence[bytes] | None = None,  # noqa: ARG002
        n_tokens: Sequence[int] | None = None,  # noqa: ARG002
    ) -> None:
        """Count these samples as finished."""
        self._claim(ids)
        if not self._outstanding:
            self.idle.set()


class _Pool:
    """Responses one thread reuses: LoadGen reads only their ids in a performance run."""

    __slots__ = ("first", "many", "one")

    def __init__(self, port: Port) -> None:
        self.many = [port.response(0, 0, 0) for _ in range(POOL)]
        self.one = self.many[:1]
        self.first = self.many[0]


class PerformanceSink(GuardedSink):
    """Completes samples without payload, which LoadGen does not read in a performance run."""

    def __init__(self, fail: Fail, port: Port) -> None:
        super().__init__(fail)
        self._port = port
        self._complete = port.complete
        self._set_id = type(port.response(0, 0, 0)).id.fset
        self._thread = threading.local()

    def done(
        self,
        ids: Sequence[int],
        outputs: Sequence[bytes] | None = None,  # noqa: ARG002
        n_tokens: Sequence[int] | None = None,  # noqa: ARG002
    ) -> None:
        """Complete these samples, without reading outputs or tokens."""
        if len(ids) != 1:
            self._done_many(ids)
            return
        sample = ids[0]
        try:
            self._remove(sample)
        except KeyError:
            self._refuse(sample)
            return
        try:
            pool = self._thread.pool
        except AttributeError:
            pool = self._new_pool()
        pool.first.id = sample
        self._complete(pool.one)
        # The lines of _count once more: a call here costs a tenth of the whole path.
        self._until_stamp -= 1
        if self._until_stamp <= 0:
            self._stamp()
        if not self._outstanding:
            self._last_completion_s = perf_counter()

    def _done_many(self, ids: Sequence[int]) -> None:
        bad = self._claim(ids)
        if bad:
            ids = _without(ids, bad)
        pool = getattr(self._thread, "pool", None) or self._new_pool()
        for start in range(0, len(ids), POOL):
            part = ids[start : start + POOL]
            deque(map(self._set_id, pool.many, part), 0)
            self._complete(pool.many if len(part) == POOL else pool.many[: len(part)])
        self._count(len(ids))

    def _new_pool(self) -> _Pool:
        """Give this thread its own responses: another thread may complete at the same time."""
        self.threads.add(threading.get_ident())
        pool = self._thread.pool = _Pool(self._port)
        return pool


class TokenSink(GuardedSink):
    """Completes samples with their token counts, so that LoadGen times tokens."""

    def __init__(self, fail: Fail, port: Port, *, needs_first: bool) -> None:
        """Start with nothing outstanding.

        Args:
            fail: Called with what cannot be survived.
            port: LoadGen.
            needs_first: `first_tokens` must come before `done`: everywhere but in Offline.
        """
        super().__init__(fail)
        self._port = port
        self._needs_first = needs_first
        self._silent: set[int] = set()

    def expect(self, ids: Sequence[int]) -> None:
        """Note samples about to be submitted; their first tokens are due too."""
        if self._needs_first:
            self._silent.update(ids)
        super().expect(ids)

    def first_tokens(self, ids: Sequence[int], tokens: Sequence[bytes] | None = None) -> None:  # noqa: ARG002
        """Pass on first tokens; a performance run does not read the tokens themselves."""
        if not self._needs_first:
            return
        bad = _take(self._silent.remove, ids, self._refuse_first)
        if bad:
            ids = _without(ids, bad)
        zeros = repeat(0)
        self._port.first_token(list(map(self._port.response, ids, zeros, zeros)))

    def done(
        self,
        ids: Sequence[int],
        outputs: Sequence[bytes] | None = None,  # noqa: ARG002
        n_tokens: Sequence[int] | None = None,
    ) -> None:
        """Complete these samples with their token counts."""
        wrong = _token_fault(ids, n_tokens)
        if wrong or n_tokens is None:
            self._fail(RunError("engine", wrong))
            return
        self.threads.add(threading.get_ident())
        bad = self._claim(ids)
        if bad:
            ids, n_tokens = _without(ids, bad), _without(n_tokens, bad)
        if self._needs_first and not self._silent.isdisjoint(ids):
            self._fail(
                RunError(
                    "engine",
                    "done() came before first_tokens() for some samples; "
                    "a run with token latencies needs both, in this order",
                )
            )
            return
        zeros = repeat(0)
        self._port.complete(list(map(self._port.response, ids, zeros, zeros, n_tokens)))
        self._count(len(ids))

    def _refuse_first(self, sample: object) -> None:
        self.faults.add(
            f"first_tokens() was given id {sample!r}, which was never issued, "
            "or whose first token was reported before"
        )


class OutputSink(GuardedSink):
    """Completes samples with their outputs, which LoadGen writes into its accuracy log."""

    wants_output = True

    def __init__(self, fail: Fail, port: Port) -> None:
        super().__init__(fail)
        self._port = port

    def done(
        self,
        ids: Sequence[int],
        outputs: Sequence[bytes] | None = None,
        n_tokens: Sequence[int] | None = None,  # noqa: ARG002
    ) -> None:
        """Complete these samples with one bytes object each."""
        wrong = _output_fault(ids, outputs)
        if wrong or outputs is None:
            self._fail(RunError("engine", wrong))
            return
        self.threads.add(threading.get_ident())
        bad = self._claim(ids)
        if bad:
            ids, outputs = _without(ids, bad), _without(outputs, bad)
        # LoadGen copies during the call, so `joined` must live until it returns, and no longer.
        joined = b"".join(outputs)
        sizes = list(map(len, outputs))
        addresses = accumulate(sizes, initial=_address(joined))
        self._port.complete(list(map(self._port.response, ids, addresses, sizes)))
        self._count(len(ids))


def batch_means_error(stamps: Sequence[tuple[float, int]]) -> float:
    """Return the relative standard error of a rate, from times and counts along a run.

    Args:
        stamps: (seconds, samples completed so far), in order.

    Returns:
        Standard error of the mean time per sample over equal batches, as a share of that mean;
        0 when there are too few stamps to tell.
    """
    if len(stamps) < BATCHES:
        return 0.0
    edges = [stamps[k * (len(stamps) - 1) // BATCHES] for k in range(BATCHES + 1)]
    costs_s = [
        (after_s - before_s) / (after - before)
        for (before_s, before), (after_s, after) in pairwise(edges)
        if after > before
    ]
    if len(costs_s) < BATCHES // 2:
        return 0.0
    return statistics.stdev(costs_s) / math.sqrt(len(costs_s)) / statistics.fmean(costs_s)


def _take(
    remove: Callable[[int], object], ids: Sequence[int], refuse: Callable[[object], object]
) -> Collection[int]:
    """Remove ids from a set; return the positions of those that were not in it."""
    rest = iter(ids)
    bad: set[int] = set()
    while True:
        try:
            # Each removal is atomic, so of two threads with one id exactly one succeeds.
            deque(map(remove, rest), 0)
        except KeyError as unknown:
            bad.add(len(ids) - length_hint(rest) - 1)
            refuse(unknown.args[0])
        else:
            return bad


def _without(values: Sequence[Any], positions: Collection[int]) -> list[Any]:
    return [value for position, value in enumerate(values) if position not in positions]


def _address(data: bytes) -> int:
    return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0


def _token_fault(ids: Sequence[int], n_tokens: Sequence[int] | None) -> str:
    if n_tokens is None:
        return "done() was given no n_tokens; a run with token latencies needs one per id"
    if len(n_tokens) != len(ids):
        return f"done() was given {len(ids)} ids but {len(n_tokens)} n_tokens"
    # LoadGen divides by n_tokens - 1 to get the time per output token.
    fewest = min(n_tokens, default=2)
    if fewest < 2:
        return f"done() was given n_tokens {fewest!r}; LoadGen needs at least 2 tokens per sample"
    return ""


def _output_fault(ids: Sequence[int], outputs: Sequence[bytes] | None) -> str:
    if outputs is None:
        return "done() was given no outputs; an accuracy run needs one bytes object per id"
    if len(outputs) != len(ids):
        return f"done() was given {len(ids)} ids but {len(outputs)} outputs"
    wrong = next((output for output in outputs if type(output) is not bytes), None)
    if wrong is not None:
        return f"done() was given an output of type {type(wrong).__name__!r}; it must be bytes"
    return ""

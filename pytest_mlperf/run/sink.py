"""The sinks an engine reports to: nothing but ids that are outstanding ever reaches LoadGen."""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from time import perf_counter
from typing import Any

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.run.outstanding import Outstanding
from pytest_mlperf.run.stamps import Stamps

KEPT_FAULTS = 20
"""Fault texts kept; the rest are counted."""

POOL = 1024
"""Response objects that a completing thread reuses."""

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
    """Counts what was issued and completed, and keeps what LoadGen must not see.

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
        self._outstanding = Outstanding()
        self._stamps = Stamps()
        self._first_issue_s = 0.0
        self._last_completion_s = 0.0

    @property
    def outstanding(self) -> int:
        """Samples the engine has not completed."""
        return len(self._outstanding)

    @property
    def completed(self) -> int:
        """Samples the engine has completed, each counted once."""
        return self.issued - len(self._outstanding)

    @property
    def duration_s(self) -> float:
        """Seconds from the first issue to the time nothing was outstanding."""
        return max(0.0, self._last_completion_s - self._first_issue_s)

    @property
    def within_se(self) -> float:
        """Relative standard error of the throughput by batch means; 0 when unknown."""
        return self._stamps.relative_error

    def expect(self, ids: Sequence[int]) -> None:
        """Note samples about to be submitted; called by one thread only."""
        if not self.issued:
            self._first_issue_s = perf_counter()
        self.issued += len(ids)
        self._outstanding.add(ids)

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
        """Take ids as completed; return the positions of those that must not be."""
        bad = self._outstanding.claim(ids)
        for position in sorted(bad):
            self._refuse(ids[position])
        return bad

    def _refuse(self, sample: object) -> None:
        self.faults.add(
            f"done() was given id {sample!r}, which is not outstanding: "
            "it was never issued, or it was completed before"
        )

    def _count(self, samples: int) -> None:
        """Stamp the time now and then, and whenever nothing is outstanding."""
        stamps = self._stamps
        stamps.left -= samples
        if stamps.left <= 0:
            stamps.add(self.completed)
        if not self._outstanding.ids:
            self._last_completion_s = perf_counter()


class CountingSink(GuardedSink):
    """Completes nothing but its own count: warm-up and probe run without LoadGen.

    Attributes:
        idle: Set when the last outstanding sample is completed.
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


class _Pool(threading.local):
    """Responses that a thread reuses: in a performance run LoadGen reads no address and no size.

    LoadGen's binding copies a list before it returns, so reuse is safe; a pool of its own keeps a
    thread from changing a response between another thread's filling and handing over.
    """

    def __init__(self, port: Port) -> None:
        # threading.local calls this anew in every thread that touches the pool.
        self.responses = [port.response(0, 0, 0) for _ in range(POOL)]
        self.first = self.responses[0]
        self.only_first = self.responses[:1]
        self._set_id = type(self.first).id.fset
        self._set_tokens = type(self.first).n_tokens.fset

    def filled(
        self, ids: Sequence[int], n_tokens: Sequence[int] | None = None
    ) -> Iterator[list[Any]]:
        """Yield lists of responses with these ids; each is valid until the next."""
        for start in range(0, len(ids), POOL):
            part = ids[start : start + POOL]
            deque(map(self._set_id, self.responses, part), 0)
            if n_tokens is not None:
                deque(map(self._set_tokens, self.responses, n_tokens[start : start + POOL]), 0)
            yield self.responses if len(part) == POOL else self.responses[: len(part)]


class PerformanceSink(GuardedSink):
    """Completes samples without payload, which LoadGen does not read in a performance run."""

    def __init__(self, fail: Fail, port: Port) -> None:
        super().__init__(fail)
        self._complete = port.complete
        self._take = self._outstanding.take
        self._pool = _Pool(port)

    def done(
        self,
        ids: Sequence[int],
        outputs: Sequence[bytes] | None = None,  # noqa: ARG002
        n_tokens: Sequence[int] | None = None,  # noqa: ARG002
    ) -> None:
        """Complete these samples, without reading outputs or tokens."""
        if len(ids) == 1:
            self._done_one(ids[0])
            return
        self.threads.add(threading.get_ident())
        bad = self._claim(ids)
        if bad:
            ids = _without(ids, bad)
        for responses in self._pool.filled(ids):
            self._complete(responses)
        self._count(len(ids))

    def _done_one(self, sample: int) -> None:
        self.threads.add(threading.get_ident())
        try:
            self._take(sample)
        except KeyError:
            if not self._outstanding.claim_late(sample):
                self._refuse(sample)
                return
        pool = self._pool
        pool.first.id = sample
        self._complete(pool.only_first)
        self._count(1)


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
        self._pool = _Pool(port)
        self._needs_first = needs_first
        self._silent = Outstanding()

    def expect(self, ids: Sequence[int]) -> None:
        """Note samples about to be submitted; their first tokens are due too."""
        if self._needs_first:
            self._silent.add(ids)
        super().expect(ids)

    def first_tokens(
        self,
        ids: Sequence[int],
        tokens: Sequence[bytes] | None = None,  # noqa: ARG002
    ) -> None:
        """Pass on first tokens; a performance run does not read the tokens themselves."""
        if not self._needs_first:
            return
        bad = self._silent.claim(ids)
        for position in sorted(bad):
            self.faults.add(
                f"first_tokens() was given id {ids[position]!r}, which was never issued, "
                "or whose first token was reported before"
            )
        if bad:
            ids = _without(ids, bad)
        for responses in self._pool.filled(ids):
            self._port.first_token(responses)

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
        if self._needs_first and self._silent.holds_any(ids):
            self._fail(
                RunError(
                    "engine",
                    "done() came before first_tokens() for some samples; "
                    "a run with token latencies needs both, in this order",
                )
            )
            return
        for responses in self._pool.filled(ids, n_tokens):
            self._port.complete(responses)
        self._count(len(ids))


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
    if len(n_tokens) and (fewest := min(n_tokens)) < 2:
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

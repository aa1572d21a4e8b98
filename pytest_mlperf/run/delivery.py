"""Sinks that complete samples with LoadGen, one for each kind of run."""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from time import perf_counter
from typing import Any

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.run.completions import count_fault, output_fault, token_fault
from pytest_mlperf.run.outstanding import Outstanding
from pytest_mlperf.run.sink import Fail, GuardedSink
from pytest_mlperf.run.token_times import GOODPUT, Limits, TokenTimes

POOL = 1024
"""Response objects that a completing thread reuses."""


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


class _Pool:
    """Responses that a thread reuses: in a performance run LoadGen reads no address and no size.

    LoadGen's binding copies a list before it returns, so reuse is safe; a pool of its own keeps a
    thread from changing a response between another thread's filling and handing over.

    Attributes:
        counted: Samples whose tokens this thread was told.
        tokens: Output tokens of these samples.
    """

    __slots__ = (
        "_set_id",
        "_set_tokens",
        "counted",
        "first",
        "only_first",
        "responses",
        "tokens",
    )

    def __init__(self, port: Port) -> None:
        self.responses = [port.response(0, 0, 0) for _ in range(POOL)]
        self.first = self.responses[0]
        self.only_first = self.responses[:1]
        self._set_id = type(self.first).id.fset
        self._set_tokens = type(self.first).n_tokens.fset
        self.counted = 0
        self.tokens = 0

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


class _PooledSink(GuardedSink):
    """Completes samples with responses of the completing thread's own."""

    def __init__(self, fail: Fail, port: Port) -> None:
        super().__init__(fail)
        self._port = port
        self._thread = threading.local()
        self._pools: list[_Pool] = []

    def _pool(self) -> _Pool:
        """Return this thread's pool."""
        try:
            pool: _Pool = self._thread.pool
        except AttributeError:
            self.threads.add(threading.get_ident())
            pool = self._thread.pool = _Pool(self._port)
            self._pools.append(pool)
        return pool


class PerformanceSink(_PooledSink):
    """Completes samples without payload, which LoadGen does not read in a performance run."""

    def __init__(self, fail: Fail, port: Port) -> None:
        super().__init__(fail, port)
        self._complete = port.complete
        self._take = self._outstanding.take
        self._ids = self._outstanding.ids

    @property
    def token_metrics(self) -> Mapping[str, float]:
        """Tokens per sample by the engine's own counts; empty where one is missing."""
        counted = sum(pool.counted for pool in self._pools)
        if not counted or counted != self.completed:
            return {}
        return {"tokens_per_sample": sum(pool.tokens for pool in self._pools) / counted}

    def done(
        self,
        ids: Sequence[int],
        outputs: Sequence[bytes] | None = None,  # noqa: ARG002
        n_tokens: Sequence[int] | None = None,
    ) -> None:
        """Complete these samples; tokens are counted where the engine counts them."""
        if n_tokens is not None or len(ids) != 1:
            self._done_many(ids, n_tokens)
            return
        sample = ids[0]
        try:
            self._take(sample)
        except KeyError:
            if not self._outstanding.claim_late(sample):
                self._refuse(sample)
                return
        try:
            pool = self._thread.pool
        except AttributeError:
            pool = self._pool()
        pool.first.id = sample
        self._complete(pool.only_first)
        # The lines of _count once more: two calls less are a tenth of the whole path.
        stamps = self._stamps
        stamps.left -= 1
        if stamps.left <= 0:
            stamps.add(self.completed)
        if not self._ids:
            self._last_completion_s = perf_counter()

    def _done_many(self, ids: Sequence[int], n_tokens: Sequence[int] | None) -> None:
        if n_tokens is not None and (wrong := count_fault(ids, n_tokens)):
            self._fail(RunError("engine", wrong))
            return
        bad = self._claim(ids)
        if bad:
            ids = _without(ids, bad)
        pool = self._pool()
        if n_tokens is not None:
            # In the thread's own pool: threads that add to one number would lose counts.
            pool.counted += len(ids)
            pool.tokens += int(sum(_without(n_tokens, bad) if bad else n_tokens))
        for responses in pool.filled(ids):
            self._complete(responses)
        self._count(len(ids))


class TokenSink(_PooledSink):
    """Completes samples with their token counts, so that LoadGen times tokens."""

    times_tokens = True

    def __init__(
        self, fail: Fail, port: Port, *, needs_first: bool, limits_s: Limits = None
    ) -> None:
        """Start with nothing outstanding.

        Args:
            fail: Called with what cannot be survived.
            port: LoadGen.
            needs_first: `first_tokens` must come before `done`: everywhere but in Offline.
            limits_s: What a sample must meet to count as good.
        """
        super().__init__(fail, port)
        self._needs_first = needs_first
        self._silent = Outstanding()
        self._times = TokenTimes(limits_s)
        self._limited = limits_s is not None
        self._issued_s: dict[int, float] = {}

    @property
    def token_metrics(self) -> Mapping[str, float]:
        """What our own stamps of tokens give, SI units."""
        met = {GOODPUT: self._times.met / self.duration_s} if self._limited else {}
        return {**self._times.metrics(), **(met if self.duration_s else {})}

    @property
    def notes(self) -> tuple[str, ...]:
        """What our own stamps cannot show, in words."""
        return self._times.notes

    def expect(self, ids: Sequence[int]) -> None:
        """Note samples about to be submitted; their first tokens are due too."""
        self._silent.add(ids)
        self._issued_s.update(dict.fromkeys(ids, perf_counter()))
        super().expect(ids)

    def first_tokens(
        self,
        ids: Sequence[int],
        tokens: Sequence[bytes] | None = None,  # noqa: ARG002
    ) -> None:
        """Pass on first tokens; a performance run does not read the tokens themselves."""
        bad = self._silent.claim(ids)
        for position in sorted(bad):
            self.faults.add(
                f"first_tokens() was given id {ids[position]!r}, which was never issued, "
                "or whose first token was reported before"
            )
        if bad:
            ids = _without(ids, bad)
        self._times.first(ids)
        if self._needs_first:
            for responses in self._pool().filled(ids):
                self._port.first_token(responses)
            self._times.told(ids)

    def next_tokens(self, ids: Sequence[int]) -> None:
        """Stamp one more token of these samples; LoadGen is not told."""
        for sample in self._times.further(ids):
            self.faults.add(f"next_tokens() was given id {sample!r} before its first token")

    def done(
        self,
        ids: Sequence[int],
        outputs: Sequence[bytes] | None = None,  # noqa: ARG002
        n_tokens: Sequence[int] | None = None,
    ) -> None:
        """Complete these samples with their token counts."""
        wrong = token_fault(ids, n_tokens)
        if wrong or n_tokens is None:
            self._fail(RunError("engine", wrong))
            return
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
        for sample, tokens in zip(ids, n_tokens, strict=True):
            odd = self._times.end(sample, tokens, self._noted(self._issued_s.pop(sample)))
            if odd:
                self.faults.add(f"sample with id {sample!r}: {odd}")
        for responses in self._pool().filled(ids, n_tokens):
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
        wrong = output_fault(ids, outputs)
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

"""Provide a sink for each kind of run that completes samples with LoadGen."""

from __future__ import annotations

import ctypes
import threading
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from time import perf_counter
from typing import Any

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.extension import Outputs
from pytest_mlperf.run.worker._sink import Fail, GuardedSink, Outstanding
from pytest_mlperf.run.worker.clocks import (
    GOODPUT,
    QUANTILES,
    Limits,
    TokenTimes,
    moments,
    percentile,
    slow_start,
)
from pytest_mlperf.stores.artefacts import ArtefactWriter, artefact_fault

MAX_OUTPUT_TOKENS = 2**31 - 1


def token_fault(ids: Sequence[int], n_tokens: Sequence[int] | None) -> str:
    """Return what is wrong with the token counts of a run that times tokens; "" if nothing."""
    if n_tokens is None:
        return "done() was given no n_tokens; a run with token latencies needs one per id"
    if wrong := count_fault(ids, n_tokens):
        return wrong
    # LoadGen divides by n_tokens - 1 to get the time per output token.
    if len(n_tokens) and (fewest := min(n_tokens)) < 2:
        return f"done() was given n_tokens {fewest!r}; LoadGen needs at least 2 tokens per sample"
    return ""


def count_fault(ids: Sequence[int], n_tokens: Sequence[int]) -> str:
    if len(n_tokens) != len(ids):
        return f"done() was given {len(ids)} ids but {len(n_tokens)} n_tokens"
    if len(n_tokens) and (fewest := min(n_tokens)) < 0:
        return f"done() was given n_tokens {fewest!r}; a count of tokens is at least 0"
    if len(n_tokens) and (most := max(n_tokens)) > MAX_OUTPUT_TOKENS:
        return (
            f"done() was given n_tokens {most!r}; no sample has more than "
            f"{MAX_OUTPUT_TOKENS:,} tokens"
        )
    return ""


def output_fault(
    ids: Sequence[int], outputs: Outputs, n_tokens: Sequence[int] | None = None
) -> str:
    """Return what is wrong with outputs or their token counts; "" if nothing."""
    if outputs is None:
        return "done() was given no outputs; an accuracy run needs one bytes object per id"
    if len(outputs) != len(ids):
        return f"done() was given {len(ids)} ids but {len(outputs)} outputs"
    wrong = next((output for output in outputs if type(output) is not bytes), None)
    if wrong is not None:
        return f"done() was given an output of type {type(wrong).__name__!r}; it must be bytes"
    if n_tokens is None or (fault := count_fault(ids, n_tokens)):
        return "" if n_tokens is None else fault
    for output, tokens in zip(outputs, n_tokens, strict=True):
        if (held := ids_in(output)) not in {None, int(tokens)}:
            counted = f"done() was given n_tokens {tokens} and an output of {held} token ids"
            return f"{counted}; count the tokens of the output, its end token included"
    return ""


MAX_TOKEN_ID = 2**24
"""Upper bound of token ids: vocabularies are far smaller, and text read as ids lies above."""


def ids_in(output: bytes) -> int | None:
    """Return how many int64 or int32 token ids `output` has; None if it is not a list of ids."""
    for width, kind in ((8, "q"), (4, "i")):
        ids = array(kind, b"" if len(output) % width else output)
        if ids and min(ids) >= 0 and max(ids) < MAX_TOKEN_ID:
            return len(ids) if len(ids) > 1 else None
    return None


POOL = 1024
"""Response objects that a completing thread reuses."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Port:
    """Hold the LoadGen functions that a sink calls."""

    response: Any
    complete: Callable[[list[Any]], None]
    first_token: Callable[[list[Any]], None]


class _Pool:
    """Hold the reusable response objects of one thread; they carry no data.

    Reuse is safe because LoadGen's binding copies a list before it returns. Each thread has its own
    pool, so that no thread changes a response which another one is about to pass on.
    """

    __slots__ = ("_set_id", "_set_tokens", "ended_s", "first", "only_first", "responses", "took_s")

    def __init__(self, port: Port) -> None:
        self.responses = [port.response(0, 0, 0) for _ in range(POOL)]
        self.first = self.responses[0]
        self.only_first = self.responses[:1]
        self._set_id = type(self.first).id.fset
        self._set_tokens = type(self.first).n_tokens.fset
        self.ended_s = array("d")
        self.took_s = array("d")

    def ended(self, now_s: float, issued_s: float) -> None:
        """Store a sample's end time and latency since `issued_s`; for the pool's thread only."""
        self.ended_s.append(now_s)
        self.took_s.append(now_s - issued_s)

    def filled(
        self, ids: Sequence[int], n_tokens: Sequence[int] | None = None
    ) -> Iterator[list[Any]]:
        """Yield LoadGen responses to these ids in lists, each valid until the next is yielded."""
        for start in range(0, len(ids), POOL):
            part = ids[start : start + POOL]
            deque(map(self._set_id, self.responses, part), 0)
            if n_tokens is not None:
                deque(map(self._set_tokens, self.responses, n_tokens[start : start + POOL]), 0)
            yield self.responses if len(part) == POOL else self.responses[: len(part)]


class _PooledSink(GuardedSink):
    def __init__(self, fail: Fail, port: Port) -> None:
        super().__init__(fail)
        self._port = port
        self._thread = threading.local()
        self._pools: list[_Pool] = []

    @property
    def over_time(self) -> list[list[float]]:
        return moments(*self._latencies())

    @property
    def slow_start(self) -> dict[str, float]:
        latencies = zip(*self._latencies(), strict=True)
        begun = sorted((ended_s - took_s, took_s) for ended_s, took_s in latencies)
        return slow_start([took_s for _, took_s in begun], "latency")

    def _latencies(self) -> tuple[array[float], array[float]]:
        ended_s = _joined(pool.ended_s for pool in self._pools)
        return ended_s, _joined(pool.took_s for pool in self._pools)

    def _pool(self) -> _Pool:
        try:
            pool: _Pool = self._thread.pool
        except AttributeError:
            self.threads.add(threading.get_ident())
            pool = self._thread.pool = _Pool(self._port)
            self._pools.append(pool)
        return pool


class PerformanceSink(_PooledSink):
    """Complete samples in a performance run, without outputs, which LoadGen would ignore."""

    def __init__(self, fail: Fail, port: Port) -> None:
        super().__init__(fail, port)
        self._complete = port.complete
        self._take = self._outstanding.take
        self._ids = self._outstanding.ids

    @property
    def slow_start(self) -> dict[str, float]:
        return slow_start(self.stamps.costs_s(self._first_issue_s), "latency", self.completed)

    @property
    def token_metrics(self) -> Mapping[str, float]:
        """Mean tokens per sample, as the engine counts them; empty if a count is missing."""
        counts = [tokens for each in self.answer_tokens.by_index.values() for tokens in each]
        if not counts or len(counts) != self.completed:
            return {}
        return {"tokens_per_sample": sum(counts) / len(counts)}

    def done(
        self,
        ids: Sequence[int],
        outputs: Outputs = None,  # noqa: ARG002
        n_tokens: Sequence[int] | None = None,
    ) -> None:
        if n_tokens is not None or len(ids) != 1:
            self._done_many(ids, n_tokens)
            return
        sample = ids[0]
        try:
            self._take(sample)
        except KeyError:
            if not self._outstanding.claim_late(sample):
                self.faults.refuse(sample)
                return
        try:
            pool = self._thread.pool
        except AttributeError:
            pool = self._pool()
        pool.first.id = sample
        self._complete(pool.only_first)
        # Inlined from _count: two calls fewer save a tenth of the whole path.
        stamps = self.stamps
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
            self.answer_tokens.add_counts(ids, _without(n_tokens, bad) if bad else n_tokens)
        for responses in pool.filled(ids):
            self._complete(responses)
        self._count(len(ids))


class TokenSink(_PooledSink):
    """Complete samples with token counts, so that LoadGen times tokens."""

    times_tokens = True
    _times: TokenTimes

    def __init__(
        self, fail: Fail, port: Port, *, needs_first: bool, limits_s: Limits = None
    ) -> None:
        super().__init__(fail, port)
        self.needs_first_tokens = needs_first
        self._silent = Outstanding()
        self._times = TokenTimes(limits_s)
        self._limited = limits_s is not None
        self._issued_s: dict[int, float] = {}

    @property
    def token_metrics(self) -> Mapping[str, float]:
        judged = self._limited and self.duration_s and not self._times.buffered
        met = {GOODPUT: self._times.met / self.duration_s} if judged else {}
        return {**self._times.metrics(), **met}

    @property
    def slow_start(self) -> dict[str, float]:
        if not self.needs_first_tokens:  # Offline: all samples begin at once
            return {}
        return {**super().slow_start, **self._times.slow_start}

    @property
    def notes(self) -> Mapping[str, str]:
        return self._times.notes

    def expect(self, ids: Sequence[int]) -> None:
        self._silent.add(ids)
        self._issued_s.update(dict.fromkeys(ids, perf_counter()))
        super().expect(ids)

    def first_tokens(self, ids: Sequence[int], tokens: Sequence[bytes] | None = None) -> None:
        """Report first tokens to LoadGen, without token ids, which a performance run ignores."""
        bad = self._silent.claim(ids)
        for position in sorted(bad):
            self.faults.add(
                f"first_tokens() was given id {ids[position]!r}, which was never issued, or "
                "whose first token was reported already"
            )
        if bad:
            ids = _without(ids, bad)
            tokens = tokens and _without(tokens, bad)
        self._times.first(ids)
        if self.needs_first_tokens:
            self._hand_first(ids, tokens)
            self._times.restart_gaps(ids)

    def _hand_first(self, ids: Sequence[int], tokens: Sequence[bytes] | None) -> None:
        del tokens
        for responses in self._pool().filled(ids):
            self._port.first_token(responses)

    def next_tokens(self, ids: Sequence[int]) -> None:
        for sample in self._times.further(ids):
            self.faults.add(f"next_tokens() was given id {sample!r} before its first token")

    def done(
        self, ids: Sequence[int], outputs: Outputs = None, n_tokens: Sequence[int] | None = None
    ) -> None:
        wrong = token_fault(ids, n_tokens) or (output_fault(ids, outputs) * self.wants_output)
        if wrong or n_tokens is None:
            self._fail(RunError("engine", wrong))
            return
        bad = self._claim(ids)
        if bad:
            ids, n_tokens = _without(ids, bad), _without(n_tokens, bad)
            outputs = outputs and _without(outputs, bad)
        if self.needs_first_tokens and self._silent.holds_any(ids):
            self._fail(
                RunError(
                    "engine",
                    "done() came before first_tokens() for some samples; "
                    "in a run with token latencies, first_tokens() must come first",
                )
            )
            return
        pool = self._pool()
        for sample, tokens in zip(ids, n_tokens, strict=True):
            issued_s = self._issued_s.pop(sample)
            pool.ended(self._clock(), issued_s)
            if odd := self._times.end(sample, tokens, issued_s):
                self.faults.add(f"sample with id {sample!r}: {odd}")
        self.answer_tokens.add_counts(ids, n_tokens)
        self._hand_done(ids, outputs, n_tokens)
        self._count(len(ids))

    def _hand_done(self, ids: Sequence[int], outputs: Outputs, n_tokens: Sequence[int]) -> None:
        del outputs
        for responses in self._pool().filled(ids, n_tokens):
            self._port.complete(responses)


class AuditTokenSink(TokenSink):
    """Pass outputs and token counts to LoadGen, which logs some of them for a compliance test."""

    wants_output = True

    def _hand_first(self, ids: Sequence[int], tokens: Sequence[bytes] | None) -> None:
        first = self.as_logged(tokens or [b""] * len(ids))
        _hand(self._port.first_token, self._port.response, ids, first)

    def _hand_done(self, ids: Sequence[int], outputs: Outputs, n_tokens: Sequence[int]) -> None:
        logged = self.as_logged(outputs or ())
        _hand(self._port.complete, self._port.response, ids, logged, n_tokens)


class OutputSink(GuardedSink):
    """Complete samples with their outputs, which LoadGen writes into its accuracy log."""

    wants_output = True

    def __init__(self, fail: Fail, port: Port, archive: ArtefactWriter) -> None:
        super().__init__(fail)
        self._port = port
        self._archive = archive
        self._attached: set[int] = set()

    def attach(self, ids: Sequence[int], artefacts: Sequence[Mapping[str, bytes]]) -> None:
        if wrong := artefact_fault(ids, artefacts):
            self._fail(RunError("engine", wrong))
            return
        for sample, sample_artefacts in zip(ids, artefacts, strict=True):
            index = self.answer_tokens.index_of(sample)
            if index is None or sample in self._attached:
                self.faults.add(
                    f"attach() was given id {sample!r}, which is not outstanding, or to which "
                    "artefacts were attached before"
                )
                continue
            self._attached.add(sample)
            try:
                self._archive.add(index, sample_artefacts)
            except RunError as error:
                self._fail(error)

    def seal(self) -> None:
        self._archive.close()

    def done(
        self, ids: Sequence[int], outputs: Outputs = None, n_tokens: Sequence[int] | None = None
    ) -> None:
        wrong = output_fault(ids, outputs, n_tokens if self.outputs_are_tokens else None)
        wrong = wrong or ("" if n_tokens is None else count_fault(ids, n_tokens))
        if wrong or outputs is None:
            self._fail(RunError("engine", wrong))
            return
        self.threads.add(threading.get_ident())
        bad = self._claim(ids)
        if bad:
            ids, outputs = _without(ids, bad), _without(outputs, bad)
            n_tokens = n_tokens if n_tokens is None else _without(n_tokens, bad)
        if n_tokens is None and self.counts_tokens and self.outputs_are_tokens:
            self.answer_tokens.add_counts(ids, list(map(ids_in, outputs)))
        else:
            self.answer_tokens.add_counts(ids, [None] * len(ids) if n_tokens is None else n_tokens)
        _hand(self._port.complete, self._port.response, ids, self.as_logged(outputs))
        self._count(len(ids))


class AuditSink(OutputSink):
    """Pass a timed run's outputs to LoadGen, which logs some of them for a compliance test."""

    def attach(self, ids: Sequence[int], artefacts: Sequence[Mapping[str, bytes]]) -> None:
        """Ignore artefacts: samples repeat in a timed run, and compliance tests are not scored."""


def _hand(
    take: Callable[[list[Any]], None],
    response: Any,
    ids: Sequence[int],
    outputs: Sequence[bytes],
    *counts: Sequence[int],
) -> None:
    # LoadGen copies during the call, so `joined` must live until it returns, and no longer.
    joined = b"".join(outputs)
    sizes = list(map(len, outputs))
    address = ctypes.cast(ctypes.c_char_p(joined), ctypes.c_void_p).value or 0
    take(list(map(response, ids, accumulate(sizes, initial=address), sizes, *counts)))


def _joined(arrays: Iterable[array[float]]) -> array[float]:
    return array("d", chain.from_iterable(arrays))


def _without(values: Sequence[Any], positions: Collection[int]) -> list[Any]:
    return [value for position, value in enumerate(values) if position not in positions]


class LimitedSink(PerformanceSink):
    """Count samples that meet a latency limit, by our own time stamps.

    It is used in Server, where queries arrive one by one. To make each query cheap, the issue time
    is stored with the outstanding id, and each thread keeps its own latencies without a lock.
    """

    slow_start = _PooledSink.slow_start

    def __init__(self, fail: Fail, port: Port, *, limit_s: float) -> None:
        super().__init__(fail, port)
        self._limit_s = limit_s

    @property
    def token_metrics(self) -> Mapping[str, float]:
        metrics = dict(super().token_metrics)
        ordered = sorted(_joined(pool.took_s for pool in self._pools))
        if ordered and self.duration_s:
            metrics[GOODPUT] = bisect_right(ordered, self._limit_s) / self.duration_s
            for name, share in QUANTILES.items():
                metrics[f"latency_{name}"] = percentile(ordered, share)
        return metrics

    def expect(self, ids: Sequence[int]) -> None:
        now_s = perf_counter()
        if not self.issued:
            self._first_issue_s = now_s
        self.issued += len(ids)
        for sample in ids:
            self._ids[sample] = now_s

    def done(
        self,
        ids: Sequence[int],
        outputs: Outputs = None,  # noqa: ARG002
        n_tokens: Sequence[int] | None = None,
    ) -> None:
        now_s = self._clock()
        if n_tokens is not None or len(ids) != 1:
            self._done_many(ids, n_tokens)
            return
        sample = ids[0]
        try:
            issued_s = self._take(sample)
        except KeyError:
            self.faults.refuse(sample)
            return
        try:
            pool = self._thread.pool
        except AttributeError:
            pool = self._pool()
        # Inlined from _Pool.ended, and below from _count: each call costs a tenth of the path.
        pool.ended_s.append(now_s)
        pool.took_s.append(now_s - issued_s)
        pool.first.id = sample
        self._complete(pool.only_first)
        stamps = self.stamps
        stamps.left -= 1
        if stamps.left <= 0:
            stamps.add(self.completed)
        if not self._ids:
            self._last_completion_s = perf_counter()

    def _claim(self, ids: Sequence[int]) -> Collection[int]:
        now_s, pool, bad = self._clock(), self._pool(), set()
        for position, sample in enumerate(ids):
            try:
                pool.ended(now_s, self._take(sample))
            except KeyError:
                bad.add(position)
                self.faults.refuse(sample)
        return bad

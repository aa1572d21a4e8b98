"""What every sink does: count, and let nothing pass but samples that are outstanding."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from time import perf_counter

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.run.outstanding import Outstanding
from pytest_mlperf.run.over_time import moments
from pytest_mlperf.run.stamps import Stamps

KEPT_FAULTS = 20
"""Fault texts kept; the rest are counted."""

KEPT_FAULT = 500
"""Characters of each: an id may be any object of an engine's."""

Fail = Callable[[BaseException], object]
"""Ends the run as ERROR; in the worker it does not return."""


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
                self._texts.append(text[:KEPT_FAULT])

    @property
    def texts(self) -> tuple[str, ...]:
        """The kept texts, and how many were not kept."""
        with self._lock:
            left_out = self.count - len(self._texts)
            more = (f"and {left_out} more",) if left_out else ()
            return (*self._texts, *more)


def _no_exception(given: object) -> RunError:
    """Return the error for what an engine handed to `failed` in place of an exception."""
    if isinstance(given, str):
        return RunError("engine", f"{given} (sink.failed() was given this text; give an exception)")
    what = f"the class {given.__name__}" if isinstance(given, type) else type(given).__name__
    return RunError("engine", f"sink.failed() was given {what}; it takes an exception object")


class GuardedSink:
    """Counts what was issued and completed, and keeps what LoadGen must not see.

    Attributes:
        issued: Samples handed to the engine.
        faults: What was kept from LoadGen.
        threads: Identifiers of the threads that completed samples.
    """

    wants_output = False
    times_tokens = False

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
        self._over = array("d")

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
    def token_metrics(self) -> Mapping[str, float]:
        """What our own counts and stamps of tokens give; empty where there are none."""
        return {}

    @property
    def notes(self) -> tuple[str, ...]:
        """What our own stamps of tokens cannot show, in words."""
        return ()

    @property
    def over_time(self) -> list[list[float]]:
        """Latencies over the time of the run, see `over_time.moments`; empty if none were kept."""
        return moments(self._over[::2], self._over[1::2])

    @property
    def within_se(self) -> float:
        """Relative standard error of the throughput by batch means; 0 when unknown."""
        return self._stamps.relative_error

    def expect(self, ids: Sequence[int]) -> None:
        """Note samples about to be submitted; called by one thread only."""
        if not self.issued:
            self._first_issue_s = perf_counter()
        self.issued += len(ids)
        if len(ids) == 1:
            self._outstanding.ids.add(ids[0])
        else:
            self._outstanding.add(ids)

    def first_tokens(self, ids: Sequence[int], tokens: Sequence[bytes] | None = None) -> None:
        """Ignore first tokens: this run does not measure them."""

    def next_tokens(self, ids: Sequence[int]) -> None:
        """Ignore further tokens: this run does not measure them."""

    def done(
        self,
        ids: Sequence[int],
        outputs: Sequence[bytes] | None = None,
        n_tokens: Sequence[int] | None = None,
    ) -> None:
        """Take these samples as finished."""
        raise NotImplementedError

    def failed(self, error: object) -> None:
        """End the run as ERROR with this exception; what is none is told as what it is."""
        self._fail(error if isinstance(error, BaseException) else _no_exception(error))

    def _claim(self, ids: Sequence[int]) -> Collection[int]:
        """Take ids as completed; return the positions of those that must not be."""
        bad = self._outstanding.claim(ids)
        for position in sorted(bad):
            self._refuse(ids[position])
        return bad

    def _noted(self, issued_s: float) -> float:
        """Note that a sample issued then has ended, and how long it took; return when it began."""
        now = perf_counter()
        self._over.extend((now, now - issued_s))  # one call: no other thread's come between
        return issued_s

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

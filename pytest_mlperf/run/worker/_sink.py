"""What every sink does: count, and let nothing pass but samples that are outstanding."""

from __future__ import annotations

import math
import secrets
import statistics
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from operator import length_hint
from time import perf_counter
from typing import Any

from pytest_mlperf.core.answer_forms import converted
from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.extension import Counts, Outputs
from pytest_mlperf.run.worker.clocks import TokenTimes

ROW = 64
"""A list at least this long is first kept as it came: most engines complete in that order."""


class Outstanding:
    """Ids that were issued and not completed.

    A long list stays a list with a cursor for as long as it is completed in its own order, or in
    that of each part into which it was cut; that costs a tenth of a dictionary. The first
    completion out of order spreads the rest into the dictionary.

    Attributes:
        ids: What is outstanding outside the list, and when it was issued where somebody asks.
        take: Removes one id from `ids` and returns when it was issued; raises KeyError, also for an
            id that is in the list.
    """

    def __init__(self) -> None:
        self.ids: dict[int, float] = {}
        self.take = self.ids.pop  # bound once: it runs for every sample
        self._lock = threading.Lock()
        self._row: list[int] = []
        self._row_left = 0
        self._parts: dict[int, tuple[int, int]] = {}

    def __len__(self) -> int:
        """Return how many are outstanding; while threads race it may be too high, never too low."""
        return len(self.ids) + self._row_left

    def add(self, ids: Sequence[int]) -> None:
        """Note ids about to be submitted."""
        if len(ids) < ROW:
            self.ids.update(dict.fromkeys(ids, 0.0))
            return
        with self._lock:
            self._spread()
            self._row = list(ids)  # a copy, because the engine may change the list it is given
            self._row_left = len(ids)
            self._parts = {ids[0]: (0, len(ids))}

    def cut(self, position: int) -> None:
        """Expect what comes from this position of the list on to be completed beside the rest."""
        with self._lock:
            for first, (start, stop) in self._parts.items():
                if start < position < stop:
                    self._parts[first] = (start, position)
                    self._parts[self._row[position]] = (position, stop)
                    return

    def claim(self, ids: Sequence[int]) -> Collection[int]:
        """Take ids out; return the positions of those that were not outstanding."""
        if self._row and self._claim_in_row(ids):
            return ()
        rest = iter(ids)
        bad: set[int] = set()
        while True:
            try:
                # Each removal is atomic, so of two threads with one id exactly one succeeds.
                deque(map(self.take, rest), 0)
            except KeyError:
                bad.add(len(ids) - length_hint(rest) - 1)
            else:
                return bad

    def claim_late(self, sample: int) -> bool:
        """Take out an id that `take` did not find; return whether it was in the list."""
        with self._lock:
            self._spread()
        try:
            self.take(sample)
        except KeyError:
            return False
        return True

    def holds_any(self, ids: Sequence[int]) -> bool:
        """Return whether any of these is outstanding."""
        if self._row_left:
            with self._lock:
                self._spread()
        return not self.ids.keys().isdisjoint(ids)

    def _claim_in_row(self, ids: Sequence[int]) -> bool:
        if not len(ids):
            return True
        with self._lock:
            start, stop = self._parts.pop(ids[0], (0, 0))
            end = start + len(ids)
            claimed = ids if type(ids) is list else list(ids)
            fits = end <= stop and self._row[start:end] == claimed
            if fits:
                self._row_left -= len(ids)
                start = end
            if start < stop:
                self._parts[self._row[start]] = (start, stop)
            if not fits:
                self._spread()
            return fits

    def _spread(self) -> None:
        """Move what is left of the list into the dictionary."""
        for start, stop in self._parts.values():
            self.ids.update(dict.fromkeys(self._row[start:stop], 0.0))
        self._row_left = 0
        self._parts = {}
        self._row = []


BATCHES = 20
"""Batches of the batch-means estimate; fewer stamps than this give no estimate."""

MAX_STAMPS = 2048
"""Stamps kept before every second one is forgotten."""


class Stamps:
    """When how many samples were completed, in bounded memory however long the run is.

    Attributes:
        left: Samples until the next stamp; whoever completes samples counts it down. Threads may
            race on it: a stamp more or less changes nothing.
    """

    __slots__ = ("_every", "_kept", "left")

    def __init__(self) -> None:
        self.left = 1
        self._every = 1
        self._kept: list[tuple[float, int]] = []

    def add(self, completed: int) -> None:
        """Stamp the time now."""
        self._kept.append((perf_counter(), completed))
        if len(self._kept) >= MAX_STAMPS:
            self._kept = self._kept[::2]
            self._every *= 2
        self.left = self._every

    @property
    def relative_error(self) -> float:
        """Relative standard error of the rate by batch means; 0 when unknown."""
        return batch_means_error(self._kept)

    def costs_s(self, begun_s: float) -> list[float]:
        """Return the seconds per sample from stamp to stamp, of a run that began then."""
        steps = pairwise([(begun_s, 0), *self._kept])
        return [(after_s - s) / (after - n) for (s, n), (after_s, after) in steps if after > n]


def batch_means_error(stamps: Sequence[tuple[float, int]]) -> float:
    """Return the relative standard error of a rate, from (seconds, samples completed), in order.

    It is that of the mean time per sample over equal batches; 0 with too few stamps.
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


KEPT_LIST = 2**20
"""Samples of the longest list that is kept to tell what waits; each takes 80 bytes."""

KEPT_FAULTS = 20
"""Fault texts kept; the rest are counted."""

KEPT_FAULT = 500
"""Characters of each: an id may be any object of an engine's."""

MAX_FINISH_CHARACTERS = 60
Fail = Callable[[BaseException], object]
"""Ends the run as ERROR; in the worker it does not return."""

Clock = Callable[[], float]
"""Returns seconds, as `time.perf_counter` does, which all processes of a machine share."""


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

    def refuse(self, sample: object) -> None:
        """Keep that a sample was completed which is not outstanding."""
        self.add(
            f"done() was given id {sample!r}, which is not outstanding: "
            "it was never issued, or it was completed before"
        )

    @property
    def texts(self) -> tuple[str, ...]:
        """The kept texts, and how many were not kept."""
        with self._lock:
            left_out = self.count - len(self._texts)
            more = (f"and {left_out} more",) if left_out else ()
            return (*self._texts, *more)


class AnswerTokens:
    """Counts of tokens by the samples of the data set that they answer.

    Attributes:
        by_index: Tokens of each answer by data set index, -1 if `asked` was not called.
    """

    def __init__(self) -> None:
        self.by_index: dict[int, list[int]] = {}
        self._index_of: dict[int, int] = {}

    def asked(self, ids: Sequence[int], indices: Sequence[int]) -> None:
        """Note which samples of the data set these are."""
        self._index_of.update(zip(ids, indices, strict=True))

    def index_of(self, sample: int) -> int | None:
        """Return the data set index of a sample that has no count yet; None if unknown."""
        return self._index_of.get(sample)

    def keep(self, ids: Sequence[int], n_tokens: Sequence[int | None]) -> None:
        """Keep the tokens of these answers; None if the engine does not count."""
        for sample, tokens in zip(ids, n_tokens, strict=True):
            index = self._index_of.pop(sample, -1)
            if tokens is not None:
                self.add(index, tokens)

    def add(self, index: int, tokens: int) -> None:
        """Keep the tokens of one answer; of several threads none loses what it appends."""
        self.by_index.setdefault(index, []).append(int(tokens))


def _no_exception(value: object) -> RunError:
    """Return the error for what an engine handed to `failed` in place of an exception."""
    if isinstance(value, str):
        return RunError("engine", f"{value} (sink.failed() was given this text; give an exception)")
    title = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
    return RunError("engine", f"sink.failed() was given {title}; it takes an exception object")


class GuardedSink:
    """Counts what was issued and completed, and keeps what LoadGen must not see.

    Attributes:
        counts_tokens, outputs_are_tokens: Of the engine; what is text has a length of its own.
        answer_forms: Form of the engine's answers and that of LoadGen's log; empty: both are alike.
        answer_tokens: The tokens of each answer by data set index.
        stamps: Times of completions.
        recent: Ids and indices of the lists that were issued last.
        run: A name that no other run has, by which engines make its prompts other ones.
    """

    wants_output = False
    times_tokens = False
    needs_first_tokens = False
    may_fail = 0.0
    counts_tokens, outputs_are_tokens = False, True
    answer_forms: tuple[str, ...] = ()
    _times: TokenTimes | None = None

    def __init__(self, fail: Fail) -> None:
        """Start with nothing outstanding; `fail` is called with what cannot be survived."""
        self.run = secrets.token_hex(8)
        self.issued = 0
        self.faults = Faults()
        self.threads: set[int] = set()
        self.ends: Counter[str] = Counter()
        self.answer_tokens = AnswerTokens()
        self.recent: deque[tuple[Sequence[int], Sequence[int]]] = deque(maxlen=MAX_STAMPS)
        self._ends_lock = threading.Lock()
        self._fail = fail
        self._clock: Clock = perf_counter
        self._outstanding = Outstanding()
        self.stamps = Stamps()
        self._first_issue_s = 0.0
        self._last_completion_s = 0.0

    def as_logged(self, answers: Sequence[bytes]) -> Sequence[bytes]:
        """Return answers in the form of LoadGen's log; one that has no such form ends the run."""
        try:
            forms = self.answer_forms
            return [converted(answer, forms) for answer in answers] if forms else answers
        except ValueError as error:
            advice = "set the scorer's dtype to the type of the engine's token ids"
            self._fail(RunError("engine", f"done() was given a wrong output: {error}; {advice}"))
            raise

    @property
    def outstanding(self) -> int:
        """Samples the engine has not completed."""
        return len(self._outstanding)

    @property
    def completed(self) -> int:
        """Samples the engine has completed, each counted once."""
        return max(0, self.issued - len(self._outstanding))  # while threads race

    @property
    def duration_s(self) -> float:
        """Seconds from the first issue to the time nothing was outstanding."""
        return max(0.0, self._last_completion_s - self._first_issue_s)

    @property
    def token_metrics(self) -> Mapping[str, float]:
        """What our own counts and stamps of tokens give; empty where there are none."""
        return {}

    @property
    def notes(self) -> Mapping[str, str]:
        """What our own stamps of tokens cannot show, in words."""
        return {}

    @property
    def as_streamed(self) -> dict[str, Any]:
        """How answers were streamed, as fields of `RunFinished`."""
        times = self._times or TokenTimes()
        return {"corrected": times.corrected, "hidden_share": times.hidden_share}

    @property
    def over_time(self) -> list[list[float]]:
        """Latencies over the time of the run, see `clocks.moments`; empty if none were kept."""
        return []

    @property
    def slow_start(self) -> dict[str, float]:
        """What the first tenth of the run added, see `clocks.slow_start`."""
        return {}

    def repeated(self) -> str | None:
        """Return that samples wait of whose indices others were answered; None: others wait too.

        Where the last ones wait, or most, the engine hangs.
        """
        waiting = self._outstanding.ids.copy()
        recent = [pair for each in self.recent.copy() for pair in zip(*each, strict=True)]
        answered = {index for i, index in recent if i not in waiting}
        twins = [index for i, index in recent if i in waiting and index in answered]
        if not 1 < len(twins) == self.outstanding <= self.issued / 2:
            return None
        if all(i in waiting for i, _ in recent[-len(twins) :]):
            return None
        return (
            f"{len(twins):,} samples submitted and not completed, each of an index that came twice "
            f"(index {twins[0]} first): an engine that keeps results by index, and not by id, "
            "loses one of two in a batch"
        )

    def cut(self, position: int) -> None:
        """Expect the list that was issued last to be completed in parts, one from here on."""
        self._outstanding.cut(position)

    def use_clock(self, clock: Clock) -> None:
        """Take the time at which something was reported from `clock`: it was seen elsewhere."""
        self._clock = clock

    def expect(self, ids: Sequence[int]) -> None:
        """Note samples about to be submitted; called by one thread only."""
        if not self.issued:
            self._first_issue_s = perf_counter()
        self.issued += len(ids)
        if len(ids) == 1:
            self._outstanding.ids[ids[0]] = 0.0
        else:
            self._outstanding.add(ids)

    def first_tokens(self, ids: Sequence[int], tokens: Sequence[bytes] | None = None) -> None:
        """Ignore first tokens: this run does not measure them."""

    def next_tokens(self, ids: Sequence[int]) -> None:
        """Ignore further tokens: this run does not measure them."""

    def streamed(
        self, ids: Sequence[int], after_first: Sequence[int | None], hidden: Counts = None
    ) -> None:
        """Keep how answers were streamed, where this run times them."""
        if self._times is not None:
            self._times.streamed(ids, after_first, hidden)

    def ended(
        self, ids: Sequence[int], reasons: Sequence[str], prompt_tokens: Counts = None
    ) -> None:
        """Count why samples end."""
        del ids, prompt_tokens
        with self._ends_lock:
            self.ends.update(str(reason)[:MAX_FINISH_CHARACTERS] for reason in reasons)

    def attach(self, ids: Sequence[int], artefacts: Sequence[Mapping[str, bytes]]) -> None:
        """Ignore artefacts: this run keeps no outputs either."""

    def seal(self) -> None:
        """End what was written; nothing is outstanding any more."""

    def done(
        self, ids: Sequence[int], outputs: Outputs = None, n_tokens: Sequence[int] | None = None
    ) -> None:
        """Take these samples as finished."""
        raise NotImplementedError

    def lost(self, ids: Sequence[int]) -> None:
        """Take these samples as failed, where some may."""
        self._fail(RunError("engine", f"{len(ids)} requests failed, and none may"))

    def failed(self, error: object) -> None:
        """End the run as ERROR with this exception; what is none is told as what it is."""
        self._fail(error if isinstance(error, BaseException) else _no_exception(error))

    def _claim(self, ids: Sequence[int]) -> Collection[int]:
        """Take ids as completed; return the positions of those that must not be."""
        bad = self._outstanding.claim(ids)
        for position in sorted(bad):
            self.faults.refuse(ids[position])
        return bad

    def _count(self, samples: int) -> None:
        """Stamp the time now and then, and whenever nothing is outstanding."""
        stamps = self.stamps
        stamps.left -= samples
        if stamps.left <= 0:
            stamps.add(self.completed)
        if not self._outstanding.ids:
            self._last_completion_s = perf_counter()


class CountingSink(GuardedSink):
    """Completes nothing but its own count: warm-up and probe run without LoadGen."""

    def __init__(self, fail: Fail) -> None:
        super().__init__(fail)
        self.idle = threading.Event()

    def expect(self, ids: Sequence[int]) -> None:
        """Note samples about to be submitted."""
        self.idle.clear()
        super().expect(ids)

    def done(
        self, ids: Sequence[int], outputs: Outputs = None, n_tokens: Sequence[int] | None = None
    ) -> None:
        """Count these samples as finished."""
        del outputs
        self.counts_tokens |= n_tokens is not None
        self._claim(ids)
        if not self._outstanding:
            self.idle.set()

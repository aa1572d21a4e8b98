"""Define the base of all sinks: count samples, and block completions of unknown ids."""

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
"""Longer lists are stored as lists, because most engines complete samples in order."""


class Outstanding:
    """Hold the ids that were issued and not completed.

    A long list whose parts complete in order is stored as a list with cursors, which costs a tenth
    of a dictionary. The first completion out of order moves the rest into the dictionary.

    Attributes:
        ids: Outstanding ids outside the list, with their issue times [s] or 0.
        take: Removes an id from `ids` and returns its issue time; raises KeyError for ids in the
            list.
    """

    def __init__(self) -> None:
        self.ids: dict[int, float] = {}
        self.take = self.ids.pop  # bound once: it runs for every sample
        self._lock = threading.Lock()
        self._row: list[int] = []
        self._row_left = 0
        self._parts: dict[int, tuple[int, int]] = {}

    def __len__(self) -> int:
        """Return the number of outstanding ids; concurrent changes can only make it too high."""
        return len(self.ids) + self._row_left

    def add(self, ids: Sequence[int]) -> None:
        if len(ids) < ROW:
            self.ids.update(dict.fromkeys(ids, 0.0))
            return
        with self._lock:
            self._spread()
            self._row = list(ids)  # a copy, because the engine may change the list it is given
            self._row_left = len(ids)
            self._parts = {ids[0]: (0, len(ids))}

    def cut(self, position: int) -> None:
        """Split a list of submitted sample ids at a position; its parts complete independently."""
        with self._lock:
            for first, (start, stop) in self._parts.items():
                if start < position < stop:
                    self._parts[first] = (start, position)
                    self._parts[self._row[position]] = (position, stop)
                    return

    def claim(self, ids: Sequence[int]) -> Collection[int]:
        """Remove ids; return the positions of those that were not outstanding."""
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
        """Remove a sample id wherever it is stored; return whether it was outstanding."""
        with self._lock:
            self._spread()
        try:
            self.take(sample)
        except KeyError:
            return False
        return True

    def holds_any(self, ids: Sequence[int]) -> bool:
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
        for start, stop in self._parts.values():
            self.ids.update(dict.fromkeys(self._row[start:stop], 0.0))
        self._row_left = 0
        self._parts = {}
        self._row = []


BATCHES = 20
"""Batches of the batch-means estimate, which needs at least as many stamps."""

MAX_STAMPS = 2048
"""Number of stamps at which every second one is dropped."""


class Stamps:
    """Hold times and counts of completions, thinned out so that a long run needs no more memory.

    Attributes:
        left: Completions until the next stamp; a race of threads only loses or adds a stamp.
    """

    __slots__ = ("_every", "_kept", "left")

    def __init__(self) -> None:
        self.left = 1
        self._every = 1
        self._kept: list[tuple[float, int]] = []

    def add(self, completed: int) -> None:
        self._kept.append((perf_counter(), completed))
        if len(self._kept) >= MAX_STAMPS:
            self._kept = self._kept[::2]
            self._every *= 2
        self.left = self._every

    @property
    def relative_error(self) -> float:
        return batch_means_error(self._kept)

    def costs_s(self, begun_s: float) -> list[float]:
        return _costs_s([(begun_s, 0), *self._kept])


def _costs_s(stamps: Sequence[tuple[float, int]]) -> list[float]:
    steps = pairwise(stamps)
    return [(after_s - s) / (after - n) for (s, n), (after_s, after) in steps if after > n]


def batch_means_error(stamps: Sequence[tuple[float, int]]) -> float:
    """Return the relative standard error of a rate by batch means; 0 with too few stamps.

    `stamps` has (seconds, samples completed) in order; a batch's value is its time per sample.
    """
    if len(stamps) < BATCHES:
        return 0.0
    edges = [stamps[k * (len(stamps) - 1) // BATCHES] for k in range(BATCHES + 1)]
    costs_s = _costs_s(edges)
    return relative_se(costs_s) if len(costs_s) >= BATCHES // 2 else 0.0


def relative_se(values: Sequence[float]) -> float:
    """Return the mean's standard error / mean; 0 for fewer than two values or a sum of 0."""
    if len(values) < 2 or not sum(values):
        return 0.0
    return statistics.stdev(values) / math.sqrt(len(values)) / statistics.fmean(values)


KEPT_LIST = 2**20
"""Maximum length of a list kept to report waiting samples; each takes 80 bytes."""

KEPT_FAULTS = 20
"""Maximum number of fault texts; further ones are only counted."""

KEPT_FAULT = 500
"""Characters per text, as an engine's id may be any object."""

MAX_FINISH_CHARACTERS = 60
Fail = Callable[[BaseException], object]
"""Ends the run as ERROR; in the worker it does not return."""

Clock = Callable[[], float]
"""Returns seconds, like `time.perf_counter`, which all processes of a machine share."""


class Faults:
    """Collect texts of an engine's faults, up to a limit, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._texts: list[str] = []
        self.count = 0

    def add(self, text: str) -> None:
        with self._lock:
            self.count += 1
            if len(self._texts) < KEPT_FAULTS:
                self._texts.append(text[:KEPT_FAULT])

    def refuse(self, sample: object) -> None:
        self.add(
            f"done() was given id {sample!r}, which is not outstanding: "
            "it was never issued, or it was completed before"
        )

    @property
    def texts(self) -> tuple[str, ...]:
        """Texts of the collected faults; the last one counts the faults that were not kept."""
        with self._lock:
            left_out = self.count - len(self._texts)
            more = (f"and {left_out} more",) if left_out else ()
            return (*self._texts, *more)


class AnswerTokens:
    """Count tokens by data set index.

    Attributes:
        by_index: Token counts of the answers by data set index; -1 for samples of unknown index.
        index_of: Returns the index of a sample id that has no token count yet; None if unknown.
    """

    def __init__(self) -> None:
        self.by_index: dict[int, list[int]] = {}
        self._index_of: dict[int, int] = {}
        self.index_of = self._index_of.get

    def record_indices(self, ids: Sequence[int], indices: Sequence[int]) -> None:
        self._index_of.update(zip(ids, indices, strict=True))

    def add_counts(self, ids: Sequence[int], n_tokens: Sequence[int | None]) -> None:
        """Add the token counts of answers by sample id; ignore None (not counted by the engine)."""
        for sample, tokens in zip(ids, n_tokens, strict=True):
            index = self._index_of.pop(sample, -1)
            if tokens is not None:
                self.add(index, tokens)

    def add(self, index: int, tokens: int) -> None:
        """Add the tokens of one answer; appending is safe from any thread."""
        self.by_index.setdefault(index, []).append(int(tokens))


def _no_exception(value: object) -> RunError:
    if isinstance(value, str):
        return RunError("engine", f"{value} (sink.failed() was given this text; pass an exception)")
    title = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
    return RunError("engine", f"sink.failed() was given {title}; it takes an exception object")


class GuardedSink:
    """Count issued and completed samples; do not pass invalid completions to LoadGen.

    Attributes:
        counts_tokens, outputs_are_tokens: Whether the engine counts tokens, and outputs token ids.
        answer_forms: Formats of the engine's answers and of LoadGen's log; empty if equal.
        stamps: Completion times of samples.
        recent: Sample ids and data set indices of each of the last queries.
        run: Unique id of the run, which engines may use to make its prompts unique.
    """

    wants_output = False
    times_tokens = False
    needs_first_tokens = False
    may_fail = 0.0
    counts_tokens, outputs_are_tokens = False, True
    answer_forms: tuple[str, ...] = ()
    _times: TokenTimes | None = None

    def __init__(self, fail: Fail) -> None:
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
        self.cut = self._outstanding.cut
        self.stamps = Stamps()
        self._first_issue_s = 0.0
        self._last_completion_s = 0.0

    def as_logged(self, answers: Sequence[bytes]) -> Sequence[bytes]:
        """Convert answers to the format of LoadGen's log; end the run if that fails."""
        try:
            forms = self.answer_forms
            return [converted(answer, forms) for answer in answers] if forms else answers
        except ValueError as error:
            advice = "set the scorer's dtype to the type of the engine's token ids"
            self._fail(RunError("engine", f"done() was given a wrong output: {error}; {advice}"))
            raise

    @property
    def outstanding(self) -> int:
        return len(self._outstanding)

    @property
    def completed(self) -> int:
        return max(0, self.issued - len(self._outstanding))  # threads may race

    @property
    def duration_s(self) -> float:
        """Time from the first issue until no sample was outstanding [s]."""
        return max(0.0, self._last_completion_s - self._first_issue_s)

    @property
    def token_metrics(self) -> Mapping[str, float]:
        """Token metrics by name, measured by this sink; {} unless a subclass measures them."""
        return {}

    @property
    def notes(self) -> Mapping[str, str]:
        """Limitations of our own token time stamps, as texts by `SignKey`."""
        return {}

    @property
    def as_streamed(self) -> dict[str, Any]:
        """Fields of `RunFinished`: whether TPOT omits tokens; share of tokens users do not see."""
        times = self._times or TokenTimes()
        return {"corrected": times.corrected, "hidden_share": times.hidden_share}

    @property
    def over_time(self) -> list[list[float]]:
        """Rows [middle, p50, p99 latency (s), unfinished] per part of a run; [] if not recorded."""
        return []

    @property
    def slow_start(self) -> dict[str, float]:
        """Effect of a slow start by metric: log(value / value without the start); {} if none."""
        return {}

    def repeated(self) -> str | None:
        """Return a message if the engine seems to answer a repeated index only once, else None."""
        waiting = self._outstanding.ids.copy()
        recent = [pair for each in self.recent.copy() for pair in zip(*each, strict=True)]
        answered = {index for i, index in recent if i not in waiting}
        twins = [index for i, index in recent if i in waiting and index in answered]
        if not 1 < len(twins) == self.outstanding <= self.issued / 2:
            return None
        if all(i in waiting for i, _ in recent[-len(twins) :]):
            return None
        return (
            f"{len(twins):,} samples submitted and not completed; each has the index of another "
            f"sample in the run (first: index {twins[0]}): the engine must store results by id, "
            "because an index can occur twice in a batch"
        )

    def use_clock(self, clock: Clock) -> None:
        """Set the clock for tokens and answers; for replicas it returns the times they sent."""
        self._clock = clock
        if self._times is not None:
            self._times.clock = clock

    def expect(self, ids: Sequence[int]) -> None:
        """Store ids as outstanding just before their submission; only one thread may call it."""
        if not self.issued:
            self._first_issue_s = perf_counter()
        self.issued += len(ids)
        if len(ids) == 1:
            self._outstanding.ids[ids[0]] = 0.0
        else:
            self._outstanding.add(ids)

    def first_tokens(self, ids: Sequence[int], tokens: Sequence[bytes] | None = None) -> None:
        """Ignore first tokens, as this run does not time them."""

    def next_tokens(self, ids: Sequence[int]) -> None:
        """Ignore tokens after the first, as this run does not time them."""

    def streamed(
        self, ids: Sequence[int], after_first: Sequence[int | None], hidden: Counts = None
    ) -> None:
        if self._times is not None:
            self._times.streamed(ids, after_first, hidden)

    def ended(
        self, ids: Sequence[int], reasons: Sequence[str], prompt_tokens: Counts = None
    ) -> None:
        del ids, prompt_tokens
        with self._ends_lock:
            self.ends.update(str(reason)[:MAX_FINISH_CHARACTERS] for reason in reasons)

    def attach(self, ids: Sequence[int], artefacts: Sequence[Mapping[str, bytes]]) -> None:
        """Ignore artefacts, as this run keeps no outputs."""

    def seal(self) -> None:
        """Finish the output files at the end of a run; do nothing by default."""

    def done(
        self, ids: Sequence[int], outputs: Outputs = None, n_tokens: Sequence[int] | None = None
    ) -> None:
        raise NotImplementedError

    def lost(self, ids: Sequence[int]) -> None:
        self._fail(
            RunError("engine", f"{len(ids)} requests failed; in this scenario none may fail")
        )

    def failed(self, error: object) -> None:
        """End the run as ERROR; an `error` that is not an exception is described in the message."""
        self._fail(error if isinstance(error, BaseException) else _no_exception(error))

    def _claim(self, ids: Sequence[int]) -> Collection[int]:
        bad = self._outstanding.claim(ids)
        for position in sorted(bad):
            self.faults.refuse(ids[position])
        return bad

    def _count(self, samples: int) -> None:
        """Count completed samples; stamp the time at intervals, and when none is in flight."""
        stamps = self.stamps
        stamps.left -= samples
        if stamps.left <= 0:
            stamps.add(self.completed)
        if not self._outstanding.ids:
            self._last_completion_s = perf_counter()


class CountingSink(GuardedSink):
    """Count completions in warm-up and rate probe, which run without LoadGen."""

    def __init__(self, fail: Fail) -> None:
        super().__init__(fail)
        self.idle = threading.Event()

    def expect(self, ids: Sequence[int]) -> None:
        self.idle.clear()
        super().expect(ids)

    def done(
        self, ids: Sequence[int], outputs: Outputs = None, n_tokens: Sequence[int] | None = None
    ) -> None:
        del outputs
        self.counts_tokens |= n_tokens is not None
        self._claim(ids)
        if not self._outstanding:
            self.idle.set()

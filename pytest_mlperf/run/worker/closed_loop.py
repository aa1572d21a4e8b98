"""Keep so many requests under way, point by point, and what our own loops share."""

from __future__ import annotations

import gzip
import itertools
import json
import math
import random
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from statistics import fmean, stdev
from time import perf_counter
from typing import Any, Protocol

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.extension import Counts, Engine
from pytest_mlperf.core.job import LoadGenSettings
from pytest_mlperf.run.worker._delivery import count_fault, token_fault
from pytest_mlperf.run.worker._sink import MAX_FINISH_CHARACTERS, Clock, Fail, GuardedSink
from pytest_mlperf.run.worker.clocks import QUANTILES, TokenTimes, percentile
from pytest_mlperf.run.worker.conversations import Asked, Conversations, Slots
from pytest_mlperf.run.worker.recount import NOTE, Ended, parts_of, recounted
from pytest_mlperf.stores import atomic

CURVE_LOG, SCHEMA_VERSION = "curve.json", 2
"""What a run of a loop of our own leaves where LoadGen's has its logs."""

WINDOW_PARTS = 10
"""Equal parts of a window, by which it is seen whether it was steady."""

KEPT_ANSWERS = 64
"""Answers of a point whose lengths are kept: enough to see 2 %."""

MAX_FINISH_REASONS = 8
Record = list[Any]
"""What is kept of one request, see `REQUEST_COLUMNS`."""

REQUEST_COLUMNS = (
    *("point", "index", "conversation", "turn"),
    *("status", "finish", "prompt_tokens", "output_tokens", "reference_tokens"),
    *("scheduled_s", "issued_s", "first_token_s", "last_token_s", "ttft_s", "tpot_s"),
)

REFERENCE = REQUEST_COLUMNS.index("reference_tokens")
"""Is known when a window is over, of engines that count again."""

REQUESTS = "requests.jsonl.gz"
"""File of the requests that count, beside `CURVE_LOG`, where somebody asks for it."""

MAX_TURNS = 20
WARMUP_TURNS = 2
"""So often every slot is replaced before a point's window begins."""

MIN_SLOT_REQUESTS, MIN_REQUESTS = 2, 10
"""Requests that a window needs for each slot, and in all."""

MAX_WINDOW_LENGTHS = 8
"""A closed loop's window with fewer at its end goes on, to so many times its length at most."""


@dataclass(frozen=True, kw_only=True)
class OpenWindow:
    """What belongs to a window in which requests arrived whatever the server did.

    Attributes:
        before, after: Requests under way when it began and when it ended.
        most: Requests under way at most.
        unanswered: Requests that arrived in it and were not answered by its end.
        late: Percentiles of how late requests were handed to the engine, seconds: "issue_p99".
    """

    before: int
    after: int
    most: int
    unanswered: int
    late: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class PointWindow:
    """What was measured at one point of a curve.

    Requests that count are those completed in the window; of an open loop those that arrived in it,
    whenever they were completed.

    Attributes:
        point: So many requests were kept under way, or arrived in a second.
        begin_s, end_s: Wall clock, seconds since the epoch.
        duration_s: Length by the monotonic clock.
        requests: That count.
        tokens: Of these; 0 where nobody counts them.
        under_way: Mean number of requests under way, each for as long as it was inside the window.
        paused: Mean number of conversations that waited, as recorded, for their next turn.
        metrics: By name, SI units; rates are of what was completed in the window.
        parts: Requests that count and their tokens in equal parts of the window, by when they
            were completed, of an open loop by when they arrived, and their mean latency in
            seconds, 0 where there were none.
        notes: What the stamps of tokens cannot show.
        finishes: How often answers that count ended for which reason; empty: nobody tells.
        open: Of an open loop.
        warm_requests, warm_s: Answered before the window began, and how long that took.
        turns: Of conversations, for each turn from 1 on: requests that count, and the medians of
            their latency and of their time to the first token, seconds, 0 where nobody timed it.
        client_busy: Cores that this process used from the window's begin to its close, with those
            that send requests for it.
        client_reach: Requests/s of this length that it reaches against a server that computes
            nothing; None: not measured.
        failed: Requests that failed in the window, and count for nothing else.
        length_se: Relative standard error of the mean length of answers, by how the lengths of
            single answers differ: what another choice of samples would change. 0: nobody knows.
        lengths: Tokens of the first requests by sample, "3:37 8:45"; "": nobody counts.
        hidden_share: See `TokenTimes`.
        answer_counts: See `Engine`; with the answers before the window.
    """

    point: float
    begin_s: float
    end_s: float
    duration_s: float
    requests: int
    tokens: int
    under_way: float
    metrics: Mapping[str, float]
    parts: Sequence[tuple[int, int, float]]
    notes: Mapping[str, str] = field(default_factory=dict)
    finishes: Mapping[str, int] = field(default_factory=dict)
    open: OpenWindow | None = None
    warm_requests: int = 0
    warm_s: float = 0.0
    paused: float = 0.0
    turns: Sequence[tuple[int, int, float, float]] = ()
    client_busy: float = 0.0
    client_reach: float | None = None
    failed: int = 0
    length_se: float = 0.0
    lengths: str = ""
    hidden_share: float | None = None
    answer_counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Request:
    """A request under way; its latency counts from `from_s`, if it counts.

    Attributes:
        finish: Why it ended, where the engine tells.
        prompt: Tokens of its prompt, likewise.
    """

    asked: Asked
    from_s: float
    issued_s: float
    slot: int
    counts: bool
    finish: str | None = None
    prompt: int | None = None


class SlotSink(GuardedSink):
    """Stamps requests, and frees the slot of each that is done.

    Attributes:
        freed: The slots of completed requests, and when they were completed.
        records: What each request that counts was, where they are kept; None: they are not.
        left: Requests that arrived in an open loop's window and are not completed.
        answers: Of each request that counts its sample's index and its tokens.
        recounts: Tokens are counted again after a window, so that each request of it is kept.
        cpu_clock: Returns the processor time of this process, and of those that work for it.
        may_fail: Share of requests that may fail; engines give up where more do.
    """

    _times: TokenTimes

    def __init__(
        self, fail: Fail, *, tokens: bool, records: bool = False, may_fail: float = 0.0
    ) -> None:
        """Start outside any window; with `tokens` every request must have them and their count."""
        super().__init__(fail)
        self.may_fail = may_fail
        self.times_tokens = self.needs_first_tokens = tokens
        self.freed: SimpleQueue[tuple[int, float]] = SimpleQueue()
        self._lock = threading.Lock()
        self._pauses_s: list[tuple[float, float]] = []
        self._under_way: dict[int, _Request] = {}
        self._times = TokenTimes()
        self._begun_s: float | None = None
        self._until_s = math.inf
        self._began_s = self._cpu_s = 0.0
        self.left, self.point = 0, 0.0
        self.of_window: list[Ended] = []
        self.records: list[Record] | None = [] if records else None
        self._uncounted: dict[int, Record] = {}
        self.recounts = False
        self.cpu_clock: Clock = time.process_time
        self._forget()

    def _forget(self) -> None:
        self._placed_s, self._took_s, self._tokens = array("d"), array("d"), array("q")
        self.answers: dict[int, tuple[int, int]] = {}
        self._late_s = array("d")
        self._turns: dict[int, list[tuple[float, float]]] = {}
        self._finishes: Counter[str] = Counter()
        self._ended: list[tuple[int, bool, bool, float, int, float | None]] = []
        self._area_s = 0.0
        self._served = self._served_tokens = self._failed = 0
        self._before = self._most = len(self._under_way)
        self._after = self._unanswered = 0
        self._times = self._times.afresh()
        self._times.clock = self._clock

    def use_clock(self, clock: Clock) -> None:
        """Also for tokens."""
        super().use_clock(clock)
        self._times.clock = clock

    @property
    def under_way(self) -> int:
        """Requests that are not over."""
        return len(self._under_way)

    @property
    def counted(self) -> int:
        """Requests that count in the window so far."""
        return len(self._took_s)

    def take_slot(self, sample: int, asked: Asked, slot: int) -> None:
        """Note a request that is about to be submitted."""
        self.expect([sample])
        with self._lock:
            now_s = perf_counter()
            self._under_way[sample] = _Request(asked, now_s, now_s, slot, counts=True)

    def pause(self, begin_s: float, lasts_s: float) -> None:
        """Note that a conversation waits so long for its next turn, as it was recorded."""
        self._pauses_s.append((begin_s, begin_s + lasts_s))

    def session(self, sample: int) -> str:
        """Return a name of the conversation that a request belongs to; "": it is alone."""
        request = self._under_way.get(sample)
        if request is None or request.asked.conversation is None:
            return ""
        return f"{self.run}-{request.asked.conversation}"

    def arrived(self, sample: int, index: int, due_s: float, *, counts: bool) -> None:
        """Note a request of an open loop that is about to be submitted, and was due at `due_s`."""
        self.expect([sample])
        with self._lock:
            now_s = perf_counter()
            self._under_way[sample] = _Request(Asked(index), due_s, now_s, 0, counts)
            self._most = max(self._most, len(self._under_way))
            if counts:
                self._late_s.append(now_s - due_s)
                self.left += 1

    def ended(
        self, ids: Sequence[int], reasons: Sequence[str], prompt_tokens: Counts = None
    ) -> None:
        """Keep why requests end, and how long their prompts were."""
        super().ended(ids, reasons)
        prompts = prompt_tokens or [None] * len(ids)
        with self._lock:
            for sample, reason, prompt in zip(ids, reasons, prompts, strict=False):
                if request := self._under_way.get(sample):
                    request.finish, request.prompt = str(reason)[:MAX_FINISH_CHARACTERS], prompt

    def first_tokens(self, ids: Sequence[int], tokens: Sequence[bytes] | None = None) -> None:
        """Stamp first tokens."""
        del tokens
        with self._lock:
            self._times.first([each for each in ids if each in self._under_way])

    def next_tokens(self, ids: Sequence[int]) -> None:
        """Stamp one more token of these requests."""
        with self._lock:
            for sample in self._times.further(ids):
                self.faults.add(f"next_tokens() was given id {sample!r} before its first token")

    def done(
        self, ids: Sequence[int], outputs: object = None, n_tokens: Sequence[int] | None = None
    ) -> None:
        """Complete these requests and free their slots; what they answered is not read."""
        del outputs
        wrong = token_fault(ids, n_tokens) if self.times_tokens else ""
        if wrong := wrong or (count_fault(ids, n_tokens) if n_tokens is not None else ""):
            self._fail(RunError("engine", wrong))
            return
        bad = self._claim(ids)
        counts = n_tokens if n_tokens is not None else [0] * len(ids)
        for position, (sample, tokens) in enumerate(zip(ids, counts, strict=True)):
            if position not in bad:
                self._end(sample, tokens)
        self._count(len(ids))

    def lost(self, ids: Sequence[int]) -> None:
        """Free the slots of requests that failed; they count as that alone."""
        bad = self._claim(ids)
        for position, sample in enumerate(ids):
            if position not in bad:
                self._lose(sample)
        self._count(len(ids))

    def _lose(self, sample: int) -> None:
        now_s = self._clock()
        with self._lock:
            request, first_s = self._under_way.pop(sample), self._times.first_s(sample)
            self._times.forget(sample)
            if (begun_s := self._begun_s) is not None:
                self._area_s += self._inside_s(request, now_s, begun_s)
                if request.counts:
                    self._failed += 1
                    self.left -= self._until_s < math.inf
                    if self.records is not None:
                        self.records.append(self._record(request, "failed", first_s, now_s))
        self.freed.put((request.slot, now_s))

    def _inside_s(self, request: _Request, now_s: float, begun_s: float) -> float:
        """Return how long a request that is over was under way inside the window."""
        return max(0.0, min(now_s, self._until_s) - max(request.from_s, begun_s))

    def _end(self, sample: int, tokens: int) -> None:
        now_s = self._clock()
        with self._lock:
            request, first_s = self._under_way.pop(sample), self._times.first_s(sample)
            after = self._times.after_first(sample, tokens)
            if not request.counts:
                self._times.forget(sample)
            elif self.times_tokens and (odd := self._times.end(sample, tokens, request.from_s)):
                self.faults.add(f"sample with id {sample!r}: {odd}")
            if self._begun_s is not None:
                self._keep(request, now_s, tokens, self._begun_s)
                if request.counts and tokens:
                    self.answers[sample] = (request.asked.index, tokens)
                    self.tokens_of.setdefault(request.asked.index, []).append(int(tokens))
                self._keep_turn(request, now_s, first_s)
                if self.recounts:
                    placed_s = request.from_s if self._until_s < math.inf else now_s
                    decode_s = None if first_s is None or not after else now_s - first_s
                    served = now_s <= self._until_s
                    self._ended.append((sample, served, request.counts, placed_s, tokens, decode_s))
                if request.counts and self.records is not None:
                    record = self._record(request, "ok", first_s, now_s, tokens, after)
                    self.records.append(record)
                    if self.recounts:
                        self._uncounted[sample] = record
        self.freed.put((request.slot, now_s))

    def _record(
        self,
        request: _Request,
        status: str,
        first_s: float | None,
        end_s: float | None = None,
        tokens: int | None = None,
        after: int = 0,
    ) -> Record:
        """Return what is kept of a request; its times are seconds from the window's begin on."""
        ttft_s = None if first_s is None else first_s - request.from_s
        tpot_s = None
        if first_s is not None and end_s is not None and after > 0:
            tpot_s = (end_s - first_s) / after
        stamps = (request.from_s, request.issued_s, first_s, end_s)
        begun_s = self._begun_s
        times = [None if at is None or begun_s is None else at - begun_s for at in stamps]
        asked = request.asked
        return [
            *(self.point, asked.index, asked.conversation, asked.turn),
            *(status, request.finish, request.prompt, tokens or None, None),
            *(*times, ttft_s, tpot_s),
        ]

    def count_records(self, counts: Mapping[int, tuple[int, int]]) -> None:
        """Add to the records of a window what a reference tokenizer counts, by sample."""
        for sample, record in self._uncounted.items():
            record[REFERENCE] = counts[sample][0]
        self._uncounted.clear()

    def cut_records(self) -> list[Record]:
        """Return the records of a run that breaks off, also of what is under way."""
        with self._lock:
            return [
                *(self.records or ()),
                *(
                    self._record(
                        request,
                        "failed" if request.finish else "unfinished",
                        self._times.first_s(sample),
                    )
                    for sample, request in self._under_way.items()
                ),
            ]

    def _keep(self, request: _Request, now_s: float, tokens: int, begun_s: float) -> None:
        is_open, inside = self._until_s < math.inf, now_s <= self._until_s
        self._area_s += self._inside_s(request, now_s, begun_s)
        if inside:
            self._served += 1
            self._served_tokens += tokens
        elif request.from_s < self._until_s:
            self._after += 1
        if request.counts:
            self._placed_s.append(request.from_s if is_open else now_s)
            self._took_s.append(now_s - request.from_s)
            self._tokens.append(tokens)
            self._finishes.update([request.finish] if request.finish else [])
            self.left -= is_open
            self._unanswered += not inside

    def _keep_turn(self, request: _Request, now_s: float, first_s: float | None) -> None:
        if turn := request.asked.turn:
            ttft_s = 0.0 if first_s is None else first_s - request.from_s
            kept = self._turns.setdefault(min(turn, MAX_TURNS), [])
            kept.append((now_s - request.from_s, ttft_s))

    def begin(self, point: float, lasts_s: float = math.inf) -> float:
        """Open a window of a point, return its time.

        Completions count from now on; in an open loop, whose window ends by itself, arrivals do.
        """
        with self._lock:
            self._forget()
            self.point = point
            begun_s, self._began_s = perf_counter(), time.time()
            self._pauses_s = [one for one in self._pauses_s if one[1] > begun_s]
            self._begun_s, self._until_s = begun_s, begun_s + lasts_s
            self._cpu_s = self.cpu_clock()
            return begun_s

    def close(self) -> PointWindow:
        """Close the window and return what was measured in it."""
        with self._lock:
            now_s, begun_s = perf_counter(), self._begun_s or 0.0
            end_s = min(now_s, self._until_s)
            still = [one.from_s for one in self._under_way.values() if one.from_s < end_s]
            inside = sum(end_s - max(from_s, begun_s) for from_s in still)
            duration_s = end_s - begun_s
            paused_s = sum(
                max(0.0, min(until_s, end_s) - max(from_s, begun_s))
                for from_s, until_s in self._pauses_s
            )
            window = PointWindow(
                point=self.point,
                begin_s=self._began_s,
                end_s=self._began_s + duration_s,
                duration_s=duration_s,
                requests=len(self._took_s),
                tokens=sum(self._tokens),
                under_way=(self._area_s + inside) / duration_s,
                metrics=self._metrics(duration_s),
                parts=list(self._parts(begun_s, duration_s)),
                notes=self._times.notes,
                finishes=dict(self._finishes.most_common(MAX_FINISH_REASONS)),
                open=self._open(len(still)) if self._until_s < math.inf else None,
                paused=paused_s / duration_s,
                turns=list(self._turn_medians()),
                client_busy=(self.cpu_clock() - self._cpu_s) / (now_s - begun_s),
                failed=self._failed,
                length_se=_relative_se(self._tokens),
                lengths=_lengths(self.answers),
                hidden_share=self._times.hidden_share,
            )
            self.of_window = [
                Ended(sample, served, counts, _part(at_s, begun_s, duration_s), tokens, decode_s)
                for sample, served, counts, at_s, tokens, decode_s in self._ended
            ]
            self._begun_s, self._until_s = None, math.inf
            return window

    def _turn_medians(self) -> Iterator[tuple[int, int, float, float]]:
        for turn, kept in sorted(self._turns.items()):
            latencies_s, ttfts_s = (sorted(each) for each in zip(*kept, strict=True))
            yield turn, len(kept), percentile(latencies_s, 0.5), percentile(ttfts_s, 0.5)

    def _open(self, still: int) -> OpenWindow:
        late = sorted(self._late_s) or [0.0]
        return OpenWindow(
            before=self._before,
            after=self._after + still,
            most=self._most,
            unanswered=self._unanswered,
            late={f"issue_{name}": percentile(late, at) for name, at in QUANTILES.items()},
        )

    def _metrics(self, duration_s: float) -> dict[str, float]:
        ordered, tokens = sorted(self._took_s), sum(self._tokens)
        if not ordered:
            return {}
        metrics = {f"latency_{name}": percentile(ordered, at) for name, at in QUANTILES.items()}
        if self._served:
            metrics["throughput"] = self._served / duration_s
        if self._served_tokens:
            metrics["tokens_per_second"] = self._served_tokens / duration_s
        if tokens:
            metrics["tokens_per_sample"] = tokens / len(ordered)
        if self.times_tokens:
            metrics.update(self._times.metrics())
        if slow := metrics.get("tpot_p90"):
            metrics["tps_per_user"] = 1 / slow
        if self._turns and tokens:
            metrics["e2e_tps_per_user"] = (tokens - self._times.hidden) / sum(ordered)
        return metrics

    def _parts(self, begun_s: float, duration_s: float) -> Iterator[tuple[int, int, float]]:
        requests, tokens, took_s = [0] * WINDOW_PARTS, [0] * WINDOW_PARTS, [0.0] * WINDOW_PARTS
        for at_s, one_s, count in zip(self._placed_s, self._took_s, self._tokens, strict=True):
            part = _part(at_s, begun_s, duration_s)
            requests[part] += 1
            tokens[part] += count
            took_s[part] += one_s
        for part, count in enumerate(requests):
            yield count, tokens[part], took_s[part] / count if count else 0.0


def _relative_se(counts: Sequence[int]) -> float:
    """Return the standard error of a mean of counts by its value; 0 where they show none."""
    if len(counts) < 2 or not sum(counts):
        return 0.0
    return stdev(counts) / math.sqrt(len(counts)) / fmean(counts)


def _lengths(answers: Mapping[int, tuple[int, int]]) -> str:
    """Return samples with their tokens, those asked first: a short line in a baseline."""
    return " ".join(f"{n}:{tokens}" for _, (n, tokens) in sorted(answers.items())[:KEPT_ANSWERS])


def _part(at_s: float, begun_s: float, duration_s: float) -> int:
    return min(WINDOW_PARTS - 1, max(0, int((at_s - begun_s) / duration_s * WINDOW_PARTS)))


def write_requests(folder: Path, records: Sequence[Record]) -> None:
    """Write a line of JSON for each request, whole or not at all; never what was asked or said."""
    lines = (
        json.dumps(
            {name: _short(value) for name, value in zip(REQUEST_COLUMNS, record, strict=True)}
        )
        for record in records
    )
    content = "".join(f"{line}\n" for line in lines).encode()
    atomic.write_bytes(folder / REQUESTS, gzip.compress(content, mtime=0))


def _short(value: Any) -> Any:
    """Return a time to the microsecond; other values as they are."""
    return round(value, 6) if isinstance(value, float) else value


class Edge(Protocol):
    """Takes note that a window begins (`first`) or has ended."""

    def __call__(self, *, first: bool) -> None:
        """Take note."""


def order(settings: LoadGenSettings, run: str) -> list[float]:
    """Return the points in the order of one run: heat and caches meet each of them alike."""
    points = list(settings.points)
    random.Random(f"{settings.seeds.schedule} {run}").shuffle(points)
    return points


class Loop:
    """Measures the points of a curve, one after the other, on one engine."""

    def __init__(
        self,
        engine: Engine,
        sink: SlotSink,
        asked: Conversations,
        settings: LoadGenSettings,
        trace: Sequence[float] = (),
    ) -> None:
        """Drive `engine` over loaded samples, which arrive as in `trace` [s]; () for any time."""
        self._engine, self._sink, self._trace = engine, sink, trace
        self._asked, self._settings = asked, settings
        self._ids = itertools.count(1)

    def run(self, name: str, alone_s: float, at_edges: Callable[[], None]) -> dict[str, Any]:
        """Measure all points and return their log, as `CURVE_LOG` has it.

        The run's name decides the order of points; a lone request takes `alone_s`. `at_edges` is
        called when the first window begins, and when the last one ends.
        """
        places, sink, points = order(self._settings, name), self._sink, list[PointWindow]()
        completed: list[int] = []

        def edge(*, first: bool) -> None:
            """Take note where the first window begins, or the last one ends."""
            if first and not points:
                at_edges()
            if not first or not points:
                completed.append(sink.completed)
            if not first and len(points) == len(places) - 1:
                at_edges()

        sink.recounts = self._engine.counted_again() is not None
        for point in places:
            sink.point = point
            window = self._counted(self._point(point, alone_s, edge))
            points.append(replace(window, answer_counts=dict(self._engine.answer_counts())))
        sink.point = 0.0
        return {
            "schema": SCHEMA_VERSION,
            "samples": completed[-1] - completed[0],
            "order": places,
            "arrivals": self._settings.arrivals,
            "burstiness": self._settings.burstiness,
            "points": [asdict(one) for one in sorted(points, key=lambda one: one.point)],
        }

    def _point(self, point: float, alone_s: float, edge: Edge) -> PointWindow:
        """Warm up, measure, and wait until nothing is under way."""
        raise NotImplementedError

    def _counted(self, window: PointWindow) -> PointWindow:
        """Return a window, over and drained, by the engine's second count where it has one."""
        if not self._sink.recounts:
            return window
        counts, ended = self._engine.counted_again() or {}, self._sink.of_window
        metrics, note = recounted(window.metrics, ended, counts, window.duration_s)
        self._sink.count_records(counts)
        return replace(
            window,
            tokens=sum(counts[one.sample][0] for one in ended if one.counts),
            metrics=metrics,
            parts=parts_of(window.parts, ended, counts),
            notes={**window.notes, **({NOTE: note} if note else {})},
            lengths=_lengths({i: (n, counts[i][0]) for i, (n, _) in self._sink.answers.items()}),
        )

    def _draw(self, point: float) -> random.Random:
        return random.Random(f"{self._settings.seeds.sample_index} {point}")


class ClosedLoop(Loop):
    """Keeps requests under way; drawn with replacement, in the same order in every run.

    Of conversations it keeps so many under way: the turns of one follow each other in its slot,
    each when the last one was answered and its pause is over.
    """

    _conversations = 0

    def _point(self, point: float, alone_s: float, edge: Edge) -> PointWindow:
        settings, sink, concurrency = self._settings, self._sink, int(point)
        self._slots = Slots(self._asked, self._draw(concurrency), self._conversations)
        ramp_s = alone_s if settings.ramp_ms is None else settings.ramp_ms / 1000
        warming_s = perf_counter()
        turns = self._ramp(concurrency, ramp_s)
        while min(turns) < WARMUP_TURNS:
            slot = self._freed(math.inf)
            assert slot is not None
            turns[slot] += 1
            self._issue(slot)
        edge(first=True)
        begun_s = sink.begin(concurrency)
        least = max(MIN_REQUESTS, MIN_SLOT_REQUESTS * concurrency)
        for lengths in range(
            1, MAX_WINDOW_LENGTHS + 1
        ):  # whole ones: an end by its count is no chance
            until_s = begun_s + lengths * settings.min_duration_ms / 1000
            while (slot := self._freed(until_s)) is not None:
                self._issue(slot)
            if sink.counted >= least:
                break
        window = replace(sink.close(), warm_requests=sum(turns), warm_s=begun_s - warming_s)
        edge(first=False)
        for _ in range(concurrency - self._slots.waiting):
            sink.freed.get()
        self._conversations = self._slots.count
        return window

    def _ramp(self, concurrency: int, ramp_s: float) -> list[int]:
        """Fill the slots one after the other; return how often each was refilled.

        Requests that begin together stay together.
        """
        turns = [0] * concurrency
        begun_s = perf_counter()
        for slot in range(concurrency):
            due_s = begun_s + ramp_s * slot / concurrency
            while (again := self._freed(due_s)) is not None:
                turns[again] += 1
                self._issue(again)
            self._issue(slot)
        return turns

    def _freed(self, until_s: float) -> int | None:
        """Wait for a slot that may ask again, and return it; None: there was none in time."""
        slots = self._slots
        while (now_s := perf_counter()) < until_s:
            if slots.due_s <= now_s:
                return slots.pop()
            next_s = min(until_s, slots.due_s)
            try:
                left_s = None if next_s == math.inf else next_s - now_s
                slot, ended_s = self._sink.freed.get(timeout=left_s)
            except Empty:
                continue
            if not (pause_s := slots.pause(slot, ended_s)):
                return slot
            self._sink.pause(ended_s, pause_s)
        return None

    def _issue(self, slot: int) -> None:
        sample, asked = next(self._ids), self._slots.next(slot)
        self._sink.take_slot(sample, asked, slot)
        self._engine.submit([sample], [asked.index], self._sink)

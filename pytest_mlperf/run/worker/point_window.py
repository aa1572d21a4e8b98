"""Measure one window at a point of a curve; recount its tokens by a reference tokenizer."""

from __future__ import annotations

import gzip
import json
import math
import time
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.run.worker._sink import Clock, relative_se
from pytest_mlperf.run.worker.clocks import PER_USER, QUANTILES, TokenTimes, percentile
from pytest_mlperf.run.worker.conversations import NextRequest
from pytest_mlperf.stores import atomic

CURVE_LOG, SCHEMA_VERSION = "curve.json", 2
"""File of a curve's results in place of LoadGen's logs."""

WINDOW_PARTS = 10
"""Equal parts of a window that show whether it was steady."""

KEPT_ANSWERS = 64
"""Answers of a point whose lengths are kept, enough to detect 2 %."""

MAX_FINISH_REASONS = 8
MAX_TURNS = 20
Record = list[Any]
"""Row of one request, see `REQUEST_COLUMNS`."""

REQUEST_COLUMNS = (
    *("point", "index", "conversation", "turn"),
    *("status", "finish", "prompt_tokens", "output_tokens", "reference_tokens"),
    *("scheduled_s", "issued_s", "first_token_s", "last_token_s", "ttft_s", "tpot_s"),
)

REFERENCE = REQUEST_COLUMNS.index("reference_tokens")
"""Column that is filled after the window, if the engine counts tokens again."""

REQUESTS = "requests.jsonl.gz"
"""Optional file of the requests that count, next to `CURVE_LOG`."""


@dataclass(frozen=True, kw_only=True)
class OpenWindow:
    """Hold measurements that only a window of an open loop has.

    Attributes:
        before, after: Requests in flight at the window's begin and end.
        most: Maximum number of requests in flight.
        unanswered: Requests that arrived in the window and were not answered by its end.
        late: Percentiles of the delay from due time to issue [s], by name, "issue_p99".
    """

    before: int
    after: int
    most: int
    unanswered: int
    late: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class PointWindow:
    """Hold the measurements at one point of a curve.

    Requests that are completed in the window count; in an open loop those that arrive in it, even
    if they are completed later.

    Attributes:
        point: Concurrency, or arrivals per second.
        begin_s, end_s: Wall clock, seconds since the epoch.
        duration_s: Length of the window by the monotonic clock [s].
        requests: Requests that count.
        tokens: Their output tokens; 0 if not counted.
        under_way: Mean requests in flight inside the window.
        paused: Mean conversations that paused before their next turn.
        metrics: Values by name, SI units; rates are of completions in the window.
        parts: Requests, tokens and mean latency [s] (0 if none) in equal parts of the window, by
            completion time, in an open loop by arrival time.
        notes: Limitations of the token stamps.
        finishes: Counts of finish reasons of answers that count; empty if not reported.
        warm_requests, warm_s: Requests answered in the warm-up, and its length [s].
        turns: For each turn from 1: requests that count, median latency and median TTFT [s], 0 if
            not timed.
        client_busy: Mean cores that this process and its clients used.
        client_reach: Maximum requests/s against a null server; None if not measured.
        failed: Requests that failed in the window.
        length_se: Relative standard error of the mean answer length, by the spread of single
            answers; 0 if unknown.
        lengths: Output tokens of the first requests by sample, "3:37 8:45"; "" if not counted.
        hidden_share: See `TokenTimes`.
        answer_counts: See `Engine`; includes the answers before the window.
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
class PointRequest:
    """Hold a request in flight; `from_s` is when it was due, from which its latency counts.

    Attributes:
        finish: Finish reason; None if not reported.
        prompt: Prompt tokens; None if not reported.
    """

    asked: NextRequest
    from_s: float
    issued_s: float
    slot: int
    counts: bool
    finish: str | None = None
    prompt: int | None = None

    def record(
        self,
        point: float,
        status: str,
        begun_s: float | None,
        first_s: float | None,
        end_s: float | None = None,
        tokens: int | None = None,
        tokens_after_first: int = 0,
    ) -> Record:
        """Return a row of `REQUEST_COLUMNS`; times [s] are since `begun_s`, or None if unknown."""
        ttft_s = None if first_s is None else first_s - self.from_s
        tpot_s = None
        if first_s is not None and end_s is not None and tokens_after_first > 0:
            tpot_s = (end_s - first_s) / tokens_after_first
        stamps = (self.from_s, self.issued_s, first_s, end_s)
        times = [None if at is None or begun_s is None else at - begun_s for at in stamps]
        return [
            *(point, self.asked.index, self.asked.conversation, self.asked.turn),
            *(status, self.finish, self.prompt, tokens or None, None),
            *(*times, ttft_s, tpot_s),
        ]


class WindowMeter:
    """Measure one window: of completions in a closed loop, of arrivals in an open loop.

    Attributes:
        begun_s: Begin by the monotonic clock [s].
        left: Number of requests that arrived in an open loop's window and are not completed.
        answers: (sample index, tokens) of each completed request of the window, by its id.
        ended: Requests whose tokens are recounted after the window; empty without a recount.
    """

    def __init__(
        self, point: float, lasts_s: float, under_way: int, cpu_clock: Clock, *, recounts: bool
    ) -> None:
        self.begun_s, self._began_s = perf_counter(), time.time()
        self.is_open, self._until_s = lasts_s < math.inf, self.begun_s + lasts_s
        self._point, self._cpu_clock, self._cpu_s = point, cpu_clock, cpu_clock()
        self.left = self._after = self._unanswered = 0
        self.answers: dict[int, tuple[int, int]] = {}
        self.ended: list[Ended] = []
        self._before = self._most = under_way
        self._recounts = recounts
        self._served = self._served_tokens = self._failed = 0
        self._placed_s, self._took_s, self._tokens = array("d"), array("d"), array("q")
        self._late_s = array("d")
        self._turns: dict[int, list[tuple[float, float]]] = {}
        self._finishes: Counter[str] = Counter()
        self._area_s = self._duration_s = 0.0

    @property
    def counted(self) -> int:
        """Number of completed requests that count for the metrics."""
        return len(self._took_s)

    def arrive(self, request: PointRequest, under_way: int) -> None:
        """Record a request of an open loop; `under_way` is the number in flight."""
        self._most = max(self._most, under_way)
        if request.counts:
            self._late_s.append(request.issued_s - request.from_s)
            self.left += 1

    def record_failure(self, request: PointRequest, now_s: float) -> None:
        """Remove a failed request from those in flight; count it if it belongs to the window."""
        self._leave(request, now_s)
        self._failed += request.counts

    def complete(
        self,
        sample: int,
        request: PointRequest,
        now_s: float,
        tokens: int,
        first_s: float | None,
        tokens_after_first: int,
    ) -> None:
        """Record a request that completed at `now_s`; `first_s` is when its first tokens came."""
        inside = now_s <= self._until_s
        self._leave(request, now_s)
        if inside:
            self._served += 1
            self._served_tokens += tokens
        elif request.from_s < self._until_s:
            self._after += 1
        if request.counts:
            self._placed_s.append(request.from_s if self.is_open else now_s)
            self._took_s.append(now_s - request.from_s)
            self._tokens.append(tokens)
            self._finishes.update([request.finish] if request.finish else [])
            self._unanswered += not inside
            if tokens:
                self.answers[sample] = (request.asked.index, tokens)
        if turn := request.asked.turn:
            ttft_s = 0.0 if first_s is None else first_s - request.from_s
            turn_times = self._turns.setdefault(min(turn, MAX_TURNS), [])
            turn_times.append((now_s - request.from_s, ttft_s))
        if self._recounts:
            decode_s = None if first_s is None or not tokens_after_first else now_s - first_s
            self.ended.append(Ended(sample, inside, request.counts, tokens, decode_s))

    def _leave(self, request: PointRequest, now_s: float) -> None:
        self._area_s += max(0.0, min(now_s, self._until_s) - max(request.from_s, self.begun_s))
        self.left -= self.is_open and request.counts

    def close(
        self,
        in_flight_begins_s: Sequence[float],
        pauses_s: Sequence[tuple[float, float]],
        times: TokenTimes,
        *,
        timed: bool,
    ) -> PointWindow:
        """End the window and return its results; with `timed`, also token metrics.

        `in_flight_begins_s`: begins of unfinished requests; `pauses_s`: (begin, end) of pauses.
        """
        now_s, begun_s = perf_counter(), self.begun_s
        end_s = min(now_s, self._until_s)
        still_s = [from_s for from_s in in_flight_begins_s if from_s < end_s]
        inside_s = sum(end_s - max(from_s, begun_s) for from_s in still_s)
        paused_s = sum(
            max(0.0, min(until_s, end_s) - max(from_s, begun_s)) for from_s, until_s in pauses_s
        )
        self._duration_s = duration_s = end_s - begun_s
        return PointWindow(
            point=self._point,
            begin_s=self._began_s,
            end_s=self._began_s + duration_s,
            duration_s=duration_s,
            requests=len(self._took_s),
            tokens=sum(self._tokens),
            under_way=(self._area_s + inside_s) / duration_s,
            metrics=self._metrics(times, timed=timed),
            parts=list(self.parts(self._tokens)),
            notes=times.notes,
            finishes=dict(self._finishes.most_common(MAX_FINISH_REASONS)),
            open=self._open(len(still_s)) if self.is_open else None,
            paused=paused_s / duration_s,
            turns=list(self._turn_medians()),
            client_busy=(self._cpu_clock() - self._cpu_s) / (now_s - begun_s),
            failed=self._failed,
            length_se=relative_se(self._tokens),
            lengths=first_lengths(self.answers),
            hidden_share=times.hidden_share,
        )

    def _turn_medians(self) -> Iterator[tuple[int, int, float, float]]:
        for turn, turn_times in sorted(self._turns.items()):
            latencies_s, ttfts_s = (sorted(each) for each in zip(*turn_times, strict=True))
            yield turn, len(turn_times), percentile(latencies_s, 0.5), percentile(ttfts_s, 0.5)

    def _open(self, still: int) -> OpenWindow:
        late = sorted(self._late_s) or [0.0]
        return OpenWindow(
            before=self._before,
            after=self._after + still,
            most=self._most,
            unanswered=self._unanswered,
            late={f"issue_{name}": percentile(late, at) for name, at in QUANTILES.items()},
        )

    def _metrics(self, times: TokenTimes, *, timed: bool) -> dict[str, float]:
        ordered, tokens = sorted(self._took_s), sum(self._tokens)
        if not ordered:
            return {}
        metrics = {f"latency_{name}": percentile(ordered, at) for name, at in QUANTILES.items()}
        if self._served:
            metrics["throughput"] = self._served / self._duration_s
        if self._served_tokens:
            metrics["tokens_per_second"] = self._served_tokens / self._duration_s
        if tokens:
            metrics["tokens_per_sample"] = tokens / len(ordered)
        if timed:
            metrics.update(times.metrics())
        if slow := metrics.get("tpot_p90"):
            metrics["tps_per_user"] = 1 / slow
        if self._turns and tokens:
            metrics["e2e_tps_per_user"] = (tokens - times.hidden) / sum(ordered)
        return metrics

    def parts(self, tokens: Sequence[int]) -> Iterator[tuple[int, int, float]]:
        """Yield (requests, tokens, mean latency [s]) per part of a window; `tokens` by request."""
        requests, sums, took_s = [0] * WINDOW_PARTS, [0] * WINDOW_PARTS, [0.0] * WINDOW_PARTS
        for at_s, seconds, count in zip(self._placed_s, self._took_s, tokens, strict=True):
            part = int((at_s - self.begun_s) / self._duration_s * WINDOW_PARTS)
            part = min(WINDOW_PARTS - 1, max(0, part))
            requests[part] += 1
            sums[part] += count
            took_s[part] += seconds
        for part, count in enumerate(requests):
            yield count, sums[part], took_s[part] / count if count else 0.0


def first_lengths(answers: Mapping[int, tuple[int, int]]) -> str:
    """Format the first pairs (index, tokens) of `answers`, by sample id, as "INDEX:TOKENS …"."""
    return " ".join(f"{n}:{tokens}" for _, (n, tokens) in sorted(answers.items())[:KEPT_ANSWERS])


def write_requests(folder: Path, records: Sequence[Record]) -> None:
    """Write a line of JSON per request, atomically, without prompts and answers."""
    lines = (
        json.dumps(
            {
                name: round(value, 6) if isinstance(value, float) else value
                for name, value in zip(REQUEST_COLUMNS, record, strict=True)
            }
        )
        for record in records
    )
    content = "".join(f"{line}\n" for line in lines).encode()
    atomic.write_bytes(folder / REQUESTS, gzip.compress(content, mtime=0))


COUNT_SLACK_SHARE = 0.02
"""Relative difference between both counts above which a note reports it."""

NOTE = "tokens_counted"

OF_TURNS = "e2e_tps_per_user"


@dataclass(frozen=True, slots=True)
class Ended:
    """Hold a finished request of a window.

    Attributes:
        served: Whether it completed inside the window, so that rates include it.
        counts: Whether latencies include it.
        tokens: Output tokens as the engine counts them.
        decode_s: Time from the first token to the end [s]; None without a first token.
    """

    sample: int
    served: bool
    counts: bool
    tokens: int
    decode_s: float | None


def recounted(
    metrics: Mapping[str, float],
    ended: Sequence[Ended],
    counts: Mapping[int, tuple[int, int]],
    duration_s: float,
) -> tuple[dict[str, float], str]:
    """Return a window's metrics with recounted tokens, and a note about the difference.

    `counts` has (tokens, tokens after the first message) by sample, from a reference tokenizer.
    Time per output token is decode time / tokens after the first message, as in MLPerf Endpoints.
    Inter-token latencies, of the engine's tokens, are dropped. RunError if a request is missing.
    """
    missing = [one.sample for one in ended if one.sample not in counts]
    if missing:
        count = f"{len(missing)} of {len(ended)} answers"
        raise RunError("engine", f"the reference tokenizer did not count {count}")
    theirs = sum(one.tokens for one in ended)
    ours = sum(counts[one.sample][0] for one in ended)
    kept = {
        name: value
        for name, value in metrics.items()
        if not name.startswith(("itl_", "tpot_", "tokens_", "tps_", "e2e_")) and name != PER_USER
    }
    counting = [one for one in ended if one.counts]
    served = sum(counts[one.sample][0] for one in ended if one.served)
    if served:
        kept["tokens_per_second"] = served / duration_s
    if tokens := sum(counts[one.sample][0] for one in counting):
        kept["tokens_per_sample"] = tokens / len(counting)
    if tokens and OF_TURNS in metrics:
        kept[OF_TURNS] = metrics[OF_TURNS] * tokens / sum(one.tokens for one in counting)
    tpot_s = sorted(
        one.decode_s / after
        for one in counting
        if one.decode_s and (after := counts[one.sample][1])
    )
    if tpot_s and "first_read_p50" not in metrics:
        kept |= {f"tpot_{name}": percentile(tpot_s, share) for name, share in QUANTILES.items()}
        kept["tps_per_user"] = 1 / kept["tpot_p90"]
    note = ""
    if theirs and abs(ours - theirs) > COUNT_SLACK_SHARE * theirs:
        cause = "it is not the tokenizer of the served model"
        if ours < theirs:
            cause = "the server counts end tokens or hidden tokens too, or uses another tokenizer"
        note = (
            f"the reference tokenizer counts {ours:,} tokens, the server {theirs:,} "
            f"({ours / theirs - 1:+.1%}): {cause}"
        )
    return kept, note

"""Time tokens with our own clock: LoadGen stamps only the first token and the end."""

from __future__ import annotations

import json
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import log, sqrt
from pathlib import Path
from statistics import fmean, stdev
from time import perf_counter

from pytest_mlperf.core.extension import Counts
from pytest_mlperf.stores import atomic

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}

GOODPUT = "goodput"

PER_USER = "tokens_per_second_per_user"

TOGETHER_SHARE, TOGETHER_SECONDS = 0.1, 5e-5
"""Gaps below this share of the answer's time per token, and below these seconds, are none: after a
pause of the machine, the share alone would be too long."""

MIN_TOKEN_SECONDS = 1e-5
"""Minimum time of a token in any engine [s]; faster ones were decoded before."""

TOGETHER_TOKENS_SHARE = 0.05
"""Share of tokens or answers that came together above which inter-token latency is unknown."""

TOGETHER_NOTE, ONE_PIECE_NOTE = "tokens_together", "in_one_piece"
BUFFERED_NOTE, HIDDEN_NOTE = "answers_buffered", "hidden_tokens"
"""Keys of notes as in `core.reason.SignKey`, which a worker in another Python cannot import."""

NO_GAPS = "the time between two tokens is not known"

NO_TPOT = "TPOT does not show how fast a user sees tokens"

BUFFERED = (
    "TPOT, times between tokens and speed per user are not known, and TTFT is the time to first "
    "read. A proxy or gateway buffers answers (nginx: set proxy_buffering off, or send "
    "X-Accel-Buffering: no), or the server does not stream"
)
HIDDEN_TOKENS_NOTE = "TPOT and speed per user count visible tokens, tokens/s counts all"
HIDES_UNCOUNTED = (
    "the server counts tokens that it never sends, as hidden reasoning, and does not say how many: "
    "TPOT and speed per user count them too"
)

NOT_TOLD = -1
"""Placeholder for tokens after the first message if the engine does not report them."""


Limits = tuple[float, float] | None
"""Limits of time to first token and time per output token [s]; None for no limits."""


class TokenTimes:
    """Record the times of each sample's tokens; one thread at a time reports a sample.

    Tokens of one message or one decoding step have no gap between them; if there are many,
    inter-token percentiles are omitted. Speed per user counts only tokens after those that arrived
    with the first one. If the engine reports which messages came in one read, its report decides,
    not the times. Hidden tokens, such as reasoning, are counted but not sent to the user.

    Attributes:
        clock: Returns the time of a report [s].
        hidden: Number of tokens that were counted but not sent to the user.
        corrected: Whether a time per output token was divided by fewer than (tokens - 1), because
            several tokens came together.
    """

    def __init__(self, limits_s: Limits = None) -> None:
        self.clock: Callable[[], float] = perf_counter
        self.tokens = self.hidden = 0
        self.met = 0
        self.corrected = False
        self._limits_s = limits_s
        self._samples = 0
        self._seen: dict[int, _Stamps] = {}
        self._gaps = array("f")
        self._gaps_due = self._together = 0
        self._by_reads = self._buffered = self._uncounted = 0
        self._ttft = array("f")
        self._tpot = array("f")
        self._decode = array("f")

    def afresh(self) -> TokenTimes:
        """Return a new object that has no measurements, but the same samples in flight."""
        other = TokenTimes(self._limits_s)
        other._seen, other.clock = self._seen, self.clock
        return other

    def first(self, ids: Sequence[int]) -> None:
        """Stamp the first token of these samples."""
        now_s = self.clock()
        for sample in ids:
            self._seen[sample] = _Stamps(now_s)

    def first_s(self, sample: int) -> float | None:
        """Return when the first token of a sample in flight arrived [s]; None if it has none."""
        stamps = self._seen.get(sample)
        return stamps.first_s if stamps else None

    def forget(self, sample: int) -> None:
        """Drop the time stamps of a sample that does not count."""
        self._seen.pop(sample, None)

    def restart_gaps(self, ids: Sequence[int]) -> None:
        """Begin the samples' next inter-token gap now, to exclude LoadGen's callback time."""
        now_s = self.clock()
        for sample in ids:
            if stamps := self._seen.get(sample):
                stamps.last_s = now_s

    def further(self, ids: Sequence[int]) -> list[int]:
        """Stamp one more token of these samples; return samples that have no first token."""
        now_s, early = self.clock(), []
        for sample in ids:
            stamps = self._seen.get(sample)
            if stamps is None:
                early.append(sample)
                continue
            stamps.gaps.append(now_s - stamps.last_s)
            stamps.last_s = now_s
        return early

    def streamed(
        self, ids: Sequence[int], after_first: Sequence[int | None], hidden: Counts
    ) -> None:
        """Record the numbers of tokens after the first message and of hidden tokens, by answer."""
        for sample, after, unseen in zip(ids, after_first, hidden or [0] * len(ids), strict=False):
            if stamps := self._seen.get(sample):
                stamps.after, stamps.hidden = after or 0, unseen

    def after_first(self, sample: int, tokens: int) -> int:
        """Return how many of the `tokens` follow the first message; if unknown, all but one."""
        stamps = self._seen.get(sample)
        if stamps is None or stamps.after == NOT_TOLD:
            return tokens - 1
        return min(stamps.after, tokens - 1)

    def end(self, sample: int, tokens: int, issued_s: float) -> str | None:
        """Finish a sample of `tokens` tokens; return an error text if its reports disagree."""
        self.tokens += tokens
        self._samples += 1
        after = self.after_first(sample, tokens)
        stamps = self._seen.pop(sample, None)
        if stamps is None:
            self._gaps_due += tokens - 1
            return None
        by_reads, hidden = stamps.after != NOT_TOLD, stamps.hidden or 0
        ttft_s, decode_s = stamps.first_s - issued_s, self.clock() - stamps.first_s
        tpot_s = decode_s / after if after > 0 else 0.0
        self._ttft.append(ttft_s)
        self.hidden += hidden
        self._by_reads += by_reads
        self._uncounted += stamps.hidden is None
        self.corrected |= after != tokens - 1
        if after > 0:
            self._tpot.append(tpot_s)
            self._gaps_due += tokens - 1 - hidden
            self._record_gaps(stamps.gaps, after, decode_s, by_reads=by_reads)
        self._buffered += by_reads and not after
        if self._limits_s and ttft_s <= self._limits_s[0] and tpot_s <= self._limits_s[1]:
            self.met += 1
        if 0 < len(stamps.gaps) != tokens - 1 - hidden:
            return (
                f"first_tokens() and next_tokens() reported {len(stamps.gaps) + 1} tokens, done() "
                f"{tokens - hidden}; report every token, or only the first"
            )
        return None

    def _record_gaps(
        self, gaps: array[float], later_tokens: int, decode_s: float, *, by_reads: bool
    ) -> None:
        """Record token gaps and time per token; unless `by_reads`, skip those with the first."""
        mean_s = decode_s / later_tokens
        least_s = min(TOGETHER_SHARE * mean_s, TOGETHER_SECONDS)
        self._gaps.extend(gaps)
        self._together += sum(map(least_s.__ge__, gaps))
        if not by_reads:
            later_tokens -= next((n for n, gap in enumerate(gaps) if gap > least_s), len(gaps))
        if later_tokens and mean_s > MIN_TOKEN_SECONDS:
            self._decode.append(decode_s / later_tokens)

    def metrics(self) -> Mapping[str, float]:
        """Return metrics by name in SI units; omit metrics for which time stamps are missing."""
        if not self._samples:
            return {}
        metrics = {"tokens_per_sample": self.tokens / self._samples}
        timed = self._samples - self._buffered
        complete = {"first_read" if self.buffered else "ttft": (self._ttft, self._samples)}
        if not self.buffered:
            complete["tpot"] = (self._tpot, timed)
            if self._together <= TOGETHER_TOKENS_SHARE * self._gaps_due:
                complete["itl"] = (self._gaps, self._gaps_due)
        for name, (values, expected) in complete.items():
            if len(values) == expected and expected:
                ordered = sorted(values)
                for label, share in QUANTILES.items():
                    metrics[f"{name}_{label}"] = percentile(ordered, share)
        if "tpot_p50" in metrics and not self._in_one_piece:
            metrics[PER_USER] = 1 / percentile(sorted(self._decode), 0.5)
        return metrics

    @property
    def notes(self) -> dict[str, str]:
        """Reasons why token times are imprecise or incomplete, as text by `SignKey`."""
        notes = {}
        if self._together > TOGETHER_TOKENS_SHARE * len(self._gaps) and not self.buffered:
            share = round(self._together / len(self._gaps), 2)
            text = f"{share * 100:.3g} % of the tokens arrived together with others: {NO_GAPS}"
            notes[TOGETHER_NOTE] = text
        if self.buffered:
            share = round(self._buffered / self._samples, 2)
            text = f"{share * 100:.3g} % of the answers arrived in one or a few reads: {BUFFERED}"
            notes[BUFFERED_NOTE] = text
        if self.hidden:
            share = 100 * round(self.hidden / self.tokens, 2)
            text = f"{share:.3g} % of the tokens were hidden, as reasoning: {HIDDEN_TOKENS_NOTE}"
            notes[HIDDEN_NOTE] = text
        elif self._uncounted:
            notes[HIDDEN_NOTE] = HIDES_UNCOUNTED
        if self._in_one_piece:
            share = 100 * round(1 - len(self._decode) / len(self._tpot), 2)
            notes[ONE_PIECE_NOTE] = f"{share:.3g} % of the answers came in one piece: {NO_TPOT}"
        return notes

    @property
    def buffered(self) -> bool:
        """Whether so many answers came whole in one read that times between tokens are unknown."""
        return self._buffered > TOGETHER_TOKENS_SHARE * self._samples

    @property
    def hidden_share(self) -> float | None:
        """Share of tokens that the user does not see; None if the engine does not report it."""
        is_told = self._by_reads and self.tokens and not self._uncounted
        return self.hidden / self.tokens if is_told else None

    @property
    def slow_start(self) -> dict[str, float]:
        """Effect of a slow start on TTFT and TPOT: log(value / value without it), by name."""
        return {**slow_start(self._ttft, "ttft"), **slow_start(self._tpot, "tpot")}

    @property
    def _in_one_piece(self) -> bool:
        """Whether the share of answers that came in one piece exceeds `TOGETHER_TOKENS_SHARE`."""
        return len(self._decode) < (1 - TOGETHER_TOKENS_SHARE) * len(self._tpot)


class _Stamps:
    __slots__ = ("after", "first_s", "gaps", "hidden", "last_s")

    def __init__(self, now_s: float) -> None:
        self.after = NOT_TOLD
        self.hidden: int | None = 0
        self.first_s = self.last_s = now_s
        self.gaps = array("f")


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return a percentile of sorted values by LoadGen's rule: the value at index share · n."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


LATENCIES_FILE = "latencies.json"
RUN_FILE = "run.json"
"""File next to every run's logs with its settings and the worker's results."""

TOKENS_FILE = "tokens.json"
"""File next to a run's logs with the tokens of each answer by sample, if counted."""

MAX_PARTS = 120
MIN_PART_QUERIES = 20
MAX_QUERIES = 500_000
"""Above this, sorting would delay the next step by seconds."""


def moments(ended_s: Sequence[float], latencies_s: Sequence[float]) -> list[list[float]]:
    """Return [middle, p50 latency, p99 latency, outstanding at the end] of equal parts of a run.

    Times are in seconds since the first query began. Parts without a completion are left out.
    Returns [] for more than `MAX_QUERIES` queries.
    """
    if not 0 < len(ended_s) <= MAX_QUERIES:
        return []
    pairs = sorted(zip(ended_s, latencies_s, strict=True))
    ends = [end for end, _ in pairs]
    begins = sorted(end - latency for end, latency in pairs)
    first = begins[0]
    parts = max(1, min(MAX_PARTS, len(pairs) // MIN_PART_QUERIES))
    width = (ends[-1] - first) / parts or 1.0
    rows = []
    for number in range(parts):
        low, high = first + number * width, first + (number + 1) * width
        until = len(ends) if number == parts - 1 else bisect_left(ends, high)
        inside = sorted(latency for _, latency in pairs[bisect_left(ends, low) : until])
        if inside:
            waiting = bisect_right(begins, high) - until
            middle = (number + 0.5) * width
            p50, p99 = (percentile(inside, share) for share in (0.5, 0.99))
            rows.append([middle, p50, p99, float(max(waiting, 0))])
    return [[float(f"{value:.6g}") for value in row] for row in rows]


TENTHS, MIN_TENTH_COSTS, UNLIKE_SHARE, UNLIKE_SECONDS, UNLIKE_T = 10, 20, 0.05, 0.04, 8.610
"""A tenth of a run differs from the second half if its mean does so by more than 5 %, by more than
40 ms in all, and by more than Student's t for p = 0.1 %, two-sided, 4 degrees of freedom
(scipy.stats.t.isf). Samples, and Server's arrivals, are the same in every run."""


def slow_start(costs_s: Sequence[float], prefix: str, queries: int = 0) -> dict[str, float]:
    """Return the effect of a run's beginning on its percentiles and its mean.

    Student's t compares each tenth's mean with the five means of the second half; the variance of a
    new mean is s²·(1 + 1/5). The beginning is the tenths before the first that does not differ.
    `costs_s` has the queries' times [s] in the order of their begin; `queries` is the number of
    queries if a time is the mean of several.

    Returns log(value of the whole run / value without its beginning) for each percentile and the
    mean, such as "latency_p50" for the prefix "latency". The key `prefix` has log(mean of the first
    tenth / mean of the second half). Returns {} if there is no difference.
    """
    if not MIN_TENTH_COSTS <= len(costs_s) <= MAX_QUERIES:
        return {}
    edges = [k * len(costs_s) // TENTHS for k in range(TENTHS + 1)]
    means = [fmean(costs_s[low:high]) for low, high in pairwise(edges)]
    half = means[TENTHS // 2 :]
    usual = fmean(half)
    far = max(
        UNLIKE_T * stdev(half) * sqrt(1 + 1 / len(half)),
        UNLIKE_SHARE * usual,
        UNLIKE_SECONDS * TENTHS / (queries or len(costs_s)),
    )
    unlike = next(k for k, mean in enumerate(means) if abs(mean - usual) <= far)
    whole, later = sorted(costs_s), sorted(costs_s[edges[unlike] :])
    if not unlike or min(whole) <= 0:
        return {}
    pairs = {name: (percentile(whole, p), percentile(later, p)) for name, p in QUANTILES.items()}
    pairs["mean"] = (fmean(whole), fmean(later))
    added = {f"{prefix}_{name}": log(a / b) for name, (a, b) in pairs.items()}
    return {prefix: log(means[0] / usual), **added}


def write(folder: Path, rows: Sequence[Sequence[float]]) -> None:
    """Write the rows of `moments` (latencies in parts of a run) to LATENCIES_FILE, unless empty."""
    if rows:
        atomic.write_text(
            folder / LATENCIES_FILE, json.dumps({"schema": 1, "moments": rows}) + "\n"
        )

"""When tokens came, by our own clock: what LoadGen does not see between first token and end."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from time import perf_counter

SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}

GOODPUT = "goodput"

PER_USER = "tokens_per_second_per_user"

TOGETHER, TOGETHER_S = 0.1, 5e-5
"""A token came together with the one before when it follows by less than this share of its answer's
time per token and less than this, seconds: where the machine paused, the share alone is long."""

AT_ONCE_S = 1e-5
"""No engine takes less for a token, seconds: what is faster was not decoded meanwhile."""

MANY = 0.05
"""Above this share of all, tokens or answers that came together hide the times between tokens."""

NO_GAPS = "the time between two tokens is not known"

NO_TPOT = "TPOT says nothing of how fast a user sees tokens"


Limits = tuple[float, float] | None
"""Longest time to the first token and longest time per further token, seconds; None: no limits."""


def with_token_rate(
    metrics: Mapping[str, float], *, samples: int, duration_s: float
) -> dict[str, float]:
    """Add the tokens/s of a run whose tokens were counted, where LoadGen logs none.

    LoadGen logs tokens/s only where it times tokens. In MLPerf's own figures of gptj it puts 69
    tokens per sample instead of a count; that constant never enters a measurement of ours.

    Args:
        metrics: Of the run, by the names of the metric table.
        samples: Samples completed.
        duration_s: From the first issue to the last completion; counts where there is no
            throughput, that is in SingleStream and MultiStream.
    """
    found = dict(metrics)
    tokens = found.get("tokens_per_sample")
    if tokens is None or "tokens_per_second" in found:
        return found
    if "throughput" in found:
        found["tokens_per_second"] = found["throughput"] * tokens
    elif duration_s > 0:
        found["tokens_per_second"] = samples * tokens / duration_s
    return found


class TokenTimes:
    """Stamps of each sample's tokens; every sample is reported by one thread at a time.

    Tokens that come together, because a server sends several in a message or an engine makes
    several in a step, have no time between them: where they are many, there are no percentiles of
    that time. What comes with the first token takes no time of its own either: the speed at which
    a user sees tokens counts those after it.

    Attributes:
        tokens: Output tokens of all finished samples.
        met: Finished samples that met their limits.
    """

    def __init__(self, limits_s: Limits = None) -> None:
        """Start with no stamps.

        Args:
            limits_s: What a sample must meet to count as good; None: none is counted.
        """
        self.tokens = 0
        self.met = 0
        self._limits_s = limits_s
        self._samples = 0
        self._seen: dict[int, _Stamps] = {}
        self._gaps = array("f")
        self._together = 0
        self._ttft = array("f")
        self._tpot = array("f")
        self._decode = array("f")

    def first(self, ids: Sequence[int]) -> None:
        """Stamp the first token of these samples."""
        now = perf_counter()
        for sample in ids:
            self._seen[sample] = _Stamps(now)

    def told(self, ids: Sequence[int]) -> None:
        """Count from now on what follows: telling LoadGen is no time between tokens."""
        now = perf_counter()
        for sample in ids:
            if stamps := self._seen.get(sample):
                stamps.last_s = now

    def further(self, ids: Sequence[int]) -> list[int]:
        """Stamp one more token of these samples; return those whose first one is missing."""
        now, early = perf_counter(), []
        for sample in ids:
            stamps = self._seen.get(sample)
            if stamps is None:
                early.append(sample)
                continue
            stamps.gaps.append(now - stamps.last_s)
            stamps.last_s = now
        return early

    def end(self, sample: int, tokens: int, issued_s: float) -> str | None:
        """Take a sample as finished.

        Args:
            sample: Its id.
            tokens: Its output tokens, as the engine counts them.
            issued_s: When it was issued, by `time.perf_counter`.

        Returns:
            Why its stamps cannot be right, or None.
        """
        self.tokens += tokens
        self._samples += 1
        stamps = self._seen.pop(sample, None)
        if stamps is None:
            return None
        ttft_s, decode_s = stamps.first_s - issued_s, perf_counter() - stamps.first_s
        tpot_s = decode_s / (tokens - 1) if tokens > 1 else 0.0
        self._ttft.append(ttft_s)
        if tokens > 1:
            self._tpot.append(tpot_s)
            self._take_gaps(stamps.gaps, tokens, decode_s)
        if self._limits_s and ttft_s <= self._limits_s[0] and tpot_s <= self._limits_s[1]:
            self.met += 1
        if 0 < len(stamps.gaps) != tokens - 1:
            return f"{len(stamps.gaps) + 1} of its {tokens} tokens were reported"
        return None

    def _take_gaps(self, gaps: array[float], tokens: int, decode_s: float) -> None:
        """Keep the times between a sample's tokens, and how fast those after the first came."""
        mean_s = decode_s / (tokens - 1)
        least_s = min(TOGETHER * mean_s, TOGETHER_S)
        self._gaps.extend(gaps)
        together = sum(map(least_s.__ge__, gaps))
        self._together += together
        with_first = next((n for n, gap in enumerate(gaps) if gap > least_s), len(gaps))
        after = tokens - 1 - with_first
        if after and mean_s > AT_ONCE_S:
            self._decode.append(decode_s / after)

    def metrics(self) -> Mapping[str, float]:
        """Return what the stamps give, by the names of the metric table, SI units.

        A metric is absent where not every sample has its stamps, or where they do not show it.
        """
        if not self._samples:
            return {}
        found = {"tokens_per_sample": self.tokens / self._samples}
        gaps = self.tokens - self._samples
        complete = {"ttft": (self._ttft, self._samples), "tpot": (self._tpot, self._samples)}
        if self._together <= MANY * gaps:
            complete["itl"] = (self._gaps, gaps)
        for name, (values, expected) in complete.items():
            if len(values) == expected and expected:
                ordered = sorted(values)
                for label, share in SHARES.items():
                    found[f"{name}_{label}"] = percentile(ordered, share)
        if len(self._tpot) == self._samples and not self._in_one_piece:
            found[PER_USER] = 1 / percentile(sorted(self._decode), 0.5)
        return found

    @property
    def notes(self) -> tuple[str, ...]:
        """What the stamps cannot show, in words."""
        told = []
        if self._together > MANY * len(self._gaps):
            share = self._together / len(self._gaps)
            told.append(f"{share:.0%} of the tokens came together with others: {NO_GAPS}")
        if self._in_one_piece:
            share = 1 - len(self._decode) / len(self._tpot)
            told.append(f"{share:.0%} of the answers came in one piece: {NO_TPOT}")
        return tuple(told)

    @property
    def _in_one_piece(self) -> bool:
        """Whether too many answers had no time between their first token and their end."""
        return len(self._decode) < (1 - MANY) * len(self._tpot)


class _Stamps:
    """When a sample's tokens came."""

    __slots__ = ("first_s", "gaps", "last_s")

    def __init__(self, now_s: float) -> None:
        self.first_s = self.last_s = now_s
        self.gaps = array("f")


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return a percentile of values in order, as LoadGen takes it: the value of a rank."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

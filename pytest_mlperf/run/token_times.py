"""When tokens came, by our own clock: what LoadGen does not see between first token and end."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from time import perf_counter

SHARES = {"p50": 0.5, "p99": 0.99}


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

    Attributes:
        tokens: Output tokens of all finished samples.
    """

    def __init__(self) -> None:
        """Start with no stamps."""
        self.tokens = 0
        self._samples = 0
        self._seen: dict[int, list[float]] = {}  # first stamp, last stamp, tokens stamped
        self._gaps = array("f")
        self._ttft = array("f")
        self._tpot = array("f")

    def first(self, ids: Sequence[int]) -> None:
        """Stamp the first token of these samples."""
        now = perf_counter()
        for sample in ids:
            self._seen[sample] = [now, now, 1]

    def further(self, ids: Sequence[int]) -> list[int]:
        """Stamp one more token of these samples; return those whose first one is missing."""
        now, early = perf_counter(), []
        for sample in ids:
            stamps = self._seen.get(sample)
            if stamps is None:
                early.append(sample)
                continue
            self._gaps.append(now - stamps[1])
            stamps[1] = now
            stamps[2] += 1
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
        first_s, _, stamped = stamps
        self._ttft.append(first_s - issued_s)
        if tokens > 1:
            self._tpot.append((perf_counter() - first_s) / (tokens - 1))
        if 1 < stamped != tokens:
            return f"{stamped:.0f} of its {tokens} tokens were reported"
        return None

    def metrics(self) -> Mapping[str, float]:
        """Return what the stamps give, by the names of the metric table, seconds.

        A metric is absent where not every sample has its stamps.
        """
        if not self._samples:
            return {}
        found = {"tokens_per_sample": self.tokens / self._samples}
        complete = {
            "ttft": (self._ttft, self._samples),
            "tpot": (self._tpot, self._samples),
            "itl": (self._gaps, self.tokens - self._samples),
        }
        for name, (values, expected) in complete.items():
            if len(values) == expected and expected:
                ordered = sorted(values)
                for label, share in SHARES.items():
                    found[f"{name}_{label}"] = ordered[min(expected - 1, int(share * expected))]
        return found

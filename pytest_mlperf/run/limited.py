"""A sink that counts which samples met the limit of their latency."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from time import perf_counter

from pytest_mlperf.run.delivery import PerformanceSink, Port
from pytest_mlperf.run.sink import Fail
from pytest_mlperf.run.token_times import GOODPUT, SHARES, percentile


class LimitedSink(PerformanceSink):
    """Counts besides which samples met a limit of their latency, by our own stamps."""

    def __init__(self, fail: Fail, port: Port, *, limit_s: float) -> None:
        """Start with nothing outstanding; a sample that takes `limit_s` at most has met it."""
        super().__init__(fail, port)
        self._limit_s = limit_s
        self._issued_s: dict[int, float] = {}
        self._begun, self._keep = self._issued_s.pop, self._over.extend

    @property
    def token_metrics(self) -> Mapping[str, float]:
        """Also the samples in a second that met the limit, and the percentiles of our stamps."""
        found = dict(super().token_metrics)
        if self._over and self.duration_s:
            ordered = sorted(self._over[1::2])
            found[GOODPUT] = bisect_right(ordered, self._limit_s) / self.duration_s
            for name, share in SHARES.items():
                found[f"latency_{name}"] = percentile(ordered, share)
        return found

    def expect(self, ids: Sequence[int]) -> None:
        """Note samples about to be submitted, and when."""
        if len(ids) == 1:
            self._issued_s[ids[0]] = perf_counter()
        else:
            self._issued_s.update(dict.fromkeys(ids, perf_counter()))
        PerformanceSink.expect(self, ids)

    def done(
        self,
        ids: Sequence[int],
        outputs: Sequence[bytes] | None = None,
        n_tokens: Sequence[int] | None = None,
    ) -> None:
        """Complete these samples; one that must not be completed is refused and not counted."""
        now = perf_counter()
        for sample in ids:
            issued_s = self._begun(sample, None)
            if issued_s is not None:
                self._keep((now, now - issued_s))
        PerformanceSink.done(self, ids, outputs, n_tokens)

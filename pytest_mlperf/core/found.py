"""What a search of a rate tried, and what it found."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_mlperf.core.numbers import percent, quantity
from pytest_mlperf.core.ranges import Positive

CLAMP = 1.0
"""The excess, log(latency / limit), that counts at most: 2.7 times the limit, or its inverse."""

LEAST = 0.02
"""The excess that counts at least, so that the two ends of a bracket always differ."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Condition:
    """A latency that must stay below a limit.

    Attributes:
        metric: Its name in the metric table.
        below: The limit, seconds.
    """

    metric: str
    below: Positive

    @property
    def in_words(self) -> str:
        """The condition as a suite writes it: "ttft_p99 < 1 s"."""
        return f"{self.metric} < {quantity(self.metric, self.below)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Tried:
    """One run of a search.

    Attributes:
        rate: Offered rate, per second.
        metric: The latency that is nearest to its limit, or farthest beyond it.
        value: What it was, seconds.
        limit: Its limit, seconds.
        held: Every limit was met.
        folder: Folder with the run's logs.
    """

    rate: Positive
    metric: str
    value: Positive
    limit: Positive
    held: bool
    folder: str = ""

    @property
    def excess(self) -> float:
        """How far beyond its limit the latency is, as a logarithm that counts to `CLAMP`."""
        size = min(max(abs(math.log(self.value / self.limit)), LEAST), CLAMP)
        if self.held:
            return -size
        # A run may be late as LoadGen counts, though not by this value.
        return size if self.value > self.limit else LEAST


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """The outcome of a search.

    Attributes:
        at: The conditions in words.
        rate: The rate found, per second; between `low` and `high`.
        low: The highest rate that held.
        high: The lowest rate above it that did not.
        metric: The latency that limits: what was beyond its limit at `high`.
        precision: The width of the bracket that was asked for, as a share of the rate.
        reached: The bracket is as narrow as that.
        tried: Every run, in order.
    """

    at: str
    rate: Positive
    low: Positive
    high: Positive
    metric: str
    precision: Positive
    reached: bool
    tried: tuple[Tried, ...]

    @property
    def in_words(self) -> str:
        """What was found and how sure it is."""
        runs = len(self.tried)
        said = (
            f"{quantity('', self.rate)} samples/s at {self.at}: {quantity('', self.low)}/s held, "
            f"{quantity('', self.high)}/s did not ({self.metric}); {runs} runs"
        )
        if self.reached:
            return said
        return f"{said} did not reach a precision of {percent(self.precision)}"

    @property
    def resolution(self) -> float:
        """Relative standard error of a rate anywhere in the bracket: its width / sqrt 12."""
        return math.log(self.high / self.low) / math.sqrt(12)


def tried(
    rate: float,
    metrics: Mapping[str, float],
    conditions: Sequence[Condition],
    *,
    late: bool = False,
    folder: str = "",
) -> Tried:
    """Return what a run says about its rate.

    Args:
        rate: Offered rate, per second.
        metrics: What the run measured.
        conditions: At least one; the limits that LoadGen was told are among them.
        late: LoadGen itself says that too many queries were late.
        folder: Folder with the run's logs.

    Raises:
        KeyError: The run has no such metric.
    """
    first = max(conditions, key=lambda one: metrics[one.metric] / one.below)
    value = metrics[first.metric]
    return Tried(
        rate=rate,
        metric=first.metric,
        value=value,
        limit=first.below,
        held=value < first.below and not late,
        folder=folder,
    )

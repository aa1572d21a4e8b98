"""What a result costs: samples or tokens for a dollar, on all GPUs that the model needs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import date

from pytest_mlperf.core.ranges import LEAST, MOST, AtLeastOne, NotNegative, Positive

SECONDS_PER_HOUR = 3600


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuPrice:
    """What one GPU costs.

    Attributes:
        usd_per_gpu_hour: As the suite's price table says; no price ships.
        as_of: The day of the price, which is printed beside everything made from it.

    Raises:
        ValueError: The price is not positive.
    """

    usd_per_gpu_hour: Positive
    as_of: date

    def __post_init__(self) -> None:
        if not LEAST <= self.usd_per_gpu_hour <= MOST:
            raise ValueError(
                f"usd_per_gpu_hour is {self.usd_per_gpu_hour!r}; must be positive and finite"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class PerDollar:
    """A rate for a price.

    Attributes:
        value: Samples or tokens for a dollar, as the rate counts.
        of: What is counted: "samples" or "tokens".
        gpus: How many were paid for.
        price: Of each, with its day.
    """

    value: NotNegative
    of: str
    gpus: AtLeastOne
    price: GpuPrice


def fewest_gpus(weight_bytes: float, memory: float) -> int:
    """Return how many GPUs it takes at least to hold a model's weights alone.

    Args:
        weight_bytes: Of all weights, those of every expert and of the embeddings too.
        memory: Of one GPU, B.

    Raises:
        ValueError: An argument is not positive.
    """
    if not (0 < weight_bytes < math.inf and 0 < memory < math.inf):
        raise ValueError(f"{weight_bytes!r} B of weights, {memory!r} B of memory: must be positive")
    return math.ceil(weight_bytes / memory)


def per_dollar(
    rate: float, price: GpuPrice, *, gpus: int, holding: int = 1, of: str = "tokens"
) -> PerDollar:
    """Return what a dollar buys: rate x 3600 s / (USD per GPU-hour x GPUs).

    Args:
        rate: Samples or tokens a second of all GPUs together.
        price: Of one.
        gpus: How many the result names.
        holding: How many hold one copy of the model: never fewer are paid for, however many the
            result names.
        of: What the rate counts.

    Raises:
        ValueError: The rate or a number of GPUs cannot be.
    """
    if not 0 <= rate < math.inf:
        raise ValueError(f"the rate is {rate!r}; must be finite, at least 0")
    if gpus < 1 or holding < 1:
        raise ValueError(f"{gpus} GPUs, {holding} of them for one model: must be at least 1")
    paid = max(gpus, holding)
    dollars_per_s = price.usd_per_gpu_hour * paid / SECONDS_PER_HOUR
    return PerDollar(value=rate / dollars_per_s, of=of, gpus=paid, price=price)

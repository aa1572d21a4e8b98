"""What stands beside a verdict's figures: their share of the physical limit, and their cost."""

from __future__ import annotations

from pytest_mlperf.core.metrics import METRICS
from pytest_mlperf.core.numbers import quantity
from pytest_mlperf.core.roofline.cost import PerDollar
from pytest_mlperf.core.verdict import Verdict


def light(verdict: Verdict) -> str | None:
    """Return how near the last run came to the physical limit, or why nobody knows."""
    if verdict.ratio or not verdict.runs or not verdict.runs[-1].light:
        return None
    found = verdict.runs[-1].light[0]
    most = found.estimated if found.estimated is not None else found.certain
    if found.share is None or most is None:
        return found.says
    least = METRICS[found.metric].unit == "s"
    bound = f"{'at least' if least else 'at most'} {quantity(found.metric, most)}"
    return f"{METRICS[found.metric].title}: {found.says}; {bound}"


def cost(verdict: Verdict) -> str | None:
    """Return what a dollar buys, with the price and its day."""
    return in_dollars(verdict.cost) if verdict.cost else None


def in_dollars(found: PerDollar) -> str:
    """Return what a dollar buys: "1 234 tokens/USD (8 GPUs at 3.29 USD an hour, 2026-11-01)"."""
    gpus = "1 GPU" if found.gpus == 1 else f"{found.gpus} GPUs"
    price = f"{gpus} at {found.price.usd_per_gpu_hour:g} USD an hour, {found.price.as_of}"
    return f"{quantity('', found.value)} {found.of}/USD ({price})"


def beside(verdict: Verdict) -> list[str]:
    """Return both, where they are known."""
    return [text for text in (light(verdict), cost(verdict)) if text]

"""What stands beside a verdict's figures: their share of the physical limit, and their cost."""

from __future__ import annotations

from pytest_mlperf.core.metrics import METRICS
from pytest_mlperf.core.numbers import quantity
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
    """Return what a dollar buys: "19.88 M samples/USD (8 GPUs at 3.29 USD an hour, 2026-11-01)"."""
    found = verdict.cost
    if found is None:
        return None
    gpus = "1 GPU" if found.gpus == 1 else f"{found.gpus} GPUs"
    paid = "the machine" if verdict.case.accelerator == "cpu" else gpus
    millions = found.value >= 1e6
    value = f"{found.value / 1e6:.4g} M" if millions else quantity("", found.value)
    price = f"{paid} at {found.price.usd_per_gpu_hour:g} USD an hour, {found.price.as_of}"
    return f"{value} {found.of}/USD ({price})"


def beside(verdict: Verdict) -> list[str]:
    """Return both, where they are known."""
    return [text for text in (light(verdict), cost(verdict)) if text]

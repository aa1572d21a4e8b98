"""Define rules of MLPerf Endpoints (endpoints.toml): regions of a curve, and seeds."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from typing import Any

CURVE_STEPS = 6
"""Equal steps on a logarithmic scale from the lowest point to the maximum: two per region."""


@cache
def endpoint_rules() -> Mapping[str, Any]:
    """Return the tables of endpoints.toml."""
    text = files("pytest_mlperf.rounds").joinpath("endpoints.toml").read_text("utf-8")
    return tomllib.loads(text)


ULTRA_LOW: int = endpoint_rules()["curve"]["ultra_low"]
"""Highest ultra-low concurrency; a declared maximum must be larger."""


@dataclass(frozen=True, kw_only=True)
class SeedSet:
    """Hold one of the seed sets that MLCommons publishes for cohorts of submissions."""

    scheduler: int
    sample_index: int
    model: int


@cache
def seed_sets() -> Mapping[str, SeedSet]:
    """Return the published seed sets by name."""
    return {
        name: SeedSet(**{seed.name: int(raw[seed.name]) for seed in fields(SeedSet)})
        for name, raw in endpoint_rules()["seed_sets"].items()
    }


def points_up_to(highest: int) -> tuple[int, ...]:
    """Return seven concurrencies that meet the rules: one ultra-low, two in each region.

    They are 1, and 1 + (highest - 1)^(k/6) for k = 1 to 6, rounded like the bounds of regions: the
    middle and the end of each region on the logarithmic scale that divides the regions.

    Args:
        highest: Declared maximum, more than 32; it is the last point.
    """
    steps = (1 + 2 ** (math.log2(highest - 1) * k / CURVE_STEPS) for k in range(1, CURVE_STEPS))
    return (1, *(round(step) for step in steps), highest)


def region_of(concurrency: int, points: Sequence[int], highest: int) -> str | None:
    """Return the rules' name of the region that contains a concurrency; None if none does.

    Args:
        points: All concurrencies of the curve; the regions start at the lowest one.
        highest: Declared maximum.
    """
    lowest = min(points)
    step = math.log2(highest - lowest) / 3
    ends = {
        "low_latency": lowest,
        "low_concurrency": round(lowest + 2**step),
        "med_concurrency": round(lowest + 2 ** (2 * step)),
        "high_concurrency": highest,
        "margin": math.ceil((1 + endpoint_rules()["curve"]["margin"]) * highest),
    }
    return next((name for name, end in ends.items() if concurrency <= end), None)


def scored_points(points: Sequence[int]) -> frozenset[int]:
    """Return the concurrencies that MLPerf Endpoints scores: the highest point of each region."""
    highest = max(points)
    if highest - min(points) < 2:  # no room for regions
        return frozenset({highest})
    last = {region_of(point, points, highest): point for point in sorted(points)}
    return frozenset(last.values())

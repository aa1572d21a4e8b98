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
def _rules() -> Mapping[str, Any]:
    text = files("pytest_mlperf.rounds").joinpath("endpoints.toml").read_text("utf-8")
    return tomllib.loads(text)


ULTRA_LOW: int = _rules()["curve"]["ultra_low"]
"""Highest ultra-low concurrency; a declared maximum must be larger."""

MIN_POINTS: int = _rules()["curve"]["fewest"]


@dataclass(frozen=True, kw_only=True)
class SeedSet:
    """Hold the seeds that MLCommons publishes for some cohorts of submissions."""

    scheduler: int
    sample_index: int
    model: int


@cache
def seed_sets() -> Mapping[str, SeedSet]:
    """Return the published seed sets by name."""
    return {
        name: SeedSet(**{seed.name: int(raw[seed.name]) for seed in fields(SeedSet)})
        for name, raw in _rules()["seed_sets"].items()
    }


def required_keys(section: str) -> Sequence[str]:
    """Return the keys that the rules require in one section of a submission's description."""
    keys: Sequence[str] = _rules()["bundle"][section]
    return keys


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
        "margin": math.ceil((1 + _rules()["curve"]["margin"]) * highest),
    }
    return next((name for name, end in ends.items() if concurrency <= end), None)


def scored_points(points: Sequence[int]) -> frozenset[int]:
    """Return the points at which a complete curve is scored: the last one of each region."""
    highest = max(points)
    if highest - min(points) < 2:  # no room for regions
        return frozenset({highest})
    last = {region_of(point, points, highest): point for point in sorted(points)}
    return frozenset(last.values())


def curve_defects(concurrencies: Sequence[int], max_concurrency: int) -> list[str]:
    """Return messages on the rules that a curve's concurrencies break; [] if they break none."""
    if min(concurrencies) > ULTRA_LOW:
        return [f"no point is in region ultra_low (1 to {ULTRA_LOW} requests)"]
    present = {region_of(point, concurrencies, max_concurrency) for point in concurrencies}
    lacks = [
        f"no point is in region {name}"
        for name in ("low_concurrency", "med_concurrency", "high_concurrency")
        if name not in present
    ]
    few = (
        [f"it has {len(concurrencies)} of {MIN_POINTS} required points"]
        if len(concurrencies) < MIN_POINTS
        else []
    )
    beyond = [
        f"point {p:,} is above the maximum, {max_concurrency:,}"
        for p in concurrencies
        if not region_of(p, concurrencies, max_concurrency)
    ]
    return [*few, *lacks, *beyond]

"""The rules of MLCommons' checker on the settings of a performance run, by the names of these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pytest_mlperf.rounds import RoundScenario, RoundWorkload

NOT_IN_OPEN_BEFORE = "v5.0"
"""The first round whose checker lets an open submission ask fewer samples in Offline."""


def least_settings(
    round_name: str,
    workload: RoundWorkload,
    constants: RoundScenario,
    scenario: str,
    *,
    closed: bool,
) -> dict[str, int]:
    """Return the least values of a run's settings, by their names in LoadGen's log."""
    least = {
        "performance_sample_count": workload.performance_samples,
        "min_duration_ms": constants.min_duration_ms,
    }
    if scenario == "Offline":
        least["min_query_count"] = 1
        if closed or round_name < NOT_IN_OPEN_BEFORE:
            least["samples_per_query"] = constants.min_query_count
    return least


def too_low(values: Mapping[str, Any], least: Mapping[str, int]) -> Iterator[str]:
    """Yield which settings of a log are below their least values."""
    for name, limit in least.items():
        value = values.get(f"effective_{name}")
        if not (isinstance(value, int | float) and value >= limit):
            yield f"{name} is {value}; at least {limit:,} are needed"

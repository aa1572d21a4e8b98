"""Check the settings of a performance run by the rules of MLCommons' checker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pytest_mlperf.core.untrusted_text import quoted
from pytest_mlperf.extension import Scenario
from pytest_mlperf.rounds import Round, RoundScenario, RoundWorkload


def least_settings(
    rules: Round, workload: RoundWorkload, constants: RoundScenario, logged: str, *, closed: bool
) -> dict[str, int]:
    """Return the minimum values of LoadGen settings, by their names in the log.

    `logged` is the scenario in the log. Since v5.0 open submissions may use fewer samples.
    """
    least = {
        "performance_sample_count": workload.performance_samples,
        "min_duration_ms": constants.min_duration_ms,
    }
    if logged == Scenario.OFFLINE:
        least["min_query_count"] = 1
        if closed or rules.name < "v5.0":
            least["samples_per_query"] = constants.min_query_count
    return least


def too_low(values: Mapping[str, Any], least: Mapping[str, int]) -> Iterator[str]:
    """Yield the settings of a log that are below their minimum."""
    for name, limit in least.items():
        value = values.get(f"effective_{name}")
        if not (isinstance(value, int | float) and value >= limit):
            yield f"{name} is {quoted(value)}; it must be at least {limit:,}"

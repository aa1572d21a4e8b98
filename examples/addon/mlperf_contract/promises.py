"""Read a contract, and hold what was measured against it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import geometric_mean

from pytest_mlperf import EnvironmentFault, Verdict


@dataclass(frozen=True)
class Margin:
    """What was promised of one metric of a case, and what was measured, in the metric's unit."""

    metric: str
    promised: float
    measured: float

    def __str__(self) -> str:
        """Return "throughput 476 of 400 promised (+19 %)"."""
        above = 100 * (self.measured / self.promised - 1)
        return f"{self.metric} {self.measured:g} of {self.promised:g} promised ({above:+.0f} %)"


def margins(file: Path | None, verdict: Verdict) -> list[Margin]:
    """Return what a contract says of the case of a verdict; nothing without a contract or runs.

    Raises:
        EnvironmentFault: The file cannot be read, or is no contract.
    """
    if file is None or not verdict.runs:
        return []
    measured = {
        metric: geometric_mean(run.metrics[metric] for run in verdict.runs)
        for metric, value in verdict.runs[-1].metrics.items()
        if value > 0 and all(run.metrics.get(metric, 0) > 0 for run in verdict.runs)
    }
    promised = read_contract(file).get(verdict.case.id, {})
    return [
        Margin(metric, least, measured[metric])
        for metric, least in promised.items()
        if metric in measured
    ]


@cache
def read_contract(file: Path) -> Mapping[str, Mapping[str, float]]:
    """Return what is promised, by case id and metric."""
    try:
        contract = tomllib.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise EnvironmentFault(f"{file}: the contract cannot be read: {error}") from None
    for case, promises in contract.items():
        if not isinstance(promises, dict) or not all(
            isinstance(least, int | float) and least > 0 for least in promises.values()
        ):
            raise EnvironmentFault(f"{file}: {case}: write metric = number, as throughput = 400")
    return contract

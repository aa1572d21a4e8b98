"""Measure again what may not be judged: one rule for every run of a case."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pytest_mlperf.core.measurement import Run
from pytest_mlperf.suite.plan import Planned

INVALID_TRIES = 3
"""A run that may not be judged is measured again at most twice."""

FASTER = 1.2
"""An Offline run that was too short was sized for a slower engine: it is sized so much longer."""


class Unjudgeable(Exception):
    """Every try of a run was INVALID; carries the last one."""

    def __init__(self, run: Run) -> None:
        """Keep the run whose reasons are shown."""
        super().__init__("; ".join(map(str, run.invalid)))
        self.run = run


class Rated(Protocol):
    """A case, the rate that its next run is offered or sized by, and its INVALID runs so far."""

    @property
    def planned(self) -> Planned:
        """The case."""
        ...

    rate: float | None
    invalid_runs: list[Run]


def valid_run(case: Rated, attempt: Callable[[], Run]) -> Run:
    """Return the first run that may be judged.

    Args:
        case: Takes the INVALID runs; its rate is raised where one of Offline was.
        attempt: Makes one run, in a fresh process.

    Raises:
        Unjudgeable: No try was valid.
    """
    for left in reversed(range(INVALID_TRIES)):
        run = attempt()
        if not run.invalid:
            return run
        case.invalid_runs.append(run)
        if left and case.planned.case.scenario == "Offline":
            case.rate = max(case.rate or 0.0, FASTER * run.metrics.get("throughput", 0.0))
    raise Unjudgeable(run)

"""The jobs that a plan is cut into, for CI and clusters: one per accelerator and suite file."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_mlperf.reports import selection
from pytest_mlperf.reports.selection import Cost, cost_of
from pytest_mlperf.suite.pairs import Testable

SLACK = 3
"""A job may take this many times what was planned: loading and accuracy passes come on top."""

LEAST_MINUTES = 30
"""Time for a job at least: models take minutes to load."""


def jobs_of(
    planned: Sequence[Testable], measured: Mapping[tuple[Path, str], Cost], max_runs: int
) -> dict[str, dict[str, int]]:
    """Return, by accelerator and suite file, the minutes after which a job is hung. In order.

    Args:
        planned: The cases.
        measured: What earlier sessions took.
        max_runs: Most runs of a case.
    """
    seconds: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for case in planned:
        for name in case.accelerators:
            spent = cost_of(case, measured).at_most_s(max_runs)
            seconds[name][selection.relative(case.path)] += spent
    return {
        name: {
            suite: max(LEAST_MINUTES, math.ceil(SLACK * spent / 60))
            for suite, spent in sorted(suites.items())
        }
        for name, suites in sorted(seconds.items())
    }

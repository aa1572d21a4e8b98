"""Check the stage times that an engine reports."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.extension import Engine
from pytest_mlperf.core.metrics import STAGE, STAGE_METRIC

MAX_STAGES = 16
SLACK_SHARE, SLACK_SECONDS = 0.01, 0.1
"""Tolerances by which stages may exceed the run, as an engine may work on after the last answer."""


def stages_of(engine: Engine, duration_s: float, processes: int = 1) -> dict[str, float]:
    """Return the seconds of each stage in a run of `duration_s`; raise RunError if impossible."""
    stages: object = engine.stage_seconds()
    if not isinstance(stages, Mapping):
        raise _refused(f"{type(stages).__name__}, no seconds by name")
    if len(stages) > MAX_STAGES:
        raise _refused(f"{len(stages)} stages; {MAX_STAGES} at most are kept")
    for name, seconds in stages.items():
        if not (isinstance(name, str) and STAGE_METRIC.fullmatch(f"{STAGE}{name}")):
            raise _refused(
                f"the name {name!r:.60}; a name is a small letter and up to 31 small letters, "
                "digits and _"
            )
        is_number = isinstance(seconds, Real) and not isinstance(seconds, bool)
        if not (is_number and 0 <= seconds < math.inf):
            raise _refused(f"{seconds!r:.60} for {name!r}; seconds are a number from 0 on")
    seconds_by_name = {name: float(seconds) for name, seconds in stages.items()}
    total_s, most_s = math.fsum(seconds_by_name.values()), processes * duration_s
    if total_s > most_s * (1 + SLACK_SHARE) + SLACK_SECONDS:
        raise _refused(
            f"{total_s:.3g} s in all, of a run of {duration_s:.3g} s"
            f"{f' in {processes} processes' if processes > 1 else ''}; count no instant twice, "
            "nor a batch for each of its samples"
        )
    return seconds_by_name


def _refused(problem: str) -> RunError:
    return RunError("engine", f"stage_seconds() returns {problem}")

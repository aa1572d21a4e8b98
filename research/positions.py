#!/usr/bin/env python3
"""Is the first run of a session like the later ones? From the A/A runs of calibration sessions.

    python research/positions.py .mlperf/calibration/* [--accelerator cpu]

Every run is set beside the mean of the later ones (3rd to last) of its case in its session, so what
sessions differ by cancels; above 0 is better. Intervals are 95 %, by t over sessions. Of the first
case of a session the first run is the first of all: the accelerator had not worked before it.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from pytest_mlperf.core.metrics import METRICS
from pytest_mlperf.core.noise.calibration import CalibratedCase, CalibrationRun
from pytest_mlperf.judge.formulas import t_isf
from pytest_mlperf.judge.inputs import Direction
from pytest_mlperf.stores import calibration

LATER = 3
"""From this run on a session's runs are taken as alike."""


@dataclass(frozen=True, kw_only=True)
class Effect:
    """How a run differs from the later ones of its session.

    Attributes:
        sessions: How many it was seen in.
        mean: Relative difference, above 0 is better.
        half: Half of its 95 % interval; infinite of one session.
    """

    sessions: int
    mean: float
    half: float


def effect(differences: Sequence[float]) -> Effect:
    """Return the mean of logarithmic differences, one a session, with its interval."""
    n = len(differences)
    half = math.inf
    if n > 1:
        half = t_isf(0.025, n - 1) * stdev(differences) / math.sqrt(n)
    return Effect(sessions=n, mean=fmean(differences), half=half)


def contrasts(runs: Sequence[CalibrationRun], metric: str) -> dict[int, float]:
    """Return how each of one session's runs differs from its later ones, by its number."""
    sign = 1 if METRICS[metric].direction is Direction.HIGHER else -1
    logs = {run.number: sign * math.log(run.metrics[metric]) for run in runs}
    later = [value for number, value in logs.items() if number >= LATER]
    if len(later) < 2:  # nothing to be compared with
        return {}
    level = fmean(later)
    return {number: value - level for number, value in logs.items()}


def of_session(cases: Sequence[CalibratedCase]) -> Iterator[tuple[str, dict[int, float]]]:
    """Yield each case's name and metric with the differences of its runs; the first case first."""
    for case in sorted(cases, key=lambda one: one.runs[0].started):
        for metric in case.limits:
            if all(metric in run.metrics for run in case.runs):
                yield f"{case.case} {metric}", contrasts(case.runs, metric)


def positions(sessions: Sequence[Sequence[CalibratedCase]]) -> Mapping[str, Mapping[int, Effect]]:
    """Return by case and metric how each position differs; "first of all": of a session's first.

    "all cases" is the mean over the cases of a session, which share what the machine does.
    """
    found: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for cases in sessions:
        every = list(of_session(cases))
        for name, by_number in every:
            for number, value in by_number.items():
                found[name][number].append(value)
        numbers = sorted({number for _, one in every for number in one})
        for number in numbers:
            found["all cases"][number].append(fmean(o[number] for _, o in every if number in o))
        if every and 1 in every[0][1]:
            found["first of all"][1].append(every[0][1][1])
    return {name: {n: effect(x) for n, x in sorted(by.items())} for name, by in found.items()}


def main() -> None:
    """Print a table of Markdown."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("sessions", nargs="+", type=Path, help="folders of calibration sessions")
    parser.add_argument("--accelerator", default="cpu")
    parsed = parser.parse_args()
    found = positions([list(_cases(folder, parsed.accelerator)) for folder in parsed.sessions])
    most = max(n for by in found.values() for n in by)
    print("| case | sessions |" + "".join(f" run {n} |" for n in range(1, most + 1)))
    print("|---|---|" + "---|" * most)
    for name, by in found.items():
        cells = [_shown(by[n]) if n in by else "" for n in range(1, most + 1)]
        print(f"| {name} | {by[1].sessions if 1 in by else 0} | {' | '.join(cells)} |")


def _cases(folder: Path, accelerator: str) -> Iterator[CalibratedCase]:
    kept = calibration.load(calibration.file_in(folder, accelerator), accelerator)
    for machine in kept.machines if kept else ():
        yield from machine.cases


def _shown(one: Effect) -> str:
    return f"{100 * one.mean:+.1f} ± {100 * one.half:.1f} %"


if __name__ == "__main__":
    main()

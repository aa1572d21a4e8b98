"""Learn from the runs of a calibration, stored and fresh, and show or store what they tell."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_mlperf.case_runs import baseline_file, baselines_root, load_checked
from pytest_mlperf.cli.calibrate_page import Page
from pytest_mlperf.cli.output import show, width
from pytest_mlperf.core.baseline import find
from pytest_mlperf.core.calibration import Calibrated, merged, settings_of
from pytest_mlperf.core.judge.rule_r import Value
from pytest_mlperf.core.judge.ruling import values
from pytest_mlperf.core.noise import learn, uncalibrated
from pytest_mlperf.core.run_plan import most_runs
from pytest_mlperf.hardware.machine import Machine
from pytest_mlperf.reports.layout import fold
from pytest_mlperf.reports.selection import relative
from pytest_mlperf.stores import calibration
from pytest_mlperf.suite.plan import Planned


@dataclasses.dataclass(frozen=True, kw_only=True)
class Learning:
    """Where the runs of one accelerator are found and go.

    Attributes:
        file: Its calibration beside the baselines.
        accelerator: Class and count.
        planned: The cases that were named.
        machine: This machine.
        runs_dir: The runs folder.
        baselines: Folder of the baselines as named, or None.
    """

    file: Path
    accelerator: str
    planned: Sequence[Planned]
    machine: Machine
    runs_dir: Path
    baselines: Path | None


def learn_and_show(task: Learning, *, write: bool) -> bool:
    """Show what an accelerator's runs tell, and store it if asked to.

    Returns:
        Whether there is anything to learn from.

    Raises:
        BaselineError: A file is damaged or cannot be written.
    """
    file, accelerator = task.file, task.accelerator
    identity = task.machine.identity(accelerator)
    stored = calibration.load(file, accelerator)
    old = stored.of(identity) if stored else None
    found, notes = _together(old, task.runs_dir, accelerator, identity)
    show(line for note in notes for line in fold(note, width(), rest="  "))
    try:
        page = _page(task, found)
    except ValueError as error:
        show([f"{accelerator}: nothing learnt: {error}"])
        return False
    show(page.lines())
    whole = dataclasses.replace(found, settings=page.settings)
    if write:
        calibration.update(file, accelerator, lambda old: old.having(whole))
    show([f"{'wrote' if write else 'would write'} {relative(file)}"])
    return True


def _page(task: Learning, found: Calibrated) -> Page:
    """Return what is learnt from runs, with all that is said of it.

    Raises:
        ValueError: There are too few runs.
    """
    default = uncalibrated(task.accelerator)
    learnt = learn(found.series, default)
    samples = _baselines(task.planned, found.identity, task.baselines)
    gated = [
        (samples.get((case.case, series.metric), series.runs), case.limits[series.metric])
        for case in found.cases
        for series in case.series
    ]
    today = f"{dt.datetime.now(dt.UTC):%Y-%m-%d}"
    settings = settings_of(learnt, date=today, max_runs=most_runs(gated, learnt.noise))
    return Page(
        accelerator=task.accelerator,
        found=found,
        learnt=learnt,
        settings=settings,
        default=default,
        baselines=samples,
        width=width(),
    )


def _together(
    old: Calibrated | None, runs_dir: Path, accelerator: str, identity: Mapping[str, Any]
) -> tuple[Calibrated, tuple[str, ...]]:
    """Return the stored runs of this machine with those of the runs folder, oldest first."""
    cases = old.cases if old else ()
    notes: tuple[str, ...] = ()
    for path in sorted((runs_dir / "calibration").glob(f"*/{accelerator}.json")):
        kept = calibration.load(path, accelerator)
        newer = kept.of(identity) if kept else None
        cases, more = merged(cases, newer.cases if newer else ())
        notes += more
    return Calibrated(identity=dict(identity), settings=None, cases=cases), notes


def _baselines(
    planned: Sequence[Planned], identity: Mapping[str, Any], given: Path | None
) -> dict[tuple[str, str], Sequence[Value]]:
    """Return the baseline runs of this machine, by case and metric."""
    found: dict[tuple[str, str], Sequence[Value]] = {}
    for one in planned:
        root = baselines_root(given, one.path, one.suite.division)
        loaded = load_checked(baseline_file(root, one.case, one.suite.profile), one.case)
        record = find(loaded, identity) if loaded else None
        for metric in record.runs[0].metrics if record else ():
            assert record is not None
            found[one.case.id, metric] = values(record.runs, metric)
    return found

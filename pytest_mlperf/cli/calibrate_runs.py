"""Make the A/A runs of a calibration: fresh processes, in turns, each kept as it comes."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pytest_mlperf.core.calibration import (
    Calibrated,
    CalibratedCase,
    Calibration,
    CalibrationRun,
    merged,
)
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.judge.ruling import countable
from pytest_mlperf.core.measurement import Run, Subject
from pytest_mlperf.core.reason import measured_again
from pytest_mlperf.run.conditions import Conditions
from pytest_mlperf.run.measure import Process, measure
from pytest_mlperf.run.tries import INVALID_TRIES, Unjudgeable, valid_run
from pytest_mlperf.stores import calibration
from pytest_mlperf.suite.plan import Planned

_WAITING = ": waiting for "
"""What a line of progress holds while another process measures on the accelerator."""


@dataclass
class Repeated:
    """One case of a calibration; grows by one process at a time.

    Attributes:
        planned: The case.
        rate: Offered or expected rate, known after the first process at the latest.
        kept: Its runs of this session so far; None before the first.
        broken: Why it is given up; None: it is not.
        processes: Processes started, for their folders' names.
        invalid_runs: Runs that may not be judged.
    """

    planned: Planned
    rate: float | None = None
    kept: CalibratedCase | None = None
    broken: str | None = None
    processes: int = 0
    invalid_runs: list[Run] = field(default_factory=list)

    @property
    def gated(self) -> dict[str, float]:
        """The metrics whose noise matters, with their limits."""
        return {**self.planned.limits, **self.planned.efficiency_limits}

    @property
    def numbers(self) -> set[int]:
        """Numbers of the runs that are there."""
        return {run.number for run in self.kept.runs} if self.kept else set()


@dataclass
class Session:
    """The runs of one calibration session on this machine.

    Attributes:
        conditions: What all runs share.
        folder: Where they are kept, one file an accelerator.
        cases: The cases, in the order of the suites.
        say: Takes a line when a run is done or a case is given up.
        show: Takes a line of progress, many times.
    """

    conditions: Conditions
    folder: Path
    cases: list[Repeated]
    say: Callable[[str], None]
    show: Callable[[str], None]
    _waited_until: float = 0.0

    def resume(self) -> int:
        """Take the runs that this session has already; return how many.

        Raises:
            BaselineError: A file is damaged.
        """
        for case in self.cases:
            name = case.planned.case.accelerator
            found = calibration.load(calibration.file_in(self.folder, name), name)
            identity = self.conditions.machine.identity(name)
            machine = found.of(identity) if found else None
            for kept in machine.cases if machine else ():
                same = (case.planned.case.id, case.planned.suite.profile)
                if (kept.case, kept.profile) == same:
                    case.kept, case.rate = kept, kept.target_qps
        return sum(len(case.kept.runs) for case in self.cases if case.kept)

    def run(self, wanted: int) -> None:
        """Make the runs in turns: first run of every case, second run of every case, and so on.

        Args:
            wanted: Runs of each case.
        """
        total, done = wanted * len(self.cases), 0
        for number in range(1, wanted + 1):
            for case in self.cases:
                done += 1
                if case.broken or number in case.numbers:
                    continue
                before = len(case.invalid_runs)
                place = f"{done:>{len(str(total))}} of {total}  {case.planned.case.id}"
                try:
                    run, start_s, process = self._valid_run(case)
                except (MlperfError, _Unfit) as error:
                    case.broken = str(error)
                    self.say(f"{place}  given up: {error}")
                    continue
                self._keep(case, run, start_s, process, number)
                took = f"{run.duration_s:.1f} s, start-up {start_s:.1f} s"
                invalid = [one.invalid for one in case.invalid_runs[before:]]
                again = f"; {measured_again(invalid)}" if invalid else ""
                self.say(f"{place}  {took}{again}")

    def _valid_run(self, case: Repeated) -> tuple[Run, float, Process]:
        """Return a run that may be judged, what it cost beside its length, and its process."""
        tried: list[tuple[float, Process]] = []

        def attempt() -> Run:
            case.processes += 1
            began = self._waited_until = time.monotonic()
            process = measure(
                case.planned,
                self.conditions,
                self._shown,
                target_qps=case.rate,
                performance=True,
                ask=None,
                number=case.processes,
            )
            run = process.run
            assert run is not None
            seconds = time.monotonic() - max(began, self._waited_until) - run.duration_s
            tried.append((max(0.0, seconds), process))
            if process.probed:
                case.rate = process.target_qps
            if run.limit_missed:
                raise _Unfit(
                    f"its latency limit is missed at {run.target_qps:.4g}/s; a rate that the "
                    "engine cannot hold has no steady noise: lower target_qps"
                )
            return run

        try:
            run = valid_run(case, attempt)
        except Unjudgeable as error:
            raise _Unfit(f"INVALID {INVALID_TRIES} times: {error}") from None
        return run, *tried[-1]

    def _shown(self, line: str) -> None:
        if _WAITING in line:  # for another process's measurement: no cost of a run
            self._waited_until = time.monotonic()
        self.show(line)

    def _keep(
        self, case: Repeated, run: Run, start_s: float, process: Process, number: int
    ) -> None:
        """Add a run and write the accelerator's file, so that an interruption loses none."""
        planned = case.planned
        gated = {name for name in countable([run], case.gated) if name in run.metrics}
        fresh = CalibrationRun(
            number=number,
            session=self.conditions.session,
            started=run.started,
            metrics={name: run.metrics[name] for name in sorted(gated)},
            within_se={name: se for name, se in run.within_se.items() if name in gated},
            duration_s=run.duration_s,
            start_s=round(start_s, 3),
        )
        before = case.kept.runs if case.kept else ()
        kept = CalibratedCase(
            case=planned.case.id,
            profile=planned.suite.profile,
            what=digest(planned, process.subject),
            target_qps=process.target_qps,
            limits=case.gated,
            runs=(*before, fresh),
        )
        case.kept = kept
        name, identity = planned.case.accelerator, dict(process.subject.identity)

        def put(old: Calibration) -> Calibration:
            machine = old.of(identity) or Calibrated(identity=identity, settings=None, cases=())
            cases, _ = merged(machine.cases, [kept])
            return old.having(dataclasses.replace(machine, cases=cases))

        calibration.update(calibration.file_in(self.folder, name), name, put)


def digest(planned: Planned, subject: Subject) -> str:
    """Return what tells runs apart that do not belong together: engine, data, run length."""
    what = {**subject.fingerprint, "seconds": f"{planned.seconds_per_run:g}"}
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]


class _Unfit(Exception):
    """A case has no run that may be judged."""

"""Runs that a test states in place of worker processes, for rules about verdicts and reports."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import pytest

from pytest_mlperf.core.baseline import Property
from pytest_mlperf.core.job import Job
from pytest_mlperf.core.measurement import Accuracy, Run, Scored, Subject
from pytest_mlperf.core.reason import Reason
from pytest_mlperf.hardware import host
from pytest_mlperf.run.conditions import Conditions
from pytest_mlperf.run.measure import ProcessResult, ProcessTask
from tests.plugin.project import RATE

SAME = {"engine": "Acme", "engine.acme": "1.0"}


@dataclass
class Simulation:
    """Runs without a process: the rates of both builds in turn, and a log of the runs.

    Attributes:
        metrics: Metrics that have the rate as their value, such as times [s].
        queries: Queries of a run.
        invalid: Reasons why each run is INVALID.
        scores: Scores of the samples, in percent; None for no accuracy pass.
    """

    metrics: Sequence[str] = ("throughput",)
    queries: int = 1
    invalid: tuple[Reason, ...] = ()
    scores: Sequence[float] | None = None
    new_rates: Sequence[float] = (RATE, 1.01 * RATE)
    old_rates: Sequence[float] = (RATE, 1.01 * RATE)
    fingerprint: dict[str, str] = field(default_factory=lambda: dict(SAME))
    identity: dict[str, Property] = field(default_factory=dict)
    tasks: list[tuple[str, float]] = field(default_factory=list)
    jobs: list[tuple[str, Job]] = field(default_factory=list)
    titles: list[str] = field(default_factory=list)

    def measure(
        self, job: Job, conditions: Conditions, show: Callable[[str], None], task: ProcessTask
    ) -> ProcessResult:
        """Stand for `pytest_mlperf.run.measure.measure`."""
        del show
        folder = str(conditions.folder / f"{job.case.id}.{task.folder}" / "performance")
        accuracy = scored = None
        if task.ask and self.scores:
            mean, samples = fmean(self.scores), len(self.scores)
            accuracy = Accuracy(
                scores={"top1": mean}, samples=samples, total=samples, full=True, folder=folder
            )
            scored = Scored(
                indices=tuple(range(samples)),
                per_sample={"top1": self.scores},
                outputs=tuple(range(samples)),
            )
        self.jobs.append((task.label, job))
        self.titles.append(task.title)
        rates = self.old_rates if task.label else self.new_rates
        rate = rates[task.number % len(rates)] * (1 - conditions.handicap)
        self.tasks.append((task.folder, conditions.handicap))
        run = Run(
            metrics=dict.fromkeys(self.metrics, rate),
            within_se={},
            samples=64,
            queries=self.queries,
            duration_s=0.1,
            target_qps=RATE,
            session=conditions.session,
            started=dt.datetime.now(dt.UTC).isoformat("T", "seconds"),
            commit=None,
            folder=folder,
            invalid=self.invalid,
        )
        subject = Subject(identity=dict(self.identity), fingerprint=dict(self.fingerprint))
        return ProcessResult(
            run=run if task.performance else None,
            accuracy=accuracy,
            scored=scored,
            unscored=None,
            subject=subject,
            target_qps=RATE,
            probed=False,
        )


def null_engine(*rates: float) -> Simulation:
    """Return runs of the null engine on this machine, with these rates in turn."""
    return Simulation(
        new_rates=rates,
        old_rates=rates,
        fingerprint={"engine": "null"},
        identity=dict(host.identity()),
    )


def simulate(monkeypatch: pytest.MonkeyPatch, simulation: Simulation | None = None) -> Simulation:
    """Replace the measurement of every run in this process."""
    simulation = simulation or Simulation()
    monkeypatch.setattr("pytest_mlperf.bench.runner.measure", simulation.measure)
    return simulation

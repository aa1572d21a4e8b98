"""Run a pytest-benchmark test in its own pytest process, and read its times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.job import BenchmarkTest, MeasuredCase
from pytest_mlperf.core.measurement import Run, Subject
from pytest_mlperf.core.metrics import METRICS, OF_BENCHMARKS
from pytest_mlperf.core.numbers import MAX_RATE, MIN_RATE
from pytest_mlperf.run.child import events
from pytest_mlperf.run.child.process import Child
from pytest_mlperf.run.conditions import Conditions
from pytest_mlperf.run.figures import (
    Figures,
    Findings,
    clock_findings,
    load_findings,
    merged_fields,
)
from pytest_mlperf.run.reading import Evidence, TimedWindow, energy_findings, made_run

CHILD_SCRIPT, TASK = "plugin/benchmark_process", "benchmark"

ANSWER_SHAPE = {
    "times": events.record(**dict.fromkeys(OF_BENCHMARKS, events.is_duration)),
    "within_se": events.by_name(events.is_duration),
    "rounds": events.is_count,
    "iterations": events.is_count,
    "total_s": events.is_duration,
    "window_s": events.record(begin=events.is_duration, end=events.is_duration),
    "ended_s": events.is_duration,
    "contention": events.optional(events.CONTENTION),
    "clock_moved_s": events.is_number,
    "facts": events.by_name(events.is_text),
}


def benchmarked(
    test: BenchmarkTest, conditions: Conditions, folder: Path, show: Callable[[str], None]
) -> Evidence:
    """Run a test once; raise RunError if it failed, UnavailableError if it was skipped."""
    spec = {
        "task": TASK,
        "test": test.test,
        "file": test.file,
        "folder": test.folder,
        "options": dict(test.options),
        "results": str(folder),
        "handicap": conditions.handicap,
    }
    child = Child(
        title=TASK,
        folder=folder,
        script=CHILD_SCRIPT,
        spec=spec,
        answer=ANSWER_SHAPE,
        patience=conditions.patience,
        show=show,
        environment=conditions.machine.environment(test.accelerator),
        layer=TASK,
        whose=TASK,
    )
    finished = child.run()
    machine = conditions.machine
    return Evidence(
        loaded={},
        finished={**finished, "folder": str(folder)},
        subject=Subject(
            identity=machine.identity(test.accelerator),
            fingerprint={**test.facts, **finished["facts"]},
            surroundings=dict(machine.surroundings(test.accelerator)),
        ),
        target_qps=None,
        warm_s=finished["ended_s"],  # a test may open a GPU only in its call
        notes=(),
    )


def read_benchmark(evidence: Evidence, job: MeasuredCase, conditions: Conditions) -> Run | None:
    """Return a benchmark's measurements as a `Run`; None if the test recorded no times."""
    finished = evidence.finished
    if finished is None:
        return None
    for name, value in finished["times"].items():
        if not MIN_RATE <= value <= MAX_RATE:
            raise RunError(
                TASK,
                f"{METRICS[name].title} is {value!r} s by the test's own timer; it must be above "
                "0: let the timed code do more work, or correct the timer",
            )
    window = finished["window_s"]
    # The window is the test's call, without its set-up.
    timed = TimedWindow((window["begin"], window["end"]))
    figures = Figures(
        metrics=finished["times"],
        samples=finished["rounds"] * finished["iterations"],
        queries=finished["rounds"],
        duration_s=finished["total_s"],
    )
    load = load_findings(job, finished["contention"])
    clock = clock_findings(job, finished["clock_moved_s"], figures.duration_s)
    # The window also contains time between rounds, so that its energy per call is unknown.
    energy = [
        replace(one, metrics={})
        for one in energy_findings(
            evidence, job, conditions, timed, figures, finished["clock_moved_s"]
        )
    ]
    other_findings = Findings(notes=(*evidence.control.notes, *evidence.notes))
    within = {n: se for n, se in finished["within_se"].items() if n in job.limits}
    fields = merged_fields(figures, *energy, load, clock, other_findings)
    return made_run(evidence, job, conditions, **fields, within_se=within)

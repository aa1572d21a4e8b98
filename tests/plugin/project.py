"""A user's small project: its suites, its baselines, and the results of a pytest run."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.bench.case import baseline_file
from pytest_mlperf.core.baseline import Baseline, BaselineRun, HistoryEntry, Property, Record
from pytest_mlperf.core.case import Case, Scenario
from pytest_mlperf.core.results import CaseResult, Results
from pytest_mlperf.core.verdict import Verdict
from pytest_mlperf.hardware import host as cpu
from pytest_mlperf.judge.inputs import SessionNoise
from pytest_mlperf.stores import baselines
from pytest_mlperf.stores.results import read_results
from tests.sessions import SEEN, spread

SUITE = "suites/first.mlperf.toml"
PERFORMANCE = f"{SUITE}::test_performance[first-Offline-null-fp32-cpu]"
ACCURACY = f"{SUITE}::test_accuracy[first-Offline-null-fp32-cpu]"

RATE = 500.0
"""Samples per second of the null engine below: batches of 16 that sleep 32 ms, whatever the load
of the machine."""

OPTIONS = "{ latency_s = 0.002, batch_size = 16, threads = 1 }"

LIGHT = ("-p", "no:hypothesispytest", "-p", "no:anyio")
"""A process of its own starts in half the time without what no test here is about."""

OFFLINE = f"""
[[scenarios]]
name = "Offline"
target_qps = {RATE}
min_duration = "100ms"
"""

SERVER = """
[[scenarios]]
name = "Server"
target_qps = 20
latency_limit = "1s"
min_duration = "100ms"
"""


def newest_results(folder: Path) -> Path:
    """Return the results file written last; names of sessions of one second are in random order."""
    files = folder.glob(".mlperf/runs/*/results.json")
    return max(files, key=lambda file: file.stat().st_mtime_ns)


def near(value: float, runs: int = 8) -> list[float]:
    """Return values of quiet runs around one value."""
    return [value * (1 + 0.002 * (-1) ** i) for i in range(runs)]


def scattered(value: float, runs: int = 8) -> list[float]:
    """Return values of runs so noisy that nothing can be proven against them."""
    return [value * math.exp(0.8 * (-1) ** i) for i in range(runs)]


def case(**changes: Any) -> Case:
    """Return the case of the suites below."""
    usual = Case(
        workload="first",
        scenario=Scenario.OFFLINE,
        engine="null",
        precision="fp32",
        accelerator="cpu",
    )
    return dataclasses.replace(usual, **changes)


@dataclass(frozen=True)
class Project:
    """The folder in which pytester runs pytest."""

    pytester: pytest.Pytester

    @property
    def path(self) -> Path:
        """The root folder."""
        return self.pytester.path

    def suite(
        self,
        file: str = SUITE,
        *,
        name: str = "first",
        top1: float | None = None,
        engines: str | None = None,
        accelerators: Sequence[str] = ("cpu",),
        options: str = OPTIONS,
        scenarios: str = OFFLINE,
        more: str = "",
    ) -> Path:
        """Write a suite whose runs take some tenths of a second.

        Args:
            file: Path below the root folder.
            name: Workload name.
            top1: Reference score of the accuracy test; None leaves it out. The engine
                answers every sample rightly, so it reaches 100.
            engines: The `[[engines]]` tables; None writes one null engine.
            accelerators: Of that engine.
            options: Of that engine.
            scenarios: The `[[scenarios]]` tables.
            more: Appended.
        """
        scorer = f'\nscorer = {{ use = "top1" }}\nreference = {{ top1 = {top1} }}' if top1 else ""
        engines = engines or (
            f'[[engines]]\nuse = "null"\naccelerators = {json.dumps(list(accelerators))}\n'
            f"options = {options}\n"
        )
        limits = "" if "[limits]" in more else '[limits]\nthroughput = { max_drop = "40%" }\n'
        path = self.path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            f'schema = 1\nround = "v4.1"\n\n[workload]\nname = "{name}"\n'
            f'dataset = {{ use = "synthetic", samples = 32 }}{scorer}\n\n'
            f"{engines}\n{scenarios}\n{limits}\n{more}\n",
            "utf-8",
        )
        return path

    def baseline(
        self,
        values: Sequence[float],
        *,
        of: Case | None = None,
        metric: str = "throughput",
        target_qps: float = RATE,
        identity: Mapping[str, Property] | None = None,
        folder: str = "baselines",
        noise: SessionNoise | None = SEEN,
    ) -> Path:
        """Write a baseline of these runs: two a session, a session a day, the last one yesterday.

        Args:
            values: Of the runs.
            of: Whose.
            metric: Whose values they are.
            target_qps: The offered rate.
            identity: Of the machine; None uses this one's.
            folder: Of baselines.
            noise: Known variance between sessions; None if only these runs are known.
        """
        of, last = of or case(), (len(values) - 1) // 2
        time = dt.datetime.now(dt.UTC)
        record = Record(
            identity=dict(cpu.identity() if identity is None else identity),
            target_qps=target_qps,
            qps_source="suite",
            fingerprint={"engine": "null"},
            runs=tuple(
                BaselineRun(
                    metrics={metric: value},
                    within_se={},
                    session=f"session-{i // 2}",
                    started=(time - dt.timedelta(days=1 + last - i // 2)).isoformat("T", "seconds"),
                    samples=64,
                    duration_s=0.1,
                    commit="0123456789ab",
                )
                for i, value in enumerate(values)
            ),
            minimum_detectable_change={metric: 0.2},
            history=(
                HistoryEntry(
                    date="2026-11-01",
                    commit="0123456789ab",
                    reason="first baseline",
                    action="record",
                    runs=len(values),
                    old={},
                    new={metric: values[0]},
                ),
            ),
            session_noise={metric: noise} if noise else {},
        )
        path = baseline_file(self.path / folder, of, "quick")
        baselines.save(
            path,
            Baseline(
                round="v4.1",
                profile="quick",
                workload=of.workload,
                scenario=of.scenario,
                engine=of.engine,
                precision=of.precision,
                accelerator=of.accelerator,
                records=(record,),
            ),
        )
        return path

    def run(self, *arguments: str | Path) -> pytest.RunResult:
        """Run pytest in this process, with workers in real processes."""
        return self.pytester.runpytest_inprocess(*arguments)

    def run_process(self, *arguments: str | Path) -> pytest.RunResult:
        """Run pytest in a process of its own."""
        return self.pytester.runpytest_subprocess(*LIGHT, *arguments)

    def record(self, *arguments: str | Path, own_process: bool = False) -> pytest.RunResult:
        """Record baselines; if load disturbed the runs, record again, as the message asks."""
        run = self.run_process if own_process else self.run
        for last in (False, False, True):
            result = run(*arguments, "--mlperf-update=missing", "-omlperf_baseline_runs=1")
            if last or "the machine was disturbed" not in result.stdout.str():
                break
        return result

    def over_days(self) -> None:
        """Make every baseline here one of eight runs in four sessions: see `tests.sessions`.

        What was recorded is repeated, a little faster and a little slower in turn.
        """
        for file in self.path.glob("baselines/*/quick/*/*.json"):
            loaded = baselines.load(file)
            assert loaded is not None
            records = []
            for record in loaded.records:
                runs = tuple(
                    dataclasses.replace(
                        run,
                        metrics={m: v * (1 + 0.002 * (-1) ** i) for m, v in run.metrics.items()},
                    )
                    for i, run in enumerate((record.runs * 8)[:8])
                )
                records.append(dataclasses.replace(record, runs=runs))
            baselines.save(file, dataclasses.replace(loaded, records=tuple(records)))
            spread(file)

    def breaks(self, of: Case | None = None) -> None:
        """Make a case an ERROR that costs no measurement: its baseline is damaged."""
        self.baseline(near(RATE), of=of).write_text("{", "utf-8")

    def results(self) -> Results:
        """Return the results of the only run so far."""
        (file,) = self.path.glob(".mlperf/runs/*/results.json")
        return read_results(file)

    def cases(self) -> dict[str, CaseResult]:
        """Return the results of the only run so far by kind."""
        return {result.verdict.kind: result for result in self.results().cases}

    def verdicts(self, file: str | None = None) -> dict[str, Verdict]:
        """Return the verdicts of the only run so far, or of a results file, by kind."""
        results = read_results(self.path / file) if file else self.results()
        return {result.verdict.kind: result.verdict for result in results.cases}

    def run_folders(self) -> list[Path]:
        """Return the folders of all worker processes so far, oldest first."""
        files = self.path.glob(".mlperf/runs/*/*/spec.json")
        return [file.parent for file in sorted(files, key=lambda file: file.stat().st_mtime_ns)]

    def baseline_file(self, of: Case | None = None) -> Path:
        """Return where the baseline of a case is kept."""
        return baseline_file(self.path / "baselines", of or case(), "quick")

    def recorded(self, of: Case | None = None) -> Record:
        """Return the only record of a case's baseline."""
        loaded = baselines.load(self.baseline_file(of))
        assert loaded is not None
        (record,) = loaded.records
        return record


def a_day_earlier(file: Path) -> None:
    """Move the runs of a session to the day before."""
    text, today = file.read_text("utf-8"), dt.datetime.now(dt.UTC).date()
    for day in (today, today - dt.timedelta(days=1)):  # a session may end after midnight
        text = text.replace(f"{day}T", f"{day - dt.timedelta(days=2)}T")
    file.write_text(text, "utf-8")


def spec_of(folder: Path) -> dict[str, Any]:
    """Return the specification of a worker."""
    spec: dict[str, Any] = json.loads((folder / "spec.json").read_text("utf-8"))
    return spec


def literal(text: str) -> str:
    """Return a pattern for `fnmatch_lines` that matches a node id."""
    return text.replace("[", "[[]")


def last_line(result: pytest.RunResult) -> str:
    """Return pytest's own line of counts, without its frame and time."""
    line = next(text for text in reversed(result.outlines) if " in " in text and "s" in text)
    return line.strip("= ").rpartition(" in ")[0]


def section(result: pytest.RunResult) -> list[str]:
    """Return the lines of the mlperf section of the terminal summary."""
    lines = iter(result.outlines)
    for line in lines:
        if line.strip("=") == " mlperf ":
            break
    lines_of_section = []
    for line in lines:
        if line.startswith("===") or re.search(r" in \d+\.\d+s", line):
            break
        lines_of_section.append(line)
    return lines_of_section

"""Create the `Bench` of a session from its options, and show its progress."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Self, TypeVar

import pytest

from pytest_mlperf.bench.against import MOST_PAIRS
from pytest_mlperf.bench.bench import Bench
from pytest_mlperf.bench.policy import Policy, gated_pairs
from pytest_mlperf.core.case import Kind
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.numbers import duration, plural
from pytest_mlperf.core.paths import placeless
from pytest_mlperf.core.untrusted_text import encodable, visible
from pytest_mlperf.hardware.machine import Machine
from pytest_mlperf.plugin.options import Options, is_value_of
from pytest_mlperf.plugin.report_json import emit_line
from pytest_mlperf.run import conditions
from pytest_mlperf.run.child.process import Patience, Waiting
from pytest_mlperf.run.power.exporter import find_exporter
from pytest_mlperf.run.power.figures import Meter
from pytest_mlperf.stores.results import read_manifest
from pytest_mlperf.suite.environments import parse_against
from pytest_mlperf.suite.pairs import Testable

HEARTBEAT_S = 60.0
"""Interval of progress lines if the output is not a terminal, such as a CI log [s]."""

RENEWAL_SECONDS = 0.5

MIN_NOTED_SECONDS = 5.0
WORKER = "PYTEST_XDIST_WORKER"

T = TypeVar("T")


class Live:
    """Write progress lines despite pytest's capture; an xdist worker reports only long waits.

    Attributes:
        seconds: Minimum planned duration [s] of each case, by suite file and case id.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._capture: Any = config.pluginmanager.getplugin("capturemanager")
        reporter: Any = config.pluginmanager.getplugin("terminalreporter")
        worker = hasattr(config, "workerinput")
        quiet = config.get_verbosity() < 0
        self._writer: Any = None if worker or quiet or reporter is None else reporter._tw
        self._on_terminal = bool(reporter and reporter.isatty) and not worker
        self._hook = config.hook if worker and WORKER in os.environ else None
        self._last = self._calm = 0.0
        self._shown = False
        self.seconds: dict[tuple[Path, str], float] = {}
        self._begun: dict[tuple[Path, str], float] = {}

    @property
    def columns(self) -> int:
        """The terminal's width, determined outside pytest's capture; 80 without a terminal."""
        with self._uncaptured():
            return int(self._writer.fullwidth) if self._writer else 80

    def estimate(self) -> list[str]:
        """Return a line with the number and minimum duration of planned cases; [] without cases."""
        if not self.seconds:
            return []
        least = duration(sum(self.seconds.values()))
        return [
            f"mlperf: {plural(len(self.seconds), 'case')}, at least {least}; loading, accuracy "
            "passes and further runs come on top"
        ]

    def begin(self, planned: Testable) -> None:
        """Record the start time of a case's measurement."""
        self._begun.setdefault((planned.path, planned.case.id), time.monotonic())

    def _position(self) -> str:
        if len(self.seconds) < len(self._begun) or not self._begun:
            return ""
        begun = list(self._begun.values())
        passed = sum(self.seconds[key] for key in list(self._begun)[:-1])
        pace = max(begun[-1] - begun[0], 1e-3) / passed if passed else 1.0
        spent = passed + min(
            (time.monotonic() - begun[-1]) / pace, self.seconds[[*self._begun][-1]]
        )
        left_s = (sum(self.seconds.values()) - spent) * pace
        about = "about" if passed else "at least"
        left = f", {about} {duration(left_s)} left" if left_s >= 1 else ""
        return f"case {len(begun)} of {len(self.seconds)}{left}: "

    def __enter__(self) -> Self:
        self._last = self._calm = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            self._write(f"\r\x1b[K\x1b[A\x1b[{self._writer.width_of_current_line + 1}G")
            self._shown = False

    def show(self, line: str) -> None:
        """Show a progress line if the minimum interval since the last one has passed."""
        time_s = time.monotonic()
        if not isinstance(line, Waiting):
            self._calm = time_s
        elif time_s - self._calm >= MIN_NOTED_SECONDS and not self._on_terminal:
            self._calm = math.inf  # each wait is told once
            self.tell(line)
        interval = RENEWAL_SECONDS if self._on_terminal else HEARTBEAT_S
        if self._writer is None or time_s - self._last < interval:
            return
        self._last, line = time_s, visible(f"{self._position()}{line}")
        if self._on_terminal:
            width = self.columns - 1
            self._write(("\r\x1b[K" if self._shown else "\n") + line[:width])
            self._shown = True
        else:
            self.tell(line)

    def tell(self, line: str) -> None:
        """Write a line that stays visible; an xdist worker sends it to its controller."""
        if self._hook:
            nodeid = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
            emit_line(self._hook, nodeid, f"{os.environ[WORKER]}: {line}")
        elif self._writer:
            self._last = time.monotonic()
            self._write(f"\nmlperf: {visible(line)}\n")

    def _write(self, text: str) -> None:
        with self._uncaptured():
            self._writer._file.write(text)
            self._writer._file.flush()

    def _uncaptured(self) -> AbstractContextManager[None]:
        capture = self._capture
        return capture.global_and_fixture_disabled() if capture else nullcontext()


def most_runs(options: Options) -> int:
    """Return the maximum number of runs of a case, or of pairs of runs with --mlperf-against."""
    return max(options.max_runs, MOST_PAIRS) if options.against else options.max_runs


def bench_for(
    options: Options,
    folder: Path,
    *,
    commit: str | None,
    machine: Machine,
    root: Path,
    show: Callable[[str], None],
    judged_pairs: int = 1,
) -> Bench:
    """Create the `Bench` of a session that judges `judged_pairs` pairs (case, gated metric)."""
    against = parse_against(options.against) if options.against else None
    pairs = most_runs(options)
    of_runs = conditions.Conditions(
        folder=folder,
        session=folder.name,
        commit=commit,
        handicap=options.handicap,
        requests=options.requests == "yes",
        patience=Patience(progress_s=options.conditions.timeout),
        lease_limit_s=options.conditions.lease_timeout,
        machine=machine,
        power=options.energy.power != "off",
        meter=Meter(path=options.energy.meter, offset_s=options.energy.meter_offset)
        if options.energy.meter
        else None,
        exporter=find_exporter(options.energy.dcgm, options.energy.dcgm_gpus)
        if options.energy.dcgm
        else None,
        control=options.conditions.control != "off" and not against,  # the machine's speed cancels
        watched=options.conditions.control != "off",
        idle=conditions.IdleWait(options.conditions.wait_idle),
        warmups=conditions.WarmUps(options.conditions.warmup, folder / conditions.WARM_FOLDER),
        lost=conditions.LostGpus(folder / conditions.LOST_FOLDER),
        max_runs=pairs if options.update is None else None,
    )
    policy = Policy(
        update=options.update,
        baseline_runs=options.baseline_runs,
        reason=options.reason,
        max_runs=pairs,
        confirm=options.confirm,
        baselines=options.baselines,
        accuracy=options.runs_dir / "accuracy",
        root=root,
        runs_dir=options.runs_dir,
        accept_cut=options.accepted.accept_cut == "yes",
        accept_regression=options.accepted.accept_regression == "yes",
        against=against,
        judged_pairs=judged_pairs,
    )
    return Bench(of_runs, policy, show)


def pairs_of(planned: Testable, kind: Kind, options: Options) -> int:
    """Return how many gated (case, metric) pairs one test adds to the session."""
    if options.plan or options.update in {"replace", "append"}:
        return 0  # nothing is judged against a baseline
    return gated_pairs(planned, kind, power=options.energy.power != "off", meter=options.metered)


def planned_pairs(manifest: Path, tests: Collection[str], pairs: int) -> int:
    """Return the plan's number of gated (case, metric) pairs, but at least `pairs`.

    `pairs` counts those of `tests`. UsageError: `manifest` is not a plan, or lacks one of `tests`.
    """
    try:
        plan = read_manifest(manifest)
    except MlperfError as error:
        raise pytest.UsageError(f"--mlperf-manifest: {error}") from None
    planned = {one.test for one in plan.tests}
    if unplanned := [test for test in tests if test not in planned]:
        more = f" and {len(unplanned) - 1} more" if len(unplanned) > 1 else ""
        raise pytest.UsageError(
            f"--mlperf-manifest: {manifest} does not contain {unplanned[0]}{more}; create it "
            "again: "
            f"pytest-mlperf plan SUITES --format json > {manifest}"
        )
    return max(pairs, plan.pairs)


def with_relative_paths(root: Path, value: T) -> T:
    """Make the paths in a value relative to `root`, as results must not disclose other folders."""
    return encodable(placeless(value, (str(root.resolve()), str(root)), str(Path.home())))


_NOT_REPRODUCED = tuple(
    f"--mlperf-{name}"
    for name in ("update", "accept", "reason", "json", "report", "plan", "resume", "sign", "store")
)

OVERRIDES = ("-o", "--override-ini")
"""Pytest's options that override a setting of an ini file."""


def reproducing(arguments: Iterable[str]) -> tuple[str, ...]:
    """Return the arguments that repeat a measurement, without options that write baselines."""
    kept: list[str] = []
    option = ""  # whose value may follow
    for argument in map(str, arguments):
        name, option = option, ""
        setting = re.fullmatch(r"(?:--override-ini=|-o=?)(.+)", argument)
        if name in OVERRIDES or setting:
            kept += _override(setting[1] if setting and name not in OVERRIDES else argument)
        elif argument in OVERRIDES:
            option = argument
        elif is_value_of(name, argument) and not argument.startswith("-"):
            kept.append(argument)
        elif argument.startswith("--mlperf-") and not argument.startswith(_NOT_REPRODUCED):
            kept.append(argument)
            option = "" if "=" in argument else argument
    return tuple(kept)


def _override(setting: str) -> list[str]:
    recording = {option.removeprefix("--").replace("-", "_") for option in _NOT_REPRODUCED}
    name = setting.partition("=")[0].strip()
    return ["-o", setting] if name.startswith("mlperf_") and name not in recording else []

"""Plan a pytest-benchmark test as a case."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from pytest_mlperf.core.case import NAME_PATTERN, Case, Division, Kind, Profile, Scenario
from pytest_mlperf.core.job import BenchmarkTest
from pytest_mlperf.suite.tables import ExpectedFailure

BENCHMARK_USE = "pytest-benchmark"

PRECISION = "any"
"""Precision of a benchmark whose marker names none."""

MAX_NAME_CHARACTERS = 80
"""Maximum length of a name, because paths of a run contain two names and more."""


@dataclass(frozen=True)
class NoSuite:
    """Replace `Suite` for a pytest-benchmark test, which belongs to no suite."""

    round: str = "none"
    profile: Profile = "quick"
    division: Division = "closed"
    rules: None = None
    min_official_share: None = None
    gaps: tuple[str, ...] = ()
    expected_failures: tuple[ExpectedFailure, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class PlannedBenchmark:
    """Hold a pytest-benchmark test that is judged as a case; attributes are those of `Planned`."""

    job: BenchmarkTest
    path: Path
    line: int
    suite: NoSuite = NoSuite()
    kinds: tuple[Kind, ...] = (Kind.PERFORMANCE,)
    fewest_runs: int = 1
    runs_per_value: tuple[int, int] = (1, 1)
    techniques: tuple[str, ...] = ()
    elsewhere: str = ""
    harness: str = ""
    scorer_name: str = ""
    limit_w: None = None
    find: None = None
    baseline_engine: None = None
    efficiency_limits: Mapping[str, float] = field(default_factory=dict)

    @property
    def case(self) -> Case:
        """Case with the test's file as workload and its name as engine."""
        return self.job.case

    @property
    def accelerators(self) -> tuple[str, ...]:
        """Accelerators that must be present."""
        return (self.case.accelerator,)

    @property
    def limits(self) -> Mapping[str, float]:
        """Largest tolerated increase of the judged time, as a share, by metric."""
        return self.job.limits

    @property
    def seconds_per_run(self) -> float:
        """Planned length of the timed part of one run [s]."""
        return self.job.seconds_per_run


def benchmark_case(test: str, *, accelerator: str, precision: str) -> Case:
    """Return the case of a test, by its node id."""
    file, _, name = test.partition("::")
    return Case(
        workload=_name(str(PurePosixPath(file)).replace("/", ".")),
        scenario=Scenario.BENCHMARK,
        engine=_name(name.replace("::", ".").replace("[", "-", 1).removesuffix("]")),
        precision=precision,
        accelerator=accelerator,
    )


def _name(text: str) -> str:
    if NAME_PATTERN.fullmatch(text) and len(text) <= MAX_NAME_CHARACTERS:
        return text
    words = "-".join(re.findall(r"[A-Za-z0-9._+]+", text))
    words = words.lstrip("-._+")[:MAX_NAME_CHARACTERS].rstrip("-")
    digest = hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:8]
    return f"{words}-{digest}" if words else digest

"""Plan a pytest-benchmark test as a case."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path, PurePosixPath

from pytest_mlperf.core.case import NAME_PATTERN, Case
from pytest_mlperf.core.job import BenchmarkTest, Expected, Factory, Job, LoadGenSettings, Seeds
from pytest_mlperf.core.scenario import Scenario
from pytest_mlperf.suite.model import Suite
from pytest_mlperf.suite.plan import Planned

BENCHMARK_USE = "pytest-benchmark"

PRECISION = "any"
"""Precision of a benchmark whose marker names none."""

NO_ROUND = "none"

MAX_NAME_CHARACTERS = 80
"""Maximum length of a name, because paths of a run contain two names and more."""


def plan_benchmark(
    test: BenchmarkTest, *, root: Path, line: int, accelerator: str, precision: str
) -> Planned:
    """Return a test as a case: its file is the workload, the test is the engine."""
    file, _, name = test.test.partition("::")
    workload = _name(str(PurePosixPath(file)).replace("/", "."))
    engine = _name(name.replace("::", ".").replace("[", "-", 1).removesuffix("]"))
    entry = {
        "use": BENCHMARK_USE,
        "name": engine,
        "precision": precision,
        "accelerators": [accelerator],
    }
    content = {
        "schema": 1,
        "round": "v4.1",
        "workload": {"name": workload, "dataset": {"use": "synthetic"}},
        "engines": [entry],
        "scenarios": [{"name": "SingleStream"}],
    }
    suite = Suite.model_validate(content)
    # Suites cannot contain these values, but readers of a case expect a suite's tables.
    scenario = suite.scenarios[0].model_copy(update={"name": "Benchmark"})
    suite = suite.model_copy(update={"round": NO_ROUND, "scenarios": [scenario]})
    return Planned(
        case=Case(
            workload=workload,
            scenario=Scenario.BENCHMARK,
            engine=engine,
            precision=precision,
            accelerator=accelerator,
        ),
        suite=suite,
        path=root / file,
        line=line,
        index=0,
        engine=suite.engines[0],
        scenario=scenario,
        benchmark=test,
    )


def _name(text: str) -> str:
    """Return a text as a legal file name; a digest replaces lost characters."""
    if NAME_PATTERN.fullmatch(text) and len(text) <= MAX_NAME_CHARACTERS:
        return text
    words = "-".join(re.findall(r"[A-Za-z0-9._+]+", text))
    words = words.lstrip("-._+")[:MAX_NAME_CHARACTERS].rstrip("-")
    digest = hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:8]
    return f"{words}-{digest}" if words else digest


def benchmark_job(planned: Planned) -> Job:
    """Return the job of a benchmark: the test, and unused settings of LoadGen."""
    assert planned.benchmark is not None
    nothing = Factory(target=BENCHMARK_USE)
    settings = LoadGenSettings(
        scenario=Scenario.SINGLE_STREAM,
        seeds=Seeds(qsl=0, sample_index=0, schedule=0),
        min_duration_ms=0,
        min_query_count=0,
        performance_samples=0,
    )
    return Job(
        case=planned.case,
        engine=nothing,
        dataset=nothing,
        engine_use=BENCHMARK_USE,
        model=None,
        elsewhere=None,
        build=None,
        expected=Expected(),
        settings=settings,
        seconds_per_run=planned.seconds_per_run,
        find=None,
        limits=planned.limits,
        latency_limits={},
        techniques=(),
        gpu=None,
        work=None,
        price=None,
        replicas=1,
        facts={"engine": BENCHMARK_USE},
        benchmark=planned.benchmark,
    )

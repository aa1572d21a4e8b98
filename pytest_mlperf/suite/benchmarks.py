"""A test with pytest-benchmark as a case: its name, and what its runs need."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path, PurePosixPath

from pytest_mlperf.core.case import NAME_PATTERN, Case
from pytest_mlperf.core.job import BenchmarkTest, Expected, Factory, Job, LoadGenSettings, Seeds
from pytest_mlperf.suite.model import Suite
from pytest_mlperf.suite.plan import Planned

BENCHMARK_USE = "pytest-benchmark"

PRECISION = "any"
"""A benchmark has no precision that anybody knows of, unless its marker says one."""

NO_ROUND = "none"
"""A benchmark is of no round of MLPerf."""

MAX_NAME_CHARACTERS = 80
"""Characters of a name: folders and files of a run carry two of them, and something on top."""


def plan_benchmark(
    test: BenchmarkTest, *, root: Path, line: int, accelerator: str, precision: str
) -> Planned:
    """Return a test as a case: its file is the workload, the test in it the engine.

    Args:
        root: Pytest's root folder.
        line: Of the test in its file, from 1 on.
    """
    place, _, name = test.test.partition("::")
    workload = _name(str(PurePosixPath(place)).replace("/", "."))
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
    # What no suite may say: the tables are those of suites all the same, as whoever reads a case
    # reads them.
    scenario = suite.scenarios[0].model_copy(update={"name": "Benchmark"})
    suite = suite.model_copy(update={"round": NO_ROUND, "scenarios": [scenario]})
    return Planned(
        case=Case(
            workload=workload,
            scenario="Benchmark",
            engine=engine,
            precision=precision,
            accelerator=accelerator,
        ),
        suite=suite,
        path=root / place,
        line=line,
        index=0,
        engine=suite.engines[0],
        scenario=scenario,
        benchmark=test,
    )


def _name(text: str) -> str:
    """Return a text as a name that files may have; what it loses, a digest of it replaces."""
    if NAME_PATTERN.fullmatch(text) and len(text) <= MAX_NAME_CHARACTERS:
        return text
    words = "-".join(re.findall(r"[A-Za-z0-9._+]+", text))
    words = words.lstrip("-._+")[:MAX_NAME_CHARACTERS].rstrip("-")
    digest = hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:8]
    return f"{words}-{digest}" if words else digest


def benchmark_job(planned: Planned) -> Job:
    """Return what the runs of a benchmark need: the test, and nothing that LoadGen would ask."""
    assert planned.benchmark is not None
    nothing = Factory(target=BENCHMARK_USE)
    settings = LoadGenSettings(
        scenario="SingleStream",
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

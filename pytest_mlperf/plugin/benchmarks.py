"""Judge tests that use pytest-benchmark's fixture."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest

from pytest_mlperf.core.case import same_file_key
from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.core.job import BenchmarkTest
from pytest_mlperf.core.metrics import METRICS, OF_BENCHMARKS
from pytest_mlperf.core.numbers import plural
from pytest_mlperf.core.untrusted_text import nearest, visible
from pytest_mlperf.plugin.benchmark_process import packed
from pytest_mlperf.plugin.options import Options
from pytest_mlperf.plugin.report_json import PLANNED
from pytest_mlperf.suite.benchmarks import (
    BENCHMARK_USE,
    PRECISION,
    PlannedBenchmark,
    benchmark_case,
)
from pytest_mlperf.suite.values import checked_accelerator, checked_name, share

FIXTURE = "benchmark"

BENCHMARK_MARKER = "mlperf_benchmark"

METRIC = {name.removeprefix("time_"): name for name in OF_BENCHMARKS}
"""Judged metric by the name of pytest-benchmark's statistic."""

_NONE = (
    "numprocesses maxprocesses deselect xmlpath htmlpath report_log pastebin benchmark_json "
    "benchmark_save benchmark_compare benchmark_compare_fail benchmark_autosave "
    "benchmark_histogram benchmark_cprofile"
)
_NO = (
    "distload collectonly lf failedfirst newfirst stepwise stepwise_skip usepdb trace "
    "json_report benchmark_disable benchmark_skip benchmark_only mlperf_plan"
)
RUN_OPTIONS: Mapping[str, Any] = {
    **dict.fromkeys(_NONE.split()),
    **dict.fromkeys(_NO.split(), False),
    "dist": "no",
    "tx": [],
    "keyword": "",
    "markexpr": "",
    "maxfail": 0,
    "verbose": 0,
    "reruns": 0,
    "count": 1,
    "cov_source": [],
    "no_cov": True,
    "benchmark_cprofile_dump": [],
    "mlperf_judge_benchmarks": "no",
}
"""Options that differ from the session's in the pytest of a run: it runs one test in one process,
writes none of the session's files, and traces nothing during timing."""


def take_over(config: pytest.Config, items: list[pytest.Item], options: Options) -> str:
    """Turn each test with pytest-benchmark's fixture into a judged case, run in child processes.

    Returns a sentence about the benchmarks if they are disabled and stay ordinary tests, else "".
    """
    tests = [
        item
        for item in items
        if isinstance(item, pytest.Function)
        and FIXTURE in item.fixturenames
        and "mlperf" not in item.fixturenames
    ]
    option = config.option
    off = option.benchmark_disable and not option.benchmark_enable
    if tests and (off or option.benchmark_skip):
        cause = "--benchmark-disable is set; leave it out, or add --benchmark-enable"
        if option.benchmark_skip:
            cause = "--benchmark-skip is set; leave it out"
        return f"{plural(len(tests), 'benchmark')} not judged: {cause}"
    shared = _options(config)
    files: dict[str, str] = {}
    for item in tests:
        try:
            planned = _planned(item, config, options, shared)
        except SuiteError as error:
            raise pytest.UsageError(visible(f"{item.nodeid}: {error}")) from None
        taken = files.setdefault(same_file_key(f"{planned.path}/{planned.case.id}"), item.nodeid)
        if taken != item.nodeid:
            raise pytest.UsageError(
                visible(f"{item.nodeid} and {taken} would share a baseline; rename one")
            )
        item.stash[PLANNED] = planned
        # In place of those of the test, which belong to the processes of its runs.
        item.fixturenames = ["mlperf"]
    return ""


def _options(config: pytest.Config) -> dict[str, str]:
    values = {name: value for name, value in vars(config.option).items() if name != "file_or_dir"}
    values |= {name: value for name, value in RUN_OPTIONS.items() if name in values}
    values["rootdir"] = str(config.rootpath)
    if config.inipath:
        values["inifilename"] = str(config.inipath)
    if values.get("basetemp"):
        values["basetemp"] = None  # that pytest would empty the session's own
    options = {}
    for name, value in values.items():
        with suppress(Exception):  # whatever a plugin of somebody keeps there
            options[name] = packed(value)
    return options


def _planned(
    item: pytest.Function, config: pytest.Config, options: Options, shared: Mapping[str, str]
) -> PlannedBenchmark:
    marked = _marked(item)
    metric = marked.get("metric", options.benchmarks.benchmark_metric)
    accelerator = marked.get("accelerator", options.benchmarks.benchmark_accelerator)
    if metric not in METRIC:
        raise SuiteError(f"{BENCHMARK_MARKER}: no metric {metric!r}{nearest(str(metric), METRIC)}")
    name = METRIC[metric]
    rise = marked.get("max_rise", options.benchmarks.benchmark_max_rise)
    try:
        limit = METRICS[name].limit if rise is None else share(rise)
        accelerator = checked_accelerator(accelerator)
        precision = checked_name(marked.get("precision", PRECISION))
    except (TypeError, ValueError) as error:
        raise SuiteError(f"{BENCHMARK_MARKER}: {error}") from None
    marker = item.get_closest_marker(FIXTURE)
    seconds = marker.kwargs.get("max_time") if marker else None
    test = BenchmarkTest(
        case=benchmark_case(item.nodeid, accelerator=accelerator, precision=precision),
        engine_use=BENCHMARK_USE,
        facts={"engine": BENCHMARK_USE},
        test=item.nodeid,
        file=str(item.path),
        folder=str(config.invocation_params.dir),
        options=shared,
        limits={name: limit},
        seconds_per_run=float(seconds or config.option.benchmark_max_time),
    )
    file = item.nodeid.partition("::")[0]
    return PlannedBenchmark(job=test, path=config.rootpath / file, line=(item.location[1] or 0) + 1)


def _marked(item: pytest.Function) -> Mapping[str, Any]:
    marked: dict[str, Any] = {}
    for marker in item.iter_markers(BENCHMARK_MARKER):
        keys = ("max_rise", "metric", "accelerator", "precision")
        if marker.args:
            raise SuiteError(f'{BENCHMARK_MARKER}: use keyword arguments only, e.g. max_rise="5%"')
        for key in [key for key in marker.kwargs if key not in keys]:
            raise SuiteError(f"{BENCHMARK_MARKER}: unknown argument {key!r}{nearest(key, keys)}")
        marked = {**marker.kwargs, **marked}
    return marked

"""Run one test with pytest-benchmark, as `python -m ...benchmark_process SPEC.json`.

It starts pytest for this test only, with the session's options, and sends events to stdout.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import statistics
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.core.errors import RunError, UnavailableError
from pytest_mlperf.hardware.contention import ContentionMonitor, Window
from pytest_mlperf.plugin.options import RUN_OF_BENCHMARK
from pytest_mlperf.run.child.reporter import Reporter, guard_group, leave, one_line

LAYER = "benchmark"

SESSIONS = ("PYTEST_XDIST_", "PYTEST_CURRENT_TEST", "COV_CORE_")
"""Prefixes of variables that mark processes of a session; a run must not inherit them."""

BATCHES = 10
"""Number of batches of consecutive rounds, whose times may be correlated."""


def main(file: str) -> None:
    """Run the test that a JSON spec file names, and send its times."""
    sys.stdout.flush()
    events = os.dup(1)
    os.dup2(2, 1)
    spec = json.loads(Path(file).read_text("utf-8"))
    guard_group()
    reporter = Reporter(events)
    with reporter.blaming(LAYER):
        for name in [name for name in os.environ if name.startswith(SESSIONS)]:
            del os.environ[name]
        os.chdir(spec["folder"])
        sys.path[:] = spec["import_path"]
        reporter.event("done", **run(spec))
    leave(0)


def run(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Run a test and return its times; raise UnavailableError if skipped, RunError if it fails."""
    options = {name: unpacked(value) for name, value in spec["options"].items()}
    # What this pytest remembers of tests that failed is none of the user's business.
    cache = f"cache_dir={spec['results']}/cache"
    # As the workers of pytest-xdist are made: options as they were parsed, and no line of words.
    # This package is imported already, which pytest would warn of.
    quiet = "ignore::pytest.PytestAssertRewriteWarning"
    config = pytest.Config.fromdictargs(options, ["-o", cache, "-W", quiet, spec["file"]])
    test = _OneTest(spec["test"], spec["handicap"])
    config.pluginmanager.register(test, RUN_OF_BENCHMARK)
    return test.answer(int(config.hook.pytest_cmdline_main(config=config)))


class _OneTest:
    """Run only one test of a pytest session, and store the times of its `benchmark` fixture."""

    def __init__(self, test: str, handicap: float) -> None:
        self._test = test
        self._handicap = handicap
        self._window = Window(ContentionMonitor(os.getpid()))
        self._call: dict[str, Any] = {}
        self._broke = ""
        self._skipped: str | None = None
        self._stats: Any = None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        others = [item for item in items if item.nodeid != self._test]
        items[:] = [item for item in items if item.nodeid == self._test]
        if others:
            config.hook.pytest_deselected(items=others)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            lines = [line.strip() for line in str(report.longrepr).splitlines() if line.strip()]
            self._broke = f"{report.nodeid} cannot be collected: {lines[-1] if lines else ''}"

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        """Record the processor's load during the test, without set-up and teardown."""
        fixture = getattr(item, "funcargs", {}).get("benchmark")
        if self._handicap and fixture is not None:
            slow(fixture, self._handicap)
        self._window.read_edge()
        begin = time.time()
        try:
            return (yield)
        finally:
            window = {"begin": begin, "end": time.time()}
            self._call = {"window_s": window, "ended_s": time.monotonic()}
            self._window.read_edge()
            self._stats = getattr(fixture, "stats", None)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.excinfo is not None and not self._broke:
            error = call.excinfo.value
            if isinstance(error, pytest.skip.Exception):
                self._skipped = str(error.msg)
            else:
                self._broke = f"the test failed in its {call.when}: {one_line(error)}"
        return report

    def answer(self, code: int) -> dict[str, Any]:
        """Return a test's times and statistics, or raise its error; `code`: pytest's exit code."""
        if self._broke:
            raise RunError(LAYER, self._broke)
        if self._skipped is not None:
            raise UnavailableError(self._skipped)
        if not self._call:
            raise RunError(
                LAYER,
                f"{self._test} fails if it runs alone (exit code {code}); it may depend on "
                f"another test or plugin. Try: pytest '{self._test}'",
            )
        if self._stats is None or not self._stats.stats.data:
            raise RunError(LAYER, "the test passed without using its benchmark fixture")
        stats, iterations = self._stats.stats, self._stats.iterations
        return {
            "times": {
                "time_median": float(stats.median),
                "time_min": float(stats.min),
                "time_mean": float(stats.mean),
            },
            "within_se": round_errors(stats.data),
            "rounds": len(stats.data),
            "iterations": int(iterations),
            "total_s": float(stats.total) * iterations,
            "contention": self._window.seen,
            "clock_moved_s": self._window.clock.moved_s,
            "facts": facts(self._stats.options),
            **self._call,
        }


def round_errors(rounds: Sequence[float]) -> dict[str, float]:
    """Return relative standard errors of "time_median", "time_mean"; {} if rounds are too few."""
    size = len(rounds) // BATCHES
    if size < 2:
        return {}
    batches = [rounds[n * size : (n + 1) * size] for n in range(BATCHES)]
    averages: dict[str, Callable[[Sequence[float]], float]] = {
        "time_median": statistics.median,
        "time_mean": statistics.fmean,
    }
    errors = {}
    for name, average in averages.items():
        values = [average(batch) for batch in batches]
        mean = statistics.fmean(values)
        errors[name] = statistics.stdev(values) / BATCHES**0.5 / mean if mean > 0 else 0.0
    return errors


def slow(fixture: Any, handicap: float) -> None:
    """Slow a `benchmark` fixture down: its timed work takes 1/(1 - handicap) times as long."""
    make, stretch = fixture._make_runner, 1 / (1 - handicap)

    def slowed(*function: Any) -> Callable[..., Any]:
        timed = make(*function)

        def runner(loops: Any, *timer: Any) -> Any:
            begin_s = time.perf_counter()
            result = timed(loops, *timer)
            until_s = begin_s + stretch * (time.perf_counter() - begin_s)
            while time.perf_counter() < until_s:
                pass
            return result * stretch if loops else (result[0] * stretch, *result[1:])

        return runner

    fixture._make_runner = slowed


def facts(options: Mapping[str, Any]) -> dict[str, str]:
    """Return a benchmark's facts for its fingerprint: options, Python and package versions."""
    texts = {name: _in_words(value) for name, value in sorted(options.items())}
    loaded = {name.partition(".")[0] for name in list(sys.modules)}
    owners = metadata.packages_distributions()
    packages = {owner for name in loaded for owner in owners.get(name, ())} - {"pytest-mlperf"}
    return {
        "options": json.dumps(texts, sort_keys=True),
        "python": ".".join(map(str, sys.version_info[:3])),
        **{f"python.{name}": metadata.version(name) for name in sorted(packages)},
    }


def _in_words(value: Any) -> str:
    if callable(value):
        return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value)}"
    return str(value)


def packed(value: Any) -> str:
    """Serialise the value of an option, of any type, as text."""
    return base64.b64encode(pickle.dumps(value)).decode("ascii")


def unpacked(text: str) -> Any:
    """Deserialise a value from the base64 text of a pickle that `packed` returned."""
    return pickle.loads(base64.b64decode(text))  # noqa: S301 - made by the session that asks


if __name__ == "__main__":
    main(sys.argv[1])

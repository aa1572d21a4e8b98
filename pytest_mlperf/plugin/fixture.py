"""Provide the `mlperf` fixture."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from pytest_mlperf.bench.performance import EnergyUnknownError
from pytest_mlperf.core.case import Kind
from pytest_mlperf.core.errors import SuiteError, UnavailableError
from pytest_mlperf.core.untrusted_text import nearest, visible
from pytest_mlperf.core.verdict import Outcome, Verdict
from pytest_mlperf.plugin import session
from pytest_mlperf.plugin.report_json import PLANNED, SkippedCase, put
from pytest_mlperf.reports.for_pytest import benchmark_rounds
from pytest_mlperf.reports.sentences import sentence
from pytest_mlperf.suite.load import defects_in
from pytest_mlperf.suite.model import Suite
from pytest_mlperf.suite.pairs import Testable
from pytest_mlperf.suite.plan import in_profile, planned_cases

_FED: pytest.StashKey[bool] = pytest.StashKey()


def benchmark_stores_results(config: pytest.Config) -> bool:
    """Check whether pytest-benchmark stores or compares the results of this session."""
    if not config.pluginmanager.hasplugin("benchmark") or hasattr(config, "workerinput"):
        return False
    option = config.option
    names = ("benchmark_json", "benchmark_save", "benchmark_autosave", "benchmark_compare")
    requested = any(bool(getattr(option, name, None)) for name in names)
    off = getattr(option, "benchmark_disable", False)
    return requested and not (off and not getattr(option, "benchmark_enable", False))


class _Clock:
    """Act as pytest-benchmark's timer: return 0 before a round, and its measured time [s] after."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds

    def show(self, seconds: float) -> None:
        self.seconds = seconds


def feed_benchmark(request: pytest.FixtureRequest, verdict: Verdict) -> None:
    """Pass each run's time as a round to pytest-benchmark's `benchmark` fixture, once per test."""
    timing = benchmark_rounds(verdict)
    if timing is None or request.node.stash.get(_FED, False):
        return
    request.node.stash[_FED] = True
    clock = _Clock()
    seconds, about = timing
    remaining = iter(seconds)
    marker, judged = request.node.get_closest_marker("benchmark"), PLANNED in request.node.stash
    group = {} if judged else {"group": about["group"]}
    marked = {**group, **(marker.kwargs if marker else {}), "timer": clock}
    request.node.add_marker(pytest.mark.benchmark(**marked), append=False)
    fixture: Any = request.getfixturevalue("benchmark")
    if not judged:  # a case is a large object, of which pytest-benchmark would keep all as text
        fixture.params, fixture.param = about["params"], about["param"]
    fixture.extra_info.update(about["extra_info"])
    fixture.pedantic(
        lambda: clock.show(next(remaining)),
        setup=lambda: clock.show(0.0),  # differences of accumulated sums would be inexact
        rounds=len(seconds),
        iterations=1,
    )


MARKER_DEFAULTS: Mapping[str, Any] = {
    "workload": None,
    "scenario": "SingleStream",
    "engine": None,
    "precision": "fp32",
    "accelerator": "cpu",
    "round": "v4.1",
    "profile": "quick",
    "limits": {},
}
"""Arguments of the marker with their defaults; the default workload is the test's name."""


@dataclass(frozen=True)
class Result:
    """Hold the verdict of an accuracy, performance or efficiency test."""

    verdict: Verdict
    message: str
    failed: bool

    def check(self) -> None:
        """Fail the test if its verdict is a failure."""
        __tracebackhide__ = True
        if self.failed:
            raise pytest.fail.Exception(self.message, pytrace=False)


class Mlperf:
    """Measure and judge the cases of one test: the value of the `mlperf` fixture."""

    def __init__(self, state: session.MlperfSession, request: pytest.FixtureRequest) -> None:
        self._session = state
        self._request = request

    def judge(self, planned: Testable, kind: Kind) -> Result:
        """Make missing runs, judge, and attach the verdict to the test's report."""
        __tracebackhide__ = True
        item = self._request.node
        earlier = self._session.progress.kept(item.nodeid, planned.case, kind)
        if earlier is not None:
            kept = put(item, earlier)
            return Result(kept.verdict, self._session.message_of(kept), kept.failed)
        try:
            verdict = self._session.judge(planned, kind)
        except pytest.fail.Exception as error:  # raised by a plugin, such as pytest-timeout
            reason = str(error.msg).rstrip(".")
            text = f"stopped during the measurement: {reason}; give this test more time"
            verdict = Verdict(case=planned.case, kind=kind, outcome=Outcome.ERROR, headline=text)
        except UnavailableError as error:
            words = error.note if isinstance(error, EnergyUnknownError) else str(error)
            reason, options = visible(sentence(words), keep="\n"), self._session.options
            if session.skips_fail(options) or options.energy.power == "require":
                text = f"{reason} ({session.SKIPS_FAIL})"
                raise pytest.fail.Exception(text, pytrace=False) from None
            raise SkippedCase(reason) from None
        except SuiteError as error:
            raise pytest.fail.Exception(visible(str(error), keep="\n"), pytrace=False) from None
        waits = self._session.waits(planned, verdict)
        kept = self._session.keep(item, planned, verdict)
        result = Result(kept.verdict, self._session.message_of(kept), kept.failed)
        later = waits and self._session.phase.once
        if (
            not (kept.failed or later)
            and kind == Kind.PERFORMANCE
            and benchmark_stores_results(item.config)
        ):
            feed_benchmark(self._request, verdict)
        return result

    def run(
        self,
        *,
        engine: type | Callable[..., Any] | str,
        dataset: type | Callable[..., Any] | str = "synthetic",
        options: Mapping[str, Any] | None = None,
        dataset_options: Mapping[str, Any] | None = None,
        model: str | Path | None = None,
        **scenario: Any,
    ) -> Result:
        """Measure an engine under the test's `mlperf` marker and judge it.

        Args:
            engine: A class, module-level function or "package.module:name", built in the worker.
            dataset: Likewise, or the name of a registered data set.
            options: Keyword arguments of the engine; JSON values only.
            dataset_options: Keyword arguments of the data set; JSON values only.
            model: Path of the model, which the engine gets as an argument.
            **scenario: Keys of a suite's `[[scenarios]]` entry, e.g. min_duration="5s".
        """
        __tracebackhide__ = True
        marker = self._request.node.get_closest_marker("mlperf")
        if marker is None:
            raise SuiteError(
                'mlperf.run needs a marker; add @pytest.mark.mlperf(workload="...", scenario="...")'
            )
        require_json("options", options)
        require_json("dataset_options", dataset_options)
        data = {"use": importable(dataset), **(dataset_options or {})}
        entry = {"use": importable(engine), "options": dict(options or {})}
        path = str(model) if model else None
        suite = self._suite(marker.kwargs, path, data, entry, scenario)
        line = (self._request.node.location[1] or 0) + 1
        cases = planned_cases(suite, self._request.node.path, lambda _: line)
        (planned,) = in_profile(cases, self._session.options.profile)
        return self.judge(planned, Kind.PERFORMANCE)

    def _suite(
        self,
        marked: Mapping[str, Any],
        model: str | None,
        dataset: Mapping[str, Any],
        engine: Mapping[str, Any],
        scenario: Mapping[str, Any],
    ) -> Suite:
        __tracebackhide__ = True
        case = {**MARKER_DEFAULTS, **marked}
        name = case["workload"] or self._request.node.name
        entry = {
            **engine,
            "name": case["engine"],
            "precision": case["precision"],
            "accelerators": [case["accelerator"]],
        }
        content = {
            "schema": 1,
            "round": case["round"],
            "profile": case["profile"],
            "workload": {"name": name, "model": model, "dataset": dataset},
            "engines": [entry],
            "scenarios": [{"name": case["scenario"], **scenario}],
            "limits": case["limits"],
        }
        try:
            suite = Suite.model_validate(content)
        except ValidationError as error:
            where, message = defects_in(error)[0]
            key_path = ".".join(map(str, where)) or "mlperf marker"
            raise SuiteError(f"{self._request.node.nodeid}: {key_path}: {message}") from None
        for key in [key for key in marked if key not in {*MARKER_DEFAULTS, "kind"}]:
            message = f"mlperf marker: unknown argument {key!r}{nearest(key, MARKER_DEFAULTS)}"
            raise SuiteError(f"{self._request.node.nodeid}: {message}")
        return suite


def importable(thing: type | Callable[..., Any] | str) -> str:
    """Return "package.module:name" of a class or function, which another process can import."""
    __tracebackhide__ = True
    if isinstance(thing, str):
        return thing
    name = getattr(thing, "__qualname__", "")
    if not (inspect.isclass(thing) or inspect.isfunction(thing)) or not name.isidentifier():
        raise SuiteError(
            f"{thing!r} cannot be created in the worker process; pass a class or function of a "
            'module, or "package.module:name"'
        )
    return f"{thing.__module__}:{name}"


def require_json(name: str, options: Mapping[str, Any] | None) -> None:
    """Raise SuiteError if `options` contains a value that JSON cannot represent."""
    __tracebackhide__ = True
    for key, value in (options or {}).items():
        try:
            json.dumps(value)
        except (TypeError, ValueError):
            raise SuiteError(
                f"{name}[{key!r}] = {value!r} cannot be sent to the worker process; use numbers, "
                "strings, lists and dictionaries"
            ) from None

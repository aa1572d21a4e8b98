"""The `mlperf` fixture: what a test may ask for."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from _pytest.outcomes import Failed
from pydantic import ValidationError

from pytest_mlperf import session
from pytest_mlperf.collect import adjusted
from pytest_mlperf.core.case import Kind
from pytest_mlperf.core.errors import SuiteError, UnavailableError
from pytest_mlperf.core.foreign_text import visible
from pytest_mlperf.core.verdict import Verdict
from pytest_mlperf.reports import benchmark
from pytest_mlperf.suite.load import defects_in
from pytest_mlperf.suite.model import Suite
from pytest_mlperf.suite.pairs import Testable
from pytest_mlperf.suite.plan import planned_cases
from pytest_mlperf.suite.values import nearest

MARKER_KEYS = [
    "workload",
    "scenario",
    "engine",
    "precision",
    "accelerator",
    "round",
    "profile",
    "limits",
]


class VerdictFailed(Failed):
    """A verdict that fails its test: the message is the report, there is no traceback."""

    def __init__(self, message: str) -> None:
        """Keep the designed text."""
        super().__init__(message, pytrace=False)


@dataclass(frozen=True)
class Result:
    """The answer to one question about one case."""

    verdict: Verdict
    message: str
    failed: bool

    def check(self) -> None:
        """Fail the test when the verdict says so.

        Raises:
            VerdictFailed: With the whole message.
        """
        __tracebackhide__ = True
        if self.failed:
            raise VerdictFailed(self.message)


class Mlperf:
    """Measures cases for one test."""

    def __init__(self, own: session.MlperfSession, request: pytest.FixtureRequest) -> None:
        """Bind the session to the requesting test."""
        self._session = own
        self._request = request

    def judge(self, planned: Testable, kind: Kind) -> Result:
        """Measure what is missing, judge, and put the verdict on the test's report."""
        __tracebackhide__ = True
        item = self._request.node
        try:
            verdict = self._session.judge(planned, kind)
        except UnavailableError as error:
            self._session.unavailable(error)
        except SuiteError as error:
            raise pytest.fail.Exception(visible(str(error), keep="\n"), pytrace=False) from None
        waits = self._session.waits(planned, verdict)
        result = Result(
            verdict,
            self._session.message(item, planned, verdict),
            not waits and self._session.fails(planned, verdict),
        )
        self._session.keep(item, planned, result.verdict, failed=result.failed)
        later = waits and self._session.phase.once
        final = not (result.failed or later)
        if final and kind == "performance" and benchmark.wanted(item.config):
            benchmark.feed(self._request, verdict)
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
        """Measure an engine of one's own under the test's `mlperf` marker and judge it.

        Args:
            engine: A class, a module-level function that returns an engine, or
                "package.module:name"; built in the worker process.
            dataset: Likewise.
            options: Keyword arguments of the engine; JSON values only.
            dataset_options: Keyword arguments of the data set; JSON values only.
            model: Path handed to the engine.
            **scenario: Keys of a suite's `[[scenarios]]` entry, e.g. min_duration="5s".

        Raises:
            SuiteError: Marker or arguments are wrong.
        """
        __tracebackhide__ = True
        marker = self._request.node.get_closest_marker("mlperf")
        if marker is None:
            raise SuiteError(
                'mlperf.run needs @pytest.mark.mlperf(workload="...", scenario="...") on the test'
            )
        given = dict(marker.kwargs)
        require_json("options", options)
        require_json("dataset_options", dataset_options)
        try:
            suite = Suite.model_validate(
                {
                    "schema": 1,
                    "round": given.pop("round", "v4.1"),
                    "profile": given.pop("profile", "quick"),
                    "workload": {
                        "name": given.pop("workload", None) or self._request.node.name,
                        "model": str(model) if model else None,
                        "dataset": {"use": importable(dataset), **(dataset_options or {})},
                    },
                    "engines": [
                        {
                            "use": importable(engine),
                            "name": given.pop("engine", None),
                            "precision": given.pop("precision", "fp32"),
                            "accelerators": [given.pop("accelerator", "cpu")],
                            "options": dict(options or {}),
                        }
                    ],
                    "scenarios": [{"name": given.pop("scenario", "SingleStream"), **scenario}],
                    "limits": given.pop("limits", {}),
                }
            )
        except ValidationError as error:
            where, message = defects_in(error)[0]
            place = ".".join(map(str, where)) or "mlperf marker"
            raise SuiteError(f"{self._request.node.nodeid}: {place}: {message}") from None
        given.pop("kind", None)
        for key in given:
            message = f"the marker has unknown {key!r}{nearest(key, MARKER_KEYS)}"
            raise SuiteError(f"{self._request.node.nodeid}: {message}")
        line = (self._request.node.location[1] or 0) + 1
        cases = planned_cases(suite, self._request.node.path, lambda _: line)
        (planned,) = adjusted(cases, self._session.options.profile)
        return self.judge(planned, "performance")


def importable(thing: type | Callable[..., Any] | str) -> str:
    """Return "package.module:name" of something that another process can import.

    Raises:
        SuiteError: It is an instance, a lambda or local to a function.
    """
    __tracebackhide__ = True
    if isinstance(thing, str):
        return thing
    name = getattr(thing, "__qualname__", "")
    if not (inspect.isclass(thing) or inspect.isfunction(thing)) or not name.isidentifier():
        raise SuiteError(
            f"{thing!r} cannot be built in the worker process: give a class, a module-level "
            'function or "package.module:name"; instances, lambdas and local classes are refused'
        )
    return f"{thing.__module__}:{name}"


def require_json(name: str, given: Mapping[str, Any] | None) -> None:
    """Refuse options that cannot travel to the worker.

    Raises:
        SuiteError: A value is no JSON.
    """
    __tracebackhide__ = True
    for key, value in (given or {}).items():
        try:
            json.dumps(value)
        except (TypeError, ValueError):
            raise SuiteError(
                f"{name}[{key!r}] = {value!r} cannot travel to the worker process: give numbers, "
                "texts, lists and dictionaries of them"
            ) from None

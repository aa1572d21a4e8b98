"""Collect suite files as modules whose tests are those of `pytest_mlperf.plugin.checks`."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import cast

import pytest

from pytest_mlperf.bench.case import clashes
from pytest_mlperf.core.case import SUITE_SCENARIOS, Case, Kind
from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.core.untrusted_text import closest, visible
from pytest_mlperf.plugin import session
from pytest_mlperf.plugin.options import SUFFIX
from pytest_mlperf.plugin.report_json import planned_of
from pytest_mlperf.plugin.session import TEST_KINDS, suspects_first
from pytest_mlperf.reports.terminal import selection
from pytest_mlperf.reports.terminal.layout import fold
from pytest_mlperf.suite.pairs import Testable, plan_pairs
from pytest_mlperf.suite.plan import in_profile, plan_suite


class SuiteFile(pytest.Module):
    """Collect a suite file as a module with the tests of checks.py, parametrized by its cases."""

    planned: list[Testable]
    kinds: frozenset[Kind]
    """Kinds of tests that at least one of the cases has."""

    def _getobj(self) -> ModuleType:
        return importlib.import_module("pytest_mlperf.plugin.checks")

    def funcnamefilter(self, name: str) -> bool:
        """Accept the functions of checks.py that this suite needs; ignore `python_functions`."""
        return TEST_KINDS.get(name) in self.kinds

    def classnamefilter(self, name: str) -> bool:  # noqa: ARG002 - pytest's signature
        """Reject all classes, as a suite has only functions."""
        return False

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        """Parse the file and make its tests."""
        state = session.session_state(self.config)
        try:
            audited = state.options.compliance == "yes"
            cases = in_profile(plan_suite(self.path), state.options.profile, audited=audited)
            if defect := next(clashes(cases, state.claimed, state.options.baselines), None):
                raise SuiteError(defect)
            self.planned = [*cases, *plan_pairs(cases)]
            self.kinds = frozenset(kind for planned in self.planned for kind in planned.kinds)
        except SuiteError as error:
            raise self.CollectError(visible(str(error), keep="\n")) from None
        position = {id(planned): index for index, planned in enumerate(self.planned)}
        items = [item for item in super().collect() if isinstance(item, pytest.Function)]
        for item in items:
            planned = cast(Testable, item.callspec.params["case"])
            # Reports, IDEs and annotations must lead to the suite, not to checks.py.
            item.__dict__["location"] = (self.nodeid, planned.line - 1, item.name)
        # The tests of a case run together. Parametrizing with scope="module" orders them so too,
        # but pytest then takes an eighth longer to collect a large suite.
        return sorted(items, key=lambda item: position[id(item.callspec.params["case"])])


def collect_suite(path: Path, parent: pytest.Collector) -> SuiteFile | None:
    """Collect a suite only if paths or `testpaths` are set; otherwise list it as uncollected."""
    config = parent.config
    if config.args_source is config.ArgsSource.INVOCATION_DIR:
        session.session_state(config).selection.uncollected.append(path)
        return None
    suite: SuiteFile = SuiteFile.from_parent(parent, path=path)
    return suite


def unread_suites(folder: pytest.Collector) -> list[SuiteFile]:
    """Return collectors for suites that are not regular files; collecting them is an error."""
    if folder.config.args_source is folder.config.ArgsSource.INVOCATION_DIR:
        return []
    with os.scandir(folder.path) as entries:
        names = [one.name for one in entries if one.name.endswith(SUFFIX) and not one.is_file()]
    return [SuiteFile.from_parent(folder, path=folder.path / name) for name in sorted(names)]


def parametrize(metafunc: pytest.Metafunc) -> None:
    """Parametrize each test function with its cases, and add markers for selection by -m."""
    suite = metafunc.definition.getparent(SuiteFile)
    if suite is None:
        return
    kind = TEST_KINDS[metafunc.function.__name__]
    properties = [field.name for field in fields(Case)]  # asdict would copy each value
    metafunc.parametrize(
        "case",
        [
            pytest.param(
                planned,
                id=planned.case.id,
                marks=pytest.mark.mlperf(
                    **{name: getattr(planned.case, name) for name in properties},
                    kind=kind,
                    power_limit_w=planned.limit_w,
                    round=planned.suite.round,
                ),
            )
            for planned in suite.planned
            if kind in planned.kinds
        ],
    )


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect cases whose accelerator is missing; move tests that were SUSPECT last time first."""
    state = session.session_state(config)
    planned = {id(item): planned_of(item) for item in items}
    cases = [case for case in planned.values() if case]
    # The server of a url may be here, with GPUs.
    state.selection.look_for({n for c in cases for n in (c.case.accelerator, *c.accelerators)})
    gone = [item for item in items if (p := planned[id(item)]) and not state.selection.is_here(p)]
    if gone:
        lost = {id(item) for item in gone}
        items[:] = [item for item in items if id(item) not in lost]
        config.hook.pytest_deselected(items=gone)
    suspects_first(items, state.suspicion.earlier_suspects)


def gaps(items: Iterable[pytest.Item], width: int) -> list[str]:
    """Return lines on selected cases that do not meet requirements of their MLPerf round."""
    cases = dict.fromkeys(planned for item in items if (planned := planned_of(item)))
    return [line for text in selection.gaps(cases) for line in fold(text, width)]


MARKER_KEYS = (
    *("workload", "scenario", "engine", "precision", "accelerator", "power_limit_w"),
    *("kind", "round"),
)
VALUES = {"scenario": SUITE_SCENARIOS, "kind": ("accuracy", "performance")}
MARKER_WORDS = {
    "mlperf": "mlperf",
    "mlperf_benchmark": "mlperf_benchmark",
    **{v.lower(): f"mlperf({key}={v!r})" for key, values in VALUES.items() for v in values},
}
"""Correct marker expression by the lower-case word that a user may write instead."""

MIN_SIMILARITY = 0.75


def misspelt(expression: str, markers: Collection[str]) -> Iterator[str]:
    """Yield a suggestion for each misspelt word of a -m expression; `markers` are valid words."""
    calls = re.findall(r"\bmlperf\s*\(([^)]*)\)", expression)
    words = re.findall(r"[A-Za-z_]\w*", re.sub(r"\([^()]*=[^()]*\)", "", expression))
    known_words = {*markers, "and", "or", "not", "True", "False", "None"}
    for word in dict.fromkeys(words):
        if word not in known_words and (
            near := closest(word.lower(), MARKER_WORDS, MIN_SIMILARITY)
        ):
            yield f"-m: no test has the marker {word}; did you mean {MARKER_WORDS[near]}?"
    for key, value in re.findall(r"""(\w+)\s*=\s*['"]([^'"]*)['"]""", " ".join(calls)):
        if key not in MARKER_KEYS and (near := closest(key, MARKER_KEYS, MIN_SIMILARITY)):
            yield f"-m: the marker mlperf has no argument {key}; did you mean {near}?"
        elif value not in VALUES.get(key, (value,)) and (
            near := closest(value, VALUES[key], MIN_SIMILARITY)
        ):
            yield f"-m: no case has {key}={value!r}; did you mean {near!r}?"

"""Collect suite files as test modules whose functions are those of `pytest_mlperf.checks`."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import cast

import pytest

from pytest_mlperf import session
from pytest_mlperf.carry import planned_of
from pytest_mlperf.case_runs import baselines_root
from pytest_mlperf.core.case import Case, Kind, Profile
from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.core.foreign_text import visible
from pytest_mlperf.session import KINDS, MlperfSession
from pytest_mlperf.suite.pairs import Testable, plan_pairs
from pytest_mlperf.suite.plan import Planned, plan_suite
from pytest_mlperf.suspicion import suspects_first


class SuiteFile(pytest.Module):
    """A suite file: its test functions come from the plugin, their parameters from the file."""

    planned: list[Testable]

    def _getobj(self) -> ModuleType:
        return importlib.import_module("pytest_mlperf.checks")

    def funcnamefilter(self, name: str) -> bool:
        """Take our functions whatever the user's `python_functions` says."""
        return any(KINDS.get(name) in planned.kinds for planned in self.planned)

    def classnamefilter(self, name: str) -> bool:  # noqa: ARG002 - pytest's signature
        """Take no class: our module has none for pytest."""
        return False

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        """Parse the file, once, and make its tests."""
        own = session.of(self.config)
        try:
            cases = adjusted(plan_suite(self.path), own.options.profile)
            claim(own, cases)
            self.planned = [*cases, *plan_pairs(cases)]
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


def claim(own: MlperfSession, planned: list[Planned]) -> None:
    """Note which suite describes which case: two suites would judge each other's baseline.

    Raises:
        SuiteError: Names both suites and the case.
    """
    first = planned[0]
    root = baselines_root(own.options.baselines, first.path, first.suite.division)
    for case in planned:
        other = own.claimed.setdefault((root, case.suite.profile, case.case.id), case.path)
        if other != case.path:
            raise SuiteError(
                f"{case.path}:{case.line}: {case.case.id} is described by {other} too, and "
                "both would share one baseline: rename the workload or the engine entry in one"
            )


def adjusted(planned: list[Planned], profile: str | None) -> list[Planned]:
    """Apply `--mlperf-profile` to freshly planned cases."""
    if profile is None:
        return planned
    suites = {id(p.suite): p.suite for p in planned}
    forced = {
        key: suite.model_copy(update={"profile": cast(Profile, profile)})
        for key, suite in suites.items()
    }
    return [dataclasses.replace(p, suite=forced[id(p.suite)]) for p in planned]


def collect_suite(path: Path, parent: pytest.Collector) -> SuiteFile | None:
    """Collect a suite that is named by the command line or `testpaths`; else only count it."""
    config = parent.config
    if config.args_source is config.ArgsSource.INVOCATION_DIR:
        session.of(config).uncollected.append(path)
        return None
    suite: SuiteFile = SuiteFile.from_parent(parent, path=path)
    return suite


def parametrize(metafunc: pytest.Metafunc) -> None:
    """Give each function its cases."""
    suite = metafunc.definition.getparent(SuiteFile)
    if suite is None:
        return
    kind = KINDS[metafunc.function.__name__]
    metafunc.parametrize(
        "case",
        [
            pytest.param(planned, id=planned.case.id, marks=mark(planned.case, kind))
            for planned in suite.planned
            if kind in planned.kinds
        ],
    )


def mark(case: Case, kind: Kind) -> pytest.MarkDecorator:
    """Return the marker of one test, for exact selection with -m."""
    return pytest.mark.mlperf(
        workload=case.workload,
        scenario=case.scenario,
        engine=case.engine,
        precision=case.precision,
        accelerator=case.accelerator,
        kind=kind,
    )


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the cases whose accelerator is not here; suspects of the last session go first."""
    own = session.of(config)
    planned = {id(item): planned_of(item) for item in items}
    own.look_for({name for p in planned.values() if p for name in p.accelerators})
    gone = [item for item in items if (p := planned[id(item)]) and not own.is_here(p)]
    if gone:
        lost = {id(item) for item in gone}
        items[:] = [item for item in items if id(item) not in lost]
        config.hook.pytest_deselected(items=gone)
    suspects_first(items, own.options.runs_dir)

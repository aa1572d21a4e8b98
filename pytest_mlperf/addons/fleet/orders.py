"""Describe, for a node, one case to run: the project, the tests and their options."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf import __version__
from pytest_mlperf.addons.fleet.node import PROJECT_PLACEHOLDER
from pytest_mlperf.addons.fleet.placement import CaseNeed, need_of
from pytest_mlperf.hardware.machine import split
from pytest_mlperf.plugin.options import Options, set_on_command_line
from pytest_mlperf.plugin.report_json import planned_of
from pytest_mlperf.suite.pairs import case_ids

OF_SESSION = frozenset(
    {"on", "json", "resume", "sign", "store", "suspects", "manifest", "runs_dir"}
)
"""Options of the session that nodes do not get."""

FORWARDED_VARIABLES = ("CI", "BUILD_NUMBER", "PYTEST_ADDOPTS")


@dataclass
class CaseGroup:
    """Hold the tests of one case, which run one after another on the same node.

    Attributes:
        title: Name of the case in messages.
        reported: Ids of the tests whose last report has arrived.
        node: Key of the node that runs the case; "" before a node is chosen.
        causes: Reasons why tests did not run, reported by the node.
    """

    name: str
    title: str
    need: CaseNeed
    cases: tuple[str, ...]
    items: list[pytest.Item] = field(default_factory=list)
    reported: set[str] = field(default_factory=set)
    node: str = ""
    since: float = 0.0
    begun: bool = False
    project: str = ""
    causes: list[str] = field(default_factory=list)

    @property
    def missing(self) -> list[pytest.Item]:
        """Tests whose last report has not arrived."""
        return [item for item in self.items if item.nodeid not in self.reported]


def groups_of(
    items: Sequence[pytest.Item], pretended: str | None
) -> tuple[list[CaseGroup], list[pytest.Item]]:
    """Group tests by case, in collection order; also return the tests that belong to no case.

    `pretended` is the accelerator that nodes without it pretend to have; None if there is none.
    """
    groups: dict[object, CaseGroup] = {}
    others = []
    for item in items:
        planned, marker = planned_of(item), item.get_closest_marker("mlperf")
        key: object = item.nodeid
        if planned is not None:
            accelerators, title = list(planned.accelerators), planned.case.id
            key = (planned.path, planned.case.id)
            cases = tuple(case_ids(planned))
        elif marker and "mlperf" in getattr(item, "fixturenames", ()):
            accelerators, title = [str(marker.kwargs.get("accelerator", "cpu"))], item.nodeid
            cases = ("",)
        else:
            others.append(item)
            continue
        if key not in groups:
            need = need_of(map(split, accelerators), anywhere=pretended in accelerators)
            groups[key] = CaseGroup(f"case-{len(groups) + 1}", title, need, cases)
        groups[key].items.append(item)
    return list(groups.values()), others


def describe_case(
    group: CaseGroup,
    config: pytest.Config,
    options: Options,
    *,
    digest: str,
    worker: dict[str, Any],
) -> dict[str, Any]:
    """Return the description of a case for a node: tests, options, paths and environment.

    `digest` identifies the packed project; `worker` is the input of a pytest-xdist worker.
    """
    root = config.rootpath
    ini = config.inipath
    reporter: Any = config.pluginmanager.getplugin("terminalreporter")
    folder = config.invocation_params.dir
    baselines = ""
    if options.update:
        baselines = (
            _node_path(options.baselines, root) if options.baselines else PROJECT_PLACEHOLDER
        )
    return {
        "version": __version__,
        "digest": digest,
        "name": root.name or "project",
        "run": worker["mlperf_run"],
        "runs_dir": _node_path(options.runs_dir, root),
        "folder": str(folder.relative_to(root)) if folder.is_relative_to(root) else ".",
        "ini": _node_path(ini, root) if ini else "",
        "arguments": [*arguments(config, options), *(_test(item, root) for item in group.missing)],
        "environment": {
            "COLUMNS": str(reporter._tw.fullwidth if reporter else 80),
            **{name: os.environ.get(name, "") for name in FORWARDED_VARIABLES},
        },
        "worker": {**worker, "workerid": group.name},
        "cases": list(group.cases),
        "baselines": baselines,
    }


def _test(item: pytest.Item, root: Path) -> str:
    file, colons, name = item.nodeid.partition("::")
    return f"{_node_path(root / file, root)}{colons}{name}"


def _node_path(path: Path, root: Path) -> str:
    """Return a path as text for a node, with "{project}" in place of the folder `root`."""
    if not path.is_relative_to(root):
        return str(path)
    return (
        f"{PROJECT_PLACEHOLDER}/{path.relative_to(root)}" if path != root else PROJECT_PLACEHOLDER
    )


def arguments(config: pytest.Config, options: Options) -> Iterator[str]:
    """Yield pytest's command-line options for a case, in addition to its ini file."""
    early = config.known_args_namespace
    for plugin in early.plugins:
        yield from ("-p", plugin)
    for warning in getattr(early, "pythonwarnings", None) or ():
        yield from ("-W", warning)
    for setting in config.getoption("override_ini") or ():
        if setting.partition("=")[0].removeprefix("mlperf_") not in OF_SESSION:
            yield from ("-o", setting)
    for name in sorted(OF_SESSION - {"runs_dir"}):
        yield from ("-o", f"mlperf_{name}=")
    for name, text in set_on_command_line(config):
        if name not in OF_SESSION:
            value = options.by_name[name]
            word = _node_path(value, config.rootpath) if isinstance(value, Path) else text
            yield f"--mlperf-{name.replace('_', '-')}={word}"
    yield f"--mlperf-runs-dir={_node_path(options.runs_dir, config.rootpath)}"
    yield "--mlperf-on=local"

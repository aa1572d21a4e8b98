"""Emit the reports of cases on nodes, or their errors, as reports of this session."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.addons.fleet.orders import CaseGroup
from pytest_mlperf.addons.fleet.shipping import take_back
from pytest_mlperf.plugin.remote import RemoteReports
from pytest_mlperf.plugin.session import MlperfSession
from pytest_mlperf.stores.atomic import unforeseen

LAYER = "infrastructure"

NODE = "mlperf_node"
"""JUnit property with the node that ran a test."""


class Relay:
    """Pass the reports of nodes on to this session's pytest, once per test."""

    def __init__(self, state: MlperfSession, reports: RemoteReports) -> None:
        self._state, self._reports = state, reports

    def report(self, group: CaseGroup, node: str, plain: Mapping[str, Any]) -> None:
        """Pass on a report that a node sent."""
        if test := self._reports.add(self._local(group, node, plain)):
            group.reported.add(test)

    def _local(self, group: CaseGroup, node: str, plain: Mapping[str, Any]) -> dict[str, Any]:
        root = str(self._state.config.rootpath)
        return self._reports.local(
            plain, lambda text: text.replace(group.project, root), (NODE, node)
        )

    def finished(self, group: CaseGroup, node: str, notices: Sequence[Any] | None) -> None:
        """Add the results to be judged at the end of the session, and the notices, of a node."""
        if notices is None:
            return
        not_here, _, _, held, warnings, errors, *_ = notices
        self._state.addons.take(warnings, errors)
        for text in held:
            reports = [self._local(group, node, report) for report in json.loads(text)["reports"]]
            group.reported.add(self._reports.hold(reports))
        if not_here:
            names = ", ".join(not_here)
            group.causes.append(f"its label says {names}, and pytest-mlperf sees none there")

    def take_files(self, files: str) -> None:
        """Unpack the files of a case; on an error only add a notice."""
        options, config = self._state.options, self._state.config
        try:
            take_back(Path(files), runs_dir=options.runs_dir, root=config.rootpath)
        except Exception as error:
            self._state.notice(unforeseen("files of a node were not taken", error))

    def lost(self, item: pytest.Item, cause: str) -> None:
        """Report a test as an ERROR because no node has reported it."""
        self._reports.lost(item, LAYER, cause)

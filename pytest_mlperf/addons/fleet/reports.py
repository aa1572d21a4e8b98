"""Emit the reports of cases on nodes, or their errors, as reports of this session."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf import RunError
from pytest_mlperf.addons.fleet.orders import CaseGroup
from pytest_mlperf.addons.fleet.shipping import take_back
from pytest_mlperf.bench.bench import broken
from pytest_mlperf.core.untrusted_text import every_text
from pytest_mlperf.plugin.report_json import (
    attached,
    case_result,
    conclude,
    emit,
    planned_of,
    report_of,
)
from pytest_mlperf.plugin.session import MlperfSession, kind_of
from pytest_mlperf.stores.atomic import unforeseen

LAYER = "infrastructure"

NODE = "mlperf_node"
"""JUnit property with the node that ran a test."""


class Relay:
    """Emit the reports of nodes, each test's once."""

    def __init__(self, state: MlperfSession) -> None:
        self._state = state
        self._reports: dict[str, list[pytest.TestReport]] = {}

    def report(self, group: CaseGroup, node: str, plain: Mapping[str, Any]) -> None:
        """Emit a report of a node."""
        hook = self._state.config.hook
        report = hook.pytest_report_from_serializable(
            config=self._state.config, data=self._from_node(group, node, plain)
        )
        # Nodes report concurrently, but the terminal groups letters by file: emit whole tests.
        reports = self._reports.setdefault(report.nodeid, [])
        result, state = attached(report), self._state
        if result is not None and not report.failed:
            # A second drop in a row fails, and a node does not know the first.
            last = state.suspicion.ended(result)
            message = state.message_of(last) if last.failed else None
            conclude([report], last, message, state.config.rootpath)
        reports.append(report)
        if report.when == "teardown":
            group.reported.add(report.nodeid)
            emit(self._state.config, reports)

    def _from_node(self, group: CaseGroup, node: str, plain: Mapping[str, Any]) -> dict[str, Any]:
        """Return a report with this machine's paths, earlier suspects, and its node."""
        root = str(self._state.config.rootpath)
        data: dict[str, Any] = every_text(
            dict(plain), lambda text: text.replace(group.project, root)
        )
        data["user_properties"] = [*data.get("user_properties", ()), (NODE, node)]
        if "mlperf" in data:
            result = self._state.suspicion.marked(case_result().validate_python(data["mlperf"]))
            data["mlperf"] = case_result().dump_python(result, mode="json")
        return data

    def finished(self, group: CaseGroup, node: str, notices: Sequence[Any] | None) -> None:
        """Take the verdicts that a worker held back to be judged jointly, and its notices."""
        if notices is None:
            return
        not_here, _, _, held, warnings, errors = notices
        state = self._state
        state.addons.take(warnings, errors)
        for text in held:
            reports = [self._from_node(group, node, one) for one in json.loads(text)["reports"]]
            state.holding.take([json.dumps({"reports": reports})])
            group.reported.add(reports[0]["nodeid"])
        if not_here:
            names = ", ".join(not_here)
            group.causes.append(f"its label says {names}, and pytest-mlperf sees none there")

    def take_files(self, files: str) -> None:
        """Unpack the files of a case; a failure changes no verdict."""
        options, config = self._state.options, self._state.config
        try:
            take_back(Path(files), runs_dir=options.runs_dir, root=config.rootpath)
        except Exception as error:
            self._state.notice(unforeseen("files of a node were not taken", error))

    def lost(self, item: pytest.Item, cause: str) -> None:
        """Report a test that no node reported as an ERROR."""
        planned, state = planned_of(item), self._state
        if planned is None:
            emit(state.config, [report_of(item, f"{LAYER}: {cause}")])
            return
        verdict = broken(planned.case, kind_of(item), RunError(LAYER, cause), str)
        result = state.result_of(item, planned, verdict, failed=True)
        message, root = state.message_of(result), state.config.rootpath
        emit(state.config, [report_of(item, message, result, root)])

"""Report tests that ran in another pytest process as if they had run in this one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from pytest_mlperf.bench.bench import broken
from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.untrusted_text import every_text
from pytest_mlperf.plugin import report_json
from pytest_mlperf.plugin.measuring import reproducing
from pytest_mlperf.plugin.session import MlperfSession, kind_of


class RemoteReports:
    """Collect reports of other pytest processes; pass a test's reports to pytest when complete."""

    def __init__(self, state: MlperfSession) -> None:
        self._state = state
        self._reports: dict[str, list[pytest.TestReport]] = {}

    @property
    def worker_input(self) -> dict[str, Any]:
        """The `workerinput` of a pytest process that runs tests of this session, as with xdist."""
        state = self._state
        return {
            "workercount": 1,
            "testrunuid": state.run_id,
            "mlperf_run": state.run_id,
            "mlperf_pairs": state.phase.joint_pairs,
            "mlperf_commit": state.commit,
            "mlperf_arguments": reproducing(state.config.invocation_params.args),
        }

    def is_decided(self, item: pytest.Item) -> bool:
        """Check whether the session that this one resumes has a result of this test."""
        planned, state = report_json.planned_of(item), self._state
        if planned is None or not state.options.resume:
            return False
        return state.progress.kept(item.nodeid, planned.case, kind_of(item)) is not None

    def local(
        self, plain: Mapping[str, Any], convert: Callable[[str], str], about: tuple[str, str]
    ) -> dict[str, Any]:
        """Adapt a serialised report to this session: convert paths; mark tests suspected before.

        Args:
            convert: Converts paths of the other machine to paths of this machine.
            about: Name and value of a JUnit property to add.
        """
        data: dict[str, Any] = every_text(dict(plain), convert)
        data["user_properties"] = [*data.get("user_properties", ()), about]
        if "mlperf" in data:
            result = self._state.suspicion.marked(
                report_json.case_result().validate_python(data["mlperf"])
            )
            data["mlperf"] = report_json.case_result().dump_python(result, mode="json")
        return data

    def add(self, data: Mapping[str, Any]) -> str | None:
        """Add a report; return the test's node id if the test is complete and logged, else None.

        Other machines report concurrently, but the terminal prints status letters by file:
        only complete tests are logged.
        """
        state = self._state
        hook = state.config.hook
        report = hook.pytest_report_from_serializable(config=state.config, data=data)
        reports = self._reports.setdefault(report.nodeid, [])
        result = report_json.attached(report)
        if result is not None and not report.failed:
            # A second drop in a row fails, and the other machine does not know the first.
            last = state.suspicion.fail_repeated_drop(result)
            message = state.message_of(last) if last.failed else None
            report_json.conclude([report], last, message, state.config.rootpath)
        reports.append(report)
        if report.when != "teardown":
            return None
        report_json.emit(state.config, reports)
        return str(report.nodeid)

    def hold(self, reports: Iterable[Mapping[str, Any]]) -> str:
        """Defer the reports of a test that is judged jointly with others; return its node id."""
        held = list(reports)
        self._state.deferral_plugin.add_deferred([json.dumps({"reports": held})])
        return str(held[0]["nodeid"])

    def lost(self, item: pytest.Item, layer: str, cause: str) -> None:
        """Report a test as ERROR, because the process that ran it sent no report."""
        planned, state = report_json.planned_of(item), self._state
        if planned is None:
            report_json.emit(state.config, [report_json.report_of(item, f"{layer}: {cause}")])
            return
        verdict = broken(planned.case, kind_of(item), RunError(layer, cause), str)
        result = state.result_of(item, planned, verdict, failed=True)
        message, root = state.message_of(result), state.config.rootpath
        report_json.emit(state.config, [report_json.report_of(item, message, result, root)])

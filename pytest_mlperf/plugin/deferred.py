"""Defer the reports of verdicts that depend on the whole session.

If many (case, metric) pairs are judged jointly, undecided tests are not reported at first. They run
again after all others and are reported once, because a later change would falsify JUnit and `--lf`.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import pytest
from _pytest.runner import runtestprotocol

from pytest_mlperf.bench.bench import Bench, fails
from pytest_mlperf.bench.policy import Phase
from pytest_mlperf.core.numbers import plural
from pytest_mlperf.core.results import CaseResult, earlier_suspicions, expect
from pytest_mlperf.core.rulings import multiplicity
from pytest_mlperf.core.verdict import Outcome, Verdict
from pytest_mlperf.judge.multiplicity import Null
from pytest_mlperf.judge.rule_r import RuleR
from pytest_mlperf.plugin.measuring import Live
from pytest_mlperf.plugin.options import Options
from pytest_mlperf.plugin.report_json import VERDICT, attached, conclude, emit, planned_of
from pytest_mlperf.plugin.suspicion import Suspicion
from pytest_mlperf.stores import atomic
from pytest_mlperf.suite.pairs import PlannedCase, Testable

CRASH_NOTE = "worker: the pytest-xdist worker crashed before the verdict"

HELD_FOLDER = "held"
"""Subfolder of a session's folder with deferred reports, in case an xdist worker crashes."""


class Judging(Protocol):
    """Declare, as a protocol, the members of a session that `DeferredTests` uses."""

    config: pytest.Config
    options: Options
    folder: Path
    phase: Phase
    results: list[CaseResult]
    live: Live
    suspicion: Suspicion

    @property
    def bench(self) -> Bench:
        """Runner that measures and judges the cases; created by the first test."""

    def message_of(self, result: CaseResult) -> str:
        """Return the failure message of a result."""

    def with_criteria(self, planned: Testable | None, verdict: Verdict) -> Verdict:
        """Return a final verdict after the criteria of add-ons, which may make it fail."""


@dataclasses.dataclass
class Held:
    """Hold a test's deferred reports; `item` is None in other processes; `over`: it has ended."""

    reports: list[pytest.TestReport]
    item: pytest.Item | None = None
    over: bool = False

    @property
    def nodeid(self) -> str:
        """The test's node id."""
        return self.reports[0].nodeid

    @property
    def result(self) -> CaseResult | None:
        """The test's result; None if the test was skipped or failed before it had a verdict."""
        return next(filter(None, map(attached, self.reports)), None)

    def pack(self, config: pytest.Config) -> str:
        """Serialise the test's reports for another process."""
        to_plain = config.hook.pytest_report_to_serializable
        reports = [to_plain(config=config, report=report) for report in self.reports]
        return json.dumps({"reports": reports}, default=str)


def unpack(config: pytest.Config, text: str) -> Held:
    """Deserialise the reports of an xdist worker's deferred test; mark it as not repeatable."""
    plain = json.loads(text)
    to_report = config.hook.pytest_report_from_serializable
    reports = [to_report(config=config, data=report) for report in plain["reports"]]
    return Held(reports=reports, over=True)


def _depends(result: CaseResult) -> bool:
    return result.pairs > 0 and multiplicity.is_open(result.verdict)


class DeferredTests:
    """Defer undecided tests to the session's end, to judge many pairs jointly; a pytest plugin."""

    def __init__(self, session: Judging) -> None:
        self._session = session
        self._config = session.config
        self._folder = session.folder / HELD_FOLDER
        self._held: list[Held] = []
        self._nulls: dict[multiplicity.MachineSession, Null] = {}
        self._all_ran = False
        worker = getattr(session.config, "workerinput", None)
        self._worker: str | None = worker["workerid"] if worker else None
        self.packed: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> object:
        """Run a test of a case, and report it unless its verdict is deferred."""
        planned = planned_of(item)
        if planned is None:
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        properties = list(item.user_properties)
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        held = Held(reports=reports, item=item)
        if self._waits(held):
            item.user_properties[:] = properties
            self._held.append(held)
            if self._worker:  # for the controller, should this process crash
                name = f"{self._worker}-{len(self._held)}.json"
                atomic.write_text(self._folder / name, held.pack(self._config))
        else:
            for report in reports:
                item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _waits(self, held: Held) -> bool:
        result = held.result
        return result is not None and result.pairs > 0 and self.may_change(result.verdict)

    def may_change(self, verdict: Verdict) -> bool:
        """Check whether verdicts on other tests of the session can still change this verdict."""
        pairs = self._session.phase.pairs
        certain = self._all_ran and multiplicity.is_certain(verdict, self._nulls, pairs, RuleR())
        return multiplicity.is_open(verdict) and not certain

    def add_deferred(self, json_texts: Iterable[str]) -> None:
        """Add the tests that an xdist worker deferred, from their JSON texts."""
        self._held += [unpack(self._config, text) for text in json_texts]

    def stop(self, session: pytest.Session | None) -> None:
        """Tell xdist workers to start no test if `-x` ended the session; do nothing if None."""
        over = session and (session.shouldfail or session.shouldstop)
        if over and not self._worker and self._folder.exists():
            (self._folder / "stop").touch()

    def conclude(self, session: pytest.Session, *, stopped: bool) -> None:
        """Run deferred tests again unless `stopped`, judge all pairs jointly, and report them."""
        try:
            if not stopped:
                self._again(session)
        finally:
            for held in self._held:
                self._give_up(held)
            if self._worker:
                self.packed = [held.pack(self._config) for held in self._held]
            else:
                self._rescue(crashed=not stopped)
                self._report(session, stopped=stopped)

    def _again(self, session: pytest.Session) -> None:
        queue = [held for held in self._held if not held.over]
        if not self._worker:  # which knows but its part
            verdicts = [result.verdict for result in self._session.results]
            verdicts += [held.result.verdict for held in self._held if held.result]
            self._nulls, self._all_ran = multiplicity.null_distributions(verdicts, RuleR()), True
        self._session.phase = dataclasses.replace(self._session.phase, once=False)
        reporter: Any = self._config.pluginmanager.getplugin("terminalreporter")
        if queue and reporter and not self._worker and self._config.get_verbosity() >= 0:
            tests = plural(len(queue), "test")
            reporter.ensure_newline()
            reporter.write_line(f"mlperf: each case ran once; repeating {tests} for a verdict")
        for held, following in zip(queue, [*queue[1:], None], strict=False):
            if session.shouldfail or session.shouldstop or (self._folder / "stop").exists():
                return
            item = held.item
            assert item is not None
            del item.stash[VERDICT]
            first_s = sum(report.duration for report in held.reports if report.when == "call")
            nextitem = following.item if following else None
            held.reports = runtestprotocol(item, log=False, nextitem=nextitem)
            for report in held.reports:
                report.duration += first_s if report.when == "call" else 0.0
            held.over = True
            if not self._worker and not self._waits(held):
                self._held.remove(held)
                emit(self._config, held.reports)

    def _rescue(self, *, crashed: bool) -> None:
        reported = {held.nodeid for held in self._held} | {r.test for r in self._session.results}
        for path in sorted(self._folder.glob("*.json")):
            held = unpack(self._config, path.read_text("utf-8"))
            if held.nodeid in reported or held.result is None:
                continue
            held.over = crashed
            if crashed:
                verdict = held.result.verdict
                broken = dataclasses.replace(verdict, outcome=Outcome.ERROR, headline=CRASH_NOTE)
                self._finish(held, broken, failed=True)
            self._give_up(held)
            self._held.append(held)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _report(self, session: pytest.Session, *, stopped: bool) -> None:
        results = [(held, result) for held in self._held if (result := held.result)]
        waiting = [(held, result) for held, result in results if _depends(result)]
        final = [result.verdict for result in self._session.results if result.pairs]
        final += [result.verdict for _, result in results if not _depends(result)]
        undecided = [result for _, result in waiting]
        pairs = max((result.pairs for result in undecided), default=self._session.phase.pairs)
        self._session.phase = Phase(pairs=pairs)
        today = dt.datetime.now(dt.UTC).date()
        verdicts, suspicions = [r.verdict for r in undecided], earlier_suspicions(undecided)
        settled = multiplicity.judge_pairs_jointly(verdicts, final, pairs, RuleR(), suspicions)
        over, interrupt = stopped, None
        for (held, result), verdict in zip(waiting, settled, strict=True):
            try:
                over = over or bool(session.shouldfail or session.shouldstop)
                verdict = self._confirmed(held, verdict, over=over)  # noqa: PLW2901
            except KeyboardInterrupt as error:  # what is known goes out before it
                over, interrupt = True, error
                verdict = self._session.bench.unconfirmed(verdict)  # noqa: PLW2901
            planned = planned_of(held.item) if held.item else None
            verdict = self._session.with_criteria(planned, verdict)  # noqa: PLW2901
            verdict = self._session.suspicion.final_verdict(result, verdict)  # noqa: PLW2901
            last = expect(verdict, result.expected_failures, today)
            fail_on = self._session.options.fail_on
            failed = fails(last, fail_on=fail_on, pretended=result.pretended)
            self._finish(held, last, failed=failed)
            self._held.remove(held)
            emit(self._config, held.reports)
        while self._held:
            emit(self._config, self._held.pop(0).reports)
        if interrupt:
            raise interrupt

    def _confirmed(self, held: Held, verdict: Verdict, *, over: bool) -> Verdict:
        if verdict.outcome not in multiplicity.DROP_OUTCOMES.values():
            return verdict
        planned = planned_of(held.item) if held.item else None
        if over or not isinstance(planned, PlannedCase):
            return self._session.bench.unconfirmed(verdict)
        with self._session.live:
            return self._session.bench.confirm_last(planned, verdict)

    def _finish(self, held: Held, verdict: Verdict, *, failed: bool) -> None:
        result = held.result
        assert result is not None
        final = dataclasses.replace(result, verdict=verdict, failed=failed)
        message = self._session.message_of(final) if failed else None
        conclude(held.reports, final, message, self._config.rootpath)

    def _give_up(self, held: Held) -> None:
        result = held.result
        if not held.over and result is not None:
            held.over = True
            self._finish(held, multiplicity.interrupted(result.verdict), failed=False)

"""The one object that holds a pytest session's state, in `config.stash`."""

from __future__ import annotations

import datetime as dt
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn, cast

import pytest

from pytest_mlperf.bench.bench import (
    Bench,
    fails,
    fails_on,
    is_named,
    require_power_source,
    unjudged_told,
)
from pytest_mlperf.bench.creep import with_creep
from pytest_mlperf.bench.policy import LONE_PHASE, Phase, rule_for
from pytest_mlperf.core.case import AUDITS, Kind
from pytest_mlperf.core.causes import causes
from pytest_mlperf.core.errors import UnavailableError
from pytest_mlperf.core.results import CaseResult, Results, Suspect, by_case
from pytest_mlperf.core.rulings.multiplicity import DROP_OUTCOMES
from pytest_mlperf.core.untrusted_text import visible
from pytest_mlperf.core.verdict import Verdict
from pytest_mlperf.hardware.machine import Machine, detect, split
from pytest_mlperf.plugin.deferred import HELD_FOLDER, Holding
from pytest_mlperf.plugin.measuring import (
    Live,
    bench_for,
    pairs_of,
    planned_pairs,
    reproducing,
    result_of,
    stored,
)
from pytest_mlperf.plugin.options import SESSION, Options, read_options, run_id
from pytest_mlperf.plugin.report_json import VERDICT, LeftOut, case_result, planned_of
from pytest_mlperf.plugin.resume import SessionProgress
from pytest_mlperf.plugin.suspicion import Suspicion
from pytest_mlperf.reports.export.junit import properties
from pytest_mlperf.reports.terminal import selection, text
from pytest_mlperf.reports.terminal.advice import JUDGE
from pytest_mlperf.reports.terminal.layout import relative
from pytest_mlperf.reports.terminal.selection import whole_plan
from pytest_mlperf.run.project import commit_of, ignored_in_git
from pytest_mlperf.stores.atomic import Keeping, unforeseen
from pytest_mlperf.stores.results import write_results
from pytest_mlperf.stores.signatures import sign, signature_of
from pytest_mlperf.suite.pairs import PlannedPair, Testable
from pytest_mlperf.suite.plan import Planned


def suspects_first(items: list[pytest.Item], before: Iterable[Suspect]) -> None:
    """Put the cases first whose tests were SUSPECT; all else keeps its order."""
    tests = {suspect.test for suspect in before}
    keys = {item: p and (p.path, p.case.id) for item in items for p in [planned_of(item)]}
    first = {key for item, key in keys.items() if key and item.nodeid in tests}
    items.sort(key=lambda item: keys[item] not in first)


TEST_KINDS: dict[str, Kind] = {
    "test_accuracy": "accuracy",
    "test_performance": "performance",
    "test_efficiency": "efficiency",
    "test_pair": "pair",
    **{f"test_{name.lower()}": name for name in AUDITS},
}


def kind_of(item: pytest.Item) -> Kind:
    """Return what a test of a case asks for; what no suite has is a benchmark."""
    return TEST_KINDS.get(getattr(item, "originalname", ""), "performance")


EXIT_ENVIRONMENT = 3
"""Exit code when the accelerator that was required is not here."""


def of(config: pytest.Config) -> MlperfSession:
    """Return the session of a config, made at the first call."""
    if SESSION not in config.stash:
        config.stash[SESSION] = MlperfSession(config)
    return cast(MlperfSession, config.stash[SESSION])


class MlperfSession:
    """Everything between collection and the last line of the summary."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self._orders: Mapping[str, Any] = getattr(config, "workerinput", {})
        self.options: Options = read_options(config)
        self.run_id = run_id(config)
        self.folder = self.options.runs_dir / "runs" / self.run_id
        self.uncollected: list[Path] = []
        self.not_here: Counter[str] = Counter()
        self.skipped: dict[str, str] = {}
        self.results: list[CaseResult] = []
        self.live = Live(config)
        self.phase = LONE_PHASE
        self._keeping = Keeping()
        self._kinds: dict[tuple[Path, str], set[Kind]] = {}
        self._plan: list[Testable] = []
        self.claimed: dict[str, tuple[Path, str]] = {}
        self._bench: Bench | None = None
        self._machine: Machine | None = None
        self._started = dt.datetime.now(dt.UTC)
        self._clock = time.monotonic()
        self.suspicion = Suspicion(self.options, self._started)

    # --- collection ----------------------------------------------------------------------

    def look_for(self, accelerators: set[str]) -> Machine:
        """Detect this machine and return it; NVML is only asked if a case needs a GPU."""
        gpus = any(split(accelerator)[1] != "cpu" for accelerator in accelerators)
        gpus = gpus and not self.options.distributed  # which are those of nodes
        self._machine = replace(detect(gpus=gpus), shared=self.options.neighbours == "yes")
        return self._machine

    def is_here(self, planned: Testable) -> bool:
        """Whether a case can run here; counts it when it cannot. A plan is of every machine."""
        required, pretended = self.options.accelerator, self.options.pretend
        here = self.options.distributed or all(
            name == pretended or self.machine.has(name) for name in planned.accelerators
        )
        if here and (required is None or required in planned.accelerators):
            return True
        self.not_here[planned.case.accelerator] += 1
        return self._plans_all

    @property
    def _plans_all(self) -> bool:
        return self.options.plan and not (self.options.accelerator or self.options.pretend)

    @property
    def machine(self) -> Machine:
        """This machine."""
        return self._machine or detect(gpus=False)

    def require_accelerator(self) -> None:
        """End the session with exit code 3 when `--mlperf-accelerator` is not here."""
        name = str(self.options.accelerator)
        if self.options.distributed:
            return  # whoever sees the nodes of the cluster does
        if not self.look_for({name}).has(name) and name != self.options.pretend:
            pytest.exit(
                f"mlperf: accelerator {name} is required and not here; here: {self.machine.seen}",
                returncode=EXIT_ENVIRONMENT,
            )

    def planned_items(self, items: Iterable[pytest.Item]) -> None:
        """Note which kinds of each case were selected, so that one process serves them all.

        With many gated pairs among them they are judged together, in two phases; where they are a
        part of a plan, with all of it.
        """
        pairs, tests = 0, []
        for item in items:
            planned = planned_of(item)
            if planned:
                tests.append(item.nodeid)
                kind = kind_of(item)
                self._kinds.setdefault((planned.path, planned.case.id), set()).add(kind)
                self._plan.append(planned)
                pairs += pairs_of(planned, kind, self.options)
        if pairs and self.options.manifest:
            pairs = planned_pairs(self.options.manifest, tests, pairs)
        if pairs:
            pairs = max(pairs, self._orders.get("mlperf_pairs", 0))
        if Phase(pairs=pairs).many:
            self.phase = Phase(pairs=pairs, once=True)
            self.config.pluginmanager.register(self.holding, "mlperf-holding")

    def gaps(self, items: Iterable[pytest.Item]) -> list[str]:
        """Return which selected cases lack what their round asks for, for the end of collection."""
        cases = dict.fromkeys(planned for item in items if (planned := planned_of(item)))
        return selection.gaps(cases, self.config.get_terminal_writer().fullwidth)

    # --- an interrupted session ------------------------------------------------------------

    @cached_property
    def progress(self) -> SessionProgress:
        """What was decided so far."""
        return SessionProgress(self.options, self.folder, self.config.rootpath, self._commit)

    def resume(self) -> None:
        """Take over what the session decided that this one goes on with."""
        if self.is_worker:
            self.progress.look()
        else:
            self.progress.take_over(self.look_for)

    def is_decided(self, item: pytest.Item) -> bool:
        """Whether the session that this one goes on with has decided a test."""
        planned = planned_of(item)
        if planned is None or not self.options.resume:
            return False
        return self.progress.kept(item.nodeid, planned.case, kind_of(item)) is not None

    # --- on a cluster ----------------------------------------------------------------------

    @property
    def for_worker(self) -> dict[str, Any]:
        """What pytest on a node is told, as a worker of xdist is; the run's id as there."""
        return {
            "workercount": 1,
            "testrunuid": self.run_id,
            "mlperf_run": self.run_id,
            "mlperf_pairs": self.phase.pairs if self.phase.many else 0,
            "mlperf_commit": self._commit,
            "mlperf_arguments": reproducing(self.config.invocation_params.args),
        }

    def unmeasured(self, item: pytest.Item, planned: Testable, verdict: Verdict) -> CaseResult:
        """Return the verdict of a test that did not run to its end, or not here, as its result."""
        return self._result(item, planned, verdict, failed=True, rate=(None, None))

    def notice(self, line: str) -> None:
        """Show a line below the summary."""
        self._keeping.lines.append(visible(line))

    @property
    def is_worker(self) -> bool:
        """Whether a controller of xdist tells the results."""
        return hasattr(self.config, "workerinput")

    # --- judging -------------------------------------------------------------------------

    def judge(self, planned: Testable, kind: Kind) -> Verdict:
        """Return the verdict of one test, measuring what is missing."""
        if kind == "efficiency" and not self.options.metered:
            if self.options.power == "off":
                raise LeftOut("mlperf_power=off: efficiency is left out")
            require_power_source(planned.case)
        tests = self._kinds.get((planned.path, planned.case.id), {kind})
        with self.live:
            if isinstance(planned, PlannedPair):
                return self.bench.pair(planned)
            verdict = self.bench.verdict(planned, kind, tests, self.phase_of(planned))
        if not self.waits(planned, verdict):
            verdict = self.with_creep(verdict)
        return unjudged_told(verdict, fail_on=self.options.fail_on, named=self._named(planned))

    def with_creep(self, verdict: Verdict) -> Verdict:
        """Return a last word in the light of all accepted baselines, where that is asked for."""
        options = self.options
        if options.drift is None:
            return verdict
        rule, root = rule_for(verdict.case.accelerator), self.config.rootpath
        return with_creep(verdict, rule, options.drift, options.drift_since, root)

    @cached_property
    def holding(self) -> Holding:
        """The tests that wait for the end of the session, where `holds`."""
        return Holding(self)

    @property
    def holds(self) -> bool:
        """Whether tests may wait: of many pairs, or held by workers of xdist."""
        return self.phase.many or (self.folder / HELD_FOLDER).exists()

    def phase_of(self, planned: Testable) -> Phase:
        """Return how a case is judged; what no suite has is not known before, and judged alone."""
        return self.phase if (planned.path, planned.case.id) in self._kinds else LONE_PHASE

    def waits(self, planned: Testable, verdict: Verdict) -> bool:
        """Whether a verdict is not final before the end of the session."""
        return self.phase_of(planned).many and self.holding.is_open(verdict)

    @property
    def bench(self) -> Bench:
        """The measuring side, made when the first test asks."""
        if self._bench is None:
            try:
                ignored_in_git(self.options.runs_dir)
            except OSError as error:
                pytest.exit(
                    f"mlperf: {self.options.runs_dir} cannot be written ({error.strerror}); "
                    "name another folder with --mlperf-runs-dir",
                    returncode=EXIT_ENVIRONMENT,
                )
            self._bench = bench_for(
                self.options,
                self.folder,
                commit=self._commit,
                machine=self.machine,
                root=self.config.rootpath,
                show=self.live.show,
            )
        return self._bench

    def unavailable(self, error: UnavailableError) -> NoReturn:
        """Skip, or fail where a silent skip would hide that nothing was tested."""
        reason = visible(str(error), keep="\n")
        usual = bool(os.environ.get("CI"))
        fails = fails_on("skips", self.options.fail_on, usual=usual)
        if fails or self.options.power == "require":
            rule = "a skip becomes a failure under CI and --mlperf-fail-on=skips"
            raise pytest.fail.Exception(f"{reason} ({rule})", pytrace=False) from None
        raise LeftOut(reason) from None

    def fails(self, planned: Testable, verdict: Verdict) -> bool:
        """Whether a verdict fails its test, under this session's options."""
        return fails(verdict, fail_on=self.options.fail_on, named=self._named(planned))

    def _named(self, planned: Testable) -> bool:
        pretended = self.options.pretend in planned.accelerators
        return is_named(planned.case.accelerator, pretended=pretended)

    def message_of(self, result: CaseResult) -> str:
        """Return the failure message of a result."""
        reporter: Any = self.config.pluginmanager.getplugin("terminalreporter")
        width = reporter._tw.fullwidth if reporter else 80
        record = self._bench.record(result.verdict.case) if self._bench else None
        likely = causes(result.verdict, record, [one.verdict for one in self.results])
        return text.failure(result.verdict, result, width, likely)

    def keep(self, item: pytest.Item, planned: Testable, verdict: Verdict) -> CaseResult:
        """Put a verdict on the test: for the report, JUnit properties and the results file."""
        rate = self.bench.rate(planned)
        waits = self.waits(planned, verdict)
        failed = not waits and self.fails(planned, verdict)
        result = self._result(item, planned, verdict, failed=failed, rate=rate)
        return self.put(item, result if waits else self.suspicion.ended(result))

    def put(self, item: pytest.Item, result: CaseResult) -> CaseResult:
        """Put a result on the test."""
        item.stash[VERDICT] = result
        item.user_properties += properties(result)
        return result

    def _result(
        self,
        item: pytest.Item,
        planned: Testable,
        verdict: Verdict,
        *,
        failed: bool,
        rate: tuple[float | None, str | None],
    ) -> CaseResult:
        result = result_of(
            planned,
            verdict,
            test=item.nodeid,
            root=self.config.rootpath,
            options=self.options,
            arguments=self._arguments(planned),
            rate=rate,
            pairs=self.phase_of(planned).together if verdict.kind in DROP_OUTCOMES else 0,
            failed=failed,
        )
        return self.suspicion.marked(result)

    def _arguments(self, planned: Testable) -> tuple[str, ...]:
        """Return the options that reproduce the test, those from an ini file included."""
        arguments = reproducing(self.config.invocation_params.args)
        if "mlperf_arguments" in self._orders:
            arguments = tuple(self._orders["mlperf_arguments"])
        judged = isinstance(planned, Planned) and planned.benchmark
        if judged and not any(one.startswith(JUDGE) for one in arguments):
            return (JUDGE, *arguments)
        return arguments

    def record(self, report: Any) -> None:
        """Take a verdict from a report: the only way it reaches a controller of xdist."""
        result = case_result().validate_python(report.mlperf)
        self.results.append(result)
        if not self.is_worker:
            self.progress.note(result, self._keeping)

    def take_notices(
        self, not_here: dict[str, int], uncollected: list[str], pairs: int, held: list[str]
    ) -> None:
        """Take what an xdist worker left out, as every worker does, and what it held."""
        self.phase = Phase(pairs=pairs)
        if held:
            self.holding.take(held)
        self.not_here = Counter(not_here)
        if not_here and self._machine is None:
            self.look_for(set(not_here))  # for why they are not here
        self.uncollected = [Path(path) for path in uncollected]

    def finish(self, session: pytest.Session) -> None:
        """Write results and reports; an xdist worker only tells the controller what it left out.

        Verdicts that cannot be kept end the session with exit code 3: they are lost otherwise.
        """
        if self.is_worker:
            left_out = (dict(self.not_here), list(map(str, self.uncollected)))
            notices = (*left_out, self.phase.pairs, self.holding.packed if self.holds else [])
            self.config.workeroutput["mlperf_notices"] = notices  # type: ignore[attr-defined]
            return
        self._let_go(session)
        reports = () if self.options.plan else self.options.report
        if not (self.results or self.skipped or reports):
            return
        summary = self.summary  # once: its length of time goes on
        kept = self.folder / "results.json"
        copy = self.options.json if self.results or self.skipped else None
        for path in filter(None, (kept if self.results else None, copy)):
            write = partial(self._write_results, path, summary)
            self._keep(session, "the results", write, f"results: {relative(path)}")
            if (key := self.options.sign) and path.exists():
                signed = f"signature: {relative(signature_of(path))}"
                self._keep(session, "the signature", partial(sign, path, key), signed)
        if self.options.store and self.results:
            self._keeping.keep("the results in the store", partial(self._send, summary, kept))
        remember = partial(self.suspicion.remember, self.results)
        self._keeping.keep("what the next session has to know", remember)
        if line := self.suspicion.line(self.results):
            self.notice(line)
        if reports:
            self._write_reports(session, reports, summary, kept)

    def _write_results(self, path: Path, summary: Results) -> None:
        """Write them also where they are too large to be read: they are nowhere else."""
        if reason := write_results(path, summary, readable=False):
            self.notice(
                f"WARNING {relative(path)} is whole, but no command will read it: {reason}; "
                "measure fewer tests in a session"
            )

    def _let_go(self, session: pytest.Session) -> None:
        """Close the journal; keep its file if the session was interrupted."""
        stopped = session.shouldfail or session.shouldstop
        over = session.exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}
        self.progress.end(over=over and not stopped)
        if self.results and not (over and not stopped):
            self._keeping.lines.append("interrupted: the same command with --mlperf-resume goes on")

    def _send(self, summary: Results, stored: Path) -> None:
        """Send the results to the store; a failure does not change the exit code."""
        from pytest_mlperf.stores.spool import deliver

        delivery = deliver(str(self.options.store), self.options.runs_dir, summary, stored)
        self._keeping.lines.append(delivery.line)

    def _write_reports(
        self,
        session: pytest.Session,
        reports: Sequence[tuple[str, Path]],
        summary: Results,
        file: Path,
    ) -> None:
        from pytest_mlperf.reports.formats import ReportedSession, write_report

        whole = ReportedSession(
            results=summary,
            file=file,
            root=self.config.rootpath,
            store=str(self.options.store or ""),
        )
        for form, path in reports:
            write = partial(write_report, form, path, whole)
            self._keep(session, f"the {form} report", write, f"{form}: {relative(path)}")

    def _keep(
        self, session: pytest.Session, content: str, write: Callable[[], object], line: str
    ) -> None:
        if not self._keeping.keep(content, write, line):
            session.exitstatus = session.exitstatus or EXIT_ENVIRONMENT

    @cached_property
    def _commit(self) -> str | None:
        """The commit when it was first asked for: what the measurements belong to."""
        if "mlperf_commit" in self._orders:
            return cast(str | None, self._orders["mlperf_commit"])
        folder = self.options.baselines
        return commit_of(self.config.rootpath, [folder] if folder else [])

    @property
    def summary(self) -> Results:
        """Everything so far as one document."""
        packages = ("pytest-mlperf", "pytest", "mlcommons-loadgen")
        return Results(
            run=self.run_id,
            started=self._started.isoformat(timespec="seconds"),
            seconds=round(time.monotonic() - self._clock, 1),
            commit=self._commit,
            versions={name: version(name) for name in packages},
            deselected=dict(self.not_here),
            cases=by_case(self.results) if self.phase.many else tuple(self.results),
            skipped=stored(self.config.rootpath, dict(self.skipped)),
            pairs=self.phase.together,
            suspects=self.suspicion.after(self.results),
            resumes=self.progress.resumes,
        )

    def summarise(self, reporter: Any) -> None:
        """Print the summary."""
        try:
            lines = self._lines(reporter._tw.fullwidth, colour=reporter._tw.hasmarkup)
        except Exception as error:  # pytest's own summary must follow all the same
            lines = [unforeseen("the summary could not be made", error), *self._keeping.lines]
            session = reporter._session
            session.exitstatus = session.exitstatus or EXIT_ENVIRONMENT
        if lines:
            reporter.write_sep("=", "mlperf")
            for line in lines:
                reporter.write_line(line)

    def _lines(self, width: int, *, colour: bool) -> list[str]:
        action = "planned" if self._plans_all else "deselected"
        lines = []
        if self.uncollected or self.not_here:
            lines += selection.notices(
                self.uncollected, self.not_here, self.machine.seen, width, action=action
            )
        lines += selection.skips(Counter(self.skipped.values()), width)
        if self.options.plan and self._plan:
            options = self.options
            return lines + whole_plan(
                self._plan,
                self._kinds,
                width,
                max_runs=options.max_runs,
                warmup=options.warmup,
                confirm=options.confirm,
                idle_s=options.wait_idle,
            )
        if resumes := self.progress.resumes:
            lines.append(f"goes on with session {resumes}, which was interrupted")
        if self.results:
            lines += text.summary(self.summary, width, colour=colour)
        return lines + self._keeping.lines

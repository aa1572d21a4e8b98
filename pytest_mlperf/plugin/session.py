"""Hold the state of a pytest session, which is stored in `config.stash`."""

from __future__ import annotations

import datetime as dt
import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, cast

import pytest

from pytest_mlperf.bench.bench import (
    Bench,
    fails,
    fails_on,
    known_failures,
    require_power_source,
    with_unjudged_note,
)
from pytest_mlperf.bench.files import AcceptedBaselines
from pytest_mlperf.bench.policy import LONE_PHASE, Phase
from pytest_mlperf.core.case import Kind
from pytest_mlperf.core.results import CaseResult, Results, Suspect, by_case
from pytest_mlperf.core.rulings.criteria import with_criterion
from pytest_mlperf.core.rulings.multiplicity import DROP_OUTCOMES
from pytest_mlperf.core.untrusted_text import visible
from pytest_mlperf.core.verdict import Outcome, Verdict
from pytest_mlperf.plugin import addons, measuring
from pytest_mlperf.plugin.deferred import HELD_FOLDER, DeferredTests
from pytest_mlperf.plugin.options import SESSION, Options, read_options, run_id
from pytest_mlperf.plugin.report_json import SkippedCase, case_result, planned_of, put
from pytest_mlperf.plugin.resume import SessionProgress
from pytest_mlperf.plugin.selection import Selection
from pytest_mlperf.plugin.suspicion import Suspicion
from pytest_mlperf.reports.causes import causes
from pytest_mlperf.reports.costs import cost_of
from pytest_mlperf.reports.terminal import text
from pytest_mlperf.reports.terminal.advice import JUDGE
from pytest_mlperf.run.project import commit_of, ignored_in_git
from pytest_mlperf.stores.atomic import WriteMessages
from pytest_mlperf.stores.results import digest_of
from pytest_mlperf.suite.benchmarks import PlannedBenchmark
from pytest_mlperf.suite.pairs import PlannedPair, Testable
from pytest_mlperf.suite.plan import is_metered


def suspects_first(items: list[pytest.Item], suspects: Iterable[Suspect]) -> None:
    """Move the cases of SUSPECT and PROVISIONAL tests to the front; tests that passed stay."""
    tests = {suspect.test for suspect in suspects if suspect.metrics or suspect.drops}
    keys = {item: p and (p.path, p.case.id) for item in items for p in [planned_of(item)]}
    first = {key for item, key in keys.items() if key and item.nodeid in tests}
    items.sort(key=lambda item: keys[item] not in first)


TEST_KINDS = {f"test_{kind.lower()}": kind for kind in Kind}


def kind_of(item: pytest.Item) -> Kind:
    """Return what a test judges, by its name; performance for tests outside suites."""
    return TEST_KINDS.get(getattr(item, "originalname", ""), Kind.PERFORMANCE)


SKIPS_FAIL = "skips fail in CI; allow them: --mlperf-fail-on=no:skips"


def session_state(config: pytest.Config) -> MlperfSession:
    """Return the MLPerf session of a pytest config; create it on the first call."""
    if SESSION not in config.stash:
        config.stash[SESSION] = MlperfSession(config)
    return cast(MlperfSession, config.stash[SESSION])


def skips_fail(options: Options) -> bool:
    """Return whether a test that cannot run fails, which is the default in CI."""
    return fails_on("skips", options.fail_on, usual=bool(os.environ.get("CI")))


def _with_facts(state: MlperfSession, planned: Testable, result: CaseResult) -> CaseResult:
    calls = state.addons.call(
        "mlperf_case_facts",
        addons.as_facts,
        result=result,
        planned=planned,
        options=state.options.by_name,
    )
    facts = {title: fact for added in calls for title, fact in added.items()}
    if not facts:
        return result
    return measuring.with_relative_paths(state.config.rootpath, replace(result, facts=facts))


class MlperfSession:
    """Hold the state of a session from collection to summary."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self._orders: Mapping[str, Any] = getattr(config, "workerinput", {})
        self.options: Options = read_options(config)
        self.addons = addons.addons_of(config)
        self.run_id = run_id(config)
        self.folder = self.options.runs_dir / "runs" / self.run_id
        self.selection = Selection(self.options)
        self.skipped: dict[str, str] = {}
        self.unjudged = ""
        self.results: list[CaseResult] = []
        self.live = measuring.Live(config)
        self.phase = LONE_PHASE
        self.judged_pairs = 1
        self.keeping = WriteMessages()
        self.kinds: dict[tuple[Path, str], set[Kind]] = {}
        self.plan: list[Testable] = []
        self.claimed: dict[str, tuple[Path, str]] = {}
        self._bench: Bench | None = None
        self._started = dt.datetime.now(dt.UTC)
        self._clock = time.monotonic()
        self.suspicion = Suspicion(self.options, self._started)

    def planned_items(self, items: Iterable[pytest.Item]) -> None:
        """Record the tests (accuracy, performance, …) of each case, so that one worker serves all.

        If there are many (case, metric) pairs, also counting other sessions of the same plan, they
        are judged jointly: undecided tests run again after all others.
        """
        pairs, tests = 0, []
        for item in items:
            planned = planned_of(item)
            if planned:
                tests.append(item.nodeid)
                kind = kind_of(item)
                self.kinds.setdefault((planned.path, planned.case.id), set()).add(kind)
                self.plan.append(planned)
                runs = 1 if self.options.update is None else self.options.baseline_runs
                key = planned.path, planned.case.id
                if key not in self.live.seconds:
                    sides = 2 if self.options.against else 1
                    self.live.seconds[key] = sides * cost_of(planned, {}).usual_s(runs)
                pairs += measuring.pairs_of(planned, kind, self.options)
        if pairs and self.options.manifest:
            pairs = measuring.planned_pairs(self.options.manifest, tests, pairs)
        if pairs:
            pairs = max(pairs, self._orders.get("mlperf_pairs", 0))
        self.judged_pairs = pairs
        if Phase(pairs=pairs).is_joint and not self.options.against:
            self.phase = Phase(pairs=pairs, once=True)
            self.config.pluginmanager.register(self.deferral_plugin, "mlperf-holding")

    @cached_property
    def progress(self) -> SessionProgress:
        """Journal of the session, and results of the session that it resumes."""
        return SessionProgress(self.options, self.folder, self.config.rootpath, self.commit)

    def notice(self, line: str) -> None:
        """Add a line to print below the summary."""
        self.keeping.lines.append(visible(line))

    @property
    def is_worker(self) -> bool:
        """Whether this is an xdist worker."""
        return hasattr(self.config, "workerinput")

    def judge(self, planned: Testable, kind: Kind) -> Verdict:
        """Return the verdict of a test; make the missing measurements first."""
        metered = self.options.metered or is_metered(planned)
        if kind == Kind.EFFICIENCY and not metered:
            if self.options.energy.power == "off":
                raise SkippedCase("efficiency not measured: mlperf_power=off")
            require_power_source(planned.case)
        tests = self.kinds.get((planned.path, planned.case.id), {kind})
        self.live.begin(planned)
        with self.live:
            if isinstance(planned, PlannedPair):
                return self.bench.pair(planned)
            verdict = self.bench.verdict(planned, kind, tests, self.judging_phase(planned))
        if not self.waits(planned, verdict):
            verdict = self.with_criteria(planned, verdict)
        pretended = self.options.pretend in planned.accelerators
        return with_unjudged_note(verdict, fail_on=self.options.fail_on, pretended=pretended)

    def with_criteria(self, planned: Testable | None, verdict: Verdict) -> Verdict:
        """Return a verdict after add-ons' criteria (hook `mlperf_verdict`); ERROR if one fails."""
        calls = self.addons.call(
            "mlperf_verdict",
            addons.as_criterion,
            verdict=verdict,
            baselines=AcceptedBaselines(verdict, self.config.rootpath),
            planned=planned,
            options=self.options.by_name,
        )
        last = verdict
        try:
            for criterion in calls:
                last = with_criterion(last, criterion)
        except addons.AddOnError as error:
            return replace(verdict, outcome=Outcome.ERROR, headline=str(error))
        return last

    @cached_property
    def deferral_plugin(self) -> DeferredTests:
        """Plugin that defers tests to the session's end; registered only if `holds` is true."""
        return DeferredTests(self)

    @property
    def holds(self) -> bool:
        """Whether verdicts are deferred to the session's end and adjusted for multiplicity."""
        return self.phase.is_joint or (self.folder / HELD_FOLDER).exists()

    def judging_phase(self, planned: Testable) -> Phase:
        """Return how a case is judged: jointly with the session, or alone if not of a suite."""
        return self.phase if (planned.path, planned.case.id) in self.kinds else LONE_PHASE

    def waits(self, planned: Testable, verdict: Verdict) -> bool:
        """Whether a verdict may still change when verdicts are judged jointly at the end."""
        return self.judging_phase(planned).is_joint and self.deferral_plugin.may_change(verdict)

    @property
    def bench(self) -> Bench:
        """Runner that measures and judges the cases; created by the first test."""
        if self._bench is None:
            try:
                ignored_in_git(self.options.runs_dir)
            except OSError as error:
                pytest.exit(
                    f"mlperf: {self.options.runs_dir} cannot be written ({error.strerror}); "
                    "name another folder: --mlperf-runs-dir DIR",
                    returncode=addons.EXIT_ENVIRONMENT,
                )
            self._bench = measuring.bench_for(
                self.options,
                self.folder,
                commit=self.commit,
                machine=self.selection.machine,
                root=self.config.rootpath,
                show=self.live.show,
                judged_pairs=self.judged_pairs,
            )
        return self._bench

    def close(self) -> None:
        """Delete temporary files of the session."""
        if self._bench:
            self._bench.close()

    def fails(self, planned: Testable, verdict: Verdict) -> bool:
        """Whether a verdict fails its test under this session's options."""
        pretended = self.options.pretend in planned.accelerators
        return fails(verdict, fail_on=self.options.fail_on, pretended=pretended)

    def message_of(self, result: CaseResult) -> str:
        """Return the failure message of a result."""
        width = self._orders.get("mlperf_columns") or self.live.columns
        record = self._bench.record(result.verdict.case) if self._bench else None
        likely = causes(result.verdict, record, [one.verdict for one in self.results])
        return text.failure(result, width, likely)

    def keep(self, item: pytest.Item, planned: Testable, verdict: Verdict) -> CaseResult:
        """Attach a verdict to its test, for reports and the results file; return the result."""
        rate = self.bench.rate(planned)
        waits = self.waits(planned, verdict)
        failed = not waits and self.fails(planned, verdict)
        result = self.result_of(item, planned, verdict, failed=failed, rate=rate)
        return put(item, result if waits else self.suspicion.fail_repeated_drop(result))

    def result_of(
        self,
        item: pytest.Item,
        planned: Testable,
        verdict: Verdict,
        *,
        failed: bool,
        rate: tuple[float | None, str | None] = (None, None),
    ) -> CaseResult:
        """Return a test's result, with facts of add-ons; `rate` is (target_qps, its source)."""
        arguments = self._orders.get("mlperf_arguments")
        if arguments is None:
            arguments = measuring.reproducing(self.config.invocation_params.args)
        judged = isinstance(planned, PlannedBenchmark)
        if judged and not any(argument.startswith(JUDGE) for argument in arguments):
            arguments = (JUDGE, *arguments)  # which an ini file may ask for
        limits, suite, options = planned.limits, planned.suite, self.options
        root = self.config.rootpath
        if verdict.kind == Kind.EFFICIENCY and not isinstance(planned, PlannedPair):
            limits = planned.efficiency_limits
        files = [root / file for file in (planned.path, verdict.baseline.file) if file]
        digests = {str(file.resolve()): digest for file in files if (digest := digest_of(file))}
        # Here what others wrote becomes part of a result, which every file must be able to hold.
        result = CaseResult(
            test=item.nodeid,
            suite=str(planned.path.resolve()),
            line=planned.line,
            round=suite.round,
            profile=suite.profile,
            verdict=verdict,
            failed=failed,
            limits=limits,
            scored=Kind.ACCURACY in planned.kinds,
            handicap=options.handicap,
            max_runs=measuring.most_runs(options),
            arguments=tuple(arguments),
            pretended=options.pretend in planned.accelerators,
            target_qps=rate[0],
            qps_source=rate[1],
            division=suite.division,
            techniques=planned.techniques,
            pairs=self.judging_phase(planned).joint_pairs if verdict.kind in DROP_OUTCOMES else 0,
            elsewhere=planned.elsewhere,
            expected_failures=known_failures(planned),
            rests_on=digests,
        )
        return self.suspicion.marked(
            _with_facts(self, planned, measuring.with_relative_paths(root, result))
        )

    def record(self, report: Any) -> None:
        """Add the result attached to a test's report; an xdist controller gets results only so."""
        result = case_result().validate_python(report.mlperf)
        self.results.append(result)
        if not self.is_worker:
            self.progress.add_result(result, self.keeping)

    @property
    def notices(self) -> dict[str, Any]:
        """Messages of an xdist worker to the controller by key, such as "deferred" and "faults"."""
        return {
            "selection": self.selection.notices,
            "pairs": self.phase.pairs,
            "deferred": self.deferral_plugin.packed if self.holds else [],
            "faults": (list(self.addons.warnings), list(self.addons.errors)),
            "unjudged": self.unjudged,
        }

    def copy_notices(self, notices: Mapping[str, Any]) -> None:
        """Copy the `notices` of an xdist worker to this controller."""
        self.phase = Phase(pairs=notices["pairs"])
        if deferred := notices["deferred"]:
            self.deferral_plugin.add_deferred(deferred)
        self.selection.take(*notices["selection"])
        self.addons.add_messages(*notices["faults"])
        self.unjudged = notices["unjudged"]

    @cached_property
    def commit(self) -> str | None:
        """Commit of the tested project, read at the first access; None outside git."""
        if "mlperf_commit" in self._orders:
            return cast(str | None, self._orders["mlperf_commit"])
        folder = self.options.baselines
        return commit_of(self.config.rootpath, [folder] if folder else [])

    @property
    def summary(self) -> Results:
        """All results so far as a `Results` document."""
        versions = {}
        for name in ("pytest-mlperf", "pytest", "mlcommons-loadgen"):
            with suppress(PackageNotFoundError):  # files of other tools are judged without LoadGen
                versions[name] = version(name)
        return Results(
            run=self.run_id,
            started=self._started.isoformat(timespec="seconds"),
            seconds=round(time.monotonic() - self._clock, 1),
            commit=self.commit,
            versions=versions,
            deselected=dict(self.selection.not_here),
            cases=by_case(self.results) if self.phase.is_joint else tuple(self.results),
            skipped=measuring.with_relative_paths(self.config.rootpath, dict(self.skipped)),
            pairs=self.phase.joint_pairs,
            suspects=self.suspicion.after(self.results),
            resumes=self.progress.resumes,
        )

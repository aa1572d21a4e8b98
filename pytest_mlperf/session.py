"""The one object that holds a pytest session's state, in `config.stash`."""

from __future__ import annotations

import dataclasses
import datetime as dt
import os
import time
from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn, cast

import pytest

from pytest_mlperf import plugin
from pytest_mlperf.bench import Bench
from pytest_mlperf.carry import VERDICT, case_result, planned_of
from pytest_mlperf.case_runs import Policy, Update, baselines_root
from pytest_mlperf.core.case import Kind, Profile
from pytest_mlperf.core.errors import MlperfError, SuiteError, UnavailableError
from pytest_mlperf.core.results import CaseResult, Results
from pytest_mlperf.core.verdict import Verdict
from pytest_mlperf.hardware.machine import Machine, detect, split
from pytest_mlperf.invocation import commit_of, ignore_in_git, reproducing, run_id
from pytest_mlperf.live import Live
from pytest_mlperf.options import Options, read_options
from pytest_mlperf.reports import selection, text
from pytest_mlperf.reports.properties import properties
from pytest_mlperf.run.steady import Conditions
from pytest_mlperf.run.supervisor import Patience
from pytest_mlperf.run.wall import Meter
from pytest_mlperf.stores.results import write_results
from pytest_mlperf.suite.pairs import PlannedPair, Testable
from pytest_mlperf.suite.plan import Planned
from pytest_mlperf.verdicts import fails, require_power_source

KINDS: dict[str, Kind] = {
    "test_accuracy": "accuracy",
    "test_performance": "performance",
    "test_efficiency": "efficiency",
    "test_pair": "pair",
}
"""What each function of `pytest_mlperf.checks` asks for."""

EXIT_ENVIRONMENT = 3
"""Exit code when the accelerator that was required is not here."""


def of(config: pytest.Config) -> MlperfSession:
    """Return the session of a config, made at the first call."""
    if plugin.SESSION not in config.stash:
        config.stash[plugin.SESSION] = MlperfSession(config)
    return cast(MlperfSession, config.stash[plugin.SESSION])


class MlperfSession:
    """Everything between collection and the last line of the summary."""

    def __init__(self, config: pytest.Config) -> None:
        """Read the options; nothing is measured or written yet."""
        self.config = config
        self.options: Options = read_options(config)
        self.run_id = run_id(config)
        self.folder = self.options.runs_dir / "runs" / self.run_id
        self.uncollected: list[Path] = []
        self.not_here: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()
        self.results: list[CaseResult] = []
        self.live = Live(config)
        self._written: list[str] = []
        self._wanted: dict[tuple[Path, str], set[Kind]] = {}
        self._plan: list[Testable] = []
        self._claimed: dict[tuple[Path, str, str], Path] = {}
        self._bench: Bench | None = None
        self._machine: Machine | None = None
        self._started = dt.datetime.now(dt.UTC)
        self._clock = time.monotonic()

    # --- collection ----------------------------------------------------------------------

    def adjust(self, planned: list[Planned]) -> list[Planned]:
        """Apply `--mlperf-profile` to freshly planned cases."""
        profile = self.options.profile
        if profile is None:
            return planned
        suites = {id(p.suite): p.suite for p in planned}
        forced = {
            key: suite.model_copy(update={"profile": cast(Profile, profile)})
            for key, suite in suites.items()
        }
        return [dataclasses.replace(p, suite=forced[id(p.suite)]) for p in planned]

    def claim(self, planned: list[Planned]) -> None:
        """Note which suite describes which case: two suites would judge each other's baseline.

        Raises:
            SuiteError: Names both suites and the case.
        """
        first = planned[0]
        root = baselines_root(self.options.baselines, first.path, first.suite.division)
        for case in planned:
            other = self._claimed.setdefault((root, case.suite.profile, case.case.id), case.path)
            if other != case.path:
                raise SuiteError(
                    f"{case.path}:{case.line}: {case.case.id} is described by {other} too, and "
                    "both would share one baseline: rename the workload or the engine entry in one"
                )

    def look_for(self, accelerators: set[str]) -> None:
        """Look at this machine; NVML is only asked when some case wants a GPU."""
        gpus = any(split(accelerator)[1] != "cpu" for accelerator in accelerators)
        self._machine = detect(gpus=gpus)

    def is_here(self, planned: Testable) -> bool:
        """Whether a case can run here; counts it when it cannot. A plan is of every machine."""
        required, pretended = self.options.accelerator, self.options.pretend
        here = all(name == pretended or self.machine.has(name) for name in planned.accelerators)
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
        self.look_for({name})
        if not self.machine.has(name) and name != self.options.pretend:
            pytest.exit(
                f"mlperf: accelerator {name} is required and not here; here: {self.machine.seen}",
                returncode=EXIT_ENVIRONMENT,
            )

    def planned_items(self, items: Iterable[pytest.Item]) -> None:
        """Note which kinds of each case were selected, so that one process serves them all."""
        for item in items:
            planned = planned_of(item)
            if planned:
                kind = KINDS[item.originalname]  # type: ignore[attr-defined]
                self._wanted.setdefault((planned.path, planned.case.id), set()).add(kind)
                self._plan.append(planned)

    # --- judging -------------------------------------------------------------------------

    def judge(self, planned: Testable, kind: Kind) -> Verdict:
        """Return the verdict of one test, measuring what is missing.

        Raises:
            UnavailableError: Model or data set is not here.
        """
        if kind == "efficiency" and not self.options.meter:
            if self.options.power == "off":
                raise pytest.skip.Exception("--mlperf-power=off: efficiency is left out")
            require_power_source(planned.case)
        wanted = self._wanted.get((planned.path, planned.case.id), {kind})
        with self.live:
            if isinstance(planned, PlannedPair):
                return self.bench.pair(planned)
            return self.bench.verdict(planned, kind, wanted)

    @property
    def bench(self) -> Bench:
        """The measuring side, made when the first test asks."""
        if self._bench is None:
            try:
                ignore_in_git(self.options.runs_dir)
            except OSError as error:
                pytest.exit(
                    f"mlperf: {self.options.runs_dir} cannot be written ({error.strerror}); "
                    "name another folder with --mlperf-runs-dir",
                    returncode=EXIT_ENVIRONMENT,
                )
            conditions = Conditions(
                folder=self.folder,
                session=self.run_id,
                commit=self._commit,
                handicap=self.options.handicap,
                patience=Patience(progress_s=self.options.timeout),
                lease_limit_s=self.options.lease_timeout,
                machine=self.machine,
                power=self.options.power != "off",
                meter=Meter.at(self.options.meter, self.options.meter_offset),
                control=self.options.control != "off",
            )
            policy = Policy(
                update=cast("Update | None", self.options.update),
                baseline_runs=self.options.baseline_runs,
                reason=self.options.reason,
                max_runs=self.options.max_runs,
                baselines=self.options.baselines,
                accuracy=self.options.runs_dir / "accuracy",
                root=self.config.rootpath,
            )
            self._bench = Bench(conditions, policy, self.live.show)
        return self._bench

    def unavailable(self, error: UnavailableError) -> NoReturn:
        """Skip, or fail where a silent skip would hide that nothing was tested."""
        if self.options.strict or os.environ.get("CI") or self.options.power == "require":
            why = "a skip becomes a failure under CI and --mlperf-strict"
            raise pytest.fail.Exception(f"{error} ({why})", pytrace=False) from None
        raise pytest.skip.Exception(str(error)) from None

    def fails(self, planned: Testable, verdict: Verdict) -> bool:
        """Whether a verdict fails its test, under this session's options."""
        named = planned.suite.profile == "official" and planned.case.accelerator != "cpu"
        asked = {name: getattr(self.options, name) for name in ("inconclusive", "no_baseline")}
        return fails(verdict.outcome, **asked, named=named)

    def message(self, item: pytest.Item, planned: Testable, verdict: Verdict) -> str:
        """Return the failure message."""
        reporter: Any = self.config.pluginmanager.getplugin("terminalreporter")
        width = reporter._tw.fullwidth if reporter else 80
        return text.failure(verdict, self._result(item, planned, verdict, failed=True), width)

    def keep(self, item: pytest.Item, planned: Testable, verdict: Verdict, *, failed: bool) -> None:
        """Put a verdict on the test: for the report, JUnit properties and the results file."""
        result = self._result(item, planned, verdict, failed=failed)
        item.stash[VERDICT] = result
        item.user_properties += properties(result)

    def _result(
        self, item: pytest.Item, planned: Testable, verdict: Verdict, *, failed: bool
    ) -> CaseResult:
        root = self.config.rootpath
        path = planned.path.resolve()
        rate, source = self.bench.rate(planned)
        return CaseResult(
            test=item.nodeid,
            suite=str(path.relative_to(root) if path.is_relative_to(root) else path),
            line=planned.line,
            round=planned.suite.round,
            profile=planned.suite.profile,
            verdict=verdict,
            failed=failed,
            limits=planned.limits,
            scored="accuracy" in planned.kinds,
            handicap=self.options.handicap,
            max_runs=self.options.max_runs,
            arguments=reproducing(self.config.invocation_params.args),
            pretended=self.options.pretend in planned.accelerators,
            target_qps=rate,
            qps_source=source,
            division=planned.suite.division,
            techniques=planned.techniques,
        )

    def record(self, report: Any) -> None:
        """Take a verdict from a report: the only way it reaches a controller of xdist."""
        self.results.append(case_result().validate_python(report.mlperf))

    def take_notices(self, not_here: dict[str, int], uncollected: list[str]) -> None:
        """Take what an xdist worker left out; every worker collects, and so leaves out, the same.

        Args:
            not_here: Tests deselected by accelerator.
            uncollected: Suite files that were not collected.
        """
        self.not_here = Counter(not_here)
        self.uncollected = [Path(path) for path in uncollected]

    def finish(self, session: pytest.Session) -> None:
        """Write the results file; an xdist worker only tells the controller what it left out.

        Verdicts that cannot be kept end the session with exit code 3: they are lost otherwise.
        """
        if hasattr(self.config, "workerinput"):
            left_out = (dict(self.not_here), list(map(str, self.uncollected)))
            self.config.workeroutput["mlperf_notices"] = left_out  # type: ignore[attr-defined]
        elif self.results:
            for path in filter(None, (self.folder / "results.json", self.options.json)):
                try:
                    write_results(path, self.summary)
                    self._written.append(f"results: {selection.relative(path)}")
                except MlperfError as error:
                    self._written.append(f"ERROR {error}")
                    session.exitstatus = session.exitstatus or EXIT_ENVIRONMENT

    @cached_property
    def _commit(self) -> str | None:
        """The commit when it was first asked for: what the measurements belong to."""
        return commit_of(self.config.rootpath)

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
            cases=tuple(self.results),
        )

    def summarise(self, reporter: Any) -> None:
        """Print the summary."""
        width = reporter._tw.fullwidth
        lines = selection.notices(
            self.uncollected,
            self.not_here,
            self.machine.names,
            width,
            what="planned" if self._plans_all else "deselected",
        )
        lines += selection.skips(self.skipped, width)
        if self.options.plan and self._plan:
            cases = list({(p.path, p.case.id): p for p in self._plan}.values())
            lines += selection.plan(cases, self._wanted, width, max_runs=self.options.max_runs)
        elif self.results:
            lines += text.summary(self.summary, width, colour=reporter._tw.hasmarkup)
            lines += self._written
        if lines:
            reporter.write_sep("=", "mlperf")
            for line in lines:
                reporter.write_line(line)

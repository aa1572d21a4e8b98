"""The one object that holds a pytest session's state, in `config.stash`."""

from __future__ import annotations

import datetime as dt
import os
import time
from collections import Counter
from collections.abc import Iterable
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn, cast

import pytest

from pytest_mlperf import plugin
from pytest_mlperf.bench import Bench
from pytest_mlperf.carry import VERDICT, case_result, planned_of
from pytest_mlperf.core.case import Kind
from pytest_mlperf.core.causes import causes
from pytest_mlperf.core.errors import UnavailableError
from pytest_mlperf.core.foreign_text import visible
from pytest_mlperf.core.judge.together import FALLS, is_open
from pytest_mlperf.core.results import CaseResult, Results, by_case
from pytest_mlperf.core.verdict import Verdict
from pytest_mlperf.hardware.machine import Machine, detect, split
from pytest_mlperf.held import Holding
from pytest_mlperf.invocation import commit_of, reproducing, run_id
from pytest_mlperf.keeping import Keeping, unforeseen
from pytest_mlperf.live import Live
from pytest_mlperf.measuring import bench_for, pairs_of, planned_pairs, result_of
from pytest_mlperf.options import Options, read_options
from pytest_mlperf.phases import ALONE, Phase
from pytest_mlperf.reports import selection, text
from pytest_mlperf.reports.properties import properties
from pytest_mlperf.run.folders import ignored_in_git
from pytest_mlperf.stores.results import write_results
from pytest_mlperf.suite.pairs import PlannedPair, Testable
from pytest_mlperf.suspicion import remember
from pytest_mlperf.verdicts import fails, is_named, require_power_source, unjudged_told

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
        self.skipped: dict[str, str] = {}
        self.results: list[CaseResult] = []
        self.live = Live(config)
        self.phase = ALONE
        self.holding = Holding(self)
        self._keeping = Keeping()
        self._wanted: dict[tuple[Path, str], set[Kind]] = {}
        self._plan: list[Testable] = []
        self.claimed: dict[tuple[Path, str, str], Path] = {}
        self._bench: Bench | None = None
        self._machine: Machine | None = None
        self._started = dt.datetime.now(dt.UTC)
        self._clock = time.monotonic()

    # --- collection ----------------------------------------------------------------------

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
        """Note which kinds of each case were selected, so that one process serves them all.

        With many gated pairs among them they are judged together, in two phases; where they are a
        part of a plan, with all of it.
        """
        pairs, tests = 0, []
        for item in items:
            planned = planned_of(item)
            if planned:
                tests.append(item.nodeid)
                kind = KINDS[item.originalname]  # type: ignore[attr-defined]
                self._wanted.setdefault((planned.path, planned.case.id), set()).add(kind)
                self._plan.append(planned)
                pairs += pairs_of(planned, kind, self.options)
        if pairs and self.options.manifest:
            pairs = planned_pairs(self.options.manifest, tests, pairs)
        if Phase(pairs=pairs).many:
            self.phase = Phase(pairs=pairs, once=True)
            self.config.pluginmanager.register(self.holding, "mlperf-holding")

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
            verdict = self.bench.verdict(planned, kind, wanted, self.phase_of(planned))
        asked, named = self.options.no_baseline, self._named(planned)
        return unjudged_told(verdict, no_baseline=asked, named=named)

    def phase_of(self, planned: Testable) -> Phase:
        """Return how a case is judged; what no suite has is not known before, and judged alone."""
        return self.phase if (planned.path, planned.case.id) in self._wanted else ALONE

    def waits(self, planned: Testable, verdict: Verdict) -> bool:
        """Whether a verdict is not final before the end of the session."""
        return self.phase_of(planned).many and is_open(verdict)

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
        if self.options.strict or os.environ.get("CI") or self.options.power == "require":
            why = "a skip becomes a failure under CI and --mlperf-strict"
            raise pytest.fail.Exception(f"{reason} ({why})", pytrace=False) from None
        raise pytest.skip.Exception(reason) from None

    def fails(self, planned: Testable, verdict: Verdict) -> bool:
        """Whether a verdict fails its test, under this session's options."""
        asked = {name: getattr(self.options, name) for name in ("inconclusive", "no_baseline")}
        return fails(verdict.outcome, **asked, named=self._named(planned))

    def _named(self, planned: Testable) -> bool:
        pretended = self.options.pretend in planned.accelerators
        return is_named(planned.case.accelerator, pretended=pretended)

    def message(self, item: pytest.Item, planned: Testable, verdict: Verdict) -> str:
        """Return the failure message."""
        return self.message_of(self._result(item, planned, verdict, failed=True))

    def message_of(self, result: CaseResult) -> str:
        """Return the failure message of a result."""
        reporter: Any = self.config.pluginmanager.getplugin("terminalreporter")
        width = reporter._tw.fullwidth if reporter else 80
        record = self._bench.record(result.verdict.case) if self._bench else None
        found = causes(result.verdict, record, [one.verdict for one in self.results])
        return text.failure(result.verdict, result, width, found)

    def keep(self, item: pytest.Item, planned: Testable, verdict: Verdict, *, failed: bool) -> None:
        """Put a verdict on the test: for the report, JUnit properties and the results file."""
        result = self._result(item, planned, verdict, failed=failed)
        item.stash[VERDICT] = result
        item.user_properties += properties(result)

    def _result(
        self, item: pytest.Item, planned: Testable, verdict: Verdict, *, failed: bool
    ) -> CaseResult:
        return result_of(
            planned,
            verdict,
            test=item.nodeid,
            root=self.config.rootpath,
            options=self.options,
            arguments=reproducing(self.config.invocation_params.args),
            rate=self.bench.rate(planned),
            pairs=self.phase_of(planned).together if verdict.kind in FALLS else 0,
            failed=failed,
        )

    def record(self, report: Any) -> None:
        """Take a verdict from a report: the only way it reaches a controller of xdist."""
        self.results.append(case_result().validate_python(report.mlperf))

    def take_notices(
        self, not_here: dict[str, int], uncollected: list[str], pairs: int, held: list[str]
    ) -> None:
        """Take what an xdist worker left out; every worker collects, and so leaves out, the same.

        Args:
            not_here: Tests deselected by accelerator.
            uncollected: Suite files that were not collected.
            pairs: Gated pairs of the session.
            held: Tests that this worker measured and whose verdicts depend on all others.
        """
        self.phase = Phase(pairs=pairs)
        self.holding.take(held)
        self.not_here = Counter(not_here)
        if not_here and self._machine is None:
            self.look_for(set(not_here))  # for why they are not here
        self.uncollected = [Path(path) for path in uncollected]

    def finish(self, session: pytest.Session) -> None:
        """Write the results file; an xdist worker only tells the controller what it left out.

        Verdicts that cannot be kept end the session with exit code 3: they are lost otherwise.
        """
        if hasattr(self.config, "workerinput"):
            left_out = (dict(self.not_here), list(map(str, self.uncollected)))
            notices = (*left_out, self.phase.pairs, self.holding.packed)
            self.config.workeroutput["mlperf_notices"] = notices  # type: ignore[attr-defined]
        elif self.results or (self.skipped and self.options.json):
            summary = self.summary  # once: its length of time goes on
            own = self.folder / "results.json" if self.results else None
            for path in filter(None, (own, self.options.json)):
                write, told = partial(write_results, path, summary), selection.relative(path)
                if not self._keeping.keep("the results", write, f"results: {told}"):
                    session.exitstatus = session.exitstatus or EXIT_ENVIRONMENT
            suspects = partial(remember, self.results, self.options.runs_dir)
            self._keeping.keep("the tests that are SUSPECT", suspects)

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
            cases=by_case(self.results) if self.phase.many else tuple(self.results),
            skipped=dict(self.skipped),
            pairs=self.phase.together,
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
        what = "planned" if self._plans_all else "deselected"
        here = self.machine.seen
        lines = selection.notices(self.uncollected, self.not_here, here, width, what=what)
        lines += selection.skips(Counter(self.skipped.values()), width)
        if self.options.plan and self._plan:
            cases = list({(p.path, p.case.id): p for p in self._plan}.values())
            return lines + selection.plan(
                cases, self._wanted, width, max_runs=self.options.max_runs
            )
        if self.results:
            lines += text.summary(self.summary, width, colour=colour)
        return lines + self._keeping.lines

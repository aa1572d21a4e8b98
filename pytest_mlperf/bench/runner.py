"""Run a case in fresh processes; repeat INVALID runs; search the highest valid rate."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from typing import Protocol

from pytest_mlperf.core.baseline import Record
from pytest_mlperf.core.case import Scenario
from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.job import (
    LOADED_QUERIES,
    AuditRun,
    Job,
    MeasuredCase,
    Search,
    raise_problems,
)
from pytest_mlperf.core.measurement import Run, Subject
from pytest_mlperf.core.metrics import CONCURRENCY, SEARCH_METRICS
from pytest_mlperf.core.notes import Note
from pytest_mlperf.core.numbers import plural
from pytest_mlperf.core.reason import Key, Reason
from pytest_mlperf.core.search import (
    MAX_LOG_STEP,
    Condition,
    NoRate,
    SearchPlan,
    SearchRun,
    first_search_step,
    next_rate,
    search_entry,
    search_outcome,
)
from pytest_mlperf.hardware.host import usable_cores
from pytest_mlperf.registry import clients_of
from pytest_mlperf.run.accuracy import ScoringSchedule
from pytest_mlperf.run.builds import Build
from pytest_mlperf.run.child.reporter import one_line
from pytest_mlperf.run.conditions import Conditions
from pytest_mlperf.run.logs import DETAIL
from pytest_mlperf.run.measure import ProcessResult, ProcessTask, measure
from pytest_mlperf.run.project import new_folder
from pytest_mlperf.stores.atomic import DISK_FULL, disk_of
from pytest_mlperf.suite.pairs import PlannedCase
from pytest_mlperf.suite.plan import Planned
from pytest_mlperf.suite.resolve import Problems, resolve

KEY = "find"
"""Fingerprint key of the conditions of a searched rate."""

ENOUGH_QUERIES = LOADED_QUERIES
"""With as many queries, LoadGen's early stopping fails a run only if some were late."""


@dataclass(frozen=True, kw_only=True)
class SearchState:
    """Describe a next run: rate (None if unknown), conditions, and compliance test (or None)."""

    rate: float | None
    conditions: Conditions
    audit: AuditRun | None = None


class Searches:
    """Run a case's rate searches; each one starts at the rate that the last one found."""

    def __init__(
        self, job: MeasuredCase, find: Search, conditions: Conditions, record: Record | None
    ) -> None:
        """Store the inputs; the first search starts at the baseline's rate if there is one."""
        self._job = job
        self._find = find
        self._conditions = conditions
        self._limits = (
            *find.conditions,
            *(Condition(metric=m, below=s) for m, s in job.latency_limits.items()),
        )
        same = record is not None and record.fingerprint.get(KEY) == job.facts.get(KEY)
        runs = record.runs if record is not None and same else ()
        self._metric = CONCURRENCY if find.bounds else "throughput"
        self._rates = [run.metrics[self._metric] for run in runs if self._metric in run.metrics]
        self._done = 0

    def run(self, case: RatedCase, attempt: Callable[[SearchState], Run]) -> Run:
        """Search the highest rate or concurrency within the limits; return a run that reports it.

        Its other metrics were measured at the highest rate within the limits. Raises Unjudgeable
        if no rate was found, or a run is INVALID for a reason other than latency.
        """
        self._done += 1
        folder = new_folder(self._conditions.folder, f"{self._job.case.id}.search-{self._done}")
        inside = replace(self._conditions, folder=folder)
        plan = self._plan()
        runs: list[Run] = []
        tries: list[SearchRun] = []
        rate = next_rate(tries, plan) if plan else None
        while not tries or rate is not None:
            at = SearchState(rate=rate, conditions=inside)
            run = _without_points(valid_run(case, partial(_attempt_run, attempt, at)))
            rate = rate or run.target_qps
            plan = plan or self._planned_from(rate)
            runs.append(run)
            tries.append(self._tried(rate, run))
            rate = next_rate(tries, plan)
        assert plan is not None
        best = self._best(case, tries, runs, plan, folder)
        self._rates.append(best.metrics[self._metric])
        return best

    def _tried(self, rate: float, run: Run) -> SearchRun:
        names = [one.metric for one in self._limits if one.metric not in run.metrics]
        if names:
            raise RunError(
                "engine",
                f"find.subject_to has {', '.join(names)}, which the engine does not report; "
                f"it reports {', '.join(run.metrics)}",
                str(Path(run.folder) / DETAIL),
            )
        return search_entry(
            rate, run.metrics, self._limits, is_invalid=run.limit_missed, folder=run.folder
        )

    def _best(
        self,
        case: RatedCase,
        tries: Sequence[SearchRun],
        runs: Sequence[Run],
        plan: SearchPlan,
        folder: Path,
    ) -> Run:
        try:
            search = search_outcome(tries, plan, self._job.facts[KEY])
        except NoRate as error:
            invalid = replace(runs[-1], invalid=(Reason(key=Key.NO_RATE, text=str(error)),))
            case.invalid_runs.append(invalid)
            raise Unjudgeable(invalid) from None
        places = [i for i, one in enumerate(tries) if one.rate == search.low]
        best = runs[places[-1]]
        return replace(
            best,
            metrics={**best.metrics, self._metric: search.rate},
            within_se=dict.fromkeys(
                SEARCH_METRICS & self._job.limits.keys(), search.standard_error
            ),
            started=runs[0].started,
            folder=str(folder),
            search=search,
        )

    def _plan(self) -> SearchPlan | None:
        if self._rates:
            mean = geometric_mean(self._rates)
            step = first_search_step(self._job.limits[self._metric])
            return replace(self._planned_from(mean), step=step)
        start, bounds = self._find.start, self._find.bounds
        if start is None and bounds:
            return replace(self._planned_from(geometric_mean(bounds)), step=MAX_LOG_STEP)
        return self._planned_from(start) if start is not None else None

    def _planned_from(self, start: float) -> SearchPlan:
        find, bounds = self._find, self._find.bounds
        return SearchPlan(
            start=start, bounds=bounds, precision=find.precision, max_runs=find.max_runs
        )


def condition_differs(job: MeasuredCase, record: Record) -> str | None:
    """Return a message if suite and baseline differ in rate or search conditions, else None."""
    ours, theirs = job.facts.get(KEY), record.fingerprint.get(KEY)
    if ours == theirs:
        return None
    noun, offers, offered = "rate", "sends a fixed rate", "was measured"
    offered += f" at {record.target_qps:g}/s" if record.target_qps else " at a fixed rate"
    if job.case.scenario == Scenario.CONCURRENCY:
        noun, offers, offered = CONCURRENCY, "measures fixed points", "was measured at fixed points"
    suite = f"searches the highest {noun} with {ours}" if ours else offers
    baseline = f"searched the highest {noun} with {theirs}" if theirs else offered
    return f"condition differs: the suite {suite}, the baseline {baseline}"


def _without_points(run: Run) -> Run:
    """Remove the concurrency, such as "@64", from metric names: each search ends at another one."""
    metrics, server = (
        {name.partition("@")[0]: value for name, value in figures.items()}
        for figures in (run.metrics, run.serving.server)
    )
    return replace(run, metrics=metrics, serving=replace(run.serving, server=server))


def _attempt_run(attempt: Callable[[SearchState], Run], state: SearchState) -> Run:
    """Make a run; if early stopping alone makes it INVALID, return it as `limit_missed` instead."""
    run = attempt(state)
    if not run.invalid or run.queries < ENOUGH_QUERIES:
        return run
    if all(reason.key is Key.EARLY_STOPPING for reason in run.invalid):
        return replace(run, invalid=(), limit_missed=True)
    return run


INVALID_TRIES = 3
"""Maximum number of tries of a run."""

LASTING_REASONS = frozenset(
    {Key.GPU_LOST, Key.TOO_FEW_REQUESTS, Key.TOKENS_MISCOUNTED, Key.SERVER_HARDWARE}
)
"""Reasons that the next run would have too: it is not repeated."""

LONGER_RUN_FACTOR = 1.2
"""Factor on the expected rate of an Offline run that was too short: it was sized for less speed."""


class Unjudgeable(Exception):
    """Report that a run was INVALID in every attempt; `run` is the last attempt."""

    def __init__(self, run: Run) -> None:
        super().__init__(", ".join(reason.key for reason in run.invalid))
        self.run = run

    @property
    def note(self) -> Note:
        """Reasons why the last attempt is INVALID."""
        return Note.of("reasons", reasons=tuple(reason.text for reason in self.run.invalid))


class RatedCase(Protocol):
    """Define what `valid_run` needs of a case: job, rate of the next run, list of INVALID runs."""

    @property
    def job(self) -> MeasuredCase:
        """Settings to measure and judge the case."""

    rate: float | None
    invalid_runs: list[Run]

    def add_clients(self) -> None:
        """Use more client processes in the next run; do nothing if their number cannot grow."""


def valid_run(case: RatedCase, attempt: Callable[[], Run]) -> Run:
    """Call `attempt` until it returns a valid run; add INVALID ones to the case.

    The next attempt has a higher rate in Offline, and more client processes if the client was slow.
    """
    for left in reversed(range(INVALID_TRIES)):
        run = attempt()
        if not run.invalid:
            return run
        case.invalid_runs.append(run)
        if any(reason.key in LASTING_REASONS for reason in run.invalid):
            break
        if left and any(reason.key is Key.CLIENT_LATE for reason in run.invalid):
            case.add_clients()
        if left and case.job.case.scenario == Scenario.OFFLINE:
            case.rate = max(
                case.rate or 0.0, LONGER_RUN_FACTOR * run.metrics.get("throughput", 0.0)
            )
    raise Unjudgeable(run)


Show = Callable[[str], None]


class CaseRunner:
    """Run one case, one fresh process at a time.

    Attributes:
        rate: Offered or expected rate [1/s]; None until the first process has measured it.
        runs: Valid performance runs, oldest first.
        subject: System measured by the performance runs, else by the accuracy pass.
        scored_subject: System measured by the accuracy pass, with its own data.
        files: Files of the project that processes of `subject` imported.
        scored_files: Files of the project that processes of `scored_subject` imported.
        left_out: Runs of pairs that are left out because of load, see `Interleaved.add_pair`.
        clients: Number of client processes, unless the suite sets it.
        pair: Number of the interleaved pair of its next run; 0 if none.
    """

    clients = 1
    pair = 0

    def __init__(
        self,
        planned: PlannedCase,
        conditions: Conditions,
        show: Show,
        *,
        rate: float | None,
        record: Record | None = None,
        build: Build | None = None,
        done: int = 0,
        label: str = "",
        search: bool = True,
        job: MeasuredCase | None = None,
    ) -> None:
        """Store the inputs; `done` counts earlier processes of the case.

        A `rate` of None is probed; a `job` of None is made from the case. `search` permits rate
        searches. `label` becomes part of the names of run folders.
        """
        self.planned = planned
        self.rate = rate
        self.runs: list[Run] = []
        self.invalid_runs: list[Run] = []
        self.left_out: list[Run] = []
        self.session = conditions.session
        self.subject: Subject | None = None
        self.scored_subject: Subject | None = None
        self.files: tuple[str, ...] = ()
        self.scored_files: tuple[str, ...] = ()
        machine = replace(conditions.machine, limit_w=planned.limit_w)
        self.conditions = replace(conditions, machine=machine)
        self.show = show
        self._build = build
        self._label = label
        self._record = record
        self._search = search
        self._searches: Searches | None = None
        self._resolved: dict[bool, MeasuredCase | Problems] = {} if job is None else {False: job}
        self._processes = done

    @property
    def job(self) -> MeasuredCase:
        """Settings to measure and judge the case."""
        return self._job(scorer=False)

    def _job(self, *, scorer: bool) -> MeasuredCase:
        resolved = self._resolved.get(True) or self._resolved.get(scorer)
        if resolved is None:
            planned = self.planned
            if isinstance(planned, Planned):
                resolved = resolve(planned, scorer=scorer)
            else:
                resolved = planned.job
            self._resolved[scorer] = resolved
        if isinstance(resolved, Problems):
            raise_problems(one for one in resolved.problems if scorer or not one.scoring)
            raise AssertionError
        return resolved

    @property
    def of_suite(self) -> Planned:
        """The planned case; it must be from a suite, not from pytest-benchmark."""
        assert isinstance(self.planned, Planned)
        return self.planned

    @property
    def shares_data(self) -> bool:
        """Whether performance and accuracy use the same data set, or nothing is scored."""
        return not self.planned.scorer_name or self.of_suite.data.shared

    @property
    def suite_job(self) -> Job:
        """The runner's job, which must be a `Job` of a suite, not a pytest-benchmark test."""
        assert isinstance(self.job, Job)
        return self.job

    def add_clients(self) -> None:
        """Double the client processes, at most one per core, unless the suite sets them."""
        engine, clients = self.suite_job.engine, 2 * self.clients
        options = {**engine.options, "clients": clients}
        is_written = engine.options.get("clients") is not None
        takes_more = clients_of(self.job.engine_use, options) == clients and options.get("url")
        uneven = (options.get("concurrency") or 0) % clients
        if is_written or uneven or not takes_more or clients > len(usable_cores()):
            return
        self.clients = clients

    def add_run(self, *, ask: ScoringSchedule | None = None) -> Run:
        """Add one valid run from a fresh process, or the result of one rate search.

        `ask` requests an accuracy pass in the first process; its scores count even if the run is
        INVALID. Raises Unjudgeable if every attempt was INVALID.
        """
        job = self._job(scorer=ask is not None)
        if self._search and self._searches is None and job.find:
            self._searches = Searches(job, job.find, self.conditions, self._record)
        first = iter([ask])

        def attempt(at: SearchState | None = None) -> Run:
            run = self.process(performance=True, ask=next(first, None), at=at).run
            assert run is not None
            return run

        searched = self._searches.run(self, attempt) if self._searches else None
        run = searched or valid_run(self, attempt)
        self.runs.append(run)
        return run

    def _title(self, *, performance: bool, at: SearchState | None) -> str:
        if at:
            return at.audit.test if at.audit else "search"
        build = f", {self._build.title}" if self._build else ", this build" * bool(self.pair)
        if not performance:
            return f"accuracy pass{build}"
        number, most = self.pair or len(self.runs) + 1, self.conditions.max_runs or 0
        repeats = len(self.invalid_runs)
        bound = f" of at most {most}" if number <= most else ""
        word = "pair" if self.pair else "run"
        return f"{word} {number}{bound}{build}" + (
            f" ({plural(repeats, 'run')} repeated)" if repeats else ""
        )

    def process(
        self, *, performance: bool, ask: ScoringSchedule | None, at: SearchState | None = None
    ) -> ProcessResult:
        """Run a worker, timed if `performance`, scored if `ask` is given; `at` sets the rate."""
        self._processes += 1
        audit = at.audit if at else None
        job = self._job(scorer=ask is not None)
        if self.clients > 1 and isinstance(job, Job):
            options = {**job.engine.options, "clients": self.clients}
            job = replace(job, engine=replace(job.engine, options=options))
        data = audit.data if audit else None
        if data and isinstance(job, Job):
            job = job.on(data)
        rate = at.rate if at else self.rate
        if at and at.rate and isinstance(job, Job) and job.settings.points:
            job = replace(job, settings=replace(job.settings, points=(round(at.rate),)))
            rate = None
        process = measure(
            job if performance else job.scored,
            at.conditions if at else self.conditions,
            self.show,
            ProcessTask(
                target_qps=rate,
                performance=performance,
                ask=ask,
                number=self._processes,
                title=self._title(performance=performance, at=at),
                build=self._build,
                label=audit.test if audit else self._label,
                audit=audit,
            ),
        )
        if data:
            return process
        if performance or self.shares_data:
            self.subject, self.files = process.subject, process.files
        if not performance or self.shares_data:
            self.scored_subject, self.scored_files = process.subject, process.files
        if process.probed and not at:
            self.rate = process.target_qps
        return process


def unforeseen(error: Exception, log: Path) -> RunError:
    """Return a RunError for an unexpected exception; write its traceback to `log`."""
    message = f"{one_line(error)}: unexpected error; please report it with this log"
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        message = f"{one_line(error)} ({disk_of(Path(error.filename or log))}); free some space"
    try:
        trace = "".join(traceback.format_exception(error))
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(trace, "utf-8", errors="backslashreplace")
    except Exception:  # the error matters more than its log
        return RunError("pytest-mlperf", message)
    return RunError("pytest-mlperf", message, str(log))

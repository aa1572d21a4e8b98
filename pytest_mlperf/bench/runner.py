"""The one loop of runs: fresh processes of a case, tried again where INVALID, or in a search."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from typing import Protocol

from pytest_mlperf.core.baseline import Record
from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.job import LOADED_QUERIES, AuditRun, Job, Search, require
from pytest_mlperf.core.measurement import Run, Subject
from pytest_mlperf.core.metrics import CONCURRENCY, SEARCH_METRICS
from pytest_mlperf.core.reason import Key, Reason
from pytest_mlperf.core.search import (
    MAX_LOG_STEP,
    Condition,
    NoRate,
    SearchPlan,
    Tried,
    narrow_step,
    next_rate,
    result,
    tried,
)
from pytest_mlperf.hardware.host import usable_cores
from pytest_mlperf.registry import clients_of
from pytest_mlperf.run.accuracy import Ask
from pytest_mlperf.run.builds import Build
from pytest_mlperf.run.child.reporter import one_line
from pytest_mlperf.run.conditions import Conditions
from pytest_mlperf.run.logs import DETAIL
from pytest_mlperf.run.measure import ProcessResult, ProcessTask, measure
from pytest_mlperf.run.project import new_folder
from pytest_mlperf.stores.atomic import DISK_FULL, disk_of
from pytest_mlperf.suite.plan import Planned
from pytest_mlperf.suite.resolve import Problems, resolve

KEY = "find"
"""The key of a fingerprint that holds the conditions of a rate that was found."""

ENOUGH_QUERIES = LOADED_QUERIES
"""With as many, LoadGen's early stopping only fails a run of which some queries were late."""


@dataclass(frozen=True, kw_only=True)
class SearchState:
    """Where a search stands; or a compliance test, which is made at a rate of its own too."""

    rate: float | None
    conditions: Conditions
    audit: AuditRun | None = None


class Searches:
    """The searches of one case; each gives one value, and starts where the last one ended."""

    def __init__(
        self, job: Job, find: Search, conditions: Conditions, record: Record | None
    ) -> None:
        """Start at the baseline's rate, where there is one."""
        self._job = job
        self._find = find
        self._conditions = conditions
        self._limits = (
            *find.conditions,
            *(Condition(metric=m, below=s) for m, s in job.latency_limits.items()),
        )
        same = record is not None and record.fingerprint.get(KEY) == job.facts.get(KEY)
        before = record.runs if record is not None and same else ()
        self._metric = CONCURRENCY if find.bounds else "throughput"
        self._rates = [run.metrics[self._metric] for run in before if self._metric in run.metrics]
        self._done = 0

    def run(self, case: Rated, attempt: Callable[[SearchState], Run]) -> Run:
        """Search once; return a run whose throughput, or concurrency, is the one found.

        Its other figures are those of the highest rate that held.

        Raises:
            Unjudgeable: A run may not be judged for another reason than its latency, or no rate
                was found.
        """
        self._done += 1
        folder = new_folder(self._conditions.folder, f"{self._job.case.id}.search-{self._done}")
        inside = replace(self._conditions, folder=folder)
        plan = self._plan()
        runs: list[Run] = []
        tries: list[Tried] = []
        rate = next_rate(tries, plan) if plan else None
        while not tries or rate is not None:
            at = SearchState(rate=rate, conditions=inside)
            run = _unpointed(valid_run(case, partial(_made, attempt, at)))
            rate = rate or run.target_qps
            plan = plan or self._planned_from(rate)
            runs.append(run)
            tries.append(self._tried(rate, run))
            rate = next_rate(tries, plan)
        assert plan is not None
        best = self._best(case, tries, runs, plan, folder)
        self._rates.append(best.metrics[self._metric])
        return best

    def _tried(self, rate: float, run: Run) -> Tried:
        names = [one.metric for one in self._limits if one.metric not in run.metrics]
        if names:
            raise RunError(
                "engine",
                f"{', '.join(names)} cannot be held to a limit: the engine does not report what it "
                f"takes; measured were {', '.join(run.metrics)}",
                str(Path(run.folder) / DETAIL),
            )
        return tried(rate, run.metrics, self._limits, late=run.limit_missed, folder=run.folder)

    def _best(
        self,
        case: Rated,
        tries: Sequence[Tried],
        runs: Sequence[Run],
        plan: SearchPlan,
        folder: Path,
    ) -> Run:
        try:
            search = result(tries, plan, self._job.facts[KEY])
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
        """Return where to start; None: a probe must tell."""
        if self._rates:
            mean = geometric_mean(self._rates)
            step = narrow_step(self._job.limits[self._metric])
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


def searches(job: Job, conditions: Conditions, record: Record | None = None) -> Searches | None:
    """Return the searches of a case, or None: its rate is given."""
    return Searches(job, job.find, conditions, record) if job.find else None


def condition_differs(job: Job, record: Record) -> str | None:
    """Return how the conditions of a baseline's rate differ from the suite's, if they do."""
    ours, theirs = job.facts.get(KEY), record.fingerprint.get(KEY)
    if ours == theirs:
        return None
    fixed = "" if record.target_qps is None else f" {record.target_qps:g}/s"
    noun, offers, offered = "rate", "offers a fixed rate", f"was offered{fixed}"
    if job.case.scenario == "Concurrency":
        noun, offers, offered = CONCURRENCY, "measures points", "measured points"
    return (
        f"condition differs: suite {f'finds a {noun} at {ours}' if ours else offers}, "
        f"baseline {f'found one at {theirs}' if theirs else offered}"
    )


def _unpointed(run: Run) -> Run:
    """Return a run with its figures named without their point, which other tries do not share."""
    metrics, server = (
        {name.partition("@")[0]: value for name, value in figures.items()}
        for figures in (run.metrics, run.serving.server)
    )
    return replace(run, metrics=metrics, serving=replace(run.serving, server=server))


def _made(attempt: Callable[[SearchState], Run], at: SearchState) -> Run:
    """Return a run of a search, in which INVALID for late queries alone is a missed limit.

    LoadGen's early stopping doubts a percentile that is met, but not surely; such a rate is not
    held.
    """
    run = attempt(at)
    if not run.invalid or run.queries < ENOUGH_QUERIES:
        return run
    if all(reason.key is Key.EARLY_STOPPING for reason in run.invalid):
        return replace(run, invalid=(), limit_missed=True)
    return run


INVALID_TRIES = 3
"""A run that may not be judged is measured again at most twice."""

LASTING_REASONS = frozenset({Key.GPU_LOST, Key.TOO_FEW_REQUESTS, Key.TOKENS_MISCOUNTED})
"""Why a run is INVALID that the next one would be for as well: nothing is measured again."""

LONGER_RUN_FACTOR = 1.2
"""An Offline run that was too short was sized for a slower engine: it is sized so much longer."""


class Unjudgeable(Exception):
    """Every try of a run was INVALID; carries the last one."""

    def __init__(self, run: Run) -> None:
        super().__init__("; ".join(map(str, run.invalid)))
        self.run = run


class Rated(Protocol):
    """A case, the rate that its next run is offered or sized by, and its INVALID runs so far."""

    @property
    def job(self) -> Job:
        """The case."""
        ...

    rate: float | None
    invalid_runs: list[Run]

    def add_clients(self) -> None:
        """Let more processes send the requests from now on, where that can help."""


def valid_run(case: Rated, attempt: Callable[[], Run]) -> Run:
    """Return the first run that may be judged.

    Args:
        case: Takes the INVALID runs; its rate is raised where one of Offline was, and it gets more
            clients where one held up the server.
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
        if left and case.job.case.scenario == "Offline":
            case.rate = max(
                case.rate or 0.0, LONGER_RUN_FACTOR * run.metrics.get("throughput", 0.0)
            )
    raise Unjudgeable(run)


Show = Callable[[str], None]


class CaseRunner:
    """One case that grows by one fresh process at a time.

    Attributes:
        rate: Offered or expected rate; None until the first process has probed it.
        runs: Performance runs that may be judged, oldest first.
        subject: What was timed, once it is known; where nothing is timed, what was scored.
        scored_subject: What was scored, on its own data.
        files: What the processes of `subject` imported, of the tested project.
        scored_files: The same of `scored_subject`.
        invalid_runs: Those that may not, and were measured again as often as is allowed.
        left_out: Those of pairs that load may explain, see `confirm.add_pair`.
        session: The id of the session.
        clients: Processes that send the requests, where the suite leaves that open.
    """

    clients = 1

    def __init__(
        self,
        planned: Planned,
        conditions: Conditions,
        show: Show,
        *,
        rate: float | None,
        record: Record | None = None,
        build: Build | None = None,
        done: int = 0,
        label: str = "",
        search: bool = True,
        job: Job | None = None,
    ) -> None:
        """Keep what to run; nothing starts yet.

        Args:
            rate: The rate, or None to probe it.
            done: Processes of the case so far; the next one's number follows.
            label: What the folders of its runs carry in their names.
            search: Search the rate where the suite says so.
            job: The case as it was resolved already; None: it is resolved before the first process.
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
        self._conditions = replace(conditions, machine=planned.limited(conditions.machine))
        self._show = show
        self._build = build
        self._label = label
        self._record = record
        self._search = search
        self._searches: Searches | None = None
        self._resolved: dict[bool, Job | Problems] = {} if job is None else {False: job}
        self._processes = done

    @property
    def job(self) -> Job:
        """The case with all that its runs need, worked out once."""
        return self._job(scorer=False)

    def _job(self, *, scorer: bool) -> Job:
        """Return the same; where its accuracy is asked for too, with its scorer."""
        resolved = self._resolved.get(True) or self._resolved.get(scorer)
        if resolved is None:
            resolved = self._resolved[scorer] = resolve(self.planned, scorer=scorer)
        if isinstance(resolved, Problems):
            require(one for one in resolved.problems if scorer or not one.scoring)
        assert isinstance(resolved, Job)
        return resolved

    def add_clients(self) -> None:
        """Send the requests from twice as many processes, up to one for each core.

        Only where the suite leaves that open.
        """
        engine, clients = self.job.engine, 2 * self.clients
        options = {**engine.options, "clients": clients}
        is_written = engine.options.get("clients") is not None
        takes_more = clients_of(self.job.engine_use, options) == clients and options.get("url")
        uneven = (options.get("concurrency") or 0) % clients
        if is_written or uneven or not takes_more or clients > len(usable_cores()):
            return
        self.clients = clients

    def add_run(self, *, ask: Ask | None = None) -> Run:
        """Add one run that may be judged, from a fresh process, or one search.

        Args:
            ask: Also make the accuracy pass, in the first of its processes: scores of a run that
                is INVALID are good all the same.

        Raises:
            Unjudgeable: No try was valid.
        """
        job = self._job(scorer=ask is not None)
        if self._search and self._searches is None:
            self._searches = searches(job, self._conditions, self._record)
        first = iter([ask])

        def attempt(at: SearchState | None = None) -> Run:
            run = self.process(performance=True, ask=next(first, None), at=at).run
            assert run is not None
            return run

        searched = self._searches.run(self, attempt) if self._searches else None
        run = searched or valid_run(self, attempt)
        self.runs.append(run)
        return run

    def process(
        self, *, performance: bool, ask: Ask | None, at: SearchState | None = None
    ) -> ProcessResult:
        """Run one fresh process, and keep the rate that it probed."""
        self._processes += 1
        audit = at.audit if at else None
        job = self._job(scorer=ask is not None)
        if self.clients > 1:
            options = {**job.engine.options, "clients": self.clients}
            job = replace(job, engine=replace(job.engine, options=options))
        data = audit.data if audit else None
        if data:
            job = job.on(data)
        rate = at.rate if at else self.rate
        if at and at.rate and job.settings.points:
            job = replace(job, settings=replace(job.settings, points=(round(at.rate),)))
            rate = None
        process = measure(
            job if performance else job.scored,
            at.conditions if at else self._conditions,
            self._show,
            ProcessTask(
                target_qps=rate,
                performance=performance,
                ask=ask,
                number=self._processes,
                build=self._build,
                label=audit.test if audit else self._label,
                audit=audit,
            ),
        )
        if data:
            return process
        if performance or self.planned.data.shared:
            self.subject, self.files = process.subject, process.files
        if not performance or self.planned.data.shared:
            self.scored_subject, self.scored_files = process.subject, process.files
        if process.probed and not at:
            self.rate = process.target_qps
        return process


def unforeseen(error: Exception, log: Path) -> RunError:
    """Return the error of a test in which Python raised what nobody foresaw; write its trace."""
    message = f"{one_line(error)}: not foreseen, so please report it with this log"
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        message = f"{one_line(error)} ({disk_of(Path(error.filename or log))}); free some space"
    try:
        trace = "".join(traceback.format_exception(error))
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(trace, "utf-8", errors="backslashreplace")
    except Exception:  # the case must not be missing for that
        return RunError("pytest-mlperf", message)
    return RunError("pytest-mlperf", message, str(log))

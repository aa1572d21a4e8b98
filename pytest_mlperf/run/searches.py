"""Search the highest rate that holds the latency limits of a case, over fresh processes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from pytest_mlperf.core.baseline import Record
from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.found import Condition, Tried, tried
from pytest_mlperf.core.measurement import Run
from pytest_mlperf.core.reason import Key, Reason
from pytest_mlperf.core.search import NoRate, Plan, narrow_step, next_rate, result
from pytest_mlperf.run.conditions import Conditions
from pytest_mlperf.run.logs import DETAIL, parse_detail
from pytest_mlperf.run.measure import new_folder
from pytest_mlperf.run.tries import Rated, Unjudgeable, valid_run
from pytest_mlperf.suite.find import FindEntry
from pytest_mlperf.suite.plan import QUICK_QUERIES, Planned

KEY = "find"
"""The key of a fingerprint that holds the conditions of a rate that was found."""

ENOUGH_QUERIES = QUICK_QUERIES["Server"]
"""With as many, LoadGen's early stopping only fails a run of which some queries were late."""


@dataclass(frozen=True, kw_only=True)
class At:
    """Where a search stands.

    Attributes:
        rate: The rate to offer; None: probe it.
        conditions: What the runs of the session share, with the folder of this search.
    """

    rate: float | None
    conditions: Conditions


class Searches:
    """The searches of one case; each gives one value, and starts where the last one ended."""

    def __init__(
        self, planned: Planned, find: FindEntry, conditions: Conditions, record: Record | None
    ) -> None:
        """Start at the baseline's rate, where there is one.

        Args:
            planned: The case.
            find: Its search.
            conditions: What the runs of the session share.
            record: The baseline, or None.
        """
        self._planned = planned
        self._find = find
        self._conditions = conditions
        self._limits = (
            *find.subject_to,
            *(Condition(metric=m, below=s) for m, s in planned.latency_limits.items()),
        )
        same = record is not None and record.fingerprint.get(KEY) == find.in_words
        before = record.runs if record is not None and same else ()
        self._known = [run.metrics["throughput"] for run in before if "throughput" in run.metrics]
        self._done = 0

    def run(self, case: Rated, attempt: Callable[[At], Run]) -> Run:
        """Search once; the rate found is the throughput of the run that is returned.

        Its other figures are those of the highest rate that held.

        Args:
            case: Whose runs these are.
            attempt: Makes one run at a rate.

        Raises:
            Unjudgeable: A run may not be judged for another reason than its latency, or no rate
                was found.
        """
        self._done += 1
        folder = new_folder(self._conditions.folder, f"{self._planned.case.id}.search-{self._done}")
        inside = replace(self._conditions, folder=folder)
        plan = self._plan()
        rate = plan.start if plan else None
        runs: list[Run] = []
        tries: list[Tried] = []
        while not tries or rate is not None:
            at = At(rate=rate, conditions=inside)
            run = valid_run(case, partial(_made, attempt, at))
            rate = rate or run.target_qps
            plan = plan or self._planned_from(rate)
            runs.append(run)
            tries.append(self._tried(rate, run))
            rate = next_rate(tries, plan)
        assert plan is not None
        found = self._found(case, tries, runs, plan, folder)
        self._known.append(found.metrics["throughput"])
        return found

    def _tried(self, rate: float, run: Run) -> Tried:
        """Return what a run says about its rate.

        Raises:
            RunError: It has not measured what is limited.
        """
        names = [one.metric for one in self._limits if one.metric not in run.metrics]
        if names:
            raise RunError(
                "engine",
                f"{', '.join(names)} cannot be held to a limit: the engine does not report what it "
                f"takes; measured were {', '.join(run.metrics)}",
                str(Path(run.folder) / DETAIL),
            )
        return tried(rate, run.metrics, self._limits, late=run.limit_missed, folder=run.folder)

    def _found(
        self,
        case: Rated,
        tries: Sequence[Tried],
        runs: Sequence[Run],
        plan: Plan,
        folder: Path,
    ) -> Run:
        """Return what a search gives, as one run."""
        try:
            found = result(tries, plan, self._find.in_words)
        except NoRate as error:
            invalid = replace(runs[-1], invalid=(Reason(key=Key.NO_RATE, text=str(error)),))
            case.invalid_runs.append(invalid)
            raise Unjudgeable(invalid) from None
        places = [i for i, one in enumerate(tries) if one.rate == found.low]
        best = runs[places[-1]]
        return replace(
            best,
            metrics={**best.metrics, "throughput": found.rate},
            within_se={"throughput": found.resolution},
            started=runs[0].started,
            folder=str(folder),
            search=found,
        )

    def _plan(self) -> Plan | None:
        """Return where to start; None: a probe must tell."""
        if self._known:
            mean = math.exp(math.fsum(map(math.log, self._known)) / len(self._known))
            step = narrow_step(self._planned.limits["throughput"])
            return replace(self._planned_from(mean), step=step)
        start = self._find.start_on(self._planned.case.accelerator)
        return self._planned_from(start) if start is not None else None

    def _planned_from(self, start: float) -> Plan:
        return Plan(start=start, precision=self._find.precision, max_runs=self._find.max_runs)


def searches(
    planned: Planned, conditions: Conditions, record: Record | None = None
) -> Searches | None:
    """Return the searches of a case, or None: its rate is given."""
    find = planned.scenario.find
    return Searches(planned, find, conditions, record) if find else None


def condition_differs(planned: Planned, record: Record) -> str | None:
    """Return how the conditions of a baseline's rate differ from the suite's, if they do."""
    find = planned.scenario.find
    ours, theirs = find.in_words if find else None, record.fingerprint.get(KEY)
    if ours == theirs:
        return None
    fixed = "" if record.target_qps is None else f" {record.target_qps:g}/s"
    return (
        f"condition differs: suite {f'finds a rate at {ours}' if ours else 'offers a fixed rate'}, "
        f"baseline {f'found one at {theirs}' if theirs else f'was offered{fixed}'}"
    )


def _made(attempt: Callable[[At], Run], at: At) -> Run:
    """Return a run of a search, in which INVALID for late queries alone is a missed limit.

    LoadGen's early stopping doubts a percentile that is met, but not surely; such a rate is not
    held.
    """
    run = attempt(at)
    if not run.invalid or run.queries < ENOUGH_QUERIES:
        return run
    detail = parse_detail(Path(run.folder) / DETAIL)
    ours = all(reason.key is Key.LOADGEN for reason in run.invalid)
    long_enough = detail.min_duration_met is not False and detail.min_queries_met is not False
    if ours and long_enough and detail.early_stopping_met is False:
        return replace(run, invalid=(), limit_missed=True)
    return run

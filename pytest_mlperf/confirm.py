"""Was it the build? A drop is measured again, in turns with the build of its baseline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pytest_mlperf.case_runs import CaseRuns, Policy
from pytest_mlperf.core.baseline import Record
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.judge.answer import Answer
from pytest_mlperf.core.judge.ratio import Ratio, judge_drop
from pytest_mlperf.core.judge.rule_r import Decision, RuleR
from pytest_mlperf.core.judge.ruling import countable, values
from pytest_mlperf.core.measurement import Run, Subject
from pytest_mlperf.core.metrics import METRICS, Direction
from pytest_mlperf.core.numbers import change, interval
from pytest_mlperf.core.numbers import limit as shown_limit
from pytest_mlperf.core.reason import measured_again
from pytest_mlperf.core.verdict import MetricVerdict, Outcome, worst
from pytest_mlperf.run.builds import LABEL, Build, baseline_build
from pytest_mlperf.run.conditions import Conditions
from pytest_mlperf.run.measure import measure, new_folder
from pytest_mlperf.run.searches import At, searches
from pytest_mlperf.run.tries import Unjudgeable, valid_run
from pytest_mlperf.suite.plan import Planned

DROPS = frozenset({Outcome.PERF_DROP, Outcome.POWER_DROP})

NO_BUILD = "no baseline_engine in the suite: not confirmed"

NO_METRIC = "not confirmed by A/B: a missed latency limit is not compared in turns"

Show = Callable[[str], None]


class NotComparable(Exception):
    """Runs in turns that prove nothing; the text says why."""


class Side:
    """One of two sides that run in turns; grows by one fresh process at a time.

    Attributes:
        planned: Its case.
        rate: Offered or expected rate; None until the first process has probed it.
        runs: Performance runs that may be judged, oldest first.
        invalid_runs: Those that may not, and were measured again as often as is allowed.
        subject: What the last process was of.
    """

    def __init__(
        self,
        planned: Planned,
        conditions: Conditions,
        show: Show,
        *,
        rate: float | None,
        build: Build | None = None,
        done: int = 0,
        record: Record | None = None,
    ) -> None:
        """Keep what to run; nothing starts yet.

        Args:
            planned: The case.
            conditions: What all runs share.
            show: Takes a line of progress, many times.
            rate: The rate, or None to probe it.
            build: Another build than this one, or None.
            done: Processes of the case so far; the next one's number follows.
            record: The baseline, where a search of the rate starts.
        """
        self.planned = planned
        # What both sides have in common cancels: the machine's own speed is not asked for.
        self._conditions = replace(conditions, control=False)
        self._show = show
        self._build = build
        self._searches = searches(planned, self._conditions, record)
        self._done = done
        self.rate = rate
        self.runs: list[Run] = []
        self.invalid_runs: list[Run] = []
        self.subject: Subject | None = None

    def add_run(self) -> None:
        """Add one run that may be judged.

        Raises:
            Unjudgeable: No try was valid.
            MlperfError: A process broke, or something is not here.
        """
        found = self._searches.run(self, self._attempt) if self._searches else None
        self.runs.append(found or valid_run(self, self._attempt))

    def _attempt(self, at: At | None = None) -> Run:
        self._done += 1
        process = measure(
            self.planned,
            at.conditions if at else self._conditions,
            self._show,
            target_qps=at.rate if at else self.rate,
            performance=True,
            ask=None,
            number=self._done,
            build=self._build,
        )
        assert process.run is not None
        self.subject, self.rate = process.subject, None if at else process.target_qps
        return process.run


def in_turns(
    now: Side,
    before: Side,
    limits: Mapping[str, float],
    rule: RuleR,
    *,
    check: Callable[[], None] = lambda: None,
) -> dict[str, Ratio]:
    """Run two sides in turns, A B, B A, A B, …, until a drop is proven or all are decided.

    Args:
        now: The side that may be worse.
        before: The side that it is set against; runs first.
        limits: The metrics to judge with their limits, as shares.
        rule: The settings; at most `max_runs` pairs are made.
        check: Called after the first process, which may be enough to see that more are of no use.

    Returns:
        What each metric with enough queries says.

    Raises:
        NotComparable: A metric is missing, or may not be judged.
        Unjudgeable: No try of a run was valid.
        MlperfError: A process broke, or something is not here.
    """
    found: dict[str, Ratio] = {}
    while not found or _undecided(found.values()):
        for side in (now, before) if len(now.runs) % 2 else (before, now):
            side.add_run()
            if not (now.runs and before.runs):
                check()
        runs = [*now.runs, *before.runs]
        judged = countable(runs, limits)
        if not judged:
            few = min(run.queries for run in runs)
            raise NotComparable(f"{few:,} queries a run are too few for {', '.join(limits)}")
        for metric in judged:
            _require(metric, runs)
        found = {
            metric: judge_drop(
                values(now.runs, metric),
                values(before.runs, metric),
                direction=METRICS[metric].direction,
                limit=limit,
                rule=rule,
            )
            for metric, limit in judged.items()
        }
    return found


def confirm(
    case: CaseRuns, answer: Answer, policy: Policy, conditions: Conditions, show: Show
) -> Answer:
    """Return the answer of a drop after it was measured again beside the baseline's own build.

    An answer that is no drop, and every answer without --mlperf-confirm, is returned as it is. So
    is a drop, with the reason, where the other build cannot be had, broke, or is not the
    baseline's: what is proven stays proven until something better speaks.

    Args:
        case: The case, with its runs so far.
        answer: What was found against the stored baseline.
        policy: How verdicts are reached.
        conditions: What all runs share; a handicap slows only this build.
        show: Takes a line of progress, many times.
    """
    if answer.outcome not in DROPS or not policy.confirm:
        return answer
    dropped = {m.metric: m for m in answer.metrics if m.outcome is answer.outcome}
    limits = {name: m.limit for name, m in dropped.items() if m.limit is not None}
    if case.planned.engine.baseline_engine is None:
        return _noted(answer, NO_BUILD)
    if not limits:
        return _noted(answer, NO_METRIC)
    try:
        found, how = _beside(case, limits, conditions, show)
    except (Unjudgeable, NotComparable, MlperfError) as error:
        return _noted(answer, f"not confirmed by A/B: {error}")
    how += f"; runs in {policy.shown(conditions.folder)}"
    if few := [METRICS[name].title for name in limits if name not in found]:
        return _noted(answer, f"not confirmed by A/B: too few queries a run for {', '.join(few)}")
    return _decided(answer, found, dropped, how)


def _beside(
    case: CaseRuns, limits: Mapping[str, float], conditions: Conditions, show: Show
) -> tuple[dict[str, Ratio], str]:
    """Return what runs in turns with the baseline's build say, and how they were made."""
    planned = case.planned
    folder = new_folder(conditions.folder, f"{planned.case.id}.{LABEL}")
    with baseline_build(planned, folder) as build:
        known, record = case.rate, case.record
        now = Side(planned, conditions, show, rate=known, done=len(case.runs), record=record)
        as_it_was = replace(conditions, handicap=0.0)
        before = Side(planned, as_it_was, show, rate=known, build=build, record=record)

        def check() -> None:
            _require_same(before, case.record)

        found = in_turns(now, before, limits, case.rule, check=check)
        invalid = [run.invalid for side in (now, before) for run in side.invalid_runs]
        return found, f"with {build.title}" + (f"; {measured_again(invalid)}" if invalid else "")


# --- answers ---------------------------------------------------------------------------------


def _decided(
    answer: Answer, found: Mapping[str, Ratio], dropped: Mapping[str, MetricVerdict], how: str
) -> Answer:
    """Return the answer that the runs in turns give."""
    proven = [name for name, ratio in found.items() if ratio.decision is Decision.FAIL]
    excluded = [name for name, ratio in found.items() if ratio.decision is Decision.PASS]
    name = (*proven, *(n for n in found if n not in excluded), *found)[0]
    pairs, said = found[name].pairs, in_words(name, found[name])
    turns = f"{pairs} pairs in turns, {said}"
    if proven:
        sure = tuple(replace(m, confirmed=m.metric in proven) for m in answer.metrics)
        return _noted(replace(answer, metrics=sure), f"decided by A/B: {turns} {how}")
    metrics = tuple(
        _settled(m, found[m.metric]) if m.metric in found else m for m in answer.metrics
    )
    before = f"against the stored baseline: {answer.outcome} {answer.headline}"
    limit = shown_limit(name, dropped[name].limit or 0.0)
    if len(excluded) < len(dropped):
        headline = f"{METRICS[name].title} {said} by A/B; neither no drop nor {limit} excluded"
        note = f"not confirmed by A/B, not refuted either: {turns} {how}"
    else:
        headline = f"{METRICS[name].title} {said} by A/B; {limit} excluded"
        note = f"not confirmed by A/B: {turns}: the baseline's own build is as slow today; {how}"
    outcomes = [m.outcome for m in metrics if m.outcome is not None]
    return Answer(
        outcome=worst(outcomes),
        headline=headline,
        metrics=metrics,
        paired=answer.paired,
        notes=(note, before, *answer.notes),
    )


def _settled(metric: MetricVerdict, ratio: Ratio) -> MetricVerdict:
    """Return what a metric says that was not confirmed; rule R's p no longer counts."""
    excluded = ratio.decision is Decision.PASS
    return replace(
        metric,
        outcome=Outcome.OK if excluded else Outcome.INCONCLUSIVE,
        note=f"A/B {change(raw(metric.metric, ratio)[0])}",
        p=None,
    )


def _noted(answer: Answer, note: str) -> Answer:
    return replace(answer, notes=(note, *answer.notes))


def in_words(metric: str, ratio: Ratio) -> str:
    """Return the change of a metric's raw value with its interval: "−6.1 % (−7.0 to −5.2 %)"."""
    middle, low, high = raw(metric, ratio)
    return f"{change(middle)} ({interval(low, high)})"


def raw(metric: str, ratio: Ratio) -> tuple[float, float, float]:
    """Return the relative change of a metric's raw value, and the ends of its interval."""
    ends = (ratio.ratio, ratio.low, ratio.high)
    if METRICS[metric].direction is Direction.HIGHER:
        middle, low, high = (end - 1 for end in ends)
        return middle, low, high
    middle, high, low = (1 / end - 1 for end in ends)
    return middle, low, high


# --- what may be compared --------------------------------------------------------------------


def _undecided(found: Iterable[Ratio]) -> bool:
    """Whether another pair could change the answer: one drop that is proven is enough."""
    decisions = [ratio.decision for ratio in found]
    return Decision.FAIL not in decisions and Decision.MORE in decisions


def _require(metric: str, runs: Sequence[Run]) -> None:
    """Make sure that all runs have a metric that may be judged.

    Raises:
        NotComparable: One has not.
    """
    for run in runs:
        if metric not in run.metrics:
            raise NotComparable(
                f"{METRICS[metric].title} was not measured in {Path(run.folder).parent.name}"
            )
        if not run.may_judge(metric):
            source = run.energy_of(metric)
            why = "; ".join(source.notes) if source else run.power_unknown
            raise NotComparable(f"{METRICS[metric].title} may not be judged: {why}")


def _require_same(before: Side, record: Record | None) -> None:
    """Make sure that a build is the baseline's, as far as engines say what they are.

    Raises:
        NotComparable: It is another: that it is as slow says nothing.
    """
    if not before.runs or before.subject is None or record is None:
        return
    then, now = record.fingerprint, before.subject.fingerprint
    unlike = [
        f"{key} {then[key]} there, {now[key]} here"
        for key in then
        if key.startswith("engine.") and key in now and then[key] != now[key]
    ]
    if unlike:
        raise NotComparable(
            f"baseline_engine is not the build of the baseline: {'; '.join(unlike)}"
        )

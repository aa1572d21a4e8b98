"""Confirm a drop by runs interleaved with the build of its baseline."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from pytest_mlperf.bench.case import CaseRuns
from pytest_mlperf.bench.earlier import ENGINE_PREFIX, EarlierSide, deciding, earlier_side
from pytest_mlperf.bench.policy import Policy
from pytest_mlperf.bench.runner import CaseRunner, Unjudgeable
from pytest_mlperf.core.baseline import Record, changed_keys, unknown_facts
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.measurement import Run, repeated
from pytest_mlperf.core.metrics import METRICS
from pytest_mlperf.core.notes import Note, Words
from pytest_mlperf.core.numbers import change, interval, plural
from pytest_mlperf.core.numbers import limit as shown_limit
from pytest_mlperf.core.rulings.disturbance import explains_gap
from pytest_mlperf.core.rulings.ruling import Ruling, ruling_of, values
from pytest_mlperf.core.rulings.sample import countable, fewest, sharing
from pytest_mlperf.core.verdict import (
    Confirmation,
    InterleavedRuns,
    MetricVerdict,
    Outcome,
    Verdict,
    beside_accuracy,
    worst,
)
from pytest_mlperf.judge.decision import Answer
from pytest_mlperf.judge.inputs import DAYS, Direction
from pytest_mlperf.judge.ratio import Ratio, RelativeSpeed, judge_drop
from pytest_mlperf.judge.rule_r import RuleR
from pytest_mlperf.run.accuracy import Ask
from pytest_mlperf.run.builds import FOLDER_LABEL, baseline_build
from pytest_mlperf.run.project import CHANGED_MARK, same_code
from pytest_mlperf.suite.environments import earlier_build
from pytest_mlperf.suite.plan import Planned


class NotComparable(Exception):
    """Report why interleaved runs cannot be compared."""


Turn = TypeVar("Turn", bound=CaseRunner)


REPEATS = 2
"""Repeats of a pair whose difference load may explain, before it is left out."""


def add_pair(
    a: Turn,
    b: Turn,
    metrics: Collection[str],
    tolerated: float,
    *,
    least: float = 1.0,
    leader: Turn | None = None,
    check: Callable[[], None] = lambda: None,
    ask: Ask | None = None,
    one_rate: bool = False,
) -> bool:
    """Add a run to both sides; repeat the pair if load may explain its difference.

    Odd pairs have a random order, so that load cannot correlate with the order. The following even
    pair has the reverse order, so that a steady drift of the machine cancels (ABBA).

    Args:
        tolerated: Share of a run's speed up to which load is ignored, see `RuleR`.
        least: Expected ratio of a to b.
        leader: Side that runs first in the first pair; None for a random side.
        check: Called after each process of the first pair.
        ask: Accuracy pass for the first process of b.
        one_rate: Offer both sides the same rate, if the scenario offers one.

    Returns:
        Whether the pair counts; it does not if load may explain every repeat.
    """
    loaded = one_rate and a.job.case.scenario.rate_is_condition
    for _ in range(1 + REPEATS):
        made = len(a.runs) + len(a.left_out)
        drawn = random.Random(f"{a.session} {a.job.case.id} {made // 2}").random() < 0.5
        ahead = leader is b if leader and made < 2 else drawn
        for side in (b, a) if ahead != bool(made % 2) else (a, b):
            side.pair = made + 1
            if loaded:
                a.rate = b.rate = a.rate or b.rate
            side.add_run(ask=None if made or side is a else ask)
            if not made:
                check()
        if not explains_gap(a.runs[-1], b.runs[-1], metrics, tolerated, least):
            return True
        for side in (a, b):
            side.left_out.append(side.runs.pop())
    return False


def left_out(side: CaseRunner) -> str:
    """Return how many pairs were left out because of load, as text; "" if none."""
    number = len(side.left_out) // (1 + REPEATS)
    reason = "left out: the load of other processes may explain the difference between the builds"
    return f"{plural(number, 'pair')} ({2 * len(side.left_out)} runs) {reason}" if number else ""


def in_turns(
    new: CaseRunner,
    old: CaseRunner,
    limits: Mapping[str, float],
    rule: RuleR,
    *,
    check: Callable[[], None] = lambda: None,
    done: Callable[[], None] = lambda: None,
    leader: CaseRunner | None = None,
) -> dict[str, Ratio]:
    """Interleave runs of two builds in pairs until a drop is proven or all metrics are decided.

    Both may have pairs of runs already. `limits` are shares. `done` is called after each pair; for
    `check` and `leader` see `add_pair`.

    Raises:
        NotComparable: A metric is missing, or may not be judged.
        Unjudgeable: Every try of a run was INVALID.
    """
    missing = 0
    while not (ratios := decided(new.runs, old.runs, limits, rule, missing)):
        kept = add_pair(old, new, limits, rule.tolerated, leader=leader, check=check, one_rate=True)
        missing += not kept
        done()
    return ratios


def decided(
    new: Sequence[Run],
    old: Sequence[Run],
    limits: Mapping[str, float],
    rule: RuleR,
    missing: int = 0,
) -> dict[str, Ratio]:
    """Return the ratios by metric once a drop is proven or all metrics are decided; else {}.

    `missing` is the number of pairs that were left out; they count towards the maximum. Raises
    NotComparable if a metric is missing or may not be judged.
    """
    last = missing > 0 and len(new) + missing >= rule.max_runs
    if not new:
        if last:
            raise NotComparable(f"the load of other processes differed within all {missing} pairs")
        return {}
    ratios = _ratios(new, old, limits, rule)
    decisions = {ratio.outcome for ratio in ratios.values()}
    over = last or Answer.FAIL in decisions or Answer.MORE not in decisions
    return {name: ended(ratio) for name, ratio in ratios.items()} if over else {}


def ended(ratio: Ratio) -> Ratio:
    """Return the final ratio after the last pair: MORE becomes INCONCLUSIVE."""
    open_ = ratio.outcome is Answer.MORE
    return replace(ratio, outcome=Answer.INCONCLUSIVE) if open_ else ratio


def _ratios(
    ours: Sequence[Run], theirs: Sequence[Run], limits: Mapping[str, float], rule: RuleR
) -> dict[str, Ratio]:
    runs = [*ours, *theirs]
    judged = countable(runs, limits)
    if not judged:
        few = min(fewest(runs, name) for name in limits)
        raise NotComparable(f"{few:,} queries a run are too few for {', '.join(limits)}")
    for metric in judged:
        _require(metric, runs)
    return {
        metric: judge_drop(
            values(ours, metric),
            values(theirs, metric),
            direction=METRICS[metric].direction,
            limit=limit,
            rule=sharing(rule, metric, judged),
        )
        for metric, limit in judged.items()
    }


# --- comparability ---------------------------------------------------------------------------


def _require(metric: str, runs: Sequence[Run]) -> None:
    for run in runs:
        if metric not in run.metrics:
            raise NotComparable(
                f"{METRICS[metric].title} was not measured in {Path(run.folder).parent.name}"
            )
        if not run.may_judge(metric):
            source = run.energy_of(metric)
            reason = "; ".join(source.notes) if source else run.energy_unknown
            raise NotComparable(f"{METRICS[metric].title} may not be judged: {reason}")


UNHANDICAPPED_BUILD = "this build without the handicap"


def why_no_build(case: CaseRuns) -> Confirmation | None:
    """Return why the baseline's build cannot be measured again, or None if it can."""
    if case.planned.baseline_engine is not None:
        return None
    record, subject = case.record, case.subject
    commit = case.conditions.commit or CHANGED_MARK
    if not record or not subject or changed_keys(record.fingerprint, subject.fingerprint):
        return Confirmation.NO_BUILD
    if case.conditions.handicap:
        return None
    unknown = unknown_facts(record.fingerprint, subject.fingerprint)
    same = not commit.endswith(CHANGED_MARK) and {run.commit for run in record.runs} == {commit}
    return Confirmation.UNCHANGED if same and not unknown else Confirmation.NO_BUILD


class NoBuild(Exception):
    """Report why the baseline's build that the suite names is unavailable."""


class Sides:
    """Interleave runs of this build and of the baseline's build."""

    def __init__(self, case: CaseRuns, earlier: EarlierSide | None) -> None:
        """Store the inputs; `earlier` is the case with the baseline's options if they differ."""
        self._case = case
        self._earlier = earlier
        self._both: list[CaseRunner] = []
        self.build = ""

    @property
    def runs(self) -> int:
        """Number of runs so far, of both sides."""
        return sum(len(one.runs) + len(one.invalid_runs) + len(one.left_out) for one in self._both)

    @property
    def how(self) -> Note:
        """How the runs were made."""
        return Note.of(
            "interleaved",
            build=self.build,
            again=repeated([run for one in self._both for run in one.invalid_runs]),
            left_out=left_out(self._both[0]) if self._both else "",
            folder=self._case.policy.shown(self._case.conditions.folder),
        )

    def run(self, limits: Mapping[str, float]) -> Mapping[str, Ratio]:
        """Interleave runs of both builds; return the ratio of each metric in `limits`.

        Raises NoBuild if the baseline's build is unavailable, and the errors of `in_turns`.
        """
        case, earlier, build = self._case, self._earlier, None
        planned, record = case.planned, case.record
        with contextlib.ExitStack() as stack:
            try:
                if isinstance(planned, Planned) and (named := earlier_build(planned)):
                    label = f"{planned.case.id}.{FOLDER_LABEL}"
                    code = baseline_build(named, case.conditions.folder, label)
                    build = stack.enter_context(code)
            except MlperfError as error:
                raise NoBuild(str(error)) from None
            titles = [one.title for one in (build, earlier) if one]
            self.build = " and ".join(titles) or UNHANDICAPPED_BUILD
            # The machine's own speed cancels: do not measure it.
            today = replace(case.conditions, control=False)
            start = partial(CaseRunner, case.planned, show=case.show, rate=case.rate, record=record)
            ours = start(today, done=len(case.runs), job=case.job)
            job = earlier.job if earlier else case.job
            theirs = start(replace(today, handicap=0.0), build=build, label=FOLDER_LABEL, job=job)
            self._both = [ours, theirs]
            ratios = in_turns(
                ours, theirs, limits, case.rule, check=lambda: self._require_same(theirs, record)
            )
        if few := [METRICS[name].title for name in limits if name not in ratios]:
            raise NotComparable(f"too few queries a run for {', '.join(few)}")
        return ratios

    def _require_same(self, side: CaseRunner, record: Record | None) -> None:
        """Raise NotComparable if a side ran another build than the baseline's record describes."""
        if not side.runs or side.subject is None or record is None:
            return
        recorded, facts = record.fingerprint, side.subject.fingerprint
        # Today's options may differ unless the record's were used.
        unlike = [
            f"{key} {recorded[key]} there, {facts[key]} here"
            for key in changed_keys(recorded, facts)
            if key in recorded and key in facts and (self._earlier or key.startswith(ENGINE_PREFIX))
        ]
        if unlike:
            name = self.build if self._earlier else "baseline_engine"
            raise NotComparable(f"{name} is not the baseline's build: {'; '.join(unlike)}")


DROPS = frozenset({Outcome.PERF_DROP, Outcome.POWER_DROP})

NO_BUILD = "not confirmed: there is no build of the baseline to measure beside this one; "

MORE_SESSIONS = (
    ", or append sessions of that build, on other days, to its baseline (--mlperf-update=append)"
)

OTHER_CHANGES_NOTE = "other changes may be the cause: git cannot show that there were none; "

UNCHANGED = (
    "not confirmed: engine, weights, options, data and commit are the baseline's, so the "
    "cause is the machine, or something that is not recorded"
)

NOT_MADE = (
    "not confirmed: the drop was decided at the end of the session, after all runs; run this "
    "test alone to measure it again"
)

AS_SLOW = "the baseline's own build is as slow today"

SMALL_DROP_NOTE = "worse than the baseline's own build today, by less than the limit"

NO_METRIC = "not confirmed by A/B: missed latency limits are not compared in interleaved runs"


def confirm(case: CaseRuns, answer: Ruling, *, failing: Outcome = Outcome.PERF_DROP) -> Ruling:
    """Measure a drop again, interleaved with the baseline's build, and return the new ruling.

    A ruling that the policy does not confirm is returned unchanged. A drop is returned with a
    reason if the other build is unavailable, broken, or not the baseline's.
    """
    policy = case.policy
    if not _may_confirm(case, answer):
        return answer
    dropped = _dropped(case, answer)
    if not dropped:
        return answer if policy.confirm == "auto" else _uncompared(answer, NO_METRIC, {})
    why_not, root = why_no_build(case), policy.baselines
    few = any(metric.baseline.days < DAYS for metric in dropped.values())
    decides = deciding(case) + MORE_SESSIONS * few
    limits = {name: m.limit for name, m in dropped.items() if m.limit is not None}
    sides = None
    try:
        earlier = earlier_side(case)
        if why_not and not earlier:
            note = UNCHANGED if why_not is Confirmation.UNCHANGED else NO_BUILD + decides
            about = InterleavedRuns(state=why_not, metrics=tuple(dropped))
            return answer if answer.outcome is Outcome.INCONCLUSIVE else _ended(answer, about, note)
        sides = Sides(case, earlier)
        ratios = sides.run(limits)
    except (NoBuild, Unjudgeable, NotComparable, MlperfError) as error:
        state = Confirmation.NO_BUILD if isinstance(error, NoBuild) else Confirmation.NOT_COMPARABLE
        reason: Words = error.note if isinstance(error, Unjudgeable) else str(error)
        more = decides if why_not else ""
        compared = Note.of("ab_not_compared", reason=reason, more=more)
        return _uncompared(answer, compared, dropped, sides, state)
    commit = case.record.runs[-1].commit if case.record else None
    is_all = not why_not or same_code(policy.root, commit, [root] if root else [])
    also = "" if is_all else f"; {OTHER_CHANGES_NOTE}{decides}"
    return _decided(answer, ratios, dropped, sides, failing, also)


def not_made(verdict: Verdict, policy: Policy) -> Verdict:
    """Note on a drop that it was not confirmed, because the session ended."""
    names = tuple(m.metric for m in verdict.metrics if _to_confirm(m, policy))
    if not names or verdict.outcome not in DROPS:
        return verdict
    turns = InterleavedRuns(state=Confirmation.NOT_MADE, metrics=names, reason=NOT_MADE)
    return replace(verdict, interleaved=turns, notes=(NOT_MADE, *verdict.notes))


# --- metrics to confirm ----------------------------------------------------------------------


def _may_confirm(case: CaseRuns, answer: Ruling) -> bool:
    seems = any(_leans(m) or _is_open_ok(case, m) for m in answer.metrics)
    judged = answer.outcome in DROPS | {Outcome.PROVISIONAL, Outcome.INCONCLUSIVE}
    return judged and (seems or answer.outcome in DROPS) and case.policy.confirm != "never"


def _is_open_ok(case: CaseRuns, metric: MetricVerdict) -> bool:
    """Check whether a provisional ok is confirmed: few days, and the suite names a build."""
    named = case.planned.baseline_engine is not None
    few = metric.baseline.days < DAYS or case.policy.confirm == "always"
    return metric.outcome is Outcome.PROVISIONAL and metric.direction == "ok" and named and few


def _dropped(case: CaseRuns, answer: Ruling) -> dict[str, MetricVerdict]:
    """Return the metrics to measure again, by name; {} if a latency limit was missed twice."""
    if sum(run.limit_missed for run in case.runs) > 1:
        return {}
    return {
        m.metric: m for m in answer.metrics if _to_confirm(m, case.policy) or _is_open_ok(case, m)
    }


def _to_confirm(metric: MetricVerdict, policy: Policy) -> bool:
    """Check whether a metric seems to have dropped and the policy confirms such a drop."""
    if metric.limit is None or not (metric.outcome in DROPS or _leans(metric)):
        return False
    few = metric.baseline.days < DAYS
    return policy.confirm == "always" or (policy.confirm == "auto" and (few or _leans(metric)))


def _leans(metric: MetricVerdict) -> bool:
    """Check whether only session variance or load keeps a metric from being a drop."""
    undecided = metric.outcome in {Outcome.PROVISIONAL, Outcome.INCONCLUSIVE}
    return undecided and metric.direction == "drop"


# --- rulings ---------------------------------------------------------------------------------


def _decided(
    answer: Ruling,
    ratios: Mapping[str, Ratio],
    dropped: Mapping[str, MetricVerdict],
    sides: Sides,
    failing: Outcome,
    also: str,
) -> Ruling:
    """Return the ruling after interleaved runs; `also` names another cause of an unproven drop."""
    proven = [name for name, ratio in ratios.items() if ratio.outcome is Answer.FAIL]
    excluded = [name for name, ratio in ratios.items() if ratio.outcome is Answer.PASS]
    undecided = [name for name in ratios if name not in excluded]
    name = (*proven, *undecided, *worse(ratios), *ratios)[0]
    pairs, in_short = ratios[name].pairs, in_words(name, ratios[name])
    turns: dict[str, Words] = {"turns": f"{plural(pairs, 'pair')}, {in_short}", "how": sides.how}
    all_excluded = len(excluded) == len(dropped)
    state = (
        Confirmation.PROVEN
        if proven
        else Confirmation.EXCLUDED
        if all_excluded
        else Confirmation.UNDECIDED
    )
    about = InterleavedRuns(
        state=state, metrics=tuple(dropped), build=sides.build, pairs=pairs, runs=sides.runs
    )
    if proven:
        return _ended(_proven(answer, proven, failing), about, Note.of("ab_decided", **turns))
    if also:
        about = replace(about, state=Confirmation.UNDECIDED)
        return _ended(answer, about, Note.of("ab_not_confirmed", **turns, also=also))
    passed = all(metric.direction == "ok" for metric in dropped.values())
    if passed and not all_excluded:
        return _ended(answer, about, Note.of("ab_not_decided", **turns))
    metrics = tuple(
        _settled(m, ratios[m.metric]) if m.metric in ratios else m for m in answer.metrics
    )
    stored = answer.quoted("against_stored")
    limit = shown_limit(name, dropped[name].limit or 0.0)
    if not all_excluded:
        title = METRICS[name].title
        headline = f"{title} {in_short} by A/B; no change and {limit} are both possible"
        note = Note.of("ab_open", **turns)
    else:
        headline = f"{METRICS[name].title} {in_short} by A/B; {limit} excluded"
        finding = SMALL_DROP_NOTE if worse(ratios) else AS_SLOW
        note = Note.of("ab_no_drop", **turns, finding=finding)
        note = Note.of("ab_decided", **turns) if passed else note
    outcomes = [m.outcome for m in metrics if m.outcome is not None]
    ruling = replace(answer, outcome=worst(outcomes), headline=headline, metrics=metrics)
    return _ended(replace(ruling, notes=(stored, *answer.notes)), about, note)


def worse(ratios: Mapping[str, Ratio]) -> list[str]:
    """Return the metrics that interleaved runs prove worse, by any amount."""
    return [name for name, ratio in ratios.items() if ratio.high < 1]


def _proven(answer: Ruling, proven: list[str], failing: Outcome) -> Ruling:
    metrics = tuple(
        replace(
            m, confirmed=True, outcome=failing, direction=None, note=None if m.direction else m.note
        )
        if m.metric in proven
        else m
        for m in answer.metrics
    )
    if answer.outcome in DROPS:
        return replace(answer, metrics=metrics)
    headline = beside_accuracy(ruling_of(metrics).headline, answer.unchecked)
    return replace(answer, outcome=failing, headline=headline, metrics=metrics)


def _settled(metric: MetricVerdict, ratio: Ratio) -> MetricVerdict:
    """Return a metric's verdict by interleaved runs that did not confirm its drop."""
    excluded = ratio.outcome is Answer.PASS
    return replace(
        metric,
        outcome=Outcome.OK if excluded else Outcome.INCONCLUSIVE,
        note=f"A/B {change(raw(metric.metric, ratio)[0])}",
        p=None,
        direction=None,
    )


def _uncompared(
    answer: Ruling,
    reason: Words,
    dropped: Mapping[str, MetricVerdict],
    sides: Sides | None = None,
    state: Confirmation = Confirmation.NOT_COMPARABLE,
) -> Ruling:
    about = InterleavedRuns(
        state=state,
        metrics=tuple(dropped),
        build=sides.build if sides else "",
        runs=sides.runs if sides else 0,
        reason=reason,
    )
    return _ended(answer, about, reason)


def _ended(answer: Ruling, turns: InterleavedRuns, note: Words) -> Ruling:
    return replace(answer, interleaved=turns, notes=(note, *answer.notes))


def in_words(metric: str, ratio: Ratio | RelativeSpeed) -> str:
    """Return the change of a metric's raw value with its interval: "−6.1 % (−7.0 to −5.2 %)"."""
    middle, low, high = raw(metric, ratio)
    return f"{change(middle)} ({interval(low, high)})"


def raw(metric: str, ratio: Ratio | RelativeSpeed) -> tuple[float, float, float]:
    """Return the relative change of a metric's raw value, and its interval."""
    if METRICS[metric].direction is Direction.HIGHER:
        return ratio.ratio - 1, ratio.low - 1, ratio.high - 1
    return 1 / ratio.ratio - 1, 1 / ratio.high - 1, 1 / ratio.low - 1

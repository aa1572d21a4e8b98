"""Confirm a drop by runs interleaved with the baseline's build."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from pytest_mlperf.bench.case import CaseRuns
from pytest_mlperf.bench.earlier import ENGINE_PREFIX, EarlierSide, decision_advice, earlier_side
from pytest_mlperf.bench.interleaved import Interleaved, NotComparable, in_words, metric_change
from pytest_mlperf.bench.policy import Policy
from pytest_mlperf.bench.runner import CaseRunner, Unjudgeable
from pytest_mlperf.core.baseline import Record, changed_keys, unknown_facts
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.metrics import METRICS
from pytest_mlperf.core.notes import Note, Words
from pytest_mlperf.core.numbers import change, plural
from pytest_mlperf.core.numbers import limit as shown_limit
from pytest_mlperf.core.rulings.ruling import Ruling, ruling_of
from pytest_mlperf.core.verdict import (
    Confirmation,
    InterleavedRuns,
    MetricVerdict,
    Outcome,
    Verdict,
    with_unchecked_note,
    worst,
)
from pytest_mlperf.judge.decision import Answer
from pytest_mlperf.judge.inputs import DAYS
from pytest_mlperf.judge.ratio import Ratio
from pytest_mlperf.run.builds import FOLDER_LABEL, baseline_build
from pytest_mlperf.run.project import CHANGED_MARK, same_code
from pytest_mlperf.suite.environments import earlier_build
from pytest_mlperf.suite.plan import Planned

UNHANDICAPPED_BUILD = "this build without the handicap"


def why_no_build(case: CaseRuns) -> Confirmation | None:
    """Return why the baseline's build cannot be rerun (NO_BUILD, UNCHANGED); None if it can."""
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


def _sides(case: CaseRuns, earlier: EarlierSide | None, stack: contextlib.ExitStack) -> Interleaved:
    """Return this build and the baseline's, to interleave; closing `stack` removes the baseline's.

    `earlier` is the case with the baseline's options if they differ. Raises MlperfError if the
    baseline's build is unavailable.
    """
    planned, record, build = case.planned, case.record, None
    if isinstance(planned, Planned) and (named := earlier_build(planned)):
        label = f"{planned.case.id}.{FOLDER_LABEL}"
        build = stack.enter_context(baseline_build(named, case.conditions.folder, label))
    # The machine's own speed cancels: do not measure it.
    today = replace(case.conditions, control=False)
    start = partial(CaseRunner, planned, show=case.show, rate=case.rate, record=record)
    job = earlier.job if earlier else case.job
    sides = Interleaved(
        new=start(today, done=len(case.runs), job=case.job),
        old=start(replace(today, handicap=0.0), build=build, label=FOLDER_LABEL, job=job),
        rule=case.rule,
        title=" and ".join(one.title for one in (build, earlier) if one) or UNHANDICAPPED_BUILD,
    )
    sides.check = partial(_require_same, sides, record, restored=earlier is not None)
    return sides


def _require_same(sides: Interleaved, record: Record | None, *, restored: bool) -> None:
    """Raise NotComparable if the old runs are not of the build in the baseline's record.

    Options may differ, unless the runs use the `restored` options of the record.
    """
    side = sides.old
    if not side.runs or side.subject is None or record is None:
        return
    recorded, facts = record.fingerprint, side.subject.fingerprint
    unlike = [
        f"{key} is {facts[key]}, but {recorded[key]} in the baseline"
        for key in changed_keys(recorded, facts)
        if key in recorded and key in facts and (restored or key.startswith(ENGINE_PREFIX))
    ]
    if unlike:
        name = sides.title if restored else "baseline_engine"
        raise NotComparable(f"{name} is not the baseline's build: {'; '.join(unlike)}")


DROPS = frozenset({Outcome.PERF_DROP, Outcome.POWER_DROP})

NOT_COMPARABLE = Confirmation.NOT_COMPARABLE

NO_BUILD = "not confirmed: the baseline's build is not available for interleaved runs; "

MORE_SESSIONS = (
    ", or append sessions of that build, on other days, to its baseline (--mlperf-update=append)"
)

OTHER_CHANGES_NOTE = "the cause may be code that changed since the baseline's commit; "

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

    The ruling is unchanged if the policy requires no confirmation. A drop keeps its outcome,
    with the reason, if the baseline's build is unavailable or fails, or a different build starts.
    """
    policy = case.policy
    judged = answer.outcome in DROPS | {Outcome.PROVISIONAL, Outcome.INCONCLUSIVE}
    seems = any(_probably_dropped(m) or _needs_confirmation(case, m) for m in answer.metrics)
    if policy.confirm == "never" or not judged or not (seems or answer.outcome in DROPS):
        return answer
    dropped = _metrics_to_repeat(case, answer)
    if not dropped:
        return answer if policy.confirm == "auto" else _uncompared(answer, NO_METRIC, {})
    why_not, root = why_no_build(case), policy.baselines
    few = any(metric.baseline.days < DAYS for metric in dropped.values())
    decides = decision_advice(case) + MORE_SESSIONS * few
    limits = {name: m.limit for name, m in dropped.items() if m.limit is not None}
    sides, state = None, NOT_COMPARABLE
    with contextlib.ExitStack() as stack:
        try:
            earlier = earlier_side(case)
            if why_not and not earlier:
                if answer.outcome is Outcome.INCONCLUSIVE:
                    return answer
                note = UNCHANGED if why_not is Confirmation.UNCHANGED else NO_BUILD + decides
                about = InterleavedRuns(state=why_not, metrics=tuple(dropped))
                return _ended(answer, about, note)
            state = Confirmation.NO_BUILD
            sides = _sides(case, earlier, stack)
            state = NOT_COMPARABLE
            ratios = sides.judge(limits)
            if short := [METRICS[name].title for name in limits if name not in ratios]:
                raise NotComparable(f"too few queries a run for {', '.join(short)}")
        except (Unjudgeable, NotComparable, MlperfError) as error:
            reason: Words = error.note if isinstance(error, Unjudgeable) else str(error)
            reason = error.reason if isinstance(error, NotComparable) else reason
            more = decides if why_not else ""
            compared = Note.of("ab_not_compared", reason=reason, more=more)
            return _uncompared(answer, compared, dropped, sides, state)
    commit = case.record.runs[-1].commit if case.record else None
    is_all = not why_not or same_code(policy.root, commit, [root] if root else [])
    also = "" if is_all else f"; {OTHER_CHANGES_NOTE}{decides}"
    how = Note.of(
        "interleaved",
        build=sides.title,
        again=sides.repeat_note,
        left_out=sides.left_out,
        folder=policy.shown(case.conditions.folder),
    )
    return _decided(answer, ratios, dropped, sides, how, failing, also)


def note_unconfirmed(verdict: Verdict, policy: Policy) -> Verdict:
    """Return the verdict, with a note if the session ended before its drop was confirmed."""
    names = tuple(m.metric for m in verdict.metrics if _to_confirm(m, policy))
    if not names or verdict.outcome not in DROPS:
        return verdict
    turns = InterleavedRuns(state=Confirmation.NOT_MADE, metrics=names, reason=NOT_MADE)
    return replace(verdict, interleaved=turns, notes=(NOT_MADE, *verdict.notes))


# --- metrics to confirm ----------------------------------------------------------------------


def _needs_confirmation(case: CaseRuns, metric: MetricVerdict) -> bool:
    """Return whether runs of the suite's baseline build must confirm a metric's PROVISIONAL ok."""
    named = case.planned.baseline_engine is not None
    few = metric.baseline.days < DAYS or case.policy.confirm == "always"
    return metric.outcome is Outcome.PROVISIONAL and metric.direction == "ok" and named and few


def _metrics_to_repeat(case: CaseRuns, answer: Ruling) -> dict[str, MetricVerdict]:
    """Return the metrics of `answer` to repeat, by name; {} if two runs missed latency limits."""
    if sum(run.limit_missed for run in case.runs) > 1:
        return {}
    return {
        m.metric: m
        for m in answer.metrics
        if _to_confirm(m, case.policy) or _needs_confirmation(case, m)
    }


def _to_confirm(metric: MetricVerdict, policy: Policy) -> bool:
    if metric.limit is None or not (metric.outcome in DROPS or _probably_dropped(metric)):
        return False
    few = metric.baseline.days < DAYS
    return policy.confirm == "always" or (
        policy.confirm == "auto" and (few or _probably_dropped(metric))
    )


def _probably_dropped(metric: MetricVerdict) -> bool:
    """Check whether a PROVISIONAL or INCONCLUSIVE metric has the direction "drop"."""
    undecided = metric.outcome in {Outcome.PROVISIONAL, Outcome.INCONCLUSIVE}
    return undecided and metric.direction == "drop"


# --- rulings ---------------------------------------------------------------------------------


def _decided(
    answer: Ruling,
    ratios: Mapping[str, Ratio],
    dropped: Mapping[str, MetricVerdict],
    sides: Interleaved,
    how: Note,
    failing: Outcome,
    also: str,
) -> Ruling:
    proven = [name for name, ratio in ratios.items() if ratio.outcome is Answer.FAIL]
    excluded = [name for name, ratio in ratios.items() if ratio.outcome is Answer.PASS]
    undecided = [name for name in ratios if name not in excluded]
    name = (*proven, *undecided, *proven_worse(ratios), *ratios)[0]
    pairs, in_short = ratios[name].pairs, in_words(name, ratios[name])
    turns: dict[str, Words] = {"turns": f"{plural(pairs, 'pair')}, {in_short}", "how": how}
    all_excluded = len(excluded) == len(dropped)
    state = Confirmation.EXCLUDED if all_excluded else Confirmation.UNDECIDED
    state = Confirmation.PROVEN if proven else state
    about = InterleavedRuns(
        state=state, metrics=tuple(dropped), build=sides.title, pairs=pairs, runs=sides.runs
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
        headline = f"{title} {in_short} by A/B; both no change and {limit} remain possible"
        note = Note.of("ab_open", **turns)
    else:
        headline = f"{METRICS[name].title} {in_short} by A/B; a drop of {limit} is ruled out"
        finding = SMALL_DROP_NOTE if proven_worse(ratios) else AS_SLOW
        note = Note.of("ab_no_drop", **turns, finding=finding)
        note = Note.of("ab_decided", **turns) if passed else note
    outcomes = [m.outcome for m in metrics if m.outcome is not None]
    ruling = replace(answer, outcome=worst(outcomes), headline=headline, metrics=metrics)
    return _ended(replace(ruling, notes=(stored, *answer.notes)), about, note)


def proven_worse(ratios: Mapping[str, Ratio]) -> list[str]:
    """Return metrics whose confidence interval of the ratio lies below 1 (worse), by any amount."""
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
    headline = with_unchecked_note(ruling_of(metrics).headline, answer.unchecked)
    return replace(answer, outcome=failing, headline=headline, metrics=metrics)


def _settled(metric: MetricVerdict, ratio: Ratio) -> MetricVerdict:
    excluded = ratio.outcome is Answer.PASS
    return replace(
        metric,
        outcome=Outcome.OK if excluded else Outcome.INCONCLUSIVE,
        note=f"A/B {change(metric_change(metric.metric, ratio)[0])}",
        p=None,
        direction=None,
    )


def _uncompared(
    answer: Ruling,
    reason: Words,
    dropped: Mapping[str, MetricVerdict],
    sides: Interleaved | None = None,
    state: Confirmation = NOT_COMPARABLE,
) -> Ruling:
    about = InterleavedRuns(
        state=state,
        metrics=tuple(dropped),
        build=sides.title if sides else "",
        runs=sides.runs if sides else 0,
        reason=reason,
    )
    return _ended(answer, about, reason)


def _ended(answer: Ruling, turns: InterleavedRuns, note: Words) -> Ruling:
    return replace(answer, interleaved=turns, notes=(note, *answer.notes))

"""Judge a case's performance and energy: measure until decided, then judge or record."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from pytest_mlperf.bench.baseline import extend_baseline, select_runs, write
from pytest_mlperf.bench.case import CaseRuns
from pytest_mlperf.bench.official import below_best, held_to_best
from pytest_mlperf.bench.policy import LONE_PHASE, Phase, Update
from pytest_mlperf.bench.runner import Unjudgeable, condition_differs
from pytest_mlperf.core import recording
from pytest_mlperf.core.baseline import Record, has_salt, may_be_cached
from pytest_mlperf.core.case import Kind
from pytest_mlperf.core.control import locked_clock_change
from pytest_mlperf.core.errors import BaselineError, UnavailableError
from pytest_mlperf.core.guarantees import REPLACE_OPTIONS
from pytest_mlperf.core.job import LoadGenSettings
from pytest_mlperf.core.measurement import Run
from pytest_mlperf.core.metrics import (
    BY_EXPORTER,
    BY_GPUS,
    BY_METER,
    METRICS,
    PREFIX_HIT_SHARE,
    SEARCH_METRICS,
    point_of,
)
from pytest_mlperf.core.notes import Note, Words
from pytest_mlperf.core.numbers import change, plural, quantity
from pytest_mlperf.core.reason import Key
from pytest_mlperf.core.rulings import sample
from pytest_mlperf.core.rulings.disturbance import explains_miss, is_loaded, load_note
from pytest_mlperf.core.rulings.multiplicity import may_fall
from pytest_mlperf.core.rulings.ruling import (
    Ruling,
    cache_share_note,
    headline_of,
    length_change,
    rule_on,
    ruling_of,
)
from pytest_mlperf.core.rulings.screening import Screened
from pytest_mlperf.core.verdict import MetricVerdict, Outcome, with_unchecked_note

REPLACE = f"or record again with {REPLACE_OPTIONS}"

RATE_BACK = f"latencies at different rates cannot be compared: set target_qps back, {REPLACE}"
FIND_BACK = (
    "results of different searches, or of a search and a fixed load, cannot be compared: restore "
    f"find in the suite, {REPLACE}"
)
POINTS_BACK = (
    f"curves with different points cannot be compared: restore points in the suite, {REPLACE}"
)
LENGTH_BACK = (
    "answers of another length take another amount of work: check stop tokens, templates and "
    f"max_new_tokens; {REPLACE}"
)

SALT_BACK = (
    "a server answers repeated prompts faster from its prefix cache: give the options salt and "
    f"repeat the values that they had for the baseline, {REPLACE}"
)
CACHE_BACK = (
    "each run sends the same prompts, and a server that has them in its cache does less work: "
    f"restart the server, or let one run fill its cache first, as for the baseline, {REPLACE}"
)

UNDER_LOAD = "measured under load: repeat it on an idle machine"

CHANGED_OUTCOMES = {Outcome.PERF_DROP, Outcome.POWER_DROP, Outcome.IMPROVED}
"""Outcomes that a change of the machine may cause."""


def judge_performance(case: CaseRuns, kinds: Collection[Kind], phase: Phase = LONE_PHASE) -> Ruling:
    """Make the missing runs of a case; judge all its runs by rule R, or record them."""
    update = _recording(case)
    if differs := _other_rate(case, update):
        return differs
    try:
        case.first(kinds)
        if failed := accuracy_failed(case, required=bool(update)):
            return failed
        return _record(case, update) if update else _judged(case, phase)
    except Unjudgeable as error:
        if update:
            raise
        return _proven_drop(case, error, phase)


def _judged(case: CaseRuns, phase: Phase) -> Ruling:
    while True:
        if missed := limit_missed(case):
            return missed
        ruling = rule_on(case.runs, case.record, case.planned.limits, case.rule, pairs=phase.pairs)
        if moved := other_work(case, case.runs):
            return moved
        if phase.once or not ruling.more or len(case.runs) >= case.rule.max_runs:
            break
        case.add_run()
    ruling = _found_under_load(case, ruling)
    answer = invalid_if_machine_changed(
        case, complete_ruling(case, ruling, case.planned.limits), phase
    )
    answer = held_to_best(case, answer)
    final = not (phase.once and ruling.more)
    return extend_baseline(case, answer) if case.policy.update == "missing" and final else answer


def _proven_drop(case: CaseRuns, error: Unjudgeable, phase: Phase) -> Ruling:
    """Return the ruling if a drop is proven although the last run is INVALID; or raise `error`."""
    runs, slow = list(case.runs), [run for run in case.invalid_runs if run.too_slow]
    for run in slow if not is_loaded(slow, case.rule.tolerated) else ():
        # The relative standard error of a rate of n requests is 1 / √n.
        count = max(1, min([run.queries, *run.serving.requests.values()]))
        runs.append(replace(run, within_se=dict.fromkeys(run.metrics, count**-0.5)))
    if failed := accuracy_failed(case):
        return failed
    if moved := other_work(case, runs):
        return moved
    if not runs:
        raise error
    limits = case.planned.limits
    ruling = rule_on(runs, case.record, limits, case.rule, pairs=phase.pairs)
    ruling = _found_under_load(case, ruling)
    if not ruling.dropped:
        raise error
    answer = invalid_if_machine_changed(case, complete_ruling(case, ruling, limits), phase)
    note = Note.of("last_invalid", reason=error.note)
    return replace(answer, notes=(note, *answer.notes))


def _found_under_load(case: CaseRuns, ruling: Ruling) -> Ruling:
    """Make a ruling on searched rates INCONCLUSIVE if other processes' load may explain it."""
    if not case.planned.find:
        return ruling
    drop = any(metric.fails or metric.direction == "drop" for metric in ruling.metrics)
    unsure = case.runs if drop else case.record.runs if case.record else ()
    return undecided(ruling) if is_loaded(unsure, case.rule.tolerated) else ruling


def undecided(ruling: Ruling) -> Ruling:
    """Return a ruling with each compared metric INCONCLUSIVE, because of load on the machine."""
    metrics = tuple(
        replace(m, outcome=Outcome.INCONCLUSIVE, note=UNDER_LOAD, direction=None, p=None)
        if m.outcome and m.baseline.runs
        else m
        for m in ruling.metrics
    )
    return ruling_of(metrics)


def other_work(case: CaseRuns, runs: Sequence[Run]) -> Ruling | None:
    """Return INVALID if prompts, cache hits or answer lengths are not the baseline's, else None."""
    if case.record is None or case.subject is None:
        return None
    facts, recorded = case.subject.fingerprint, case.record.fingerprint
    if has_salt(facts) != has_salt(recorded) and (may_be_cached(facts) or may_be_cached(recorded)):
        sides = ["in the baseline", "in this session"]
        same, other_side = sides if has_salt(facts) else sides[::-1]
        differs = f"all runs {same} sent the same prompts; {other_side} each run sent others"
        return invalid(case, differs, SALT_BACK)
    gated = any(name.startswith(PREFIX_HIT_SHARE) for name in case.planned.limits)
    cached = None if has_salt(facts) or gated else cache_share_note(runs, case.record.runs)
    if cached:
        return invalid(case, cached, CACHE_BACK)
    other = length_change(runs, case.record.runs)
    return None if other is None else invalid(case, other, LENGTH_BACK)


def invalid(case: CaseRuns, headline: Words, *notes: Words) -> Ruling:
    """Create the ruling INVALID; its metrics are reported but not judged."""
    runs = case.invalid_runs[-1:] if case.reasons else case.runs
    metrics = tuple(
        replace(m, limit=case.planned.limits.get(m.metric))
        for m in rule_on(runs, case.record, {}, case.rule).metrics
    )
    return Ruling(outcome=Outcome.INVALID, headline=headline, metrics=metrics, notes=notes)


CAUSED_BY_LOAD = frozenset(
    {
        Key.CLIENT_LATE,
        Key.CONCURRENCY_NOT_HELD,
        Key.EARLY_STOPPING,
        Key.NO_RATE,
        Key.NOT_STEADY,
        Key.OVERLOADED,
        Key.SLOW_START,
        Key.TOO_FEW_REQUESTS,
        Key.TOO_SHORT,
    }
)
"""Reasons of INVALID runs that other processes on the machine can cause."""


def invalid_run_ruling(case: CaseRuns, run: Run) -> Ruling:
    """Return the ruling on an INVALID run: INCONCLUSIVE if the machine's load can explain it."""
    ruling = invalid(case, *(reason.text for reason in run.invalid))
    keys = {reason.key for reason in run.invalid}
    if case.policy.update or keys - CAUSED_BY_LOAD or not is_loaded([run], case.rule.tolerated):
        return ruling
    note = Note.of("load_invalid", load=load_note([run]))
    return replace(ruling, outcome=Outcome.INCONCLUSIVE, notes=(*ruling.notes, note))


def traded(metrics: Sequence[MetricVerdict]) -> tuple[str, ...]:
    """Return a note if one point of a curve got worse and another one improved; else ()."""
    points = [m for m in metrics if point_of(m.metric) is not None and m.change is not None]
    worse = [m for m in points if m.fails]
    better = [m for m in points if m.outcome is Outcome.IMPROVED]
    if not (worse and better):
        return ()
    lost, won = (
        " and ".join(f"{change(m.change or 0.0)} at {point_of(m.metric):,}" for m in each)
        for each in (worse, better)
    )
    return (f"{lost} cannot be offset by {won}: each point of the curve is judged on its own",)


def complete_ruling(case: CaseRuns, ruling: Ruling, limits: Mapping[str, float]) -> Ruling:
    """Return the ruling, with a note if accuracy is unchecked, and advice on missing metrics."""
    unvouched = case.unchecked
    notes = sample.remedies(case.runs, limits, case.record) if case.runs else ()
    return Ruling(
        outcome=ruling.outcome,
        headline=with_unchecked_note(first_line(case, ruling), unvouched),
        unchecked=unvouched,
        metrics=ruling.metrics,
        notes=(*traded(ruling.metrics), *notes, *sample.partial_metric_notes(case.record, limits)),
    )


def first_line(case: CaseRuns, ruling: Ruling) -> Words:
    """Return a ruling's headline; add search conditions, or name a similar machine's baseline."""
    find, deciding = case.planned.find, ruling.deciding
    if ruling.outcome is Outcome.NO_BASELINE and case.formerly and deciding:
        return f"{METRICS[deciding.metric].title}: {case.formerly.short_text}"
    metric = deciding.metric if deciding else ""
    if not find or deciding is None or metric not in SEARCH_METRICS or deciding.now is None:
        return ruling.headline
    at_least = is_loaded(case.runs, case.rule.tolerated)
    return headline_of(ruling.outcome, deciding, condition=find.in_words, at_least=at_least)


def accuracy_failed(case: CaseRuns, *, required: bool = False) -> Ruling | None:
    """Return INVALID if the scores fail, else None; `required` runs a missing accuracy pass."""
    official = case.planned.suite.profile == "official"
    accuracy = case.find_accuracy(required=official or required)
    answer = case.judge_accuracy() if accuracy else None
    if answer is None or not answer.failed:
        return None
    headline = answer.quoted("accuracy_failed")
    return replace(invalid(case, headline), by_scores=True)


def invalid_if_machine_changed(case: CaseRuns, answer: Ruling, phase: Phase) -> Ruling:
    """Return INVALID if a metric and the machine's micro-benchmark changed, else `answer`."""
    leans = any(metric.direction == "drop" for metric in answer.metrics)
    changed = (
        answer.outcome in CHANGED_OUTCOMES or leans or (phase.is_joint and may_fall(answer.metrics))
    )
    if not changed:
        return answer
    control = case.compare_machine()
    reason = control.note if control else _locked_clock(case)
    if reason is None:
        uncompared = [case.uncompared] if case.uncompared else []
        return replace(answer, notes=(*answer.notes, *uncompared))
    notes = (answer.quoted("not_judged"), *answer.notes)
    return Ruling(outcome=Outcome.INVALID, headline=reason, metrics=answer.metrics, notes=notes)


def _locked_clock(case: CaseRuns) -> Note | None:
    clocks = case.subject and case.subject.identity.get("clocks")
    if case.record is None or clocks is None:
        return None
    recorded = [run.hardware.state for run in case.record.runs]
    return locked_clock_change([run.hardware.state for run in case.runs], recorded, clocks)


def unjudged_notes(case: CaseRuns, answer: Ruling) -> tuple[Words, ...]:
    """Return notes on the gated metrics that were not judged, as runs have too few queries."""
    if not case.runs or answer.outcome is Outcome.INCONCLUSIVE:
        return ()
    kept = None if answer.outcome is Outcome.RECORDED else case.record
    return sample.only_reported(case.runs, case.planned.limits, kept)


def _other_rate(case: CaseRuns, update: Update | None) -> Ruling | None:
    record, planned = case.record, case.planned
    if record is None or update == "replace":
        return None
    ours, theirs = (about.get("points") for about in (case.job.facts, record.fingerprint))
    loaded = planned.case.scenario.rate_is_condition and not planned.find
    if differs := condition_differs(case.job, record):
        cure = FIND_BACK
    elif ours != theirs:
        both = f"suite {ours or 'none'}, baseline {theirs or 'none'}"
        differs, cure = f"points of the curve differ: {both}", POINTS_BACK
    elif loaded and case.rate != record.target_qps:
        rates = f"suite {case.rate:g}/s, baseline {record.target_qps:g}/s"
        differs, cure = f"offered rate differs: {rates}", RATE_BACK
    else:
        return None
    return Ruling(outcome=Outcome.INVALID, headline=differs, notes=(cure,))


def limit_missed(case: CaseRuns) -> Ruling | None:
    """Repeat a run that missed a latency limit; return a ruling if two runs miss it."""
    if len(case.runs) == 1 and case.runs[0].limit_missed:
        case.add_run()
    missed = [run for run in case.runs if run.limit_missed]
    if len(missed) < recording.MISSES:
        return None
    limits, tolerated = case.job.latency_limits, case.rule.tolerated
    proven = [run for run in missed if not explains_miss(run, limits, tolerated)]
    if len(proven) < recording.MISSES:
        note = Note.of("load_missed_limit", load=load_note(missed))
        return Ruling(outcome=Outcome.INCONCLUSIVE, headline=note)
    ruling = rule_on(case.runs, case.record, case.planned.limits, case.rule)
    figures = exceeded_latencies(proven, case.suite_job.settings)
    if case.record:
        outcome, headline = (
            Outcome.PERF_DROP,
            f"latency limit missed at {case.rate:.4g}/s, where the baseline met it",
        )
    else:
        outcome, headline = Outcome.GATE_FAIL, f"latency limit missed twice at {case.rate:.4g}/s"
    return Ruling(outcome=outcome, headline=f"{headline}: {figures}", metrics=ruling.metrics)


def exceeded_latencies(missed: Sequence[Run], settings: LoadGenSettings) -> str:
    """Return as text the latencies that exceed a limit, each with the limit."""
    limits = {
        "ttft_p99": settings.ttft_limit_ns,
        "tpot_p99": settings.tpot_limit_ns,
        "latency_p99": None if settings.tokens else settings.latency_limit_ns,
    }
    texts = []
    for name, limit_ns in limits.items():
        if limit_ns is None or all(run.metrics[name] <= limit_ns / 1e9 for run in missed):
            continue
        figures = " and ".join(quantity(name, run.metrics[name]) for run in missed)
        texts.append(f"{METRICS[name].title} {figures}, limit {quantity(name, limit_ns / 1e9)}")
    return "; ".join(texts) or (
        "the measured percentiles are within the limit, but LoadGen's early stopping needs more "
        "queries within it"
    )


# --- recording -------------------------------------------------------------------------------


def _recording(case: CaseRuns) -> Update | None:
    update = case.policy.update
    if update == "missing" and case.record:
        return None
    if update == "append" and not case.record:
        raise BaselineError(
            f"{case.policy.shown(case.file)}: this machine has no baseline to append to; "
            "record one with --mlperf-update=missing"
        )
    return update


def _unequal_work(case: CaseRuns, old: Record | None) -> Ruling | None:
    """Return INVALID if runs differ in cache hits, or do not do the baseline's work; else None."""
    uneven = cache_share_note(case.runs[1:], case.runs[:1], "cached_unevenly")
    if uneven and case.subject and not has_salt(case.subject.fingerprint):
        return invalid(case, Note.of("not_recorded", note=uneven), CACHE_BACK)
    return other_work(case, case.runs) if old else None


def _record(case: CaseRuns, action: Update) -> Ruling:
    least = recording.APPEND_RUNS if action == "append" else case.policy.baseline_runs
    while len(case.runs) < least:
        case.add_run()
    old = case.record if action == "append" else None
    if unfit := limit_missed(case) or _unequal_work(case, old):
        return unfit
    fresh = select_runs(case, least, old)
    if below := below_best(case):
        return Ruling(outcome=Outcome.GATE_FAIL, headline=Note.of("not_recorded", note=below))
    if reason := sample.unrecordable(case.runs, case.planned.limits, old):
        advice = sample.remedies(case.runs, case.planned.limits, old)
        return invalid(case, Note.of("not_recorded", note=reason), *advice)
    if len(fresh.runs) < least:
        note = "the machine was disturbed; record again when it is quiet"
        few = f"only {len(fresh.runs)} of {len(case.runs)} runs agree with each other"
        return invalid(case, Note.of("not_recorded", note=few), *fresh.notes, note)
    if action == "replace" and (steps := _worsened(case, fresh)):
        judged = rule_on(case.runs, case.record, case.planned.limits, case.rule)
        worse = Note.of("record_worse", steps=tuple(steps))
        return replace(judged, outcome=Outcome.PERF_DROP, headline=worse, notes=fresh.notes)
    case.record = record = write(case, action, fresh)
    metrics = recording.recorded_verdicts(
        record, sample.countable(case.runs, case.planned.limits), len(fresh.runs)
    )
    headline = f"{plural(len(record.runs), 'run')} in {case.policy.shown(case.file)}"
    remarks: list[Words] = []
    remarks += [f"recorded in addition: {case.formerly.in_words}"] if case.formerly else []
    if action == "replace":
        before, after = record.history[-1].old, record.history[-1].new
        moves = tuple(
            recording.value_change(m.metric, before.get(m.metric), after[m.metric]) for m in metrics
        )
        remarks.append(Note.of("replaced", steps=moves))
    interleaves = case.planned.baseline_engine is not None
    today = recording.one_day_note(record, case.planned.limits, case.rule, interleaves=interleaves)
    remarks += [*fresh.notes, *filter(None, [recording.missing_days_advice(record), today])]
    if is_loaded(record.runs, case.rule.tolerated):
        remarks.append(Note.of("recorded_under_load"))
    detectable = recording.detectable_effects(record)
    made = Note.of("record_made", runs=headline, note=detectable)
    notes = (made, *remarks, *recording.detectable_notes(metrics))
    return Ruling(outcome=Outcome.RECORDED, headline=headline, metrics=metrics, notes=notes)


def _worsened(case: CaseRuns, fresh: Screened) -> list[Note]:
    old, accepted = case.record, case.policy.accept_regression
    if old is None or accepted or _other_rate(case, None) or other_work(case, case.runs):
        return []
    limits = {**case.planned.efficiency_limits, **case.planned.limits}
    return recording.worsened(old.runs, tuple(map(recording.baseline_run, fresh.runs)), limits)


def judge_efficiency(case: CaseRuns, kinds: Collection[Kind], phase: Phase = LONE_PHASE) -> Ruling:
    """Make the missing runs; judge their energy efficiency by rule R.

    A metric is judged and recorded only if its power source has enough data in every run. Raises
    EnergyUnknownError if the energy is unknown.
    """
    case.first(kinds)
    if failed := accuracy_failed(case):
        return failed
    limits = case.planned.efficiency_limits
    while True:
        gated, unfit = energy_limits(case, case.runs)
        if unfit and not gated:
            return unfit
        if case.record and case.record.runs[-1].session == case.runs[-1].session:
            metrics = recording.recorded_verdicts(case.record, gated, len(case.runs))
            headline = f"{plural(len(case.record.runs), 'run')}, recorded by the performance test"
            return Ruling(outcome=Outcome.RECORDED, headline=headline, metrics=metrics)
        ruling = rule_on(case.runs, case.record, gated, case.rule, Outcome.POWER_DROP, phase.pairs)
        if phase.once or not ruling.more or len(case.runs) >= case.rule.max_runs:
            break
        case.add_run()
    if unfit and not ruling.dropped:
        return unfit
    kept = case.record.runs if case.record else ()
    if is_loaded(
        [*case.runs, *kept], case.rule.tolerated
    ):  # neighbours' work, and their idling, use energy too
        ruling = undecided(ruling)
    answer = complete_ruling(case, ruling, gated)
    others = [
        Note.of("unjudged", metric=name, reasons=(_unknown(case, name),))
        for name in limits
        if name not in gated
    ]
    return invalid_if_machine_changed(case, replace(answer, notes=(*answer.notes, *others)), phase)


class EnergyUnknownError(UnavailableError):
    """Report in a note why the energy of a case is unknown."""

    def __init__(self, note: Note) -> None:
        super().__init__("the energy is unknown")
        self.note = note


def energy_limits(case: CaseRuns, runs: Sequence[Run]) -> tuple[Mapping[str, float], Ruling | None]:
    """Return limits of the energy metrics that can be judged, and a ruling on the others or None.

    Raises EnergyUnknownError if the energy of the case is unknown.
    """
    limits = case.planned.efficiency_limits
    if not any(name in run.metrics for run in case.runs for name in limits):
        reasons = tuple(dict.fromkeys(_unknown(case, name) for name in limits))
        raise EnergyUnknownError(
            Note.of("energy_unknown", of=case.planned.case.accelerator, reasons=reasons)
        )
    unfit = _unfit(case, limits)
    gated = {n: v for n, v in limits.items() if all(run.may_judge(n) for run in runs)}
    if not gated and not unfit:
        unfit = Ruling(outcome=Outcome.NOT_EVALUATED, headline=_why_not(runs, limits))
    return gated, unfit


def _unfit(case: CaseRuns, limits: Collection[str]) -> Ruling | None:
    runs = case.runs
    for name in limits:
        lacking = [place for place, run in enumerate(runs, start=1) if not run.may_judge(name)]
        if 0 < len(lacking) < len(runs):
            run = runs[lacking[0] - 1]
            reasons = _notes(run, name) or (run.energy_unknown or "see its notes",)
            values = {"metric": name, "runs": tuple(lacking), "of": len(runs)}
            headline = Note.of("energy_in_part", **values)
            note = Note.of("energy_lacking", folder=run.folder, reasons=reasons)
            return invalid(case, headline, note)
    return None


def _why_not(runs: Sequence[Run], limits: Collection[str]) -> Note:
    run, name = next((run, n) for run in runs for n in limits if not run.may_judge(n))
    number = runs.index(run) + 1 if len(runs) > 1 else None
    reasons = _notes(run, name) or ("its energy is too uncertain",)
    return Note.of("run_unfit", run=number, of=len(runs), reasons=reasons)


def _notes(run: Run, name: str) -> tuple[Words, ...]:
    source = run.energy_of(name)
    return source.notes if source else ()


def _unknown(case: CaseRuns, name: str) -> Words:
    run = case.runs[0]
    if case.planned.case.accelerator == "cpu" and name in BY_GPUS:
        return (
            f"{name} needs GPUs, but this case runs on cpu: limit {name}_wall instead, and pass "
            "the log of a wall meter with --mlperf-meter"
        )
    if notes := _notes(run, name):
        return Note.of("reasons", reasons=notes)
    if name in BY_METER:
        return "no wall meter is read: pass its log with --mlperf-meter FILE"
    if name in BY_EXPORTER:
        return "no DCGM exporter is read: pass its URL with --mlperf-dcgm URL"
    needs = "token counts" if name.startswith("tokens") else "energy readings"
    return run.energy_unknown or f"{name} needs {needs}, which this run does not have"

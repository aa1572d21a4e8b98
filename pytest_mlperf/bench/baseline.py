"""Write the runs of a case into its baseline, behind what others wrote meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from operator import eq
from pathlib import Path

from pytest_mlperf.bench.case import CaseRuns
from pytest_mlperf.bench.policy import Policy, Update, calibrated, closed_root
from pytest_mlperf.bench.runner import Unjudgeable
from pytest_mlperf.core.baseline import (
    Baseline,
    Record,
    changed_keys,
    differences,
    find,
    with_record,
)
from pytest_mlperf.core.case import Case
from pytest_mlperf.core.errors import BaselineError, MlperfError
from pytest_mlperf.core.guarantees import APPEND_OPTIONS
from pytest_mlperf.core.measurement import Run, day_of
from pytest_mlperf.core.noise import session_noise
from pytest_mlperf.core.recording import (
    APPEND_RUNS,
    baseline_run,
    changes,
    empty_baseline,
    new_record,
    provable,
    same_day,
)
from pytest_mlperf.core.results import CaseResult, Results
from pytest_mlperf.core.rulings.ruling import Ruling, rule_on, values
from pytest_mlperf.core.rulings.sample import countable, unrecordable
from pytest_mlperf.core.rulings.screening import Screened, screened
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.judge.inputs import DAYS, SessionNoise, surer
from pytest_mlperf.judge.rule_r import RuleR, Value
from pytest_mlperf.run.project import code_differs
from pytest_mlperf.stores import baselines
from pytest_mlperf.stores.results import read_results

SESSIONS_READ = 50
"""Sessions of the runs folder that are looked at, the newest first."""

_DISTURBED = frozenset({Outcome.INVALID, Outcome.ERROR, Outcome.GATE_FAIL})


def noise_of_sessions(
    record: Record,
    old: Record | None,
    file: Path,
    *,
    case: Case,
    profile: str,
    metrics: Iterable[str],
    rule: RuleR,
    runs_dir: Path | None = None,
    same_code: Callable[[str | None, str | None], bool] = eq,
) -> dict[str, SessionNoise]:
    """Return what sessions of a record's build and machine differ by, by metric.

    Own runs are those of the record, of earlier sessions of the same build whatever their verdict
    was, of the build before it, and of the case's calibration; what other calibrated cases of the
    machine, and baselines of the same workload, show counts less. What an older record rests on may
    not be here any more: where it knew more sessions, its word stands.

    Args:
        record: As it is about to be written.
        file: Its baseline file: ROOT/ACCELERATOR/PROFILE/WORKLOAD/CASE.json.
        runs_dir: Folder of earlier sessions' results; None: there is none.
    """
    machine = calibrated(closed_root(file), case.accelerator, record.identity)
    cases = machine.cases if machine else ()
    ours = [one for one in cases if (one.case, one.profile) == (case.id, profile)]
    others = [
        series.runs
        for one in cases
        if (one.case, one.profile) != (case.id, profile)
        for series in one.series
    ]
    earlier = list(_earlier(record, case, profile, runs_dir, same_code))
    beside = [*_siblings(file, record), *others]
    before = old.runs if old and old.runs[0] not in record.runs else ()
    noise_by_metric = {}
    for metric in metrics:
        builds: list[Sequence[Value]] = [
            values([*record.runs, *earlier], metric),
            values(before, metric),
        ]
        builds += [one.values(metric) for one in ours if metric in one.limits]
        noise = session_noise(builds, beside, rule=rule)
        if noise:
            ratio = float(f"{noise.ratio:.3g}")
            noise = SessionNoise(ratio=ratio, df=round(noise.df, 2), by_days=True)
        stored = old.noise_of(metric) if old else None
        if learnt := surer(noise, stored):
            noise_by_metric[metric] = learnt
    return noise_by_metric


def _siblings(file: Path, record: Record) -> Iterator[list[Value]]:
    """Yield the runs of the workload's other baselines on this machine, by metric."""
    for path in sorted(file.parent.glob("*.json")):
        if path.name == file.name:
            continue
        try:
            loaded = baselines.load(path)
        except BaselineError:
            continue  # whoever judges by it says so
        other = find(loaded, record.identity) if loaded else None
        if other:
            yield from (values(other.runs, name) for name in other.minimum_detectable_change)


def _earlier(
    record: Record,
    case: Case,
    profile: str,
    runs_dir: Path | None,
    same_code: Callable[[str | None, str | None], bool],
) -> Iterator[Run]:
    """Yield the runs of earlier sessions of the record's build that the record does not hold."""
    files = sorted((runs_dir / "runs").glob("*/results.json"), reverse=True) if runs_dir else []
    for path in files[:SESSIONS_READ]:
        results = _read(path, path.stat().st_mtime_ns)
        for result in results.cases if results else ():
            same = (result.verdict.case, result.profile) == (case, profile)
            if same and _unchanged(result, record):
                yield from (
                    run
                    for run in result.verdict.runs
                    if run.session not in record.sessions
                    and same_code(record.runs[-1].commit, run.commit)
                )


def _unchanged(result: CaseResult, record: Record) -> bool:
    """Whether a test measured the record's build on the record's machine under its conditions."""
    verdict = result.verdict
    return (
        verdict.kind == "performance"
        and verdict.outcome not in _DISTURBED
        and not (result.handicap or result.pretended)
        and verdict.subject is not None
        and not differences(verdict.subject.identity, record.identity)
        and not changed_keys(record.fingerprint, verdict.subject.fingerprint)
        and result.target_qps == record.target_qps
    )


@lru_cache(maxsize=SESSIONS_READ)
def _read(path: Path, changed_ns: int) -> Results | None:
    """Return a session, read once as long as its file stays; None where it cannot be read."""
    del changed_ns
    try:
        return read_results(path)
    except MlperfError:
        return None


def screen(case: CaseRuns, count: int, old: Record | None) -> Screened:
    """Replace runs that may not be recorded by further ones, at most half as many, at least two.

    Args:
        count: Runs to record; as many were made already.
        old: What they are recorded behind.
    """
    made, most = count, count + max(count // 2, APPEND_RUNS)
    while True:
        fresh = screened(case.runs[:made], case.planned.limits, case.rule, old)
        newly = fresh.skips_first_run and not (old and old.skips_first_run)
        if len(fresh.runs) >= count or made >= most + newly:
            return fresh
        made += 1
        if made > len(case.runs):
            case.add_run()


def write(
    case: CaseRuns,
    action: Update,
    fresh: Screened,
    *,
    reason: str = "first baseline",
    unless: Callable[[Record], bool] = lambda _: False,
) -> Record:
    """Write runs behind what the file holds now, and return the record.

    Another session may have recorded since this one began: its runs and its history stay.

    Args:
        reason: Kept in the history where the user gave none.
        unless: Whether what is there now shall stay as it is.
    """
    assert case.subject is not None
    identity, suite = case.subject.identity, case.planned.suite
    empty = empty_baseline(case.planned.case, round_name=suite.round, profile=suite.profile)
    began_with = case.record

    def put(there: Baseline | None) -> Baseline:
        baseline = there or empty
        now = find(baseline, identity)
        if (now is None) != (began_with is None):
            change = "recorded it" if now else "removed it"
            raise BaselineError(
                f"{case.policy.shown(case.file)}: another session {change} while this one "
                "measured; nothing was written: run again to compare with what is there now"
            )
        if now and unless(now):
            return baseline
        return with_record(baseline, _new_record(case, action, fresh, reason, now))

    record = find(baselines.update(case.file, put), identity)
    assert record is not None
    return record


def code_since(policy: Policy, then: str | None, now: str | None) -> str | None:
    """Return why two commits may hold different code, or None where it is the same."""
    return code_differs(policy.root, then, now, [policy.baselines] if policy.baselines else [])


def _new_record(
    case: CaseRuns, action: Update, fresh: Screened, reason: str, old: Record | None
) -> Record:
    assert case.subject is not None
    planned = case.planned
    record = new_record(
        tuple(map(baseline_run, fresh.runs)),
        old,
        action="append" if action == "append" else "replace" if old else "record",
        reason=case.policy.reason or reason,
        subject=case.subject,
        target_qps=case.rate,
        qps_source=case.rate_source,
        limits=countable(fresh.runs, planned.limits, old if action == "append" else None),
        rule=case.rule,
        skips_first_run=fresh.skips_first_run,
    )
    noise = noise_of_sessions(
        record,
        old,
        case.file,
        case=planned.case,
        profile=planned.suite.profile,
        metrics=(*planned.limits, *planned.efficiency_limits),
        rule=case.rule,
        runs_dir=case.policy.runs_dir,
        same_code=lambda then, now: code_since(case.policy, then, now) is None,
    )
    return replace(record, session_noise=noise)


OUTCOMES_KEPT = frozenset(
    {
        Outcome.OK,
        Outcome.IMPROVED,
        Outcome.PROVISIONAL,
        Outcome.INCONCLUSIVE,
        Outcome.SUSPECT,
        Outcome.NO_BASELINE,
    }
)
"""What the session of an unchanged build may come out as, and still belong to its baseline.

The build is the same, so however its session differs is what sessions differ by: leaving out those
that differ would make the baseline too sure. A drop is red here only where that cannot explain it.
"""


def grow(case: CaseRuns, answer: Ruling) -> Ruling:
    """Add this session's runs to a baseline of few days, now that they were judged.

    Returns:
        What was recorded; else the answer, with why nothing was where something could have been.
    """
    record, session = case.record, case.runs[0].session
    if record is None or record.days >= DAYS or session in record.sessions:
        return answer
    fresh = _refused(case, record, answer) or _fresh(case, record)
    if isinstance(fresh, str):
        stays = f"baseline not grown ({record.days} of {DAYS} days): {fresh}"
        return replace(answer, notes=(*answer.notes, stays))
    return _grown(case, answer, record, fresh)


def _refused(case: CaseRuns, record: Record, answer: Ruling) -> str | None:
    """Return why this session is none of the baseline's build, or not like it; None where it is."""
    assert case.subject is not None
    if build := changes(record.fingerprint, case.subject.fingerprint):
        return f"{'; '.join(build)}: only a session of the same build is added"
    for commit in dict.fromkeys(run.commit for run in record.runs):
        if code := code_since(case.policy, commit, case.runs[0].commit):
            return f"{code}: only a session of the same code is added"
    if answer.outcome not in OUTCOMES_KEPT:
        return (
            f"this session is {answer.outcome}, and its build is the baseline's: the machine "
            f"changed; where it stays so, {APPEND_OPTIONS} adds it"
        )
    now, latest = day_of(case.runs[0].started), max(run.started for run in record.runs)
    if now is not None and now < (day_of(latest) or now):
        return f"the baseline has a session of {latest[:10]}, later than this one: a clock was set"
    beside = changes(record.surroundings, case.subject.surroundings) if record.surroundings else ()
    if beside and any(metric.direction == "drop" for metric in answer.metrics):
        return f"slower, and {'; '.join(beside)}: that may be why"
    return None


def _fresh(case: CaseRuns, record: Record) -> Screened | str:
    """Make the runs that are missing, and return those to add, or why none may be added."""
    try:
        while len(case.runs) < APPEND_RUNS:
            case.add_run()
        fresh = screen(case, APPEND_RUNS, record)
    except Unjudgeable as error:
        return f"INVALID: {error.run.invalid[0]}"
    if any(run.limit_missed for run in case.runs):
        return "a latency limit was missed"
    few = len(fresh.runs) < APPEND_RUNS
    unfit = f"only {len(fresh.runs)} of {len(case.runs)} runs belong together" if few else ""
    if unfit := unfit or unrecordable(fresh.runs, case.planned.limits, record):
        return unfit
    if control := case.compare_machine():
        return control.in_words
    believed = [n for n in case.planned.efficiency_limits if all(r.may_judge(n) for r in case.runs)]
    limits = {name: case.planned.efficiency_limits[name] for name in believed}
    if limits:
        ruling = rule_on(case.runs, record, limits, case.rule, Outcome.POWER_DROP)
        if ruling.outcome is Outcome.POWER_DROP:
            return f"this session is {Outcome.POWER_DROP}"
    return fresh


def _grown(case: CaseRuns, answer: Ruling, before: Record, fresh: Screened) -> Ruling:
    session, runs = case.runs[0].session, fresh.runs

    def unless(now: Record) -> bool:
        """Whether another session completed or replaced it meanwhile."""
        return now.days >= DAYS or now.runs[0] != before.runs[0]

    reason = "one more session of the same build"
    record = write(case, "append", fresh, reason=reason, unless=unless)
    if session not in record.sessions:
        others = "baseline not grown: another session completed or replaced it meanwhile"
        return replace(answer, notes=(*answer.notes, others))
    case.record = record
    size = f"{record.days} of {DAYS} days ({len(record.runs)} runs)"
    headline = f"baseline grew to {size}"
    judged = max((metric.runs for metric in answer.metrics), default=len(runs))
    by = "" if judged >= len(runs) else f" {judged} of these {len(runs)} runs"
    notes = (
        f"{headline} in {case.policy.shown(case.file)}; {provable(record)}. Commit the file.",
        f"compared{by} before it was added: {answer.outcome} {answer.headline}",
        *fresh.notes,
        *filter(None, [same_day(record)]),
    )
    metrics = tuple(
        metric
        if metric.outcome is None
        else replace(
            metric,
            outcome=Outcome.RECORDED,
            direction=None,
            note="",
            baseline=replace(
                metric.baseline,
                detectable=record.minimum_detectable_change.get(metric.metric),
                runs=len(record.runs),
            ),
            runs=len(runs),
        )
        for metric in answer.metrics
    )
    notes = (*notes, *answer.notes)
    return Ruling(outcome=Outcome.RECORDED, headline=headline, metrics=metrics, notes=notes)

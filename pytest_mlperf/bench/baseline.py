"""Write a case's runs to its baseline file; keep the runs of other sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from operator import eq
from pathlib import Path

from pytest_mlperf.bench.case import CaseRuns
from pytest_mlperf.bench.policy import Policy, Update, calibrated, closed_root
from pytest_mlperf.bench.runner import Unjudgeable
from pytest_mlperf.core import recording
from pytest_mlperf.core.baseline import (
    Baseline,
    Record,
    changed_keys,
    differences,
    find_record,
    with_record,
)
from pytest_mlperf.core.case import Case, Kind
from pytest_mlperf.core.errors import BaselineError, MlperfError
from pytest_mlperf.core.guarantees import APPEND_OPTIONS
from pytest_mlperf.core.measurement import Run, day_of
from pytest_mlperf.core.noise import session_noise
from pytest_mlperf.core.notes import Note, Words
from pytest_mlperf.core.results import CaseResult, Results
from pytest_mlperf.core.rulings.ruling import Ruling, rule_on, rule_values
from pytest_mlperf.core.rulings.sample import countable, unrecordable
from pytest_mlperf.core.rulings.screening import Screened, screened
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.judge.inputs import DAYS, SessionNoise, better_known
from pytest_mlperf.judge.rule_r import RuleR, Value
from pytest_mlperf.run.project import code_differs
from pytest_mlperf.stores import baselines
from pytest_mlperf.stores.results import read_results

SESSIONS_READ = 50
"""Maximum number of sessions of the runs folder that are read, newest first."""

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
    """Return the between-session noise of a record's build and machine, by metric.

    The estimate uses runs of the record, of earlier sessions of the same build, of the previous
    build, and of the case's calibration. Other calibrated cases of the machine and other baselines
    of the workload have less weight. The old record's estimate is kept if it is from more sessions,
    because the results of those sessions may be deleted.

    Args:
        file: Baseline file of the record: ROOT/ACCELERATOR/PROFILE/WORKLOAD/CASE.json.
        runs_dir: Folder of earlier sessions' results, or None.
        same_code: Returns whether two commits have the same code.
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
    earlier = list(_earlier_runs(record, case, profile, runs_dir, same_code))
    sibling_runs = [*_siblings(file, record), *others]
    previous_runs = old.runs if old and old.runs[0] not in record.runs else ()
    noise_by_metric = {}
    for metric in metrics:
        builds: list[Sequence[Value]] = [
            rule_values([*record.runs, *earlier], metric),
            rule_values(previous_runs, metric),
        ]
        builds += [one.values(metric) for one in ours if metric in one.limits]
        noise = session_noise(builds, sibling_runs, rule=rule)
        if noise:
            ratio = float(f"{noise.ratio:.3g}")
            noise = SessionNoise(ratio=ratio, df=round(noise.df, 2), by_days=True)
        stored = old.noise_of(metric) if old else None
        if learnt := better_known(noise, stored):
            noise_by_metric[metric] = learnt
    return noise_by_metric


def _siblings(file: Path, record: Record) -> Iterator[list[Value]]:
    """Yield values of runs of other baselines of this workload and machine, a list per metric."""
    for path in sorted(file.parent.glob("*.json")):
        if path.name == file.name:
            continue
        try:
            loaded = baselines.load(path)
        except BaselineError:
            continue  # reported when a case is judged by it
        other = find_record(loaded, record.identity)
        if other:
            yield from (rule_values(other.runs, name) for name in other.minimum_detectable_change)


def _earlier_runs(
    record: Record,
    case: Case,
    profile: str,
    runs_dir: Path | None,
    same_code: Callable[[str | None, str | None], bool],
) -> Iterator[Run]:
    """Yield earlier sessions' runs of this case, build and profile that the record lacks."""
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
    """Check that an undisturbed result has the build, machine and rate of a baseline record."""
    verdict = result.verdict
    return (
        verdict.kind == Kind.PERFORMANCE
        and verdict.outcome not in _DISTURBED
        and not (result.handicap or result.pretended)
        and verdict.subject is not None
        and not differences(verdict.subject.identity, record.identity)
        and not changed_keys(record.fingerprint, verdict.subject.fingerprint)
        and result.target_qps == record.target_qps
    )


@lru_cache(maxsize=SESSIONS_READ)
def _read(path: Path, changed_ns: int) -> Results | None:
    del changed_ns
    try:
        return read_results(path)
    except MlperfError:
        return None


def select_runs(case: CaseRuns, count: int, old: Record | None) -> Screened:
    """Select the runs to record; replace outliers by up to max(2, `count` / 2) extra runs.

    `count` is the number of runs to record; `old` is the record that they are appended to.
    """
    made, most = count, count + max(count // 2, recording.APPEND_RUNS)
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
    """Append the runs to the case's baseline, or replace those in it (`action`); return the record.

    Runs and history that another session wrote in the meantime are kept. Nothing is written if
    `unless` returns True for the record in the file. `reason` is the default if the user gave none.
    """
    assert case.subject is not None
    identity, suite = case.subject.identity, case.planned.suite
    empty = recording.empty_baseline(
        case.planned.case, round_name=suite.round, profile=suite.profile
    )
    began_with = case.record

    def put(stored: Baseline | None) -> Baseline:
        baseline = stored or empty
        present = find_record(baseline, identity)
        if (present is None) != (began_with is None):
            change = "recorded it" if present else "removed it"
            raise BaselineError(
                f"{case.policy.shown(case.file)}: another session {change} while this one "
                "measured; nothing was written: run again to compare with the new baseline"
            )
        if present and unless(present):
            return baseline
        return with_record(baseline, _new_record(case, action, fresh, reason, present))

    record = find_record(baselines.update(case.file, put), identity)
    assert record is not None
    return record


def code_since(policy: Policy, earlier: str | None, later: str | None) -> str | None:
    """Return why the code of two commits may differ, or None if it is the same."""
    return code_differs(policy.root, earlier, later, [policy.baselines] if policy.baselines else [])


def _new_record(
    case: CaseRuns, action: Update, fresh: Screened, reason: str, old: Record | None
) -> Record:
    assert case.subject is not None
    planned = case.planned
    record = recording.new_record(
        tuple(map(recording.baseline_run, fresh.runs)),
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
        same_code=lambda earlier, later: code_since(case.policy, earlier, later) is None,
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
"""Outcomes with which a session of the baseline's own build is added to the baseline.

The build is unchanged, so its differences are between-session variance: without such sessions the
estimate would be too small. A drop beyond that variance is not added.
"""


def extend_baseline(case: CaseRuns, ruling: Ruling) -> Ruling:
    """Append this session's runs to a baseline of too few days, or note in `ruling` why not."""
    record, session = case.record, case.runs[0].session
    if record is None or record.days >= DAYS or session in record.sessions:
        return ruling
    fresh = _refused(case, record, ruling) or _runs_to_append(case, record)
    if not isinstance(fresh, Screened):
        stays = Note.of("not_grown", days=record.days, needed=DAYS, note=fresh)
        return replace(ruling, notes=(*ruling.notes, stays))
    return _grown(case, ruling, record, fresh)


def _refused(case: CaseRuns, record: Record, answer: Ruling) -> str | None:
    assert case.subject is not None
    if build := recording.changes(record.fingerprint, case.subject.fingerprint):
        return f"{'; '.join(build)}: only a session of the same build can be added"
    for commit in dict.fromkeys(run.commit for run in record.runs):
        if code := code_since(case.policy, commit, case.runs[0].commit):
            return f"{code}: only a session of the same code can be added"
    if answer.outcome not in OUTCOMES_KEPT:
        return (
            f"its verdict is {answer.outcome} with the baseline's build, so the machine has "
            f"changed. If the change is permanent, add the session: {APPEND_OPTIONS}"
        )
    day, latest = day_of(case.runs[0].started), max(run.started for run in record.runs)
    if day is not None and day < (day_of(latest) or day):
        text = f"the baseline has a session of {latest[:10]}, later than this one"
        return f"{text}: check the clocks of the machines that measured"
    environment = recording.changes(record.surroundings, case.subject.surroundings)
    slower = any(metric.direction == "drop" for metric in answer.metrics)
    if record.surroundings and environment and slower:
        return f"this session is slower, perhaps because of {'; '.join(environment)}"
    return None


def _runs_to_append(case: CaseRuns, record: Record) -> Screened | Words:
    """Add runs up to `APPEND_RUNS`; return those that may be appended, or why none may be."""
    try:
        while len(case.runs) < recording.APPEND_RUNS:
            case.add_run()
        fresh = select_runs(case, recording.APPEND_RUNS, record)
    except Unjudgeable as error:
        return Note.of("invalid", note=error.run.invalid[0].text)
    if any(run.limit_missed for run in case.runs):
        return "a latency limit was missed"
    few = len(fresh.runs) < recording.APPEND_RUNS
    apart = f"only {len(fresh.runs)} of {len(case.runs)} runs agree with each other" if few else ""
    if unfit := apart or unrecordable(fresh.runs, case.planned.limits, record):
        return unfit
    if control := case.compare_machine():
        return control.note
    believed = [n for n in case.planned.efficiency_limits if all(r.may_judge(n) for r in case.runs)]
    limits = {name: case.planned.efficiency_limits[name] for name in believed}
    if limits:
        ruling = rule_on(case.runs, record, limits, case.rule, Outcome.POWER_DROP)
        if ruling.outcome is Outcome.POWER_DROP:
            return f"this session is {Outcome.POWER_DROP}"
    return fresh


def _grown(case: CaseRuns, answer: Ruling, old: Record, fresh: Screened) -> Ruling:
    session, runs = case.runs[0].session, fresh.runs

    def unless(present: Record) -> bool:
        return present.days >= DAYS or present.runs[0] != old.runs[0]

    reason = "one more session of the same build"
    record = write(case, "append", fresh, reason=reason, unless=unless)
    if session not in record.sessions:
        others = "session not added: another session completed or replaced the baseline meanwhile"
        return replace(answer, notes=(*answer.notes, others))
    case.record = record
    size = f"{record.days} of {DAYS} days ({len(record.runs)} runs)"
    headline, file = f"baseline grew to {size}", case.policy.shown(case.file)
    detectable = recording.detectable_effects(record)
    judged = max((metric.runs for metric in answer.metrics), default=len(runs))
    notes: tuple[Words, ...] = (
        Note.of("record_made", runs=f"{headline} in {file}", note=detectable),
        answer.quoted("compared_before", judged=judged, of=len(runs)),
        *fresh.notes,
        *filter(None, [recording.same_day_note(record)]),
    )
    metrics = tuple(
        metric
        if metric.outcome is None
        else replace(
            metric,
            outcome=Outcome.RECORDED,
            direction=None,
            note=None,
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

"""Measure cases until their verdicts are decided, and record baselines. Knows no pytest."""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from pytest_mlperf.core.baseline import (
    Baseline,
    Record,
    find,
    geometric_means,
    nearest,
    with_record,
)
from pytest_mlperf.core.case import Case, Kind
from pytest_mlperf.core.errors import BaselineError, RunError
from pytest_mlperf.core.expectation import expect
from pytest_mlperf.core.judge.rule_r import RuleR, outlier
from pytest_mlperf.core.judge.ruling import Ruling, rule_on, values
from pytest_mlperf.core.measurement import Accuracy, Run, Subject
from pytest_mlperf.core.metrics import METRICS
from pytest_mlperf.core.numbers import change
from pytest_mlperf.core.recording import (
    baseline_run,
    changes,
    detectable_note,
    empty_baseline,
    new_record,
    set_by,
)
from pytest_mlperf.core.verdict import MetricVerdict, Outcome, Verdict
from pytest_mlperf.run.measure import Conditions, Process, accuracy_key, measure
from pytest_mlperf.run.supervisor import log_tail
from pytest_mlperf.stores import atomic, baselines
from pytest_mlperf.suite.plan import Planned

Update = Literal["missing", "append", "replace"]

INVALID_TRIES = 3
"""A run that may not be judged is measured again at most twice."""

APPEND_RUNS = 2
"""An appended session adds this many runs (a baseline of 8 is 4 sessions x 2)."""

OUTLIER_EXTRA_RUNS = 2
"""Runs added at most when the leave-one-out screen rejects one; all of them are kept."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """How verdicts are reached and recorded.

    Attributes:
        update: What to record, or None.
        baseline_runs: Runs of a recorded baseline.
        reason: Why it is recorded.
        max_runs: Most runs of a case before INCONCLUSIVE.
        baselines: Folder of the baselines; None: the nearest `baselines/` above the suite.
        accuracy: Folder of stored accuracy passes.
        root: Folder that shown paths are relative to.
    """

    update: Update | None = None
    baseline_runs: int = 8
    reason: str | None = None
    max_runs: int = 5
    baselines: Path | None = None
    accuracy: Path
    root: Path


@dataclass
class _State:
    """What is known of one case in this session."""

    planned: Planned
    file: Path
    record: Record | None
    distance: tuple[str, ...] = ()
    rule: RuleR = field(default_factory=RuleR)
    runs: list[Run] = field(default_factory=list)
    accuracy: Accuracy | None = None
    subject: Subject | None = None
    rate: float | None = None
    rate_source: Literal["suite", "probe"] | None = None
    processes: int = 0
    broken: RunError | None = None
    ended: dict[Kind, Verdict] = field(default_factory=dict)


class _Unjudgeable(Exception):
    """Every try of a run was INVALID; carries the reasons of the last one."""

    def __init__(self, run: Run) -> None:
        super().__init__("; ".join(run.invalid))
        self.run = run


class Bench:
    """Measures each case of a session once and answers for each of its tests."""

    def __init__(self, conditions: Conditions, policy: Policy, show: Callable[[str], None]) -> None:
        """Keep the session's settings.

        Args:
            conditions: What all runs share.
            policy: How verdicts are reached and recorded.
            show: Takes a line of progress, many times.
        """
        self._conditions = conditions
        self._policy = policy
        self._show = show
        self._states: dict[tuple[Path, str], _State] = {}

    def verdict(self, planned: Planned, kind: Kind, wanted: Collection[Kind]) -> Verdict:
        """Return the verdict of one test, measuring what is still missing.

        Args:
            planned: The case.
            kind: What is asked.
            wanted: The kinds of this case that the session will ask for in all, so that one
                process serves them together.

        Raises:
            UnavailableError: Model or data set is not here.
        """
        key = (planned.path, planned.case.id)
        try:
            if key not in self._states:
                self._states[key] = self._open(planned)
            state = self._states[key]
            if state.broken:
                raise state.broken
            answer = self._accuracy if kind == "accuracy" else self._performance
            return self._finish(state, kind, answer(state, {*wanted, kind}))
        except _Unjudgeable as error:
            return self._invalid(self._states[key], kind, error.run)
        except (RunError, BaselineError) as error:
            return self._error(planned, kind, error)

    def rate(self, planned: Planned) -> tuple[float | None, str | None]:
        """Return the rate a case is offered or sized by, and where it comes from."""
        state = self._states.get((planned.path, planned.case.id))
        return (state.rate, state.rate_source) if state else (None, None)

    # --- state ---------------------------------------------------------------------------

    def _open(self, planned: Planned) -> _State:
        """Load the baseline first: a defect in it must not cost a measurement."""
        case = planned.case
        root = self._policy.baselines or nearest_baselines(planned.path)
        file = baseline_file(root, case, planned.suite.profile)
        loaded = baselines.load(file)
        identity = self._conditions.machine.identity(case.accelerator)
        record = find(loaded, identity) if loaded else None
        if self._policy.update:
            _require_writable(file)
        close = nearest(loaded, identity) if loaded and not record else None
        differences = close[1] if close else ()
        distance = tuple(f"{d.name}: {d.theirs} there, {d.ours} here" for d in differences)
        suite_rate = planned.scenario.rate_on(case.accelerator)
        return _State(
            planned=planned,
            file=file,
            record=record,
            distance=distance,
            rule=rule_for(case.accelerator, self._policy.max_runs),
            rate=suite_rate or (record.target_qps if record else None),
            rate_source="suite" if suite_rate else record.qps_source if record else None,
        )

    def _recording(self, state: _State) -> Update | None:
        update = self._policy.update
        if update == "missing" and state.record:
            return None
        if update == "append" and not state.record:
            raise BaselineError(
                f"{self._shown(state.file)}: there is no baseline of this machine to append to; "
                "record one with --mlperf-update=missing"
            )
        return update

    # --- measuring -----------------------------------------------------------------------

    def _process(self, state: _State, *, performance: bool, accuracy: bool) -> Process:
        """Run one fresh process and keep what it gave."""
        state.processes += 1
        try:
            process = measure(
                state.planned,
                self._conditions,
                self._show,
                target_qps=state.rate,
                performance=performance,
                accuracy=accuracy,
                number=state.processes,
            )
        except RunError as error:
            state.broken = error
            raise
        state.subject = process.subject
        if process.probed:
            state.rate, state.rate_source = process.target_qps, "probe"
        if process.accuracy:
            state.accuracy = process.accuracy
            self._store_accuracy(state, process.accuracy)
        return process

    def _valid_run(self, state: _State, *, accuracy: bool = False) -> None:
        """Add one run that may be judged.

        Raises:
            _Unjudgeable: No try was valid.
        """
        for attempt in range(1, INVALID_TRIES + 1):
            run = self._process(state, performance=True, accuracy=accuracy).run
            accuracy = False
            assert run is not None
            if not run.invalid:
                state.runs.append(run)
                return
            if attempt == INVALID_TRIES:
                raise _Unjudgeable(run)
            if state.planned.case.scenario == "Offline":
                # An Offline run that was too short was sized for a slower engine: size it anew.
                state.rate = max(state.rate or 0.0, 1.2 * run.metrics.get("throughput", 0.0))

    def _first(self, state: _State, wanted: Collection[Kind]) -> None:
        """Do the case's first process: everything that the session wants of it at once."""
        performance = "performance" in wanted and not state.runs
        accuracy = "accuracy" in wanted and state.accuracy is None and bool(state.planned.scorer)
        if performance:
            self._valid_run(state, accuracy=accuracy)
        elif accuracy:
            self._process(state, performance=False, accuracy=True)

    # --- accuracy ------------------------------------------------------------------------

    def _accuracy(self, state: _State, wanted: Collection[Kind]) -> Verdict:
        self._first(state, wanted)
        assert state.accuracy is not None
        return self._judge_accuracy(state, state.accuracy)

    def _judge_accuracy(self, state: _State, accuracy: Accuracy) -> Verdict:
        planned = state.planned
        reference = planned.reference
        if reference is None:
            metrics = tuple(
                MetricVerdict(metric=name, outcome=None, now=score)
                for name, score in accuracy.scores.items()
            )
            shown = ", ".join(f"{name} {score:.3f}" for name, score in accuracy.scores.items())
            headline = f"{shown}; gate not evaluated ({planned.suite.profile} profile)"
            return self._verdict(state, "accuracy", Outcome.OK, headline, metrics)
        whose = "MLPerf's" if planned.suite.is_mlperf else "this suite's own"
        verdicts = []
        texts = []
        for name, expected in reference.items():
            if name not in accuracy.scores:
                raise RunError("scorer", f"gave no {name!r}; it gave {', '.join(accuracy.scores)}")
            score, needed = accuracy.scores[name], expected * planned.target
            outcome = Outcome.OK if score >= needed else Outcome.GATE_FAIL
            sign = "≥" if outcome is Outcome.OK else "<"
            texts.append(
                f"{name} {score:.3f} {sign} {needed:.3f} ({planned.target:.4g} x {whose} reference)"
            )
            verdicts.append(
                MetricVerdict(
                    metric=name,
                    outcome=outcome,
                    now=score,
                    baseline=expected,
                    change=score / expected - 1,
                    limit=1 - planned.target,
                )
            )
        failed = [i for i, v in enumerate(verdicts) if v.outcome is Outcome.GATE_FAIL]
        outcome = Outcome.GATE_FAIL if failed else Outcome.OK
        headline = texts[failed[0] if failed else 0]
        return self._verdict(state, "accuracy", outcome, headline, tuple(verdicts))

    def _accuracy_for_performance(self, state: _State, *, required: bool) -> Accuracy | None:
        """Return an accuracy pass of the same fingerprint, measured now where it is required."""
        if not state.planned.scorer:
            return None
        if state.accuracy is None:
            state.accuracy = self._stored_accuracy(state)
        if state.accuracy is None and required:
            self._process(state, performance=False, accuracy=True)
        return state.accuracy

    def _accuracy_file(self, state: _State) -> Path:
        assert state.subject is not None
        key = accuracy_key(state.planned, state.subject.fingerprint)
        return self._policy.accuracy / f"{key}.json"

    def _store_accuracy(self, state: _State, accuracy: Accuracy) -> None:
        file = self._accuracy_file(state)
        content = {
            "scores": dict(accuracy.scores),
            "samples": accuracy.samples,
            "full": accuracy.full,
            "folder": accuracy.folder,
        }
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            atomic.write_text(file, json.dumps(content, indent=1) + "\n")
        except OSError as error:
            raise RunError("worker", f"cannot write {file}: {error.strerror}") from None

    def _stored_accuracy(self, state: _State) -> Accuracy | None:
        try:
            found = json.loads(self._accuracy_file(state).read_text("utf-8"))
            return Accuracy(**found, source="stored")
        except (OSError, ValueError, TypeError):
            return None

    # --- performance ---------------------------------------------------------------------

    def _performance(self, state: _State, wanted: Collection[Kind]) -> Verdict:
        recording = self._recording(state)
        if differs := self._rate_differs(state, recording):
            return differs
        self._first(state, wanted)
        official = state.planned.suite.profile == "official"
        accuracy = self._accuracy_for_performance(state, required=official or bool(recording))
        if accuracy:
            judged = self._judge_accuracy(state, accuracy)
            if judged.outcome is Outcome.GATE_FAIL:
                headline = f"not judged: accuracy failed, {judged.headline}"
                return self._verdict(state, "performance", Outcome.INVALID, headline)
        if recording:
            return self._record(state, recording)
        return self._judge(state, checked=bool(accuracy) or not state.planned.scorer)

    def _judge(self, state: _State, *, checked: bool) -> Verdict:
        while True:
            if missed := self._limit_missed(state):
                return missed
            ruling = rule_on(state.runs, state.record, state.planned.limits, state.rule)
            if not ruling.more:
                break
            self._valid_run(state)
        headline = _headline(ruling)
        if not checked:
            headline += ", accuracy not checked"
        return self._verdict(state, "performance", ruling.outcome, headline, ruling.metrics)

    def _rate_differs(self, state: _State, recording: Update | None) -> Verdict | None:
        record, scenario = state.record, state.planned.case.scenario
        if scenario not in {"Server", "Interactive"} or not record or recording == "replace":
            return None
        if state.rate == record.target_qps:
            return None
        return self._verdict(
            state,
            "performance",
            Outcome.INVALID,
            f"offered rate differs: suite {state.rate:g}/s, baseline {record.target_qps:g}/s",
            notes=(
                "latencies at different rates cannot be compared: set target_qps back, "
                'or record anew with --mlperf-update=replace --mlperf-reason "..."',
            ),
        )

    def _limit_missed(self, state: _State) -> Verdict | None:
        """Return the verdict of a latency limit missed twice; measure again after the first."""
        missed = [run for run in state.runs if run.limit_missed]
        if missed and len(state.runs) == 1:
            self._valid_run(state)
            missed = [run for run in state.runs if run.limit_missed]
        if len(missed) < 2:
            return None
        ruling = rule_on(state.runs, state.record, state.planned.limits, state.rule)
        worst = missed[-1].metrics.get("latency_p99")
        shown = f"p99 latency {worst * 1000:.3g} ms" if worst else "a token latency"
        if state.record:
            outcome, headline = Outcome.PERF_DROP, "limit missed at the rate the baseline held"
        else:
            outcome, headline = Outcome.GATE_FAIL, f"latency limit missed twice at {state.rate:g}/s"
        return self._verdict(state, "performance", outcome, f"{headline}: {shown}", ruling.metrics)

    # --- recording -----------------------------------------------------------------------

    def _record(self, state: _State, action: Update) -> Verdict:
        wanted = APPEND_RUNS if action == "append" else self._policy.baseline_runs
        while len(state.runs) < wanted:
            self._valid_run(state)
        if any(run.limit_missed for run in state.runs):
            missed = self._limit_missed(state)
            if missed:
                return missed
        for _ in range(OUTLIER_EXTRA_RUNS):
            if _outliers(state) is None:
                break
            self._valid_run(state)
        if found := _outliers(state):
            return self._verdict(
                state,
                "performance",
                Outcome.INVALID,
                f"nothing recorded: {found}",
                notes=("the machine was disturbed during one run; record again when it is quiet",),
            )
        record = self._new_record(state, action)
        suite = state.planned.suite
        empty = empty_baseline(state.planned.case, round_name=suite.round, profile=suite.profile)

        def put(old: Baseline | None) -> Baseline:
            return with_record(old or empty, record)

        baselines.update(state.file, put)
        state.record = record
        means = geometric_means(record.runs)
        metrics = tuple(
            MetricVerdict(
                metric=name,
                outcome=Outcome.RECORDED,
                now=means[name],
                limit=limit,
                detectable=record.minimum_detectable_change.get(name),
                runs=len(state.runs),
                runs_baseline=len(record.runs),
            )
            for name, limit in state.planned.limits.items()
            if name in means
        )
        headline = f"{len(record.runs)} runs in {self._shown(state.file)}"
        return self._verdict(
            state,
            "performance",
            Outcome.RECORDED,
            headline,
            metrics,
            notes=tuple(filter(None, map(detectable_note, metrics))),
        )

    def _new_record(self, state: _State, action: Update) -> Record:
        assert state.subject is not None
        fresh = tuple(map(baseline_run, state.runs))
        old = state.record
        return new_record(
            fresh,
            old,
            action="append" if action == "append" else "replace" if old else "record",
            reason=self._policy.reason or "first baseline",
            subject=state.subject,
            target_qps=state.rate,
            qps_source=state.rate_source,
            limits=state.planned.limits,
            rule=state.rule,
        )

    # --- verdicts ------------------------------------------------------------------------

    def _verdict(
        self,
        state: _State,
        kind: Kind,
        outcome: Outcome,
        headline: str,
        metrics: tuple[MetricVerdict, ...] = (),
        notes: tuple[str, ...] = (),
    ) -> Verdict:
        record, subject = state.record, state.subject
        changed = changes(record, subject) if record and subject else ()
        if outcome is Outcome.NO_BASELINE and state.distance:
            notes = (*notes, "nearest baseline differs in " + "; ".join(state.distance))
        if self._conditions.handicap:
            slowed = f"work was slowed by --mlperf-handicap {self._conditions.handicap:.0%}"
            notes = (slowed, *notes)
        folders = [run.folder for run in state.runs]
        last = folders[-1] if folders else state.accuracy.folder if state.accuracy else None
        return Verdict(
            case=state.planned.case,
            kind=kind,
            outcome=outcome,
            headline=headline,
            metrics=metrics,
            runs=tuple(state.runs),
            accuracy=state.accuracy,
            subject=subject,
            changed=changed,
            notes=notes,
            baseline_file=self._shown(state.file),
            baseline_set=set_by(record) if record else None,
            folder=self._shown(Path(last)) if last else None,
        )

    def _finish(self, state: _State, kind: Kind, verdict: Verdict) -> Verdict:
        verdict = expect(
            verdict,
            [e.model_dump() for e in state.planned.suite.expected_failures],
            dt.datetime.now(dt.UTC).date(),
        )
        state.ended[kind] = verdict
        return verdict

    def _invalid(self, state: _State, kind: Kind, run: Run) -> Verdict:
        verdict = self._verdict(state, kind, Outcome.INVALID, run.invalid[0], notes=run.invalid[1:])
        return replace(verdict, folder=self._shown(Path(run.folder)))

    def _error(self, planned: Planned, kind: Kind, error: RunError | BaselineError) -> Verdict:
        layer = error.layer if isinstance(error, RunError) else "baseline"
        notes = tuple(f"log: {line}" for line in log_tail(getattr(error, "log", None)))
        log = error.log if isinstance(error, RunError) else None
        return Verdict(
            case=planned.case,
            kind=kind,
            outcome=Outcome.ERROR,
            headline=f"{layer}: {error}",
            notes=notes,
            log=self._shown(Path(log)) if log else None,
            folder=self._shown(Path(log).parent) if log else None,
        )

    def _shown(self, path: Path) -> str:
        try:
            return str(path.resolve().relative_to(self._policy.root.resolve()))
        except ValueError:
            return str(path)


def baseline_file(root: Path, case: Case, profile: str) -> Path:
    """Return where the baseline of a case is kept."""
    return baselines.path_for(
        root,
        accelerator=case.accelerator,
        profile=profile,
        workload=case.workload,
        scenario=case.scenario,
        engine=case.engine,
        precision=case.precision,
    )


def rule_for(accelerator: str, max_runs: int = 5) -> RuleR:
    """Return rule R with the prior run-to-run noise of an accelerator (uncalibrated)."""
    return RuleR(prior_sd=0.05 if accelerator == "cpu" else 0.007, max_runs=max_runs)


def nearest_baselines(suite: Path) -> Path:
    """Return the nearest `baselines/` above a suite file, else the place for one beside it."""
    for folder in suite.resolve().parents:
        if (folder / "baselines").is_dir():
            return folder / "baselines"
    return suite.resolve().parent / "baselines"


def _require_writable(file: Path) -> None:
    """Refuse before measuring what could not be written afterwards."""
    folder = next(parent for parent in file.parents if parent.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise BaselineError(f"{folder} cannot be written; nothing was measured")


def _outliers(state: _State) -> str | None:
    """Return which run the leave-one-out screen rejects, in words."""
    for metric in state.planned.limits:
        sample = values(state.runs, metric)
        index = outlier(sample, rule=state.rule) if len(sample) > 2 else None
        if index is not None:
            title = METRICS[metric].title
            return f"run {index + 1} of {len(sample)} is an outlier in {title}"
    return None


def _headline(ruling: Ruling) -> str:
    """Return what follows the outcome word: metric, change, interval, what is not excluded."""
    metric = ruling.deciding
    if metric is None:
        return "nothing is gated"
    title = METRICS[metric.metric].title
    if metric.change is None or metric.low is None or metric.high is None or not metric.limit:
        return f"{title}: {metric.note or 'no record of this machine'}"
    shown = f"{title} {change(metric.change)} ({change(metric.low)} to {change(metric.high)})"
    worst = -metric.limit if METRICS[metric.metric].direction == "higher" else metric.limit
    match ruling.outcome:
        case Outcome.OK | Outcome.IMPROVED:
            return f"{shown}; inside {change(worst)}"
        case Outcome.INCONCLUSIVE:
            return f"{shown}; {change(worst)} neither proven nor excluded"
        case _:
            return f"{shown}; {change(worst)} not excluded"

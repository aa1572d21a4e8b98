"""Judge a session's cases against another build, by interleaved runs of both builds."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from collections.abc import Collection, Mapping
from dataclasses import replace
from importlib.metadata import distributions
from typing import Any

from pytest_mlperf.bench import performance
from pytest_mlperf.bench.accuracy import ScoredPass
from pytest_mlperf.bench.case import CaseRuns
from pytest_mlperf.bench.earlier import ENGINE_PREFIX
from pytest_mlperf.bench.interleaved import Interleaved, NotComparable
from pytest_mlperf.bench.policy import Policy
from pytest_mlperf.bench.runner import CaseRunner, Unjudgeable
from pytest_mlperf.core.baseline import Record
from pytest_mlperf.core.case import Kind
from pytest_mlperf.core.errors import MlperfError, RunError
from pytest_mlperf.core.job import EarlierBuild
from pytest_mlperf.core.measurement import Run, Subject
from pytest_mlperf.core.metrics import METRICS
from pytest_mlperf.core.notes import Note, Words
from pytest_mlperf.core.numbers import percent, plural
from pytest_mlperf.core.recording import MISSES, baseline_run, new_record
from pytest_mlperf.core.rulings.disturbance import is_loaded
from pytest_mlperf.core.rulings.multiplicity import DROP_OUTCOMES
from pytest_mlperf.core.rulings.ruling import Ruling, rule_on, ruling_of
from pytest_mlperf.core.rulings.sample import curve_rule
from pytest_mlperf.core.verdict import Confirmation, InterleavedRuns, Outcome
from pytest_mlperf.judge.decision import Answer
from pytest_mlperf.judge.multiplicity import rule_among
from pytest_mlperf.judge.ratio import FIRST_LOOK, Ratio, pairs_to_decide
from pytest_mlperf.run.accuracy import ScoringSchedule, accuracy_key
from pytest_mlperf.run.builds import Build, baseline_build, remove_left
from pytest_mlperf.run.measure import ProcessResult
from pytest_mlperf.run.project import CHANGED_MARK, changes_digest
from pytest_mlperf.stores.accuracy import AccuracyPasses
from pytest_mlperf.suite.environments import other_build
from pytest_mlperf.suite.plan import Planned

SIDE_LABEL = "against"
MOST_PAIRS = 6
"""Largest number of pairs of runs, unless `--mlperf-max-runs` is larger."""


class OtherBuildRunner(CaseRunner):
    """Run a case with the build of `--mlperf-against`; its failures become errors, not verdicts."""

    title = ""
    _unjudgeable: Unjudgeable | None = None

    def add_run(self, *, ask: ScoringSchedule | None = None) -> Run:
        """Add a valid run; after an INVALID one, raise Unjudgeable with the build's name."""
        if self._unjudgeable:
            raise self._unjudgeable
        try:
            return super().add_run(ask=ask)
        except Unjudgeable as error:
            reasons = tuple(
                replace(reason, text=Note.of("of_case", case=self.title, note=reason.text))
                for reason in error.run.invalid
            )
            self._unjudgeable = Unjudgeable(replace(error.run, invalid=reasons))
            raise self._unjudgeable from None

    def process(self, **task: Any) -> ProcessResult:
        """Run a process of the other build; turn any error into a RunError of layer "against"."""
        try:
            done = super().process(**task)
        except MlperfError as error:
            log = error.log if isinstance(error, RunError) else None
            raise RunError("against", f"{self.title}: {error}", log) from None
        done = replace(done, subject=_comparable(done.subject))
        self.subject = self.subject and _comparable(self.subject)
        return done


def _comparable(subject: Subject) -> Subject:
    """Return a subject without the fingerprint's entries on build and Python, which differ."""
    facts = subject.fingerprint.items()
    kept = {key: text for key, text in facts if key.partition(".")[0] not in {"build", "python"}}
    return replace(subject, fingerprint=kept)


class OtherBuild:
    """Measure the build that `--mlperf-against` names, for all cases of a session."""

    def __init__(self, policy: Policy) -> None:
        assert policy.against is not None
        self._table = policy.against
        self._policy = policy
        self._stack = contextlib.ExitStack()
        self._builds: dict[EarlierBuild, Build | RunError] = {}
        self._sides: dict[int, Interleaved] = {}
        self._passes = AccuracyPasses(policy.accuracy / SIDE_LABEL)

    def close(self) -> None:
        """Remove the temporary files of the other build."""
        self._stack.close()

    def title(self, case: CaseRuns) -> str | None:
        """Return the name of the other build that a case was compared with; None if with none."""
        sides = self._sides.get(id(case))
        return sides.title if sides else None

    def sides(self, case: CaseRuns) -> Interleaved:
        """Return the interleaved runs of a case by both builds; RunError if the other one fails."""
        if sides := self._sides.get(id(case)):
            return sides
        if not isinstance(case.planned, Planned):
            raise RunError("against", "pytest-benchmark tests have no other build to compare")
        earlier = other_build(case.planned, self._table)
        conditions, commit = case.conditions, case.conditions.commit
        build = self._build(earlier, case)
        here = not build.commit and list(build.python) == [sys.executable]
        if (here or build.commit == commit) and not conditions.handicap:
            text = f"{build.title} is the build under test itself; name another one to compare with"
            raise RunError("against", text)
        commit = build.commit or commit
        side = OtherBuildRunner(
            case.planned,
            replace(conditions, handicap=0.0, commit=commit),
            case.show,
            rate=case.rate,
            build=build,
            label=SIDE_LABEL,
            job=case.job,
        )
        side.title = build.title
        rule = rule_among(case.rule, max(self._policy.judged_pairs, 1))
        sides = Interleaved(new=case, old=side, rule=rule, title=build.title)
        self._sides[id(case)] = sides
        return sides

    def _build(self, earlier: EarlierBuild, case: CaseRuns) -> Build:
        folder = case.conditions.folder
        key = replace(earlier, suite=earlier.suite.parent)
        if not self._builds:
            remove_left(earlier.suite, folder.parent)
        if key not in self._builds:
            if earlier.requirements:
                packages = " ".join(earlier.requirements)
                case.show(f"preparing {packages}, which pip installs the first time")
            try:
                build = baseline_build(earlier, folder, SIDE_LABEL)
                self._builds[key] = self._stack.enter_context(build)
            except RunError as error:
                self._builds[key] = RunError("against", str(error), error.log)
        made = self._builds[key]
        if isinstance(made, RunError):
            raise made
        return made

    def _accuracy_key(self, case: CaseRuns, commit: str | None, subject: Subject) -> str:
        """Return the cache key of the other build's accuracy pass; "" if its code is unknown."""
        earlier = other_build(case.of_suite, self._table)
        build = self._build(earlier, case)
        is_fixed = build.commit or earlier.requirements
        if earlier.elsewhere is not None or not is_fixed or commit is None:
            return ""
        changed = changes_digest(self._policy.root) if commit.endswith(CHANGED_MARK) else ""
        packages = sorted(f"{one.name}=={one.version}" for one in distributions())
        code = " ".join((commit, changed, str(build.python[0]), *packages))
        facts = {
            key: text
            for key, text in subject.fingerprint.items()
            if not key.startswith((ENGINE_PREFIX, "python"))
        }
        suite, machine = accuracy_key(case.suite_job, facts), sorted(subject.identity.items())
        return hashlib.sha256(json.dumps([code, suite, machine]).encode()).hexdigest()[:32]

    # --- judging -------------------------------------------------------------------------

    def first(self, case: CaseRuns, kinds: Collection[Kind]) -> None:
        """Run the first pair, and accuracy passes of both builds, if tests of `kinds` need them."""
        sides, unjudgeable = self.sides(case), None
        scored = Kind.ACCURACY in kinds and bool(case.planned.scorer_name)
        if any(kind.compares_runs for kind in kinds) and not case.runs:
            asks = scored and case.shares_data and not case.accuracy
            try:
                sides.add_pair(case.planned.limits, case.scores.pass_request if asks else None)
            except Unjudgeable as error:  # scores of INVALID runs are valid
                unjudgeable = error
        if scored and case.accuracy is None and case.unscored is None:
            case.process(performance=False, ask=case.scores.pass_request)
        if scored and case.accuracy is not None and not case.scores.accepted:
            self._compare_scores(case, sides)
        if unjudgeable:
            raise unjudgeable

    def _compare_scores(self, case: CaseRuns, sides: Interleaved) -> None:
        subject, side = case.scored_subject, sides.old
        assert subject is not None
        key = self._accuracy_key(case, side.conditions.commit, subject)
        stored = self._passes.load(key) if key else None
        if stored and stored.subject:
            accuracy, scored, other = stored.accuracy, stored.scored, stored.subject
        else:
            done = side.process(performance=False, ask=case.scores.pass_request)
            if done.accuracy is None or done.scored is None:
                reason = done.unscored or "gives no scores, because its weights are dummy"
                raise RunError("against", f"{sides.title}: {reason}")
            accuracy, scored, other = done.accuracy, done.scored, done.subject
            if key:
                self._passes.save(key, accuracy, scored, other)
        passed = ScoredPass(accuracy=accuracy, scored=scored, subject=other)
        case.scores.compare_with(passed, sides.title, side.conditions.commit)

    def interleaved(self, case: CaseRuns, answer: Ruling) -> InterleavedRuns:
        """Describe the comparison with the other build, for the results file."""
        sides = self.sides(case)
        side = sides.old
        return InterleavedRuns(
            state=_STATES.get(answer.outcome, Confirmation.UNDECIDED),
            metrics=tuple(m.metric for m in answer.metrics if m.outcome),
            build=sides.title,
            pairs=sides.pairs,
            runs=len(side.runs) + len(side.invalid_runs) + len(side.left_out),
            other_runs=tuple(side.runs),
            other_subject=side.subject,
            other_accuracy=case.scores.other if case.planned.scorer_name else None,
        )

    def judge(self, case: CaseRuns, kinds: Collection[Kind], kind: Kind) -> Ruling:
        """Interleave runs of both builds until test `kind` (of the case's `kinds`) is decided."""
        sides = self.sides(case)
        self.first(case, kinds)
        if failed := performance.accuracy_failed(case):
            return failed
        efficiency, other_runs = kind == Kind.EFFICIENCY, sides.old.runs
        limits = case.planned.efficiency_limits if efficiency else case.planned.limits
        if efficiency and case.runs:
            limits, unfit = performance.energy_limits(case, [*case.runs, *other_runs])
            if unfit:
                return unfit
        try:
            ratios = sides.judge(limits) if limits else {}
            while not limits and sides.pairs < FIRST_LOOK:
                sides.add_pair(limits)
        except NotComparable as error:
            return replace(performance.invalid(case, error.reason), outcome=error.outcome)
        record = _record(case, sides)
        # If both sides missed a latency limit, the rate is too high for both.
        case.record = None if sum(run.limit_missed for run in other_runs) >= MISSES else record
        missed, case.record = performance.limit_missed(case), record
        if other := missed or performance.other_work(case, case.runs):
            return other
        answer = performance.complete_ruling(
            case, _ruling(case, sides, ratios, limits, kind), limits
        )
        return replace(answer, notes=(*_notes(case, sides, ratios, limits), *answer.notes))


def _notes(
    case: CaseRuns, sides: Interleaved, ratios: Mapping[str, Ratio], limits: Mapping[str, float]
) -> list[Words]:
    pairs = plural(sides.pairs, "pair")
    notes: list[Words] = [f"{pairs} of runs interleaved with {sides.title}", sides.left_out]
    if case.suite_job.engine.options.get("serve"):
        notes.append("only one build's server was running at a time, in turns from run to run")
    for name, ratio in ratios.items():
        if ratio.outcome is not Answer.INCONCLUSIVE:
            continue
        rule, direction = curve_rule(sides.rule, name, ratios), METRICS[name].direction
        needed = pairs_to_decide(ratio, direction, limits[name], rule)
        varies = f"{METRICS[name].title} varies by {percent(ratio.sd)} between pairs"
        more = f"about {needed} pairs would decide (--mlperf-max-runs {needed})"
        notes.append(f"{varies}: {more if needed else 'more pairs would not decide'}")
    return [note for note in notes if note]


_STATES = {
    Outcome.PERF_DROP: Confirmation.PROVEN,
    Outcome.POWER_DROP: Confirmation.PROVEN,
    Outcome.ACC_DROP: Confirmation.PROVEN,
    Outcome.OK: Confirmation.EXCLUDED,
    Outcome.IMPROVED: Confirmation.EXCLUDED,
}


def _ruling(
    case: CaseRuns,
    sides: Interleaved,
    ratios: Mapping[str, Ratio],
    limits: Mapping[str, float],
    kind: Kind,
) -> Ruling:
    metrics = sides.verdicts(ratios, limits, DROP_OUTCOMES[kind])
    others = rule_on(case.runs, case.record, {}, case.rule).metrics
    timed = kind == Kind.PERFORMANCE
    ruling = ruling_of(metrics, [m for m in others if timed and m.metric not in ratios])
    # The work of neighbours, and their idling, use energy too.
    loaded = is_loaded([*case.runs, *sides.old.runs], case.rule.tolerated)
    return performance.undecided(ruling) if loaded and not timed else ruling


def _record(case: CaseRuns, sides: Interleaved) -> Record:
    subject = sides.old.subject
    assert subject is not None
    return new_record(
        [baseline_run(run) for run in sides.old.runs],
        None,
        action="record",
        reason=sides.title,
        subject=subject,
        target_qps=case.rate,
        qps_source=case.rate_source,
        limits={},
        rule=case.rule,
    )

"""Judge a case's accuracy by its gate and its accepted scores; record new scores."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_mlperf import registry
from pytest_mlperf.bench.policy import Policy
from pytest_mlperf.core.baseline import (
    Accepted,
    AccuracyBaseline,
    Rerun,
    is_drawn,
    rounded_scores,
    steps_per_point,
    unknown_facts,
    why_not_comparable,
)
from pytest_mlperf.core.errors import BaselineError
from pytest_mlperf.core.measurement import Accuracy, Scored, Subject
from pytest_mlperf.core.notes import Note, Words
from pytest_mlperf.core.recording import acceptance_text, changes
from pytest_mlperf.core.rulings.accuracy import (
    PassContext,
    below_chance,
    pooled,
    rerun_noise,
    risen_flaws,
    rule_on_scores,
    unfit_answers,
)
from pytest_mlperf.core.rulings.gate import OWN_REFERENCE, Pass, combine, gate
from pytest_mlperf.core.rulings.ruling import Ruling
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.judge.rule_a import analysis_sizes
from pytest_mlperf.run.accuracy import ScoringSchedule, fixed_order
from pytest_mlperf.run.project import require_checked_out
from pytest_mlperf.stores import accuracy_baselines
from pytest_mlperf.suite.plan import Planned, gate_samples


@dataclass(frozen=True, kw_only=True)
class ScoredBaseline:
    """Hold an accuracy baseline with its score of each sample.

    Attributes:
        scores: By metric, the score of each sample in data set order.
        outputs: Hashes of the engine's answers, in the same order; None in older files.
    """

    baseline: AccuracyBaseline
    scores: dict[str, list[float | None]]
    outputs: Sequence[int] | None = None


def file_of(planned: Planned, root: Path) -> Path:
    """Return the path of the accuracy baseline that a case is judged against."""
    entry = planned.accuracy_reference
    return accuracy_baselines.path_for(
        root,
        workload=planned.case.workload,
        engine=entry.label,
        precision=entry.precision,
        data=planned.data.baseline_label,
    )


@dataclass(frozen=True, kw_only=True)
class ScoredPass:
    """Hold an accuracy pass, the score of each sample, and the system that was measured."""

    accuracy: Accuracy
    scored: Scored
    subject: Subject


class CaseAccuracy:
    """Judge and record the scores of a case.

    Attributes:
        file: File of the accuracy baseline: that of the suite's reference entry, else the case's.
        by_reference: Name of the suite's reference entry; None if `file` belongs to the case.
        other: Accuracy of the build that replaces the baseline (`--mlperf-against`), or None.
    """

    def __init__(self, planned: Planned, root: Path, *, whole: bool) -> None:
        """Store the inputs; if `whole`, a pass may not stop before the end of the data set."""
        entry = planned.accuracy_reference
        self._planned, self._root = planned, root
        self._whole = whole
        self.by_reference = None if entry is planned.entry else entry.full_label
        self.file = file_of(planned, root)
        self.accepted: ScoredBaseline | None = None
        self.other: Accuracy | None = None

    def load(self) -> None:
        """Load the accepted scores before the first run, because their file may be damaged."""
        entry, case = self._planned.accuracy_reference, self._planned.case
        loaded = accuracy_baselines.load(self.file)
        if loaded is None:
            require_checked_out(self.file, self._root, self._planned.path)
        if loaded:
            outputs = accuracy_baselines.load_outputs(self.file)
            baseline = replace(loaded[0], scorer=_by_name(loaded[0].scorer))
            self.accepted = ScoredBaseline(baseline=baseline, scores=loaded[1], outputs=outputs)
            ours = (case.workload, entry.label, entry.precision)
            theirs = (loaded[0].workload, loaded[0].engine, loaded[0].precision)
            if ours != theirs:
                raise BaselineError(
                    f"{self.file}: this is the accuracy baseline of {'-'.join(theirs)}, not of "
                    f"{'-'.join(ours)}; move it away, or rename the engine entry"
                )

    @property
    def pass_request(self) -> ScoringSchedule:
        """Schedule of an accuracy pass: when to score, and whether the scores suffice to stop."""
        return ScoringSchedule(
            looks=lambda samples: analysis_sizes(samples, sequential=self.sequential),
            enough=self._enough,
        )

    @property
    def sequential(self) -> bool:
        """Whether the pass may stop early, before the end of the data set."""
        quick = self._planned.suite.profile == "quick"
        return quick and self.accepted is not None and not self._whole

    @property
    def may_record(self) -> bool:
        """Whether `file` is this case's own, and no earlier scenario with that data writes it."""
        planned = self._planned
        return self.by_reference is None and planned.data.accuracy_scenario == planned.scenario.name

    @property
    def last_acceptance(self) -> str | None:
        """Date, commit and reason of the last acceptance of scores; None without baseline."""
        return acceptance_text(self.accepted.baseline.history) if self.accepted else None

    def changes(self, subject: Subject) -> tuple[str, ...]:
        """Return as text how a measured system differs from that of the accepted scores."""
        if self.accepted is None:
            return ()
        return changes(self.accepted.baseline.fingerprint, subject.fingerprint)

    @property
    def missing(self) -> str:
        """Message that the case has no accuracy baseline, with advice on how to record one."""
        first = self._planned.data.accuracy_scenario
        entry = self._planned.accuracy_reference.full_label
        if self.by_reference:
            entry = f"the reference engine entry {entry} has no accuracy baseline"
            return f"{entry}: first record it, in scenario {first}, with --mlperf-update=missing"
        if not self.may_record:
            return (
                f"no accuracy baseline: only the test in scenario {first} records it, with "
                "--mlperf-update=missing"
            )
        return "no accuracy baseline: record it with --mlperf-update=missing"

    def judge(self, latest: ScoredPass) -> Ruling:
        """Judge an accuracy pass by the required scores, and against the baseline's scores."""
        planned, suite, accuracy = self._planned, self._planned.suite, latest.accuracy
        total = max(gate_samples(suite, planned.round_scenario) or 0, accuracy.total)
        measured = Pass(
            accuracy=accuracy,
            scored=latest.scored,
            order=[] if accuracy.samples >= total else fixed_order(accuracy.total),
            total=total,
        )
        gated = gate(
            measured,
            planned.bounds(accuracy.lower),
            whose="MLPerf's" if suite.is_mlperf else OWN_REFERENCE,
            complete=suite.profile == "official",
            rerun_sd=self._rerun_sd(latest),
        )
        ruling = combine(gated, self._against_accepted(latest), self.missing)
        more: tuple[Words, ...] = ()
        if not self.accepted:
            more = below_chance(accuracy, latest.scored)
        elif ruling.outcome not in {Outcome.ACC_DROP, Outcome.GATE_FAIL}:  # they list it as a cause
            more = tuple(filter(None, [risen_flaws(accuracy, latest.subject)]))
        return replace(ruling, notes=(*ruling.notes, *more))

    def with_unfit_note(self, latest: ScoredPass, answer: Ruling) -> Ruling:
        """Return `answer`; without a baseline, with a note if many answers are empty or cut."""
        unfit = None if self.accepted else self._unfit(latest)
        return replace(answer, notes=(*answer.notes, unfit)) if unfit else answer

    def _unfit(self, latest: ScoredPass) -> Note | None:
        rules = self._planned.suite.rules
        cut_share = rules.lengths.cut_share if rules else None
        return unfit_answers(latest.accuracy, latest.subject, cut_share)

    def _against_accepted(self, latest: ScoredPass) -> Ruling | None:
        if self.accepted is None:
            return None
        baseline, total = self.accepted.baseline, latest.accuracy.total
        if reason := why_not_comparable(baseline, latest.subject, self._scorer, total):
            return Ruling(outcome=Outcome.INVALID, headline=reason, paired=(), more=False, notes=())
        return rule_on_scores(
            baseline,
            self.accepted.scores,
            latest.accuracy,
            latest.scored,
            fixed_order(total),
            margin=self._planned.margin,
            sequential=self.sequential,
            context=PassContext(
                same_build=self._same_build(latest.subject),
                outputs=self.accepted.outputs,
                drawn=is_drawn(latest.subject) and self._planned.suite.margin is None,
            ),
        )

    def _same_build(self, subject: Subject) -> bool:
        if self.accepted is None or self.by_reference:
            return False
        theirs = self.accepted.baseline
        if (theirs.identity, theirs.scorer) != (dict(subject.identity), self._scorer):
            return False
        unknown = unknown_facts(theirs.fingerprint, subject.fingerprint)
        return not unknown and not self.changes(subject)

    def _rerun_sd(self, latest: ScoredPass) -> dict[str, float]:
        if self.accepted is None or self.by_reference:
            return {}
        reruns = self.accepted.baseline.rerun or self._rerun_differences(latest)
        return {name: rerun.sd for name, rerun in reruns.items()}

    def _rerun_differences(self, latest: ScoredPass) -> dict[str, Rerun]:
        """Return rerun noise by metric, {} unless `latest` is a full pass of the same build."""
        accuracy = latest.accuracy
        if self.accepted is None or not accuracy.full or not self._same_build(latest.subject):
            return {}
        if accuracy.total != self.accepted.baseline.samples:
            return {}
        return rerun_noise(self.accepted.baseline, self.accepted.scores, latest.scored)

    def records(self, policy: Policy) -> bool:
        """Return whether this session records scores: `may_record`, and `policy.update` says so."""
        return self.may_record and policy.update in {
            "replace",
            "append" if self.accepted else "missing",
        }

    def record(
        self, latest: ScoredPass, policy: Policy, answer: Ruling, *, commit: str | None
    ) -> Ruling:
        """Record a whole pass as baseline; return RECORDED, or `answer` with why it was refused."""
        if policy.update == "append":
            return self._repeated(latest, policy, answer)
        if answer.outcome is Outcome.ACC_DROP and not policy.accept_regression:
            return replace(answer, headline=Note.of("not_recorded", note=answer.headline))
        unfit = None if self.accepted else self._unfit(latest)
        reason = policy.reason or "first baseline"
        if unfit and not policy.accept_cut:
            headline = Note.of("unfit_answers", note=unfit)
            return replace(answer, outcome=Outcome.INVALID, headline=headline, notes=())
        if unfit:
            kind = "cut" if unfit.key == "cut_answers" else "empty"
            count, answers = unfit.values["count"], unfit.values["of"]
            reason += f"; {count:,} of {answers:,} answers are {kind} (--mlperf-accept-cut)"
        self._accept(latest, reason=reason, commit=commit)
        size = f"{latest.accuracy.samples:,} samples in {policy.shown(self.file)}"
        first = f"{size}; commit it with its .scores.npz"
        notes = (first, unfit) if unfit else (first,)
        return replace(answer, outcome=Outcome.RECORDED, headline=size, notes=notes)

    def _repeated(self, latest: ScoredPass, policy: Policy, answer: Ruling) -> Ruling:
        if answer.outcome not in {Outcome.OK, Outcome.INCONCLUSIVE}:
            return answer
        reruns = self._repeat(latest)
        if not reruns:
            note = "not kept as a repeated pass: build or machine differ from the baseline's"
            return replace(answer, notes=(*answer.notes, note))
        passes = max(rerun.passes for rerun in reruns.values())
        headline = f"accuracy run {passes + 1} of one build in {policy.shown(self.file)}"
        spread = ", ".join(
            f"{name} {rerun.sd:.2g}"
            + (f" (r = {rerun.correlation:.4f})" if rerun.correlation is not None else "")
            for name, rerun in reruns.items()
        )
        note = (
            f"{headline}; standard deviation of repeated passes [points]: {spread}; commit the file"
        )
        notes = (*answer.notes, note)
        return replace(answer, outcome=Outcome.RECORDED, headline=headline, notes=notes)

    def _repeat(self, latest: ScoredPass) -> dict[str, Rerun]:
        """Add a repeated pass to the baseline's rerun statistics; return them by metric."""
        new = self._rerun_differences(latest)
        if self.accepted is None or not new:
            return {}
        digest = self.accepted.baseline.scores_sha256

        def put(there: AccuracyBaseline | None) -> AccuracyBaseline:
            if there is None or there.scores_sha256 != digest:
                raise BaselineError(
                    f"{self.file}: another session accepted new scores while this one measured: "
                    "run this test again"
                )
            return replace(there, rerun=pooled(there.rerun, new))

        baseline = accuracy_baselines.ACCURACY_DOCUMENT.update(self.file, put)
        self.accepted = replace(self.accepted, baseline=baseline)
        return baseline.rerun

    def _accept(self, latest: ScoredPass, *, reason: str, commit: str | None) -> None:
        again = self._rerun_differences(latest)
        repeated = self.accepted.baseline.scores_sha256 if self.accepted else None

        def put(old: AccuracyBaseline | None) -> AccuracyBaseline:
            new = self._new_baseline(latest, old, reason=reason, commit=commit)
            if old is None or not again or old.scores_sha256 != repeated:
                return new
            return replace(new, rerun=pooled(old.rerun, again))

        outputs, per_sample = latest.scored.outputs, latest.scored.per_sample
        written = accuracy_baselines.replace_scores(self.file, put, per_sample, outputs)
        scores = {
            name: rounded_scores(values, written.steps[name]) for name, values in per_sample.items()
        }
        self.accepted = ScoredBaseline(baseline=written, scores=scores, outputs=outputs)

    def _new_baseline(
        self, latest: ScoredPass, old: AccuracyBaseline | None, *, reason: str, commit: str | None
    ) -> AccuracyBaseline:
        case, accuracy, subject = self._planned.case, latest.accuracy, latest.subject
        entry = Accepted(
            date=dt.datetime.now(dt.UTC).date().isoformat(),
            commit=commit,
            reason=reason,
            action="replace" if old else "record",
            old=dict(old.scores) if old else {},
            new=dict(accuracy.scores),
        )
        return AccuracyBaseline(
            round=self._planned.suite.round,
            workload=case.workload,
            engine=self._planned.entry.label,
            precision=case.precision,
            scenario=case.scenario,
            samples=accuracy.samples,
            scores=dict(accuracy.scores),
            steps={},
            scores_sha256="",
            scorer=self._scorer,
            identity=dict(subject.identity),
            fingerprint=dict(subject.fingerprint),
            history=(*(old.history if old else ()), entry),
            rerun={},
            answers=accuracy.answers,
        )

    def compare_with(self, other: ScoredPass, title: str, commit: str | None) -> None:
        """Use another build's scores as the baseline; `title` and `commit` are stored with it."""
        new = self._new_baseline(other, None, reason=title, commit=commit)
        per_sample = other.scored.per_sample
        steps = {name: steps_per_point(values) for name, values in per_sample.items()}
        scores = {name: rounded_scores(values, steps[name]) for name, values in per_sample.items()}
        baseline, outputs = replace(new, steps=steps), other.scored.outputs
        self.accepted = ScoredBaseline(baseline=baseline, scores=scores, outputs=outputs)
        self.by_reference, self.other = None, other.accuracy

    @property
    def _scorer(self) -> str:
        scorer = self._planned.scorer
        return _by_name(json.dumps(dataclasses.asdict(scorer))) if scorer else ""

    def _enough(self, accuracy: Accuracy, scored: Scored, subject: Subject) -> bool:
        latest = ScoredPass(accuracy=accuracy, scored=scored, subject=subject)
        ruling = self._against_accepted(latest)
        return ruling is not None and not ruling.more


def _by_name(scorer: str) -> str:
    """Replace the module path in a scorer's JSON by the registered name, as modules may move."""
    if not scorer:
        return ""
    written = json.loads(scorer)
    if "target" in written:
        written["use"] = registry.name_of("scorers", written.pop("target"))
    return json.dumps(written, sort_keys=True)

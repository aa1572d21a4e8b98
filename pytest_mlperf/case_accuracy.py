"""The accuracy of one case: the accepted scores, when a pass may stop, and how to accept scores."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pytest_mlperf.core.accuracy_baseline import (
    Accepted,
    AccuracyBaseline,
    Rerun,
    kept,
    why_not_comparable,
)
from pytest_mlperf.core.errors import BaselineError
from pytest_mlperf.core.judge.accuracy import AccuracyRuling, rule_on_scores
from pytest_mlperf.core.judge.accuracy_notes import Beside
from pytest_mlperf.core.judge.repeat import apart, pooled
from pytest_mlperf.core.judge.rule_a import looks
from pytest_mlperf.core.measurement import Accuracy, Scored, Subject
from pytest_mlperf.core.outputs import outputs_of
from pytest_mlperf.core.recording import changes, set_by
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.run.accuracy_pass import Ask, fixed_order
from pytest_mlperf.stores import accuracy_baselines
from pytest_mlperf.suite.plan import Planned


@dataclass(frozen=True, kw_only=True)
class Found:
    """An accuracy baseline with each sample's scores, by metric and data set index.

    Attributes:
        baseline: What the file holds.
        scores: By metric and data set index.
        outputs: A digest of each output by data set index; None in files of older releases.
    """

    baseline: AccuracyBaseline
    scores: dict[str, list[float | None]]
    outputs: Sequence[int] | None = None


class CaseAccuracy:
    """What a case's scores are compared with.

    Attributes:
        file: The accuracy baseline, of the case's own engine entry or of the suite's reference.
        found: What it holds, or None.
        by_reference: The name of the reference entry, or None when it is the case's own.
    """

    def __init__(self, planned: Planned, root: Path, *, whole: bool) -> None:
        """Load the accepted scores: a defect in them must not cost a measurement.

        Args:
            planned: The case.
            root: Folder of the baselines.
            whole: The whole data set is wanted whatever the first scores say.

        Raises:
            BaselineError: They are damaged, or another case's.
        """
        entry, case = planned.accuracy_reference, planned.case
        self._planned = planned
        self._whole = whole
        self.by_reference = None if entry is planned.engine else entry.full_label
        self.file = accuracy_baselines.path_for(
            root, workload=case.workload, engine=entry.label, precision=entry.precision
        )
        loaded = accuracy_baselines.load(self.file)
        self.found: Found | None = None
        if loaded:
            outputs = accuracy_baselines.load_outputs(self.file)
            self.found = Found(baseline=loaded[0], scores=loaded[1], outputs=outputs)
            ours = (case.workload, entry.label, entry.precision)
            theirs = (loaded[0].workload, loaded[0].engine, loaded[0].precision)
            if ours != theirs:
                raise BaselineError(
                    f"{self.file}: holds the accuracy of {'-'.join(theirs)}, not of "
                    f"{'-'.join(ours)}; move it away, or rename the engine entry"
                )

    @property
    def ask(self) -> Ask:
        """How the pass is made: until its scores decide, or over the whole data set."""
        return Ask(looks=self._looks, enough=self._enough)

    @property
    def sequential(self) -> bool:
        """The pass may stop before the end of the data set."""
        quick = self._planned.suite.profile == "quick"
        return quick and self.found is not None and not self._whole

    @property
    def may_record(self) -> bool:
        """This case writes the accuracy baseline: of its own engine, in the first scenario."""
        return self.by_reference is None and self._planned.is_first_scenario

    @property
    def set_by(self) -> str | None:
        """Where the accepted scores come from."""
        return set_by(self.found.baseline.history) if self.found else None

    def changes(self, subject: Subject) -> tuple[str, ...]:
        """Return what differs from the fingerprint of the accepted scores."""
        return changes(self.found.baseline.fingerprint, subject.fingerprint) if self.found else ()

    @property
    def missing(self) -> str:
        """What to do where no scores are accepted yet."""
        first = self._planned.suite.scenarios[0].name
        entry = self._planned.accuracy_reference.full_label
        if self.by_reference:
            return f"the reference {entry} has no accuracy baseline: record it first, in {first}"
        if not self.may_record:
            return f"no accuracy baseline: {first} records it, with --mlperf-update=missing"
        return "no accuracy baseline: record it with --mlperf-update=missing"

    def ruling(self, accuracy: Accuracy, scored: Scored, subject: Subject) -> AccuracyRuling | None:
        """Judge scores against the accepted ones; None when there are none."""
        if self.found is None:
            return None
        baseline = self.found.baseline
        if why := why_not_comparable(baseline, subject, self._scorer, accuracy.total):
            return AccuracyRuling(
                outcome=Outcome.INVALID, headline=why, paired=(), more=False, notes=()
            )
        return rule_on_scores(
            baseline,
            self.found.scores,
            accuracy,
            scored,
            fixed_order(accuracy.total),
            margin=self._planned.margin,
            sequential=self.sequential,
            beside=Beside(same_build=self.same_build(subject), outputs=self.found.outputs),
        )

    def same_build(self, subject: Subject) -> bool:
        """Whether engine, weights, options, data and machine are those of the accepted scores."""
        if self.found is None or self.by_reference:
            return False
        theirs = self.found.baseline
        ours = (dict(subject.fingerprint), dict(subject.identity), self._scorer)
        return ours == (theirs.fingerprint, theirs.identity, theirs.scorer)

    def rerun_sd(self, accuracy: Accuracy, scored: Scored, subject: Subject) -> dict[str, float]:
        """Return by metric how far passes of one build are apart, points; empty where unknown.

        The baseline knows where passes were repeated; else this pass is a repeat itself, if it is
        of the same build.
        """
        if self.found is None or self.by_reference:
            return {}
        known = self.found.baseline.rerun or self._apart(accuracy, scored, subject)
        return {name: own.sd for name, own in known.items()}

    def repeat(self, accuracy: Accuracy, scored: Scored, subject: Subject) -> dict[str, Rerun]:
        """Keep how far a pass of the same build is from the accepted one; the scores stay.

        Returns:
            What is known now, by metric; empty where the pass was no repeat.

        Raises:
            BaselineError: It cannot be written.
        """
        new = self._apart(accuracy, scored, subject)
        if self.found is None or not new:
            return {}
        digest = self.found.baseline.scores_sha256

        def put(now: AccuracyBaseline | None) -> AccuracyBaseline:
            if now is None or now.scores_sha256 != digest:
                raise BaselineError(
                    f"{self.file}: other scores were accepted while this session ran, and this "
                    "pass repeats the ones before; run it again"
                )
            return dataclasses.replace(now, rerun=pooled(now.rerun, new))

        baseline = accuracy_baselines.FILE.update(self.file, put)
        self.found = dataclasses.replace(self.found, baseline=baseline)
        return baseline.rerun

    def _apart(self, accuracy: Accuracy, scored: Scored, subject: Subject) -> dict[str, Rerun]:
        if self.found is None or not accuracy.full or not self.same_build(subject):
            return {}
        if accuracy.total != self.found.baseline.samples:
            return {}
        return apart(self.found.baseline, self.found.scores, scored)

    def accept(
        self,
        accuracy: Accuracy,
        scored: Scored,
        subject: Subject,
        *,
        reason: str,
        commit: str | None,
    ) -> None:
        """Write the scores of a whole data set as the accuracy baseline.

        Raises:
            BaselineError: They cannot be written.
        """
        again = self._apart(accuracy, scored, subject)
        repeated = self.found.baseline.scores_sha256 if self.found else None

        def put(old: AccuracyBaseline | None) -> AccuracyBaseline:
            new = self._accepted(accuracy, subject, old, reason=reason, commit=commit)
            if old is None or not again or old.scores_sha256 != repeated:
                return new
            return dataclasses.replace(new, rerun=pooled(old.rerun, again))

        outputs = outputs_of(scored)
        written = accuracy_baselines.replace_scores(self.file, put, scored.per_sample, outputs)
        scores = {
            name: kept(values, written.steps[name]) for name, values in scored.per_sample.items()
        }
        self.found = Found(baseline=written, scores=scores, outputs=outputs)

    def _accepted(
        self,
        accuracy: Accuracy,
        subject: Subject,
        old: AccuracyBaseline | None,
        *,
        reason: str,
        commit: str | None,
    ) -> AccuracyBaseline:
        """Return what is accepted, behind the history of what was."""
        case = self._planned.case
        action: Literal["record", "replace"] = "replace" if old else "record"
        entry = Accepted(
            date=dt.datetime.now(dt.UTC).date().isoformat(),
            commit=commit,
            reason=reason,
            action=action,
            old=dict(old.scores) if old else {},
            new=dict(accuracy.scores),
        )
        return AccuracyBaseline(
            round=self._planned.suite.round,
            workload=case.workload,
            engine=case.engine,
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
        )

    @property
    def _scorer(self) -> str:
        scorer = self._planned.scorer
        return json.dumps(dataclasses.asdict(scorer), sort_keys=True) if scorer else ""

    def _looks(self, samples: int) -> Sequence[int]:
        return looks(samples, sequential=self.sequential)

    def _enough(self, accuracy: Accuracy, scored: Scored, subject: Subject) -> bool:
        ruling = self.ruling(accuracy, scored, subject)
        return ruling is not None and not ruling.more

"""What accepting a measurement would write: how it is shown, and how it is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_mlperf.core.accuracy_baseline import AccuracyBaseline
from pytest_mlperf.core.baseline import Baseline, Record, find, geometric_means, with_record
from pytest_mlperf.core.errors import BaselineError
from pytest_mlperf.core.judge.ruling import is_worse
from pytest_mlperf.core.numbers import change, points, quantity
from pytest_mlperf.core.recording import empty_baseline
from pytest_mlperf.core.results import CaseResult
from pytest_mlperf.reports.selection import relative
from pytest_mlperf.stores import accuracy_baselines, baselines
from pytest_mlperf.stores.score_arrays import Scores

NOISE = 0.1
"""A step of less than this share of the limit is no worsening worth a word."""

CHANGED = "the baseline was changed while this was measured; look at it, and run the command again"


@dataclass(frozen=True, kw_only=True)
class PerformanceProposal:
    """The record that accepting the runs of a case would write.

    Attributes:
        result: The test that measured them.
        file: The baseline file.
        old: The record of this machine so far.
        new: The record in its place.
        limits: Gated metrics of the case, energy included, with their limits as shares.
    """

    result: CaseResult
    file: Path
    old: Record | None
    new: Record
    limits: Mapping[str, float]

    @property
    def folder(self) -> Path:
        """The baselines that the file is one of: ACCELERATOR/PROFILE/WORKLOAD/FILE."""
        return self.file.parents[3]

    @property
    def worse(self) -> list[str]:
        """The gated metrics that would get worse or be lost, each with its step."""
        before = geometric_means(self.old.runs) if self.old else {}
        after = geometric_means(self.new.runs)
        return [
            self._step(metric) if metric in after else f"{metric} would be lost: not measured"
            for metric, limit in self.limits.items()
            if metric in before and (metric not in after or self._falls(metric, limit))
        ]

    def _falls(self, metric: str, limit: float) -> bool:
        assert self.old is not None
        before, after = (geometric_means(one.runs)[metric] for one in (self.old, self.new))
        return is_worse(metric, before, after) and abs(after / before - 1) > limit * NOISE

    def lines(self) -> Iterator[str]:
        """Yield what would change, one line a metric."""
        means = geometric_means(self.new.runs)
        for metric in self.limits:
            if metric in means:
                yield f"  {self._step(metric)}"
        yield f"  {len(self.new.runs)} runs -> {relative(self.file)}"

    def write(self) -> None:
        """Put the record into the baseline file.

        Raises:
            BaselineError: The file cannot be written, or holds another record by now.
        """
        baselines.update(self.file, self._put)

    def _put(self, now: Baseline | None) -> Baseline:
        if (find(now, self.new.identity) if now else None) != self.old:
            raise BaselineError(f"{self.file}: {CHANGED}")
        case, result = self.result.verdict.case, self.result
        empty = empty_baseline(case, round_name=result.round, profile=result.profile)
        return with_record(now or empty, self.new)

    def _step(self, metric: str) -> str:
        after = geometric_means(self.new.runs)[metric]
        before = geometric_means(self.old.runs).get(metric) if self.old else None
        if before is None:
            return f"{metric} new {quantity(metric, after)}"
        step = change(after / before - 1)
        return f"{metric} {quantity(metric, before)} -> {quantity(metric, after)} ({step})"


@dataclass(frozen=True, kw_only=True)
class AccuracyProposal:
    """The scores that accepting a pass over a whole data set would write.

    Attributes:
        result: The test that measured them.
        file: The accuracy baseline.
        old: What it holds so far.
        new: What it would hold.
        scores: Of each sample, by metric.
        outputs: A digest of each output.
    """

    result: CaseResult
    file: Path
    old: AccuracyBaseline | None
    new: AccuracyBaseline
    scores: Scores
    outputs: Sequence[int] | None

    @property
    def folder(self) -> Path:
        """The baselines that the file is one of: accuracy/WORKLOAD/FILE."""
        return self.file.parents[2]

    def lines(self) -> Iterator[str]:
        """Yield what would change, one line a metric."""
        for metric, after in self.new.scores.items():
            before = self.old.scores.get(metric) if self.old else None
            if before is None:
                yield f"  {metric} new {after:.3f}"
            else:
                yield f"  {metric} {before:.3f} -> {after:.3f} ({points(after - before)} points)"
        yield f"  {self.new.samples:,} samples -> {relative(self.file)}"

    def write(self) -> None:
        """Write scores and baseline.

        Raises:
            BaselineError: They cannot be written, or other scores were accepted meanwhile.
        """
        accuracy_baselines.replace_scores(self.file, self._put, self.scores, self.outputs)

    def _put(self, now: AccuracyBaseline | None) -> AccuracyBaseline:
        if now != self.old:
            raise BaselineError(f"{self.file}: {CHANGED}")
        return self.new


Proposal = PerformanceProposal | AccuracyProposal

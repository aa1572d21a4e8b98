"""Find the build that caused a drop, by interleaved runs of builds in a range and a good build."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pytest_mlperf import MlperfError, RunError
from pytest_mlperf.addons.history.bisection import (
    AS_ITSELF,
    BisectRange,
    Mark,
    Speed,
    divided_rule,
    excluded_by_good,
    mark_of,
    most_comparisons,
    relative_speed,
    search_range,
    smallest_drop,
)
from pytest_mlperf.addons.history.bisections import BisectStore, RunPairs
from pytest_mlperf.addons.history.lineage import BuildAt
from pytest_mlperf.bench.interleaved import Interleaved, NotComparable, decided
from pytest_mlperf.bench.runner import CaseRunner, Unjudgeable
from pytest_mlperf.cli.turns import InterleavedCases
from pytest_mlperf.core.metrics import point_of
from pytest_mlperf.extension import METRICS, Run, placeless, sentence
from pytest_mlperf.judge import Answer
from pytest_mlperf.judge.ratio import Ratio
from pytest_mlperf.run.builds import baseline_build

MetricOf = tuple[str, str]
"""Test and one of its metrics."""

OF_THE_MACHINE = frozenset({"gpu", "lease", "sampler", "pytest-mlperf"})
"""Layers whose errors say nothing about a build."""

FOLDER_LABEL = "bisect"
DOUBTFUL = 2
"""Number of broken builds in a row after which the good one must prove that it still runs."""


class _BrokenBuild(Exception):
    """Report that a build has no comparable runs; the text is the cause."""


class _BisectSide(CaseRunner):
    """Run one of the two builds of a comparison.

    If a run fails, a `later` build is skipped; for the earlier one, the error ends the search.
    """

    later = False

    def add_run(self, **options: Any) -> Run:
        try:
            return super().add_run(**options)
        except Unjudgeable as error:
            reason = f"INVALID: {sentence(error.note)}"
        except RunError as error:
            if self.later and error.layer in OF_THE_MACHINE:
                raise
            reason = f"{error.layer}: {error}"
        raise _BrokenBuild(reason) if self.later else MlperfError(f"{self._label}: {reason}")


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Hold the comparison of two builds, which are numbered from 0, the good one.

    Attributes:
        before: Number of the earlier build.
        now: Number of the later build.
        ratios: Ratio of later to earlier by (test, metric), without tests that were not needed.
        reason: Why the later build was skipped; "" if it was not.
        runs: Number of runs of both builds, including stored ones.
    """

    before: int
    now: int
    mark: Mark
    ratios: Mapping[MetricOf, Ratio] = field(default_factory=dict)
    reason: str = ""
    runs: int = 0

    @property
    def headline(self) -> MetricOf | None:
        """Test and metric to show: a dropped one, else an undecided one, else any; None if none."""
        order = (Answer.FAIL, Answer.INCONCLUSIVE)
        ranked = (m for word in order for m, r in self.ratios.items() if r.outcome is word)
        return next(ranked, next(iter(self.ratios), None))


@dataclass(frozen=True, kw_only=True)
class Proof:
    """Hold the conclusion of a bisect: the smallest range of builds proven to contain the drop.

    Attributes:
        before: Number of the last build before the range.
        now: Number of the last build in the range.
        metric: (test, metric) that dropped over the range.
        speed: Speed of build `now` relative to build `before`, by this metric.
        direct: Whether `before` and `now` were compared directly, not each with the good build.
        rest: Other ranges (before, now) that are proven to contain part of the drop.
    """

    before: int
    now: int
    metric: MetricOf
    speed: Speed
    direct: bool
    rest: Sequence[tuple[int, int]]

    @property
    def is_single_build(self) -> bool:
        """Whether the range is a single build, compared directly with the build before it."""
        return self.direct and self.now - self.before == 1


class Bisection:
    """Search for the build that caused a drop; store every pair of runs.

    Attributes:
        log: All comparisons, in order.
        limits: Limits of the metrics that are compared, by test; after the first comparison only of
            those that dropped.
        measured: Number of runs in this session, without stored ones.
        seconds: Time of the runs in this session, including building.
    """

    def __init__(
        self,
        builds: Sequence[BuildAt],
        plan: InterleavedCases,
        store: BisectStore,
        show: Callable[[str], None],
    ) -> None:
        self.builds, self.plan = builds, plan
        cases = plan.cases
        self.last = len(builds) - 1
        self.log: list[Comparison] = []
        self.measured, self.seconds = 0, 0.0
        self.limits: Mapping[str, Mapping[str, float]] = {
            test: case.job.limits for test, case in cases.items()
        }
        # The points of a curve and its mean share the error of one metric.
        metrics = sum(
            1 if any(point_of(name) is not None for name in limits) else len(limits)
            for limits in self.limits.values()
        )
        self._rules = {t: divided_rule(case.rule, self.last, metrics) for t, case in cases.items()}
        self._cases = cases
        self._conditions = replace(plan.conditions, control=False)
        self._store = store
        self._show = show
        self._broken = 0

    @property
    def range(self) -> BisectRange:
        """Current range of builds that contains the drop."""
        tried = [one.now for one in self.log if one.before == 0]
        marks = {n: one.mark for n, one in self.comparisons_with_good.items() if n < self.last}
        return search_range(self.last, marks, {n for n in tried if tried.count(n) > 1})

    @property
    def comparisons_with_good(self) -> dict[int, Comparison]:
        """Latest comparison of each build with the good one, by the build's number."""
        return {one.now: one for one in self.log if one.before == 0}

    def compare_ends(self) -> Comparison:
        """Compare the last build with the good one; later steps compare only dropped metrics."""
        end = self.compare(0, self.last, every=True)
        followed: dict[str, dict[str, float]] = {}
        for (test, name), ratio in end.ratios.items():
            if ratio.outcome is Answer.FAIL:
                limit, falls = self.limits[test][name], METRICS[name].falls
                drop = excluded_by_good(limit, ratio, falls=falls)
                followed.setdefault(test, {})[name] = drop
        self.limits = followed
        return end

    def search(self) -> Iterator[Comparison]:
        """Compare builds in the range with the good one as long as that narrows the range."""
        while (index := self.range.next) is not None:
            yield self.compare(0, index, again=index in self.comparisons_with_good)

    def compare(
        self, before: int, now: int, *, every: bool = False, again: bool = False
    ) -> Comparison:
        """Compare two builds, given by their numbers, until a drop of one metric is proven.

        With `every`, compare until all metrics are decided. With `again`, repeat a comparison
        without its stored runs.
        """
        ratios: dict[MetricOf, Ratio] = {}
        reason, runs = "", 0
        for test, limits in self.limits.items():
            ends = (self.builds[before].name, self.builds[now].name)
            key = " ".join((*ends, test, *["again"] * again))
            try:
                test_ratios = self._ratios(key, test, limits, (before, now))
            except _BrokenBuild as error:
                reason = self._relative(str(error), now)
                if now < self.last:  # a search needs the last one: try it again next time
                    self._store.keep(key, replace(self._store.pairs(key), reason=reason))
            kept = self._store.pairs(key)
            runs += len(kept.before) + len(kept.now)
            if reason:
                break
            ratios.update({(test, name): ratio for name, ratio in test_ratios.items()})
            if not every and mark_of(r.outcome for r in test_ratios.values()) is Mark.BAD:
                break
        mark = Mark.SKIPPED if reason else mark_of(r.outcome for r in ratios.values())
        comparison = Comparison(
            before=before, now=now, mark=mark, ratios=ratios, reason=reason, runs=runs
        )
        self.log.append(comparison)
        return comparison

    @property
    def folder(self) -> Path:
        """Folder of the runs of this session."""
        return self._conditions.folder

    def _relative(self, reason: str, index: int) -> str:
        """Make paths in `reason` relative to the checkout of build `index`, or to the project."""
        tree = self.folder / f"{FOLDER_LABEL}-{self.builds[index].title}" / "tree"
        return placeless(reason, roots=(str(tree.resolve()), str(Path.cwd())))

    def _ratios(
        self, key: str, test: str, limits: Mapping[str, float], numbers: tuple[int, int]
    ) -> Mapping[str, Ratio]:
        kept, case = self._store.pairs(key), self._cases[test]
        if kept.reason:
            raise _BrokenBuild(kept.reason)
        try:
            ratios = decided(kept.now, kept.before, limits, self._rules[test])
            if not ratios:
                ratios = self._measured(key, test, limits, numbers)
        except NotComparable as error:
            raise _BrokenBuild(sentence(error.reason)) from None
        if case.job.case.scenario.rate_is_condition and case.rate is None:
            case.rate = self._store.pairs(key).before[0].target_qps  # the same for all builds
        return ratios

    def _measured(
        self, key: str, test: str, limits: Mapping[str, float], numbers: tuple[int, int]
    ) -> dict[str, Ratio]:
        began, kept, case = time.monotonic(), self._store.pairs(key), self._cases[test]
        loaded = case.job.case.scenario.rate_is_condition

        def keep() -> None:
            self.measured += 2
            self._store.keep(key, RunPairs(before=tuple(good_side.runs), now=tuple(side.runs)))

        try:
            with ExitStack() as stack:
                good_side = self._runner(stack, test, numbers[0], later=False)
                side = self._runner(stack, test, numbers[1], later=True)
                good_side.runs, side.runs = list(kept.before), list(kept.now)
                sides = Interleaved(
                    new=side,
                    old=good_side,
                    rule=self._rules[test],
                    leader=good_side if loaded and case.rate is None else side,
                    done=keep,
                )
                ratios = sides.judge(limits)
        except _BrokenBuild:
            self._broken += 1
            if self._broken == DOUBTFUL:  # the machine itself may be broken
                self._broken = 0
                with ExitStack() as stack:
                    self._runner(stack, test, 0, later=False).add_run()
                self.measured += 1
            raise
        finally:
            self.seconds += time.monotonic() - began
        self._broken = 0
        return ratios

    def _runner(self, stack: ExitStack, test: str, index: int, *, later: bool) -> CaseRunner:
        """Build commit `index` and return its runner; `stack` removes the build.

        If `later`, a failed build raises _BrokenBuild instead of RunError.
        """
        case, build_at = self._cases[test], self.builds[index]
        earlier = build_at.earlier(case.planned.path, case.job.elsewhere)
        label = f"{FOLDER_LABEL}-{build_at.title}"
        try:
            build = stack.enter_context(baseline_build(earlier, self._conditions.folder, label))
        except RunError as error:
            if later:
                raise _BrokenBuild(str(error)) from None
            raise
        side = _BisectSide(
            case.planned,
            self._conditions,
            self._show,
            rate=case.rate,
            build=build,
            label=label,
            job=case.job,
        )
        side.later = later
        return side

    def proof(self) -> Proof:
        """Compare the two ends of the range directly; return the conclusion of the bisect.

        If they do not provably differ, the conclusion is the smallest range whose ends do.
        """
        left = self.range
        first = self.comparisons_with_good[left.bad]
        direct = first if left.good == 0 else self.compare(left.good, left.bad)
        made = sum(one.mark is not Mark.SKIPPED for one in self.log)
        if direct.mark is Mark.UNDECIDED and made < most_comparisons(self.last):
            direct = self.compare(
                left.good, left.bad, again=True
            )  # the machine may be less busy now
        is_direct = direct.mark is Mark.BAD
        if is_direct:
            metric, before, now = direct.headline, left.good, left.bad
            assert metric is not None
        else:
            metric, before, now = self._smallest()
        speeds = self.speeds(metric)
        beside_range = [(0, before), (now, self.last)]
        return Proof(
            before=before,
            now=now,
            metric=metric,
            speed=direct.ratios[metric]
            if is_direct
            else relative_speed(speeds[before], speeds[now]),
            direct=is_direct,
            rest=[
                (x, y)
                for x, y in beside_range
                if x < y
                and speeds.keys() >= {x, y}
                and relative_speed(speeds[x], speeds[y]).high < 1
            ],
        )

    def speeds(self, metric: MetricOf) -> dict[int, Speed]:
        """Return builds' speeds relative to the good build, by build number (0 is the good)."""
        speeds = {
            number: one.ratios[metric]
            for number, one in self.comparisons_with_good.items()
            if metric in one.ratios
        }
        return {0: AS_ITSELF, **speeds}

    def _smallest(self) -> tuple[MetricOf, int, int]:
        ranges = [
            (ends[1] - ends[0], place, metric, *ends)
            for place, metric in enumerate(self.log[0].ratios)
            if (ends := smallest_drop(self.speeds(metric)))
        ]
        _, _, metric, before, now = min(ranges)
        return metric, before, now

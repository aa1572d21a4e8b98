"""Run two builds or engine entries alternately, in pairs; test the ratio of their metrics."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_mlperf.bench.runner import CaseRunner
from pytest_mlperf.core.measurement import Run, repeat_note
from pytest_mlperf.core.metrics import METRICS
from pytest_mlperf.core.notes import Note, Words
from pytest_mlperf.core.numbers import change, interval, plural
from pytest_mlperf.core.rulings.disturbance import explains_gap
from pytest_mlperf.core.rulings.outcomes import outcome_of
from pytest_mlperf.core.rulings.ruling import mean_value, rule_values
from pytest_mlperf.core.rulings.sample import countable, curve_rule, fewest_queries
from pytest_mlperf.core.verdict import MetricBaseline, MetricVerdict, Outcome
from pytest_mlperf.judge.decision import Answer
from pytest_mlperf.judge.inputs import Direction
from pytest_mlperf.judge.ratio import Ratio, RelativeSpeed, judge_drop, judge_ratio
from pytest_mlperf.judge.rule_r import RuleR
from pytest_mlperf.run.accuracy import ScoringSchedule

REPEATS = 2
"""Repeats of a pair whose difference load may explain, before it is left out."""


class NotComparable(Exception):
    """Report why interleaved runs cannot be compared: INVALID, or INCONCLUSIVE because of load."""

    def __init__(self, reason: Words, outcome: Outcome = Outcome.INVALID) -> None:
        super().__init__(reason)
        self.reason, self.outcome = reason, outcome


@dataclass(kw_only=True)
class Interleaved:
    """Run two sides (builds or engines) in pairs and judge them; some pairs may exist already.

    Odd pairs have a random order, so that load cannot correlate with the order. The following even
    pair has the reverse order, so that a steady drift of the machine cancels (ABBA).

    Attributes:
        old: Side to compare with.
        new: Side that is judged.
        title: Name of the old side's build.
        least: Claimed ratio of the new side to the old one; None to look for a drop.
        leader: Side that runs first in the first pair; None for a random side.
        one_rate: Whether both sides are offered the same rate, if the scenario offers one.
        check: Function that is called after each process of the first pair.
        done: Function that is called after each pair.
    """

    old: CaseRunner
    new: CaseRunner
    rule: RuleR
    title: str = ""
    least: float | None = None
    leader: CaseRunner | None = None
    one_rate: bool = True
    check: Callable[[], None] = lambda: None
    done: Callable[[], None] = lambda: None

    @property
    def pairs(self) -> int:
        """Number of complete pairs of an old and a new run."""
        return min(len(self.old.runs), len(self.new.runs))

    @property
    def runs(self) -> int:
        """Number of runs of both sides, including INVALID and excluded ones."""
        sides = (self.old, self.new)
        return sum(len(one.runs) + len(one.invalid_runs) + len(one.left_out) for one in sides)

    @property
    def missing(self) -> int:
        """Number of pairs that were left out because of other processes' load."""
        return len(self.old.left_out) // (1 + REPEATS)

    @property
    def left_out(self) -> str:
        """Text on the number of run pairs left out because of other processes' load, or ""."""
        if not self.missing:
            return ""
        runs = 2 * len(self.old.left_out)
        reason = "the load of other processes may explain the difference between the builds"
        return f"{plural(self.missing, 'pair')} ({runs} runs) left out: {reason}"

    @property
    def repeat_note(self) -> Note | None:
        """Note on the INVALID runs that were repeated, or None."""
        return repeat_note([*self.old.invalid_runs, *self.new.invalid_runs])

    def add_pair(self, metrics: Collection[str], ask: ScoringSchedule | None = None) -> bool:
        """Run both builds once; repeat if other processes may explain a difference in `metrics`.

        `ask` requests an accuracy pass in the first process of the new build. Returns False,
        and keeps no run of the pair, if they may explain every repeat.
        """
        old, new, pairs = self.old, self.new, self.pairs
        for side in (old, new):
            del side.runs[pairs:]  # of a pair that the other side's error ended
        loaded = self.one_rate and old.job.case.scenario.rate_is_condition
        for _ in range(1 + REPEATS):
            made = len(old.runs) + len(old.left_out)
            drawn = random.Random(f"{old.session} {old.job.case.id} {made // 2}").random() < 0.5
            ahead = self.leader is new if self.leader and made < 2 else drawn
            for side in (new, old) if ahead != bool(made % 2) else (old, new):
                side.pair = made + 1
                if loaded:
                    old.rate = new.rate = old.rate or new.rate
                side.add_run(ask=None if made or side is old else ask)
                if not made:
                    self.check()
            newest, bound = (new.runs[-1], old.runs[-1]), self.rule.tolerated
            if not explains_gap(*newest, metrics, bound, self.least or 1.0):
                return True
            for side in (old, new):
                side.left_out.append(side.runs.pop())
        return False

    def judge(self, limits: Mapping[str, float]) -> dict[str, Ratio]:
        """Add pairs until a drop or claim is decided; return the ratio of each metric.

        `limits` are shares by metric. The result lacks metrics with too few queries a run.

        Raises:
            NotComparable: A metric is missing, or may not be judged.
            Unjudgeable: Every try of a run was INVALID.
        """
        sides = self.new.runs, self.old.runs
        while not (
            ratios := decided(*sides, limits, self.rule, missing=self.missing, least=self.least)
        ):
            self.add_pair(limits)
            self.done()
        return ratios

    def means(self, metric: str, pairs: int) -> tuple[float, float]:
        """Return a metric's geometric means over the first `pairs` runs: (old build, new build)."""
        old, new = (rule_values(side.runs, metric)[:pairs] for side in (self.old, self.new))
        return mean_value(old), mean_value(new)

    def verdicts(
        self, ratios: Mapping[str, Ratio], limits: Mapping[str, float], failing: Outcome
    ) -> list[MetricVerdict]:
        """Return one verdict per ratio; a proven drop has the outcome `failing`."""
        verdicts = []
        for name, ratio in ratios.items():
            moved, low, high = metric_change(name, ratio)
            old, new = self.means(name, ratio.pairs)
            verdict = MetricVerdict(
                metric=name,
                outcome=outcome_of(ratio, failing),
                now=new,
                baseline=MetricBaseline(value=old, runs=ratio.pairs),
                change=moved,
                low=low,
                high=high,
                limit=limits[name],
                runs=ratio.pairs,
                confirmed=ratio.outcome is Answer.FAIL,
            )
            verdicts.append(verdict)
        return verdicts


def decided(
    new: Sequence[Run],
    old: Sequence[Run],
    limits: Mapping[str, float],
    rule: RuleR,
    *,
    missing: int = 0,
    least: float | None = None,
) -> dict[str, Ratio]:
    """Return the ratios by metric if a drop is proven or no metric needs more pairs; else {}.

    `missing` pairs were left out, but count towards the rule's maximum. `least` is a ratio to prove
    instead of a drop. Raises NotComparable if a metric is missing or may not be judged.
    """
    pairs = min(len(new), len(old))
    last = missing > 0 and pairs + missing >= rule.max_runs
    if not pairs:
        if last:
            reason = (
                f"other processes loaded the machine unequally within all {missing} pairs of "
                "runs; repeat on an idle machine"
            )
            raise NotComparable(reason, Outcome.INCONCLUSIVE)
        return {}
    ratios = ratios_of(new[:pairs], old[:pairs], limits, rule, least)
    decisions = {ratio.outcome for ratio in ratios.values()}
    if not (last or Answer.FAIL in decisions or Answer.MORE not in decisions):
        return {}
    return {
        name: replace(ratio, outcome=Answer.INCONCLUSIVE) if ratio.outcome is Answer.MORE else ratio
        for name, ratio in ratios.items()
    }


def ratios_of(
    new: Sequence[Run],
    old: Sequence[Run],
    limits: Mapping[str, float],
    rule: RuleR,
    claim: float | None = None,
) -> dict[str, Ratio]:
    """Return new / old by metric, judged for a drop or, with `claim`, for a ratio of at least that.

    Metrics with too few queries per run are left out; raises NotComparable if that leaves none.
    """
    runs = [*new, *old]
    judged = countable(runs, limits)
    if not judged:
        few = min(fewest_queries(runs, name) for name in limits)
        raise NotComparable(
            f"{few:,} queries per run are too few for {', '.join(limits)}: raise min_query_count"
        )
    ratios = {}
    for metric, limit in judged.items():
        _require(metric, runs)
        sides, direction = (
            (rule_values(new, metric), rule_values(old, metric)),
            METRICS[metric].direction,
        )
        if claim is None:
            shared = curve_rule(rule, metric, judged)
            ratios[metric] = judge_drop(*sides, direction=direction, limit=limit, rule=shared)
        else:
            ratios[metric] = judge_ratio(*sides, direction=direction, least=claim, rule=rule)
    return ratios


def _require(metric: str, runs: Sequence[Run]) -> None:
    for run in runs:
        if metric not in run.metrics:
            raise NotComparable(
                f"{METRICS[metric].title} was not measured in {Path(run.folder).parent.name}"
            )
        if not run.may_judge(metric):
            source = run.energy_of(metric)
            reasons = source.notes if source else (run.energy_unknown or "its energy is unknown",)
            raise NotComparable(Note.of("unjudged", metric=metric, reasons=reasons))


def in_words(metric: str, ratio: Ratio | RelativeSpeed) -> str:
    """Return a metric's change and confidence interval as text: "−6.1 % (−7.0 to −5.2 %)"."""
    middle, low, high = metric_change(metric, ratio)
    return f"{change(middle)} ({interval(low, high)})"


def metric_change(metric: str, ratio: Ratio | RelativeSpeed) -> tuple[float, float, float]:
    """Return (relative change, its lower, its upper bound) of a metric; `ratio` > 1 is better."""
    if METRICS[metric].direction is Direction.HIGHER:
        return ratio.ratio - 1, ratio.low - 1, ratio.high - 1
    return 1 / ratio.ratio - 1, 1 / ratio.high - 1, 1 / ratio.low - 1

"""Judge the runs of a case against its baseline record: every metric, then the case."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import NormalDist, fmean, geometric_mean, stdev

from pytest_mlperf.core.baseline import BaselineRun, Record
from pytest_mlperf.core.contention import late_share, lost_change
from pytest_mlperf.core.measurement import Run, day_groups, day_of
from pytest_mlperf.core.metrics import (
    COUNTS,
    EFFICIENCY,
    METRICS,
    PREFIX_HIT_SHARE,
    at_point,
    metric_sort_key,
    point_of,
)
from pytest_mlperf.core.notes import Note, NoteKey, Words
from pytest_mlperf.core.numbers import rounded
from pytest_mlperf.core.rulings.outcomes import outcome_of
from pytest_mlperf.core.rulings.sample import (
    adjust_for_few_queries,
    countable,
    curve_rule,
    judge_zeros,
    missing,
    too_few,
    ungated,
    unmeasured,
    zero_note,
)
from pytest_mlperf.core.verdict import (
    Gate,
    InterimAnalysis,
    InterleavedRuns,
    MetricBaseline,
    MetricVerdict,
    Outcome,
    PairedVerdict,
    Unchecked,
    Verdict,
    deciding_metric,
    worst,
)
from pytest_mlperf.judge.decision import Answer
from pytest_mlperf.judge.formulas import t_isf
from pytest_mlperf.judge.inputs import Direction, SessionNoise, better_known
from pytest_mlperf.judge.multiplicity import MAX_LONE_PAIRS, rule_among
from pytest_mlperf.judge.rule_r import (
    GATING_RUNS,
    Judged,
    RuleR,
    Value,
    interim_statistics,
    judge,
    log_scale,
    without_multiplicity,
)


def interim_analyses(
    baseline: Sequence[Value], runs: Sequence[Value], *, direction: Direction, rule: RuleR
) -> tuple[InterimAnalysis, ...]:
    """Return rule R's interim analyses: after the first run, after two runs, and so on."""
    return tuple(_compared(baseline, runs[:k], direction, rule) for k in range(1, len(runs) + 1))


def between_sessions(
    baseline: Sequence[Value], *, direction: Direction, rule: RuleR
) -> tuple[InterimAnalysis, ...]:
    """Compare each session of a baseline with its other sessions, as if they were new builds."""
    sessions = dict.fromkeys(run.session for run in baseline)
    compared = []
    for session in sessions if len(sessions) > 1 else ():
        runs = [run for run in baseline if run.session == session]
        others = [run for run in baseline if run.session != session]
        compared.append(_compared(others, runs, direction, rule, session))
    return tuple(compared)


def _compared(
    baseline: Sequence[Value],
    runs: Sequence[Value],
    direction: Direction,
    rule: RuleR,
    session: str = "",
) -> InterimAnalysis:
    look = interim_statistics(baseline, runs, log_scale(direction), rule)
    change = look.d if session else look.best
    return InterimAnalysis(change=change, se=look.se, df=look.df, session=session)


def count_outside_range(
    metric: str,
    baseline_values: Sequence[float],
    values: Sequence[float],
    *,
    tolerance: float = 0.0,
) -> Note | None:
    """Return a note if a count is outside the baseline's range ± `tolerance` (share), else None."""
    if not baseline_values or not values:
        raise ValueError(
            f"{metric}: {len(baseline_values)} baseline values and {len(values)} now; need both"
        )
    if (
        not all(math.isfinite(value) for value in (*baseline_values, *values, tolerance))
        or tolerance < 0
    ):
        raise ValueError(
            f"{metric}: {[*baseline_values, *values]}, tolerance {tolerance!r}: must be finite"
        )
    low = min(value - tolerance * abs(value) for value in baseline_values)
    high = max(value + tolerance * abs(value) for value in baseline_values)
    least, most = min(values), max(values)
    if low <= least and most <= high:
        return None
    value = least if least < low else most
    return Note.of("other_count", metric=metric, value=value, low=low, high=high)


HITS_APART = 0.02
"""Tolerated difference of the share of prompt tokens in a server's cache."""


def cache_share_note(
    current_runs: Sequence[Run],
    baseline_runs: Sequence[Run | BaselineRun],
    key: NoteKey = "other_cached",
) -> Note | None:
    """Return note `key` if cached shares of prompt tokens leave the baseline's range, else None."""
    for name in sorted({name for run in current_runs for name in run.serving.server}):
        sides = [
            [run.serving.server[name] for run in side if name in run.serving.server]
            for side in (current_runs, baseline_runs)
        ]
        if name.partition("@")[0] != PREFIX_HIT_SHARE or not all(sides):
            continue
        low, high = min(sides[1]) - HITS_APART, max(sides[1]) + HITS_APART
        if not all(low <= share <= high for share in sides[0]):
            ours, theirs = ((min(side), max(side)) for side in sides)
            return Note.of(key, point=point_of(name), now=ours, other=theirs)
    return None


LENGTH_SLACK_SHARE = 0.02
"""Tolerated relative difference of the mean length of a curve's answers."""

LENGTH_UNKNOWN = 0.1
"""The same if the variance of single answers is unknown: older results."""

LENGTH_FALSE = 0.01
"""Probability that unchanged answers seem longer or shorter, over all points of a curve."""

MIN_SHARED_SAMPLES = 10


def length_change(
    current_runs: Sequence[Run], baseline_runs: Sequence[Run | BaselineRun]
) -> Note | None:
    """Return a note if the mean answer length changed at a concurrency or rate, else None.

    If enough samples were answered in both sets of runs, only these are compared, in pairs.
    """
    points = sorted(
        {point for run in current_runs for name in run.metrics if (point := point_of(name))}
    )
    for name in (at_point("tokens_per_sample", point) for point in points):
        ours, theirs, chance = (
            rule_values(current_runs, name),
            rule_values(baseline_runs, name),
            LENGTH_FALSE / len(points),
        )
        if ours and theirs:
            means, tolerance = _answer_lengths(baseline_runs, current_runs, name, chance) or (
                (mean_value(theirs), mean_value(ours)),
                _tolerance(theirs, ours, chance),
            )
            counts = ([mean] for mean in means)
            if other := count_outside_range(name, *counts, tolerance=tolerance):
                return other
    return None


def _answer_lengths(
    baseline_runs: Sequence[Run | BaselineRun],
    current_runs: Sequence[Run],
    name: str,
    chance: float,
) -> tuple[tuple[float, float], float] | None:
    """Return ((baseline, current) mean length of common answers, tolerance); None if too few.

    For n samples of lengths x and y, R = mean y / mean x has the standard error
    √(Σ(y - R·x)² / (n(n - 1))) / mean x. The tolerance is a constant + t(chance / 2)·se.

    Source: W. G. Cochran, Sampling Techniques, 3rd ed. 1977, 2.11 (the ratio estimate).
    """
    theirs, ours = (
        _by_sample(runs, name.partition("@")[2]) for runs in (baseline_runs, current_runs)
    )
    pairs = [(fmean(theirs[sample]), fmean(ours[sample])) for sample in theirs.keys() & ours.keys()]
    count, old = len(pairs), fmean(x for x, _ in pairs) if pairs else 0.0
    if count < MIN_SHARED_SAMPLES or not old:
        return None
    new = fmean(y for _, y in pairs)
    squares = math.fsum((y - new / old * x) ** 2 for x, y in pairs)
    se = math.sqrt(squares / (count * (count - 1))) / old
    return (old, new), LENGTH_SLACK_SHARE + t_isf(chance / 2, count - 1) * se


def _by_sample(runs: Sequence[Run | BaselineRun], point: str) -> dict[str, list[int]]:
    answers: dict[str, list[int]] = {}
    text = " ".join(run.serving.lengths.get(point, "") for run in runs)
    for sample, tokens in re.findall(r"(\d{1,9}):(\d{1,9})", text, re.ASCII):
        answers.setdefault(sample, []).append(int(tokens))
    return answers


def _tolerance(baseline: Sequence[Value], current: Sequence[Value], chance: float) -> float:
    sides = [[run.within_se**2 for run in side if run.within_se] for side in (baseline, current)]
    if not any(sides):
        return LENGTH_UNKNOWN
    se = math.sqrt(sum(fmean(side or other) for side, other in (sides, sides[::-1])))
    return LENGTH_SLACK_SHARE + NormalDist().inv_cdf(1 - chance / 2) * se


COUNT_FALSE_RISK, MIN_DRAWN_SAMPLES = 1e-5, 8
"""Probability of a false alarm, and samples below which all sampled answers may differ alike."""


def miscounted(
    timed: Mapping[int, Sequence[int]], answers: Mapping[int, float | None], *, drawn: bool
) -> tuple[Note, ...] | None:
    """Return a note if timed runs and the accuracy pass differ in token counts, () if not.

    `timed`, `answers`: token counts by sample; `drawn`: answers are randomly sampled. None if few
    are in both. Two-sided paired t test of log counts; `LENGTH_SLACK_SHARE` is tolerated.

    Source: B. Efron, Student's t-test under symmetry conditions, JASA 64 (1969), 1278-1302.
    """
    pairs = [(timed[one], n) for one, n in answers.items() if one in timed and n is not None]
    if len(pairs) < (MIN_DRAWN_SAMPLES if drawn else 2):
        return None
    apart = [fmean(math.log(max(1, t)) for t in each) - math.log(max(1, n)) for each, n in pairs]
    se = stdev(apart) / math.sqrt(len(apart))
    if (
        abs(fmean(apart))
        <= math.log1p(LENGTH_SLACK_SHARE) + t_isf(COUNT_FALSE_RISK / 2, len(apart) - 1) * se
    ):
        return ()
    ours = rounded(fmean(tokens for each, _ in pairs for tokens in each))
    theirs = rounded(fmean(n for each, n in pairs for _ in each))
    return (Note.of("miscounted", timed=ours, answers=theirs),)


@dataclass(frozen=True, kw_only=True)
class Ruling:
    """Hold the judgement of accuracy, performance or efficiency.

    Attributes:
        metrics: Gated metrics first, then reported ones; for accuracy the gate's.
        more: Whether one more run, or more samples, could decide; the outcome is then not final.
        deciding: The metric that determines the outcome; None for accuracy and without baseline.
        by_scores: For speed and energy: whether the outcome is due to failed accuracy.
    """

    outcome: Outcome
    headline: Words
    metrics: tuple[MetricVerdict, ...] = ()
    paired: tuple[PairedVerdict, ...] = ()
    notes: tuple[Words, ...] = ()
    more: bool = False
    deciding: MetricVerdict | None = None
    gate: Gate | None = None
    interleaved: InterleavedRuns | None = None
    unchecked: Unchecked | None = None
    by_scores: bool = False

    def quoted(self, key: NoteKey, **values: object) -> Note:
        """Return the note `key` with this ruling's outcome and headline, and further values."""
        return Note.of(key, outcome=str(self.outcome), headline=self.headline, **values)

    @property
    def failed(self) -> bool:
        """Whether accuracy failed, so that performance may not be judged."""
        return self.outcome in {Outcome.GATE_FAIL, Outcome.ACC_DROP}

    @property
    def dropped(self) -> bool:
        """Whether a metric provably fails the test, even if other metrics could not be judged."""
        return any(m.fails and m.outcome is not Outcome.INVALID for m in self.metrics)


def headline_of(outcome: Outcome, metric: MetricVerdict, **condition: object) -> Note:
    """Return the headline of a deciding metric: its change with interval and limit, or its note.

    Args:
        condition: For a searched rate, its `condition` as text, and `at_least`: whether the rate is
            only a lower bound.
    """
    compared = bool(metric.limit) and None not in (metric.change, metric.low, metric.high)
    return Note.of(
        "metric",
        metric=metric.metric,
        outcome=str(outcome),
        now=metric.now,
        change=metric.change if compared else None,
        low=metric.low,
        high=metric.high,
        limit=metric.limit,
        direction=metric.direction,
        note=metric.note,
        **condition,
    )


def rule_on(
    runs: Sequence[Run],
    record: Record | None,
    limits: Mapping[str, float],
    rule: RuleR,
    failing: Outcome = Outcome.PERF_DROP,
    pairs: int = 1,
) -> Ruling:
    """Judge the valid runs of one case, oldest first, by rule R; `limits` are shares.

    A drop has the outcome `failing` if it is proven after correction for `pairs` tested pairs.
    """
    judging = _MetricRules(
        rule=rule,
        among=rule if pairs == 1 else rule_among(rule, pairs),
        pairs=pairs,
        failing=failing,
    )
    names = sorted({n for run in runs for n in run.metrics if n in METRICS}, key=metric_sort_key)
    measured = [name for name in names if name not in EFFICIENCY]
    believed = [n for n in measured if all(r.may_judge(n) for r in runs if n in r.metrics)]
    held = ungated(runs, limits, record)
    gated = [
        _gated(name, limit, runs, record, judging.sharing(name, limits))
        for name, limit in limits.items()
        if name not in held
    ]
    reported = [
        _reported(name, runs, record, note=_work(name, runs, record))
        for name in believed
        if name not in limits
    ]
    # Undecided metrics with too few queries are left out if other metrics were judged.
    few = {
        m.metric
        for m, _ in gated
        if m.outcome and m.p is None and m.now is not None and too_few(runs, m.metric, record)
    }
    judged = any(m.outcome and m.metric not in few for m, _ in gated)
    metrics = [
        replace(m, outcome=None, note=None) if judged and m.metric in few else m for m, _ in gated
    ]
    return ruling_of(metrics, reported, more=any(more for _, more in gated))


def ruling_of(
    metrics: Sequence[MetricVerdict], reported: Sequence[MetricVerdict] = (), *, more: bool = False
) -> Ruling:
    """Return the ruling by `metrics`; `reported` are only listed; `more`: more runs may decide."""
    # A failing metric decides before a SUSPECT one, and a drop before a metric that could not be
    # judged.
    failing = [metric for metric in metrics if metric.fails]
    failing = [metric for metric in failing if metric.outcome is not Outcome.INVALID] or failing
    outcomes = [m.outcome for m in failing or metrics if m.outcome is not None]
    # Metrics with too few queries are only reported; without others the case is not judged.
    outcome = worst(outcomes) if outcomes else Outcome.INCONCLUSIVE
    if outcome is Outcome.OK and Outcome.IMPROVED in outcomes:
        outcome = Outcome.IMPROVED
    deciding = deciding_metric(metrics, outcome if outcomes else None)
    headline = headline_of(outcome, deciding) if deciding else Note.of("nothing_gated")
    return Ruling(
        outcome=outcome,
        headline=headline,
        metrics=(*metrics, *reported),
        more=more,
        deciding=deciding,
    )


def noted_in_headline(verdict: Verdict) -> MetricVerdict | None:
    """Return the metric whose note appears in the first line of a verdict, or None."""
    outcome: Outcome | None = verdict.outcome
    if outcome is Outcome.EXPECTED:
        outcome = next((metric.outcome for metric in verdict.metrics if metric.fails), None)
    elif outcome is Outcome.INCONCLUSIVE and not any(m.outcome for m in verdict.metrics):
        outcome = None
    metric = deciding_metric(verdict.metrics, outcome)
    return None if metric is None or outcome in {Outcome.OK, Outcome.IMPROVED} else metric


def rule_values(
    runs: Sequence[Run | BaselineRun],
    metric: str,
    tolerated: float = math.inf,
    *,
    margin: bool = True,
    by_day: bool = True,
) -> list[Value]:
    """Return rule R's input for each run that has the metric.

    Args:
        tolerated: Largest slowdown by other load that is ignored, as a share; all if infinite.
        margin: Whether to add the margin for shared memory bandwidth to measured runs' load.
        by_day: Whether to merge sessions of one day; False if both sides may share the day.
    """
    groups = day_groups((r.session, r.started, r.hardware.ids) for r in runs) if by_day else {}
    return [
        Value(
            value=run.metrics[metric],
            within_se=run.within_se.get(metric, 0.0),
            session=groups.get(run.session, run.session),
            day=day_of(run.started),
            lost=max_log_loss(run, metric, tolerated, memory_margin=margin),
        )
        for run in runs
        if metric in run.metrics
    ]


def load_share(run: Run | BaselineRun) -> float | None:
    """Return the share of speed that a run lost to other load, at most; None if unknown."""
    if isinstance(run, BaselineRun):
        return run.busy
    return run.load.contention.share if run.load.contention else None


def max_log_loss(
    run: Run | BaselineRun, metric: str, tolerated: float, *, memory_margin: bool = True
) -> float:
    """Return by what log ratio other processes and late requests may have worsened a metric.

    Load that costs at most `tolerated`, a share of speed, counts as 0. `memory_margin` adds the
    margin for memory bandwidth that applies to drops.
    """
    if math.isinf(tolerated):
        return 0.0
    late = (
        run.late.get(metric, 0.0)
        if isinstance(run, BaselineRun)
        else late_share(metric, run.metrics[metric], run.load.client)
    )
    share, points = load_share(run) or 0.0, len({*map(point_of, run.metrics)} - {None})
    if share <= tolerated:
        share = 0.0
    elif memory_margin and isinstance(run, Run) and run.load.contention:
        share = run.load.contention.drop_share or share
    of_load = lost_change(metric, share, points=points)
    return of_load - math.log1p(-late)


@dataclass(frozen=True, kw_only=True)
class _MetricRules:
    """Hold rule R for a metric: alone (`rule`), and corrected for `pairs` joint tests (`among`)."""

    rule: RuleR
    among: RuleR
    pairs: int
    failing: Outcome

    def sharing(self, name: str, limits: Mapping[str, float]) -> _MetricRules:
        """Return rules for metric `name`, with its share of its curve's false-alarm probability."""
        rule, among = (curve_rule(one, name, limits) for one in (self.rule, self.among))
        return replace(self, rule=rule, among=among)

    def with_noise(self, noise: SessionNoise | None) -> _MetricRules:
        """Return the rules with `noise`, unless their own noise has more degrees of freedom."""
        noise = better_known(noise, self.rule.session_noise)
        rule, among = (replace(one, session_noise=noise) for one in (self.rule, self.among))
        return replace(self, rule=rule, among=among)


def _gated(
    name: str, limit: float, runs: Sequence[Run], record: Record | None, judging: _MetricRules
) -> tuple[MetricVerdict, bool]:
    if lacking := missing(runs, name):
        return unmeasured(name, limit, lacking), False
    few = too_few(runs, name, record)
    if few and name not in countable(runs, {name: limit}, record):
        return _reported(name, runs, record, note=few), False
    tolerated = judging.rule.tolerated
    current = rule_values(runs, name, tolerated)
    baseline = rule_values(record.runs, name, tolerated) if record else []
    if not baseline:
        return _without_baseline(name, limit, runs, record), False
    if record and len(current) < len(runs):
        again = partial(_gated, name, limit, record=record, judging=judging)
        return judge_zeros(name, limit, runs, record, again, judging.failing, judging.rule.max_runs)
    judging = judging.with_noise(record.noise_of(name) if record else None)
    verdict, more = _compared_by_rule(name, limit, baseline, current, judging)
    return (
        adjust_for_few_queries(verdict, few, judging.failing) if few and not more else verdict
    ), more


def _without_baseline(
    name: str, limit: float, runs: Sequence[Run], record: Record | None
) -> MetricVerdict:
    current = rule_values(runs, name)
    return MetricVerdict(
        metric=name,
        outcome=Outcome.NO_BASELINE,
        now=mean_value(current) if len(current) == len(runs) else 0.0,
        limit=limit,
        runs=len(runs),
        note=zero_note(runs, name) or (Note.of("no_metric") if record else None),
    )


def _compared_by_rule(
    name: str,
    limit: float,
    baseline: Sequence[Value],
    current: Sequence[Value],
    judging: _MetricRules,
) -> tuple[MetricVerdict, bool]:
    direction = METRICS[name].direction
    judged = judge(baseline, current, direction=direction, limit=limit, rule=judging.among)
    if judging.among != judging.rule:
        judged = without_multiplicity(judged, baseline, direction, judging.rule)
    outcome = outcome_of(judged, judging.failing, advisory=judged.advisory)
    used = current[: judged.runs_used]
    # A provisional drop from too few baseline runs has no direction.
    unsure = judged.outcome is Answer.PROVISIONAL and outcome is not Outcome.PROVISIONAL
    verdict = MetricVerdict(
        metric=name,
        outcome=outcome,
        baseline=MetricBaseline(
            value=mean_value(baseline),
            detectable=judged.mde,
            runs=len(baseline),
            lacks=judged.lacks,
            days=len({value.session for value in baseline}),
            sessions=between_sessions(baseline, direction=direction, rule=judging.rule),
        ),
        now=mean_value(used),
        change=judged.change,
        low=judged.low,
        high=judged.high,
        limit=limit,
        runs=judged.runs_used,
        note=_note(judged, outcome, judging),
        p=judged.p,
        direction=None if unsure else judged.direction,
        robust_to=judged.robust_to,
        robust=judged.robust,
        likely=judged.likely,
        outliers=judged.outliers,
        analyses=interim_analyses(baseline, used, direction=direction, rule=judging.rule),
    )
    return verdict, judged.outcome is Answer.MORE


def _note(judged: Judged, outcome: Outcome, judging: _MetricRules) -> Note | None:
    if outcome is Outcome.PROVISIONAL:
        return Note.of("if_sessions", robust_to=judged.robust_to or 0.0)
    if judged.advisory:
        return Note.of("advisory", runs=judged.runs_baseline, needed=GATING_RUNS)
    if outcome is judging.failing and judging.pairs > MAX_LONE_PAIRS:
        return Note.of("drop_whatever", others=judging.pairs - 1, p=judged.p)
    return of_load(judged.lost, judged.lost_before) if outcome is Outcome.INCONCLUSIVE else None


def of_load(lost: float, lost_before: float, key: NoteKey = "load_explains") -> Note | None:
    """Return a note on the speed lost to other load (logs), now and before; None if both are 0."""
    if not lost and not lost_before:
        return None
    return Note.of(key, now=-math.expm1(-lost), before=-math.expm1(-lost_before))


def _reported(
    name: str, runs: Sequence[Run], record: Record | None, note: Note | None = None
) -> MetricVerdict:
    current = rule_values(runs, name)
    if len(current) < len(runs) and not note:
        note = Note.of("in_some_runs", count=len(current), of=len(runs))
    return ungated_metric(name, current, rule_values(record.runs, name) if record else [], note)


def ungated_metric(
    name: str, current: Sequence[Value], baseline: Sequence[Value], note: Note | None = None
) -> MetricVerdict:
    """Return the entry of a metric that is not gated, with its baseline value if there is one."""
    mean, old = mean_value(current) if current else None, mean_value(baseline) if baseline else None
    return MetricVerdict(
        metric=name,
        outcome=None,
        baseline=MetricBaseline(value=old, runs=len(baseline)),
        now=mean,
        change=mean / old - 1 if mean and old else None,
        runs=len(current),
        note=note,
    )


def _work(name: str, runs: Sequence[Run], record: Record | None) -> Note | None:
    theirs = [v.value for v in rule_values(record.runs, name)] if record else []
    if name not in COUNTS or not theirs or any(run.serving.requests for run in runs):
        return None
    ours = [v.value for v in rule_values(runs, name)]
    return count_outside_range(name, theirs, ours, tolerance=0.02)


def mean_value(sample: Sequence[Value]) -> float:
    """Return the geometric mean, because rule R works on logarithms."""
    return geometric_mean(v.value for v in sample)


def is_worse(metric: str, old: float, new: float) -> bool:
    """Check whether `new` is worse than `old` by the metric's direction."""
    return new < old if METRICS[metric].direction is Direction.HIGHER else new > old

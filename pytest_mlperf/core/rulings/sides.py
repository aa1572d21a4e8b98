"""Compare all runs of a baseline build and a candidate: each metric, then all cases."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from pytest_mlperf.core.measurement import Run
from pytest_mlperf.core.metrics import EFFICIENCY, METRICS, metric_sort_key
from pytest_mlperf.core.notes import Note
from pytest_mlperf.core.rulings.outcomes import outcome_of
from pytest_mlperf.core.rulings.ruling import mean_value, of_load, rule_values, ungated_metric
from pytest_mlperf.core.rulings.sample import fewest_queries, unmeasured
from pytest_mlperf.core.verdict import MetricBaseline, MetricVerdict, Outcome
from pytest_mlperf.judge.decision import Answer, Decision
from pytest_mlperf.judge.formulas import bound_of, t_isf, t_sf, to_relative_change
from pytest_mlperf.judge.inputs import Direction
from pytest_mlperf.judge.multiplicity import FALSE_SHARE, benjamini_hochberg
from pytest_mlperf.judge.robustness import CANDIDATE_DF, MAX_SPREAD_RATIO
from pytest_mlperf.judge.rule_r import GATING_RUNS, RuleR, Value, by_session, log_scale

SPARE_SESSIONS = 2
"""Degrees of freedom between sessions from which their variance is estimated."""

_MAX_DAYS_SHARE = 0.9


@dataclass(frozen=True, kw_only=True, slots=True)
class RatioSpread:
    """Hold a log ratio's standard error `se` and `df`, the degrees of freedom of its t test."""

    se: float
    df: float

    def reach(self, error: float) -> float:
        """Return the one-sided confidence margin at an error probability: t quantile · se."""
        return t_isf(error, self.df) * self.se

    def p_value(self, change: float) -> float:
        """Return the one-sided p value of a log change above 0: P(T > change / se), T ~ t(`df`)."""
        return t_sf(change / self.se, self.df)


@dataclass(frozen=True, kw_only=True, slots=True)
class Pooled:
    """Hold the log ratio of two builds, and its standard errors under several assumptions.

    Attributes:
        before, now: Weighted mean log value over the sessions of the baseline, of the candidate.
        spread: With the observed between-session variance or, if there are too few sessions, with
            `MAX_SPREAD_RATIO` times the run variance.
        least: With run variance alone, pooled over both builds.
        separate: With run variance alone, estimated for each build.
        plain: With the expected ratio of session variance to run variance.
        by_sessions: Whether `spread` uses the observed between-session variance.
    """

    before: float
    now: float
    spread: RatioSpread
    least: RatioSpread
    separate: RatioSpread
    plain: RatioSpread
    sessions: int
    by_sessions: bool

    @property
    def change(self) -> float:
        """Log ratio of candidate to baseline: `now` - `before`."""
        return self.now - self.before

    def reach(self, error: float) -> float:
        """Return t·se of `change` for one-sided `error`: the largest of 3 variance estimates."""
        return max(one.reach(error) for one in (self.spread, self.least, self.separate))

    def p(self, sign: int, lost: float = 0.0) -> float:
        """Return the p value (one-sided t) of a rise (1) or drop (-1) beyond log effect `lost`."""
        away = sign * self.change - lost
        return max(one.p_value(away) for one in (self.spread, self.least, self.separate))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Side:
    """Hold a build's sessions (mean log value, runs, weight) and the sum of squares within them."""

    means: Sequence[float]
    counts: Sequence[int]
    weights: Sequence[float]
    squares: float

    @property
    def mean(self) -> float:
        return math.fsum(w * x for w, x in zip(self.weights, self.means, strict=True))

    @property
    def df(self) -> int:
        return sum(self.counts) - len(self.counts)

    @property
    def of_sessions(self) -> float:
        """Variance of the weighted mean per unit of between-session variance: Σw²."""
        return math.fsum(w * w for w in self.weights)

    @property
    def of_runs(self) -> float:
        """Factor of the run variance in Var(mean): Σw²/m for sessions of weight w with m runs."""
        return math.fsum(w * w / m for w, m in zip(self.weights, self.counts, strict=True))

    def between_squares(self) -> tuple[float, float, float]:
        """Return the sum of squares between n session means x of weight w: n·Σw(x - mean)².

        Its expectation is the second value x session variance + the third x run variance.
        """
        n, mean = len(self.means), self.mean
        parts = list(zip(self.weights, self.means, self.counts, strict=True))
        return (
            n * math.fsum(w * (x - mean) ** 2 for w, x, _ in parts),
            n * math.fsum(w * (1 - w) for w, _, _ in parts),
            n * math.fsum(w * (1 - w) / m for w, _, m in parts),
        )


def pooled(baseline: Sequence[Value], current: Sequence[Value], *, rule: RuleR) -> Pooled:
    """Return the log ratio of two builds ("sides") by all their runs; they share no sessions.

    A session's mean varies by v_s + v_r/m, with v_s between sessions, v_r between the m runs of
    one. Sessions have the weight w = 1/(λ + 1/m), with the expected λ = v_s/v_r.

        d ± t(ν)·√V,   V = v_s·Σw² + v_r·Σw²/m   over the sessions of both sides, Σw = 1 for each
        v_r = (ν0·((1-φ)·s0² + w_in²) + SS inside sessions) / (ν0 + runs - sessions)

    From `SPARE_SESSIONS` sessions on, v_s + h·v_r is the mean square of the sessions about the mean
    of their side; ν is the number of sessions less 2. No prior is used. With fewer sessions v_s is
    taken as `MAX_SPREAD_RATIO`²·v_r, with the ν of v_r. The bounds are never narrower than with
    v_s = 0 and either the common v_r or one v_r per side, in which the other side's v_r has the
    weight `CANDIDATE_DF`.

    Source: one-way random effects, mean squares of unequal groups (S. R. Searle, G. Casella, C. E.
        McCulloch, Variance Components, 1992, 3.6); v_r moderated as in rule R; degrees of freedom
        of two sides' own by F. E. Satterthwaite, Biometrics Bulletin 2 (1946).
    """
    if not baseline or not current:
        raise ValueError(
            f"nothing to compare: {len(baseline)} baseline runs, {len(current)} current runs"
        )
    share = min(rule.session_share, _MAX_DAYS_SHARE)
    expected = share / (1 - share)
    a, b = (_side(runs, expected) for runs in (baseline, current))
    within = fmean(run.within_se**2 for run in (*baseline, *current))
    run_variance, run_df = rule.inside_sessions(a.squares + b.squares, a.df + b.df, within)
    of_sessions, of_runs = a.of_sessions + b.of_sessions, a.of_runs + b.of_runs

    def by_runs(ratio: float) -> RatioSpread:
        return RatioSpread(se=math.sqrt(run_variance * (ratio * of_sessions + of_runs)), df=run_df)

    spare = len(a.means) + len(b.means) - 2
    enough = spare >= SPARE_SESSIONS
    return Pooled(
        before=a.mean,
        now=b.mean,
        spread=_by_sessions((a, b), spare, run_variance, rule)
        if enough
        else by_runs(MAX_SPREAD_RATIO**2),
        least=by_runs(0.0),
        separate=_by_own_runs((a, b), within, rule),
        plain=by_runs(expected),
        sessions=spare + 2,
        by_sessions=enough,
    )


def _side(runs: Sequence[Value], expected: float) -> _Side:
    sessions = by_session(runs, log_scale())
    means = [fmean(logs) for logs in sessions]
    counts = [len(logs) for logs in sessions]
    plain = [1 / (expected + 1 / m) for m in counts]
    total = math.fsum(plain)
    inside = math.fsum(
        (x - mean) ** 2 for mean, logs in zip(means, sessions, strict=True) for x in logs
    )
    return _Side(means=means, counts=counts, weights=[w / total for w in plain], squares=inside)


def _by_own_runs(sides: tuple[_Side, _Side], within: float, rule: RuleR) -> RatioSpread:
    variance = squares = 0.0
    for side, other in (sides, sides[::-1]):
        v_r, df = rule.inside_sessions(side.squares + other.squares, side.df + other.df, within)
        if side.df:
            other_variance, _ = rule.inside_sessions(other.squares, other.df, within)
            df = CANDIDATE_DF + side.df
            v_r = max((CANDIDATE_DF * other_variance + side.squares) / df, rule.floor_sd**2)
        variance += v_r * side.of_runs
        squares += (v_r * side.of_runs) ** 2 / df
    return RatioSpread(se=math.sqrt(variance), df=variance**2 / squares)


def _by_sessions(sides: Sequence[_Side], df: int, run_variance: float, rule: RuleR) -> RatioSpread:
    squares, sessions, runs = (
        math.fsum(parts) for parts in zip(*(side.between_squares() for side in sides), strict=True)
    )
    mean_square = max(squares / sessions, rule.floor_sd**2)
    of_sessions = math.fsum(side.of_sessions for side in sides)
    # Sessions with fewer runs vary by more than those behind the mean square.
    beyond = math.fsum(side.of_runs for side in sides) - of_sessions * runs / sessions
    variance = mean_square * of_sessions + max(beyond, 0.0) * run_variance
    return RatioSpread(se=math.sqrt(variance), df=df)


def judge_sides(
    baseline_runs: Sequence[Run],
    current_runs: Sequence[Run],
    limits: Mapping[str, float],
    rule: RuleR,
) -> tuple[MetricVerdict, ...]:
    """Judge all runs of a case at once: gated metrics first, then reported ones.

    An unchanged metric is a drop with probability `alpha` at most. A metric that dropped by its
    limit is ok with probability `beta` at most. Metrics are gated if the baseline runs have enough
    queries: a slower build has fewer queries, which must not loosen the rule.
    """
    gated = tuple(
        _gated(name, limit, baseline_runs, current_runs, rule) for name, limit in limits.items()
    )
    measured = {
        name for run in (*baseline_runs, *current_runs) for name in run.metrics if name in METRICS
    }
    others = sorted(measured - limits.keys() - EFFICIENCY, key=metric_sort_key)
    return (
        *gated,
        *(row for name in others if (row := _reported(name, baseline_runs, current_runs))),
    )


def judge_together(
    cases: Sequence[Sequence[MetricVerdict]], alpha: float
) -> list[tuple[MetricVerdict, ...]]:
    """Correct the verdicts on all cases of a comparison by the Benjamini-Hochberg procedure.

    A drop whose null hypothesis is rejected stays a drop; other drops become SUSPECT. An unchanged
    comparison of several metrics has a drop with probability `FALSE_SHARE` at most.
    """
    p_values = {
        (case, metric.metric): metric.p
        for case, metrics in enumerate(cases)
        for metric in metrics
        if metric.p is not None
    }
    drops = {key for key in benjamini_hochberg(p_values, FALSE_SHARE) if p_values[key] < alpha}

    def settled(case: int, metric: MetricVerdict) -> MetricVerdict:
        if metric.outcome is not Outcome.PERF_DROP or len(p_values) == 1:
            return metric
        values = {"among": len(p_values), "noun": "metrics", "p": metric.p}
        if (case, metric.metric) in drops:
            note = Note.of("drop_among", drops=len(drops), **values)
            return replace(metric, note=note)
        note = Note.of("suspect_among", **values)
        return replace(metric, outcome=Outcome.SUSPECT, note=note)

    return [tuple(settled(case, one) for one in metrics) for case, metrics in enumerate(cases)]


def _gated(
    name: str, limit: float, baseline_runs: Sequence[Run], current_runs: Sequence[Run], rule: RuleR
) -> MetricVerdict:
    old, new = (
        rule_values(runs, name, rule.tolerated, by_day=False)
        for runs in (baseline_runs, current_runs)
    )
    needed = METRICS[name].min_queries
    if fewest_queries(baseline_runs, name) < needed:
        note = Note.of("few_queries", needed=needed)
        return replace(
            _reported(name, baseline_runs, current_runs) or unmeasured(name, limit, note), note=note
        )
    if new and not old:
        return MetricVerdict(
            metric=name,
            outcome=Outcome.NO_BASELINE,
            now=mean_value(new),
            limit=limit,
            runs=len(new),
            note=Note.of("no_metric_in_a"),
        )
    for side, runs in (("A", baseline_runs), ("B", current_runs)):
        without = [run for run in runs if name not in run.metrics]
        if without:
            note = Note.of(
                "missing_on_side",
                metric=name,
                count=len(without),
                of=len(runs),
                side=side,
                started=without[0].started,
            )
            return unmeasured(name, limit, note)
    return _judged(name, limit, old, new, rule)


def _judged(
    name: str, limit: float, old: Sequence[Value], new: Sequence[Value], rule: RuleR
) -> MetricVerdict:
    direction = METRICS[name].direction
    sign = 1 if direction is Direction.HIGHER else -1
    ratio = pooled(old, new, rule=rule)
    middle, bound = sign * ratio.change, bound_of(direction, limit)
    lost, lost_before = (
        max(map(fmean, by_session(side, lambda value: value.lost))) for side in (new, old)
    )
    worst, best = middle - lost_before, middle + lost
    decision = _decision(ratio, (worst, best), bound, min(len(old), len(new)), rule)
    advisory = decision.outcome is Answer.FAIL and len(old) < GATING_RUNS
    outcome = outcome_of(decision, Outcome.PERF_DROP, advisory=advisory)
    note = _note(ratio, decision, best, rule)
    if decision.outcome is Answer.INCONCLUSIVE:
        note = note or of_load(lost, lost_before, "load_explains_sides")
    ends = (worst - ratio.reach(rule.beta), middle, best + ratio.reach(rule.alpha))
    low, change, high = sorted(to_relative_change(x, direction) for x in ends)
    return MetricVerdict(
        metric=name,
        outcome=outcome,
        baseline=MetricBaseline(value=math.exp(ratio.before), runs=len(old)),
        now=math.exp(ratio.now),
        change=change,
        low=low,
        high=high,
        limit=limit,
        runs=len(new),
        note=note,
        p=ratio.p(-sign, lost) if outcome is Outcome.PERF_DROP else 1.0,
        direction=decision.direction,
    )


def _decision(
    ratio: Pooled, change: tuple[float, float], bound: float, fewest: int, rule: RuleR
) -> Decision:
    worst, best = change
    if worst - ratio.reach(rule.beta) > bound:
        return Decision(outcome=Answer.PASS, improved=worst > ratio.reach(rule.alpha))
    if best + ratio.reach(rule.alpha) < 0:
        return Decision(outcome=Answer.FAIL if fewest > 1 else Answer.INCONCLUSIVE)
    if not ratio.by_sessions:
        if worst - ratio.plain.reach(rule.beta) > bound:
            return Decision(outcome=Answer.PROVISIONAL, direction="ok")
        if best + ratio.plain.reach(rule.alpha) < 0:
            return Decision(outcome=Answer.PROVISIONAL, direction="drop")
    return Decision(outcome=Answer.INCONCLUSIVE)


def _note(ratio: Pooled, decision: Decision, best: float, rule: RuleR) -> Note | None:
    if decision.outcome in {Answer.PASS, Answer.FAIL}:
        return None
    if best + ratio.reach(rule.alpha) < 0:
        return Note.of("one_run")
    if ratio.by_sessions:
        return None
    more = SPARE_SESSIONS + 2 - ratio.sessions
    values = {"sessions": ratio.sessions, "more": more, "direction": decision.direction}
    return Note.of("sessions_unknown", **values)


def _reported(
    name: str, baseline_runs: Sequence[Run], current_runs: Sequence[Run]
) -> MetricVerdict | None:
    if not all(
        run.may_judge(name) for run in (*baseline_runs, *current_runs) if name in run.metrics
    ):
        return None
    new = rule_values(current_runs, name)
    return ungated_metric(name, new, rule_values(baseline_runs, name)) if new else None

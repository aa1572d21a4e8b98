"""How one metric was decided: every look of rule R, and what would have decided otherwise."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pytest_mlperf.core.baseline import BaselineRun
from pytest_mlperf.core.judge.rule_r import GATING_RUNS, Decision, Judged, RuleR, judge
from pytest_mlperf.core.judge.ruling import is_worse, values
from pytest_mlperf.core.measurement import Run
from pytest_mlperf.core.metrics import METRICS, Direction
from pytest_mlperf.core.numbers import change, interval, limit, percent
from pytest_mlperf.core.verdict import MetricVerdict
from pytest_mlperf.reports.cells import title
from pytest_mlperf.reports.layout import fold, table

INDENT = "  "


def looks(
    metric: MetricVerdict,
    runs: Sequence[Run],
    baseline: Sequence[BaselineRun],
    rule: RuleR,
    width: int,
) -> list[str]:
    """Return how one gated metric was decided: a heading, then every look of rule R.

    Args:
        metric: What the verdict says of it.
        runs: The runs of the verdict, oldest first.
        baseline: The baseline's runs as they are now; empty where there are none.
        rule: The settings that the session judged with.
        width: Columns.

    Raises:
        ValueError: A value is none that a run can give.
    """
    about = METRICS[metric.metric]
    bound = limit(metric.metric, metric.limit) if metric.limit else ""
    head = f"{title(metric.metric)}: {about.direction} is better, limit {bound}; {metric.outcome}"
    before, now = values(baseline, metric.metric), values(runs, metric.metric)
    if metric.outcome is None or metric.low is None or metric.limit is None:
        note = metric.note or "there is nothing to compare with"
        return [head.replace("None", "only reported"), *_said(f"Not judged: {note}", width)]
    if not before or not now:
        text = "The baseline's runs are not here, so the steps cannot be retraced."
        return [head, *_said(text, width)]
    made = [
        judge(before, now[:k], direction=about.direction, limit=metric.limit, rule=rule)
        for k in range(1, min(len(now), rule.max_runs) + 1)
    ]
    made = made[: made[-1].runs_used]
    lines = [head, *_said(_noise(made[-1], rule), width)]
    rows = [_look(look, metric.metric, rule) for look in made]
    columns = ["look", "change", "at worst", "at best", "says"]
    lines += [f"{INDENT}{line}" for line in table(columns, rows, width - 2, left=["says"])]
    for text in (
        _differs(metric, made[-1]),
        _advisory(made[-1]),
        _otherwise(made[-1], metric.metric),
        _bounds(rule),
    ):
        lines += _said(text, width) if text else []
    return lines


def _noise(last: Judged, rule: RuleR) -> str:
    expected = f"{percent(rule.prior_sd)} was expected beforehand (weight {rule.prior_df:g})"
    own = last.runs_baseline + last.runs_used - 2
    return (
        f"Noise: one run differs from the next by {percent(last.sd)} (standard deviation, "
        f"{last.df:g} degrees of freedom): {expected}, the runs themselves weigh {own}."
    )


def _look(look: Judged, metric: str, rule: RuleR) -> dict[str, str]:
    worst, best = _ends(look, metric)
    return {
        "look": str(look.runs_used),
        "change": change(look.change),
        "at worst": change(worst),
        "at best": change(best),
        "says": _says(look, metric, rule),
    }


def _says(look: Judged, metric: str, rule: RuleR) -> str:
    bound = limit(metric, look.limit)
    worst, best = _ends(look, metric)
    match look.decision:
        case Decision.PASS:
            better = "; better, proven" if look.improved else ""
            return f"passes: at worst inside {bound}{better}"
        case Decision.FAIL:
            return "drop: even at best worse than 0"
    if look.runs_used == 1 and is_worse(metric, 0.0, best):
        return "open: one run alone never fails"
    if look.runs_used == 1 and not is_worse(metric, _signed(look.limit, metric), worst):
        return "open: too fast to believe from one run"
    last = ", no run left" if look.runs_used == rule.max_runs else ""
    return f"open: neither 0 nor {bound} excluded{last}"


def _differs(metric: MetricVerdict, last: Judged) -> str:
    """Say when the steps are not those of the verdict: its baseline is another one today."""
    assert metric.low is not None
    assert metric.high is not None
    same = math.isclose(metric.low, last.low, rel_tol=1e-6, abs_tol=1e-9) and math.isclose(
        metric.high, last.high, rel_tol=1e-6, abs_tol=1e-9
    )
    if same:
        return ""
    return (
        f"The verdict's own interval was {interval(metric.low, metric.high)}: the baseline has "
        "changed since."
    )


def _advisory(last: Judged) -> str:
    if not last.advisory:
        return ""
    return (
        f"The baseline has {last.runs_baseline} of the {GATING_RUNS} runs that a gate needs: a "
        "drop is advice, not a failure."
    )


def thresholds(look: Judged, metric: str) -> tuple[float, float]:
    """Return the changes at which equally noisy runs begin to pass, and to be a drop.

    Args:
        look: What decided: how far its bounds lie from the change depends on the noise alone.
        metric: Name of the metric.
    """
    worst, best = _ends(look, metric)
    change_, bound = math.log1p(look.change), math.log1p(_signed(look.limit, metric))
    passes = math.expm1(bound + change_ - math.log1p(worst))
    fails = math.expm1(change_ - math.log1p(best))
    # What passes is never a drop, although it may be proven to be worse than 0.
    return passes, fails if is_worse(metric, passes, fails) else passes


def _otherwise(last: Judged, metric: str) -> str:
    passes, fails = thresholds(last, metric)
    higher = METRICS[metric].direction is Direction.HIGHER
    better, worse = ("above", "below") if higher else ("below", "above")
    text = f"Otherwise: equally noisy, it passes {better} {change(passes)}"
    if last.runs_used == 1:
        return f"{text}; a drop takes two runs."
    if math.isclose(passes, fails):
        return f"{text}, else it is a drop."
    return f"{text} and is a drop {worse} {change(fails)}; in between it is open."


def _bounds(rule: RuleR) -> str:
    return (
        f"At worst and at best are one-sided bounds of the change: {percent(rule.beta)} of error "
        f"shared by {rule.max_runs} looks, {percent(rule.alpha)} by {rule.max_runs - 1}."
    )


def _ends(look: Judged, metric: str) -> tuple[float, float]:
    """Return the change at worst and at best."""
    if METRICS[metric].direction is Direction.HIGHER:
        return look.low, look.high
    return look.high, look.low


def _signed(share: float, metric: str) -> float:
    return -share if METRICS[metric].direction is Direction.HIGHER else share


def _said(text: str, width: int) -> list[str]:
    return fold(text, width, first=INDENT, rest=INDENT)

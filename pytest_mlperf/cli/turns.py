"""How a claim about two engine entries was decided: every pair of runs, and what it says."""

from __future__ import annotations

from pytest_mlperf.core.judge.ratio import FIRST_LOOK, Ratio, judge_ratio
from pytest_mlperf.core.judge.rule_r import Decision, RuleR
from pytest_mlperf.core.judge.ruling import values
from pytest_mlperf.core.metrics import METRICS
from pytest_mlperf.core.numbers import percent, quantity, times
from pytest_mlperf.core.verdict import RatioVerdict, Verdict
from pytest_mlperf.reports.layout import fold, plural, table

INDENT = "  "


def turns(verdict: Verdict, ratio: RatioVerdict, rule: RuleR, width: int) -> list[str]:
    """Return a heading, then every pair of runs with the interval after it.

    Args:
        verdict: Of a pair; its runs are a's first, b's first, a's second, and so on.
        ratio: What it found.
        rule: The settings that the session judged with.
        width: Columns.
    """
    metric = METRICS[ratio.metric]
    a, b = (values(verdict.runs[side::2], ratio.metric) for side in (0, 1))
    count = min(len(a), len(b), ratio.pairs)
    head = f"{metric.title}: claimed >= {ratio.least:g}x in {plural(ratio.pairs, 'pair')} of runs"
    if not count:
        return [head, f"{INDENT}The runs are not in these results."]
    looks = [
        judge_ratio(a[:k], b[:k], direction=metric.direction, least=ratio.least, rule=rule)
        for k in range(1, count + 1)
    ]
    rows = [
        {
            "pair": str(k),
            "order": "a, b" if k % 2 else "b, a",
            "a": quantity(ratio.metric, one.value),
            "b": quantity(ratio.metric, other.value),
            "ratio": times(look.ratio),
            "interval": f"{times(look.low)} to {times(look.high)}" if k >= FIRST_LOOK else "",
            "says": _says(look),
        }
        for k, (look, one, other) in enumerate(zip(looks, a, b, strict=False), start=1)
    ]
    columns = ["pair", "order", "a", "b", "ratio", "interval", "says"]
    shown = table(columns, rows, width - 2, left=["order", "says"], spare=["order", "ratio"])
    noise = (
        f"The ratio and its interval are of all pairs so far; one pair's ratio differs from the "
        f"next by {percent(looks[-1].sd)} (standard deviation). The claim is proven when the whole "
        f"interval reaches it, refuted when the interval ends below it, from pair {FIRST_LOOK} on."
    )
    folders = [f"{INDENT}{run.folder}" for run in verdict.runs]
    said = fold(noise, width, first=INDENT, rest=INDENT)
    return [head, *said, *(f"{INDENT}{line}" for line in shown), *folders]


def _says(look: Ratio) -> str:
    words = {Decision.PASS: "proven", Decision.FAIL: "refuted", Decision.MORE: "one more"}
    return words.get(look.decision, "undecided")

"""Format the error guarantees of verdicts, and advice on how to make a provisional one final."""

from __future__ import annotations

from pytest_mlperf.core.guarantees import APPEND_OPTIONS, MISSING_OPTION, Guarantee
from pytest_mlperf.core.numbers import percent, plural
from pytest_mlperf.core.verdict import MetricVerdict, Outcome, Verdict, deciding_metric
from pytest_mlperf.judge.inputs import DAYS
from pytest_mlperf.judge.robustness import Why

FALSE_ALARM_PROMISE = "false alarms at most 1 %"

LIMIT_PROMISE = f"{FALSE_ALARM_PROMISE}, misses of a regression as large as the limit at most 5 %"

BELOW_LIMIT_PROMISE = "a smaller regression may pass or fail"

EXPECTED_RATIO = 0.8
"""Ratio of session to run deviation up to which rule R keeps its error rates: with 0.4 % and 0.5 %,
0.5 % of unchanged cases fail and 3 % of drops pass."""


def short_guarantee(guarantee: Guarantee) -> str:
    """Return a guarantee as a short text for a table."""
    counts = f"{plural(guarantee.runs, 'run')} on {plural(guarantee.days, 'day')}"
    end = f", final until {guarantee.final_until}" if guarantee.final_until else ""
    return counts + (", too old" if guarantee.lacks == "old" else end)


def renewal(guarantee: Guarantee) -> str:
    """Return ", final until DAY (then renew it: ...)"; "" if the guarantee has no last day."""
    until = guarantee.final_until
    return f", final until {until} (then renew it: {APPEND_OPTIONS})" if until else ""


def guarantee_text(guarantee: Guarantee) -> str:
    """Return a guarantee and its conditions as text."""
    if guarantee.lacks is None:
        return f"{LIMIT_PROMISE}; {BELOW_LIMIT_PROMISE}{renewal(guarantee)}"
    sd = guarantee.run_sd
    most = percent(EXPECTED_RATIO * sd) if sd else "that of runs"
    holds = f"an ok is provisional: it holds if day-to-day variation is below {most}"
    return f"{FALSE_ALARM_PROMISE}; {holds}; {_measuring(guarantee, guarantee.lacks)}"


def guarantee_of(guarantee: Guarantee, metric: MetricVerdict, *, provisional: bool) -> str:
    """Return the guarantee for one metric as text, with the condition if it is not final."""
    lacking = metric.lacking_sessions
    if lacking is None or metric.robust_to is None:
        return f"{LIMIT_PROMISE}; {BELOW_LIMIT_PROMISE}"
    condition = f"if day-to-day variation is below {percent(metric.robust_to)}"
    if provisional:  # a note next to it says what would settle it
        return f"{FALSE_ALARM_PROMISE}; provisional: true {condition}"
    return f"{LIMIT_PROMISE}, {condition}; {_measuring(guarantee, lacking)}"


def _measuring(guarantee: Guarantee, lacks: Why) -> str:
    if lacks == "old":
        return f"renew it by running the baseline's build on another day: {APPEND_OPTIONS}"
    missing = DAYS - guarantee.days
    if missing <= 0:
        return "to measure it, run on several other days: pytest-mlperf calibrate"
    return f"to measure it, run on {plural(missing, 'more day')} with {MISSING_OPTION}"


CALIBRATE = "pytest-mlperf calibrate"

_BUILD = "compare with the old build in one session: --mlperf-against REF"


def final_word(verdict: Verdict) -> str | None:
    """Return why a verdict is PROVISIONAL and how to make it final; None for other outcomes."""
    metric = deciding_metric(verdict.metrics, Outcome.PROVISIONAL)
    if verdict.outcome is not Outcome.PROVISIONAL or metric is None:
        return None
    if verdict.baseline.source and not verdict.baseline.file:
        return None  # runs of another tool, which no option measures again
    until = verdict.baseline.guarantee.final_until if verdict.baseline.guarantee else None
    return f"{_lacks(metric, until)}: {_cure(metric)}"


def _lacks(metric: MetricVerdict, until: str | None) -> str:
    has = metric.baseline.days
    if metric.baseline.lacks == "old":
        return f"baseline too old since {until}" if until else "baseline of one day"
    if metric.baseline.lacks is None:
        return "the baseline's sessions vary too much"
    if has < DAYS:
        return f"baseline has {has} of {DAYS} days"
    return f"{plural(has, 'day')} of baseline do not show the day-to-day variation"


def _cure(metric: MetricVerdict) -> str:
    if metric.baseline.lacks != "few sessions":
        steps = f"run the baseline's build again on another day ({APPEND_OPTIONS})"
    elif metric.baseline.days < DAYS:
        more = plural(DAYS - metric.baseline.days, "more day")
        steps = f"run the baseline's build with {MISSING_OPTION} on {more}"
    else:
        steps = f"calibrate on other days ({CALIBRATE})"
    return f"{steps}, or {_BUILD}" if metric.direction == "drop" else steps

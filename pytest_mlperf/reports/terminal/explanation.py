"""Explain a verdict: its runs, the baseline's runs, accuracy, machine and engine."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from pytest_mlperf.core.baseline import BaselineRun
from pytest_mlperf.core.case import Kind, Scenario
from pytest_mlperf.core.metrics import METRICS, title
from pytest_mlperf.core.numbers import limit, percent, plural, points, quantity
from pytest_mlperf.core.results import CaseResult
from pytest_mlperf.core.rulings.ruling import rule_values
from pytest_mlperf.core.search import load_text
from pytest_mlperf.core.verdict import MetricVerdict, Outcome, PairedVerdict, Verdict
from pytest_mlperf.reports.promises import renewal
from pytest_mlperf.reports.rows import machine_speed_text
from pytest_mlperf.reports.sentences import search_result, sentence
from pytest_mlperf.reports.terminal.layout import fold, table

INDENT = "  "


def evidence(
    result: CaseResult,
    baseline: Sequence[BaselineRun],
    judged: Sequence[Sequence[str]],
    width: int,
    likely: Sequence[str] = (),
) -> list[str]:
    """Format the evidence for a verdict in numbered sections.

    Args:
        baseline: Runs in today's baseline record; empty without a baseline.
        judged: For each gated metric, a section on how it was decided.
        likely: A section on the likely causes.
    """
    verdict = result.verdict
    sections: list[Sequence[str]] = []
    by_runs = verdict.kind.compares_runs
    if by_runs:
        sections.append(_measured(verdict, width))
    if verdict.outcome is Outcome.RECORDED:
        sections.append(_recorded(verdict))
    elif by_runs:
        sections += [_compared(verdict, baseline, width), *judged]
    elif verdict.kind == Kind.PAIR:
        sections += judged
    sections += [_accuracy(verdict, width), likely]
    return [
        line
        for number, (head, *rest) in enumerate(filter(None, sections), start=1)
        for line in ("", f"{number}. {head}", *rest)
    ]


def _measured(verdict: Verdict, width: int) -> list[str]:
    if not verdict.runs:
        head = "No run could be judged: the first lines say why."
        return [head, *_invalid(verdict, width)]
    names = [m.metric for m in verdict.metrics if m.metric in METRICS and m.outcome is not None]
    names = names or list(verdict.runs[0].metrics)[:2]
    titles = {name: METRICS[name].title for name in names if name in METRICS}
    offline = verdict.case.scenario == Scenario.OFFLINE
    counted = "samples" if offline else "queries"
    rows = [
        {
            "run": str(number),
            "started (UTC)": _minute(run.started),
            counted: f"{run.samples if offline else run.queries:,}",
            "seconds": f"{run.duration_s:.1f}",
            **{
                title: quantity(name, run.metrics[name]) if name in run.metrics else ""
                for name, title in titles.items()
            },
            "note": "latency limit missed" if run.limit_missed else "",
        }
        for number, run in enumerate(verdict.runs, start=1)
    ]
    left, spare = ["started (UTC)", "note"], ["seconds", counted]
    shown = table(rows, width, left=left, spare=spare, indent=INDENT)
    folders = [f"{INDENT}run {n}: {run.folder}" for n, run in enumerate(verdict.runs, start=1)]
    head = f"Measured: {plural(len(verdict.runs), 'run')}, each in a fresh process"
    if tries := sum(len(run.search.tried) for run in verdict.runs if run.search):
        of = f"of {plural(tries, 'run')}"
        many = f"a search {of}" if len(verdict.runs) == 1 else f"{len(verdict.runs)} searches {of}"
        head = f"Measured: {many}, each in a fresh process"
    return [head, *shown, *folders, *_invalid(verdict, width), *_searched(verdict, width)]


def _invalid(verdict: Verdict, width: int) -> list[str]:
    lines = []
    for run in verdict.invalid_runs:
        reasons = "; ".join(sentence(reason.text) for reason in run.invalid)
        text = f"INVALID {_minute(run.started)}: {reasons}"
        lines += fold(text, width, first=INDENT, rest=INDENT * 2)
        lines.append(f"{INDENT * 2}{run.folder}")
    return lines


def _searched(verdict: Verdict, width: int) -> list[str]:
    rows = [
        {
            "search": str(number) if place == 0 else "",
            "offered": load_text(one.rate, run.search.whole),
            "nearest its limit": f"{one.metric} {quantity(one.metric, one.value)}",
            "limit": quantity(one.metric, one.limit),
            "held": "yes" if one.held else "no",
        }
        for number, run in enumerate(verdict.runs, start=1)
        if run.search
        for place, one in enumerate(run.search.tried)
    ]
    if not rows:
        return []
    words = [search_result(run.search) for run in verdict.runs if run.search]
    lines = [line for text in words for line in fold(text, width, first=INDENT, rest=INDENT * 2)]
    left = ["search", "nearest its limit", "held"]
    return [*lines, *table(rows, width, left=left, indent=INDENT)]


def _recorded(verdict: Verdict) -> list[str]:
    proven = [
        f"{INDENT}{title(m.metric)}: can prove changes of {percent(m.baseline.detectable)}, limit "
        f"{limit(m.metric, m.limit)}"
        for m in verdict.metrics
        if m.baseline.detectable is not None and m.limit
    ]
    return ["Recorded as the baseline, not judged", *proven]


def _compared(verdict: Verdict, baseline: Sequence[BaselineRun], width: int) -> list[str]:
    file = verdict.baseline.file
    if not baseline:
        if file is None:
            return []
        reason = (
            "holds no record of this machine" if verdict.baseline.source is None else "is not here"
        )
        return [f"Compared with nothing: the baseline file {reason}", f"{INDENT}{file}"]
    sessions = [list(group) for _, group in groupby(baseline, key=lambda run: run.session)]
    judged = [m.metric for m in verdict.metrics if m.outcome is not None and m.metric in METRICS]
    lines = []
    for runs in sessions:
        for metric in judged or list(runs[0].metrics)[:1]:
            shown = ", ".join(quantity(metric, value.value) for value in rule_values(runs, metric))
            if shown:
                text = f"{_minute(runs[0].started)}  {METRICS[metric].title}: {shown}"
                lines += fold(text, width, first=INDENT, rest=INDENT * 3)
    counts = f"{plural(len(baseline), 'run')} in {plural(len(sessions), 'session')}"
    counts += renewal(verdict.baseline.guarantee) if verdict.baseline.guarantee else ""
    return [*fold(f"Compared with {counts}", width), f"{INDENT}{file}", *lines]


def _accuracy(verdict: Verdict, width: int) -> list[str]:
    accuracy = verdict.accuracy
    if accuracy is None:
        return []
    shown = ", ".join(f"{name} {score:.3f}" for name, score in accuracy.scores.items())
    head = f"Accuracy: {shown} on {accuracy.samples:,} samples ({accuracy.source})"
    lines = []
    if verdict.kind == Kind.ACCURACY:
        judged = [metric for metric in verdict.metrics if metric.outcome is not None]
        first = [sentence(verdict.gate.note).capitalize()] if verdict.gate else []
        lines = [line for text in (*first, *map(_gate, judged)) for line in wrapped(text, width)]
    elif verdict.kind == Kind.PERFORMANCE:
        lines = wrapped("Judged by test_accuracy; a failed gate voids this verdict.", width)
    if answers := accuracy.answers_in_words:
        lines += wrapped(f"Answers: {answers}", width)
    lines += [line for paired in verdict.paired for line in wrapped(_paired(paired), width)]
    return [head, *lines, f"{INDENT}{accuracy.folder}"]


def _paired(paired: PairedVerdict) -> str:
    counts = (
        f"{paired.metric}: {paired.samples:,} samples compared in pairs, {paired.changed:,} "
        "of them with another value"
    )
    if paired.outcome is None:
        return f"{counts}; the amount of output is only shown, not judged"
    if paired.worst is None or paired.best is None or paired.bound is None:
        return f"{counts}; no sample can be compared"
    plain = "" if paired.p is None else f"; p = {paired.p:.2g} by the plain paired test"
    return (
        f"{counts}; change at worst {points(paired.worst)} points, at best {points(paired.best)}: "
        f"the test passes if the worst is within {points(paired.bound)}, and it is a drop if the "
        f"best is {'above' if paired.lower else 'below'} 0{plain}"
    )


def _gate(metric: MetricVerdict) -> str:
    if metric.baseline.value is None or metric.limit is None or metric.now is None:
        return f"Gate: {metric.metric} {metric.outcome}"
    needed = metric.baseline.value * (1 - metric.limit)
    kept = metric.outcome is not Outcome.GATE_FAIL
    below = (metric.now <= needed) == kept and metric.now != needed
    must = "must not exceed" if below else "must reach"
    words = ("kept" if below else "reached") if kept else "missed"
    return (
        f"Gate: {metric.metric} {must} {needed:.3f}, {percent(1 - metric.limit)} of the "
        f"reference {metric.baseline.value:.3f}; {words} by {abs(metric.now - needed):.3f}"
    )


def environment(verdict: Verdict, width: int) -> list[str]:
    """Return lines on machine, engine and data of a verdict, and on its micro-benchmark."""
    subject = verdict.subject
    if subject is None:
        return []
    identity = ", ".join(f"{name} {value}" for name, value in subject.identity.items())
    lines = wrapped(identity, width)
    for name, value in (*subject.fingerprint.items(), *subject.surroundings.items()):
        lines += fold(f"{name} {value}", width, first=INDENT, rest=INDENT * 2)
    if speed := machine_speed_text(verdict):
        lines += fold(speed, width, first=INDENT, rest=INDENT * 2)
    return ["Measured on and with", *lines]


def wrapped(text: str, width: int) -> list[str]:
    """Return a text as indented lines for a section."""
    return fold(text, width, first=INDENT, rest=INDENT)


def _minute(started: str) -> str:
    return started[:16].replace("T", " ")

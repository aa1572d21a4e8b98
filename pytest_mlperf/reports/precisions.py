"""Build the precision table: each entry's scores and speed beside those of a reference entry."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import PurePath
from statistics import fmean

from pytest_mlperf.core.case import Case
from pytest_mlperf.core.metrics import COUNTS, METRICS, Direction, gated_metrics
from pytest_mlperf.core.results import CaseResult, Results
from pytest_mlperf.core.verdict import Outcome, Verdict, worst
from pytest_mlperf.reports.precisions_model import Block, Entry, Score, Speed

LOADED = frozenset({"Server", "Interactive"})
"""Scenarios whose latencies depend on the rate that is offered."""

UNMEASURED = frozenset({Outcome.ERROR, Outcome.INVALID})
"""A performance test that ended so has no figure to show."""


Tests = Mapping[str, CaseResult]
"""The tests of one case by their kind."""


def blocks_of(results: Results, reference: str | None = None) -> list[Block]:
    """Return the blocks of a session in the order of its tests.

    Args:
        results: The session.
        reference: Precision, engine entry, or both ("torch-bf16") to compare with. Where a block
            has no such entry, and by default, it is fp32, else the widest precision.
    """
    cases: dict[Case, dict[str, CaseResult]] = defaultdict(dict)
    for result in results.cases:
        if result.verdict.kind in {"accuracy", "performance"}:
            cases[result.verdict.case][result.verdict.kind] = result
    groups: dict[tuple[str, str, str, str], list[Case]] = defaultdict(list)
    for case, tests in cases.items():
        profile = next(iter(tests.values())).profile
        groups[case.workload, case.scenario, case.accelerator, profile].append(case)
    return [
        _block(results.run, profile, against, [(case, cases[case]) for case in group])
        for (_, _, _, profile), found in groups.items()
        for against, group in _by_reference(sorted(found, key=_width), reference)
    ]


def _width(case: Case) -> tuple[int, int]:
    """Return the place of a precision: more bits first, bf16 before fp16 and fp8 before int8."""
    bits = re.search(r"\d+", case.precision)
    kinds = ("bf", "fp", "int")
    kind = next((i for i, name in enumerate(kinds) if case.precision.startswith(name)), len(kinds))
    return -int(bits[0]) if bits else 0, kind


def _by_reference(
    cases: Sequence[Case], wanted: str | None
) -> Iterator[tuple[Case, Sequence[Case]]]:
    """Yield reference entries, each with what is compared with it.

    An engine entry that has the reference precision and others is compared with itself, so that a
    ratio is about the precision and not about the engine; all others are compared with the first.
    """
    named = [c for c in cases if wanted in {c.precision, c.engine, f"{c.engine}-{c.precision}"}]
    first = (named or [c for c in cases if c.precision == "fp32"] or cases)[0]
    own: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        own[case.engine].append(case)
    apart = {
        engine: next((c for c in found if c.precision == first.precision), None)
        for engine, found in own.items()
        if len(found) > 1 and engine != first.engine and wanted in {None, first.precision}
    }
    yield first, [case for case in cases if apart.get(case.engine) is None]
    for engine, reference in apart.items():
        if reference is not None:
            yield reference, own[engine]


def _block(session: str, profile: str, against: Case, cases: Sequence[tuple[Case, Tests]]) -> Block:
    tests = dict(cases)
    metric = _metric(against, tests.values())
    entries = {case: _entry(case, own, against, tests[against], metric) for case, own in cases}
    return Block(
        session=session,
        workload=against.workload,
        scenario=against.scenario,
        accelerator=against.accelerator,
        profile=profile,
        reference=entries[against],
        entries=tuple(entries.values()),
        metric=metric,
    )


def _metric(case: Case, tests: Iterable[Tests]) -> str:
    """Return what speed is in a scenario: what a claim in [[pairs]] is about by default."""
    runs = chain.from_iterable(test.verdict.runs for own in tests for test in own.values())
    tokens = any("ttft_p50" in run.metrics for run in runs)
    return gated_metrics(case.scenario, tokens=tokens)[0]


def _entry(case: Case, own: Tests, against: Case, reference: Tests, metric: str) -> Entry:
    accuracy, performance = own.get("accuracy"), own.get("performance")
    measured = accuracy.verdict.accuracy if accuracy else None
    before = reference.get("accuracy")
    is_reference = case == against
    speed, notes = None, list(_notes(own))
    if performance:
        speed = _speed(performance, None if is_reference else reference.get("performance"), metric)
        other = reference.get("performance")
        if other and _other_rate(performance, other):
            notes.append(
                f"offered {performance.target_qps:g}/s, the reference {other.target_qps:g}/s: "
                "latencies at different rates cannot be compared"
            )
    if speed and is_reference:
        speed = Speed(metric=metric, value=speed.value, runs=speed.runs, ratio=1.0)
    return Entry(
        engine=case.engine,
        precision=case.precision,
        scores=_scores(accuracy.verdict, None if is_reference or not before else before.verdict)
        if accuracy
        else (),
        accuracy=accuracy.verdict.outcome if accuracy else None,
        samples=measured.samples if measured else None,
        total=measured.total or None if measured else None,
        speed=speed,
        performance=performance.verdict.outcome if performance else None,
        notes=tuple(dict.fromkeys(notes)),
    )


def _notes(own: Tests) -> Iterator[str]:
    for result in own.values():
        if result.verdict.outcome in UNMEASURED:
            yield f"{result.verdict.outcome} {result.verdict.headline}"
        own_gate = result.verdict.gate if result.verdict.kind == "accuracy" else None
        if own_gate is not None and not own_gate.evaluated:
            yield own_gate.in_words
        if result.handicap:
            yield f"measured with --mlperf-handicap {result.handicap:.0%}"
        if result.pretended:
            yield f"{result.verdict.case.accelerator} was only pretended"
        if result.techniques:
            yield f"{result.division} division: {', '.join(result.techniques)}"


# --- scores ----------------------------------------------------------------------------------


def _scores(verdict: Verdict, before: Verdict | None) -> tuple[Score, ...]:
    """Return the scores that were judged, all of them where none was."""
    measured = dict(verdict.accuracy.scores) if verdict.accuracy else {}
    measured |= {m.metric: m.now for m in verdict.metrics if m.now is not None}
    judged = [m.metric for m in verdict.metrics if m.outcome is not None]
    judged += [p.metric for p in verdict.paired if p.outcome is not None]
    names = dict.fromkeys(judged or [name for name in measured if name not in COUNTS])
    return tuple(_score(n, measured[n], verdict, before) for n in names if n in measured)


def _score(name: str, value: float, verdict: Verdict, before: Verdict | None) -> Score:
    gate = next((m for m in verdict.metrics if m.metric == name), None)
    paired = next((p for p in verdict.paired if p.metric == name), None)
    words = [m.outcome for m in (gate, paired) if m is not None and m.outcome is not None]
    lower = name in verdict.accuracy.lower if verdict.accuracy else False
    needed = None
    if gate is not None and gate.baseline is not None and gate.limit is not None:
        # Of a window the verdict tells one side: that where scores get better is no gate to fear.
        feared = gate.limit < 0 if lower else gate.limit > 0
        needed = gate.baseline * (1 - gate.limit) if feared else None
    against = paired if before is not None and _rests_on(verdict, before.case) else None
    change = against.change if against else _plain_change(name, value, verdict, before)
    return Score(
        metric=name,
        value=value,
        needed=needed,
        change=change,
        low=against.low if against else None,
        high=against.high if against else None,
        outcome=worst(words) if words else None,
        lower=lower,
    )


def _rests_on(verdict: Verdict, reference: Case) -> bool:
    """Whether the paired comparison was with the scores of this entry: its file tells."""
    file = PurePath(verdict.baseline_file or "").name
    return file == f"{reference.engine}.{reference.precision}.json"


def _plain_change(
    name: str, value: float, verdict: Verdict, before: Verdict | None
) -> float | None:
    """Return the difference of two scores of the same samples: passes take them in one order."""
    ours, theirs = verdict.accuracy, before.accuracy if before else None
    if ours is None or theirs is None or name not in theirs.scores:
        return None
    same = (ours.samples, ours.total) == (theirs.samples, theirs.total)
    return value - theirs.scores[name] if same else None


# --- speed -----------------------------------------------------------------------------------


def _values(result: CaseResult | None, metric: str) -> list[float]:
    """Return the metric of every run that may be shown; none after an error."""
    if result is None or result.verdict.outcome in UNMEASURED:
        return []
    valid = [run for run in result.verdict.runs if not run.invalid]
    return [run.metrics[metric] for run in valid if run.metrics.get(metric, 0.0) > 0.0]


def _other_rate(one: CaseResult, other: CaseResult) -> bool:
    return one.verdict.case.scenario in LOADED and one.target_qps != other.target_qps


def _speed(own: CaseResult, before: CaseResult | None, metric: str) -> Speed | None:
    """Return the speed of an entry, with its ratio where there is something to compare with."""
    now, then = _values(own, metric), _values(before, metric)
    if not now:
        return None
    if not then or (before is not None and _other_rate(own, before)):
        return Speed(metric=metric, value=_mean(now), runs=len(now))
    if METRICS[metric].direction is Direction.LOWER:
        best, worst_, ratio = max(then) / min(now), min(then) / max(now), _mean(then) / _mean(now)
    else:
        best, worst_, ratio = max(now) / min(then), min(now) / max(then), _mean(now) / _mean(then)
    several = min(len(now), len(then)) > 1
    return Speed(
        metric=metric,
        value=_mean(now),
        runs=len(now),
        ratio=ratio,
        low=worst_ if several else None,
        high=best if several else None,
    )


def _mean(values: Sequence[float]) -> float:
    """Return the geometric mean."""
    return math.exp(fmean(map(math.log, values)))

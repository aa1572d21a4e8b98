"""Compare the accuracy and speed of precisions with those of a reference engine entry.

Ratios of speed are shown but never judged; [[pairs]] in a suite test a claim about a ratio.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import PurePath
from statistics import geometric_mean

from pytest_mlperf.core.case import Case, Kind
from pytest_mlperf.core.metrics import COUNTS, METRICS, gated_metrics, title
from pytest_mlperf.core.numbers import plural, points, quantity, times
from pytest_mlperf.core.results import CaseResult, Results
from pytest_mlperf.core.verdict import Outcome, Verdict, worst
from pytest_mlperf.judge.inputs import Direction
from pytest_mlperf.reports.rows import number_text, span
from pytest_mlperf.reports.sentences import first_line, sentence
from pytest_mlperf.reports.terminal.layout import Row, TextTable, fold, paragraphs


@dataclass(frozen=True, kw_only=True)
class Score:
    """Hold one score of an engine entry; differences are in the score's own points.

    Attributes:
        needed: Score that the gate requires; None if no gate was evaluated.
        change: Difference from the reference entry; None for the reference entry itself, and if
            different samples were judged.
        low, high: The bounds that decided the paired comparison with the reference entry.
        outcome: The worse outcome of gate and paired test (rule A); None if neither was evaluated.
        lower: Whether the score is better when lower.
    """

    metric: str
    value: float
    needed: float | None = None
    change: float | None = None
    low: float | None = None
    high: float | None = None
    outcome: Outcome | None = None
    lower: bool = False


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Hold the throughput or latency of an engine entry.

    Attributes:
        value: Geometric mean of the runs, SI units.
        ratio: Ratio to the reference entry, above 1 if better for either direction of the metric;
            None if the two are not comparable.
        low, high: Worst and best ratio of a run to a run of the reference entry; None unless both
            entries have several runs.
    """

    value: float
    ratio: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class PrecisionEntry:
    """Hold one engine entry in one precision.

    Attributes:
        scores: Gated scores of its accuracy test, or all scores if none is gated.
        accuracy: Outcome of its accuracy test; None if it did not run.
        part: "128 of 500": samples scored, of those in the data set; "" if all were scored.
        performance: Outcome of its performance test; None if it did not run.
    """

    case: Case
    scores: tuple[Score, ...] = ()
    accuracy: Outcome | None = None
    part: str = ""
    speed: Speed | None = None
    performance: Outcome | None = None
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Engine name and precision: "vllm-fp8"."""
        return f"{self.case.engine}-{self.case.precision}"


@dataclass(frozen=True, kw_only=True)
class Block:
    """Hold the entries to compare: same workload, scenario, accelerator and profile.

    Attributes:
        reference: The reference entry, one of `entries`.
        entries: All entries, the widest precision first.
        metric: Name of the metric in `PrecisionEntry.speed`.
    """

    profile: str
    reference: PrecisionEntry
    entries: tuple[PrecisionEntry, ...]
    metric: str

    def label(self, entry: PrecisionEntry) -> str:
        """Return an entry's precision, or its full name if the block has several engines."""
        several = len({each.case.engine for each in self.entries}) > 1
        return entry.name if several else entry.case.precision

    @property
    def workload(self) -> str:
        """Workload, scenario, accelerator and profile: "resnet50 Offline on H200"."""
        profile = "" if self.profile == "quick" else f", {self.profile}"
        case = self.reference.case
        return f"{case.workload} {case.scenario} on {case.accelerator}{profile}"

    @property
    def against(self) -> str:
        """Label of the engine entry with which the block's other entries are compared."""
        return self.label(self.reference)


UNMEASURED = frozenset({Outcome.ERROR, Outcome.INVALID})
"""Outcomes of a performance test without a figure to show."""


Tests = Mapping[str, CaseResult]
"""The tests of one case by their kind."""


def precision_section(
    results: Iterable[CaseResult], *, whole: bool = False
) -> tuple[list[TextTable], list[str]]:
    """Return a table that compares the precisions of each engine, and remarks on it.

    Args:
        whole: Name workload, engine, precision and reference in every row, so that rows can be
            sorted.
    """
    blocks = [
        block
        for block in blocks_of(results)
        if len({entry.case.engine for entry in block.entries}) < len(block.entries)
    ]
    return [precision_table(blocks, whole=whole)] if blocks else [], remarks(blocks)


def blocks_of(results: Iterable[CaseResult]) -> list[Block]:
    """Return a block per group of cases that differ only in engine or precision, in test order."""
    cases: dict[Case, dict[str, CaseResult]] = defaultdict(dict)
    for result in results:
        if result.verdict.kind in {Kind.ACCURACY, Kind.PERFORMANCE}:
            cases[result.verdict.case][result.verdict.kind] = result
    groups: dict[tuple[str, str, str, str], list[Case]] = defaultdict(list)
    for case, tests in cases.items():
        profile = next(iter(tests.values())).profile
        groups[case.workload, case.scenario, case.accelerator, profile].append(case)
    return [
        _block(profile, against, [(case, cases[case]) for case in group])
        for (_, _, _, profile), every in groups.items()
        for against, group in _by_reference(sorted(every, key=_precision_key))
    ]


def _precision_key(case: Case) -> tuple[int, int]:
    """Return a case's sort key by precision: more bits first, then bf before fp before int."""
    bits = re.search(r"\d+", case.precision)
    kinds = ("bf", "fp", "int")
    kind = next((i for i, name in enumerate(kinds) if case.precision.startswith(name)), len(kinds))
    return -int(bits[0]) if bits else 0, kind


def _by_reference(cases: Sequence[Case]) -> Iterator[tuple[Case, Sequence[Case]]]:
    """Yield each reference case with the cases that are compared with it.

    The reference precision is fp32, else the widest one. An engine that has it and others is
    compared with itself, so that the ratio shows the precision and not the engine. Cases of other
    engines are compared with the first reference.
    """
    first = next((case for case in cases if case.precision == "fp32"), cases[0])
    by_engine: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        by_engine[case.engine].append(case)
    apart = {
        engine: next((case for case in group if case.precision == first.precision), None)
        for engine, group in by_engine.items()
        if len(group) > 1 and engine != first.engine
    }
    yield first, [case for case in cases if apart.get(case.engine) is None]
    for engine, reference in apart.items():
        if reference is not None:
            yield reference, by_engine[engine]


def _block(profile: str, against: Case, cases: Sequence[tuple[Case, Tests]]) -> Block:
    tests = dict(cases)
    runs = chain.from_iterable(one.verdict.runs for own in tests.values() for one in own.values())
    tokens = any("ttft_p50" in run.metrics for run in runs)
    metric = gated_metrics(against.scenario, tokens=tokens)[0]  # as of a claim in [[pairs]]
    entries = {case: _entry(case, own, against, tests[against], metric) for case, own in cases}
    return Block(
        profile=profile, reference=entries[against], entries=tuple(entries.values()), metric=metric
    )


def _entry(
    case: Case, tests: Tests, against: Case, reference: Tests, metric: str
) -> PrecisionEntry:
    accuracy, performance = tests.get(Kind.ACCURACY), tests.get(Kind.PERFORMANCE)
    others = {} if case == against else reference
    measured = accuracy.verdict.accuracy if accuracy else None
    part = measured is not None and measured.samples < measured.total
    speed, notes = None, list(_notes(tests))
    if performance:
        other = others.get(Kind.PERFORMANCE)
        speed = _speed(performance, other, metric)
        if other and _other_rate(performance, other):
            notes.append(
                f"measured at {performance.target_qps:g}/s, the reference at "
                f"{other.target_qps:g}/s: "
                "latencies at different rates cannot be compared"
            )
    if speed and case == against:
        speed = replace(speed, ratio=1.0)
    return PrecisionEntry(
        case=case,
        scores=_scores(accuracy.verdict, others.get(Kind.ACCURACY)) if accuracy else (),
        accuracy=accuracy.verdict.outcome if accuracy else None,
        part=f"{measured.samples} of {measured.total}" if measured and part else "",
        speed=speed,
        performance=performance.verdict.outcome if performance else None,
        notes=tuple(dict.fromkeys(notes)),
    )


def _notes(tests: Tests) -> Iterator[str]:
    for result in tests.values():
        if result.verdict.outcome in UNMEASURED:
            yield first_line(result.verdict)
        own_gate = result.verdict.gate if result.verdict.kind == Kind.ACCURACY else None
        if own_gate is not None and not own_gate.evaluated:
            yield sentence(own_gate.note)
        if result.handicap:
            yield f"measured with --mlperf-handicap {result.handicap:.0%}"
        if result.pretended:
            yield f"{result.verdict.case.accelerator} was only pretended"
        if result.techniques:
            yield f"{result.division} division: {', '.join(result.techniques)}"


def _scores(verdict: Verdict, reference: CaseResult | None) -> tuple[Score, ...]:
    before = reference.verdict if reference else None
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
    if gate is not None and gate.baseline.value is not None and gate.limit is not None:
        # Of a window the verdict tells one side: that where scores get better is no gate to fear.
        feared = gate.limit < 0 if lower else gate.limit > 0
        needed = gate.baseline.value * (1 - gate.limit) if feared else None
    # A paired comparison was with the scores of the entry that its file is named after.
    file = f"{before.case.engine}.{before.case.precision}.json" if before else None
    against = paired if PurePath(verdict.baseline.file or "").name == file else None
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


def _plain_change(
    name: str, value: float, verdict: Verdict, before: Verdict | None
) -> float | None:
    ours, theirs = verdict.accuracy, before.accuracy if before else None
    if ours is None or theirs is None or name not in theirs.scores:
        return None
    same = (ours.samples, ours.total) == (theirs.samples, theirs.total)
    return value - theirs.scores[name] if same else None


def _values(result: CaseResult | None, metric: str) -> list[float]:
    if result is None or result.verdict.outcome in UNMEASURED:
        return []
    valid = [run for run in result.verdict.runs if not run.invalid]
    return [run.metrics[metric] for run in valid if run.metrics.get(metric, 0.0) > 0.0]


def _other_rate(one: CaseResult, other: CaseResult) -> bool:
    return one.verdict.case.scenario.rate_is_condition and one.target_qps != other.target_qps


def _speed(result: CaseResult, before: CaseResult | None, metric: str) -> Speed | None:
    now, then = _values(result, metric), _values(before, metric)
    if not now:
        return None
    if not then or (before is not None and _other_rate(result, before)):
        return Speed(value=geometric_mean(now))
    over, under = (then, now) if METRICS[metric].direction is Direction.LOWER else (now, then)
    several = min(len(now), len(then)) > 1
    return Speed(
        value=geometric_mean(now),
        ratio=geometric_mean(over) / geometric_mean(under),
        low=min(over) / max(under) if several else None,
        high=max(over) / min(under) if several else None,
    )


COLUMNS = (
    *("workload", "engine", "precision", "against", "metric", "score", "needed"),
    *("points", "interval", "samples", "accuracy"),
)

CHANGE = (
    "points: change of the score against the reference (fp32, else the widest precision of the "
    "engine); with an interval: compared sample by sample"
)
SPEED = (
    "speed: times better than the reference in the same session; not judged ([[pairs]] tests a "
    "claim about it)"
)
SPREAD_NOTE = "spread: lowest and highest ratio of two runs; it is not a confidence interval"


def precision_table(blocks: Sequence[Block], *, whole: bool = False) -> TextTable:
    """Format blocks as a table with a row per score; `whole` repeats all names in every row."""
    several = len(blocks) > 1
    about = "their reference" if several else f"{blocks[0].against}: {blocks[0].workload}"
    return TextTable(
        heading=f"Precisions against {about}",
        columns=(*COLUMNS, *dict.fromkeys(title(one.metric) for one in blocks), "speed", "spread"),
        rows=[row for block in blocks for row in _rows(block, several=several, whole=whole)],
        left=("workload", "engine", "precision", "against", "metric", "accuracy"),
        spare=("needed", "samples", "spread", "interval", "against"),
    )


def _rows(block: Block, *, several: bool, whole: bool) -> Iterator[Row]:
    for entry in block.entries:
        words = {score.outcome for score in entry.scores}
        of_test = str(entry.accuracy or "") if entry.accuracy not in words else ""
        is_reference = entry is block.reference and not whole
        names: Row = {
            "workload": block.workload if whole or (several and entry is block.entries[0]) else "",
            "against": block.reference.name if (whole or several) and not is_reference else "",
            "engine": entry.case.engine,
            "precision": entry.case.precision,
        }
        for index, score in enumerate(entry.scores or (None,)):
            word = str(score.outcome or "") if score else ""
            yield {
                **(_score_cells(score, entry) if score else {}),
                "accuracy": word if index else of_test or word,
                **(names if whole or not index else {}),
                **({} if index else _speed_cells(entry, block)),
            }


def _score_cells(score: Score, entry: PrecisionEntry) -> Row:
    return {
        "metric": title(score.metric),
        "score": number_text(score.value),
        "needed": number_text(score.needed),
        "points": number_text(score.change, points),
        "interval": span(score.low, score.high, points),
        "samples": entry.part,
    }


def _speed_cells(entry: PrecisionEntry, block: Block) -> Row:
    speed = entry.speed
    if speed is None:
        return {title(block.metric): str(entry.performance or "")}
    return {
        title(block.metric): quantity(block.metric, speed.value),
        "speed": number_text(speed.ratio, times),
        "spread": span(speed.low, speed.high, times),
    }


def remarks(blocks: Sequence[Block]) -> list[str]:
    """Return the notes below the precision table: on entries, with case ids, and on columns."""
    notes = [
        f"{entry.case.id}: {note}"
        for block in blocks
        for entry in block.entries
        for note in entry.notes
    ]
    entries = [entry for block in blocks for entry in block.entries]
    speeds = [entry.speed for entry in entries if entry.speed]
    changes = [score.change for entry in entries for score in entry.scores]
    meanings = {
        CHANGE: any(change is not None for change in changes),
        SPEED: any(speed.ratio is not None for speed in speeds),
        SPREAD_NOTE: any(speed.low is not None for speed in speeds),
    }
    return [*notes, *(text for text, needed in meanings.items() if needed)]


def origin(results: Results) -> str:
    """Return time, commit and hardware of a session as text."""
    when = results.started[:16].replace("T", " ")
    commit = f"commit {results.commit[:12]}" if results.commit else "no commit"
    return f"{when} UTC, {commit}, {'; '.join(hardware(results)) or 'hardware unknown'}"


def hardware(results: Results) -> list[str]:
    """Return each machine of a session as text: "8 x NVIDIA H200"."""
    machines: dict[str, None] = {}
    for result in results.cases:
        subject = result.verdict.subject
        identity = subject.identity if subject else {}
        if gpu := identity.get("gpu"):
            count = identity.get("gpus") or 1
            machines[f"{count} x {gpu}" if count != 1 else str(gpu)] = None
        elif cpu := identity.get("cpu"):
            cores = identity.get("cores")
            counted = f", {plural(cores, 'core')}" if isinstance(cores, int) else ""
            if isinstance(cores, float):
                counted = f", {cores:g} cores"
            machines[f"{cpu}{counted}"] = None
        elif declared := identity.get("hardware"):
            machines[f"{declared}, declared"] = None
    return list(machines)


def precision_lines(results: Results, width: int) -> list[str]:
    """Return the terminal's section on precisions; [] if there is nothing to compare."""
    tables, notes = precision_section(results.cases)
    lines: list[str] = []
    for one in tables:
        drawn = one.lines(width - 2)
        if "spread" not in drawn[0].split():
            notes = [note for note in notes if note != SPREAD_NOTE]
        lines += [*fold(one.heading, width, rest="  "), *(f"  {line}" for line in drawn)]
    if tables:
        lines += paragraphs("measured", [origin(results)], width)
    lines += paragraphs("note", notes, width)
    return lines

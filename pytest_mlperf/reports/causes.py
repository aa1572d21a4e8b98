"""List the likely causes of a changed verdict, each with its evidence."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from itertools import islice
from statistics import fmean, geometric_mean, median
from typing import Literal, NamedTuple

from pytest_mlperf.core import control, metrics
from pytest_mlperf.core.baseline import BaselineRun, Record
from pytest_mlperf.core.case import Kind
from pytest_mlperf.core.measurement import Run
from pytest_mlperf.core.numbers import change, percent, plural, points, quantity
from pytest_mlperf.core.reason import Sign, SignKey
from pytest_mlperf.core.rulings.accuracy import risen_flaws
from pytest_mlperf.core.rulings.stragglers import stragglers
from pytest_mlperf.core.server.changes import HIDDEN_SHARE, ServerChange, points_of, server_changes
from pytest_mlperf.core.stages import StageTime, stage_times
from pytest_mlperf.core.untrusted_text import some
from pytest_mlperf.core.verdict import Outcome, Verdict
from pytest_mlperf.judge.inputs import Direction
from pytest_mlperf.reports.sentences import sentence

DROPS = frozenset(
    {Outcome.PERF_DROP, Outcome.POWER_DROP, Outcome.ACC_DROP, Outcome.GATE_FAIL, Outcome.SUSPECT}
)
UNCHANGED_OUTCOMES = frozenset({Outcome.OK, Outcome.IMPROVED})


class SiblingEvidence(NamedTuple):
    """Hold a sentence on other cases, and the part that it blames: "engine", "machine" or ""."""

    says: str = ""
    points_to: Literal["engine", "machine", ""] = ""


class _Judged(NamedTuple):
    verdict: Verdict
    engine: str
    moved: int
    share: float | None
    points: float | None


class Siblings(tuple[Verdict, ...]):
    """Hold a session's verdicts, and cache their groups by engine and by accelerator."""

    @cached_property
    def groups(self) -> Mapping[tuple[str, ...], Sequence[_Judged]]:
        """Judged verdicts, once by (kind, "engine", name), once by (kind, "accelerator", class)."""
        last = {}
        for verdict in self:
            way = change_direction(verdict)
            if way is not None:
                proven = [p for p in verdict.paired if p.outcome in DROPS | {Outcome.IMPROVED}]
                last[verdict.kind, verdict.case.id] = _Judged(
                    verdict=verdict,
                    engine=_engine(verdict),
                    moved=way,
                    share=_largest(verdict),
                    points=max((abs(p.change) for p in proven), default=None),
                )
        groups: dict[tuple[str, ...], list[_Judged]] = defaultdict(list)
        for judged in last.values():
            kind = judged.verdict.kind
            groups[kind, "engine", judged.engine].append(judged)
            groups[kind, "accelerator", judged.verdict.case.accelerator].append(judged)
        return groups


class _Group(NamedTuple):
    cases: Sequence[_Judged]
    same: Sequence[_Judged]

    @property
    def counted(self) -> str:
        return f"{len(self.same)} of {len(self.cases)}"


def change_direction(verdict: Verdict) -> int | None:
    """Return -1 for a regression, +1 for an improvement, 0 for neither, None if not judged.

    The outcomes of the metrics count, because the test's own outcome may be INVALID or EXPECTED.
    """
    if verdict.ratio or verdict.outcome is Outcome.ERROR:
        return None
    outcomes = {
        verdict.outcome,
        *(metric.outcome for metric in verdict.metrics),
        *(metric.outcome for metric in verdict.paired),
    }
    if outcomes & DROPS:
        return -1
    if Outcome.INCONCLUSIVE in outcomes:
        return None
    if Outcome.IMPROVED in outcomes:
        return 1
    return 0 if outcomes & UNCHANGED_OUTCOMES else None


def sibling_changes(verdict: Verdict, others: Sequence[Verdict], direction: int) -> SiblingEvidence:
    """Return evidence on whether other cases changed in a direction too: -1 worse, +1 better."""
    session = others if isinstance(others, Siblings) else Siblings(others)
    kind, mine, here = verdict.kind, _engine(verdict), verdict.case.accelerator
    of_engine, of_machine = (
        [t for t in session.groups.get(key, ()) if t.verdict.case.id != verdict.case.id]
        for key in ((kind, "engine", mine), (kind, "accelerator", here))
    )
    engine, rest = (
        _Group(cases, [test for test in cases if test.moved == direction])
        for cases in (of_engine, [test for test in of_machine if test.engine != mine])
    )
    way = "worse" if direction < 0 else "better"
    if rest.cases and len(rest.same) * 2 > len(rest.cases):
        names = ", ".join(sorted({test.engine for test in rest.cases}))
        also = f", and {engine.counted} other cases of {mine}" if engine.cases else ""
        says = (
            f"{rest.counted} cases of other engines on {here} ({names}) got {way} as well, by "
            f"{_by(rest.same)}{also}: likely the machine, its driver, or something that all of "
            "them use"
        )
        return SiblingEvidence(says, "machine" if len(rest.same) == len(rest.cases) else "")
    if engine.same:
        workloads = [one.case.workload for one in (verdict, *(o.verdict for o in engine.cases))]
        models = "models" if len(set(workloads)) == len(workloads) else "cases"
        says = f"{mine} got {way} in {engine.counted} other {models} too, by {_by(engine.same)}"
        if not rest.cases:
            return SiblingEvidence(says)
        clear = not rest.same and len(engine.same) * 2 > len(engine.cases)
        says += f"; so did {rest.counted} cases of other engines on {here}"
        return SiblingEvidence(says, "engine" if clear else "")
    counts = {f"other cases of {mine}": engine, "cases of other engines": rest}
    unlike = [f"{group.counted} {noun}" for noun, group in counts.items() if group.cases]
    if not unlike or rest.same:
        return SiblingEvidence()
    return SiblingEvidence(f"only this case: {' and '.join(unlike)} got {way}")


def _engine(verdict: Verdict) -> str:
    fingerprint = verdict.subject.fingerprint if verdict.subject else {}
    return fingerprint.get("engine", verdict.case.engine)


def _by(cases: Sequence[_Judged]) -> str:
    shares = sorted(case.share for case in cases if case.share is not None)
    if not shares:
        scores = sorted(case.points for case in cases if case.points is not None)
        ends = dict.fromkeys(points(x)[1:] for x in scores[:1] + scores[-1:])
        return f"{' to '.join(ends)} points" if ends else "the amounts in their messages"
    return " to ".join(dict.fromkeys(percent(x) for x in (shares[0], shares[-1])))


def _largest(verdict: Verdict) -> float | None:
    sizes = [
        abs(m.change)
        for m in verdict.metrics
        if m.change is not None and m.outcome in DROPS | {Outcome.IMPROVED}
        if m.metric in metrics.METRICS
        and metrics.METRICS[m.metric].direction is not Direction.NEITHER
    ]
    return max(sizes, default=None)


NO_CAUSE = "no cause found"

EXPLAINED = 100
"""Most failed tests that a report explains, because each is compared with all others."""

MAX_CURVE_POINTS = 3
SPARED_METRICS = metrics.SERVER_METRICS
"""Work that the server was spared in the baseline and is not now; that alone explains a drop."""

POWER = 0.03
"""Relative differences of mean power up to this one count as unchanged."""

OUTPUT = 0.01
"""Relative change of the output length from which it is reported."""


class Strength(IntEnum):
    """Rank the strength of the evidence for a cause."""

    NONE = 0
    HINT = 1
    PLAUSIBLE = 2
    STRONG = 3
    CERTAIN = 4


@dataclass(frozen=True, kw_only=True)
class Cause:
    """State a likely cause in text `says`; strength NONE marks the note that none was found.

    Attributes:
        common: The text `says` without figures, to group tests; "" if `says` has no figures.
        named: Lines of `BaselineReference.changed` that the text mentions.
    """

    rule: str
    says: str
    strength: Strength
    common: str = ""
    named: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _CauseInput:
    """Hold the input of the rules that find causes; `direction` is -1 for worse, +1 for better.

    `sides` are the runs of the verdict and of the baseline, () without one.
    """

    verdict: Verdict
    sides: tuple[Sequence[Run | BaselineRun], Sequence[Run | BaselineRun]]
    siblings: SiblingEvidence
    direction: int


def causes(
    verdict: Verdict, baseline: Record | None, siblings: Sequence[Verdict]
) -> tuple[Cause, ...]:
    """Return the causes of a changed verdict, strongest first; empty without a change.

    With only hints, the last one says that no cause was found. `siblings`: other tests' verdicts.
    """
    # A provisional drop has causes, although it does not count for other cases yet.
    direction = (
        -1
        if any(metric.direction == "drop" for metric in verdict.metrics)
        else change_direction(verdict)
    )
    if not direction:
        return ()
    facts = _CauseInput(
        verdict=verdict,
        # A performance record does not explain scores.
        sides=(verdict.runs, baseline.runs if baseline and verdict.kind != Kind.ACCURACY else ()),
        siblings=sibling_changes(verdict, siblings, direction),
        direction=direction,
    )
    explained = sorted(
        (cause for rule in _RULES for cause in rule(facts)), key=lambda cause: -cause.strength
    )
    if not any(cause.strength > Strength.HINT for cause in explained):
        looked = "; ".join(_unchanged(facts)) or "there is nothing to compare with"
        says = f"{NO_CAUSE}: {looked}"
        explained.append(Cause(rule="none", says=says, strength=Strength.NONE))
    return tuple(explained)


# --- rules -----------------------------------------------------------------------------------


def _handicap(facts: _CauseInput) -> Iterator[Cause]:
    handicap = facts.verdict.handicap
    if handicap and facts.direction < 0:
        says = f"the handicap of {100 * handicap:.0f} %: work was slowed on purpose"
        yield Cause(rule="handicap", says=says, strength=Strength.CERTAIN)


LOADED_FILES, OTHER_FILES = "files.loaded", "files.other"

CHANGED_PARTS = {
    **dict.fromkeys(("dataset", "dataset.options"), "data"),
    **dict.fromkeys(("inputs.first", "inputs.first_16"), "inputs"),
    **{name: name for name in (LOADED_FILES, OTHER_FILES)},
}
"""Parts that changed, by key of their line; other keys belong to the engine or the machine."""

MAX_NAMED = 4
"""Changes that a cause names; it counts the others."""

HEADS = {
    "data": "the data differ from the baseline's: ",
    "inputs": "the data set's input() returned other values than for the baseline: ",
    LOADED_FILES: "files that the run loaded changed: ",
    OTHER_FILES: "files changed, but it is unknown whether the run loaded them: ",
}
"""Text before the lines of a part."""


def _environment(facts: _CauseInput) -> Iterator[Cause]:
    groups: dict[str, dict[str, str]] = {}
    for text in facts.verdict.baseline.changed:
        part = _part_of(text, facts.verdict)
        line = text.partition(" ")[2] if part in {LOADED_FILES, OTHER_FILES} else shortened(text)
        groups.setdefault(part, {})[text] = line
    # At equal strength a recorded fact ranks above a changed file.
    for name, lines in sorted(groups.items(), key=lambda group: group[0] in HEADS):
        certain = len(groups) == 1 and name != OTHER_FILES and not facts.verdict.baseline.unknown
        only = "; no other recorded fact changed" if certain else ""
        head = HEADS.get(name, "")
        since = "" if head else " since the baseline"
        alone = not groups.keys() - {name, OTHER_FILES, "inputs"}  # these may explain the others
        strength = _weight(name, facts.siblings, alone=alone)
        common = f"{head}{some([*lines.values()], MAX_NAMED)}{since}"
        named = tuple(lines)[:MAX_NAMED]
        says = f"{common}{only}"
        yield Cause(rule=name, says=says, strength=strength, common=common, named=named)


def _part_of(text: str, verdict: Verdict) -> str:
    key = text.split(" ", 1)[0]
    if part := CHANGED_PARTS.get(key):
        return part
    surroundings = verdict.subject.surroundings if verdict.subject else {}
    return "machine" if key.startswith("machine.") or key in surroundings else "engine"


def _weight(name: str, siblings: SiblingEvidence, *, alone: bool) -> Strength:
    if name == OTHER_FILES:
        return Strength.HINT
    if siblings.points_to and name in {"engine", "machine", LOADED_FILES}:
        machine = siblings.points_to == "machine"
        return Strength.STRONG if machine == (name == "machine") else Strength.HINT
    return Strength.STRONG if alone or name in {"data", "inputs"} else Strength.PLAUSIBLE


def shortened(text: str) -> str:
    """Shorten a line on a change: cut checksums, and leave out options that are unchanged."""
    if match := re.fullmatch(r"(options|dataset\.options) (\{.*\}) → (\{.*\})", text):
        try:
            old, new = json.loads(match[2]), json.loads(match[3])
        except (ValueError, RecursionError):
            pass
        else:
            keys = sorted(k for k in {*old, *new} if old.get(k) != new.get(k))
            options = [f"{k} {old.get(k, 'absent')} → {new.get(k, 'absent')}" for k in keys]
            text = f"{match[1]}: {', '.join(options)}" if options else text
    return re.sub(r"\b([0-9a-f]{8})[0-9a-f]{24,}\b", r"\1…", text)


def _siblings(facts: _CauseInput) -> Iterator[Cause]:
    says, points_to = facts.siblings
    if says:
        common = "other cases changed as well"
        strength = _either(bool(points_to))
        yield Cause(rule="siblings", says=says, strength=strength, common=common)


def _output(facts: _CauseInput) -> Iterator[Cause]:
    for title, old, new in _lengths(facts):
        share = new / old - 1
        if abs(share) < OUTPUT:
            continue
        longer = "longer" if share > 0 else "shorter"
        # Longer answers take longer; for scores either may be a sign.
        fits = facts.verdict.kind == Kind.ACCURACY or (share > 0) == (facts.direction < 0)
        lengths = f"{_length(old)} → {_length(new)} {title}"
        says = f"answers are {change(abs(share))[1:]} {longer}: {lengths}"
        yield Cause(rule="output", says=says, strength=_either(fits))


def _lengths(facts: _CauseInput) -> Iterator[tuple[str, float, float]]:
    for paired in facts.verdict.paired:
        if paired.metric in metrics.COUNTS and paired.baseline > 0 and paired.now > 0:
            yield metrics.title(paired.metric), paired.baseline, paired.now
    paired_counts = {paired.metric for paired in facts.verdict.paired}
    for metric in facts.verdict.metrics:
        if metric.metric in metrics.COUNTS - paired_counts and metric.baseline.value and metric.now:
            yield metrics.title(metric.metric), metric.baseline.value, metric.now


def _length(value: float) -> str:
    return f"{value:.1f}" if value < 1000 else quantity("", value)


def _flaws(facts: _CauseInput) -> Iterator[Cause]:
    verdict = facts.verdict
    if verdict.kind != Kind.ACCURACY or not (verdict.accuracy and verdict.subject):
        return
    flaws = risen_flaws(verdict.accuracy, verdict.subject)
    if flaws and facts.direction < 0:
        yield Cause(rule="answers", says=sentence(flaws), strength=Strength.STRONG)


def _server(facts: _CauseInput) -> Iterator[Cause]:
    if not (changes := _server_changes(facts)):
        return
    points = sorted(  # the largest change in the verdict's direction first
        points_of([run.serving.server for run in facts.verdict.runs]),
        key=lambda point: -max(map(abs, _shares_at(facts, point).values()), default=0.0),
    )
    by_point = {point: [c for c in changes if c.point == point] for point in points}
    for point, moved_there in islice((p for p in by_point.items() if p[1]), MAX_CURVE_POINTS):
        fits = [change.quantity for change in moved_there if change.sign * facts.direction < 0]
        strength = Strength.PLAUSIBLE if fits else Strength.HINT
        if SPARED_METRICS.intersection(fits):
            strength = Strength.STRONG
        says = f"{_worst_at(facts, point)}: {', '.join(change.says for change in moved_there)}"
        yield Cause(rule="server", says=says, strength=strength)


def _server_changes(facts: _CauseInput) -> list[ServerChange]:
    ours, theirs = ([r.serving.server for r in side if r.serving.server] for side in facts.sides)
    return server_changes(ours, theirs) if ours and theirs else []


def _shares_at(facts: _CauseInput, point: float | None) -> dict[str, float]:
    shares = {}
    for metric in facts.verdict.metrics:
        definition = metrics.METRICS.get(metric.metric)
        if definition is None or metric.change is None or metrics.point_of(metric.metric) != point:
            continue
        if definition.dimension in {
            metrics.Dimension.START,
            metrics.Dimension.MEMORY,
            metrics.Dimension.STAGE,
        }:  # not measured on answers
            continue
        lower = definition.direction is Direction.LOWER
        if definition.direction is not Direction.NEITHER and (
            metric.change * facts.direction * (-1 if lower else 1) > 0
        ):
            shares[metric.metric] = metric.change
    return shares


def _worst_at(facts: _CauseInput, point: float | None) -> str:
    shares = _shares_at(facts, point)
    if not shares:
        return "the server" if point is None else f"the server at {point:,}"
    fell = {metric.metric for metric in facts.verdict.metrics if metric.fails}
    name = max(shares, key=lambda metric: (metric in fell, abs(shares[metric])))
    return f"{metrics.METRICS[name].title} {change(shares[name])}"


def _stage_causes(facts: _CauseInput) -> Iterator[Cause]:
    """Yield changed stage times as causes: PLAUSIBLE if others stayed and they fit the metric."""
    for point, stages in islice(_stage_times(facts).items(), MAX_CURVE_POINTS):
        if not (changed := [stage for stage in stages if stage.moved]):
            continue
        still = [stage.title for stage in stages if not stage.moved]
        fits = any((s.current_s > s.baseline_s) == (facts.direction < 0) for s in changed)
        says = " and ".join(sentence(stage.note) for stage in changed)
        says += f"; {' and '.join(still)} as before" if still else ""
        tells = fits and (still or len(stages) == 1)
        strength = Strength.PLAUSIBLE if tells else Strength.HINT
        where = "" if point is None else f"at {point:,}: "
        yield Cause(rule="stages", says=f"{where}{says}", strength=strength)


def _stage_times(facts: _CauseInput) -> dict[float | None, list[StageTime]]:
    return stage_times(*([run.metrics for run in side] for side in facts.sides))


def _errors(facts: _CauseInput) -> Iterator[Cause]:
    runs = facts.verdict.runs
    missed = sum(run.limit_missed for run in runs)
    if missed and facts.direction < 0 and facts.verdict.kind != Kind.ACCURACY:
        says = (
            f"LoadGen's latency limit was missed in {missed} of {plural(len(runs), 'run')} at "
            f"{runs[-1].target_qps:g}/s"
        )
        yield Cause(rule="errors", says=says, strength=Strength.PLAUSIBLE)


_SIGNS = {
    SignKey.GPU_IDLE: Strength.PLAUSIBLE,
    SignKey.PCIE_GENERATION: Strength.PLAUSIBLE,
    SignKey.PCIE_WIDTH: Strength.PLAUSIBLE,
    SignKey.PCIE_WIDTH_FELL: Strength.PLAUSIBLE,
    SignKey.NVLINK_DOWN: Strength.PLAUSIBLE,
    SignKey.NVSWITCH: Strength.PLAUSIBLE,
    SignKey.GPUS_DIFFER: Strength.PLAUSIBLE,
    SignKey.MEMORY_IN_USE: Strength.PLAUSIBLE,
    SignKey.ECC_CORRECTED: Strength.HINT,
    SignKey.PCIE_REPLAYS: Strength.HINT,
    SignKey.NVLINK_ERRORS: Strength.HINT,
}
"""Strength of signs as evidence; other clock limits, which have a share of time, are hints."""


def _gpu_problems(facts: _CauseInput) -> Iterator[Cause]:
    """Yield the GPU problems in the runs; most are hints, as the baseline may share them."""
    if facts.direction > 0 or facts.verdict.kind == Kind.ACCURACY:
        return
    runs = facts.verdict.runs
    recorded = all(any(control.CAP in run.hardware.state for run in side) for side in facts.sides)
    signs: dict[tuple[str, SignKey], list[Sign]] = {}
    for sign in (sign for run in runs for sign in run.signs):
        evidence = sign.key in _SIGNS or sign.share is not None
        if evidence and not (recorded and sign.key is SignKey.SW_POWER_CAP):
            signs.setdefault((sign.gpu, sign.key), []).append(sign)
    for (_, key), alike in signs.items():
        where = f"in {len(alike)} of {len(runs)} runs: " if len(runs) > 1 else ""
        sign = alike[-1]
        timed = [
            (s.share, s.seconds) for s in alike if s.share is not None and s.seconds is not None
        ]
        if timed:
            share, seconds = map(median, zip(*timed, strict=True))
            sign = replace(sign, seconds=seconds, share=share)
        strength = _SIGNS.get(key, Strength.HINT)
        yield Cause(rule="seen", says=f"{where}{sentence(sign.note)}", strength=strength)


def _replicas(facts: _CauseInput) -> Iterator[Cause]:
    if facts.direction < 0 and facts.verdict.kind != Kind.ACCURACY:
        for note in stragglers([(run.replicas, run.hardware.gpus) for run in facts.verdict.runs]):
            yield Cause(rule="replicas", says=sentence(note), strength=Strength.PLAUSIBLE)


def _machine(facts: _CauseInput) -> Iterator[Cause]:
    if (clock := _clocks(facts)) and clock.differs:
        fits = clock.share * facts.direction > 0
        yield Cause(rule="clocks", says=clock.says, strength=_either(fits))
    if (watts := _power(facts)) and watts.differs:
        efficiency = facts.verdict.kind == Kind.EFFICIENCY
        fits = efficiency and (watts.share > 0) == (facts.direction < 0)
        yield Cause(rule="power", says=watts.says, strength=_either(fits))
    for figure in _control(facts):
        if figure.differs and (figure.share < 0) == (facts.direction < 0):
            yield Cause(rule="control", says=figure.says, strength=_either(figure.beyond))


def _either(fits: bool) -> Strength:
    return Strength.STRONG if fits else Strength.HINT


_RULES: tuple[Callable[[_CauseInput], Iterable[Cause]], ...] = (
    _handicap,
    _environment,
    _siblings,
    _output,
    _flaws,
    _gpu_problems,
    _replicas,
    _server,
    _stage_causes,
    _errors,
    _machine,
)


# --- the machine, beside the baseline's ----------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _MachineChange:
    """Hold the relative change `share` of a machine quantity from the baseline, as text `says`.

    `differs`: large enough to report; `beyond`: exceeds the micro-benchmark's normal variation.
    """

    says: str
    share: float
    differs: bool
    beyond: bool = False


def _clocks(facts: _CauseInput) -> _MachineChange | None:
    ours, theirs = (
        [run.hardware.state for run in side if run.hardware.state.get(control.CLOCK, 0.0) > 0]
        for side in facts.sides
    )
    if not ours or not theirs:
        return None
    here, there = (median(state[control.CLOCK] for state in side) for side in (ours, theirs))
    moved = control.clock_changes(ours, theirs)
    return _MachineChange(
        says=sentence(moved)
        if moved
        else f"SM clock {here:.0f} MHz, {there:.0f} MHz in the baseline",
        share=here / there - 1,
        differs=moved is not None,
    )


def _power(facts: _CauseInput) -> _MachineChange | None:
    ours, theirs = (
        [watts for run in side if (watts := _watts(run)) is not None] for side in facts.sides
    )
    if not ours or not theirs:
        return None
    here, there = map(geometric_mean, (ours, theirs))
    logs = [math.log(watts) for watts in theirs]
    spread = math.sqrt(fmean((x - fmean(logs)) ** 2 for x in logs))
    share = here / there - 1
    return _MachineChange(
        says=f"mean power {here:,.0f} W, {there:,.0f} W in the baseline ({change(share)})",
        share=share,
        differs=abs(share) > max(POWER, 2 * spread),
    )


def _watts(run: Run | BaselineRun) -> float | None:
    per_joule = run.metrics.get(metrics.SAMPLES_PER_JOULE, 0.0)
    if per_joule <= 0 or run.samples <= 0 or run.duration_s <= 0:
        return None
    watts = run.samples / per_joule / run.duration_s
    return watts if 0 < watts < math.inf else None


def _control(facts: _CauseInput) -> Iterator[_MachineChange]:
    ours, theirs = ([run.hardware.control for run in side] for side in facts.sides)
    if not any(ours) or not any(theirs):
        return
    floor = control.min_relative_sd(facts.verdict.case.accelerator)
    for figure in control.compared(ours, theirs, floor=floor):
        within = "beyond" if figure.is_significant else "within"
        yield _MachineChange(
            says=(
                f"the machine's micro-benchmark: {control.QUANTITIES[figure.quantity][0]} "
                f"{change(figure.share)} against the baseline, {within} its normal variation "
                f"of {percent(figure.min_detectable_slowdown)}"
            ),
            share=figure.share,
            differs=figure.deviations > 1,
            beyond=figure.is_significant,
        )


# --- nothing found ---------------------------------------------------------------------------


def _unchanged(facts: _CauseInput) -> Iterator[str]:
    verdict = facts.verdict
    if verdict.baseline.source and not (verdict.baseline.changed or verdict.baseline.unknown):
        yield "engine, weights, options and data are as in the baseline"
    if verdict.baseline.changed:
        yield "the changes listed below explain little"
    yield from verdict.baseline.unknown
    for title, old, new in _lengths(facts):
        if abs(new / old - 1) < OUTPUT:
            yield f"{_length(new)} {title}, {_length(old)} in the baseline"
    stages = [stage for at in _stage_times(facts).values() for stage in at]
    if stages and not any(stage.moved for stage in stages):
        yield f"{' and '.join(dict.fromkeys(s.title for s in stages))} take as long as before"
    reported = (
        any(name.partition("@")[0] != HIDDEN_SHARE for run in side for name in run.serving.server)
        for side in facts.sides
    )
    if all(reported) and not _server_changes(facts):
        yield "the server's queue, cache and drafts are as in the baseline"
    looked = (_clocks(facts), _power(facts), *_control(facts))
    yield from (figure.says for figure in looked if figure and not figure.differs)

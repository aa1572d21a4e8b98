"""Why a verdict came out worse, or better: only what has evidence, with the evidence."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from statistics import median

from pytest_mlperf.core.baseline import Record
from pytest_mlperf.core.causes_machine import cap_compared, clocks, control, power
from pytest_mlperf.core.causes_siblings import Points, moved, siblings_of
from pytest_mlperf.core.metrics import COUNTS, METRICS
from pytest_mlperf.core.numbers import change, quantity
from pytest_mlperf.core.verdict import Verdict

OUTPUT = 0.01
"""A shift of the output's length from this share on is told."""


class Strength(IntEnum):
    """How much a cause explains; the strongest are told first."""

    NONE = 0
    HINT = 1
    PLAUSIBLE = 2
    STRONG = 3
    CERTAIN = 4


@dataclass(frozen=True, kw_only=True)
class Cause:
    """One sentence with its evidence in numbers or names.

    Attributes:
        rule: Which rule found it.
        says: The sentence, without a full stop.
        strength: A HINT is beside the verdict and explains it only together with others; NONE is
            the sentence that no cause was found.
    """

    rule: str
    says: str
    strength: Strength


@dataclass(frozen=True, kw_only=True)
class _Facts:
    """What the rules look at.

    Attributes:
        verdict: The verdict to explain.
        baseline: What its runs were compared with, where it is here.
        siblings: Verdicts of other cases on the same question.
        direction: -1 where it got worse, +1 where it got better.
    """

    verdict: Verdict
    baseline: Record | None
    siblings: Points
    direction: int


def causes(
    verdict: Verdict, baseline: Record | None, siblings: Sequence[Verdict]
) -> tuple[Cause, ...]:
    """Return why a verdict came out as it did, the strongest cause first.

    Args:
        verdict: What was found; of a performance or efficiency test, or of an accuracy test.
        baseline: The record its runs were compared with; None: not known here.
        siblings: Other verdicts of the session; the verdict itself may be among them. As
            `Siblings` where many are explained.

    Returns:
        Nothing where nothing got worse or better. Otherwise one entry per rule that has evidence;
        where there are no more than hints, the last one says that no cause was found, and what
        was looked at.
    """
    direction = moved(verdict)
    if not direction:
        return ()
    facts = _Facts(
        verdict=verdict,
        baseline=baseline,
        siblings=siblings_of(verdict, siblings, direction),
        direction=direction,
    )
    found = sorted(
        (cause for rule in _RULES for cause in rule(facts)), key=lambda cause: -cause.strength
    )
    if not any(cause.strength > Strength.HINT for cause in found):
        found.append(_none(facts))
    return tuple(found)


# --- rules -----------------------------------------------------------------------------------


def _handicap(facts: _Facts) -> Iterator[Cause]:
    for note in facts.verdict.notes:
        if (given := re.search(r"--mlperf-handicap (\S+)", note)) and facts.direction < 0:
            says = f"the handicap of {given[1].rstrip('%')} %: work was slowed on purpose"
            yield Cause(rule="handicap", says=says, strength=Strength.CERTAIN)


def _environment(facts: _Facts) -> Iterator[Cause]:
    """Engine, weights and options, and what is beside them, as far as they changed."""
    groups: dict[str, list[str]] = {}
    for text in facts.verdict.changed:
        groups.setdefault(_group(text, facts.verdict), []).append(shortened(text))
    for name, texts in groups.items():
        shown = ", ".join(texts[:4]) + (f" and {len(texts) - 4} more" if len(texts) > 4 else "")
        only = "; nothing else that is recorded changed" if len(groups) == 1 else ""
        what = "other data than the baseline's: " if name == "data" else ""
        since = "" if what else " since the baseline"
        strength = _weight(name, facts.siblings, alone=bool(only))
        yield Cause(rule=name, says=f"{what}{shown}{since}{only}", strength=strength)


def _group(text: str, verdict: Verdict) -> str:
    """Return which part of the environment a line of "what changed" speaks of."""
    key = text.split(" ", 1)[0]
    if key in {"dataset", "dataset.options"}:
        return "data"
    beside = verdict.subject.surroundings if verdict.subject else {}
    return "machine" if key.startswith("machine.") or key in beside else "engine"


def _weight(name: str, siblings: Points, *, alone: bool) -> Strength:
    """Return how much a change explains, in the light of where else it got worse."""
    if siblings.points_to and name in {"engine", "machine"}:
        return Strength.STRONG if siblings.points_to == name else Strength.HINT
    return Strength.STRONG if alone or name == "data" else Strength.PLAUSIBLE


def shortened(text: str) -> str:
    """Return a line of "what changed" without the bulk of checksums and of equal options."""
    if found := re.fullmatch(r"(options|dataset\.options) (\{.*\}) → (\{.*\})", text):
        try:
            before, now = json.loads(found[2]), json.loads(found[3])
        except (ValueError, RecursionError):
            pass
        else:
            keys = sorted(k for k in {*before, *now} if before.get(k) != now.get(k))
            told = [f"{k} {before.get(k, 'absent')} → {now.get(k, 'absent')}" for k in keys]
            text = f"{found[1]}: {', '.join(told)}" if told else text
    return re.sub(r"\b([0-9a-f]{8})[0-9a-f]{24,}\b", r"\1…", text)


def _siblings(facts: _Facts) -> Iterator[Cause]:
    for says, strong in facts.siblings.says:
        strength = Strength.STRONG if strong else Strength.HINT
        yield Cause(rule="siblings", says=says, strength=strength)


def _output(facts: _Facts) -> Iterator[Cause]:
    for title, before, now in _lengths(facts):
        share = now / before - 1
        if abs(share) < OUTPUT:
            continue
        longer = "longer" if share > 0 else "shorter"
        # Longer answers take longer; of scores either may be a sign.
        fits = facts.verdict.kind == "accuracy" or (share > 0) == (facts.direction < 0)
        shown = f"{_length(before)} → {_length(now)} {title}"
        says = f"answers are {change(abs(share))[1:]} {longer}: {shown}"
        yield Cause(rule="output", says=says, strength=_either(fits))


def _title(metric: str) -> str:
    """Return a metric's title; a score's own name stands for it."""
    return METRICS[metric].title if metric in METRICS else metric


def _lengths(facts: _Facts) -> Iterator[tuple[str, float, float]]:
    """Yield each known length of output: in words, of the baseline, now."""
    for paired in facts.verdict.paired:
        if paired.metric in COUNTS and paired.baseline > 0 and paired.now > 0:
            yield _title(paired.metric), paired.baseline, paired.now
    told = {paired.metric for paired in facts.verdict.paired}
    for metric in facts.verdict.metrics:
        if metric.metric in COUNTS - told and metric.baseline and metric.now:
            yield _title(metric.metric), metric.baseline, metric.now


def _length(value: float) -> str:
    return f"{value:.1f}" if value < 1000 else quantity("", value)


def _errors(facts: _Facts) -> Iterator[Cause]:
    runs = facts.verdict.runs
    missed = sum(run.limit_missed for run in runs)
    if missed and facts.direction < 0 and facts.verdict.kind != "accuracy":
        says = (
            f"LoadGen's latency limit was missed in {missed} of {len(runs)} runs at "
            f"{runs[-1].target_qps:g}/s"
        )
        yield Cause(rule="errors", says=says, strength=Strength.PLAUSIBLE)


_SEEN = (
    (re.compile(r"([\d.]+) ?% of the window"), "nothing to do", Strength.PLAUSIBLE),
    (re.compile(r"([\d.]+) ?% of the window"), "", Strength.HINT),
    (re.compile(r"the PCIe link ran at \S+(?: \d+)?, not"), "", Strength.PLAUSIBLE),
    (re.compile(r"the PCIe link fell from"), "", Strength.PLAUSIBLE),
    (re.compile(r"GiB were in use before"), "", Strength.PLAUSIBLE),
    (re.compile(r"\d+ (?:corrected memory errors|replays)"), "", Strength.HINT),
)
"""Which notes of the sampler are evidence, with words that they must hold, and how strong."""


def _seen(facts: _Facts) -> Iterator[Cause]:
    """What held the GPU back, or was wrong with it, in words of the sampler.

    Most of it may have been so when the baseline was recorded, as a board under full load may be at
    its power limit always: a hint, and none where the shares of both sides are compared.
    """
    runs, told = facts.verdict.runs, dict[str, list[tuple[str, Strength]]]()
    compared = facts.baseline is not None and cap_compared(runs, facts.baseline.runs)
    for run in runs if facts.direction < 0 and facts.verdict.kind != "accuracy" else ():
        for note in run.notes:
            if compared and "stay within the power limit" in note:
                continue
            for pattern, word, strength in _SEEN:
                if pattern.search(note) and word in note:
                    told.setdefault(re.sub(r"[\d.,]+", "#", note), []).append((note, strength))
                    break
    for found in told.values():
        note, strength = found[-1]
        where = f"in {len(found)} of {len(runs)} runs: " if len(runs) > 1 else ""
        yield Cause(rule="seen", says=f"{where}{_share(note, found)}", strength=strength)


def _share(note: str, found: Sequence[tuple[str, Strength]]) -> str:
    """Return a note with the median of its share in all runs that have it."""
    shares = [re.search(r"([\d.]+) ?% of the window", text) for text, _ in found]
    known = [float(share[1]) for share in shares if share]
    if len(known) < 2:
        return note
    middle = f"{median(known):.3g} % of the window in the middle"
    return re.sub(r"(for|:) [\d.]+ s, [\d.]+ ?% of the window", rf"\1 {middle}", note)


def _machine(facts: _Facts) -> Iterator[Cause]:
    """Clocks, power and the fixed micro-benchmark, beside the baseline's."""
    if facts.baseline is None or facts.verdict.kind == "accuracy":
        return
    runs, before = facts.verdict.runs, facts.baseline.runs
    if (found := clocks(runs, before)) and found.differs:
        fits = found.share * facts.direction > 0
        yield Cause(rule="clocks", says=found.says, strength=_either(fits))
    if (watts := power(runs, before)) and watts.differs:
        efficiency = facts.verdict.kind == "efficiency"
        fits = efficiency and (watts.share > 0) == (facts.direction < 0)
        yield Cause(rule="power", says=watts.says, strength=_either(fits))
    for figure in control(runs, before, facts.verdict.case.accelerator):
        if figure.differs and (figure.share < 0) == (facts.direction < 0):
            yield Cause(rule="control", says=figure.says, strength=_either(figure.beyond))


def _either(fits: bool) -> Strength:
    return Strength.STRONG if fits else Strength.HINT


_RULES: tuple[Callable[[_Facts], Iterable[Cause]], ...] = (
    _handicap,
    _environment,
    _siblings,
    _output,
    _seen,
    _errors,
    _machine,
)


# --- nothing found ---------------------------------------------------------------------------


def _none(facts: _Facts) -> Cause:
    """Return that no cause was found, and what was looked at and is as it was."""
    looked = "; ".join(_unchanged(facts)) or "nothing is known to compare with"
    return Cause(rule="none", says=f"no cause found: {looked}", strength=Strength.NONE)


def _unchanged(facts: _Facts) -> Iterator[str]:
    verdict = facts.verdict
    if verdict.baseline_set and not verdict.changed:
        yield "engine, weights, options and data are the baseline's"
    for title, before, now in _lengths(facts):
        if abs(now / before - 1) < OUTPUT:
            yield f"{_length(now)} {title}, {_length(before)} in the baseline"
    if facts.baseline is not None and verdict.kind != "accuracy":
        sides = verdict.runs, facts.baseline.runs
        looked = (clocks(*sides), power(*sides), *control(*sides, verdict.case.accelerator))
        yield from (found.says for found in looked if found and not found.differs)

"""The points that a plot of precisions shows: speed and score in shares of the reference's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_mlperf.core.metrics import COUNTS
from pytest_mlperf.reports.cells import title
from pytest_mlperf.reports.precisions_model import Block, Entry, Score

SPEEDS = (
    tuple(2.0**k for k in range(-10, 11)),
    tuple(sorted(2.0**k * part for k in range(-10, 11) for part in (1.0, 1.5))),
    tuple(n / 4 for n in range(1, 33)),
    tuple(n / 10 for n in range(1, 81)),
    tuple(n / 20 for n in range(1, 81)),
)
"""Ticks of a logarithmic axis, the coarsest first."""

FEWEST = 3
"""Ticks at least."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """An entry in the plot.

    Attributes:
        label: What the block calls it.
        precision: For its colour.
        x: How many times better than the reference its speed is.
        y: Its score, in per cent of the reference's.
        low, high: The paired interval of y; None where there is none.
        failed: The accuracy test failed.
    """

    label: str
    precision: str
    x: float
    y: float
    low: float | None
    high: float | None
    failed: bool


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One small plot.

    Attributes:
        title: The workload.
        subtitle: What was measured, and against what.
        points: The reference first.
        gate: Where the gate lies, in per cent of the reference's score; None without one.
        absent: What has no point, in words.
    """

    title: str
    subtitle: str
    points: tuple[Point, ...]
    gate: float | None
    absent: tuple[str, ...]


def panels_of(blocks: Sequence[Block]) -> list[Panel]:
    """Return a panel for each block that has two points or more."""
    found = [_panel(block) for block in blocks]
    return [panel for panel in found if panel is not None and len(panel.points) > 1]


def _panel(block: Block) -> Panel | None:
    metric = deciding(block)
    if metric is None:
        return None
    points, absent = [], []
    for entry in sorted(block.entries, key=lambda each: each is not block.reference):
        point = _point(block, entry, metric)
        if isinstance(point, Point):
            points.append(point)
        else:
            absent.append(f"{block.label(entry)}: {point}")
    base = _score(block.reference, metric)
    gate = None if base is None or base.needed is None else _share(base.needed, base)
    profile = "" if block.profile == "quick" else f", {block.profile}"
    return Panel(
        title=block.workload,
        subtitle=(
            f"{block.scenario} on {block.accelerator}{profile}: {title(metric)}, "
            f"against {block.against}"
        ),
        points=tuple(points),
        gate=gate,
        absent=tuple(absent),
    )


def deciding(block: Block) -> str | None:
    """Return the score that comes closest to its gate in any entry, or falls deepest below it.

    Without a gate it is the one that loses most against the reference; None where the reference
    has no score above 0.
    """
    found: dict[str, float] = {}
    for base in block.reference.scores:
        if base.value <= 0 or base.metric in COUNTS:
            continue
        scores = filter(None, (_score(entry, base.metric) for entry in block.entries))
        shares = [
            _share(score.value, score if score.needed is None else _at_gate(score))
            for score in scores
        ]
        found[base.metric] = min(shares)
    return min(found, key=found.__getitem__) if found else None


def _at_gate(score: Score) -> Score:
    return Score(metric=score.metric, value=score.needed or score.value, lower=score.lower)


def _share(value: float, base: Score) -> float:
    """Return a score in per cent of another; above 100 it is better, whatever its direction."""
    over, under = (base.value, value) if base.lower else (value, base.value)
    return 100 * over / under if under > 0 else math.nan


def _score(entry: Entry, metric: str) -> Score | None:
    return next((score for score in entry.scores if score.metric == metric), None)


def _point(block: Block, entry: Entry, metric: str) -> Point | str:
    """Return the point of an entry, or why it has none."""
    words = [str(word) for word in (entry.accuracy, entry.performance) if word and word.fails]
    why = ", ".join(dict.fromkeys(words))
    score = _score(entry, metric)
    if score is None:
        return why or "no score"
    change = 0.0 if entry is block.reference else score.change
    if change is None:
        return "no comparable score"
    if entry.speed is None or entry.speed.ratio is None:
        return why or "no comparable speed"
    base = Score(metric=metric, value=score.value - change, lower=score.lower)
    ends = [_share(base.value + end, base) for end in (score.low, score.high) if end is not None]
    y = _share(score.value, base)
    if not math.isfinite(y):
        return "no comparable score"
    return Point(
        label=block.label(entry),
        precision=entry.precision,
        x=entry.speed.ratio,
        y=y,
        low=min(ends) if len(ends) == 2 else None,
        high=max(ends) if len(ends) == 2 else None,
        failed=entry.accuracy is not None and entry.accuracy.fails,
    )


def speed_ticks(low: float, high: float) -> list[float]:
    """Return the coarsest ticks of which enough lie between two speeds, at most nine."""
    for ticks in SPEEDS:
        inside = [tick for tick in ticks if low <= tick <= high]
        if len(inside) >= FEWEST:
            break
    step = math.ceil(len(inside) / 9)
    start = inside.index(1.0) % step if 1.0 in inside else 0
    return inside[start::step]

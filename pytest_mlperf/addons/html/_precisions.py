"""What each precision costs and gives: a table, and score over speed beside the reference's."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pytest_mlperf.addons.html.model import Figure, Grouped, Row, rounded
from pytest_mlperf.core.metrics import COUNTS
from pytest_mlperf.core.numbers import times
from pytest_mlperf.reports.rows import title
from pytest_mlperf.reports.terminal.precisions import (
    Block,
    PrecisionEntry,
    Score,
    blocks_of,
)

MAX_LISTED_ENTRIES = 20


def precisions(cases: Sequence[Grouped]) -> Figure:
    """Return score over speed of each precision, both in shares of the reference entry's."""
    places = {one.case: place for place, one in enumerate(cases)}
    rows, absent = list[Row](), list[str]()
    for block in blocks_of(result for one in cases for result in one.results):
        points, without = _points(block)
        if len(points) > 1:
            rows += [{"case": places[e.case], "row": "", **point} for e, point in points]
            absent += without
    more = f" Not drawn: {'; '.join(absent[:MAX_LISTED_ENTRIES])}." if absent else ""
    return Figure(
        name="precisions",
        title="What each precision costs and gives",
        says=(
            "To the right is faster, upwards is better, both against the reference entry of the "
            "same session (fp32, else the widest precision). Bars are intervals of the paired "
            "rule, marks the gate; crosses failed their accuracy test. Ratios of speed are shown, "
            f"not judged: [[pairs]] in a suite tests a claim about one.{more}"
        ),
        rows=rows,
        without="It needs score and speed of one workload in two precisions or engines.",
    )


def _points(block: Block) -> tuple[list[tuple[PrecisionEntry, Row]], list[str]]:
    """Return the points of a block, the reference first, and what has none with the reason."""
    base = deciding(block)
    if base is None:
        return [], []
    points, absent = [], []
    for entry in sorted(block.entries, key=lambda each: each is not block.reference):
        point = _point(block, entry, base)
        if isinstance(point, str):
            absent.append(f"{block.label(entry)}: {point}")
        else:
            points.append((entry, point))
    return points, absent


def deciding(block: Block) -> Score | None:
    """Return the reference's score that comes closest to its gate in any entry, or falls deepest.

    None where the reference has no score above 0.
    """
    nearest: list[tuple[float, Score]] = []
    for base in block.reference.scores:
        if base.value > 0 and base.metric not in COUNTS:
            scores = filter(None, (_score(entry, base.metric) for entry in block.entries))
            shares = (_share(s.value, s.needed or s.value, lower=s.lower) for s in scores)
            nearest.append((min(shares), base))
    return min(nearest, key=lambda one: one[0])[1] if nearest else None


def _share(value: float, base: float, *, lower: bool) -> float:
    """Return a score in per cent of another; above 100 it is better, whatever its direction."""
    over, under = (base, value) if lower else (value, base)
    return 100 * over / under if under > 0 else math.nan


def _score(entry: PrecisionEntry, metric: str) -> Score | None:
    return next((score for score in entry.scores if score.metric == metric), None)


def _point(block: Block, entry: PrecisionEntry, against: Score) -> Row | str:
    """Return the point of an entry, or why it has none."""
    words = [str(word) for word in (entry.accuracy, entry.performance) if word and word.fails]
    reason = ", ".join(dict.fromkeys(words))
    score = _score(entry, against.metric)
    if score is None:
        return reason or "no score"
    change = 0.0 if entry is block.reference else score.change
    if change is None:
        return "no comparable score"
    if entry.speed is None or entry.speed.ratio is None:
        return reason or "no comparable speed"
    base, lower = score.value - change, score.lower
    y = _share(score.value, base, lower=lower)
    if not math.isfinite(y):
        return "no comparable score"
    ends: list[float] = []
    if score.low is not None and score.high is not None:
        ends = sorted(_share(base + end, base, lower=lower) for end in (score.low, score.high))
    gate = None
    if against.needed is not None:
        gate = _share(against.needed, against.value, lower=against.lower)
    return {
        "precision": entry.case.precision,
        "speed": rounded(entry.speed.ratio),
        "score": round(y, 3),
        "low": round(ends[0], 3) if ends else None,
        "high": round(ends[1], 3) if ends else None,
        "gate": None if gate is None else round(gate, 3),
        "accuracy": "failed" if entry.accuracy and entry.accuracy.fails else "kept or not judged",
        "against": block.against,
        "of": title(against.metric),
        "score_text": f"{y:.3f} %",
        "interval": f"{ends[0]:.3f} to {ends[1]:.3f} %" if ends else "",
        "gate_text": "" if gate is None else f"{gate:.3f} %",
        "speed_text": times(entry.speed.ratio),
    }

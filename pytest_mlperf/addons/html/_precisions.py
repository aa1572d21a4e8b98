"""Compute the plot of precisions: score and speed relative to the reference precision."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from pytest_mlperf.core.metrics import COUNTS, title
from pytest_mlperf.core.numbers import times
from pytest_mlperf.extension import Case, CaseResult
from pytest_mlperf.reports.terminal import precisions


def precision_points(
    results: Iterable[CaseResult],
) -> tuple[list[tuple[Case, dict[str, Any]]], list[str]]:
    """Return (case, fields) of each point: score and speed relative to the reference precision.

    A group of precisions with fewer than two points is left out. The second list names the
    precisions without a point, with the reason.
    """
    points, absent = list[tuple[Case, dict[str, Any]]](), list[str]()
    for block in precisions.blocks_of(results):
        of_block, without = _points(block)
        if len(of_block) > 1:
            points += of_block
            absent += without
    return points, absent


def _points(block: precisions.Block) -> tuple[list[tuple[Case, dict[str, Any]]], list[str]]:
    base = closest_score(block)
    if base is None:
        return [], []
    drawn, absent = [], []
    for entry in sorted(block.entries, key=lambda entry: entry is not block.reference):
        point = _point(block, entry, base)
        if isinstance(point, str):
            absent.append(f"{block.label(entry)}: {point}")
        else:
            drawn.append((entry.case, point))
    return drawn, absent


def closest_score(block: precisions.Block) -> precisions.Score | None:
    """Return the reference's score of the metric that is closest to failing at any precision.

    Scores are compared as shares of their minimum for passing; a score without one counts as
    100 %. Returns None if the reference has no score above 0.
    """
    nearest: list[tuple[float, precisions.Score]] = []
    for base in block.reference.scores:
        if base.value > 0 and base.metric not in COUNTS:
            scores = filter(None, (_score_of(entry, base.metric) for entry in block.entries))
            shares = (_share(s.value, s.needed or s.value, lower=s.lower) for s in scores)
            nearest.append((min(shares), base))
    return min(nearest, key=lambda score: score[0])[1] if nearest else None


def _share(value: float, base: float, *, lower: bool) -> float:
    """Return a score in per cent of `base`; above 100 is better.

    `lower` is true if smaller scores are better; the ratio is then inverted.
    """
    over, under = (base, value) if lower else (value, base)
    return 100 * over / under if under > 0 else math.nan


def _score_of(entry: precisions.PrecisionEntry, metric: str) -> precisions.Score | None:
    return next((score for score in entry.scores if score.metric == metric), None)


def _point(
    block: precisions.Block, entry: precisions.PrecisionEntry, against: precisions.Score
) -> dict[str, Any] | str:
    words = [str(word) for word in (entry.accuracy, entry.performance) if word and word.fails]
    reason = ", ".join(dict.fromkeys(words))
    score = _score_of(entry, against.metric)
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
        "speed": entry.speed.ratio,
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

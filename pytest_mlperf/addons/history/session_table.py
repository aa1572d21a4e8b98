"""Format the history of a case for a terminal: table, plot and changes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import fmean

from pytest_mlperf.core.history import CaseHistory
from pytest_mlperf.core.metrics import title
from pytest_mlperf.core.numbers import change, interval, quantity
from pytest_mlperf.extension import plural
from pytest_mlperf.reports.terminal.layout import paragraphs, table

ROWS = 20
"""Sessions that the table lists, the newest ones."""

HEIGHT = 6
"""Lines of a plot."""


def session_lines(history: CaseHistory, width: int, *, rows: int) -> list[str]:
    """Return the newest `rows` sessions as a table, a plot of all sessions, and level changes."""
    series, points = history.series, history.points
    name = title(series.metric)
    first, last = points[0].started[:10], points[-1].started[:10]
    heading = (
        f"{series.case.id}, {series.profile}, machine {series.machine}: {name}, "
        f"{plural(len(points), 'session')}, {first} to {last}"
    )
    return [
        *paragraphs("sessions", [heading], width),
        "",
        *table(
            _rows(history)[-rows:],
            width,
            left=["session", "commit", "engine", "says"],
            spare=["runs", "commit", "engine"],
        ),
        "",
        *(_plot(history, width) if len(points) > 2 else ()),
        *paragraphs("changed", list(_changes(history)), width),
    ]


def _rows(history: CaseHistory) -> list[dict[str, str]]:
    changed = {one.index: one for one in history.changes}
    name = title(history.series.metric)
    return [
        {
            "session": point.started[:16].replace("T", " "),
            "commit": (point.commit or "")[:9],
            "engine": version,
            "runs": str(point.runs),
            name: quantity(history.series.metric, point.value),
            "says": "; ".join(
                [
                    *([f"{change(changed[n].change)} from here on"] if n in changed else ()),
                    *["baseline accepted"] * accepted,
                    *[point.outcome] * point.failed,
                ]
            ),
        }
        for n, (point, version, accepted) in enumerate(
            zip(history.points, history.versions, history.accepted, strict=True)
        )
    ]


def _plot(history: CaseHistory, width: int) -> list[str]:
    """Return a plot of values over sessions; "A" marks accepted baselines, "^" changes of level."""
    values = history.values
    metric = history.series.metric
    size = math.ceil(len(values) / max(width - 12, 1))  # sessions of a column
    drawn = [fmean(values[begin : begin + size]) for begin in range(0, len(values), size)]
    low, high = min(drawn), max(drawn)
    reach = (high - low) or 1.0
    places = [min(HEIGHT - 1, int(HEIGHT * (value - low) / reach)) for value in drawn]
    labels = {HEIGHT - 1: quantity(metric, high), 0: quantity(metric, low)}
    marks = [" "] * len(drawn)
    for place, accepted in enumerate(history.accepted):
        if accepted:
            marks[place // size] = "A"
    for moved in history.changes:
        marks[moved.index // size] = "^"
    lines = [
        f"{labels.get(row, ''):>10}  " + "".join("•" if p == row else " " for p in places)
        for row in reversed(range(HEIGHT))
    ]
    keys = {"A": "A baseline accepted", "^": "^ level changed"}
    key = ", ".join(text for mark, text in keys.items() if mark in marks)
    return [
        *(line.rstrip() for line in lines),
        *([f"{'':10}  {''.join(marks)}".rstrip(), f"{'':10}  {key}"] if key else []),
        "",
    ]


def _changes(history: CaseHistory) -> Iterator[str]:
    changes = history.changes
    for one in changes:
        before, point = history.points[one.index - 1], history.points[one.index]
        versions = history.versions
        engines = f"{versions[one.index - 1]} → {versions[one.index]}"
        same = versions[one.index - 1] == versions[one.index]
        commits = f"{(before.commit or '?')[:9]} → {(point.commit or '?')[:9]}"
        word = {True: "worse", False: "better", None: "changed"}[history.is_worse(one.change)]
        text = f"{change(one.change)} ({interval(one.low, one.high)}), {word}"
        where = f"{before.started[:10]} → {point.started[:10]}, {commits}"
        yield f"{text}: {where}{'' if same else f', {engines}'}"
    if not changes:
        yield "these sessions prove no change"

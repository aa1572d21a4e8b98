"""The table of a case's accepted baselines, and what they gained in all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_mlperf.core.numbers import change, interval, quantity
from pytest_mlperf.core.trend import Point, Step
from pytest_mlperf.reports.cells import title
from pytest_mlperf.reports.layout import fold, paragraph, paragraphs, plural, table

COLUMNS = ("date", "commit", "engine", "case", "runs", "value", "change", "interval", "says")


@dataclass(frozen=True, kw_only=True)
class Trend:
    """What is shown.

    Attributes:
        metric: Metric name.
        points: Accepted baselines, oldest first; at least one.
        versions: The engine of each.
        steps: From each point to the next, one fewer than points.
        since: Index of the point that the total starts from; None where no ratio may be formed
            with any.
        total: From there to the last point.
        notes: Sentences about what was left out.
    """

    metric: str
    points: Sequence[Point]
    versions: Sequence[str]
    steps: Sequence[Step]
    since: int | None
    total: Step
    notes: Sequence[str] = ()


def trend(found: Trend, width: int) -> list[str]:
    """Return the table, why what was refused, and the total."""
    cases = dict.fromkeys(point.case.id for point in found.points)
    rows = _rows(found, several=len(cases) > 1)
    columns = [name if name != "value" else title(found.metric) for name in COLUMNS]
    left = ["date", "commit", "engine", "case", "says"]
    lines = [line for case in cases for line in fold(case, width)]
    lines += [
        "",
        *table(columns, rows, width, left=left, spare=["runs", "commit", "case", "interval"]),
        "",
    ]
    for number, step in enumerate(found.steps, start=1):
        if step.refused:
            ends = f"{found.points[number - 1].date} to {found.points[number].date}"
            lines += paragraphs("no ratio", [f"{ends}: {text}" for text in step.refused], width)
    lines += paragraphs("note", [*_notes(found), *found.notes], width)
    return [*lines, *paragraph("total", _total(found), width)]


def _rows(found: Trend, *, several: bool) -> list[dict[str, str]]:
    steps = (None, *found.steps)
    return [
        {
            "date": point.date,
            "commit": point.commit[:9] if point.commit != "not committed" else point.commit,
            "engine": version,
            "case": f"{point.case.engine}-{point.case.accelerator}" if several else "",
            "runs": str(len(point.runs) or ""),
            title(found.metric): _value(point, found.metric),
            **(_cells(step) if step else {}),
        }
        for point, version, step in zip(found.points, found.versions, steps, strict=True)
    ]


def _value(point: Point, metric: str) -> str:
    return quantity(metric, point.means[metric]) if metric in point.means else ""


def _cells(step: Step) -> dict[str, str]:
    if step.change is None:
        return {"says": "no ratio"}
    bounds = "" if step.low is None or step.high is None else interval(step.low, step.high)
    return {"change": change(step.change), "interval": bounds, "says": _says(step)}


def _says(step: Step) -> str:
    if step.low is None:
        return "runs not here"
    return {True: "better", False: "worse", None: "not proven"}[step.better]


def _notes(found: Trend) -> list[str]:
    if all(step.low is None for step in found.steps):
        return []
    return [
        "intervals hold the true change in 95 of 100 cases, by the noise of all runs of both sides"
    ]


def _total(found: Trend) -> str:
    last = len(found.points) - 1
    if len(found.points) == 1:
        return "one accepted baseline: nothing to compare it with yet"
    if found.since is None:
        return "no ratio to the last baseline may be formed"
    ends = f"{found.versions[found.since]} → {found.versions[last]}"
    days = f"{found.points[found.since].date} to {found.points[last].date}"
    text = f"{title(found.metric)} {change(found.total.change or 0.0)}"
    if found.total.low is not None and found.total.high is not None:
        text += f" ({interval(found.total.low, found.total.high)}), {_says(found.total)}"
    left = f"; {plural(found.since, 'baseline')} before that not comparable" if found.since else ""
    return f"{text}: {ends}, {days}{left}"

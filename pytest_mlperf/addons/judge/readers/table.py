"""Read CSV or JSON tables of any tool; the user names the columns."""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pytest_mlperf import MlperfError
from pytest_mlperf.addons.judge.files import Reader, ResultFile, run_of
from pytest_mlperf.addons.judge.model import Quantity, ToolPoint, ToolRun, named
from pytest_mlperf.addons.judge.readers.fields import SECONDS_PER_UNIT, JsonObject, Values
from pytest_mlperf.judge import Direction

_DIRECTIONS = {"higher": Direction.HIGHER, "lower": Direction.LOWER}

_FACTORS = {**SECONDS_PER_UNIT, "%": 0.01, "": 1.0}

_STARTED = ("started", "timestamp", "date", "time")


@dataclass(frozen=True, slots=True)
class Column:
    """Map a column of a table to a metric.

    Attributes:
        factor: Number by which a cell is multiplied, to convert it to the metric's unit.
    """

    metric: str
    name: str
    factor: float
    quantity: Quantity


def column_of(text: str) -> Column:
    """Parse the option text METRIC=COLUMN[:UNIT[:higher|lower]].

    Raises:
        ValueError: The text has another form, or the unit does not fit the metric.
    """
    metric, _, rest = text.partition("=")
    name, unit, direction = (*rest.split(":"), "", "")[:3]
    if not (metric and name) or rest.count(":") > 2 or direction not in {"", *_DIRECTIONS}:
        raise ValueError(f"{text!r} is not METRIC=COLUMN[:UNIT[:higher|lower]]")
    quantity = named(metric)
    if quantity and direction and _DIRECTIONS[direction] is not quantity.direction:
        raise ValueError(f"{text!r}: for {metric}, {quantity.direction} is better")
    in_seconds = quantity.unit == "s" if quantity else unit in SECONDS_PER_UNIT
    if quantity and in_seconds and unit not in SECONDS_PER_UNIT:
        units = ", ".join(("s", "ms", "us", "ns"))
        raise ValueError(f"{text!r}: {metric} is a time; add its unit, one of {units}")
    shown = "s" if in_seconds else "" if unit == "%" else unit
    defined = quantity or Quantity(metric, shown, _DIRECTIONS.get(direction, Direction.NEITHER))
    return Column(metric, name, _FACTORS.get(unit, 1.0), defined)


def reader_of(columns: Sequence[Column], points: Sequence[str]) -> Reader:
    """Create a reader of tables with these value columns; columns `points` name the benchmark."""

    def read(document: ResultFile) -> Iterator[ToolRun]:
        rows = [JsonObject(row) for row in document.rows or document.objects]
        measured = [*points, *(column.name for column in columns)]
        there = dict.fromkeys(name for row in rows for name in row)
        if lacking := [name for name in measured if name not in there]:
            listed = ", ".join(there) or "none"
            raise MlperfError(
                f"{document.path}: no column {lacking[0]!r}; its columns are {listed}"
            )
        repeats: dict[str, int] = defaultdict(int)
        runs: dict[int, list[tuple[ToolPoint, JsonObject]]] = defaultdict(list)
        for row in rows:
            point = _point(row, columns, points)
            runs[repeats[point.name]].append((point, row))
            repeats[point.name] += 1
        for number, parts in sorted(runs.items()):
            first = parts[0][1]
            run = run_of(
                document,
                "table",
                points=tuple(point for point, _ in parts),
                started=next(filter(None, map(first.moment, _STARTED)), None),
                host=first.text("host"),
                commit=first.text("commit"),
                details=first.texts(*(name for name in first if name not in measured)),
            )
            mark = f"-{number + 1}" if number else ""
            yield replace(run, source=f"{run.source}{mark}", digest=f"{run.digest}{mark}")

    return Reader(title="a table", recognise=lambda document: False, read=read)  # noqa: ARG005


_AMOUNT = re.compile(r"(?P<number>[-+.0-9eE]+)\s*(?P<unit>[a-zA-Zµμ%]+)")


def _figure(value: Any, column: Column) -> tuple[Any, float]:
    """Return (number, unit factor) of a cell; a unit written in the cell overrides the column's."""
    if not isinstance(value, str):
        return value, column.factor
    amount = _AMOUNT.fullmatch(value.strip())
    of_units = SECONDS_PER_UNIT if column.quantity.unit == "s" else {"%": 0.01}
    if amount and amount["unit"] in of_units:
        value, factor = amount["number"], of_units[amount["unit"]]
    else:
        factor = column.factor
    with contextlib.suppress(ValueError):
        value = float(value)
    return None if value == "" else value, factor


def _point(row: Mapping[str, Any], columns: Sequence[Column], points: Sequence[str]) -> ToolPoint:
    values = Values()
    for column in columns:
        values.add(column.metric, *_figure(row.get(column.name), column))
    return values.point(
        ", ".join(f"{name} {row.get(name)}" for name in points) or "table",
        quantities={c.metric: c.quantity for c in columns if named(c.metric) is None},
    )

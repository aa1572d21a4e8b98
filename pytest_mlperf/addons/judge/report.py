"""Write a comparison for people and programs: text, JSON, Markdown, JUnit, annotations."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pytest_mlperf import Outcome
from pytest_mlperf.addons.judge.files import readers
from pytest_mlperf.addons.judge.rows import NOT_PROVEN, FileComparison, Row
from pytest_mlperf.core.numbers import change, interval, percent, plural, rounded
from pytest_mlperf.core.untrusted_text import json_text, markdown_text, visible
from pytest_mlperf.extension import broken
from pytest_mlperf.judge.inputs import Direction
from pytest_mlperf.reports.terminal.layout import fold, paragraphs, table

VERDICT_COLUMNS = ("verdict", "metric", "before", "now", "change", "interval", "limit", "runs")

FAILING = (Outcome.PERF_DROP, Outcome.ACC_DROP, Outcome.INVALID)

UNDECIDED = (Outcome.SUSPECT, Outcome.PROVISIONAL, Outcome.INCONCLUSIVE)

_TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (0.0, "ns"))


def headline(result: FileComparison) -> str:
    """Return the first line: the outcome, and the row that decided it."""
    outcome = result.outcome
    deciding = [row for row in result.rows if row.outcome is outcome]
    words = str(outcome)
    if result.one_session and outcome not in FAILING:
        words += f"  {NOT_PROVEN}"
        return f"{words}; give runs of further days or hosts, or alternate both sides (--plan)"
    if not deciding:
        return f"{words}  no metric could be judged"
    row = deciding[0]
    more = f", and {len(deciding) - 1} more" if len(deciding) > 1 else ""
    if outcome in {Outcome.OK, Outcome.IMPROVED}:
        judged = sum(one.outcome is not None for one in result.rows)
        return f"{words}  {plural(judged, 'metric')} within the limits"
    moved = "" if row.change is None or outcome is Outcome.INVALID else f" {changed(row)}"
    reason = f": {row.note}" if row.note and outcome is Outcome.INVALID else ""
    if outcome is Outcome.INCONCLUSIVE:
        more += "; give more runs, or alternate both sides (--plan)"
    return f"{words}  {row.quantity.title}{moved} at {row.point}{reason}{more}"


def lines(result: FileComparison, sides: Sequence[str], width: int) -> list[str]:
    """Return the report for a terminal."""
    text = [*fold(headline(result), width, rest=" " * 10)]
    for label, side in zip(("before", "now"), sides, strict=True):
        text += paragraphs(label, [side], width)
    rows = [row for row in result.rows if row.outcome or row.note]
    cells = [cells_of(row) for row in rows]
    head, *body = table(
        VERDICT_COLUMNS,
        cells,
        width - 2,
        left=["verdict", "metric"],
        spare=["runs", "interval", "before"],
    )
    text += ["", f"  {head}"] if rows else [""]
    last = ("", "")
    for row, line in zip(rows, body, strict=True):
        if (row.tool, row.point) != last:
            last = (row.tool, row.point)
            text.append(visible(f"{row.point}  ({_title(row.tool)})"))
        text.append(f"  {line}")
        if row.note:
            text += fold(row.note, width, first="    ", rest="    ")
    text.append("")
    text += paragraphs("changed", list(result.changed), width)
    text += paragraphs("note", list(result.notes), width)
    text += paragraphs("judged", [result.how] if result.how else [], width)
    counts = Counter(str(row.outcome) for row in result.rows if row.outcome)
    listing = ", ".join(f"{count} {word}" for word, count in counts.items())
    others = len(result.rows) - len(rows)
    more = f"; {plural(others, 'other figure')} in --report json=FILE" if others else ""
    text += fold(f"{plural(counts.total(), 'metric')}: {listing or 'none judged'}{more}", width)
    return text


def _title(tool: str) -> str:
    return readers()[tool].title if tool in readers() else tool


def cells_of(row: Row) -> dict[str, str]:
    """Return the texts of a row by column."""
    cells = {"verdict": str(row.outcome or "reported"), "metric": row.quantity.title}
    if row.direction:
        cells["verdict"] += f", probably {'ok' if row.direction == 'ok' else 'a drop'}"
    for name, value in (("before", row.before), ("now", row.now)):
        if value is not None:
            unit = row.quantity.unit
            cells[name] = amount(
                value, "" if row.quantity.title.startswith(unit) or "/s" in unit else unit
            )
    if row.change is not None and row.outcome is not Outcome.INVALID:
        cells["change"] = changed(row)
    if row.low is not None and row.high is not None and row.outcome is not Outcome.INVALID:
        cells["interval"] = (
            f"{_points(row.low)} to {_points(row.high)}"
            if row.absolute
            else interval(row.low, min(row.high, 1e6))
        )
    if row.limit is not None:
        cells["limit"] = ("+" if row.quantity.direction is Direction.LOWER else "−") + percent(
            row.limit
        )
    if any(row.runs):
        cells["runs"] = ", ".join(map(str, row.runs))
    return cells


def changed(row: Row) -> str:
    """Return the change of a row as text: in per cent, for a score in points."""
    assert row.change is not None
    return _points(row.change) if row.absolute else change(row.change)


def _points(value: float) -> str:
    if not math.isfinite(value):
        return "unknown"
    return ("−" if value < 0 else "+") + f"{abs(value):.3g}"


def amount(value: float, unit: str) -> str:
    """Return a value with its unit; times in s, ms, µs or ns."""
    if unit == "s":
        factor, name = next((f or 1e-9, n) for f, n in _TIME_UNITS if value >= f * 0.99995 or not f)
        return f"{rounded(value / factor)} {name}"
    return f"{rounded(value)} {unit}".strip()


def as_json(result: FileComparison, sides: Sequence[str]) -> str:
    """Return the comparison as JSON; each value has its unit."""
    content: dict[str, Any] = {
        "schema": 1,
        "outcome": str(result.outcome),
        "headline": headline(result),
        "sides": {"before": sides[0], "now": sides[1]},
        "one_session": result.one_session,
        "interleaved": result.interleaved,
        "changed": result.changed,
        "notes": result.notes,
        "judged": result.how,
        "rows": [_json_row(row) for row in result.rows],
    }
    return json_text(content) + "\n"


def _json_row(row: Row) -> dict[str, Any]:
    figures = {
        name: value if value is None or math.isfinite(value) else None
        for name in ("before", "now", "change", "low", "high", "limit", "p")
        for value in [getattr(row, name)]
    }
    return {
        "tool": row.tool,
        "point": row.point,
        "metric": row.metric,
        "unit": row.quantity.unit,
        "better": str(row.quantity.direction),
        "outcome": None if row.outcome is None else str(row.outcome),
        "direction": row.direction,
        **figures,
        "runs": list(row.runs),
        "sessions": list(row.sessions),
        "note": row.note,
    }


def as_markdown(result: FileComparison, sides: Sequence[str]) -> str:
    """Return the comparison as a Markdown table, for summaries and comments."""
    text = [f"**{markdown_text(headline(result))}**", ""]
    names = ("point", *VERDICT_COLUMNS)
    text += [f"| {' | '.join(names)} |", "|" + "---|" * len(names)]
    for row in result.rows:
        cells = {"point": row.point, **cells_of(row)}
        cells["verdict"] += f": {row.note}" if row.note else ""
        line = " | ".join(markdown_text(cells.get(name, "")) for name in names)
        text.append(f"| {line} |")
    text += [
        "",
        *(
            f"- {name}: {markdown_text(side)}"
            for name, side in zip(("before", "now"), sides, strict=True)
        ),
    ]
    remarks = (*result.changed, *result.notes, result.how)
    text += [f"- {markdown_text(note)}" for note in remarks if note]
    return "\n".join(text) + "\n"


def as_junit(result: FileComparison, sides: Sequence[str]) -> str:
    """Return the comparison as JUnit XML: a test for each row, failed if its outcome fails."""
    rows = [row for row in result.rows if row.outcome is not None]
    failed = [row for row in rows if row.outcome in FAILING]
    root = ET.Element("testsuites")
    suite = ET.SubElement(root, "testsuite", name="pytest-mlperf judge")
    suite.attrib.update(
        {"tests": str(len(rows)), "failures": str(len(failed)), "errors": "0", "skipped": "0"}
    )
    for row in rows:
        name = visible(f"{row.metric}[{row.point}]")
        test = ET.SubElement(suite, "testcase", classname=visible(row.tool), name=name, time="0")
        text = visible(
            f"{row.outcome} {'; '.join(filter(None, cells_of(row).values()))} {row.note}"
        )
        if row in failed:
            ET.SubElement(test, "failure", message=text.strip()).text = visible(" ".join(sides))
        else:
            ET.SubElement(test, "system-out").text = text.strip()
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def as_annotations(result: FileComparison, sides: Sequence[str]) -> str:  # noqa: ARG001
    """Return GitHub's workflow commands: an error for a failing row, a warning if undecided."""
    commands = []
    for row in result.rows:
        level = "error" if row.outcome in FAILING else "warning"
        if row.outcome in {None, Outcome.OK, Outcome.IMPROVED}:
            continue
        moved = f" {changed(row)}" if row.change is not None else ""
        text = broken(
            f"{row.outcome} {row.quantity.title}{moved} at {row.point} {row.note}".strip()
        )
        commands.append(f"::{level}::{text.replace('%', '%25')}")
    return "".join(f"{command}\n" for command in commands)


FORMATS: Mapping[str, Callable[[FileComparison, Sequence[str]], str]] = {
    "json": as_json,
    "markdown": as_markdown,
    "junit": as_junit,
    "annotations": as_annotations,
}

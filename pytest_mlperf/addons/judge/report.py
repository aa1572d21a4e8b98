"""Format a comparison of result files as text for a terminal."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from pytest_mlperf import Outcome
from pytest_mlperf.addons.judge.files import title_of
from pytest_mlperf.addons.judge.rows import FileComparison, Row
from pytest_mlperf.core.numbers import change, interval, rounded
from pytest_mlperf.extension import percent, plural
from pytest_mlperf.reports.terminal.layout import fold, paragraphs, table

VERDICT_COLUMNS = ("verdict", "metric", "before", "now", "change", "interval", "limit", "runs")

FAILING = (Outcome.PERF_DROP, Outcome.ACC_DROP, Outcome.INVALID)

MAX_TITLE = 28

SIDES = ("before", "now")

_TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (0.0, "ns"))


def headline(result: FileComparison) -> str:
    """Return the first line of the report: the outcome, and the metric that decided it."""
    outcome = result.outcome
    deciding = [row for row in result.rows if row.outcome is outcome]
    words = str(outcome)
    if result.one_session and outcome not in FAILING:
        cure = "give runs from other days or hosts, or alternate both sides (--plan)"
        return f"{words}  not proven: one session per side; {cure}"
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
    """Return the lines of the report; `sides` are the labels of baseline and new runs."""
    text = [*fold(headline(result), width, rest=" " * 10)]
    for label, side in zip(SIDES, sides, strict=True):
        text += paragraphs(label, [side], width)
    rows = [row for row in result.rows if row.outcome or row.note]
    cells = [cells_of(row) for row in rows]
    cells = [of | {"metric": shortened(of["metric"], MAX_TITLE)} for of in cells]
    left, spare = ["verdict", "metric"], ["runs", "interval", "before", "limit"]
    head, *body = table(cells, width, left=left, spare=spare, columns=VERDICT_COLUMNS, indent="  ")
    text += ["", head] if rows else [""]
    last = ("", "")
    for row, line in zip(rows, body, strict=True):
        if (row.tool, row.point) != last:
            last = (row.tool, row.point)
            text += fold(f"{row.point}  ({title_of(row.tool)})", width, rest="  ")
        text.append(line)
        if row.note:
            text += fold(row.note, width, first="    ", rest="    ")
    text.append("")
    text += paragraphs("changed", list(result.changed), width)
    text += paragraphs("note", list(result.notes), width)
    text += paragraphs("judged", [result.how], width)
    counts = Counter(str(row.outcome) for row in result.rows if row.outcome)
    listing = ", ".join(f"{count} {word}" for word, count in counts.items())
    others = len(result.rows) - len(rows)
    more = f"; {plural(others, 'other figure')} in --report csv=FILE" if others else ""
    text += fold(f"{plural(counts.total(), 'metric')}: {listing or 'none judged'}{more}", width)
    return text


def shortened(text: str, size: int) -> str:
    """Shorten a text to at most `size` characters by cutting out its middle."""
    return text if len(text) <= size else f"{text[: size - 12]}…{text[-11:]}"


def cells_of(row: Row) -> dict[str, str]:
    """Return a row's table cells by column; leave out empty ones."""
    unit, valid = row.quantity.unit, row.outcome is not Outcome.INVALID
    unit = "" if row.quantity.title.startswith(unit) or "/s" in unit else unit
    cells = {
        "verdict": " ".join(filter(None, (str(row.outcome or "reported"), row.direction))),
        "metric": row.quantity.title,
        "before": "" if row.before is None else amount(row.before, unit),
        "now": "" if row.now is None else amount(row.now, unit),
        "change": "" if row.change is None or not valid else changed(row),
        "limit": "" if row.limit is None else f"{'+' if row.sign < 0 else '−'}{percent(row.limit)}",
        "runs": ", ".join(map(str, row.runs)) if any(row.runs) else "",
    }
    if row.low is not None and row.high is not None and valid:
        ends = f"{_points(row.low)} to {_points(row.high)}"
        cells["interval"] = ends if row.absolute else interval(row.low, min(row.high, 1e6))
    return {name: text for name, text in cells.items() if text}


def failure(row: Row, result: FileComparison, sides: Sequence[str], width: int) -> str:
    """Return the failure message of a row's test: verdict, both sides, and how it was judged."""
    cells = cells_of(row)
    moved = f"{cells['change']} (limit {cells['limit']})" if "change" in cells else ""
    words = (str(row.outcome), row.quantity.title, moved, "at", row.point)
    note = f": {row.note}" if row.note else ""
    text = fold(" ".join(filter(None, words)) + note, width)
    for label, texts in (*zip(SIDES, sides, strict=True), ("judged", result.how)):
        text += paragraphs(label, [texts], width) if texts else []
    return "\n".join([*text, *paragraphs("changed", result.changed, width)])


def changed(row: Row) -> str:
    """Return the change of a row as text: in per cent, or in points for a score."""
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

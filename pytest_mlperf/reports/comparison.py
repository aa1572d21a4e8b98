"""The table of a comparison: what changed between two sides, case by case."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_mlperf.core.verdict import SEVERITY, MetricVerdict, Outcome
from pytest_mlperf.reports.cells import metric_cells
from pytest_mlperf.reports.layout import Row, fold, paragraph, paragraphs, plural, table, unbroken

COLUMNS = ("verdict", "metric", "A", "B", "change", "interval", "limit", "runs")


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One case that both sides have.

    Attributes:
        case: Its id.
        outcome: The word for it.
        metrics: One entry per metric, gated first; `baseline` is A, `now` is B.
        reason: Why it may not be judged; "" where it was.
        changed: What differs between the fingerprints: "engine.version 1.2.0 → 1.2.1".
        notes: Sentences about the case.
    """

    case: str
    outcome: Outcome
    metrics: tuple[MetricVerdict, ...] = ()
    reason: str = ""
    changed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def comparison(
    compared: Sequence[Compared],
    sides: Sequence[str],
    alone: Mapping[str, Sequence[str]],
    notes: Sequence[str],
    width: int,
) -> list[str]:
    """Return the table, what changed, what could not be compared, and one line of counts.

    Args:
        compared: The cases that both sides have.
        sides: What A and B are.
        alone: Case ids that only one side has, by "A" and "B".
        notes: Sentences about the sides.
        width: Columns.
    """
    lines = [
        line
        for label, text in zip("AB", sides, strict=True)
        for line in paragraph(label, text, width)
    ]
    lines += ["", *_table(compared, width)] if compared else []
    lines += paragraphs("changed", _changed(compared), width)
    for label, cases in alone.items():
        lines += paragraphs(f"only {label}", cases, width)
    lines += paragraphs("note", [*_notes(compared), *notes], width)
    return [*lines, *fold(_counts(compared), width)]


def _table(compared: Sequence[Compared], width: int) -> list[str]:
    rows = [(one, row) for one in compared for row in _rows(one)]
    cells = [row for _, row in rows]
    head, *body = table(
        COLUMNS,
        cells,
        width - 2,
        left=["verdict", "metric"],
        spare=["runs", "limit", "A", "interval"],
    )
    lines, last = [f"  {head}"], ""
    for (one, row), text in zip(rows, body, strict=True):
        if one.case != last:
            last = one.case
            lines.append(one.case)
        lines.append(f"  {text}")
        if one.reason and row.get("verdict"):
            lines += fold(one.reason, width, first="    ", rest="    ")
    return lines


def _rows(one: Compared) -> list[Row]:
    """Return one row per gated metric, at least one per case."""
    gated = [metric for metric in one.metrics if metric.outcome is not None]
    if one.reason or not (gated or one.metrics):
        return [{"verdict": str(one.outcome)}]
    return [_cells(metric, one) for metric in gated or one.metrics[:1]]


def _cells(metric: MetricVerdict, one: Compared) -> Row:
    cells = metric_cells(metric)
    return {
        **cells,
        "verdict": str(metric.outcome or one.outcome),
        "A": cells["baseline"],
        "B": cells["now"],
        "runs": f"{metric.runs_baseline}, {metric.runs}",
    }


def _changed(compared: Sequence[Compared]) -> list[str]:
    """Return each difference once, with how many cases have it where that is not all."""
    counts = Counter(text for one in compared for text in one.changed)
    if not counts:
        nothing = "nothing that is recorded: engine, weights, options and data are the same"
        return [nothing] if compared else []
    return [
        text if count == len(compared) else f"{text} ({plural(count, 'case')})"
        for text, count in counts.items()
    ]


def _notes(compared: Sequence[Compared]) -> list[str]:
    """Return each note once: with its case, or with how many cases have it."""
    cases = defaultdict(list)
    for one in compared:
        for note in one.notes:
            cases[note].append(one.case)
    return [
        f"{found[0]}: {note}" if len(found) == 1 else f"{note} ({len(found)} cases)"
        for note, found in cases.items()
    ]


def _counts(compared: Sequence[Compared]) -> str:
    counts = Counter(one.outcome for one in compared)
    shown = ", ".join(unbroken(f"{counts[word]} {word}") for word in SEVERITY if counts[word])
    return f"{plural(len(compared), 'case')} on both sides{': ' if shown else ''}{shown}"

"""Format the comparison of two sets of results, A and B."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_mlperf.core.metrics import title
from pytest_mlperf.core.numbers import plural
from pytest_mlperf.core.verdict import SEVERITY, MetricVerdict, Outcome
from pytest_mlperf.reports.failures import NO_DIFFERENCE
from pytest_mlperf.reports.rows import metric_cells
from pytest_mlperf.reports.sentences import sentence
from pytest_mlperf.reports.terminal.layout import Row, fold, paragraphs, table, unbroken

COLUMNS = ("verdict", "metric", "A", "B", "change", "interval", "limit", "runs")


@dataclass(frozen=True, kw_only=True)
class ComparedCase:
    """Hold one case that is in both A and B.

    Attributes:
        metrics: One entry per metric, gated first; `baseline` is A, `now` is B.
        reason: Why the case may not be judged; "" if it was judged.
        changed: Differences of the fingerprints: "engine.version 1.2.0 → 1.2.1".
    """

    case: str
    outcome: Outcome
    metrics: tuple[MetricVerdict, ...] = ()
    reason: str = ""
    changed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def comparison(
    compared: Sequence[ComparedCase],
    sides: Sequence[str],
    alone: Mapping[str, Sequence[str]],
    notes: Sequence[str],
    width: int,
) -> list[str]:
    """Format a comparison as lines: a table, changes, cases not compared, and counts.

    Args:
        sides: Descriptions of A and B.
        alone: Ids of cases that only one of them has, by "A" and "B".
    """
    lines = [*paragraphs("A", sides[:1], width), *paragraphs("B", sides[1:], width)]
    lines += ["", *_table(compared, width)] if compared else []
    lines += paragraphs("changed", _changed(compared), width)
    for label, cases in alone.items():
        lines += paragraphs(f"only {label}", cases, width)
    lines += paragraphs("note", [*_notes(compared), *notes], width)
    return [*lines, *fold(_counts(compared), width)]


def _table(compared: Sequence[ComparedCase], width: int) -> list[str]:
    rows = [(entry, row) for entry in compared for row in _rows(entry)]
    cells = [row for _, row in rows]
    left, spare = ["verdict", "metric"], ["runs", "limit", "A", "interval"]
    head, *body = table(cells, width, left=left, spare=spare, columns=COLUMNS, indent="  ")
    lines, last = [head], ""
    for (entry, row), text in zip(rows, body, strict=True):
        if entry.case != last:
            last = entry.case
            lines.append(entry.case)
        lines.append(text)
        if entry.reason and row.get("verdict"):
            lines += fold(entry.reason, width, first="    ", rest="    ")
    return lines


def _rows(entry: ComparedCase) -> list[Row]:
    gated = [metric for metric in entry.metrics if metric.outcome is not None]
    if entry.reason or not (gated or entry.metrics):
        return [{"verdict": str(entry.outcome)}]
    return [
        {
            **(cells := metric_cells(metric)),
            "verdict": str(metric.outcome or entry.outcome),  # what it leans to is noted
            "A": cells["baseline"],
            "B": cells["now"],
            "runs": f"{metric.baseline.runs}, {metric.runs}",
        }
        for metric in gated or entry.metrics[:1]
    ]


def _changed(compared: Sequence[ComparedCase]) -> list[str]:
    counts = Counter(text for entry in compared for text in entry.changed)
    if not counts:
        return [NO_DIFFERENCE] if compared else []
    return [
        text if count == len(compared) else f"{text} ({plural(count, 'case')})"
        for text, count in counts.items()
    ]


def _notes(compared: Sequence[ComparedCase]) -> list[str]:
    cases = defaultdict(list)
    for entry in compared:
        explained = [
            f"{metric.outcome} {title(metric.metric)}, {sentence(metric.note)}"
            for metric in entry.metrics
            if metric.outcome is not None and metric.note
        ]
        for note in (*explained, *map(sentence, filter(None, entry.notes))):
            cases[note].append(entry.case)
    return [
        f"{found[0]}: {note}" if len(found) == 1 else f"{note} ({len(found)} cases)"
        for note, found in cases.items()
    ]


def _counts(compared: Sequence[ComparedCase]) -> str:
    counts = Counter(entry.outcome for entry in compared)
    shown = ", ".join(unbroken(f"{counts[word]} {word}") for word in SEVERITY if counts[word])
    return f"{plural(len(compared), 'case')} in both results{': ' if shown else ''}{shown}"

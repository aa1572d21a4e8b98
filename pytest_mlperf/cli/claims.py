"""`published --claims`: printed figures, each of which holds, is refuted or cannot be checked."""

from __future__ import annotations

import csv
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pytest_mlperf.cli.limits import refuted
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.foreign_text import json_text, nearest
from pytest_mlperf.reports.terminal.layout import Row, fold, table
from pytest_mlperf.rounds.printed import PRINTED_ON, PrintedFigure, printed_figures
from pytest_mlperf.rounds.published import ROUND, known_claims, official_results

ROUNDING = 0.025
"""A ratio may be so much off: what is printed is rounded."""

NEARLY = 0.9
"""The least part of a number that one may call nearly that number."""


class HoldsUp(StrEnum):
    """What can be counted of a printed figure."""

    HOLDS = "holds"
    REFUTED = "refuted"
    OPEN = "not checkable"


@dataclass(frozen=True, kw_only=True)
class CheckedFigure:
    """A printed figure, what can be counted of it, and by which numbers."""

    figure: PrintedFigure
    answer: HoldsUp
    reason: str


def checked(workload: str | None, scenario: str | None = None) -> list[CheckedFigure]:
    """Return every figure, or those of a workload and scenario, with what can be counted of it.

    Raises:
        MlperfError: No page prints anything of them.
    """
    figures = [one for one in printed_figures() if workload in (None, one.workload)]
    if figures and scenario is not None:
        figures = [one for one in figures if one.scenario == scenario]
        if not figures:
            of = f" of {workload}" if workload else ""
            raise MlperfError(f"nothing is printed{of} in {scenario}")
    if not figures:
        names = sorted({one.workload for one in printed_figures()})
        raise MlperfError(f"nothing is printed of {workload!r}{nearest(str(workload), names)}")
    return [check(one) for one in figures]


def check(figure: PrintedFigure) -> CheckedFigure:
    """Hold one figure against what there is."""
    line = figure.line
    if figure.how == "limit":
        line = int(figure.source.partition(":")[2])
    claim = next((c for c in known_claims() if (c.page, c.line) == (figure.page, line)), None)
    measured = figure.how in {"official", "limit"}
    reasons = refuted(claim).reasons if claim and measured else ()
    if reasons and claim:
        rests = "" if claim.value == figure.value else f"rests on {claim.text} {claim.unit}, "
        return _answer(figure, HoldsUp.REFUTED, rests + "; ".join(reasons))
    if figure.how == "official":
        return _against_result(figure)
    if figure.how in {"ratio", "watt"}:
        return _against_ratio(figure)
    return _answer(figure, HoldsUp.OPEN, figure.source)


def _answer(figure: PrintedFigure, answer: HoldsUp, reason: str) -> CheckedFigure:
    return CheckedFigure(figure=figure, answer=answer, reason=reason)


def _against_result(figure: PrintedFigure) -> CheckedFigure:
    """Hold a figure against the result that its page names."""
    asked = (figure.system, figure.model, figure.scenario)
    results = [r for r in official_results(ROUND) if (r.system, r.model, r.scenario) == asked]
    if not results:
        return _answer(figure, HoldsUp.OPEN, f"the package has no such result of {figure.system}")
    value = min((r.value for r in results), key=lambda one: abs(one - figure.value))
    holds = abs(value - figure.value) <= _half_step(figure.text)
    against = f"official {ROUND}: {value:,.6g} {figure.unit}, {figure.system}"
    return _answer(figure, HoldsUp.HOLDS if holds else HoldsUp.REFUTED, against)


def _half_step(text: str) -> float:
    """Return half of the last digit's step: 0.05 of "13.8", and a bit for what is stored."""
    decimals = len(text.partition(".")[2])
    return 0.5001 * 10.0**-decimals


def _against_ratio(figure: PrintedFigure) -> CheckedFigure:
    """Hold a figure against the two numbers that it must be the ratio of."""
    assert figure.top is not None
    assert figure.bottom is not None
    ratio, printed = figure.top / figure.bottom, figure.value
    if figure.unit == "%" and figure.qualifier != "share":
        printed = 1 + figure.value / 100
    low, high = printed * (1 - ROUNDING), printed * (1 + ROUNDING)
    if figure.qualifier == "most":
        low = 0.0
    elif figure.qualifier == "nearly":
        low = printed * NEARLY
    elif figure.qualifier == "exact":
        low = high = printed
    elif figure.how == "watt":  # printed with as few digits as one
        step = _half_step(figure.text)
        low, high = printed - step, printed + step
    numbers = f"{ratio:.4g}"
    if figure.bottom != 1:
        numbers = f"{figure.top:,.6g} / {figure.bottom:,.6g} = {ratio:.4g}"
    elif figure.qualifier == "exact":
        numbers = ""
    answer = HoldsUp.HOLDS if low <= ratio <= high else HoldsUp.REFUTED
    return _answer(figure, answer, ", ".join(filter(None, (numbers, figure.source))))


# --- what is printed -------------------------------------------------------------------------


COLUMNS = ("page", "line", "workload", "scenario", "figure", "text", "answer", "reason")


def cells(one: CheckedFigure) -> Row:
    """Return a figure as a row of text."""
    figure = one.figure
    return {
        "page": figure.page,
        "line": str(figure.line),
        "workload": figure.workload,
        "scenario": figure.scenario,
        "figure": figure.what_of,
        "text": figure.text,
        "answer": str(one.answer),
        "reason": one.reason,
    }


def listing(figures: Sequence[CheckedFigure], columns: int) -> Iterator[str]:
    """Yield a table, what the pages are, and how many figures have which answer."""
    names = [name for name in COLUMNS if name != "reason"]
    left = [name for name in names if name not in {"line"}]
    head, *rows = table(names, [cells(one) for one in figures], columns, left=left)
    yield head
    for row, one in zip(rows, figures, strict=False):
        yield row
        yield from (f"    {line}" for line in fold(one.reason, columns - 4))
    yield ""
    for page in dict.fromkeys(one.figure.page for one in figures):
        yield from fold(f"{page}: {PRINTED_ON[page]}", columns, rest="   ")
    counts = Counter(one.answer for one in figures)
    counted = ", ".join(f"{counts[answer]} {answer}" for answer in HoldsUp)
    yield f"{len(figures)} figures: {counted}"


def write(figures: Sequence[CheckedFigure], form: str) -> None:
    """Print the figures for programs, as CSV or JSON."""
    rows = [cells(one) for one in figures]
    if form == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows([row[name] for name in COLUMNS] for row in rows)
        return
    print(json_text({"schema": 1, "kind": "pytest-mlperf claims", "figures": rows}))

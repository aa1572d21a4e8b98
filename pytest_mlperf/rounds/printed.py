"""Every figure that four pages print of MLPerf Inference and of GPU speeds, and what can show it.

`printed.csv` has 132 measurements and 49 claims: numbers with page, line and unit, and for each
what it can be held against, which is one of

- official: a result of v4.1 in `official-results.csv.gz`;
- watt: a result of v4.1 and its mean power, as https://github.com/mlcommons/inference_results_v4.1
  has them;
- ratio: two numbers and where they are from, such as inference_results_v4.0 beside it;
- limit: what is physically possible, or official, as a line of `claims.toml` has it;
- none: nothing, and why.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

PRINTED_ON = {
    "A": "NVIDIA's tables of MLPerf Inference v4.1, data center",
    "B": "a third party's summary of GPU speeds",
    "C": "NVIDIA on its results of MLPerf Inference v4.0",
    "D": "NVIDIA on the speed of Llama models",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class PrintedFigure:
    """One number as a page prints it.

    Attributes:
        text: As printed; `value` in `unit` is what that means.
        how: What it can be held against.
        system, model: Of an official result.
        top, bottom: Two numbers whose ratio it must be; of `source`.
        qualifier: How the page means it: "most", "nearly", "exact", "share"; "": about that.
    """

    page: str
    line: int
    workload: str
    scenario: str
    what_of: str
    text: str
    value: float
    unit: str
    how: Literal["official", "watt", "ratio", "limit", "none"]
    system: str
    model: str
    top: float | None
    bottom: float | None
    source: str
    qualifier: str


@cache
def printed_figures() -> tuple[PrintedFigure, ...]:
    """Read the figures, page by page."""
    text = files(__package__).joinpath("printed.csv").read_text("utf-8")
    return tuple(_figure(row) for row in csv.DictReader(io.StringIO(text)))


def _figure(row: dict[str, Any]) -> PrintedFigure:
    numbers = {name: float(row[name]) if row[name] else None for name in ("top", "bottom")}
    return PrintedFigure(**row | {"line": int(row["line"]), "value": float(row["value"])} | numbers)

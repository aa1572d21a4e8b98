"""The 132 measurements of three published pages, from `tests/data/published_measurements.csv`.

Page A is NVIDIA's tables of MLPerf v4.1, B a third party's summary, C NVIDIA's post on v4.0. `text`
and `unit_printed` are what the page prints, `unit` is what the number really is in, and `logged`,
`samples_per_s` and `path` are of the official result that the page rounds.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

Row = Mapping[str, str]

FILE = Path(__file__).parents[2] / "data" / "published_measurements.csv"

with FILE.open(newline="", encoding="utf-8") as _file:
    ROWS: list[Row] = list(csv.DictReader(_file))

BY_ID = {f"{row['page']}{row['line']}.{row['number']}": row for row in ROWS}

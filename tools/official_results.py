"""Pack MLCommons' official results for the wheel: JSON tables of rounds into one file.

    python tools/official_results.py --power inference_results_v4.1 v4_1.json v5_1.json ...

Each table is a JSON object with a list of rows, `rows` (as logged, of v4.1) or `results` (of later
rounds); the round is in the file's name. The order is kept, and equal tables are equal bytes.

The table of v4.1 has no power. With --power it is computed from the meters' logs (spl.txt) of a
checkout of the round's results, by the same functions as `pytest-mlperf import mlperf`. Where a
table has the power as well, the two must agree.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from pytest_mlperf.addons.official.results import read_result, result_folders
from pytest_mlperf.rounds.published import RESULTS_FILE, OfficialResult

TARGET = Path(__file__).parents[1] / "pytest_mlperf" / "rounds" / RESULTS_FILE

RESULT_COLUMNS = tuple(field.name for field in fields(OfficialResult))

STATISTICS = {
    "early_stopping_latency_ss": "p90 with early stopping",
    "early_stopping_latency_ms": "p99 with early stopping",
    "result_inferred_tokens_per_second": "69 tokens a sample",
    "result_inferred_completed_tokens_per_second": "69 tokens a sample",
}
"""What values of v4.1 are, by the log's key; GPT-J's tokens were never counted."""

TOKENS = {("whisper", "samples/s"), ("llama3.1-8b", "queries/s")}
"""Units that the tables print for tokens/s: 31,674 "samples/s" of whisper on eight H200 would be
3,959 half minutes of audio a second on each."""

NO_ACCELERATOR = {"N/A"}


def rows_of(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table by the names of `RESULT_COLUMNS`."""
    content = json.loads(path.read_text("utf-8"))
    name = re.search(r"v(\d)_(\d)", path.name)
    if name is None:
        raise SystemExit(f"{path}: its name has no round such as v6_1")
    for raw in content.get("rows") or content["results"]:
        own = {
            "round": f"v{name[1]}.{name[2]}",
            "system": raw.get("system_id") or raw.get("platform"),
            "count": raw.get("accelerators_total", raw.get("accelerators")),
            "model": raw.get("model") or raw.get("workload"),
            "statistic": raw.get("statistic") or STATISTICS.get(raw.get("metric", ""), ""),
            "harness": raw.get("harness", "loadgen"),
            "inferred": "yes" if raw.get("inferred") else "",
        }
        row = {column: own.get(column, raw.get(column)) for column in RESULT_COLUMNS}
        if (row["model"], row["unit"]) in TOKENS:
            row["unit"] = "tokens/s"
        if row["accelerator"] in NO_ACCELERATOR:
            row["accelerator"] = ""
        if row["used_model"] == row["model"]:
            row["used_model"] = ""
        yield row


Powers = dict[tuple[str, ...], tuple[float, str]]
"""Power and its unit by round and `KEY`."""

KEY = ("round", "division", "submitter", "system", "model", "used_model", "scenario")

POWER_TOLERANCE = 1e-9
"""Largest relative difference of two computations from one log."""


def powers_in(checkouts: Sequence[Path]) -> Powers:
    """Return the power of each measured result in checkouts of rounds' results."""
    powers: Powers = {}
    for checkout in checkouts:
        for place in result_folders(checkout):
            if (place.runs[0] / "spl.txt").exists():
                row = read_result(place).row
                key = tuple(getattr(row, name) for name in KEY)
                powers[key] = (row.power or math.nan, row.power_unit)
    return powers


def with_power(row: dict[str, Any], powers: Powers) -> Mapping[str, Any]:
    """Return a row with the power of its log; raise SystemExit if its table has another one."""
    key = tuple(row[name] or "" for name in KEY)
    power, unit = powers.pop(key, (row["power"], row["power_unit"]))
    if not row["power"]:
        return {**row, "power": power, "power_unit": unit}
    if not math.isclose(row["power"], power, rel_tol=POWER_TOLERANCE):
        raise SystemExit(f"{' '.join(key)}: its table has {row['power']}, its log {power} {unit}")
    return row


def packed(tables: Sequence[Path], checkouts: Sequence[Path]) -> bytes:
    """Return the file of these tables, with the power that is measured in checkouts."""
    powers = powers_in(checkouts)
    text = io.StringIO()
    writer = csv.DictWriter(text, RESULT_COLUMNS, lineterminator="\n")
    writer.writeheader()
    for path in tables:
        writer.writerows(with_power(row, powers) for row in rows_of(path))
    if powers:
        lines = "\n".join(map(" ".join, powers))
        raise SystemExit(f"in no table, though their power was measured:\n{lines}")
    return gzip.compress(text.getvalue().encode(), 9, mtime=0)


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--power", type=Path, action="append", default=[], metavar="CHECKOUT")
    parser.add_argument("tables", type=Path, nargs="+", metavar="TABLE")
    parsed = parser.parse_args()
    TARGET.write_bytes(packed(parsed.tables, parsed.power))


if __name__ == "__main__":
    main()

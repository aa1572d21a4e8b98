"""Pack MLCommons' official results for the wheel: JSON tables of rounds into one file.

    python tools/official_results.py mlperf_v4_1_results.json mlperf_v5_1_results.json ...

Each table is a JSON object with a list of rows, `rows` (as logged, of v4.1) or `results` (of later
rounds); the round is in the file's name. The order is kept, and equal tables are equal bytes.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_mlperf.rounds.published import RESULT_COLUMNS, RESULTS_FILE

TARGET = Path(__file__).parents[1] / "pytest_mlperf" / "rounds" / RESULTS_FILE

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


def main(paths: list[str]) -> None:
    """Write the file."""
    text = io.StringIO()
    writer = csv.DictWriter(text, RESULT_COLUMNS, lineterminator="\n")
    writer.writeheader()
    for path in paths:
        writer.writerows(rows_of(Path(path)))
    TARGET.write_bytes(gzip.compress(text.getvalue().encode(), 9, mtime=0))


if __name__ == "__main__":
    main(sys.argv[1:])

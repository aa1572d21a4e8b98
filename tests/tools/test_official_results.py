"""tools/official_results.py: power that tables lack, and tables that differ from the logs."""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest

from tests.addons.official.test_import_rounds import spl, submission, values

ROW = {
    "division": "closed",
    "submitter": "Somebody",
    "system_id": "box",
    "model": "resnet50",
    "scenario": "Offline",
    "value": 1234.5,
    "unit": "samples/s",
    "accelerator": "N/A",
}


@pytest.fixture(scope="module")
def tool(lib: Any) -> Any:
    return lib("official_results")


def power_of(tool: Any, tmp_path: Path, **others: Any) -> tuple[str, str]:
    """Pack a table of one row with a tree that measured 2,000 W; return the row's power."""
    submission(tmp_path / "tree", values("Offline", "v4.1"), spl=spl(range(600)))
    table = tmp_path / "mlperf_v4_1_results.json"
    table.write_text(json.dumps({"rows": [{**ROW, **others}]}), "utf-8")
    content = gzip.decompress(tool.packed([table], [tmp_path / "tree"])).decode()
    (row,) = csv.DictReader(io.StringIO(content))
    return row["power"], row["power_unit"]


def test_power_that_a_table_lacks_is_that_of_its_log(tool: Any, tmp_path: Path) -> None:
    assert power_of(tool, tmp_path) == ("2000.0", "W")


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"power": 2001.0, "power_unit": "W"}, "its table has 2001.0, its log 2000.0 W"),
        ({"system_id": "another"}, "in no table, though their power was measured"),
    ],
)
def test_a_table_that_differs_from_the_logs_is_refused(
    tool: Any, tmp_path: Path, others: dict[str, Any], message: str
) -> None:
    with pytest.raises(SystemExit, match=message):
        power_of(tool, tmp_path, **others)

"""Every fault in docs/validity.md names a test that is there."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs.pages import DOCS

TESTS = Path(__file__).resolve().parents[1]


def test_the_table_of_faults_names_tests_that_exist() -> None:
    table = (DOCS / "validity.md").read_text("utf-8").split("## Faults", 1)[1]
    rows = [row.rsplit("|", 2)[1] for row in table.splitlines() if row.startswith("| ")][1:]
    source = "\n".join(file.read_text("utf-8") for file in TESTS.rglob("test_*.py"))

    assert len(rows) > 15
    for row in rows:
        names = re.findall(r"`(\w+)`", row)
        assert names, row
        assert [name for name in names if f"def {name}(" not in source] == []

"""A module is left out only where all of its tests are deselected."""

from __future__ import annotations

from pathlib import Path

from tests.tiers import is_heavy, is_left_out

MARKED = "torch"  # joined below: the word itself would mark this file


def test_modules_are_left_out_where_no_test_of_them_is_selected(tmp_path: Path) -> None:
    """Any other expression, or no module: pytest decides."""
    files = {
        "test_loads.py": "import torch\n",
        "test_marked.py": f"pytestmark = pytest.mark.{MARKED}\n",
        "test_light.py": "import json  # torch\n",
        "conftest.py": "import json\n",
        "page.txt": "import torch\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text, "utf-8")
    heavy = {"test_loads.py", "test_marked.py"}

    assert {name for name in files if is_heavy(tmp_path / name)} == heavy
    assert {
        expression: {name for name in files if is_left_out(tmp_path / name, expression)}
        for expression in (
            "not process and not slow and not nightly and not quiet",
            "not torch and not nightly and not quiet",
            "torch and not nightly and not quiet",
            "torch or slow",
            "not slow or torch",
            "nightly and not quiet",
            "",
        )
    } == {
        "not process and not slow and not nightly and not quiet": heavy,
        "not torch and not nightly and not quiet": heavy,
        "torch and not nightly and not quiet": {"test_light.py"},
        "torch or slow": set(),
        "not slow or torch": set(),
        "nightly and not quiet": set(),
        "": set(),
    }

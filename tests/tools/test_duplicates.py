"""tools/duplicates.py: count pairs of places that share code; `make house` has the limit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def tool(lib: Any) -> Any:
    return lib("duplicates")


def lines(first: int, last: int) -> str:
    return "".join(f"step({number})\n" for number in range(first, last + 1))


def write(folder: Path, **modules: str) -> list[Path]:
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text, "utf-8")
    return [folder / f"{name}.py" for name in modules]


def test_a_passage_of_six_lines_or_more_is_one_pair(tool: Any, tmp_path: Path) -> None:
    """Three places are three pairs, and two may lie in one file."""
    files = write(tmp_path, a="one()\n" + lines(1, 9), b="\n\n" + lines(1, 9) + "two()\n")
    (pair,) = tool.pairs(files)
    assert (pair.first.stem, pair.first_line) == ("a", 2)
    assert (pair.second.stem, pair.second_line, pair.lines) == ("b", 3, 9)

    for count, pair_count in ((5, 0), (6, 1)):
        files = write(tmp_path, a=lines(1, count) + "one()\n", b=lines(1, count) + "two()\n")
        assert len(tool.pairs(files)) == pair_count
    files = write(tmp_path, a=lines(1, 6) + "one()\n" + lines(1, 6), b="two()\n" + lines(1, 6))
    assert [(pair.first.stem, pair.second.stem) for pair in tool.pairs(files)] == [
        ("a", "a"),
        ("a", "b"),
        ("a", "b"),
    ]


def test_only_code_counts(tool: Any, tmp_path: Path) -> None:
    plain = lines(1, 6)
    dressed = 'def f():\n    """Say it.\n\n    Twice.\n    """\n' + "".join(
        f"    step({number})\n    # why\n\n    (\n    )\n" for number in range(1, 7)
    )
    words = '"""' + "\n".join(f"word {number}" for number in range(9)) + '\n"""\n'

    (pair,) = tool.pairs(write(tmp_path, a=plain, b=dressed, c=words, d=words))

    assert (pair.first.stem, pair.second.stem, pair.lines) == ("a", "b", 6)

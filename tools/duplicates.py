"""`make duplicates`: the pairs of places in the package that share six or more lines of code.

Lines are compared without their indentation; blank lines, comments, docstrings and lines of
brackets alone do not count. A passage of twenty lines that two places share is one pair, a passage
that three places share is three pairs: each is a change that somebody must not forget to make
again.

Pylint's symilar answers a neighbouring question (which groups of files share more than N lines): it
sees no two places of one file, drops passages of exactly N lines, and its count cannot be followed
from commit to commit.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "pytest_mlperf"
LINES = 6
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, order=True)
class Line:
    """A line of code.

    Attributes:
        text: What it says, without its indentation.
        number: Where it is in its file, from 1 on.
    """

    text: str
    number: int


@dataclass(frozen=True, order=True)
class Pair:
    """Two places that share a passage.

    Attributes:
        first: File of the first place.
        first_line: Where it begins there.
        second: File of the second place.
        second_line: Where it begins there.
        lines: How many lines of code they share.
    """

    first: Path
    first_line: int
    second: Path
    second_line: int
    lines: int


def code(text: str) -> list[Line]:
    """Return the lines of a module that hold code."""
    left_out = set(_docstrings(ast.parse(text)))
    return [
        Line(line.strip(), number)
        for number, line in enumerate(text.splitlines(), 1)
        if number not in left_out and re.search(r"\w", line) and not line.lstrip().startswith("#")
    ]


def pairs(files: Iterable[Path], lines: int = LINES) -> list[Pair]:
    """Return every two places that share that many lines of code or more, each pair once."""
    modules = {file: code(file.read_text("utf-8")) for file in sorted(files)}
    places: dict[tuple[str, ...], list[tuple[Path, int]]] = defaultdict(list)
    for file, module in modules.items():
        texts = [line.text for line in module]
        for start in range(len(texts) - lines + 1):
            places[tuple(texts[start : start + lines])].append((file, start))
    return sorted(_grown(modules, places.values()))


def _docstrings(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            yield from range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)


def _grown(
    modules: dict[Path, list[Line]], shared: Iterable[list[tuple[Path, int]]]
) -> Iterator[Pair]:
    for group in shared:
        for (first, i), (second, j) in combinations(group, 2):
            one, other = modules[first], modules[second]
            if i and j and one[i - 1].text == other[j - 1].text:
                continue  # the passage began before: it is counted there
            length = 0
            for a, b in zip(one[i:], other[j:], strict=False):
                if a.text != b.text:
                    break
                length += 1
            yield Pair(first, one[i].number, second, other[j].number, length)


def main() -> int:
    """Print the pairs, the longest first, and their number; 1 where they are more than --most."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=PACKAGE)
    parser.add_argument("--most", type=int, help="how many there may be")
    arguments = parser.parse_args()
    shared = pairs(arguments.folder.rglob("*.py"))
    for pair in sorted(shared, key=lambda pair: -pair.lines):
        print(
            f"{pair.lines:4} lines  {pair.first}:{pair.first_line}  "
            f"{pair.second}:{pair.second_line}"
        )
    print(f"{len(shared)} pairs of places share {LINES} or more lines")
    return int(arguments.most is not None and len(shared) > arguments.most)


if __name__ == "__main__":
    sys.exit(main())

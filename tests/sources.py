"""The package's source, parsed once for all tests that look at it."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "pytest_mlperf"


@cache
def parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a module; nobody changes it."""
    return ast.parse(path.read_text("utf-8"))


@cache
def modules() -> dict[str, Path]:
    """Return every module of the package by its name below it."""
    by_name = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        by_name[".".join(part for part in parts if part != "__init__")] = path
    return by_name

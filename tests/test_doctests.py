"""The examples in docstrings are right."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import pytest_mlperf

ROOT = Path(pytest_mlperf.__file__).parent

MODULES = sorted(
    ".".join(file.relative_to(ROOT.parent).with_suffix("").parts)
    for file in ROOT.rglob("*.py")
    if ">>> " in file.read_text("utf-8")
)


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_of_docstrings_are_right(module: str) -> None:
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    result = doctest.testmod(importlib.import_module(module), optionflags=flags)
    assert (result.failed, result.attempted > 0) == (0, True)

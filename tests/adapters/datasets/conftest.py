"""Fixtures of the data sets whose test modules have a function `tiny`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf import registry


@pytest.fixture
def tiny_options(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """Write a tiny data set; return the options that it is built with."""
    folder = tmp_path / "made"
    folder.mkdir()
    options: dict[str, Any] = request.module.tiny(folder)
    return options


@pytest.fixture
def folder(tiny_options: dict[str, Any]) -> Path:
    return Path(tiny_options["path"])


@pytest.fixture
def build(request: pytest.FixtureRequest, tiny_options: dict[str, Any]) -> Callable[..., Any]:
    """Build the data set of the test module's name; options take the place of the tiny ones."""
    name = request.module.__name__.rpartition(".test_")[2]
    kind: Any = registry.resolve(registry.target("datasets", name))
    return lambda **options: kind(**{**tiny_options, **options})

"""The torch engine's tests need its libraries already to be collected."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiers import NeedsTorch


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Module | None:
    if module_path.parent.name != "torch":
        return None
    return NeedsTorch.in_place_of(module_path, parent)

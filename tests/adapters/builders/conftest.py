"""Some tests of builders need torch's libraries already to be collected."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiers import NeedsTorch

THESE = {"test_compressed.py", "test_torchao.py", "test_torchao_unet.py"}


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Module | None:
    return NeedsTorch.in_place_of(module_path, parent) if module_path.name in THESE else None

"""The marker of tests that fetch something."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "network: fetches a package; runs where PYTEST_MLPERF_NETWORK is set"
    )

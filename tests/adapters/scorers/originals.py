"""The libraries that MLPerf's scripts call, loaded by the tests that compare with them."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest


@cache
def rouge(*metrics: str) -> Any:
    """Return rouge_score's scorer with these metrics, as the scripts build it."""
    module = pytest.importorskip("rouge_score.rouge_scorer")
    return module.RougeScorer(list(metrics), use_stemmer=True)

"""MLCommons' scripts at their defaults give our figures on the logs of the tiny twins.

They run if MLPERF_INFERENCE names a checkout of mlcommons/inference.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.adapters.scorers.test_sandbox import isolation
from tests.suites.mlcommons_scripts import SCRIPTS, compared
from tests.suites.tiny_twin import LANGUAGE, missing

__all__ = ["isolation"]

SANDBOXED = {"deepseek-r1"}
"""Twins whose answers are programs that are run."""

CHECKOUT = os.environ.get("MLPERF_INFERENCE", "")
LIBRARIES = (*LANGUAGE, "pandas", "pyarrow", "rouge_score", "sympy", "whisper_normalizer")

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.nightly,
    pytest.mark.torch,
    pytest.mark.skipif(not CHECKOUT, reason="MLPERF_INFERENCE names no checkout"),
    pytest.mark.skipif(bool(missing(LIBRARIES)), reason=f"needs {missing(LIBRARIES)}"),
]


@pytest.mark.parametrize("name", SCRIPTS)
def test_mlcommons_scripts_give_our_figures_on_the_logs_of_a_twin(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if name in SANDBOXED:
        request.getfixturevalue("isolation")
    rows = list(compared(name, Path(CHECKOUT).resolve(), tmp_path))

    assert len(rows) >= len(SCRIPTS[name].metrics) + len(SCRIPTS[name].tests)
    assert [row.cells for row in rows if not row.agrees] == []
    assert {row.ours for row in rows if row.figure == "verdict"} <= {"pass"}

"""tools/demo.py: what unchanged code may end in on somebody's machine does not end the demo."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from pytest_mlperf.core.verdict import Outcome

TOOLS = Path(__file__).resolve().parents[2] / "tools"

OF_NO_COMPARISON = {
    Outcome.NO_BASELINE,
    Outcome.NOT_EVALUATED,
    Outcome.RECORDED,
    Outcome.EXPECTED,
}


def test_every_answer_that_is_not_red_is_one_for_unchanged_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(TOOLS)
    monkeypatch.delitem(sys.modules, "demo", raising=False)
    demo = importlib.import_module("demo")

    compared = {str(one) for one in Outcome if not one.fails} - OF_NO_COMPARISON

    assert set(demo.UNCHANGED) == compared

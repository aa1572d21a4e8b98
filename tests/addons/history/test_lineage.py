"""Versions of a library that a bisect searches, as pip names them."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from pytest_mlperf.addons.history import lineage
from pytest_mlperf.core.errors import MlperfError


def test_candidates_are_looked_for_where_an_end_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for ends, named in (
        ("0.9..0.11", ["0.9", "0.10", "0.11"]),
        ("0.10+cu13..0.11", ["0.10+cu13", "0.11"]),
        ("0.10..0.11rc1", ["0.10", "0.11rc1"]),
        ("0.10.post1..0.11", ["0.10.post1", "0.11"]),
    ):

        def run_python(_: Any, *words: str, limit_s: float, ends: str = ends) -> Any:
            early = "--pre" in words
            assert early is ("rc" in ends)
            first = ends.partition("..")[0]
            there = ["0.11", *["0.11rc1"] * early, first if "0.10" in first else "0.10", "0.9"]
            text = f"Available versions: {', '.join(there)}\n"
            return subprocess.CompletedProcess(words, 0, text, "")

        monkeypatch.setattr(lineage, "run_python", run_python)
        assert [one.name for one in lineage.versions(f"engine=={ends}", None)] == named


def test_ends_are_equal_as_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trailing zeros and the spelling of a candidate do not matter; others are refused."""
    done = subprocess.CompletedProcess((), 0, "Available versions: 1.1rc1, 1.0.0, 0.9\n", "")
    monkeypatch.setattr(lineage, "run_python", lambda *_, **__: done)
    for ends in ("1.0..1.1rc1", "1..1.1.rc1"):
        assert [one.name for one in lineage.versions(f"a=={ends}", None)] == ["1.0.0", "1.1rc1"]
    for ends, message in (("x..1.0", "Invalid version: 'x'"), ("0.8..1", "pip finds no a==0.8")):
        with pytest.raises(MlperfError, match=message):
            lineage.versions(f"a=={ends}", None)

"""Versions of a library that a bisect searches, as pip names them."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from pytest_mlperf.run import lineage

OUT = "Available versions: {}\n"


@pytest.mark.parametrize(
    ("ends", "named"),
    [
        ("0.9..0.11", ["0.9", "0.10", "0.11"]),
        ("0.10+cu13..0.11", ["0.10+cu13", "0.11"]),
        ("0.10..0.11rc1", ["0.10", "0.11rc1"]),
        ("0.10.post1..0.11", ["0.10.post1", "0.11"]),
    ],
)
def test_candidates_are_looked_for_where_an_end_is_one(
    monkeypatch: pytest.MonkeyPatch, ends: str, named: list[str]
) -> None:
    def run_pip(_: Any, *words: str, limit_s: float) -> Any:
        early = "--pre" in words
        assert early is ("rc" in ends)
        first = ends.partition("..")[0]
        there = ["0.11", *["0.11rc1"] * early, first if "0.10" in first else "0.10", "0.9"]
        return subprocess.CompletedProcess(words, 0, OUT.format(", ".join(there)), "")

    monkeypatch.setattr(lineage, "run_pip", run_pip)

    assert [one.name for one in lineage.versions(f"engine=={ends}", None)] == named

"""What a suite says of GPUs and models that the tables lack, for the physical limit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.core.roofline.gpu import PEAKS, parse_gpu
from pytest_mlperf.rounds.work import find_work, parse_work
from pytest_mlperf.suite.tables import Workload
from pytest_mlperf.suite.values import Defect

Figures = Mapping[str, Mapping[str, Any]]
"""Figures of GPUs by class, as the suite's `[accelerators]` gives them."""

_PEAK = {"type": ["number", "string"], "description": 'Dense, FLOP/s: 989e12 or "989 TFLOP/s".'}

FIGURES_SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "Figures of accelerators that the table of GPUs lacks, by class.",
    "additionalProperties": {
        "type": "object",
        "properties": {
            **dict.fromkeys(PEAKS, _PEAK),
            "bandwidth": {"type": ["number", "string"], "description": "Of its memory, B/s."},
            "memory": {"type": ["number", "string"], "description": "B, as the vendor counts."},
            "cache": {"type": ["number", "string"], "description": "Its last cache, B."},
            "stated_clock": {"type": ["number", "string"], "description": "Of the peaks, Hz."},
            "highest_clock": {"type": ["number", "string"], "description": "That it reaches, Hz."},
            "source": {"type": "string", "description": "Where the figures are from."},
        },
        "additionalProperties": False,
    },
}
"""Schema of `[accelerators]`."""


def figure_defects(figures: Figures, used: Mapping[str, None]) -> Iterator[Defect]:
    """Yield what is wrong with the figures of accelerators.

    Args:
        figures: By class, as the suite gives them.
        used: Classes that engine entries run on.
    """
    for name, given in figures.items():
        if name not in used:
            names = ", ".join(used)
            yield ("accelerators", name), f"no engine entry runs on {name!r}; they run on {names}"
        try:
            parse_gpu(name, given)
        except SuiteError as error:
            yield ("accelerators", name), str(error).removeprefix(f"GPU {name}: ")


def work_defects(workload: Workload) -> Iterator[Defect]:
    """Yield what is wrong with the work that a suite gives for its own model."""
    if workload.work is None:
        return
    if find_work(workload.name):
        yield ("workload", "work"), f"{workload.name} has MLPerf's own count; leave work out"
    try:
        parse_work(workload.work)
    except ValueError as error:
        yield ("workload", "work"), str(error)

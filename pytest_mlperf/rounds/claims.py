"""Printed figures that cannot be, from the table `claims.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Literal

PAGES = {
    "A": "NVIDIA's tables of MLPerf Inference v4.1, data center",
    "B": "a third party's summary of GPU speeds",
}

ROUND = "v4.1"
"""The round whose official results the figures are held against."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One figure, read as it is printed.

    Attributes:
        page, line: Where it is printed: a key of `PAGES`, and the line of its text.
        text: The number as printed.
        says: The page's words for what it is of.
        workload, scenario, metric, value, unit: What that is here; scenario None: none is said.
        accelerator, gpus: Name in the table of GPUs or in `figures`, and how many.
        product: MLPerf's name of the GPU, where the page says that it is a result of the round.
        precision, batch: As printed; of MLPerf's rows, as the submission's code has it.
        figures: Of an accelerator that the table of GPUs lacks.
        expect: What finds the fault.
        truth: What the number is; "": nobody knows.
    """

    page: str
    line: int
    text: str
    says: str
    workload: str
    scenario: str | None = None
    metric: str
    value: float
    unit: str
    accelerator: str
    gpus: int
    product: str | None = None
    precision: str | None = None
    batch: int | None = None
    figures: Mapping[str, Any] = field(default_factory=dict)
    expect: Literal["certain", "estimated", "official"]
    truth: str = ""


@cache
def known_claims() -> tuple[Claim, ...]:
    """Read the figures in the order of the table."""
    raw = tomllib.loads(files(__package__).joinpath("claims.toml").read_text("utf-8"))
    return tuple(Claim(**own) for own in raw["claims"])

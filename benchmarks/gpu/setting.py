"""What a part of the benchmark is told, and the tables it answers with."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

SIMULATED = "simulated: fake NVML library, CPU; no figure here is a measurement of a GPU"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One part's circumstances.

    Attributes:
        folder: Where the part writes, absolute.
        seconds: Its time, from the start of its process.
        device: torch's name of where work is done: "cuda", or "cpu" where all is simulated.
        uuid: The GPU that is sampled.
        product: NVML's name of it.
        memory_gib: Its memory as NVML counts it; None: not known.
        accelerator: The suite's word for its class.
        simulated: The GPU is the fake NVML library's, and all work is small.
    """

    folder: str
    seconds: float
    device: str
    uuid: str
    product: str
    memory_gib: float | None
    accelerator: str
    simulated: bool

    @property
    def path(self) -> Path:
        """The folder."""
        return Path(self.folder)

    def to_json(self) -> str:
        """Serialise."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Setting:
        """Parse what `to_json` wrote."""
        return cls(**json.loads(text))


@dataclass(kw_only=True)
class Table:
    """One table of a part.

    Attributes:
        title: What it shows.
        columns: Headings, with units.
        rows: Cells as printed, one for each column.
    """

    title: str
    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)


@dataclass(kw_only=True)
class Answer:
    """What a part found so far.

    Attributes:
        tables: For the Markdown file; the JSON file has them too.
        values: Plain numbers by name, SI units, for programs.
        notes: Sentences about how to read the tables.
        failures: What broke of it, a sentence each: the part has failed then, whatever else it has.
    """

    tables: list[Table] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def as_json(self) -> Mapping[str, Any]:
        """Return plain lists, dicts, numbers and texts."""
        return asdict(self)


Part = Iterator[Answer]
"""A part yields what it has whenever there is more, so that a part cut off keeps what it has."""


def show(value: float | None, digits: int = 3, unit: str = "") -> str:
    """Return a number for a cell, "unknown" for None; thousands are told apart by commas."""
    if value is None:
        return "unknown"
    size = abs(value)
    whole = size >= 10 ** (digits - 1)
    text = f"{value:,.0f}" if whole else f"{value:.{digits}g}"
    return f"{text} {unit}".rstrip()


def percent(share: float | None, digits: int = 2) -> str:
    """Return a share in percent with its sign, for a cell."""
    return "unknown" if share is None else f"{100 * share:+.{digits}f}"

"""How much MLPerf's workloads compute, from the table `work.toml`."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from importlib.resources import files
from typing import Any

from pytest_mlperf.core.roofline.work import AnyWork, Decode, Diffusion, Encoder, Fixed, Parts
from pytest_mlperf.rounds import ROUNDS, load_round

KINDS: Mapping[str, type[AnyWork]] = {
    "decode": Decode,
    "diffusion": Diffusion,
    "encoder": Encoder,
    "fixed": Fixed,
    "parts": Parts,
}
"""What `kind` may be."""


@dataclass(frozen=True, kw_only=True)
class WorkloadWork:
    """One workload's work.

    Attributes:
        name: LoadGen's name: "llama2-70b".
        work: What the formulas need.
        parameters: Weights of all parts, as published.
        typical: Figures of the data set's mean sample, by the names of `Seen`.
        source: What was counted.
    """

    name: str
    work: AnyWork
    parameters: int
    typical: Mapping[str, float] = field(default_factory=dict)
    source: str


@cache
def known_work() -> Mapping[str, WorkloadWork]:
    """Return the work of every workload in the table, by LoadGen's name."""
    raw = tomllib.loads(files(__package__).joinpath("work.toml").read_text("utf-8"))
    return {name: _workload(name, own) for name, own in raw.items()}


def find_work(name: str) -> WorkloadWork | None:
    """Return a workload's work by any of its names in any round: "llama2-70b-99.9", "resnet".

    None: nobody counted it.
    """
    for each in reversed(ROUNDS):
        found = load_round(each).find(name)
        if found is not None and found.name in known_work():
            return known_work()[found.name]
    return None


def parse_work(figures: Mapping[str, Any]) -> AnyWork:
    """Build the work of a model from the figures that a suite gives for its own.

    Args:
        figures: `kind`, a name of `KINDS`, and what the formulas of that kind need; positive
            numbers, and texts where they ask for a word.

    Raises:
        ValueError: A name or a value cannot be; it says what is needed.
    """
    kind = figures.get("kind")
    known = KINDS.get(kind) if isinstance(kind, str) else None
    if known is None:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, not {kind!r}")
    needed = {own.name: own for own in fields(known) if own.name != "share"}
    given = {name: value for name, value in figures.items() if name != "kind"}
    if unknown := sorted(set(given) - set(needed)):
        raise ValueError(f"unknown {unknown[0]!r}; a {kind} has {', '.join(needed)}")
    least = [name for name, own in needed.items() if own.default is MISSING]
    if missing := [name for name in least if name not in given]:
        raise ValueError(f"{', '.join(missing)} missing; a {kind} needs {', '.join(least)}")
    for name, value in given.items():
        if needed[name].type == "str":
            if not isinstance(value, str):
                raise ValueError(f"{name} is {value!r}; must be a word")
        elif isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{name} is {value!r}; must be a number")
        elif not 0 < value < math.inf:
            raise ValueError(f"{name} is {value!r}; must be positive and finite")
    return known(**given)


def _workload(name: str, raw: Mapping[str, Any]) -> WorkloadWork:
    about = ("kind", "parameters", "typical", "source")
    figures = {key: value for key, value in raw.items() if key not in about}
    return WorkloadWork(
        name=name,
        work=KINDS[raw["kind"]](**figures),
        parameters=raw["parameters"],
        typical=raw.get("typical", {}),
        source=raw["source"],
    )

"""How much MLPerf's workloads compute, from the table `work.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
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

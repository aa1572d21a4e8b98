"""Look up the work per sample (FLOP, bytes) of MLPerf's workloads in `work.toml`."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from importlib.resources import files
from typing import Any

from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.roofline.work import AnyWork, Decode, Diffusion, Encoder, Fixed, Parts
from pytest_mlperf.core.untrusted_text import nearest
from pytest_mlperf.rounds import ROUNDS, load_round

WORK_KINDS: Mapping[str, type[AnyWork]] = {
    "decode": Decode,
    "diffusion": Diffusion,
    "encoder": Encoder,
    "fixed": Fixed,
    "parts": Parts,
}


@dataclass(frozen=True, kw_only=True)
class WorkloadWork:
    """Hold a workload's FLOP and bytes per sample, parameters, and typical counts (tokens)."""

    name: str
    work: AnyWork
    parameters: int
    typical: Mapping[str, float] = field(default_factory=dict)
    source: str


@cache
def known_work() -> Mapping[str, WorkloadWork]:
    """Return each workload's amount of computation from work.toml, by LoadGen's name for it."""
    raw = tomllib.loads(files(__package__).joinpath("work.toml").read_text("utf-8"))
    return {name: _workload(name, raw.get(own.get("model"), {}) | own) for name, own in raw.items()}


def find_work(name: str) -> WorkloadWork | None:
    """Return operations and bytes of a workload's samples, by any of its names; None if unknown."""
    for round_name in reversed(ROUNDS):
        workload = load_round(round_name).find(name)
        if workload is not None and workload.name in known_work():
            return known_work()[workload.name]
    return None


def work_named(name: str) -> WorkloadWork:
    """Return a workload's work by any of its names; raise MlperfError if the table lacks it."""
    about = find_work(name)
    if about is None:
        raise MlperfError(f"no operation counts for workload {name!r}{nearest(name, known_work())}")
    return about


def parse_work(figures: Mapping[str, Any]) -> AnyWork:
    """Return the work of a user's model from the figures in a suite.

    `figures` has `kind`, a key of `WORK_KINDS`, and the inputs of that kind's formulas. Raises
    ValueError with the name of a wrong input.
    """
    kind = figures.get("kind")
    work = WORK_KINDS.get(kind) if isinstance(kind, str) else None
    if work is None:
        raise ValueError(f"kind must be one of {', '.join(WORK_KINDS)}, not {kind!r}")
    needed = {field.name: field for field in fields(work) if field.name != "share"}
    counts = {name: value for name, value in figures.items() if name != "kind"}
    if unknown := sorted(set(counts) - set(needed)):
        raise ValueError(f"unknown key {unknown[0]!r}; kind {kind!r} has {', '.join(needed)}")
    required = [name for name, field in needed.items() if field.default is MISSING]
    if missing := [name for name in required if name not in counts]:
        raise ValueError(f"{', '.join(missing)} missing; kind {kind!r} needs {', '.join(required)}")
    for name, value in counts.items():
        if needed[name].type == "str":
            if not isinstance(value, str):
                raise ValueError(f"{name} is {value!r}; must be a string")
        elif isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{name} is {value!r}; must be a number")
        elif not 0 < value < math.inf:
            raise ValueError(f"{name} is {value!r}; must be positive and finite")
    return work(**counts)


def _workload(name: str, raw: Mapping[str, Any]) -> WorkloadWork:
    other_keys = ("kind", "model", "parameters", "typical", "source")
    figures = {key: value for key, value in raw.items() if key not in other_keys}
    return WorkloadWork(
        name=name,
        work=WORK_KINDS[raw["kind"]](**figures),
        parameters=raw["parameters"],
        typical=raw.get("typical", {}),
        source=raw["source"],
    )

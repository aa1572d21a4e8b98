"""Put onto a run how near it came to what its GPUs could do; beyond that it may not be judged."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.measurement import Run
from pytest_mlperf.core.reason import Key, Reason
from pytest_mlperf.core.roofline.gpu import GpuSpec
from pytest_mlperf.core.roofline.light import lights
from pytest_mlperf.core.roofline.seen import Seen
from pytest_mlperf.core.roofline.work import AnyWork
from pytest_mlperf.hardware.machine import split
from pytest_mlperf.hardware.specs import find_gpu
from pytest_mlperf.rounds.work import find_work
from pytest_mlperf.suite.plan import Planned

SIZES = ("input_tokens", "tokens", "tokens_squared", "parts", "cached_tokens")
"""Means over the samples of a run that a data set may tell."""

DONE = {
    "steps": ("generation.steps", "work.steps"),
    **{
        name: (f"work.{name}",)
        for name in ("accepted_tokens", "calls", "network_share", "work_share", "replica_gpus")
    },
}
"""What an engine may tell of its work, by the keys of its description that say so."""

BATCH = "work.batch"
"""The key by which it tells how many sequences it works on together, at most."""


def with_light(
    run: Run,
    planned: Planned,
    identity: Mapping[str, object],
    *,
    engine: Mapping[str, str],
    sizes: Mapping[str, float],
) -> Run:
    """Return a run with its share of the speed of light; INVALID where it is above the limit.

    A GPU that is only pretended has none: what runs is something else.

    Args:
        run: As it was measured.
        planned: Its case.
        identity: Of the machine.
        engine: What the engine said of itself.
        sizes: Means over the samples, as the data set says.
    """
    count, kind = split(planned.case.accelerator)
    gpu = gpu_of(planned, identity)
    if "pretended" in identity or (gpu is None and kind == "cpu"):
        return run
    told: dict[str, Any] = {**{n: sizes[n] for n in SIZES if n in sizes}, **_done(engine)}
    try:
        seen = Seen(
            gpus=count,
            precision=planned.case.precision,
            techniques=planned.techniques,
            output_tokens=run.metrics.get("tokens_per_sample"),
            batch=most_together(run, planned, engine),
            **told,
        )
    except ValueError as error:
        raise RunError("engine", f"describe() tells of its work what cannot be: {error}") from None
    found = lights(
        run.metrics,
        planned.case.scenario,
        accelerator=kind,
        gpu=gpu,
        work=work_of(planned),
        seen=seen,
    )
    beyond = tuple(
        Reason(key=Key.ABOVE_PHYSICAL_LIMIT, text=light.beyond)
        for light in found
        if light.impossible
    )
    return dataclasses.replace(run, light=found, invalid=(*run.invalid, *beyond))


def most_together(run: Run, planned: Planned, engine: Mapping[str, str]) -> float | None:
    """Return how many samples can have been under way at a time, by all who set an upper bound.

    SingleStream has one, MultiStream a query's, an engine what it says, and no run more than it
    had. Neither a prefix cache nor several copies of the model put more into one step.
    """
    most = [float(run.samples)] if run.samples else []
    if planned.case.scenario == "SingleStream":
        most.append(1.0)
    if planned.case.scenario == "MultiStream":
        most.append(float(planned.round_scenario.samples_per_query))
    if BATCH in engine:
        most.append(_number(BATCH, engine))
    return min(most, default=None)


def gpu_of(planned: Planned, identity: Mapping[str, object]) -> GpuSpec | None:
    """Return the figures of a case's accelerator: the suite's own, else those of the table."""
    own = planned.suite.figures.get(split(planned.case.accelerator)[1])
    if own is not None:
        return own
    product, memory = identity.get("gpu"), identity.get("memory_gib")
    if not isinstance(product, str):
        return None
    return find_gpu(product, memory_gib=memory if isinstance(memory, int | float) else None)


def work_of(planned: Planned) -> AnyWork | None:
    """Return what a sample of a case costs: as the suite says, else as counted for MLPerf's."""
    if planned.suite.work is not None:
        return planned.suite.work
    found = find_work(planned.suite.workload.name)
    return found.work if found else None


def _done(engine: Mapping[str, str]) -> dict[str, int | float]:
    """Return what the engine said of its work, as numbers."""
    told = {n: _number(key, engine) for n, keys in DONE.items() for key in keys if key in engine}
    whole = {"calls", "replica_gpus"}
    return {name: int(value) if name in whole else value for name, value in told.items()}


def _number(key: str, engine: Mapping[str, str]) -> float:
    try:
        return float(engine[key])
    except ValueError:
        raise RunError("engine", f"describe() says {key} = {engine[key]!r}: no number") from None

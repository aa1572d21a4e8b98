"""What all runs of a session share, and how they hold their accelerator."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_mlperf.core.control import Control
from pytest_mlperf.hardware.machine import Machine
from pytest_mlperf.run import lease
from pytest_mlperf.run.control import control
from pytest_mlperf.run.supervisor import Patience
from pytest_mlperf.run.wall import Meter

Looked = tuple[Control, *tuple[str, ...]]
"""What the micro-benchmark found; where that is nothing and it was asked for, also why."""


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What all runs of a session share.

    Attributes:
        folder: The session's folder; each process gets a folder of its own below it.
        session: Id of the session.
        commit: Commit of the tested project, or None.
        handicap: Share of speed taken away from every engine.
        patience: Limits of a child.
        lease_limit_s: Longest wait for an accelerator.
        power: Sample the power of GPUs.
        machine: Where it runs.
        meter: A wall meter that logs meanwhile, or None.
        control: Measure the machine by the fixed micro-benchmark before each performance run.
    """

    folder: Path
    session: str
    commit: str | None
    handicap: float
    patience: Patience
    lease_limit_s: float
    machine: Machine
    power: bool = True
    meter: Meter | None = None
    control: bool = True


@contextlib.contextmanager
def held(
    accelerator: str, conditions: Conditions, waiting: Callable[[str], None], *, look: bool
) -> Iterator[Looked]:
    """Hold an accelerator's lease, and yield what the micro-benchmark found there.

    Args:
        accelerator: Class and count.
        conditions: What the session's runs share.
        waiting: Called again and again with whom we wait for.
        look: Make the benchmark; nothing else uses the accelerator meanwhile.

    Raises:
        RunError: The wait exceeded the limit.
    """
    machine = conditions.machine
    with lease.hold(machine.leases(accelerator), limit_s=conditions.lease_limit_s, waiting=waiting):
        if not look or not conditions.control:
            yield ({},)
            return
        gpus, environment = machine.uuids(accelerator), machine.environment(accelerator)
        found, why = control(gpus, environment=environment)
        yield (found, f"the machine's own speed is not known: {why}") if why else (found,)

"""Read the sampler's file.

It is described in pytest_mlperf.hardware.sampler. Times are CLOCK_MONOTONIC, seconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pytest_mlperf.core.errors import RunError, text_of
from pytest_mlperf.core.trace import Reading
from pytest_mlperf.run.power_gpu import GpuLog

CLOCK_STEP_S = 0.02
"""The wall clock went its own way if it moved so far against the monotonic one."""

DAMAGED = (
    ArithmeticError,
    AttributeError,
    LookupError,
    OSError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What reading a file raises that holds something else than a sampler wrote."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PowerLog:
    """All that the sampler recorded.

    Attributes:
        unavailable: Why nothing was read, in words; None where something was.
        suspect: The driver's state casts doubt on performance too.
        gone: What was here and is not: the driver, or all its GPUs; None: nothing is gone.
        gpus: In the order asked for.
        driver: Version of the driver.
        ended: The sampler ended in order; else it broke, and the readings may end before the run.
        broke: How it broke, in words, where that is known.
        offsets_s: Wall clock minus monotonic clock, at the start and, if it ended, at the end.
        ticks: Made and planned.
        cpu_share: Of one core, what sampling took; None where it did not end in order.
    """

    unavailable: str | None = None
    suspect: bool = False
    gone: str | None = None
    gpus: tuple[GpuLog, ...] = ()
    driver: str | None = None
    ended: bool = False
    broke: str | None = None
    offsets_s: tuple[float, ...] = ()
    ticks: tuple[int, int] | None = None
    cpu_share: float | None = None

    @property
    def clock_stepped(self) -> bool:
        """Whether the wall clock was set meanwhile, so that its times cannot be converted."""
        return bool(self.offsets_s) and max(self.offsets_s) - min(self.offsets_s) > CLOCK_STEP_S

    @property
    def lost(self) -> tuple[str, ...]:
        """What to say of each GPU that was lost, also of one that was before the run."""
        lost = [self.gone, *(gpu.lost for gpu in self.gpus)]
        return tuple(f"the GPU was lost: {why}" for why in lost if why)

    @property
    def watched_until_s(self) -> float | None:
        """Monotonic time up to which each GPU was read; None: the sampler ended in order."""
        if self.ended:
            return None
        read = [gpu.last_s for gpu in self.gpus if not gpu.lost and not gpu.unavailable]
        return min(read, default=0.0)

    def monotonic(self, wall_s: float) -> float:
        """Return the monotonic time of a wall-clock time, as LoadGen logs it.

        Raises:
            ValueError: No clocks were recorded.
        """
        if not self.offsets_s:
            raise ValueError("the sampler recorded no clocks")
        return wall_s - sum(self.offsets_s) / len(self.offsets_s)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return what a file holds; a last line that was cut is left out.

        Raises:
            RunError: It is not a sampler's file.
        """
        try:
            return cls._read(path)
        except DAMAGED as error:
            why = f"{type(error).__name__}: {text_of(error)}"
            raise RunError("sampler", f"cannot read {path}: {why}", str(path)) from None

    @classmethod
    def _read(cls, path: Path) -> Self:
        ready: dict[str, Any] | None = None
        end: dict[str, Any] | None = None
        parts: dict[int, _Part] = {}
        for record in _records(path):
            if ready is None:
                ready = record["ready"]
                parts = {gpu["index"]: _Part(gpu) for gpu in ready.get("gpus", ())}
            elif tick := record.get("t"):
                parts[tick[1]].tick(tick)
            elif state := record.get("s"):
                parts[state["gpu"]].states.append(state)
            elif lost := record.get("lost"):
                parts[lost["gpu"]].lost = lost["why"]
            else:
                end = record["end"]
        if ready is None:
            return cls(unavailable="the sampler wrote nothing")
        if why := ready.get("unavailable"):
            gone = why if ready.get("lost") else None
            return cls(unavailable=why, suspect=bool(ready.get("suspect")), gone=gone)
        return cls._of(ready, parts, end)

    @classmethod
    def _of(
        cls,
        ready: Mapping[str, Any],
        parts: Mapping[int, _Part],
        end: Mapping[str, Any] | None,
    ) -> Self:
        for gpu in end["gpus"] if end else ():
            parts[gpu["index"]].missing |= gpu["unavailable_quantities"]
            parts[gpu["index"]].forbidden.update(gpu.get("forbidden", ()))
        gpus = tuple(parts[index].log(ready["rates"]["trace_hz"]) for index in sorted(parts))
        silent = [f"{gpu.uuid}: {gpu.unavailable}" for gpu in gpus if gpu.unavailable]
        clocks = [ready, end] if end else [ready]
        return cls(
            unavailable="; ".join(silent) if len(silent) == len(gpus) else None,
            gpus=gpus,
            driver=ready["driver"],
            ended=end is not None,
            offsets_s=tuple(clock["wall"] - clock["time"] for clock in clocks),
            ticks=(end["ticks"], end["planned"]) if end else None,
            cpu_share=end["cpu_s"] / end["elapsed_s"] if end and end["elapsed_s"] else None,
        )


class _Part:
    """Gathers one GPU's records while a file is read once; a long run has millions."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self.facts = facts
        self.missing: dict[str, str] = dict(facts.get("unavailable_quantities", {}))
        self.forbidden = set(facts.get("forbidden", ()))
        self.lost: str | None = facts["unavailable"] if facts.get("lost") else None
        self.states: list[Mapping[str, Any]] = []
        self.counter: list[Reading] = []
        self.trace: list[Reading] = []
        self.reasons: list[tuple[float, int]] = []

    def tick(self, tick: Sequence[Any]) -> None:
        """Take [time, gpu, watts, reasons] or [..., counter's time, joules]."""
        time_s, _, watts, mask = tick[:4]
        if watts is not None:
            self.trace.append(Reading(time_s=time_s, value=watts))
        if len(tick) > 4 and tick[5] is not None:
            self.counter.append(Reading(time_s=tick[4], value=tick[5]))
        if mask is not None:
            # Of samples that say the same only the first and the last are kept.
            if len(self.reasons) > 1 and self.reasons[-1][1] == self.reasons[-2][1] == mask:
                self.reasons.pop()
            self.reasons.append((time_s, mask))

    def log(self, rate_hz: float) -> GpuLog:
        """Return all of it as a value."""
        uuid = self.facts["uuid"]
        if why := self.facts.get("unavailable"):
            return GpuLog(uuid=uuid, unavailable=why, lost=self.lost)
        return GpuLog(
            uuid=uuid,
            lost=self.lost,
            facts=self.facts,
            counter=tuple(self.counter),
            trace=tuple(self.trace),
            reasons=tuple(self.reasons),
            states=tuple(self.states),
            missing=self.missing,
            forbidden=frozenset(self.forbidden),
            rate_hz=rate_hz,
        )


def _records(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        for number, line in enumerate(file):
            if not line.endswith(b"\n"):
                return
            record = json.loads(line)
            if number == 0 and "ready" not in record:
                raise ValueError("its first line is not a sampler's")
            yield record

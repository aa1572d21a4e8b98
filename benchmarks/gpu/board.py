"""Sample a GPU while something runs; where it is simulated, say first what it will draw."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.gpu.setting import Setting
from pytest_mlperf.core.energy import Energy
from pytest_mlperf.core.errors import RunError
from pytest_mlperf.run.power._gpu import GpuLog
from pytest_mlperf.run.power.sampling import PowerSampling

IDLE_W, BUSY_W = 90.0, 620.0
"""What the simulated GPU draws."""

SIMULATED_GPU = ("energy 100 lag=100", "instant 25 25")
"""Its counter steps every 100 ms and trails by 100 ms; its power reading shows all of the time."""

PARTLY_BLIND = ("instant 100 25",)
"""The power reading shows 25 ms of each 100 ms, as is reported of A100 and H100."""

QUICK_WATCH_S = 0.25
_numbers = count()


@dataclass
class Watch:
    """One GPU while it is sampled, and what was recorded once that has ended.

    Attributes:
        ready: The sampler's first record.
        log: What was recorded; there once the `with` block has ended.
        cpu_share: Of one core, what sampling took; None: not known.
        ticks: Samples made and planned; None: not known.
    """

    ready: dict[str, Any]
    log: GpuLog = field(default_factory=lambda: GpuLog(uuid="", unavailable="not sampled yet"))
    cpu_share: float | None = None
    ticks: tuple[int, int] | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """Return the GPU's part of the first record."""
        parts: list[dict[str, Any]] = self.ready["gpus"]
        return parts[0]

    def energy(self, begin_s: float, end_s: float) -> Energy:
        """Return the energy of a window."""
        return self.log.energy(begin_s, end_s)


@contextmanager
def watch(
    setting: Setting, *wave: str, watch_s: float = QUICK_WATCH_S, more: Sequence[str] = ()
) -> Iterator[Watch]:
    """Sample the GPU inside the block, and for a while before and after.

    Args:
        setting: Names the GPU.
        wave: What a simulated GPU draws from now on, e.g. "const 500"; a real one draws what the
            load makes it draw.
        watch_s: How long to look for the period of the energy counter first.
        more: Further lines of a simulated GPU's scenario.

    Raises:
        RunError: Nothing can be sampled.
    """
    if setting.simulated:
        simulate(*wave, more=more)
    folder = setting.path / f"power-{next(_numbers)}"
    folder.mkdir(parents=True)
    with PowerSampling([setting.uuid], folder, watch_s=watch_s) as sampling:
        if sampling.unavailable:
            raise RunError("sampler", f"the GPU cannot be sampled: {sampling.unavailable}")
        found = Watch(ready=sampling.ready)
        sampling.linger()
        yield found
        sampling.linger()
    found.log = sampling.log.gpus[0]
    found.cpu_share, found.ticks = sampling.log.cpu_share, sampling.log.ticks


def simulate(*wave: str, more: Sequence[str] = ()) -> None:
    """Let the simulated GPU draw this from now on; in this and in child processes."""
    fake = _fake()
    # As `foresee` writes it, or the counter would jump there.
    drawn = " ".join(wave) or f"steps -100:{IDLE_W:g}"
    fake.restart("device", f"wave {drawn}", *SIMULATED_GPU, *more)


def foresee(setting: Setting, changes: Sequence[tuple[float, float]]) -> None:
    """Tell a simulated GPU that has drawn IDLE_W so far what it will draw; a real one nothing.

    Args:
        setting: Says whether it is simulated.
        changes: (monotonic time, watts from then on), at most 60, of times to come.
    """
    if not setting.simulated:
        return
    fake = _fake()
    told = " ".join(f"{at - fake.t0:.3f}:{watts:g}" for at, watts in changes)
    fake.write("device", f"wave steps -100:{IDLE_W:g} {told}", *SIMULATED_GPU)


def exact_joules(setting: Setting, begin_s: float, end_s: float) -> float | None:
    """Return what the simulated GPU used exactly; None of a real one, which nobody knows."""
    return _fake().joules(begin_s, end_s) if setting.simulated else None


def _fake() -> Any:
    from tests.nvml.library import Fake

    if not _kept:
        _kept.append(Fake(Path(os.environ["FAKE_NVML_SCENARIO"]).parent))
    return _kept[0]


_kept: list[Any] = []

"""Which stages of the work take longer, or less long, than in the runs of a baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from pytest_mlperf.core.metrics import METRICS, at_point, is_stage, point_of
from pytest_mlperf.core.numbers import quantity, times

STAGE_SHARE = 0.05
"""A stage whose time differs by a smaller share takes as long as before."""

SHARE_OF_ALL = 0.02
"""So does one whose difference is a smaller share of all stages together, or of the median latency:
a queue of microseconds may double and explains nothing."""


LATENCY = "latency_p50"


@dataclass(frozen=True, kw_only=True, slots=True)
class StageTime:
    """The time of a stage beside a baseline's, seconds per sample.

    Attributes:
        metric: "stage_unet", at a point of a curve "stage_queue@64".
        before, now: Medians over the runs of each side.
        moved: It lies beyond every run of the baseline, by more than the shares above.
    """

    metric: str
    before: float
    now: float
    moved: bool

    @property
    def title(self) -> str:
        """The name of the stage: "text encoder"."""
        return METRICS[self.metric.partition("@")[0]].title.removesuffix(" stage")

    @property
    def says(self) -> str:
        """Return "unet takes 1.31x as long (779 ms → 1.02 s a sample)"."""
        before, now = (quantity(self.metric, seconds) for seconds in (self.before, self.now))
        return f"{self.title} takes {times(self.now / self.before)} as long ({before} → {now})"


def stage_times(
    now: Sequence[Mapping[str, float]], before: Sequence[Mapping[str, float]]
) -> dict[float | None, list[StageTime]]:
    """Return the stages that all runs have, by point of a curve; None: of no curve.

    Args:
        now: The metrics of each run.
        before: The same of the baseline's runs.
    """
    if not now or not before:
        return {}
    names = [n for n in now[0] if is_stage(n) and all(n in run for run in (*now, *before))]
    usual = {name: median(run[name] for run in before) for name in names}
    times_at: dict[float | None, list[StageTime]] = {}
    for name in names:
        point = point_of(name)
        whole = LATENCY if point is None else at_point(LATENCY, point)
        latency = median(run.get(whole, 0.0) for run in before)
        all_stages = sum(usual[each] for each in names if point_of(each) == point)
        here, others = median(run[name] for run in now), [run[name] for run in before]
        least = max(STAGE_SHARE * usual[name], SHARE_OF_ALL * max(all_stages, latency))
        moved = abs(here - usual[name]) > least and not min(others) <= here <= max(others)
        stage = StageTime(metric=name, before=usual[name], now=here, moved=moved)
        times_at.setdefault(point, []).append(stage)
    return times_at

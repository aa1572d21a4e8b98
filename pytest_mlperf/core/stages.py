"""Compare the times of an engine's stages, such as "prefill", with the baseline's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from pytest_mlperf.core.metrics import METRICS, at_point, is_stage, point_of
from pytest_mlperf.core.notes import Note

STAGE_SHARE = 0.05
"""Relative change of a stage's time from which it is significant."""

WHOLE_SHARE = 0.02
"""The same relative to all stages together, or to the median latency: a queue of microseconds may
double and explains nothing."""

LATENCY = "latency_p50"


@dataclass(frozen=True, kw_only=True, slots=True)
class StageTime:
    """Hold a stage's median times [s per sample]; `metric` ends in "@64" at concurrency 64.

    `moved`: whether `current_s` is outside the range of the baseline runs, and differs from
    `baseline_s` by more than STAGE_SHARE of it and WHOLE_SHARE of the latency.
    """

    metric: str
    baseline_s: float
    current_s: float
    moved: bool

    @property
    def title(self) -> str:
        """Name of the stage: "text encoder"."""
        return METRICS[self.metric.partition("@")[0]].title.removesuffix(" stage")

    @property
    def note(self) -> Note:
        """Note on the change of the stage's median time since the baseline."""
        old, new = self.baseline_s, self.current_s
        return Note.of("stage_takes", stage=self.title, ratio=new / old, old=old, new=new)


def stage_times(
    runs: Sequence[Mapping[str, float]], baseline_runs: Sequence[Mapping[str, float]]
) -> dict[float | None, list[StageTime]]:
    """Compare times of common stages with the baseline's, by concurrency (None without a curve)."""
    if not runs or not baseline_runs:
        return {}
    names = [n for n in runs[0] if is_stage(n) and all(n in r for r in (*runs, *baseline_runs))]
    by_point: dict[float | None, list[StageTime]] = {}
    for name in names:
        point = point_of(name)
        latency = LATENCY if point is None else at_point(LATENCY, point)
        stages_s = [sum(r[n] for n in names if point_of(n) == point) for r in baseline_runs]
        whole_s = max(median(stages_s), median(r.get(latency, 0.0) for r in baseline_runs))
        times_s = [run[name] for run in baseline_runs]
        current_s, baseline_s = median(run[name] for run in runs), median(times_s)
        least_s = max(STAGE_SHARE * baseline_s, WHOLE_SHARE * whole_s)
        beyond = not min(times_s) <= current_s <= max(times_s)
        stage = StageTime(
            metric=name,
            baseline_s=baseline_s,
            current_s=current_s,
            moved=beyond and abs(current_s - baseline_s) > least_s,
        )
        by_point.setdefault(point, []).append(stage)
    return by_point

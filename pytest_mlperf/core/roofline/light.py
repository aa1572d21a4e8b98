"""The speed of light beside a run's figures: what was reached of what is physically possible."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pytest_mlperf.core.metrics import EFFICIENCY, METRICS, UNGATED, gated_metrics
from pytest_mlperf.core.numbers import quantity
from pytest_mlperf.core.ranges import NotNegative
from pytest_mlperf.core.roofline.bounds import Resource
from pytest_mlperf.core.roofline.gpu import GpuSpec
from pytest_mlperf.core.roofline.limit import Limit, in_words, share_of_limit
from pytest_mlperf.core.roofline.seen import Seen
from pytest_mlperf.core.roofline.work import AnyWork


@dataclass(frozen=True, kw_only=True)
class Light:
    """One metric of a run beside its physical limit.

    Attributes:
        metric: Name in the metric table.
        says: The share in words, or why there is none and what to supply.
        share: Of the estimated limit where there is one, else of the certain one; None: unknown.
        certain: Limit that counts only what cannot be less, in the metric's unit; None: unknown.
        ceiling: The certain limit at the GPU's highest clock.
        estimated: Limit for what the run did; None: unknown.
        binds: What the limit is of: "compute" or "memory".
        impossible: The figure is beyond the ceiling.
    """

    metric: str
    says: str
    share: NotNegative | None = None
    certain: NotNegative | None = None
    ceiling: NotNegative | None = None
    estimated: NotNegative | None = None
    binds: Resource | None = None
    impossible: bool = False

    @property
    def beyond(self) -> str:
        """Return why a run may not be judged, of a figure that is impossible."""
        title, limit = METRICS[self.metric].title, self.ceiling or 0.0
        return (
            f"{title} is {self.says}; at its highest clock {quantity(self.metric, limit)} is the "
            "limit: the unit, the number of GPUs, the precision, a technique, or a figure that the "
            "suite gives ([accelerators], [workload.work]) is not what it says"
        )


def lights(
    metrics: Mapping[str, float],
    scenario: str,
    *,
    accelerator: str,
    gpu: GpuSpec | None,
    work: AnyWork | None,
    seen: Seen,
) -> tuple[Light, ...]:
    """Return how near each figure of a run is to its limit, the one that the case is about first.

    Args:
        metrics: Figures of a run by name, SI units.
        scenario: The scenario, which decides what the case is about.
        accelerator: Class of the GPUs.
        gpu: One of them; None: nobody knows its figures.
        work: What the workload has to do; None: nobody knows.
        seen: What was run.

    Returns:
        Figures that have a limit; where none has, one entry that says why.
    """
    first = about(scenario, metrics)
    names = [first, *(n for n in metrics if n not in {first, *EFFICIENCY, *UNGATED})]
    found = [
        share_of_limit(n, metrics[n], accelerator=accelerator, gpu=gpu, work=work, seen=seen)
        for n in names
        if n in METRICS
    ]
    known = [limit for limit in found if limit.certain is not None]
    return tuple(_light(limit) for limit in known or found[:1])


def about(scenario: str, metrics: Mapping[str, float]) -> str:
    """Return the figure that a case is about: tokens or samples per second, or its latency."""
    tokens = "tokens_per_second" in metrics
    if scenario in {"SingleStream", "MultiStream"}:
        return gated_metrics(scenario)[0]
    return "tokens_per_second" if tokens else "throughput"


def _light(limit: Limit) -> Light:
    return Light(
        metric=limit.metric,
        says=in_words(limit),
        share=limit.share,
        certain=limit.certain,
        ceiling=limit.ceiling,
        estimated=limit.estimated,
        binds=limit.binds,
        impossible=limit.impossible,
    )

"""What a dollar buys of a case's runs, at the price that its suite gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import geometric_mean

from pytest_mlperf.core.measurement import Run
from pytest_mlperf.core.roofline.cost import GpuPrice, PerDollar, fewest_gpus, per_dollar
from pytest_mlperf.core.roofline.precision import PRECISIONS
from pytest_mlperf.hardware.machine import split
from pytest_mlperf.rounds.work import find_work
from pytest_mlperf.run.light import gpu_of
from pytest_mlperf.suite.plan import Planned


def cost_of(
    planned: Planned, runs: Sequence[Run], identity: Mapping[str, object]
) -> PerDollar | None:
    """Return tokens, else samples, for a dollar; None where there is no price or no run.

    All GPUs of the case are paid for, and never fewer than it takes to hold the weights.
    """
    price = planned.suite.price(planned.case.accelerator)
    if price is None or not runs:
        return None
    tokens = all("tokens_per_second" in run.metrics for run in runs)
    metric = "tokens_per_second" if tokens else "throughput"
    rates = [run.metrics[metric] for run in runs if metric in run.metrics]
    if not rates:
        return None
    return per_dollar(
        geometric_mean(rates),
        GpuPrice(usd_per_gpu_hour=price.usd_per_gpu_hour, as_of=price.as_of),
        gpus=split(planned.case.accelerator)[0],
        holding=_holding(planned, identity),
        of="tokens" if tokens else "samples",
    )


def _holding(planned: Planned, identity: Mapping[str, object]) -> int:
    """Return how many GPUs the weights alone need, 1 where that is not known."""
    work, gpu = find_work(planned.suite.workload.name), gpu_of(planned, identity)
    about = PRECISIONS.get(planned.case.precision)
    if work is None or gpu is None or gpu.memory is None or about is None or planned.techniques:
        return 1
    return fewest_gpus(work.parameters * about.weight, gpu.memory)

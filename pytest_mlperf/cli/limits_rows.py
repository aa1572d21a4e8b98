"""Official results and printed claims, each held against what its GPUs could do."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_mlperf.core.roofline import GpuSpec, Limit, Seen, parse_gpu, share_of_limit
from pytest_mlperf.core.roofline.cost import fewest_gpus
from pytest_mlperf.core.roofline.precision import PRECISIONS
from pytest_mlperf.hardware.specs import find_gpu, known_gpus
from pytest_mlperf.rounds.claims import ROUND, Claim
from pytest_mlperf.rounds.official import OfficialResult, official_results
from pytest_mlperf.rounds.work import find_work

_METRICS = {
    "SingleStream": "latency_p90",
    "MultiStream": "latency_p99",
}
"""What the scenarios report that are no rates; a query of MultiStream takes at least one sample."""


@dataclass(frozen=True, kw_only=True)
class ResultRow:
    """One official result.

    Attributes:
        result: As published.
        gpu: What its accelerator can do.
        limit: How near it is to that.
    """

    result: OfficialResult
    gpu: GpuSpec
    limit: Limit


@dataclass(frozen=True, kw_only=True)
class Refuted:
    """A printed figure and why it cannot be.

    Attributes:
        claim: As printed.
        limit: How far it is beyond, or how near.
        reasons: Why it cannot be; none: nothing was found.
    """

    claim: Claim
    limit: Limit
    reasons: tuple[str, ...]


def result_rows(name: str = ROUND) -> list[ResultRow]:
    """Return a round's results on known GPUs, of workloads whose work is known; nearest first."""
    rows = []
    for result in official_results(name):
        gpu = find_gpu(result.accelerator) if result.accelerator else None
        if gpu is not None and find_work(result.model) is not None:
            rows.append(ResultRow(result=result, gpu=gpu, limit=_limit(result, gpu)))
    return sorted(rows, key=lambda row: -(row.limit.of_certain or 0.0))


def left_out(name: str = ROUND) -> dict[str, int]:
    """Return how many of a round's results have no row, by why."""
    counts: dict[str, int] = {}
    for result in official_results(name):
        why = None
        if find_work(result.model) is None:
            why = "other models"
        elif not result.accelerator:
            why = "CPUs"
        elif find_gpu(result.accelerator) is None:
            why = result.accelerator
        if why:
            counts[why] = counts.get(why, 0) + 1
    return counts


def _limit(result: OfficialResult, gpu: GpuSpec) -> Limit:
    """Return the limit of a result whose precision is not published: at the fastest that it has."""
    about = find_work(result.model)
    assert about is not None
    given: dict[str, Any] = dict(about.typical)
    if result.tokens_per_sample:
        given["output_tokens"] = result.tokens_per_sample
    metric = "tokens_per_second" if result.unit == "tokens/s" else "throughput"
    value = result.value
    if result.unit == "ms":
        metric, value = _METRICS[result.scenario], result.value / 1e3
    return share_of_limit(
        metric,
        value,
        accelerator=result.accelerator,
        gpu=gpu,
        work=about.work,
        seen=Seen(gpus=result.count, techniques=result.techniques, **given),
    )


def refuted(claims: Iterable[Claim]) -> list[Refuted]:
    """Return each printed figure with every reason why it cannot be."""
    return [_refuted(claim) for claim in claims]


def _refuted(claim: Claim) -> Refuted:
    about = find_work(claim.workload)
    typical: Mapping[str, Any] = about.typical if about else {}
    gpu = known_gpus().get(claim.accelerator)
    if claim.figures:
        gpu = parse_gpu(claim.accelerator, claim.figures)
    limit = share_of_limit(
        claim.metric,
        claim.value,
        accelerator=claim.accelerator,
        gpu=gpu,
        work=about.work if about else None,
        seen=Seen(gpus=claim.gpus, precision=claim.precision, batch=claim.batch, **typical),
    )
    reasons = [*_beyond(claim, limit, gpu), *_memory(claim, gpu), *_official(claim)]
    return Refuted(claim=claim, limit=limit, reasons=tuple(reasons))


def _beyond(claim: Claim, limit: Limit, gpu: GpuSpec | None) -> Iterable[str]:
    """Yield how far a figure is beyond the certain limit, or else beyond the estimated one."""
    if limit.impossible and limit.of_certain and limit.certain and limit.term:
        yield f"{limit.of_certain:.3g} times the certain limit of {limit.certain:,.4g} {claim.unit}"
        if limit.term.resource == "memory":
            yield f"at least {math.ceil(limit.of_certain)} GPUs without any loss"
    elif limit.of_estimated and limit.of_estimated > 1 and limit.estimated:
        at = f" at its fastest, {_fastest(gpu)}" if gpu and not claim.precision else ""
        yield f"{limit.of_estimated:.0%} of the estimated limit{at}".replace("%", " %")


def _fastest(gpu: GpuSpec) -> str:
    return max(gpu.peaks, key=lambda name: gpu.peaks[name])


def _memory(claim: Claim, gpu: GpuSpec | None) -> Iterable[str]:
    """Yield how many GPUs the weights alone need, where they are more than are named."""
    about = find_work(claim.workload)
    if gpu is None or gpu.memory is None or about is None or claim.precision is None:
        return
    weights = about.parameters * PRECISIONS[claim.precision].weight
    needed = fewest_gpus(weights, gpu.memory)
    if needed > claim.gpus:
        yield f"{weights / 1e9:.0f} GB of weights need {needed} GPUs"


def _official(claim: Claim) -> Iterable[str]:
    """Yield what contradicts a figure that is said to be a result of the round."""
    if claim.product is None:
        return
    same = [
        result
        for result in official_results(ROUND)
        if result.accelerator == claim.product
        and result.count == claim.gpus
        and result.model.startswith(claim.workload)
        and result.scenario == claim.scenario
        and result.division == "closed"
    ]
    if not same:
        yield f"{ROUND} has no result of {claim.gpus}x {claim.product}"
        return
    tokens = claim.unit == "tokens/s"
    best = max(result.value if tokens else result.samples_per_s or 0.0 for result in same)
    if claim.value > best * 1.001:
        yield (
            f"above the best of {claim.gpus}x {claim.product} in {ROUND}, {best:,.6g} {claim.unit}"
        )

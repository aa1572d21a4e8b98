"""Compute rooflines: the highest speed of a workload on a number of GPUs.

The compute term is all FLOP of a sample at the dense peak of all GPUs. The memory term of language
models is one read of the weights per step of all sequences in flight (in the estimate, of those
that fit in memory). The certain limit counts only unavoidable work: no prompt, padding, overlap or
key-value cache, and the same experts for all sequences. The estimated limit counts the run's work.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from pytest_mlperf.core.roofline.gpu import KV_BYTES, PRECISIONS, GpuSpec, peak
from pytest_mlperf.core.roofline.work import AnyWork, Circumstances, Decode

Resource = Literal["compute", "memory"]

GIB_PER_GB = 2**30 / 1e9


@dataclass(frozen=True, kw_only=True, slots=True)
class Hardware:
    """Hold the peak rates and the memory of all GPUs of a run; None if unknown.

    `flops` in FLOP/s, memory `bandwidth` in B/s; `weight`, `kv`: bytes per weight and per KV cache
    element. `cache`: bytes of weights that may stay on chip between steps. `memory`: bytes of GPU
    memory for one copy of the model and its KV cache.
    """

    flops: float
    bandwidth: float | None
    weight: float | None
    kv: float
    cache: float = 0.0
    memory: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Term:
    """Hold a resource's limit: `rate` [1/s] = `capacity` [FLOP/s, B/s] / `amount` [FLOP, B]."""

    resource: Resource
    rate: float
    amount: float
    capacity: float


def hardware(
    gpu: GpuSpec, seen: Circumstances, *, best: bool = False, sparse: bool = False
) -> Hardware:
    """Return all GPUs' peaks and memory; `best`: top clock, full caches; `sparse`: 2:4 weights."""
    flops, weights = peak(gpu, seen.precision), seen.weights or seen.precision
    assert flops is not None  # callers checked all names
    copy = seen.replica_gpus or seen.gpus
    about = PRECISIONS[weights] if weights else None
    bytes_each = (about.sparse if sparse else about.weight) if about else None
    return Hardware(
        flops=flops * (2.0 if sparse else 1.0) * (gpu.headroom if best else 1.0) * seen.gpus,
        bandwidth=None if gpu.bandwidth is None else gpu.bandwidth * seen.gpus,
        weight=bytes_each,
        kv=KV_BYTES[seen.kv] if seen.kv else min(KV_BYTES.values()),
        cache=gpu.cache * copy if best else 0.0,
        # A datasheet's "141 GB" are GiB, as NVML reports.
        memory=None if gpu.memory is None else gpu.memory * GIB_PER_GB * copy,
    )


def sample_limits(
    work: AnyWork, has: Hardware, seen: Circumstances, *, certain: bool, drafts: float | None = 1.0
) -> list[Term]:
    """Return the limits [samples/s] by compute and memory; [] if sample sizes are unknown.

    `certain`: only unavoidable work counts. `drafts`: tokens per decoding step, None if unbounded.
    """
    if isinstance(work, Decode):
        if not seen.output_tokens:
            return []
        length = seen.output_tokens
        terms = token_limits(work, has, seen, certain=certain, drafts=drafts)
        return [replace(t, rate=t.rate / length, amount=t.amount * length) for t in terms]
    flop = work.least(seen) if certain else work.estimate(seen)
    return [] if not flop else [_rate("compute", flop, has.flops)]


def token_limits(
    work: Decode, has: Hardware, seen: Circumstances, *, certain: bool, drafts: float | None = 1.0
) -> list[Term]:
    """Return upper bounds of tokens/s by compute and by memory.

    `certain`: for the least possible work, else for the estimated work. `drafts`: tokens per
    decoding step; None leaves out the bound by memory.
    """
    flop = work.least_token(seen) if certain else work.estimate_token(seen)
    if not flop:
        return []
    terms = [_rate("compute", flop, has.flops)]
    if not certain:
        seen = replace(seen, batch=likely_batch(work, has, seen))
    read = step_bytes(work, has, seen, certain=certain)
    if read and has.bandwidth and seen.batch and drafts:
        terms.append(_rate("memory", read / (seen.batch * drafts), has.bandwidth))
    return terms


def likely_batch(work: Decode, hardware: Hardware, seen: Circumstances) -> float | None:
    """Return one model copy's batch: what fits in memory, at most `seen.batch`; None if unknown.

    This is an estimate for sequences of full length; the KV cache may also use host memory.
    """
    if hardware.memory is None or hardware.weight is None or seen.input_tokens is None:
        return seen.batch
    length = seen.input_tokens + work.beams * (seen.output_tokens or 0.0)
    room = hardware.memory - (work.shared + work.experts * work.expert) * hardware.weight
    if not length or room <= 0:
        return seen.batch
    return max(1.0, min(room / (length * work.kv_bytes(hardware.kv)), seen.batch or math.inf))


def step_bytes(work: Decode, has: Hardware, seen: Circumstances, *, certain: bool) -> float | None:
    """Return the bytes read per decoding step, without KV cache if `certain`; None if unknown."""
    if has.weight is None:
        return None
    if certain:
        return max(work.weights() * has.weight - has.cache, 0.0)
    sequences = seen.batch or 1.0
    held = (seen.input_tokens or 0.0) + work.beams * (seen.output_tokens or 0.0) / 2
    cache = sequences * held * work.kv_bytes(has.kv)
    return work.weights(sequences * work.beams) * has.weight + cache


def decode_rate(work: Decode, hardware: Hardware, *, batch: float, context: float) -> float:
    """Return the roofline's tokens/s for `batch` sequences with `context` earlier tokens each."""
    flop = work.beams * (work.token_flop + work.context_flop * context)
    weight = hardware.weight or 0.0
    read = work.weights(batch * work.beams) * weight + batch * context * work.kv_bytes(hardware.kv)
    return batch / max(read / (hardware.bandwidth or float("inf")), batch * flop / hardware.flops)


def prefill_rate(work: Decode, hardware: Hardware, *, length: float) -> float:
    """Return the prompt tokens/s at the peak FLOP rate, for prompts of `length` tokens."""
    return hardware.flops / work.prompt_flop(length)


def latency_bounds(
    metric: str,
    work: AnyWork,
    hardware: Hardware,
    seen: Circumstances,
    *,
    certain: bool,
    drafts: float | None,
) -> list[Term]:
    """Return lower bounds of a latency [s]: of the minimum work if `certain`, else of the estimate.

    `drafts` are tokens per decoding step; None if there is no bound on them.
    """
    if not isinstance(work, Decode):
        flop = work.smallest if certain else work.estimate(seen)
        return [] if not flop else [_time("compute", flop, hardware.flops)]
    kind = metric.partition("_")[0]
    if kind == "latency":
        return _whole(work, hardware, seen, certain=certain, drafts=drafts)
    if kind in {"ttft", "first"}:
        return _first(work, hardware, seen, certain=certain)
    if kind == "itl" and drafts != 1.0:
        return []  # a step gives several tokens at once, with no time between them
    # Every token is computed, also a drafted one; the weights are read once per step.
    terms = [_time("compute", work.beams * work.token_flop, hardware.flops)]
    # The acceptance is a mean: a request of easy tokens may have much more.
    if drafts is None or (certain and drafts != 1.0):
        return terms
    return terms + _reading(work, hardware, seen, 1 / drafts, certain=certain)


def _first(work: Decode, has: Hardware, seen: Circumstances, *, certain: bool) -> list[Term]:
    flop = work.smallest
    if not certain:
        if seen.input_tokens is None:
            return []
        left = max(seen.input_tokens - (seen.cached_tokens or 0.0), 1.0)
        flop += left * work.prompt_flop(seen.input_tokens, seen.input_tokens - left)
        flop -= work.prompt_flop(1.0)
    terms = [_time("compute", flop, has.flops)]
    return terms + _reading(work, has, replace(seen, batch=1.0, output_tokens=0.0), certain=certain)


def _whole(
    work: Decode, has: Hardware, seen: Circumstances, *, certain: bool, drafts: float | None
) -> list[Term]:
    flop = work.smallest if certain else work.estimate(seen)
    if flop is None:
        return []
    steps = 1.0
    if not certain and drafts is not None:
        steps = max(1.0, (seen.output_tokens or 1.0) / drafts)
    terms = [_time("compute", max(flop, work.smallest), has.flops)]
    return terms + _reading(work, has, replace(seen, batch=1.0), steps, certain=certain)


def _reading(
    work: Decode, has: Hardware, seen: Circumstances, steps: float = 1.0, *, certain: bool
) -> list[Term]:
    read = step_bytes(work, has, seen, certain=certain)
    return [_time("memory", read * steps, has.bandwidth)] if read and has.bandwidth else []


def _rate(resource: Resource, amount: float, capacity: float) -> Term:
    return Term(resource=resource, rate=capacity / amount, amount=amount, capacity=capacity)


def _time(resource: Resource, amount: float, capacity: float) -> Term:
    return Term(resource=resource, rate=amount / capacity, amount=amount, capacity=capacity)

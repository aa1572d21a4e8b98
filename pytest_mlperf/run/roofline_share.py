"""Compute a run's share of the roofline of its GPUs, and the cost per token or sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import geometric_mean
from typing import Any, ClassVar

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.job import Job
from pytest_mlperf.core.measurement import Run
from pytest_mlperf.core.reason import Key, Reason, Sign, SignKey
from pytest_mlperf.core.roofline import Limit, roofline_shares, share_of_limit
from pytest_mlperf.core.roofline.bounds import decode_rate, hardware, prefill_rate
from pytest_mlperf.core.roofline.gpu import (
    PRECISIONS,
    GpuSpec,
    PerDollar,
    fewest_gpus,
    peak,
    per_dollar,
)
from pytest_mlperf.core.roofline.work import AnyWork, Circumstances, Decode
from pytest_mlperf.hardware.machine import split
from pytest_mlperf.hardware.specs import find_gpu, gpu_in
from pytest_mlperf.rounds.work import WorkloadWork, find_work
from pytest_mlperf.run.figures import Figures, Findings

SIZES = ("input_tokens", "tokens", "tokens_squared", "parts", "cached_tokens")
"""Means over the samples of a run that a data set may report."""

WORK_KEYS = {
    "steps": ("generation.steps", "work.steps"),
    **{
        name: (f"work.{name}",)
        for name in ("accepted_tokens", "calls", "network_share", "work_share", "replica_gpus")
    },
}
"""Facts about its work that an engine may report, by the keys of its description."""

DRAFTS, DRAFTED = "work.drafts", "speculative-decoding"
"""Key with which an engine reports that it drafts, and the technique's name."""

BATCH_KEY = "work.batch"
"""Key of the maximum number of sequences that an engine processes together."""


def roofline_findings(
    figures: Figures,
    job: Job,
    identity: Mapping[str, object],
    *,
    engine: Mapping[str, str],
    sizes: Mapping[str, float],
    drafts: int | None = None,
) -> Findings:
    """Return a run's shares of the roofline; the run is INVALID if it exceeds the physical limit.

    `engine` has the engine's reported facts by name, `sizes` the mean sizes of samples by name, and
    `drafts` the number of accepted draft tokens; None if none or unknown.
    """
    count, kind = split(job.accelerator)
    gpu = gpu_of(job, identity)
    work: dict[str, Any] = {**{n: sizes[n] for n in SIZES if n in sizes}, **_done(engine)}
    decoded = (figures.metrics.get("tokens_per_sample", 0.0) - 1) * figures.samples
    # Mean tokens per step; None also if there are impossibly many drafts.
    a_step = None if drafts is None or decoded <= drafts else decoded / (decoded - drafts)
    undeclared = (bool(drafts) or DRAFTS in engine) and DRAFTED not in job.techniques
    if a_step:
        work["accepted_tokens"] = a_step
    if kind == "cpu":  # replicas share the machine's processors
        work.pop("replica_gpus", None)
    try:
        seen = Circumstances(
            gpus=count,
            precision=job.case.precision,
            techniques=job.techniques,
            output_tokens=figures.metrics.get("tokens_per_sample"),
            # Drafts add tokens to a step; the batch bounds them only if they are declared.
            batch=most_together(figures.samples, job, {} if undeclared else engine),
            **work,
        )
    except ValueError as error:
        raise RunError("engine", f"describe() states impossible work: {error}") from None
    every = roofline_shares(
        figures.metrics, job.case.scenario, accelerator=kind, gpu=gpu, work=work_of(job), seen=seen
    )
    beyond = tuple(
        Reason(key=Key.ABOVE_PHYSICAL_LIMIT, text=light.beyond)
        for light in every
        if light.impossible
    )
    about = {"tokens": a_step, "undeclared": undeclared}
    signs = () if a_step is None else (Sign.of(SignKey.DRAFTS, "drafts", **about),)
    return Findings(signs=signs, light=tuple(every), invalid=beyond)


def most_together(samples: int, job: Job, engine: Mapping[str, str]) -> float | None:
    """Return the most samples that can be in flight together; None if unknown.

    It also limits the batch of one step, even with a prefix cache or several replicas.
    """
    most = [float(samples)] if samples else []
    if job.case.scenario.answers_one_at_a_time:
        most.append(float(job.settings.per_query))
    if BATCH_KEY in engine:
        most.append(_number(BATCH_KEY, engine))
    return min(most, default=None)


def gpu_of(job: Job, identity: Mapping[str, object]) -> GpuSpec | None:
    """Return the peaks, bandwidth and memory of a case's GPU: the suite's own, else the table's."""
    return gpu_in(identity) if job.gpu is None else job.gpu


def work_of(job: Job) -> AnyWork | None:
    """Return the work (FLOP, bytes) per sample of a case: the suite's own, else MLPerf's."""
    if job.work is not None:
        return job.work
    workload = find_work(job.case.workload)
    return workload.work if workload else None


def _done(engine: Mapping[str, str]) -> dict[str, int | float]:
    numbers = {
        n: _number(key, engine) for n, keys in WORK_KEYS.items() for key in keys if key in engine
    }
    whole = {"calls", "replica_gpus"}
    return {name: int(value) if name in whole else value for name, value in numbers.items()}


def _number(key: str, engine: Mapping[str, str]) -> float:
    try:
        return float(engine[key])
    except ValueError:
        raise RunError(
            "engine", f"describe() returns {key} = {engine[key]!r}, which is not a number"
        ) from None


def cost_of(job: Job, runs: Sequence[Run], identity: Mapping[str, object]) -> PerDollar | None:
    """Return tokens or samples per dollar; None without a price or a rate."""
    if job.price is None or not runs:
        return None
    tokens = all("tokens_per_second" in run.metrics for run in runs)
    metric = "tokens_per_second" if tokens else "throughput"
    rates = [run.metrics[metric] for run in runs if metric in run.metrics]
    if not rates:
        return None
    return per_dollar(
        geometric_mean(rates),
        job.price,
        gpus=split(job.accelerator)[0],
        weight_gpus=_min_gpus(job, identity),
        unit="tokens" if tokens else "samples",
    )


def _min_gpus(job: Job, identity: Mapping[str, object]) -> int:
    """Return the minimum number of GPUs whose memory can hold the weights; 1 if unknown."""
    work, gpu = find_work(job.case.workload), gpu_of(job, identity)
    about = PRECISIONS.get(job.case.precision)
    if work is None or gpu is None or gpu.memory is None or about is None or job.techniques:
        return 1
    return fewest_gpus(work.parameters * about.weight, gpu.memory)


@dataclass(frozen=True, kw_only=True)
class WorkloadLimit:
    """Hold the physical limit of an MLPerf workload on GPUs, and the inputs of its computation.

    Attributes:
        about, seen: Work of the workload, and conditions of the run.
        gpu: Peak rates, bandwidth and memory of the GPU; None if the table lacks it.
    """

    about: WorkloadWork
    gpu: GpuSpec | None
    seen: Circumstances
    limit: Limit

    FIGURES: ClassVar = tuple(
        own.name
        for own in fields(Circumstances)
        if own.name not in ("gpus", "precision", "techniques")
    )
    """Figures of a run that `of` takes."""

    @classmethod
    def of(
        cls,
        workload: str,
        accelerator: str,
        *,
        metric: str | None = None,
        value: float | None = None,
        gpus: int = 1,
        precision: str | None = None,
        techniques: Sequence[str] = (),
        figures: Mapping[str, Any],
    ) -> WorkloadLimit | None:
        """Return the limit of a workload by any of its names, or None if its work is unknown.

        Args:
            metric: Metric of `value`; default: tokens/s if the workload generates any, else
                samples/s.
            precision: Default: the GPU's fastest.
            figures: Figures of the run by name; default: typical figures of the data set.

        Raises:
            ValueError: A figure or the precision is impossible.
        """
        about = find_work(workload)
        if about is None:
            return None
        gpu = find_gpu(accelerator) if accelerator else None
        seen = Circumstances(
            gpus=gpus,
            precision=precision,
            techniques=tuple(techniques),
            **{**about.typical, **figures},
        )
        rate = "tokens_per_second" if isinstance(about.work, Decode) else "throughput"
        limit = share_of_limit(
            metric or rate, value, accelerator=accelerator, gpu=gpu, work=about.work, seen=seen
        )
        return cls(about=about, gpu=gpu, seen=seen, limit=limit)

    @property
    def peak(self) -> float:
        """Peak of one GPU at the case's precision, without sparsity [FLOP/s]; 0 if unknown."""
        return (peak(self.gpu, self.seen.precision) if self.gpu else None) or 0.0

    @property
    def weight_bytes(self) -> float | None:
        """Bytes of one weight; None without a precision."""
        weights = self.seen.weights or self.seen.precision
        return PRECISIONS[weights].weight if weights else None

    @property
    def prompt_rate(self) -> float | None:
        """Prefill rate [tokens/s] if nothing is decoded; None if the workload has no prompts."""
        if not (self.gpu and isinstance(self.about.work, Decode) and self.seen.input_tokens):
            return None
        has = hardware(self.gpu, self.seen)
        return prefill_rate(self.about.work, has, length=self.seen.input_tokens)

    @property
    def decode_context(self) -> float | None:
        """Mean number of tokens before the one that is decoded; None if unknown."""
        seen = self.seen
        if not (isinstance(self.about.work, Decode) and seen.input_tokens and seen.output_tokens):
            return None
        return seen.input_tokens + seen.output_tokens / 2

    @property
    def decode_rate(self) -> float | None:
        """Decode rate [tokens/s] of full batches without prefill; None if an input is unknown."""
        work, context = self.about.work, self.decode_context
        if not (self.gpu and isinstance(work, Decode) and context and self.seen.batch):
            return None
        has = hardware(self.gpu, self.seen)
        return decode_rate(work, has, batch=self.seen.batch, context=context)

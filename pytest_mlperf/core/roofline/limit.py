"""How near a result is to what is physically possible, and whether it is beyond."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pytest_mlperf.core.metrics import METRICS, PUBLISHED, Direction
from pytest_mlperf.core.roofline.bounds import (
    Resource,
    Term,
    hardware,
    longest,
    lowest,
    samples,
    shortest,
    tokens,
)
from pytest_mlperf.core.roofline.gpu import EXAMPLE, GpuSpec
from pytest_mlperf.core.roofline.precision import KV_BYTES, PRECISIONS, peak
from pytest_mlperf.core.roofline.seen import Seen
from pytest_mlperf.core.roofline.techniques import Changed, changed
from pytest_mlperf.core.roofline.work import AnyWork, Decode

NEAR = 0.9
"""Above this share of the estimated limit a result is worth a second look."""

_TOKENS = ("tokens_per_second", "decode_tokens_per_second")


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """What one result could be at most; of a time, what it must be at least.

    Attributes:
        metric: Name in the metric table.
        value: The result; None: only the limit was asked for.
        certain: Limit that counts only what cannot be less; None: see `why_unknown`.
        ceiling: The same at the GPU's highest clock, with its cache full of weights: beyond it a
            result is not possible.
        estimated: Limit for what the run did; None: see `why_no_estimate`.
        binds: What the limit is of: "compute" or "memory"; of the estimate where there is one.
        term: The certain limit's numbers.
        estimated_term: The estimated limit's numbers.
        why_unknown: Why there is no limit, and what to supply.
        why_no_estimate: Why there is no estimate.
    """

    metric: str
    value: float | None
    certain: float | None = None
    ceiling: float | None = None
    estimated: float | None = None
    binds: Resource | None = None
    term: Term | None = None
    estimated_term: Term | None = None
    why_unknown: str | None = None
    why_no_estimate: str | None = None

    @property
    def of_certain(self) -> float | None:
        """Share of the certain limit that was reached: 0.62."""
        return self._share(self.certain)

    @property
    def of_estimated(self) -> float | None:
        """Share of the estimated limit that was reached."""
        return self._share(self.estimated)

    @property
    def share(self) -> float | None:
        """The share of the speed of light: of the estimate where there is one, else the certain."""
        return self.of_certain if self.estimated is None else self.of_estimated

    @property
    def impossible(self) -> bool:
        """The result is beyond what the GPU could do at its best."""
        share = self._share(self.ceiling)
        return share is not None and share > 1

    @property
    def near(self) -> bool:
        """The result is so near to the estimate, or beyond, that a second look is due."""
        return self.of_estimated is not None and self.of_estimated > NEAR

    def _share(self, limit: float | None) -> float | None:
        if self.value is None or limit is None:
            return None
        if _is_time(self.metric):
            return limit / self.value if self.value else float("inf")
        return self.value / limit


def in_words(limit: Limit) -> str:
    """Return a result's share of the limit for a table or a message."""
    share = limit.share
    if share is None:
        return limit.why_unknown or "no limit asked for"
    if limit.impossible and limit.of_certain is not None:
        far = f"{100 * limit.of_certain:,.0f} % of the speed of light"
        return f"{far}: above the physical limit ({limit.binds})"
    return share_in_words(share, limit.binds, estimated=limit.estimated is not None)


def share_in_words(share: float, binds: Resource | None, *, estimated: bool) -> str:
    """Return a share of a limit in words: "42.1 % of the speed of light (compute)".

    Args:
        share: Of the limit, not beyond what is possible.
        binds: What the limit is of.
        estimated: It is the estimate, not the certain limit.
    """
    of = "speed of light" if estimated else "certain limit"
    second = ": above 90 %, worth a second look" if estimated and share > NEAR else ""
    return f"{100 * share:.3g} % of the {of} ({binds}){second}"


def share_of_limit(
    metric: str,
    value: float | None,
    *,
    accelerator: str,
    gpu: GpuSpec | None,
    work: AnyWork | None,
    seen: Seen,
) -> Limit:
    """Return how near a result is to what its GPUs could do.

    Args:
        metric: Name in the metric table: a rate or a time of a performance run.
        value: The result in the metric's SI unit; None: only the limit is wanted.
        accelerator: Class of the GPUs, for the message where `gpu` is None.
        gpu: One of them; None: nobody knows its figures.
        work: What the workload has to do; None: nobody knows.
        seen: What was run.
    """
    empty = Limit(metric=metric, value=value)
    why = _why_unknown(metric, accelerator, gpu, work, seen)
    if why or gpu is None or work is None:
        return replace(empty, why_unknown=why, why_no_estimate=why)
    change = changed(work, seen)
    term = _term(metric, gpu, seen, change, certain=True)
    if term is None:
        why = change.why or _why_no_terms(metric, change)
        return replace(empty, why_unknown=why, why_no_estimate=why)
    ceiling = _term(metric, gpu, seen, change, certain=True, best=True)
    likely = _term(metric, gpu, seen, change, certain=False)
    return replace(
        empty,
        certain=term.rate,
        ceiling=ceiling.rate if ceiling else None,
        estimated=likely.rate if likely else None,
        binds=(likely or term).resource,
        term=term,
        estimated_term=likely,
        why_no_estimate=None if likely else change.why_no_estimate or _not_seen(work),
    )


def _term(
    metric: str, gpu: GpuSpec, seen: Seen, change: Changed, *, certain: bool, best: bool = False
) -> Term | None:
    """Return the resource that binds at one level; None where that level has no formula."""
    work = change.certain if certain else change.estimated
    time = _is_time(metric)
    if work is None or (time and change.varies):
        return None
    if time:
        # A sample is worked on by one copy of the model; of how many GPUs nobody may have said.
        seen = replace(seen, gpus=seen.replica_gpus or seen.gpus)
    has = hardware(gpu, seen, best=best, factor=change.peak_factor, sparse=change.sparse)
    drafts = change.drafts
    if time:
        return longest(shortest(metric, work, has, seen, certain=certain, drafts=drafts))
    if metric == "throughput":
        return lowest(samples(work, has, seen, certain=certain, drafts=drafts))
    if not isinstance(work, Decode):
        return None
    return lowest(tokens(work, has, seen, certain=certain, drafts=drafts))


def _why_unknown(
    metric: str, accelerator: str, gpu: GpuSpec | None, work: AnyWork | None, seen: Seen
) -> str | None:
    """Return why there is no limit, and what to supply; None: there may be one."""
    if not _is_time(metric) and metric not in ("throughput", *_TOKENS):
        return f"no limit known for {metric}: only rates and times have a formula"
    if gpu is None:
        return (
            f"no limit known for {accelerator}: give its dense peaks in FLOP/s, the bandwidth of "
            f"its memory in B/s and its memory in B, as {EXAMPLE}"
        )
    if work is None:
        return "no limit known for this workload: nobody says how much it computes for a sample"
    for what, name, known in (
        ("precision", seen.precision, PRECISIONS),
        ("format of weights", seen.weights, PRECISIONS),
        ("format of the key-value cache", seen.kv, KV_BYTES),
    ):
        if name is not None and name not in known:
            return f"no limit known for the {what} {name!r}; known: {', '.join(known)}"
    if peak(gpu, seen.precision) is None:
        needed = PRECISIONS[seen.precision].units[0] if seen.precision else "fp16"
        return (
            f"no limit known for {seen.precision} on {gpu.name}, which has peaks for "
            f"{', '.join(gpu.peaks)}; give its dense peak, as {needed} = 989e12 (FLOP/s)"
        )
    return None


def _why_no_terms(metric: str, change: Changed) -> str:
    if change.varies and _is_time(metric):
        return (
            f"no limit known for {metric}: {change.varies} leaves each sample another share of work"
        )
    work = change.certain
    if metric in _TOKENS and work is not None and not isinstance(work, Decode):
        return f"no limit known: this {work.kind} generates no tokens"
    if metric == "throughput":
        return "no limit known for samples/s: say output_tokens, the mean tokens of an answer"
    return f"no limit known for {metric} of what was run"


def _not_seen(work: AnyWork) -> str:
    """Return which figures of a run the estimate of its kind of work needs."""
    if isinstance(work, Decode):
        return "no estimate: say input_tokens and output_tokens, the means of the run"
    needed = "tokens" if work.kind == "encoder" else "parts"
    return f"no estimate: say {needed}, the mean of the run's samples"


def _is_time(metric: str) -> bool:
    known = {**METRICS, **PUBLISHED}.get(metric)
    return known is not None and known.unit == "s" and known.direction is Direction.LOWER

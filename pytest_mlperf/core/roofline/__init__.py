"""Compute the roofline share of a result, and whether it exceeds the physical limit.

A technique that skips work raises the limit by a figure that the run reports. Without that figure
the certain limit assumes the largest possible saving. An unbounded saving has no limit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any

from pytest_mlperf.core.case import Scenario
from pytest_mlperf.core.metrics import EFFICIENCY, METRICS, UNGATED, gated_metrics
from pytest_mlperf.core.notes import Note, Words
from pytest_mlperf.core.numbers import NotNegative
from pytest_mlperf.core.roofline import bounds
from pytest_mlperf.core.roofline.gpu import EXAMPLE, KV_BYTES, PRECISIONS, GpuSpec, peak
from pytest_mlperf.core.roofline.work import AnyWork, Circumstances, Decode, Diffusion
from pytest_mlperf.judge.inputs import Direction


@dataclass(frozen=True, kw_only=True, slots=True)
class Changed:
    """Hold the FLOP and bytes that remain after the declared techniques, such as pruning.

    Attributes:
        certain, estimated: Lower bound and estimate of the work; None if unknown, with the cause in
            `reason` or `why_no_estimate`.
        sparse: Whether 2:4 sparsity skips half of the weights, which doubles the peak.
        drafts: Tokens per decoding step (speculative decoding); None if unbounded.
        varies: Technique that makes work differ between samples of equal size; None without one.
    """

    certain: AnyWork | None
    estimated: AnyWork | None
    sparse: bool = False
    drafts: float | None = 1.0
    varies: str | None = None
    reason: Note | None = None
    why_no_estimate: Note | None = None


@dataclass(frozen=True, slots=True)
class Effect:
    """Define how a technique changes work of types `kinds`, given the run's facts in `needs`."""

    kinds: tuple[type, ...]
    needs: tuple[str, ...]
    change: Callable[[Changed, Circumstances], Changed]


def reduced_work(work: AnyWork, seen: Circumstances) -> Changed:
    """Reduce work by the declared techniques; return a certain lower bound and an estimate."""
    result = Changed(certain=work, estimated=work)
    for name in dict.fromkeys(seen.techniques):
        effect = EFFECTS.get(name)
        if effect is None:
            return _nothing(result, Note.of("technique_unknown", technique=name))
        if not isinstance(work, effect.kinds):
            return _nothing(result, Note.of("technique_unfit", technique=name, kind=work.kind))
        result = effect.change(result, seen)
        if result.certain is None:
            break
    return result


def _nothing(result: Changed, reason: Note) -> Changed:
    return replace(result, certain=None, estimated=None, reason=reason, why_no_estimate=reason)


def _share(technique: str) -> Callable[[Changed, Circumstances], Changed]:
    def change(result: Changed, seen: Circumstances) -> Changed:
        if seen.work_share is None:
            return _nothing(result, _needs(technique, "work_share"))
        return _with_figures(result, share=seen.work_share)

    return change


def _with_figures(result: Changed, **figures: Any) -> Changed:
    """Return `result` with these fields replaced in both its certain and its estimated work."""
    certain, likely = (
        None if work is None else replace(work, **figures)
        for work in (result.certain, result.estimated)
    )
    return replace(result, certain=certain, estimated=likely)


def _unknown(result: Changed, reason: Note) -> Changed:
    return replace(result, estimated=None, why_no_estimate=reason)


def _needs(technique: str, figure: str) -> Note:
    return Note.of("technique_needs", technique=technique, figure=figure)


def _exits(result: Changed, seen: Circumstances) -> Changed:
    return replace(_share("early-exit")(result, seen), varies="early-exit")


def _fewer_calls(name: str, *, guided: bool) -> Callable[[Changed, Circumstances], Changed]:
    def change(result: Changed, seen: Circumstances) -> Changed:
        certain = result.certain
        assert isinstance(certain, Diffusion)
        calls = min(seen.calls or (certain.calls if guided else 1), certain.calls)
        steps = 1 if seen.steps is None else min(seen.steps, certain.steps)
        result = _with_figures(result, steps=steps, calls=calls)
        if seen.steps is None or not (guided or seen.calls):
            return _unknown(result, _needs(name, "steps"))
        return result

    return change


def _part_of_network(result: Changed, seen: Circumstances) -> Changed:
    assert isinstance(result.certain, Diffusion)
    if seen.network_share is None:
        result = _with_figures(result, network_share=1 / result.certain.steps)
        return _unknown(result, _needs("deepcache", "network_share"))
    return _with_figures(result, network_share=seen.network_share)


def _drafts(result: Changed, seen: Circumstances) -> Changed:
    if seen.accepted_tokens is None:
        reason = _needs("speculative-decoding", "accepted_tokens")
        return _unknown(replace(result, drafts=None), reason)
    return replace(result, drafts=seen.accepted_tokens)


def _prefixes(result: Changed, seen: Circumstances) -> Changed:
    if seen.cached_tokens is None:
        return _unknown(result, _needs("prefix-caching", "cached_tokens"))
    return result


_ANY: tuple[type, ...] = (object,)

EFFECTS: Mapping[str, Effect] = {
    "2:4-sparsity": Effect(_ANY, (), lambda result, _: replace(result, sparse=True)),
    "pruning": Effect(_ANY, ("work_share",), _share("pruning")),
    "distillation": Effect(_ANY, ("work_share",), _share("distillation")),
    "retraining": Effect(_ANY, (), lambda result, _: result),
    "deepcache": Effect((Diffusion,), ("network_share",), _part_of_network),
    "fewer-steps": Effect((Diffusion,), ("steps",), _fewer_calls("fewer-steps", guided=True)),
    "latent-consistency": Effect(
        (Diffusion,), ("steps", "calls"), _fewer_calls("latent-consistency", guided=False)
    ),
    "early-exit": Effect(_ANY, ("work_share",), _exits),
    "speculative-decoding": Effect((Decode,), ("accepted_tokens",), _drafts),
    "prefix-caching": Effect((Decode,), ("cached_tokens",), _prefixes),
}
"""One entry per name in `core.case.TECHNIQUES`."""


NEAR_LIMIT_SHARE = 0.9
_TOKENS = "tokens_per_second"


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """Hold the physical limit of one result: the highest rate or the shortest time.

    Attributes:
        value: The result; None if only the limit was requested.
        certain: Limit for the least possible work; None with a cause in `why_unknown`.
        ceiling: As `certain`, but at the highest clock and with caches full of weights.
        estimated: Limit for the run's estimated work; None with a cause in `why_no_estimate`.
        binds: Resource that sets the estimated limit (if unknown, the certain limit).
    """

    metric: str
    value: float | None
    certain: float | None = None
    ceiling: float | None = None
    estimated: float | None = None
    binds: bounds.Resource | None = None
    term: bounds.Term | None = None
    estimated_term: bounds.Term | None = None
    why_unknown: Note | None = None
    why_no_estimate: Note | None = None

    @property
    def certain_share(self) -> float | None:
        """Result as a share of `certain`, the limit for the least work; None if unknown."""
        return self._share(self.certain)

    @property
    def estimated_share(self) -> float | None:
        """Share of the estimated limit that the result reaches; None without an estimate."""
        return self._share(self.estimated)

    @property
    def share(self) -> float | None:
        """Roofline share: of the estimated limit if there is one, else of the certain one."""
        return self.certain_share if self.estimated is None else self.estimated_share

    @property
    def impossible(self) -> bool:
        """Whether the result exceeds `ceiling`, the limit of the hardware."""
        share = self._share(self.ceiling)
        return share is not None and share > 1

    @property
    def near(self) -> bool:
        """Whether the result is near or beyond the estimated limit and should be checked."""
        return self.estimated_share is not None and self.estimated_share > NEAR_LIMIT_SHARE

    def _share(self, limit: float | None) -> float | None:
        if self.value is None or limit is None:
            return None
        if _is_time(self.metric):
            return limit / self.value if self.value else float("inf")
        return self.value / limit


def share_note(limit: Limit) -> Note:
    """Return a note on the roofline share, or on why it is unknown."""
    if limit.share is None:
        return limit.why_unknown or Note.of("no_limit_asked")
    if limit.impossible:
        return Note.of("roofline_exceeded", share=limit.certain_share, binds=limit.binds)
    return share_reached(limit.share, limit.binds, estimated=limit.estimated is not None)


def share_reached(share: float, binds: bounds.Resource | None, *, estimated: bool) -> Note:
    """Return a note: share reached of an `estimated` or certain limit, which `binds` sets."""
    near = NEAR_LIMIT_SHARE if estimated and share > NEAR_LIMIT_SHARE else None
    limit = "roofline" if estimated else "certain limit"
    return Note.of("roofline_share", share=share, binds=binds, limit=limit, near=near)


def share_of_limit(
    metric: str,
    value: float | None,
    *,
    accelerator: str,
    gpu: GpuSpec | None,
    work: AnyWork | None,
    seen: Circumstances,
) -> Limit:
    """Return `value` with its roofline limits; `why_unknown` has the reason for missing limits."""
    empty = Limit(metric=metric, value=value)
    reason = _why_unknown(metric, accelerator, gpu, work, seen)
    if reason or gpu is None or work is None:
        return replace(empty, why_unknown=reason, why_no_estimate=reason)
    change = reduced_work(work, seen)
    term = _term(metric, gpu, seen, change, certain=True)
    if term is None:
        reason = change.reason or _why_no_terms(metric, change)
        return replace(empty, why_unknown=reason, why_no_estimate=reason)
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
    metric: str,
    gpu: GpuSpec,
    seen: Circumstances,
    change: Changed,
    *,
    certain: bool,
    best: bool = False,
) -> bounds.Term | None:
    work = change.certain if certain else change.estimated
    time, drafts = _is_time(metric), change.drafts
    if work is None or (time and change.varies):
        return None
    if time:
        # One copy of the model works on a sample; the number of its GPUs may be unknown.
        seen = replace(seen, gpus=seen.replica_gpus or seen.gpus)
    has = bounds.hardware(gpu, seen, best=best, sparse=change.sparse)
    if time:
        terms = bounds.latency_bounds(metric, work, has, seen, certain=certain, drafts=drafts)
    elif metric == "throughput":
        terms = bounds.sample_limits(work, has, seen, certain=certain, drafts=drafts)
    elif isinstance(work, Decode):
        terms = bounds.token_limits(work, has, seen, certain=certain, drafts=drafts)
    else:
        return None
    # The longest time or the lowest rate limits the whole.
    return (max if time else min)(terms, key=attrgetter("rate"), default=None)


def _why_unknown(
    metric: str, accelerator: str, gpu: GpuSpec | None, work: AnyWork | None, seen: Circumstances
) -> Note | None:
    if not _is_time(metric) and metric not in ("throughput", _TOKENS):
        return Note.of("no_formula", metric=metric)
    if gpu is None:
        return Note.of("gpu_unknown", gpu=accelerator, example=EXAMPLE)
    if work is None:
        return Note.of("work_unknown")
    for part, name, names in (
        ("precision", seen.precision, PRECISIONS),
        ("format of weights", seen.weights, PRECISIONS),
        ("format of the key-value cache", seen.kv, KV_BYTES),
    ):
        if name is not None and name not in names:
            return Note.of("format_unknown", part=part, name=name, known=tuple(names))
    if peak(gpu, seen.precision) is None:
        needed = PRECISIONS[seen.precision].units[0] if seen.precision else "fp16"
        values = {"gpu": gpu.name, "peaks": tuple(gpu.peaks), "needed": needed}
        return Note.of("peak_unknown", precision=seen.precision, **values)
    return None


def _why_no_terms(metric: str, change: Changed) -> Note:
    if change.varies and _is_time(metric):
        return Note.of("work_varies", metric=metric, technique=change.varies)
    work = change.certain
    if metric == _TOKENS and work is not None and not isinstance(work, Decode):
        return Note.of("no_tokens", kind=work.kind)
    if metric == "throughput":
        return Note.of("output_tokens_unknown")
    return Note.of("no_limit", metric=metric)


def _not_seen(work: AnyWork) -> Note:
    if isinstance(work, Decode):
        return Note.of("tokens_unknown")
    return Note.of("sizes_unknown", needed="tokens" if work.kind == "encoder" else "parts")


def _is_time(metric: str) -> bool:
    kind = METRICS.get(metric)
    return kind is not None and kind.unit == "s" and kind.direction is Direction.LOWER


@dataclass(frozen=True, kw_only=True)
class RooflineShare:
    """Compare one metric of a run with its physical limit (the roofline).

    Attributes:
        metric: Metric name.
        says: The share, or why it is unknown and which figure to supply.
        share: Share of the estimated limit if there is one, else of the certain one; None if
            neither is known.
        certain: Limit for the least possible work, in the metric's unit; None if unknown.
        ceiling: The certain limit at the GPU's highest clock.
        estimated: Limit for the run's estimated work; None if unknown.
        binds: Resource that sets the limit: "compute" or "memory".
        impossible: Whether the result exceeds the ceiling.
    """

    metric: str
    says: Words
    share: NotNegative | None = None
    certain: NotNegative | None = None
    ceiling: NotNegative | None = None
    estimated: NotNegative | None = None
    binds: bounds.Resource | None = None
    impossible: bool = False

    @property
    def beyond(self) -> Note:
        """Note on a run whose result exceeds the ceiling and so may not be judged."""
        limit = Note.of("value", metric=self.metric, value=self.ceiling)
        return Note.of("above_ceiling", metric=self.metric, share=self.says, limit=limit)


def roofline_shares(
    metrics: Mapping[str, float],
    scenario: Scenario,
    *,
    accelerator: str,
    gpu: GpuSpec | None,
    work: AnyWork | None,
    seen: Circumstances,
) -> tuple[RooflineShare, ...]:
    """Return the roofline shares of a run's metrics, main metric first; at least one entry."""
    first = main_metric(scenario, metrics)
    names = [first, *(n for n in metrics if n not in {first, *EFFICIENCY, *UNGATED})]
    limits = [
        share_of_limit(n, metrics[n], accelerator=accelerator, gpu=gpu, work=work, seen=seen)
        for n in names
        if n in METRICS
    ]
    with_limit = [limit for limit in limits if limit.certain is not None]
    copied = [field.name for field in fields(RooflineShare) if field.name != "says"]
    return tuple(
        RooflineShare(says=share_note(limit), **{name: getattr(limit, name) for name in copied})
        for limit in with_limit or limits[:1]
    )


def main_metric(scenario: Scenario, metrics: Mapping[str, float]) -> str:
    """Return the name of a scenario's main metric: tokens or samples per second, or a latency."""
    if scenario.answers_one_at_a_time:
        return gated_metrics(scenario)[0]
    return "tokens_per_second" if "tokens_per_second" in metrics else "throughput"

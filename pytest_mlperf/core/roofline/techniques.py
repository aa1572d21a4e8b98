"""How each technique of the open division changes what is physically possible.

A technique that skips work raises the limit, and by how much is a figure of the run. Where that is
not known, the certain limit takes the most that the technique could save; where that has no end,
there is no limit, and the reason is said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from pytest_mlperf.core.roofline.seen import Seen
from pytest_mlperf.core.roofline.work import AnyWork, Decode, Diffusion


@dataclass(frozen=True, kw_only=True, slots=True)
class Changed:
    """Work as the declared techniques leave it.

    Attributes:
        certain: Work that cannot be less; None: there is no telling, see `why`.
        estimated: Work as the run's figures say; None: they are not known, see `why_no_estimate`.
        peak_factor: How many times faster the matrix units are.
        sparse: Half of the weights are neither read nor multiplied.
        drafts: Tokens that one step may give; None: any number.
        varies: What leaves samples of the same size different work; None: nothing does.
        why: Why no limit can be said.
        why_no_estimate: Why no estimate can be made.
    """

    certain: AnyWork | None
    estimated: AnyWork | None
    peak_factor: float = 1.0
    sparse: bool = False
    drafts: float | None = 1.0
    varies: str | None = None
    why: str | None = None
    why_no_estimate: str | None = None


@dataclass(frozen=True, slots=True)
class Effect:
    """What one technique does.

    Attributes:
        says: In words, for the documentation.
        kinds: Models that it can be applied to.
        needs: Figures of the run that say how much it saves.
        change: The function that applies it.
    """

    says: str
    kinds: tuple[type, ...]
    needs: tuple[str, ...]
    change: Callable[[Changed, Seen], Changed]


def changed(work: AnyWork, seen: Seen) -> Changed:
    """Return what a run's techniques leave of the reference's work."""
    result = Changed(certain=work, estimated=work)
    for name in dict.fromkeys(seen.techniques):
        effect = EFFECTS.get(name)
        if effect is None:
            return _nothing(result, f"nobody says how {name!r} changes the limit")
        if not isinstance(work, effect.kinds):
            return _nothing(result, f"{name} cannot be applied to this kind of model: {work.kind}")
        result = effect.change(result, seen)
        if result.certain is None:
            break
    return result


def _nothing(result: Changed, why: str) -> Changed:
    return replace(result, certain=None, estimated=None, why=why, why_no_estimate=why)


def _sparse(result: Changed, _seen: Seen) -> Changed:
    return replace(result, peak_factor=2.0, sparse=True)


def _same(result: Changed, _seen: Seen) -> Changed:
    return result


def _share(what: str) -> Callable[[Changed, Seen], Changed]:
    """Return the change of what leaves a share of the work: said once, however many do so."""

    def change(result: Changed, seen: Seen) -> Changed:
        if seen.work_share is None:
            return _nothing(result, f"{what}: say work_share, the share of the work that is left")
        return replace(
            result,
            certain=_with_share(result.certain, seen.work_share),
            estimated=_with_share(result.estimated, seen.work_share),
        )

    return change


def _exits(result: Changed, seen: Seen) -> Changed:
    return replace(_share("early-exit")(result, seen), varies="early-exit")


def _with_share(work: AnyWork | None, share: float) -> AnyWork | None:
    return None if work is None else replace(work, share=share)


def _fewer_calls(name: str, *, guided: bool) -> Callable[[Changed, Seen], Changed]:
    """Return the change of what calls the denoising network less often: at least once.

    Args:
        name: Of the technique.
        guided: A step still has the reference's calls; else the run must say how many.
    """

    def change(result: Changed, seen: Seen) -> Changed:
        certain, likely = result.certain, result.estimated
        if not isinstance(certain, Diffusion):
            return result
        calls = min(seen.calls or (certain.calls if guided else 1), certain.calls)
        if seen.steps is None:
            certain = replace(certain, steps=1, calls=calls)
        else:
            certain = replace(certain, steps=min(seen.steps, certain.steps), calls=calls)
        if seen.steps is None or not (guided or seen.calls):
            why = f"{name}: say steps, the denoising steps of an image, and their calls"
            return replace(result, certain=certain, estimated=None, why_no_estimate=why)
        if isinstance(likely, Diffusion):
            likely = replace(likely, steps=certain.steps, calls=calls)
        return replace(result, certain=certain, estimated=likely)

    return change


def _part_of_network(result: Changed, seen: Seen) -> Changed:
    certain, likely = result.certain, result.estimated
    if not isinstance(certain, Diffusion):
        return result
    if seen.network_share is None:
        why = "deepcache: say network_share, the mean share of the network that a call computes"
        certain = replace(certain, network_share=1 / certain.steps)
        return replace(result, certain=certain, estimated=None, why_no_estimate=why)
    if isinstance(likely, Diffusion):
        likely = replace(likely, network_share=seen.network_share)
    certain = replace(certain, network_share=seen.network_share)
    return replace(result, certain=certain, estimated=likely)


def _drafts(result: Changed, seen: Seen) -> Changed:
    if seen.accepted_tokens is None:
        why = "speculative-decoding: say accepted_tokens, the tokens that a step gives on average"
        return replace(result, drafts=None, estimated=None, why_no_estimate=why)
    return replace(result, drafts=seen.accepted_tokens)


def _prefixes(result: Changed, seen: Seen) -> Changed:
    if seen.cached_tokens is None:
        why = "prefix-caching: say cached_tokens, the tokens of a prompt that needed no work"
        return replace(result, estimated=None, why_no_estimate=why)
    return result


_ANY: tuple[type, ...] = (object,)

EFFECTS: Mapping[str, Effect] = {
    "2:4-sparsity": Effect(
        "twice the dense peak, and the bytes of half the weights with their places",
        _ANY,
        (),
        _sparse,
    ),
    "pruning": Effect(
        "the share of the work that is left", _ANY, ("work_share",), _share("pruning")
    ),
    "distillation": Effect(
        "the share of the work that is left", _ANY, ("work_share",), _share("distillation")
    ),
    "retraining": Effect("nothing: other weights, the same work", _ANY, (), _same),
    "deepcache": Effect(
        "the mean share of the denoising network that a call computes; unknown: one whole step",
        (Diffusion,),
        ("network_share",),
        _part_of_network,
    ),
    "fewer-steps": Effect(
        "the denoising steps; unknown: one step",
        (Diffusion,),
        ("steps",),
        _fewer_calls("fewer-steps", guided=True),
    ),
    "latent-consistency": Effect(
        "the denoising steps, and one call in each where guidance is part of the model; unknown: "
        "one call",
        (Diffusion,),
        ("steps", "calls"),
        _fewer_calls("latent-consistency", guided=False),
    ),
    "early-exit": Effect("the mean share of the work that is done", _ANY, ("work_share",), _exits),
    "speculative-decoding": Effect(
        "tokens for each reading of the weights; every token is still computed by the model; "
        "unknown: no limit by memory",
        (Decode,),
        ("accepted_tokens",),
        _drafts,
    ),
    "prefix-caching": Effect(
        "the tokens of a prompt that need no work; the certain limit counts no prompt anyway",
        (Decode,),
        ("cached_tokens",),
        _prefixes,
    ),
}
"""By the names of `pytest_mlperf.core.techniques`: each has an entry, tested."""

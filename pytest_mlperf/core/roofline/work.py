"""Compute the operations and bytes of a workload from its architecture.

FLOP are floating-point operations, two per multiply-add; integer ones count alike. Only matrix
products and convolutions count, never normalisation, activations or biases, so that a limit from
these FLOP is never too low.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import ClassVar

_SHARE_KEYS = ("work_share", "network_share")
_AT_LEAST_ONE = (
    "gpus",
    "replica_gpus",
    "batch",
    "tokens",
    "parts",
    "steps",
    "calls",
    "accepted_tokens",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Circumstances:
    """Hold the conditions of a result: GPUs, precision and mean sizes of samples.

    Attributes:
        gpus: Number of GPUs used.
        replica_gpus: GPUs that hold one copy of the model together, by tensor or pipeline
            parallelism.
        precision: Precision of the multiplications: a name of `PRECISIONS`.
        weights: Format of the weights, if it differs from `precision`.
        batch: Most sequences that one copy of the model decodes together.
        input_tokens, output_tokens: Mean number of tokens per sample.
        tokens, tokens_squared: Mean length of an encoder's samples, and mean of its square.
        parts: Mean number of windows (or user-item pairs) per sample.
        cached_tokens: Mean number of prompt tokens per sample from the prefix cache.
        accepted_tokens: Mean tokens per step of speculative decoding.
        network_share: Mean share of the denoising network that a call computes.
        work_share: Share of the reference's multiplications that remains, such as after pruning.
    """

    gpus: int = 1
    replica_gpus: int | None = None
    precision: str | None = None
    weights: str | None = None
    kv: str | None = None
    techniques: tuple[str, ...] = ()
    batch: float | None = None
    input_tokens: float | None = None
    output_tokens: float | None = None
    tokens: float | None = None
    tokens_squared: float | None = None
    parts: float | None = None
    cached_tokens: float | None = None
    accepted_tokens: float | None = None
    steps: float | None = None
    calls: int | None = None
    network_share: float | None = None
    work_share: float | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, int | float):
                continue
            if not 0 <= value < math.inf:
                raise ValueError(f"{field.name} is {value!r}; must be finite, at least 0")
            if field.name in _AT_LEAST_ONE and value < 1:
                raise ValueError(f"{field.name} is {value!r}; must be at least 1")
            if field.name in _SHARE_KEYS and not 0 < value <= 1:
                raise ValueError(f"{field.name} is {value!r}; must be above 0 and at most 1")
        if self.replica_gpus is not None and self.replica_gpus > self.gpus:
            raise ValueError(
                f"replica_gpus is {self.replica_gpus}; must be at most gpus, {self.gpus}"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Work:
    """Describe the FLOP of a sample, by default equal for all; `kind` names the model in messages.

    `share` is the share of the reference's weights and work that remains, e.g. after pruning.
    """

    share: float = 1.0

    @property
    def smallest(self) -> float:
        """FLOP that every sample needs."""
        raise NotImplementedError

    def least(self, _seen: Circumstances) -> float:
        """Return a lower bound of a run's mean FLOP per sample; by default `smallest`."""
        return self.smallest

    def estimate(self, _seen: Circumstances) -> float | None:
        """Return the FLOP of the run's mean sample; None if it is unknown."""
        return self.smallest


@dataclass(frozen=True, kw_only=True, slots=True)
class Decode(_Work):
    """Describe a transformer that generates tokens, dense or a mixture of experts.

    Attributes:
        layers, width: Number of blocks, and hidden size between them.
        heads, kv_heads, head_dim: Attention: query heads, key-value heads, size of a head.
        hidden: Inner size of the feed-forward network, of one expert.
        matrices: Number of feed-forward matrices: 2, or 3 if gated.
        vocabulary: Number of tokens; every generated token needs the output layer.
        experts, active: Experts of a layer, and how many of them each token uses.
        beams: Width of the beam search that the workload prescribes.
        used: Number of weights outside experts, if the sizes above do not determine it.
        expert_layers, cached_layers: Layers with experts, and with full attention, if not all.
        kv_width: Elements that a layer caches per token, if not the keys and values of its heads.
        sample_flop: FLOP of a sample before its first token, such as those of an encoder.
    """

    kind: ClassVar[str] = "language model"
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    matrices: int
    vocabulary: int
    experts: int = 1
    active: int = 1
    beams: int = 1
    used: float = 0.0
    expert_layers: int = 0
    cached_layers: int = 0
    kv_width: float = 0.0
    sample_flop: float = 0.0

    @property
    def expert(self) -> float:
        """Number of weights of one expert, summed over all layers."""
        layers = self.expert_layers or self.layers
        return layers * self.matrices * self.width * self.hidden * self.share

    @property
    def shared(self) -> float:
        """Number of weights that every token uses: attention, router and output layer."""
        if self.used:
            return self.used * self.share
        attention = 2 * self.width * (self.heads + self.kv_heads) * self.head_dim
        router = self.width * self.experts if self.experts > 1 else 0
        return (self.layers * (attention + router) + self.width * self.vocabulary) * self.share

    def weights(self, sequences: float | None = None) -> float:
        """Return how many weights a decoding step reads: the shared ones and the used experts'.

        With k of E experts each, B `sequences` use E (1 - (1 - k/E)^B) on average; if None, the
        lower bound k. The input embedding is a look-up and not counted.
        """
        hit: float = self.active
        if sequences is not None and self.experts > 1:
            missed = (1 - self.active / self.experts) ** max(sequences, 1.0)
            hit = self.experts * (1 - missed)
        return self.shared + hit * self.expert

    @property
    def token_flop(self) -> float:
        """FLOP of one generated token, without its attention over earlier tokens."""
        return 2 * self.weights()

    @property
    def context_flop(self) -> float:
        """FLOP of a new token's attention over one earlier token."""
        layers = self.cached_layers or self.layers
        return 4 * layers * self.heads * self.head_dim * self.share

    def prompt_flop(self, length: float, cached: float = 0.0) -> float:
        """Return the mean FLOP per prompt token, `cached` + 1 to `length`, without output layer."""
        head = 2 * self.width * self.vocabulary * self.share
        return self.token_flop - head + self.context_flop * (cached + length + 1) / 2

    def kv_bytes(self, element: float) -> float:
        """Return the size of a token's keys and values, for elements of this size [B]."""
        kept = self.kv_width or 2 * self.kv_heads * self.head_dim
        return (self.cached_layers or self.layers) * kept * element * self.share

    @property
    def smallest(self) -> float:
        """FLOP of a sample with one output token, `sample_flop` (such as an encoder's) included."""
        return self.token_flop + self.sample_flop * self.share

    def estimate(self, seen: Circumstances) -> float | None:
        """Return the FLOP per sample at the run's mean token counts; None if these are unknown."""
        per_token = self.estimate_token(seen)
        return None if per_token is None else per_token * (seen.output_tokens or 0.0)

    def estimate_token(self, seen: Circumstances) -> float | None:
        """Return (prompt's FLOP + output's FLOP) / output tokens; None for unknown lengths."""
        if seen.input_tokens is None or not seen.output_tokens:
            return None
        cached = min(seen.cached_tokens or 0.0, seen.input_tokens)
        context = seen.input_tokens + seen.output_tokens / 2
        step = self.beams * (self.token_flop + self.context_flop * context)
        prompt = (seen.input_tokens - cached) * self.prompt_flop(seen.input_tokens, cached)
        return step + (prompt + self.sample_flop * self.share) / seen.output_tokens

    def least_token(self, seen: Circumstances) -> float:
        """Return the least FLOP per output token, including its part of the FLOP per sample."""
        overhead = self.sample_flop * self.share / seen.output_tokens if seen.output_tokens else 0.0
        return self.beams * self.token_flop + overhead


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoder(_Work):
    """Describe an encoder like BERT: `layers` of size `width`, feed-forward size 4 x `width`.

    Attributes:
        outputs: Values of the output layer for each token.
        least_tokens: Lower bound of the data set's mean tokens per sample.
    """

    kind: ClassVar[str] = "encoder"
    layers: int
    width: int
    outputs: int
    least_tokens: float

    def flop(self, tokens: float, squared: float | None = None) -> float:
        """Return the FLOP of a sample: `layers` · (24 d² s + 4 d s²), plus the output layer.

        d is `width`, s is `tokens`; `squared` is the mean of s², None for a single length.
        """
        square = max(squared or 0.0, tokens**2)
        blocks = self.layers * (24 * self.width**2 * tokens + 4 * self.width * square)
        return (blocks + 2 * self.width * self.outputs * tokens) * self.share

    @property
    def smallest(self) -> float:
        """FLOP of the shortest possible sample, one token."""
        return self.flop(1.0)

    def least(self, seen: Circumstances) -> float:
        """Return FLOP for min(`least_tokens`, measured mean) tokens; for 1 if no mean is known."""
        if seen.tokens is None:
            return self.smallest
        return self.flop(min(self.least_tokens, seen.tokens))

    def estimate(self, seen: Circumstances) -> float | None:
        """Return a sample's mean FLOP by mean length and mean squared length; None if unknown."""
        return None if seen.tokens is None else self.flop(seen.tokens, seen.tokens_squared)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fixed(_Work):
    """Describe a network with equal work for every sample, as for images of one size."""

    kind: ClassVar[str] = "network of fixed size"
    sample_flop: float

    @property
    def smallest(self) -> float:
        """FLOP of each sample, as all samples need equal work."""
        return self.sample_flop * self.share


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts(_Work):
    """Describe a sample of many equal parts: windows of a volume, or pairs of user and item.

    `least_parts` is a lower bound of the mean number: for windows, volume / window in voxels.
    """

    part: str
    part_flop: float
    least_parts: float

    @property
    def kind(self) -> str:
        """Name of the network type for messages: "network over windows"."""
        return f"network over {self.part}s"

    @property
    def smallest(self) -> float:
        """FLOP of the smallest possible sample, which has a single part."""
        return self.part_flop * self.share

    def least(self, seen: Circumstances) -> float:
        """Return the FLOP of min(`least_parts`, the run's mean) parts; of one part if unknown."""
        if seen.parts is None:
            return self.smallest
        return min(self.least_parts, seen.parts) * self.smallest

    def estimate(self, seen: Circumstances) -> float | None:
        """Return the FLOP of a sample with the run's mean number of parts; None if unknown."""
        return None if seen.parts is None else seen.parts * self.part_flop * self.share


@dataclass(frozen=True, kw_only=True, slots=True)
class Diffusion(_Work):
    """Describe a denoising network with `calls` calls per step (2 if guided), and its decoder."""

    kind: ClassVar[str] = "diffusion model"
    call_flop: float
    decoder_flop: float
    text_flop: float
    steps: float
    calls: int = 2
    network_share: float = 1.0

    @property
    def smallest(self) -> float:
        """Minimum FLOP per image, with the text encoded once for each call of a denoising step."""
        calls = self.steps * self.calls * self.network_share
        flop = calls * self.call_flop + self.decoder_flop + self.calls * self.text_flop
        return flop * self.share


AnyWork = Decode | Encoder | Fixed | Parts | Diffusion

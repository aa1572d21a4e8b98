"""How much a workload has to compute and to read, from its architecture.

FLOP are floating-point operations, two for each multiplication with its addition; integer ones
count alike. Only matrix products and convolutions count, never normalisation, activations or
biases, so that a limit made from them is never too low.

Every class says `smallest`, the FLOP that no single sample can do without, `least(seen)`, those
that the mean sample of a run cannot do without, and `estimate(seen)`, those of the mean sample as
the run's figures say, None where they do not.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_mlperf.core.roofline.seen import Seen


@dataclass(frozen=True, kw_only=True, slots=True)
class Decode:
    """A transformer that generates tokens, dense or a mixture of experts.

    Attributes:
        layers, width: Its blocks, and the elements of a token between them.
        heads, kv_heads, head_dim: Of attention: query heads, those of keys and values, their size.
        hidden: Elements inside the feed-forward part, of one expert.
        matrices: Of the feed-forward part: 2, or 3 where it is gated.
        vocabulary: Tokens; the output layer is computed for every generated one.
        experts, active: Experts of a layer, and how many of them each token uses.
        beams: Continuations that the rules of the workload follow at once.
        share: Share of the reference's weights and work that is left.
    """

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
    share: float = 1.0

    @property
    def kind(self) -> str:
        """Word for messages."""
        return "language model"

    @property
    def expert(self) -> float:
        """Weights of one expert in all layers."""
        return self.layers * self.matrices * self.width * self.hidden * self.share

    @property
    def shared(self) -> float:
        """Weights that every token uses: attention, router and output layer."""
        attention = 2 * self.width * (self.heads + self.kv_heads) * self.head_dim
        router = self.width * self.experts if self.experts > 1 else 0
        return (self.layers * (attention + router) + self.width * self.vocabulary) * self.share

    def weights(self, sequences: float | None = None) -> float:
        """Return the weights that a step must read; the input embedding is looked up, not read.

        Args:
            sequences: Tokens that the step computes. None: as if they all chose the same experts,
                the fewest weights that can be; else as if each chose evenly, E (1 - (1 - k/E)^B).
        """
        hit: float = self.active
        if sequences is not None and self.experts > 1:
            missed = (1 - self.active / self.experts) ** max(sequences, 1.0)
            hit = self.experts * (1 - missed)
        return self.shared + hit * self.expert

    @property
    def token_flop(self) -> float:
        """FLOP of one generated token, without those of attention over what came before."""
        return 2 * self.weights()

    @property
    def context_flop(self) -> float:
        """FLOP of attention over one earlier token, for one new one."""
        return 4 * self.layers * self.heads * self.head_dim * self.share

    def prompt_flop(self, length: float, cached: float = 0.0) -> float:
        """Return the mean FLOP of a prompt's token: no output layer, attention to those before it.

        Args:
            length: Tokens of the prompt.
            cached: Those at its beginning that need no work.
        """
        head = 2 * self.width * self.vocabulary * self.share
        return self.token_flop - head + self.context_flop * (cached + length + 1) / 2

    def kv_bytes(self, element: float) -> float:
        """Return the bytes of keys and values for one token, of elements of so many bytes."""
        return 2 * self.layers * self.kv_heads * self.head_dim * element * self.share

    @property
    def smallest(self) -> float:
        """FLOP of a prompt and an answer of one token."""
        return self.token_flop

    def least(self, _seen: Seen) -> float:
        """Return the FLOP of a sample that generates one token."""
        return self.smallest

    def estimate(self, seen: Seen) -> float | None:
        """Return the FLOP of a sample with the run's mean prompt and output."""
        per_token = self.estimate_token(seen)
        return None if per_token is None else per_token * (seen.output_tokens or 0.0)

    def estimate_token(self, seen: Seen) -> float | None:
        """Return the FLOP for each token of the output, with its part of the prompt."""
        if seen.input_tokens is None or not seen.output_tokens:
            return None
        cached = min(seen.cached_tokens or 0.0, seen.input_tokens)
        context = seen.input_tokens + seen.output_tokens / 2
        own = self.beams * (self.token_flop + self.context_flop * context)
        prompt = (seen.input_tokens - cached) * self.prompt_flop(seen.input_tokens, cached)
        return own + prompt / seen.output_tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoder:
    """A transformer that reads a text at once, with a feed-forward part of 4 times its width.

    Attributes:
        layers, width: Its blocks, and the elements of a token between them.
        outputs: Values of the output layer for each token.
        least_tokens: Tokens that the data set's mean sample has at least.
        share: Share of the reference's work that is left.
    """

    layers: int
    width: int
    outputs: int
    least_tokens: float
    share: float = 1.0

    @property
    def kind(self) -> str:
        """Word for messages."""
        return "encoder"

    def flop(self, tokens: float, squared: float | None = None) -> float:
        """Return L (24 d^2 s + 4 d s^2) and the output layer.

        Args:
            tokens: Mean of the samples' lengths, without padding.
            squared: Mean of their squares; the square of the mean, which is never more, without it.
        """
        square = max(squared or 0.0, tokens**2)
        blocks = self.layers * (24 * self.width**2 * tokens + 4 * self.width * square)
        return (blocks + 2 * self.width * self.outputs * tokens) * self.share

    @property
    def smallest(self) -> float:
        """FLOP of one token."""
        return self.flop(1.0)

    def least(self, seen: Seen) -> float:
        """Return the FLOP at the length that the data set's mean sample has at least, or the run's.

        A run may be of a part of the data set: where it says no length, one token counts.
        """
        if seen.tokens is None:
            return self.smallest
        return self.flop(min(self.least_tokens, seen.tokens))

    def estimate(self, seen: Seen) -> float | None:
        """Return the FLOP at the run's lengths."""
        return None if seen.tokens is None else self.flop(seen.tokens, seen.tokens_squared)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fixed:
    """A network with the same work for every sample: images of one size.

    Attributes:
        sample_flop: FLOP of a sample.
        share: Share of the reference's work that is left.
    """

    sample_flop: float
    share: float = 1.0

    @property
    def kind(self) -> str:
        """Word for messages."""
        return "network of fixed size"

    @property
    def smallest(self) -> float:
        """FLOP of a sample."""
        return self.sample_flop * self.share

    def least(self, _seen: Seen) -> float:
        """Return the FLOP of a sample."""
        return self.smallest

    def estimate(self, _seen: Seen) -> float | None:
        """Return the FLOP of a sample."""
        return self.smallest


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """A sample of many equal parts: windows over a volume, or pairs of user and item.

    Attributes:
        part: Word for one: "window".
        part_flop: FLOP of one.
        least_parts: How many the data set's mean sample has at least: of windows, its voxels over
            those of one, as if none overlapped.
        share: Share of the reference's work that is left.
    """

    part: str
    part_flop: float
    least_parts: float
    share: float = 1.0

    @property
    def kind(self) -> str:
        """Word for messages."""
        return f"network over {self.part}s"

    @property
    def smallest(self) -> float:
        """FLOP of one part."""
        return self.part_flop * self.share

    def least(self, seen: Seen) -> float:
        """Return the FLOP of the parts that the data set's mean sample has at least, or the run's.

        A run may be of a part of the data set: where it says no number, one part counts.
        """
        if seen.parts is None:
            return self.smallest
        return min(self.least_parts, seen.parts) * self.smallest

    def estimate(self, seen: Seen) -> float | None:
        """Return the FLOP of the run's mean sample."""
        return None if seen.parts is None else seen.parts * self.part_flop * self.share


@dataclass(frozen=True, kw_only=True, slots=True)
class Diffusion:
    """A denoising network that is called again and again, then a decoder.

    Attributes:
        call_flop: FLOP of one call of the denoising network.
        decoder_flop: FLOP that make an image of the last latent.
        text_flop: FLOP of the text encoders for one prompt.
        steps: Of the reference.
        calls: Of the network for each step: 2 with classifier-free guidance.
        network_share: Mean share of the network that a call computes.
        share: Share of the reference's work that is left.
    """

    call_flop: float
    decoder_flop: float
    text_flop: float
    steps: float
    calls: int = 2
    network_share: float = 1.0
    share: float = 1.0

    @property
    def kind(self) -> str:
        """Word for messages."""
        return "diffusion model"

    @property
    def smallest(self) -> float:
        """FLOP of an image, with a prompt for every call of a step.

        An engine that encodes the empty prompt once for all saves less than 0.1 % of it.
        """
        calls = self.steps * self.calls * self.network_share
        own = calls * self.call_flop + self.decoder_flop + self.calls * self.text_flop
        return own * self.share

    def least(self, _seen: Seen) -> float:
        """Return the FLOP of an image."""
        return self.smallest

    def estimate(self, _seen: Seen) -> float | None:
        """Return the FLOP of an image."""
        return self.smallest


AnyWork = Decode | Encoder | Fixed | Parts | Diffusion
"""Every kind of work that there is a formula for."""

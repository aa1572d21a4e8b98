"""What was run, as far as it decides what could be reached; what nobody knows is None."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

_SHARES = ("work_share", "network_share")
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
class Seen:
    """The circumstances of a result.

    Attributes:
        gpus: All that worked.
        replica_gpus: Those that hold one copy of the model together, by tensor or pipeline
            parallelism.
        precision: Of the multiplications: a name of `PRECISIONS`.
        weights: Format of the weights, where it is another.
        kv: Format of the key-value cache.
        techniques: Names of what the closed division does not allow.
        batch: Sequences that one copy of the model decodes together, at most.
        input_tokens, output_tokens: Mean of a sample.
        tokens, tokens_squared: Mean length of an encoder's samples, and mean of its square.
        parts: Mean of windows, or of pairs, of a sample.
        cached_tokens: Mean of those at a prompt's beginning that needed no work.
        accepted_tokens: Mean of tokens that one step of speculative decoding gave.
        steps: Denoising steps.
        calls: Calls of the denoising network in a step.
        network_share: Mean share of the denoising network that a call computed.
        work_share: Share of the reference's multiplications that is left.

    Raises:
        ValueError: A figure cannot be.
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
        for own in fields(self):
            value = getattr(self, own.name)
            if not isinstance(value, int | float):
                continue
            if not 0 <= value < math.inf:
                raise ValueError(f"{own.name} is {value!r}; must be finite, at least 0")
            if own.name in _AT_LEAST_ONE and value < 1:
                raise ValueError(f"{own.name} is {value!r}; must be at least 1")
            if own.name in _SHARES and not 0 < value <= 1:
                raise ValueError(f"{own.name} is {value!r}; must be above 0 and at most 1")
        if self.replica_gpus is not None and self.replica_gpus > self.gpus:
            raise ValueError(f"replica_gpus is {self.replica_gpus}, of {self.gpus} GPUs in all")

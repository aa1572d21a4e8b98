"""The only ways from one kind of quantity to another; each says by what, and whose that is.

A language model's rate is kept in samples/s and in tokens/s, each as it was measured. Between the
two lies the number of tokens per sample, and that differs from run to run (v4.1 llama2-70b: 274 to
293 against the reference's 294.45): B200 over H200 is 2.88 in tokens/s, 3.06 in samples/s. MLPerf's
own tokens/s of gptj are samples/s times LoadGen's constant of 69; our runs count their own tokens
and never use it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from pytest_mlperf.core.units import Quantity, Unit, exact, listed, rounded

LOADGEN_TOKENS = 69.0
"""Tokens per sample that LoadGen infers for gptj: its token_latency_scaling_factor."""

_SAMPLES_PER_QUERY = {"Server": 1, "Interactive": 1, "SingleStream": 1, "MultiStream": 8}
"""Of MLPerf's rules; in Offline one query holds all samples."""

_SAMPLES_OF_TOKENS = {
    Unit.TOKENS_PER_S: Unit.SAMPLES_PER_S,
    Unit.TOKENS_PER_S_PER_W: Unit.SAMPLES_PER_S_PER_W,
    Unit.TOKENS_PER_J: Unit.SAMPLES_PER_J,
}

_TOKENS_OF_SAMPLES = {samples: tokens for tokens, samples in _SAMPLES_OF_TOKENS.items()}

_SAMPLES_OF_QUERIES = {
    Unit.QUERIES_PER_S: Unit.SAMPLES_PER_S,
    Unit.QUERIES_PER_S_PER_W: Unit.SAMPLES_PER_S_PER_W,
}


class TokensFrom(StrEnum):
    """Whose number of tokens per sample it is."""

    RUN = "this run"
    REFERENCE = "MLPerf's reference"
    LOADGEN = "LoadGen's constant"


@dataclass(frozen=True, kw_only=True, slots=True)
class TokensPerSample:
    """A number of tokens per sample, and whose it is.

    Raises:
        ValueError: It is not positive and finite, or is called LoadGen's constant and is not 69.
    """

    value: float
    source: TokensFrom

    def __post_init__(self) -> None:
        if not 0 < self.value < math.inf:
            raise ValueError(f"{self.value!r} tokens per sample cannot be: must be positive")
        if self.source is TokensFrom.LOADGEN and self.value != LOADGEN_TOKENS:
            raise ValueError(
                f"LoadGen's constant is {exact(LOADGEN_TOKENS)} tokens per sample, "
                f"not {exact(self.value)}"
            )

    @classmethod
    def of_loadgen(cls) -> Self:
        """Return the number that LoadGen infers for gptj."""
        return cls(value=LOADGEN_TOKENS, source=TokensFrom.LOADGEN)

    def __str__(self) -> str:
        whose = "this run's own" if self.source is TokensFrom.RUN else f"{self.source} of"
        return f"{whose} {exact(self.value)} tokens per sample"


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplesPerQuery:
    """How many samples one query of a scenario holds.

    Raises:
        ValueError: There is none.
    """

    value: int
    scenario: str

    def __post_init__(self) -> None:
        if self.value < 1:
            raise ValueError(f"{self.value!r} samples per query cannot be: must be at least 1")

    @classmethod
    def of(cls, scenario: str) -> Self:
        """Return MLPerf's number for a scenario.

        Raises:
            ValueError: In Offline one query holds all samples: its queries give no rate.
        """
        if scenario not in _SAMPLES_PER_QUERY:
            raise ValueError(
                f"queries of {scenario} have no fixed number of samples; those of "
                f"{listed(_SAMPLES_PER_QUERY)} have"
            )
        return cls(value=_SAMPLES_PER_QUERY[scenario], scenario=scenario)

    def __str__(self) -> str:
        noun = "sample" if self.value == 1 else "samples"
        return f"{self.value} {noun} per query in {self.scenario}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Converted:
    """A quantity that was not measured as such, with what it was made from.

    It is no `Quantity`, so that it cannot pass for a measured one.

    Attributes:
        quantity: The new quantity.
        origin: What was measured.
        by: What lies between the two.
    """

    quantity: Quantity
    origin: Quantity
    by: TokensPerSample | SamplesPerQuery

    def __str__(self) -> str:
        text = f"{rounded(self.quantity.value)} {self.quantity.unit}"
        return f"{text}, from {self.origin} by {self.by}"


def tokens_to_samples(quantity: Quantity, *, tokens_per_sample: TokensPerSample) -> Converted:
    """Convert tokens/s (also per watt, per joule) to samples/s by a named number of tokens.

    Raises:
        ValueError: The quantity counts no tokens.
    """
    unit = _counterpart(quantity, _SAMPLES_OF_TOKENS, "tokens")
    value = quantity.value / tokens_per_sample.value
    return Converted(
        quantity=Quantity(value=value, unit=unit), origin=quantity, by=tokens_per_sample
    )


def samples_to_tokens(quantity: Quantity, *, tokens_per_sample: TokensPerSample) -> Converted:
    """Convert samples/s (also per watt, per joule) to tokens/s by a named number of tokens.

    Raises:
        ValueError: The quantity counts no samples.
    """
    unit = _counterpart(quantity, _TOKENS_OF_SAMPLES, "samples")
    value = quantity.value * tokens_per_sample.value
    return Converted(
        quantity=Quantity(value=value, unit=unit), origin=quantity, by=tokens_per_sample
    )


def queries_to_samples(quantity: Quantity, *, samples_per_query: SamplesPerQuery) -> Converted:
    """Convert queries/s (also per watt) to samples/s by the samples of one query.

    Raises:
        ValueError: The quantity counts no queries.
    """
    unit = _counterpart(quantity, _SAMPLES_OF_QUERIES, "queries")
    value = quantity.value * samples_per_query.value
    return Converted(
        quantity=Quantity(value=value, unit=unit), origin=quantity, by=samples_per_query
    )


def _counterpart(quantity: Quantity, table: Mapping[Unit, Unit], what: str) -> Unit:
    unit = table.get(quantity.unit)
    if unit is None:
        raise ValueError(f"{quantity} counts no {what}; units that do: {listed(table)}")
    return unit

"""Outputs by their digests: what tells "the outputs changed" from "the scores changed"."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_mlperf.core.measurement import Scored

DIGEST_BYTES = 2
"""Two bytes a sample, no more than a score takes in git; 1 change of 65,536 goes unseen."""


@dataclass(frozen=True, kw_only=True)
class ScoredOutputs(Scored):
    """The scores of an accuracy pass, with what tells the outputs apart.

    Attributes:
        outputs: A digest of each output, one for each of `indices`.
    """

    outputs: tuple[int, ...]


def digest(output: bytes) -> int:
    """Return the digest of one output, 0 to 65,535."""
    return int.from_bytes(hashlib.blake2b(output, digest_size=DIGEST_BYTES).digest(), "big")


def outputs_of(scored: Scored) -> tuple[int, ...] | None:
    """Return the digests of a pass, or None: an older release kept none."""
    return scored.outputs if isinstance(scored, ScoredOutputs) else None


def others(before: Sequence[int] | None, scored: Scored) -> int | None:
    """Return how many outputs are others than the baseline's, or None where nobody knows.

    Args:
        before: The baseline's digests by data set index, or None.
        scored: A pass over all samples or some.
    """
    now = outputs_of(scored)
    if before is None or now is None:
        return None
    return sum(before[index] != own for index, own in zip(scored.indices, now, strict=True))

"""Recompute a window's metrics with the token counts of a reference tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.run.worker.clocks import PER_USER, QUANTILES, percentile

COUNT_SLACK_SHARE = 0.02
"""Relative difference between both counts above which a note reports it."""

NOTE = "tokens_counted"

OF_TURNS = "e2e_tps_per_user"


@dataclass(frozen=True, slots=True)
class Ended:
    """A finished request of a window.

    Attributes:
        served: Whether it completed inside the window, so that rates include it.
        counts: Whether latencies include it.
        part: Index of the equal part of the window, from 0.
        tokens: Output tokens as the engine counts them.
        decode_s: Time from the first token to the end [s]; None without a first token.
    """

    sample: int
    served: bool
    counts: bool
    part: int
    tokens: int
    decode_s: float | None


def recounted(
    metrics: Mapping[str, float],
    ended: Sequence[Ended],
    counts: Mapping[int, tuple[int, int]],
    duration_s: float,
) -> tuple[dict[str, float], str]:
    """Return a window's metrics by the reference counts, and a note about the difference.

    `counts` has each sample's tokens, and those after its first message: decode time divided by the
    latter is time per output token, as in MLPerf Endpoints. Inter-token latencies are dropped, as
    they belong to the engine's own tokens. Raises RunError if a request was not counted.
    """
    missing = [one.sample for one in ended if one.sample not in counts]
    if missing:
        raise RunError("engine", f"{len(missing)} of {len(ended)} answers were not counted again")
    theirs = sum(one.tokens for one in ended)
    ours = sum(counts[one.sample][0] for one in ended)
    kept = {
        name: value
        for name, value in metrics.items()
        if not name.startswith(("itl_", "tpot_", "tokens_", "tps_", "e2e_")) and name != PER_USER
    }
    counting = [one for one in ended if one.counts]
    served = sum(counts[one.sample][0] for one in ended if one.served)
    if served:
        kept["tokens_per_second"] = served / duration_s
    if tokens := sum(counts[one.sample][0] for one in counting):
        kept["tokens_per_sample"] = tokens / len(counting)
    if tokens and OF_TURNS in metrics:
        kept[OF_TURNS] = metrics[OF_TURNS] * tokens / sum(one.tokens for one in counting)
    tpot_s = sorted(
        one.decode_s / after
        for one in counting
        if one.decode_s and (after := counts[one.sample][1])
    )
    if tpot_s and "first_read_p50" not in metrics:
        kept |= {f"tpot_{name}": percentile(tpot_s, share) for name, share in QUANTILES.items()}
        kept["tps_per_user"] = 1 / kept["tpot_p90"]
    note = ""
    if theirs and abs(ours - theirs) > COUNT_SLACK_SHARE * theirs:
        cause = "another tokenizer than that of the model it serves"
        if ours < theirs:
            cause = "its end tokens or what it keeps to itself, or another tokenizer"
        note = (
            f"the reference tokenizer counts {ours:,} tokens, the server {theirs:,} "
            f"({ours / theirs - 1:+.1%}): {cause}"
        )
    return kept, note


def parts_of(
    parts: Sequence[tuple[int, int, float]],
    ended: Sequence[Ended],
    counts: Mapping[int, tuple[int, int]],
) -> list[tuple[int, int, float]]:
    """Return the parts of a window with the reference counts of tokens."""
    tokens = [0] * len(parts)
    for request in ended:
        if request.counts:
            tokens[request.part] += counts[request.sample][0]
    return [
        (requests, count, took_s)
        for (requests, _, took_s), count in zip(parts, tokens, strict=True)
    ]

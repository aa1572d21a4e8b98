"""What is said beside a verdict on accuracy: small drops, changed outputs, how alike passes are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_mlperf.core.judge.rule_a import Paired
from pytest_mlperf.core.measurement import Scored
from pytest_mlperf.core.outputs import others
from pytest_mlperf.core.verdict import Outcome, PairedVerdict

NONDETERMINISTIC = 0.8
"""Below this correlation two passes of one build hardly measure the same thing."""


@dataclass(frozen=True, kw_only=True)
class Beside:
    """What is known of the two passes besides their scores.

    Attributes:
        same_build: Engine, weights, options, data and machine are the baseline's.
        outputs: A digest of each of the baseline's outputs by data set index, or None.
    """

    same_build: bool = False
    outputs: Sequence[int] | None = None


def notes_of_scores(
    verdicts: Sequence[PairedVerdict], found: Mapping[str, Paired], beside: Beside
) -> tuple[str, ...]:
    """Return sentences on drops inside the margin, and on how alike the two passes are.

    Args:
        verdicts: Of the metrics that were judged.
        found: The comparisons they rest on.
        beside: What else is known.
    """
    return tuple(note for verdict in verdicts for note in _of_metric(verdict, found, beside))


def notes_of_outputs(scored: Scored, rescored: int, beside: Beside) -> tuple[str, ...]:
    """Return a sentence on outputs that changed, or did not where scores did.

    Args:
        scored: The pass.
        rescored: How many of its samples have another score than in the baseline.
        beside: What else is known.
    """
    changed = others(beside.outputs, scored)
    if changed is None:
        return ()
    count = f"{changed:,} of {len(scored.indices):,} outputs"
    if changed and not rescored:
        return (f"outputs changed but scores did not: {count} are others than the baseline's",)
    if changed:
        return (f"{count} are others than the baseline's; {rescored:,} samples scored otherwise",)
    if rescored:
        return (
            f"scores changed but outputs did not: {rescored:,} samples; "
            "the scorer, or a library that it uses, is another one",
        )
    return ()


def _of_metric(
    verdict: PairedVerdict, found: Mapping[str, Paired], beside: Beside
) -> Iterator[str]:
    smaller = verdict.outcome is Outcome.OK and verdict.p is not None and verdict.p < 0.01
    if smaller and verdict.change and (verdict.change > 0) == verdict.lower:
        yield (
            f"{verdict.metric}: a drop smaller than the margin is certain "
            f"(plain paired test p = {verdict.p:.2g})"
        )
    correlation = found[verdict.metric].correlation
    if correlation is None or not verdict.changed:
        return
    if correlation < NONDETERMINISTIC:
        why = (
            "nondeterministic generation"
            if beside.same_build
            else ("other outputs, or nondeterministic generation")
        )
        yield (
            f"{verdict.metric}: scores of the two passes hardly agree sample by sample "
            f"(correlation {correlation:.2f}): {why}"
        )
    elif beside.same_build:
        yield (
            f"{verdict.metric}: near-deterministic: {verdict.changed:,} of {verdict.samples:,} "
            f"scores are others than in the baseline of the same build "
            f"(re-run correlation {correlation:.4f})"
        )

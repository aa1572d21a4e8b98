"""The accuracy gate: scores against a reference, a plain comparison as MLPerf makes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.verdict import MetricVerdict, Outcome


@dataclass(frozen=True, kw_only=True)
class GateRuling:
    """What the gate says: the word, the first line, one entry per metric."""

    outcome: Outcome
    headline: str
    metrics: tuple[MetricVerdict, ...]


def gate(
    scores: Mapping[str, float],
    reference: Mapping[str, float] | None,
    target: float,
    *,
    whose: str,
    profile: str,
) -> GateRuling:
    """Compare the scores of a full data set with target x reference.

    Args:
        scores: Aggregate scores by metric, higher is better.
        reference: Reference scores by metric; None: no gate is evaluated.
        target: Share of the reference that must be reached, e.g. 0.99.
        whose: Whose reference it is, in words.
        profile: For the words where no gate is evaluated.

    Raises:
        RunError: The scorer gave no such metric.
    """
    if reference is None:
        shown = ", ".join(f"{name} {score:.3f}" for name, score in scores.items())
        return GateRuling(
            outcome=Outcome.OK,
            headline=f"{shown}; gate not evaluated ({profile} profile)",
            metrics=tuple(
                MetricVerdict(metric=name, outcome=None, now=score)
                for name, score in scores.items()
            ),
        )
    metrics, texts = [], []
    for name, expected in reference.items():
        if name not in scores:
            raise RunError("scorer", f"gave no {name!r}; it gave {', '.join(scores)}")
        score, needed = scores[name], expected * target
        reached = score >= needed
        sign = "≥" if reached else "<"
        digits = 3 if reached else _telling_digits(score, needed)
        texts.append(
            f"{name} {score:.{digits}f} {sign} {needed:.{digits}f}, "
            f"{target * 100:g} % of {whose} reference"
        )
        metrics.append(
            MetricVerdict(
                metric=name,
                outcome=Outcome.OK if reached else Outcome.GATE_FAIL,
                now=score,
                baseline=expected,
                change=score / expected - 1,
                limit=1 - target,
            )
        )
    failed = [i for i, metric in enumerate(metrics) if metric.outcome is Outcome.GATE_FAIL]
    return GateRuling(
        outcome=Outcome.GATE_FAIL if failed else Outcome.OK,
        headline=texts[failed[0] if failed else 0],
        metrics=tuple(metrics),
    )


def _telling_digits(score: float, needed: float) -> int:
    """Return how many decimals show that a score is below what is needed; three or more."""
    different = (d for d in range(3, 12) if f"{score:.{d}f}" != f"{needed:.{d}f}")
    return next(different, 12)

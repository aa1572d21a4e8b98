"""The accuracy gate: scores against a reference, a plain comparison as MLPerf makes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.measurement import Accuracy
from pytest_mlperf.core.verdict import MetricVerdict, Outcome


@dataclass(frozen=True, kw_only=True)
class GateRuling:
    """What the gate says: whether it was evaluated, the word, the first line, each metric."""

    evaluated: bool
    outcome: Outcome
    headline: str
    metrics: tuple[MetricVerdict, ...]


def gate(
    accuracy: Accuracy,
    reference: Mapping[str, float] | None,
    target: float,
    *,
    windows: Mapping[str, tuple[float, float]] = MappingProxyType({}),
    whose: str,
    profile: str,
) -> GateRuling:
    """Compare the scores of a full data set with target x reference.

    Args:
        accuracy: Its scores by metric, higher is better; a subset never claims the gate.
        reference: Reference scores by metric; None: no gate is evaluated.
        target: Share of the reference that must be reached, e.g. 0.99.
        windows: Metrics that are neither better nor worse: lowest and highest share of the
            reference, in place of the target.
        whose: Whose reference it is, in words.
        profile: For the words where no gate is evaluated.

    Raises:
        RunError: The scorer gave no such metric.
    """
    scores = accuracy.scores
    if reference is None or not accuracy.full:
        shown = ", ".join(f"{name} {score:.3f}" for name, score in scores.items())
        why = f"{profile} profile"
        if reference is not None:
            why = f"{accuracy.samples:,} of {accuracy.total:,} samples"
        return GateRuling(
            evaluated=False,
            outcome=Outcome.OK,
            headline=f"{shown}; gate not evaluated ({why})",
            metrics=tuple(
                MetricVerdict(metric=name, outcome=None, now=score)
                for name, score in scores.items()
            ),
        )
    metrics, texts = [], []
    for name, expected in reference.items():
        if name not in scores:
            raise RunError("scorer", f"gave no {name!r}; it gave {', '.join(scores)}")
        score = scores[name]
        low, high = windows.get(name, (target, None))
        above = high is not None and score > expected * high
        share = high if above and high is not None else low
        needed, reached = expected * share, score >= expected * low and not above
        sign = "≥" if reached else ">" if above else "<"
        digits = 3 if reached else _telling_digits(score, needed)
        texts.append(
            f"{name} {score:.{digits}f} {sign} {needed:.{digits}f}, "
            f"{share * 100:g} % of {whose} reference"
        )
        metrics.append(
            MetricVerdict(
                metric=name,
                outcome=Outcome.OK if reached else Outcome.GATE_FAIL,
                now=score,
                baseline=expected,
                change=score / expected - 1,
                limit=1 - share,
            )
        )
    failed = [i for i, metric in enumerate(metrics) if metric.outcome is Outcome.GATE_FAIL]
    return GateRuling(
        evaluated=True,
        outcome=Outcome.GATE_FAIL if failed else Outcome.OK,
        headline=texts[failed[0] if failed else 0],
        metrics=tuple(metrics),
    )


def _telling_digits(score: float, needed: float) -> int:
    """Return how many decimals show that a score is below what is needed; three or more."""
    different = (d for d in range(3, 12) if f"{score:.{d}f}" != f"{needed:.{d}f}")
    return next(different, 12)

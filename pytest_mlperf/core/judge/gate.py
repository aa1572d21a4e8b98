"""The accuracy gate: scores against a reference, a plain comparison as MLPerf makes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.measurement import Accuracy
from pytest_mlperf.core.verdict import MetricVerdict, Outcome

NEAR = 2.0
"""Re-run standard deviations within which a score is called near its gate."""

OWN = "this suite's own"
"""Whose reference it is where a suite names it under [workload] reference."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
    """What one score must keep within.

    Attributes:
        reference: The reference score.
        low: Lowest score that passes, or None.
        high: Highest score that passes, or None.
    """

    reference: float
    low: float | None
    high: float | None

    def missed(self, score: float) -> float | None:
        """Return the bound that a score does not keep, or None; NaN keeps none."""
        if self.low is not None and not score >= self.low:
            return self.low
        return self.high if self.high is not None and not score <= self.high else None


@dataclass(frozen=True, kw_only=True)
class GateRuling:
    """What the gate says: whether it was evaluated, the word, first line, each metric, notes."""

    evaluated: bool
    outcome: Outcome
    headline: str
    metrics: tuple[MetricVerdict, ...]
    notes: tuple[str, ...] = ()


def gate(
    accuracy: Accuracy,
    bounds: Mapping[str, Bounds] | None,
    *,
    whose: str,
    profile: str,
    rerun_sd: Mapping[str, float] = MappingProxyType({}),
) -> GateRuling:
    """Compare the scores of a full data set with what each must keep within.

    Args:
        accuracy: Its scores by metric; a subset never claims the gate.
        bounds: By metric; None: no gate is evaluated.
        whose: Whose reference it is, in words.
        profile: For the words where no gate is evaluated.
        rerun_sd: By metric, how far two passes of one build are apart: the standard deviation of
            a pass's score, points. It makes a note, never the word: the gate is MLPerf's.

    Raises:
        RunError: The scorer gave no such metric.
    """
    scores = accuracy.scores
    if bounds is None or not accuracy.full:
        shown = ", ".join(f"{name} {score:.3f}" for name, score in scores.items())
        why = f"{profile} profile"
        if bounds is not None:
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
    if missing := [name for name in bounds if name not in scores]:
        names = ", ".join(missing)
        asks = f"{whose} gate needs {names}", "see the scorer's options"
        if whose == OWN:
            asks = (
                f"[workload] reference names {names}",
                "correct reference, or the scorer's options",
            )
        raise RunError(
            "scorer",
            f"{asks[0]}, which the scorer did not give: it gave {', '.join(scores)}; {asks[1]}",
        )
    rows = [_metric(name, scores[name], own, whose) for name, own in bounds.items()]
    failed = [(text, metric) for text, metric in rows if metric.outcome is Outcome.GATE_FAIL]
    return GateRuling(
        evaluated=True,
        outcome=Outcome.GATE_FAIL if failed else Outcome.OK,
        headline=(failed or rows)[0][0],
        metrics=tuple(metric for _, metric in rows),
        notes=tuple(
            note
            for name, own in bounds.items()
            if (note := _near(name, scores[name], own, rerun_sd.get(name, 0.0)))
        ),
    )


def _near(name: str, score: float, bounds: Bounds, sd: float) -> str | None:
    """Return what to say of a score that another pass of the same build could move over a bound."""
    distances = {b: abs(score - b) for b in (bounds.low, bounds.high) if b is not None}
    bound = min(distances, key=distances.__getitem__)
    if not distances[bound] < NEAR * sd:
        return None
    side = "short of" if bounds.missed(score) == bound else "inside"
    return (
        f"NEAR-GATE: {name} is {distances[bound]:.2g} {side} its gate, "
        f"{distances[bound] / sd:.1f} re-run standard deviations ({sd:.2g} points): another pass "
        "of the same build may fall on the other side; repeat it before calling it a change"
    )


def _metric(name: str, score: float, own: Bounds, whose: str) -> tuple[str, MetricVerdict]:
    """Return the words for one metric and its row: the bound it missed, else its first one."""
    missed = own.missed(score)
    bound = missed if missed is not None else own.low if own.low is not None else own.high
    assert bound is not None
    upper = bound == own.high
    signs = {(True, False): "≥", (True, True): "≤", (False, False): "<", (False, True): ">"}
    digits = 3 if missed is None else _telling_digits(score, bound)
    share = bound / own.reference
    return (
        f"{name} {score:.{digits}f} {signs[missed is None, upper]} {bound:.{digits}f}, "
        f"{share * 100:.4g} % of {whose} reference",
        MetricVerdict(
            metric=name,
            outcome=Outcome.OK if missed is None else Outcome.GATE_FAIL,
            now=score,
            baseline=own.reference,
            change=score / own.reference - 1,
            limit=1 - share,
        ),
    )


def _telling_digits(score: float, needed: float) -> int:
    """Return how many decimals show that a score misses what is needed; three or more."""
    different = (d for d in range(3, 12) if f"{score:.{d}f}" != f"{needed:.{d}f}")
    return next(different, 12)

"""The accuracy gate: the whole data set is compared plainly, as MLPerf does; a part must prove."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.gate import Gate, GateState
from pytest_mlperf.core.judge.bounds import Bounds, Pass
from pytest_mlperf.core.judge.part import proven_misses
from pytest_mlperf.core.verdict import MetricVerdict, Outcome

NEAR = 2.0
"""Re-run standard deviations within which a score is called near its gate."""

OWN = "this suite's own"
"""Whose reference it is where a suite names it under [workload] reference."""


@dataclass(frozen=True, kw_only=True)
class GateRuling:
    """What the gate says: whether it was evaluated, the word, first line, each metric, notes."""

    gate: Gate
    outcome: Outcome
    headline: str
    metrics: tuple[MetricVerdict, ...]
    notes: tuple[str, ...] = ()


def gate(
    measured: Pass,
    bounds: Mapping[str, Bounds] | None,
    *,
    whose: str,
    complete: bool,
    rerun_sd: Mapping[str, float] = MappingProxyType({}),
) -> GateRuling:
    """Compare scores with what each must keep within.

    A whole data set is compared plainly. A part fails when a score of the whole is proven to miss
    its gate, with an error of `ALPHA` over all scores and looks, and never keeps it.

    Args:
        measured: What was measured.
        bounds: By metric; None: nobody gave a reference.
        whose: Whose reference it is, in words.
        complete: A score that the scorer did not give is an error; else the gate stays undecided.
        rerun_sd: By metric, how far two passes of one build are apart: the standard deviation of
            a pass's score, points. It makes a note, never the word: the gate is MLPerf's.

    Raises:
        RunError: The scorer gave no such metric.
    """
    if bounds is None:
        return _undecided(measured, GateState.NONE)
    if not measured.whole:
        return _of_part(measured, bounds, whose)
    scores = measured.accuracy.scores
    missing = tuple(name for name in bounds if name not in scores)
    if missing and (complete or whose == OWN):
        raise _incomplete(missing, scores, whose)
    there = {name: own for name, own in bounds.items() if name in scores}
    rows = [_metric(name, scores[name], own, whose) for name, own in there.items()]
    failed = [text for text, metric in rows if metric.outcome is Outcome.GATE_FAIL]
    state = GateState.FAILED if failed else GateState.UNDECIDED if missing else GateState.KEPT
    found = _undecided(measured, state, missing)
    kept = failed or ([] if missing else [text for text, _ in rows])
    return replace(
        found,
        outcome=Outcome.GATE_FAIL if failed else Outcome.OK,
        headline=kept[0] if kept else found.headline,
        metrics=tuple(metric for _, metric in rows) or found.metrics,
        notes=tuple(
            note
            for name, own in there.items()
            if (note := _near(name, scores[name], own, rerun_sd.get(name, 0.0)))
        ),
    )


def _undecided(measured: Pass, state: GateState, unscored: tuple[str, ...] = ()) -> GateRuling:
    """Return what is said where nothing was compared: the scores, and why."""
    accuracy = measured.accuracy
    found = Gate(
        state=state,
        samples=accuracy.samples,
        total=max(measured.total, accuracy.total, accuracy.samples),
        unscored=unscored,
    )
    shown = ", ".join(f"{name} {score:.3f}" for name, score in accuracy.scores.items())
    return GateRuling(
        gate=found,
        outcome=Outcome.OK,
        headline=f"{shown}; {found.in_words}",
        metrics=tuple(
            MetricVerdict(metric=name, outcome=None, now=score)
            for name, score in accuracy.scores.items()
        ),
    )


def _incomplete(missing: Sequence[str], scores: Mapping[str, float], whose: str) -> RunError:
    names = ", ".join(missing)
    asks = f"{whose} gate needs {names}", "see the scorer's options"
    if whose == OWN:
        asks = f"[workload] reference names {names}", "correct reference, or the scorer's options"
    return RunError(
        "scorer",
        f"{asks[0]}, which the scorer did not give: it gave {', '.join(scores)}; {asks[1]}",
    )


def _of_part(measured: Pass, bounds: Mapping[str, Bounds], whose: str) -> GateRuling:
    """Return what a part proves: that a score of the whole misses its gate, or nothing."""
    missed = proven_misses(measured, bounds)
    if not missed:
        return _undecided(measured, GateState.UNDECIDED)
    found = _undecided(measured, GateState.FAILED)
    rows = [_metric(name, score, bounds[name], whose) for name, score in missed.items()]
    proven = f"proven on {found.gate.samples:,} of {found.gate.total:,} samples"
    return replace(
        found,
        outcome=Outcome.GATE_FAIL,
        headline=f"{rows[0][0]}; {proven}",
        metrics=tuple(metric for _, metric in rows),
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

"""What is never recorded, whatever word its verdict ends in."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_mlperf.core.recording import why_never
from pytest_mlperf.core.verdict import Gate, GateState, Outcome
from tests.reports.verdicts import OK, run


@pytest.mark.parametrize("outcome", [Outcome.OK, Outcome.EXPECTED, Outcome.NO_BASELINE])
@pytest.mark.parametrize("state", GateState)
def test_scores_whose_gate_failed_are_no_baseline(outcome: Outcome, state: GateState) -> None:
    gate = Gate(state=state, samples=400, total=50_000)

    why = why_never(replace(OK, outcome=outcome, gate=gate))

    failed = state is GateState.FAILED
    assert why == ("accuracy: gate failed on 400 of 50,000 samples" if failed else None)


@pytest.mark.parametrize("outcome", [Outcome.EXPECTED, Outcome.PERF_DROP])
@pytest.mark.parametrize("missed", range(4))
def test_a_latency_limit_missed_twice_is_no_baseline(outcome: Outcome, missed: int) -> None:
    runs = tuple(replace(run(n), limit_missed=n < missed) for n in range(4))

    why = why_never(replace(OK, outcome=outcome, runs=runs))

    assert why == (f"{missed} of 4 runs missed their latency limit" if missed > 1 else None)

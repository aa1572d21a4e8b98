"""Which commands are offered after which verdict."""

from __future__ import annotations

from dataclasses import replace

from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.reports.terminal.advice import accept, record, rerun_command
from tests.reports import verdicts
from tests.reports.verdicts import DROP, result

DROPS = {Outcome.PERF_DROP, Outcome.ACC_DROP, Outcome.POWER_DROP}


def test_a_drop_can_be_accepted_and_a_missing_baseline_recorded() -> None:
    """Nothing else is; and never a figure of work that was slowed, or of a pretended machine."""
    for outcome in Outcome:
        case_result = result(replace(DROP, outcome=outcome))
        assert (accept(case_result) is not None) is (outcome in DROPS)
        assert (record(case_result) is not None) is (outcome is Outcome.NO_BASELINE)
        for offered in (accept(case_result), record(case_result)):
            assert offered is None or offered.startswith(
                f"{rerun_command(case_result)} --mlperf-update="
            )
        for made_up in (replace(case_result, handicap=0.5), replace(case_result, pretended=True)):
            assert accept(made_up) is None
            assert record(made_up) is None
    for drop in (verdicts.PROVISIONAL_DROP, verdicts.PROVISIONAL_WARNING):
        assert accept(result(drop)) is not None

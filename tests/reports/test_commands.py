"""Which commands are offered after which verdict."""

from __future__ import annotations

from dataclasses import replace

from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.reports.terminal.advice import commands, rerun_command
from tests.reports import verdicts
from tests.reports.verdicts import DROP, result

DROPS = {Outcome.PERF_DROP, Outcome.ACC_DROP, Outcome.POWER_DROP}


def test_a_drop_can_be_accepted_and_a_missing_baseline_recorded() -> None:
    """Nothing else is; and never a figure of work that was slowed, or of a pretended machine."""
    for outcome in Outcome:
        case_result = result(replace(DROP, outcome=outcome))
        offered = dict(commands(case_result))
        assert ("accept" in offered) is (outcome in DROPS)
        assert ("record" in offered) is (outcome is Outcome.NO_BASELINE)
        for name in offered.keys() - {"reproduce"}:
            assert offered[name].startswith(f"{rerun_command(case_result)} --mlperf-update=")
        for made_up in (replace(case_result, handicap=0.5), replace(case_result, pretended=True)):
            assert not dict(commands(made_up)).keys() - {"reproduce"}
    for drop in (verdicts.PROVISIONAL_DROP, verdicts.PROVISIONAL_WARNING):
        assert "accept" in dict(commands(result(drop)))

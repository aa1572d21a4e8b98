"""Test the environment section of `explain`.

The machine, and its speed relative to the baseline's.
"""

from __future__ import annotations

from dataclasses import replace

from pytest_mlperf.core.control import COPY, MATMUL, ControlComparison
from pytest_mlperf.core.measurement import Subject
from pytest_mlperf.reports.terminal.explanation import environment
from tests.reports.verdicts import DROP


def test_the_speed_of_the_machine_follows_its_description() -> None:
    subject = Subject(identity={"cpu": "EPYC"}, fingerprint={})
    speeds = tuple(
        ControlComparison(quantity=what, now=now, baseline=100.0, sd=0.07, baseline_values=8)
        for what, now in ((MATMUL, 78.0), (COPY, 75.0))
    )

    printed = environment(replace(DROP, subject=subject, machine=speeds), 80)

    assert " ".join(" ".join(printed).split()) == (
        "Measured on and with cpu EPYC fixed micro-benchmark: matrix product −22.0 %, copy "
        "−25.0 %; only slowdowns of 26.9 % or more can be detected on this machine"
    )
    assert environment(replace(DROP, subject=None), 80) == []

"""Test the message about a machine if all pairs of a session moved, or lie far apart."""

from __future__ import annotations

import random
import xml.etree.ElementTree as ET
from dataclasses import replace
from typing import Any

from pytest_mlperf.addons.exports import junit
from pytest_mlperf.core.results import Results
from pytest_mlperf.core.verdict import InterimAnalysis, Outcome
from pytest_mlperf.reports.terminal.advice import machine_noise_notes
from tests.reports.verdicts import CASE, metric, reported, result, session, verdict

PAIRS, SE, DF = 200, 0.008, 12.0


def results(
    shift: float = 0.0,
    sd: float = SE,
    machine: float = 0.0,
    accelerators: tuple[str, ...] = ("H200",),
) -> Results:
    """Return a session of pairs that moved by `shift`, after sessions that moved by `machine`."""
    rng, case_results = random.Random(5), []
    sessions = {"a": machine, "b": -machine, "c": machine / 2, "d": -machine / 2}
    for accelerator in accelerators:
        for _ in range(PAIRS):
            analyses = [
                InterimAnalysis(change=moved + rng.gauss(0, SE), se=SE, df=DF, session=name)
                for name, moved in sessions.items()
            ]
            judged = replace(
                metric(outcome=Outcome.OK),
                analyses=(InterimAnalysis(change=shift + rng.gauss(0, sd), se=SE, df=DF),),
                baseline=replace(metric(outcome=Outcome.OK).baseline, sessions=tuple(analyses)),
            )
            case_verdict = verdict(Outcome.OK, "throughput", judged)
            case_verdict = replace(case_verdict, case=replace(CASE, accelerator=accelerator))
            case_results.append(replace(result(case_verdict), pairs=PAIRS))
    return session(*case_results, pairs=len(case_results))


def test_a_shift_counts_beyond_the_variance_of_sessions_and_scatter_costs() -> None:
    rows: list[Any] = [
        (
            {"shift": -0.03, "machine": 0.02},
            "all 200 metrics moved by −3",
            ", so this change is ignored",
        ),
        ({"shift": -0.05}, "all 200 metrics moved by −4.", ", so this change counts"),
        ({"sd": 3 * SE}, "runs of this session vary ", ": a drop must be that much larger to fail"),
    ]
    for fields, begin, end in rows:
        (message,) = machine_noise_notes(results(**fields))
        assert message.startswith(begin)
        assert message.endswith(end)
        assert ("; day-to-day variation of this machine is " in message) is ("shift" in fields)
    assert machine_noise_notes(results()) == []
    assert machine_noise_notes(replace(results(shift=-0.05), pairs=0)) == [], "each is judged alone"


def test_of_several_machines_each_is_named_and_junit_says_it_of_the_whole_suite() -> None:
    messages = machine_noise_notes(results(shift=-0.05, accelerators=("B200", "H200")))
    assert [one.split(":")[0] for one in messages] == ["B200", "H200"]
    shifted = results(shift=-0.05)

    suite = ET.fromstring(junit.report(reported(shifted))).find("testsuite")
    assert suite is not None
    properties = [
        (one.get("name"), one.get("value")) for one in suite.findall("properties/property")
    ]
    assert properties == [("mlperf.machine_wide", machine_noise_notes(shifted)[0])]
    quiet = ET.fromstring(junit.report(reported(results()))).find("testsuite/properties")
    assert quiet is None

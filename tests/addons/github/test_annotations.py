"""Test workflow commands.

Each points to its line, no text adds another, omitted ones are counted.
"""

from __future__ import annotations

from dataclasses import replace

from pytest_mlperf.addons.github import annotations as workflow_commands
from pytest_mlperf.addons.github.annotations import MAX_ANNOTATIONS
from pytest_mlperf.core.results import Absent
from pytest_mlperf.core.verdict import Outcome
from tests.reports.verdicts import CASE, DROP, OK, reported, result, session, verdict


def test_an_annotation_points_to_the_line_of_the_suite() -> None:
    """No text ends a command or begins another."""
    (line,) = workflow_commands.report(reported(session(result(DROP), result(OK)))).splitlines()
    assert line == (
        "::error file=suites/rn.mlperf.toml,line=14,title=resnet50-Offline-ort-fp16-H200::"
        "PERF DROP samples/s −6.3 %25 (−6.9 to −5.7 %25); limit −3 %25 exceeded"
    )
    bad = replace(
        DROP, headline="x\n::add-mask::y\r\n", case=replace(CASE, engine="a,line=1::b\nc")
    )

    (line,) = workflow_commands.report(reported(session(result(bad)))).splitlines()
    assert line.startswith(
        "::error file=suites/rn.mlperf.toml,line=14,title=resnet50-Offline-a%2Cline=1%3A%3Ab%0Ac"
    )
    assert line.endswith("::PERF DROP x%0A::add-mask::y%0D%0A")


def test_more_than_github_shows_are_counted() -> None:
    suspect = replace(result(verdict(Outcome.SUSPECT, "alone it would be a drop")), failed=False)
    gone = [Absent(test="t", reason="lost")]
    results = session(*[result(DROP)] * 30, *[suspect] * 12)

    lines = workflow_commands.report(reported(results, absent=gone)).splitlines()

    errors = [line for line in lines if line.startswith("::error")]
    warnings = [line for line in lines if line.startswith("::warning")]
    assert (len(errors), len(warnings)) == (MAX_ANNOTATIONS, MAX_ANNOTATIONS)
    assert errors[0] == "::error::1 planned test without a result; the first: t: lost"
    assert errors[-1] == "::error::22 more tests: see the job summary"
    assert warnings[-1] == "::warning::3 more tests: see the job summary"

"""Results for other programs: each in the form that its reader documents."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace

from pytest_mlperf.core.results import Absent
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.judge.inputs import Direction
from pytest_mlperf.reports.export.exports import CSV_HEADER, better, csv_table, prometheus
from pytest_mlperf.reports.export.github import MAX_ANNOTATIONS, commands
from tests.reports.verdicts import CASE, DROP, OK, result, session, verdict

SAMPLE = re.compile(r'[a-z_]+\{(?:[a-z_]+="(?:[^"\\\n]|\\.)*",?)+\} \S+')


def test_csv_has_a_line_per_metric_with_all_that_is_known() -> None:
    """A test that measured nothing has a line, and no text is a formula."""
    (first, second, third) = csv.DictReader(
        io.StringIO(csv_table(session(result(DROP), result(OK))))
    )
    assert tuple(first) == CSV_HEADER
    words = [first[column] for column in ("metric", "verdict", "failed")]
    assert words == ["throughput", "PERF DROP", "true"]
    assert (first["now"], first["baseline"], first["change"]) == ("22598.0", "24118.0", "-0.063")
    assert (second["metric"], second["metric_verdict"]) == ("latency_p50", "reported")
    assert third["verdict"] == "ok"
    broken = verdict(Outcome.ERROR, '=HYPERLINK("x")')

    (row,) = csv.DictReader(io.StringIO(csv_table(session(result(broken)))))
    assert (row["verdict"], row["metric"], row["now"]) == ("ERROR", "", "")
    assert row["headline"] == '\'=HYPERLINK("x")'


def test_prometheus_lines_are_well_formed_whatever_names_hold() -> None:
    odd = replace(DROP, case=replace(CASE, engine='a"b\\c\nd'))

    lines = prometheus(session(result(odd), result(OK))).splitlines()

    samples = [line for line in lines if not line.startswith("#")]
    assert all(SAMPLE.fullmatch(line) for line in samples)
    assert len(samples) == len(set(samples))
    assert [line for line in lines if line.startswith("# TYPE")] == [
        "# TYPE mlperf_failed gauge",
        "# TYPE mlperf_value gauge",
        "# TYPE mlperf_change_ratio gauge",
    ]


def test_action_benchmarks_hold_each_metric_in_its_direction() -> None:
    """The file has one direction for all of its values, and one value of each name.

    What performance gates, efficiency reports once more.
    """
    results = session(result(DROP), result(replace(DROP, kind="efficiency")))

    (bigger,), (smaller,) = (
        json.loads(better(results, Direction.HIGHER)),
        json.loads(better(results, Direction.LOWER)),
    )
    assert bigger["name"] == f"{CASE.id} samples/s"
    assert (bigger["unit"], bigger["value"]) == ("1/s", 22_598.0)
    assert smaller["name"] == f"{CASE.id} p50 latency"


def test_an_annotation_points_to_the_line_of_the_suite() -> None:
    """No text ends a command or begins another."""
    (line,) = commands(session(result(DROP), result(OK))).splitlines()
    assert line == (
        "::error file=suites/rn.mlperf.toml,line=14,title=resnet50-Offline-ort-fp16-H200::"
        "PERF DROP samples/s −6.3 %25 (−6.9 to −5.7 %25); −3 %25 exceeded"
    )
    bad = replace(
        DROP, headline="x\n::add-mask::y\r\n", case=replace(CASE, engine="a,line=1::b\nc")
    )

    (line,) = commands(session(result(bad))).splitlines()
    assert line.startswith(
        "::error file=suites/rn.mlperf.toml,line=14,title=resnet50-Offline-a%2Cline=1%3A%3Ab%0Ac"
    )
    assert line.endswith("::PERF DROP x%0A::add-mask::y%0D%0A")


def test_more_than_github_shows_are_counted() -> None:
    suspect = replace(result(verdict(Outcome.SUSPECT, "alone it would be a drop")), failed=False)
    gone = [Absent(test="t", reason="lost")]

    lines = commands(session(*[result(DROP)] * 30, *[suspect] * 12), gone).splitlines()

    errors = [line for line in lines if line.startswith("::error")]
    warnings = [line for line in lines if line.startswith("::warning")]
    assert (len(errors), len(warnings)) == (MAX_ANNOTATIONS, MAX_ANNOTATIONS)
    assert errors[0] == "::error::1 planned test without a result; the first: t: lost"
    assert errors[-1] == "::error::22 more; see the summary"
    assert warnings[-1] == "::warning::3 more; see the summary"

"""Results for other programs: each in the form that its reader documents."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace

from pytest_mlperf.addons.exports import bigger, csv_table, prometheus, smaller
from pytest_mlperf.addons.exports.csv_table import CSV_HEADER
from pytest_mlperf.core.case import Kind
from pytest_mlperf.core.verdict import Outcome
from tests.reports.verdicts import CASE, DROP, OK, reported, result, session, verdict

SAMPLE = re.compile(r'[a-z_]+\{(?:[a-z_]+="(?:[^"\\\n]|\\.)*",?)+\} \S+')


def test_csv_has_a_line_per_metric_with_all_that_is_known() -> None:
    """A test that measured nothing has a line, and no text is a formula."""
    (first, second, third) = csv.DictReader(
        io.StringIO(csv_table.report(reported(session(result(DROP), result(OK)))))
    )
    assert tuple(first) == CSV_HEADER
    words = [first[column] for column in ("metric", "verdict", "failed")]
    assert words == ["throughput", "PERF DROP", "true"]
    assert (first["now"], first["baseline"], first["change"]) == ("22598.0", "24118.0", "-0.063")
    assert (second["metric"], second["metric_verdict"]) == ("latency_p50", "reported")
    assert third["verdict"] == "ok"
    broken = verdict(Outcome.ERROR, '=HYPERLINK("x")')

    (row,) = csv.DictReader(io.StringIO(csv_table.report(reported(session(result(broken))))))
    assert (row["verdict"], row["metric"], row["now"]) == ("ERROR", "", "")
    assert row["headline"] == '\'=HYPERLINK("x")'


def test_prometheus_lines_are_well_formed_whatever_names_hold() -> None:
    odd = replace(DROP, case=replace(CASE, engine='a"b\\c\nd'))

    lines = prometheus.report(reported(session(result(odd), result(OK)))).splitlines()

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
    results = reported(session(result(DROP), result(replace(DROP, kind=Kind.EFFICIENCY))))

    (rate,), (latency,) = (
        json.loads(bigger.report(results)),
        json.loads(smaller.report(results)),
    )
    assert rate["name"] == f"{CASE.id} samples/s"
    assert (rate["unit"], rate["value"]) == ("1/s", 22_598.0)
    assert latency["name"] == f"{CASE.id} p50 latency"

"""Test that every report states whether an accuracy gate was evaluated, and on how many samples."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pytest_mlperf.addons.exports import csv_table, junit, prometheus
from pytest_mlperf.addons.github import annotations as workflow_commands
from pytest_mlperf.addons.github import comment, markdown
from pytest_mlperf.addons.html._cases import template_cases
from pytest_mlperf.addons.html.model import grouped
from pytest_mlperf.core.results import CaseResult
from pytest_mlperf.core.verdict import Gate, GateState
from pytest_mlperf.reports.for_pytest import benchmark_rounds
from pytest_mlperf.reports.sentences import sentence
from pytest_mlperf.reports.terminal import text
from pytest_mlperf.reports.terminal.explanation import evidence
from tests.reports import verdicts
from tests.reports.verdicts import reported, result, session

PART = "not decided on 1,024 of 24,576 samples"

FELL = result(verdicts.ACC_DROP)


def in_html(case_result: CaseResult) -> str:
    cases, _ = template_cases(grouped(session(case_result).cases), {})
    return str(cases[0]["tests"][0]["facts"])


REPORTS: dict[str, Callable[[CaseResult], str]] = {
    "summary": lambda case_result: "\n".join(text.summary(session(case_result), 80, colour=False)),
    "failure": lambda case_result: text.failure(case_result, 80),
    "job summary": lambda case_result: markdown.report(reported(session(case_result))),
    "comment": lambda case_result: comment.report(reported(session(case_result))),
    "annotations": lambda case_result: workflow_commands.report(reported(session(case_result))),
    "explain": lambda case_result: "\n".join(evidence(case_result, (), (), 80)),
    "html": in_html,
}


def test_a_report_says_on_how_many_samples_the_gate_was_not_decided() -> None:
    without = replace(FELL, verdict=replace(FELL.verdict, gate=None))
    reports_with_part = {
        name: PART in " ".join(report(FELL).split()) for name, report in REPORTS.items()
    }

    assert reports_with_part == dict.fromkeys(REPORTS, True)
    assert [name for name, report in REPORTS.items() if "not decided" in report(without)] == []


def test_junit_and_tables_have_it_as_values() -> None:
    """A benchmark that carries scores carries their gate."""
    document = junit.report(reported(session(FELL)))
    (row, *_) = csv.DictReader(io.StringIO(csv_table.report(reported(session(FELL)))))

    for name, value in {"": "not decided", ".samples": "1024", ".total": "24576"}.items():
        assert f'<property name="mlperf.gate{name}" value="{value}"' in document
    assert (row["gate"], row["gate_samples"], row["gate_total"]) == ("not decided", "1024", "24576")
    gate = Gate(state=GateState.KEPT, samples=50_000, total=50_000)
    benchmark = benchmark_rounds(replace(verdicts.OK, accuracy=verdicts.SCORED, gate=gate))
    assert benchmark is not None
    assert benchmark[1]["extra_info"]["mlperf"]["gate"] == "gate kept on 50,000 samples"


def test_a_gauge_says_whether_it_was_kept_only_where_that_is_known() -> None:
    rows: list[Any] = [(GateState.KEPT, "1"), (GateState.FAILED, "0"), (GateState.UNDECIDED, None)]
    for state, kept in rows:
        gate = Gate(state=state, samples=1024, total=24_576)
        case_result = replace(FELL, verdict=replace(FELL.verdict, gate=gate))
        lines = prometheus.report(reported(session(case_result))).splitlines()
        gauges = [line for line in lines if line.startswith("mlperf_gate_kept{")]
        assert [line.split()[-1] for line in gauges] == ([kept] if kept else [])
        assert any(line.startswith("mlperf_gate_samples{") for line in lines)


def test_the_words_of_a_gate() -> None:
    rows = [
        (Gate(state=GateState.KEPT, samples=43, total=43), "gate kept on 43 samples"),
        (Gate(state=GateState.FAILED, samples=5, total=9), "gate failed on 5 of 9 samples"),
        (Gate(state=GateState.NONE, samples=5, total=5), "no gate: no reference score is known"),
        (
            Gate(state=GateState.UNDECIDED, samples=9, total=9, unscored=("mbxp", "gsm8k")),
            "gate not decided on 9 samples, without mbxp, gsm8k",
        ),
    ]
    for gate, words in rows:
        assert sentence(gate.note) == words
        assert gate.evaluated is (gate.state in {GateState.KEPT, GateState.FAILED})

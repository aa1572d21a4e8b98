"""Test that counters of a server are judged if a limit names them, and otherwise only reported."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.reports.sentences import sentence
from tests.exporters import Exporter, exporting, page
from tests.plugin.project import OPTIONS, Project

LIMITS = """
draft_acceptance = { max_drop = "10 %" }
draft_length = { max_drop = "10 %" }
"""

FREQUENT = """
from pytest_mlperf.run import scraping
scraping.Scraper.__init__.__kwdefaults__["period_s"] = 0.01
"""
"""Looks are a second apart otherwise, and a run would have to last for seconds."""


class Drafts:
    """A server that drafts four tokens at a time, of which a share is accepted."""

    def __init__(self) -> None:
        self.share = 0.7
        self._drafts, self._accepted = 0, 0.0

    def show(self, handler: BaseHTTPRequestHandler) -> None:
        self._drafts += 10
        self._accepted += 40 * self.share
        page(
            f"# TYPE vllm:spec_decode_num_drafts_total counter\n"
            f"vllm:spec_decode_num_drafts_total {self._drafts}\n"
            f"vllm:spec_decode_num_draft_tokens_total {4 * self._drafts}\n"
            f"vllm:spec_decode_num_accepted_tokens_total {self._accepted}\n"
        )(handler)


@pytest.fixture
def drafts() -> Drafts:
    return Drafts()


@pytest.fixture
def server(drafts: Drafts, project: Project) -> Iterator[Exporter]:
    shutil.copy(Path(__file__).with_name("served_engine.py"), project.path)
    project.pytester.makeconftest(FREQUENT)
    with exporting(drafts.show) as exporter:
        yield exporter


def suite(project: Project, url: str, limits: str) -> Path:
    options = OPTIONS.replace("{ ", f'{{ page = "{url}", ')
    engine = '[[engines]]\nuse = "served_engine:Served"\nname = "null"\naccelerators = ["cpu"]\n'
    more = f'[limits]\nthroughput = {{ max_drop = "40%" }}\n{limits}'
    return project.suite(engines=f"{engine}options = {options}\n", more=more)


def test_fewer_accepted_drafts_are_a_drop_where_a_limit_names_them(
    project: Project, server: Exporter, drafts: Drafts
) -> None:
    """Without a limit they are reported, and a cause where something else fell."""
    suite(project, server.url, LIMITS)
    project.record("suites", own_process=True)
    metrics = project.recorded().runs[0].metrics
    assert metrics["draft_acceptance"] == pytest.approx(0.7)
    assert metrics["draft_length"] == pytest.approx(3.8)
    project.over_days()

    same = project.run_process("suites", "--mlperf-json=same.json")
    same.assert_outcomes(passed=1)

    drafts.share = 0.5
    result = project.run_process("suites", "--mlperf-json=fell.json")

    result.assert_outcomes(failed=1)
    fell = project.verdicts("fell.json")["performance"]
    judged = {m.metric: m for m in fell.metrics if m.outcome}
    drops = {name for name, m in judged.items() if m.outcome is Outcome.PERF_DROP}
    assert drops == {"draft_acceptance", "draft_length"}
    assert judged["throughput"].outcome in {Outcome.OK, Outcome.IMPROVED}
    for name, change in {"draft_acceptance": -2 / 7, "draft_length": -0.8 / 3.8}.items():
        assert judged[name].change == pytest.approx(change, abs=0.01)
    result.stdout.re_match_lines(
        [
            r"PERF DROP draft acceptance −28\.\d % .*",
            r"likely    draft acceptance −28\.6 %: drafts accepted 70 % → 50 %, .*",
        ]
    )

    suite(project, server.url, "")
    project.run_process("suites", "--mlperf-json=free.json").assert_outcomes(passed=1)
    free = project.verdicts("free.json")["performance"]
    assert "draft_acceptance" not in free.runs[0].metrics
    assert free.runs[0].serving.server["draft_acceptance"] == pytest.approx(0.5)


def test_counters_that_a_gated_metric_lacks_make_the_run_invalid(
    project: Project, server: Exporter
) -> None:
    server.show = page("# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 1\n")
    suite(project, server.url, LIMITS)
    project.baseline([500.0] * 8)

    result = project.run_process("suites", "-rs", "--mlperf-json=r.json")

    verdict = project.verdicts("r.json")["performance"]
    assert verdict.outcome is Outcome.INVALID
    assert {
        m.metric: sentence(m.note or "") for m in verdict.metrics if m.outcome is Outcome.INVALID
    } == {
        "draft_acceptance": "not measured",
        "draft_length": "not measured",
    }
    result.stdout.fnmatch_lines(
        [
            "*acceptance length has a limit, but was not measured: *'s /metrics page lacks",
            "*vllm:spec_decode_num_accepted_tokens_total and vllm:spec_decode_num_drafts_total.*",
        ]
    )

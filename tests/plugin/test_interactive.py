"""Scenario Interactive: LoadGen's log calls it Server, and the verdict asks for its own limits."""

from __future__ import annotations

from tests.plugin.project import Project

SUITE = """\
schema = 1
round = "v6.1"

[workload]
name = "chat"
twin_of = "llama2-70b-99.9"
dataset = {{ use = "synthetic", samples = 32 }}
scorer = {{ use = "top1" }}

[[engines]]
use = "acme:Steady"
accelerators = ["cpu"]
options = {{ tokens = 2, threads = 64 }}

[[scenarios]]
name = "{scenario}"
target_qps = 500
min_duration = "100ms"
"""

ENGINE = '''\
"""An engine that writes its second token 80 ms after the first."""

import time

from pytest_mlperf.builtin.null import NullEngine


class Steady(NullEngine):
    def _complete_batch(self, ids, indices, sink):
        sink.first_tokens(ids)
        time.sleep(0.08)
        sink.next_tokens(ids)
        sink.done(ids, None, [2] * len(ids))
'''


def test_limits_are_those_of_the_scenario_that_the_suite_names(project: Project) -> None:
    """80 ms a token are within the 200 ms of Llama 2's Server, not within Interactive's 40 ms."""
    (project.path / "acme.py").write_text(ENGINE, "utf-8")
    project.pytester.syspathinsert()
    (project.path / "suites").mkdir()
    for name in ("Server", "Interactive"):
        file = project.path / f"suites/{name}.mlperf.toml"
        file.write_text(SUITE.format(scenario=name), "utf-8")

    project.run("suites", "-k", "performance")

    outcomes = {r.verdict.case.scenario: r.verdict.outcome.value for r in project.results().cases}
    assert outcomes == {"Server": "NO BASELINE", "Interactive": "GATE FAIL"}
    logs = [file.read_text("utf-8") for file in project.path.rglob("mlperf_log_summary.txt")]
    assert len(logs) >= len(outcomes)
    assert all("Scenario : Server" in log for log in logs)

"""A client that holds up the server gets help, unless the suite says how many there are."""

from __future__ import annotations

import os

import pytest

from pytest_mlperf.core.reason import Key
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.reports.sentences import sentence
from tests.adapters.engines.openai.echo import echo_server
from tests.plugin.project import Project, newest_results, spec_of

HELD_UP = """
from pytest_mlperf.run import curve
curve.MAX_CLIENT_SHARE = 0.0
"""
"""Whatever the client reaches is then too little."""

ENGINE = """
[[engines]]
use = "openai"
accelerators = ["cpu"]
options = {{ url = "{url}", max_new_tokens = 16{more} }}
"""

POINT = '[[scenarios]]\nname = "Concurrency"\npoints = [8]\nmin_duration = "300ms"\n'


LIMITS = '[limits]\ntokens_per_second = { max_drop = "40%" }\n'


@pytest.mark.process
def test_a_client_that_holds_up_the_server_gets_help(project: Project) -> None:
    project.pytester.makeconftest(HELD_UP)
    with echo_server() as url:
        for more, clients in (("", 2), (", clients = 1", 1)):
            suite = project.suite(
                engines=ENGINE.format(url=url, more=more), scenarios=POINT, more=LIMITS
            )
            text = suite.read_text("utf-8").replace("[workload]", "[workload]\ntokens = true")
            data = 'dataset = { use = "prompts", samples = 64, input_tokens = { fixed = 32 } }'
            suite.write_text(text.replace('dataset = { use = "synthetic", samples = 32 }', data))
            earlier_runs = len(project.run_folders())
            project.run_process("suites", "-omlperf_warmup=never")

            newest = newest_results(project.path)
            verdict = project.verdicts(str(newest))["performance"]
            assert verdict.outcome is Outcome.INVALID
            runs = [len(spec_of(one)["replicas"]) for one in project.run_folders()[earlier_runs:]]
            expected = min(clients, len(os.sched_getaffinity(0)))
            assert runs[:2] == [0, expected if expected > 1 else 0]
            noted = [
                note for note in map(sentence, verdict.notes) if "client processes sent" in note
            ]
            assert bool(noted) == (expected > 1)
            reasons = [one.key for run in verdict.invalid_runs for one in run.invalid]
            assert Key.CLIENT_LATE in reasons

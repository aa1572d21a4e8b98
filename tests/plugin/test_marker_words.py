"""Misspelt words in `-m`."""

from __future__ import annotations

import pytest

from pytest_mlperf.plugin.collect import misspelt
from tests.plugin.project import Project

MARKERS = {"mlperf", "mlperf_benchmark", "slow", "offline_docs"}

EXPRESSIONS = {
    "": [],
    "mlperf and not slow": [],
    "mlperf(scenario='Offline') or mlperf(kind='accuracy', engine='mine')": [],
    "offline_docs": [],
    "network or db(scenario='Ofline')": [],
    "mlperf and offlin": [
        "no test has the marker offlin; did you mean mlperf(scenario='Offline')?"
    ],
    "mlperf and Offline": [
        "no test has the marker Offline; did you mean mlperf(scenario='Offline')?"
    ],
    "mlprf": ["no test has the marker mlprf; did you mean mlperf?"],
    "not mlperf_benchmrk": [
        "no test has the marker mlperf_benchmrk; did you mean mlperf_benchmark?"
    ],
    "acuracy": ["no test has the marker acuracy; did you mean mlperf(kind='accuracy')?"],
    "mlperf(scenaro='Offline')": [
        "the marker mlperf has no argument scenaro; did you mean scenario?"
    ],
    'mlperf(scenario="SingelStream")': [
        "no case has scenario='SingelStream'; did you mean 'SingleStream'?"
    ],
}


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_a_word_like_one_of_ours_is_named_and_no_other(expression: str) -> None:
    sentences = [f"-m: {text}" for text in EXPRESSIONS[expression]]
    assert list(misspelt(expression, MARKERS)) == sentences


@pytest.mark.process
def test_a_session_says_so_and_goes_on(project: Project) -> None:
    project.suite()
    result = project.run("suites", "-m", "mlperf and offlin")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    result.stdout.fnmatch_lines(
        ["-m: no test has the marker offlin; did you mean mlperf(*Offline')[?]"]
    )

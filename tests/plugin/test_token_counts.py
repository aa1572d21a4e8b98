"""Timed runs count the tokens of the answers to the same samples, or nothing is judged by them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_mlperf.core.reason import Key
from pytest_mlperf.core.verdict import Outcome, Verdict
from pytest_mlperf.reports.sentences import sentence
from pytest_mlperf.stores.results import read_results
from tests.plugin.project import Project

pytestmark = pytest.mark.process

OFFLINE = """
[[scenarios]]
name = "Offline"
target_qps = 500
min_duration = "100ms"
limits = { tokens_per_second = { max_drop = "60%" } }
"""
LOADED = """
[[scenarios]]
name = "Server"
target_qps = 100
ttft_limit = "1s"
tpot_limit = "1s"
min_duration = "200ms"

[[scenarios]]
name = "Concurrency"
points = [1]
min_duration = "300ms"
ramp = "50ms"
"""
SUITE = """\
schema = 1
round = "v6.1"

[workload]
name = "chat"
tokens = true
dataset = {{ use = "synthetic", samples = 32 }}
scorer = {{ use = "miscounting_engine:AnyAnswer" }}

[[engines]]
use = "miscounting_engine:Miscounting"
accelerators = ["cpu"]
replicas = {replicas}
options = {{ {options} }}
{scenarios}
"""
COUNTED = "timed runs have 28.5 tokens per sample, but answers of the accuracy pass have 9.5"
UNCOUNTED = (
    "the token counts of timed runs were not checked: there is no accuracy pass to "
    "compare them with"
)

Session = Callable[..., dict[tuple[str, str], Verdict]]


@pytest.fixture
def session(project: Project, monkeypatch: pytest.MonkeyPatch) -> Session:
    """Return a function that runs a session and returns its verdicts by scenario and kind."""
    shutil.copy(Path(__file__).with_name("miscounting_engine.py"), project.path)
    suite = project.path / "suites" / "chat.mlperf.toml"
    suite.parent.mkdir()

    def run(
        *arguments: str,
        factor: float = 1,
        options: str = "tokens = 8",
        scenarios: str = OFFLINE,
        replicas: int = 1,
    ) -> dict[tuple[str, str], Verdict]:
        text = SUITE.format(options=options, scenarios=scenarios, replicas=replicas)
        suite.write_text(text, "utf-8")
        monkeypatch.setenv("MISCOUNT", str(factor))
        shutil.rmtree(project.path / ".mlperf", ignore_errors=True)
        project.run("suites", "-o", "mlperf_control=off", *arguments)
        (file,) = project.path.glob(".mlperf/runs/*/results.json")
        verdicts = [case.verdict for case in read_results(file).cases]
        return {(one.case.scenario, one.kind): one for one in verdicts}

    return run


def miscounted(verdict: Verdict) -> bool:
    """Check that a verdict is INVALID for its counts, and that nothing was measured again."""
    keys = [[reason.key for reason in run.invalid] for run in verdict.invalid_runs]
    return verdict.outcome is Outcome.INVALID and [each[0] for each in keys] == [
        Key.TOKENS_MISCOUNTED
    ]


def test_counts_are_held_against_the_answers_of_the_session_and_the_accepted_ones(
    session: Session, project: Project
) -> None:
    """A third of the counted tokens was answered, by its own session and by git's baseline."""
    recorded = session("--mlperf-update=missing", "-omlperf_baseline_runs=1")
    assert {one.outcome for one in recorded.values()} == {Outcome.RECORDED}
    assert not any(
        UNCOUNTED in note for one in recorded.values() for note in map(sentence, one.notes)
    )

    together = session(factor=3)
    assert miscounted(together["Offline", "performance"])
    assert COUNTED in sentence(together["Offline", "performance"].headline)
    assert together["Offline", "accuracy"].outcome is Outcome.OK, "the answers are as they were"

    assert {one.metric for one in together["Offline", "accuracy"].paired} == {"right"}, "no score"

    alone = session("-k", "performance", factor=3)
    assert miscounted(alone["Offline", "performance"])
    assert COUNTED in sentence(alone["Offline", "performance"].headline)

    other = session("-k", "performance", factor=3, options="tokens = 9")
    assert not miscounted(other["Offline", "performance"])
    assert UNCOUNTED in other["Offline", "performance"].notes, "unknown is not different"


def test_nothing_is_recorded_whose_answers_come_later_and_are_others(
    session: Session, project: Project
) -> None:
    """Recording performance alone makes its accuracy pass behind the first run."""
    verdicts = session(
        "-k", "performance", "--mlperf-update=missing", "-omlperf_baseline_runs=1", factor=3
    )
    assert miscounted(verdicts["Offline", "performance"])
    assert not [*project.path.glob("baselines/cpu/**/*.json")]


def test_a_count_that_differs_from_the_length_of_an_output_is_an_error(session: Session) -> None:
    """Whatever timed runs count."""
    verdicts = session("-k", "accuracy", factor=3, options="tokens = 8, everywhere = true")
    verdict = verdicts["Offline", "accuracy"]
    assert verdict.outcome is Outcome.ERROR
    assert re.search(
        r"n_tokens (\d+) and an output of (\d+) token ids; ", sentence(verdict.headline)
    )


def test_servers_and_curves_are_held_to_their_answers(session: Session) -> None:
    """Also where two replicas answer."""
    verdicts = session(factor=3, scenarios=LOADED, replicas=2)
    for scenario in ("Server", "Concurrency"):
        verdict = verdicts[scenario, "performance"]
        assert miscounted(verdict), sentence(verdict.headline)
        assert sentence(verdict.headline).startswith("timed runs have 2"), sentence(
            verdict.headline
        )

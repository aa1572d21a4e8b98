"""A server's cache of prefixes makes no baseline too fast, and no later run too slow."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from pytest_mlperf.adapters.datasets.user_prompts import UserPromptsDataset
from pytest_mlperf.core.case import Case, Scenario
from pytest_mlperf.core.verdict import Outcome, Verdict
from pytest_mlperf.reports.sentences import sentence
from tests.adapters.engines.openai.scripted import PrefixCache, Request, Scripted
from tests.plugin.project import Project, case, newest_results

CASE: Case = case(workload="served", scenario=Scenario.CONCURRENCY, engine="openai")

SUITE = """
schema = 1
round = "v6.0"

[workload]
name = "served"
tokens = true

[workload.dataset]
use = "prompts"
samples = 64
input_tokens = {{ fixed = 64 }}
{repeat}

[[engines]]
use = "openai"
accelerators = ["cpu"]
options = {{ url = "{url}", max_new_tokens = 8 }}

[[scenarios]]
name = "Concurrency"
points = [2]
min_duration = "600ms"

[limits]
tokens_per_second = {{ max_drop = "40%" }}
"""


@pytest.fixture
def cache() -> PrefixCache:
    return PrefixCache(answer_s=0.05, word_s=2e-4)


@pytest.fixture
def server(cache: PrefixCache) -> Iterator[Scripted]:
    with Scripted(cache) as running:
        yield running


def judged(project: Project, server: Scripted, *arguments: str, repeat: bool = False) -> Verdict:
    suite = project.path / "suites" / "served.mlperf.toml"
    suite.parent.mkdir(exist_ok=True)
    suite.write_text(SUITE.format(url=server.url, repeat="repeat = true" if repeat else ""))
    project.run_process("suites", "-omlperf_warmup=never", "-omlperf_baseline_runs=2", *arguments)
    newest = newest_results(project.path)
    return project.verdicts(str(newest))["performance"]


def shares(verdict: Verdict) -> list[float]:
    return [run.serving.server["prefix_hit_share@2"] for run in verdict.runs]


def test_runs_ask_other_prompts_and_a_baseline_of_the_same_ones_is_not_compared(
    project: Project, server: Scripted
) -> None:
    recorded = judged(project, server, "--mlperf-update=missing")
    assert recorded.outcome is Outcome.RECORDED
    assert len({run.serving.salt for run in recorded.runs} - {""}) == 2
    assert max(shares(recorded)) < 0.05

    file = project.baseline_file(CASE)
    content = json.loads(file.read_text())
    for record in content["records"]:
        del record["fingerprint"]["engine.salt"]
    file.write_text(json.dumps(content))
    former = judged(project, server)
    assert former.outcome is Outcome.INVALID
    assert sentence(former.headline).endswith(
        "the same prompts; in this session each run sent others"
    )
    assert any("--mlperf-update=replace" in note for note in map(sentence, former.notes))


def test_repeated_prompts_are_compared_where_the_cache_had_as_many(
    project: Project, server: Scripted, cache: PrefixCache
) -> None:
    cold = judged(project, server, "--mlperf-update=missing", repeat=True)
    assert cold.outcome is Outcome.INVALID
    assert sentence(cold.headline).startswith("nothing recorded: at 2: ")
    assert sentence(cold.headline).endswith(" in the first run")
    dataset = UserPromptsDataset(samples=64, input_tokens={"fixed": 64})
    for index in range(64):
        body = {"prompt": dataset.input(index), "max_tokens": 1}
        cache(Request(method="POST", path="", headers={}, body=body, raw=b""))
    recorded = judged(project, server, "--mlperf-update=missing", repeat=True)
    assert recorded.outcome is Outcome.RECORDED
    assert min(shares(recorded)) > 0.9
    assert "server's cache" not in sentence(judged(project, server, repeat=True).headline)

    cache.kept.clear()
    restarted = judged(project, server, repeat=True)
    assert restarted.outcome is Outcome.INVALID
    assert re.fullmatch(
        r"at 2: .* % of the prompts' tokens were in the server's cache, .* % in the baseline",
        sentence(restarted.headline),
    )

    cache.tells = False
    silent = judged(project, server, repeat=True)
    assert any("each run sends the same prompts" in note for note in map(sentence, silent.notes))

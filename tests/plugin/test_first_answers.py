"""First scores of a server whose answers are empty or cut, as a user meets it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from pytest_mlperf.core.baseline import AccuracyBaseline
from pytest_mlperf.core.verdict import Outcome, Verdict
from pytest_mlperf.reports.sentences import sentence
from pytest_mlperf.stores import accuracy_baselines
from tests.adapters.engines.openai.scripted import (
    DONE,
    Manner,
    Reply,
    Request,
    Scripted,
    event,
    piece,
    usage,
)
from tests.plugin.project import OFFLINE, Project

SAMPLES, LIMIT = 60, 16
FILE = "baselines/accuracy/first/openai.fp32.json"
EMPTY = "20 of 60 answers are empty: cut at max_new_tokens = 16 while reasoning"
ACCURACY = ("suites", "-k", "accuracy", "--mlperf-json=r.json")

SUITE = f"""
schema = 1
round = "v4.1"
[workload]
name = "first"
dataset = DATASET
scorer = {{ use = "exact_match", answers = "ids" }}
[[engines]]
use = "openai"
options = {{ url = "URL", api = "chat", max_new_tokens = {LIMIT} }}
{OFFLINE}
[limits]
throughput = {{ max_drop = "99%" }}
"""

DATA = f"""
class Questions:
    digest = "1"
    def __init__(self, fixed=False):
        if fixed:
            self.output_tokens = lambda index: {LIMIT}
    def __len__(self):
        return {SAMPLES}
    def input(self, index):
        return f"question {{index}}"
    def reference(self, index):
        return [100, 101]
"""


@dataclass(kw_only=True)
class Model:
    """A server whose model only reasons, up to the limit, if a question's number says so.

    Attributes:
        every: Questions between those that it only reasons on; 0 disables it.
        cut: It writes text up to the limit instead.
    """

    every: int = 0
    cut: bool = False

    def __call__(self, request: Request) -> Reply:
        if request.method == "GET" or request.body.get("max_tokens") != LIMIT:
            return Manner()(request)
        number = request.body["messages"][0]["content"].rpartition(" ")[2]
        if not (self.every and number.isdigit() and int(number) % self.every == 0):
            return self.reply(["content"] * 2, "stop")
        return self.reply(["content" if self.cut else "reasoning_content"] * LIMIT, "length")

    @staticmethod
    def reply(fields: list[str], finish: str) -> Reply:
        parts = [piece("", chat=True, role="assistant")]
        for number, name in enumerate(fields):
            ids, last = [100 + number], number == len(fields) - 1
            choice = {"index": 0, "delta": {name: f" w{number}"}, "token_ids": ids}
            parts.append(
                event({"choices": [{**choice, "finish_reason": finish if last else None}]})
            )
        counted = event({"choices": [], "usage": usage(9, len(fields))})
        return Reply(parts=[*parts, counted, DONE])


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def served(project: Project, model: Model) -> Iterator[Project]:
    (project.path / "own.py").write_text(DATA, "utf-8")
    project.pytester.syspathinsert()
    with Scripted(model) as server:
        suite(project, server.url)
        yield project


def suite(project: Project, url: str, dataset: str = '{ use = "own:Questions" }') -> None:
    path = project.path / "suites/first.mlperf.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(SUITE.replace("URL", url).replace("DATASET", dataset), "utf-8")


def last(project: Project) -> Verdict:
    return project.verdicts("r.json")["accuracy"]


def baseline(project: Project) -> AccuracyBaseline:
    loaded = accuracy_baselines.load(project.path / FILE)
    assert loaded is not None
    return loaded[0]


@pytest.mark.process
def test_answers_of_reasoning_only_are_not_recorded(served: Project, model: Model) -> None:
    model.every = 3
    assert served.run(*ACCURACY).ret == 0
    assert (last(served).outcome, EMPTY in map(sentence, last(served).notes)) == (
        Outcome.NO_BASELINE,
        True,
    )

    result = served.run(*ACCURACY, "--mlperf-update=missing")

    assert result.ret == 1
    verdict = last(served)
    assert verdict.outcome is Outcome.INVALID
    assert sentence(verdict.headline) == (
        f"nothing recorded: {EMPTY}; raise max_new_tokens, or accept it with --mlperf-accept-cut"
    )
    assert not (served.path / FILE).exists()
    assert verdict.notes == ()
    assert verdict.accuracy is not None
    assert verdict.accuracy.answers_in_words == (
        "40 stop, 20 length; 20 empty, 20 cut while reasoning"
    )

    result = served.run(*ACCURACY, "--mlperf-update=missing", "--mlperf-accept-cut")

    assert result.ret == 0
    assert last(served).outcome is Outcome.RECORDED
    assert EMPTY in map(sentence, last(served).notes)
    recorded = baseline(served)
    assert (
        recorded.history[-1].reason
        == "first baseline; 20 of 60 answers are empty (--mlperf-accept-cut)"
    )
    assert recorded.answers == {"answers": 60, "cut": 20, "empty": 20, "cut_reasoning": 20}
    again = served.run(*ACCURACY)
    assert again.ret == 0
    assert not any("answers are" in note for note in map(sentence, last(served).notes))


@pytest.mark.process
def test_healthy_answers_are_recorded_without_a_word_and_later_empty_ones_are_a_cause(
    served: Project, model: Model
) -> None:
    assert served.run(*ACCURACY, "--mlperf-update=missing").ret == 0
    assert last(served).outcome is Outcome.RECORDED
    (note,) = map(sentence, last(served).notes)
    assert "commit it" in note
    assert baseline(served).answers == {"answers": 60}

    model.every = 3
    result = served.run(*ACCURACY)

    assert last(served).outcome is Outcome.ACC_DROP
    assert not any("answers are" in note for note in map(sentence, last(served).notes))
    text = " ".join(result.stdout.str().split())
    assert "likely 20 of 60 answers are empty, 0 of 60 in the baseline: cut at" in text


@pytest.mark.process
def test_cut_answers_are_refused_unless_their_lengths_are_fixed(
    served: Project, model: Model
) -> None:
    model.every, model.cut = 3, True
    assert served.run(*ACCURACY, "--mlperf-update=missing").ret == 1
    assert "20 of 60 answers are cut at max_new_tokens = 16 (5 % allowed)" in sentence(
        last(served).headline
    )

    path = served.path / "suites/first.mlperf.toml"
    path.write_text(path.read_text("utf-8").replace('Questions"', 'Questions", fixed = true'))
    model.every = 1
    assert served.run(*ACCURACY, "--mlperf-update=missing").ret == 0
    assert last(served).outcome is Outcome.RECORDED
    assert baseline(served).answers == {"answers": 60}

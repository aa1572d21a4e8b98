"""The accuracy gate as a user meets it: in every profile, on the whole data set and on parts."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_mlperf.core.verdict import Gate, GateState, Outcome, Verdict
from pytest_mlperf.reports.sentences import sentence
from tests.plugin.project import SUITE, Project, last_line, section

ENGINE = """
from pytest_mlperf.core.extension import Engine, Scores

class Answers(Engine):
    # Right in all samples below `right`; else the answer is 0.
    def __init__(self, dataset, model, precision, *, right=0):
        self.right = right

    def submit(self, ids, indices, sink):
        answers = [index if index < self.right else 0 for index in indices]
        sink.done(ids, [answer.to_bytes(8, "little") for answer in answers])

class Dice:
    # What MLPerf's gate of 3D U-Net is about, by another name than the metric it needs.
    def __init__(self, *, model, named="dice"):
        self.named = named

    def score(self, outputs, references):
        values = [90.0] * len(outputs)
        return Scores(per_sample={self.named: values}, aggregate={self.named: 90.0})
"""

SUITE_TEXT = """
schema = 1
round = "v4.1"
profile = "{profile}"
[workload]
name = "{name}"
dataset = {{ use = "synthetic", samples = {samples} }}
{scorer}
[[engines]]
use = "own:Answers"
options = {{ right = {right} }}
[[scenarios]]
name = "Offline"
min_duration = "0.2s"
target_qps = 1000
[limits]
throughput = {{ max_drop = "99%" }}
{more}
"""

RECORD = ("--mlperf-update=missing", "-omlperf_baseline_runs=2")


@pytest.fixture
def own_project(project: Project) -> Project:
    (project.path / "own.py").write_text(ENGINE, "utf-8")
    project.pytester.syspathinsert()
    return project


def suite(
    project: Project,
    *,
    name: str = "resnet50",
    samples: int = 400,
    right: int = 0,
    profile: str = "quick",
    scorer: str = "",
    more: str = "",
) -> None:
    path = project.path / SUITE
    path.parent.mkdir(exist_ok=True)
    text = SUITE_TEXT.format(
        name=name, samples=samples, right=right, profile=profile, scorer=scorer, more=more
    )
    path.write_text(text, "utf-8")


def newest(project: Project, kind: str = "accuracy") -> Verdict:
    files = sorted(
        project.path.glob(".mlperf/runs/*/results.json"), key=lambda file: file.stat().st_mtime_ns
    )
    return project.verdicts(str(files[-1]))[kind]


def baselines(project: Project) -> list[str]:
    return [path.name for path in (project.path / "baselines").rglob("*.json")]


def test_an_engine_that_always_answers_class_0_is_neither_green_nor_recorded(
    own_project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of MLPerf's data set may fail the gate."""
    suite(own_project)
    monkeypatch.setenv("CI", "true")

    result = own_project.run("suites", *RECORD)

    assert (result.ret, baselines(own_project)) == (1, [])
    verdict, performance = newest(own_project), newest(own_project, "performance")
    assert verdict.outcome is Outcome.GATE_FAIL
    assert sentence(verdict.headline).startswith("top1 0.250 < 75.695, 99 % of MLPerf's reference")
    assert verdict.gate == Gate(state=GateState.FAILED, samples=400, total=50_000)
    assert performance.outcome is Outcome.INVALID
    assert sentence(performance.headline).startswith(
        "not judged: accuracy failed, GATE FAIL top1 0.250"
    )
    assert performance.gate == verdict.gate


def test_a_part_never_keeps_the_gate_and_speed_is_not_recorded_where_it_failed(
    own_project: Project,
) -> None:
    suite(own_project, right=400)

    own_project.run("suites")
    accuracy, performance = newest(own_project), newest(own_project, "performance")
    recorded = own_project.run("suites", *RECORD)

    assert accuracy.outcome is Outcome.NO_BASELINE
    assert sentence(accuracy.headline) == "top1 100.000; gate not decided on 400 of 50,000 samples"
    assert sentence(performance.headline).endswith(", accuracy not checked")
    assert (recorded.ret, newest(own_project).outcome) == (0, Outcome.RECORDED)
    assert newest(own_project).gate == Gate(state=GateState.UNDECIDED, samples=400, total=50_000)

    suite(own_project, right=0)
    (file,) = (own_project.path / "baselines/cpu").rglob("*.json")
    content: bytes | None = file.read_bytes()
    for update in ("replace", "missing"):
        if update == "missing":
            file.unlink()
            content = None

        options = ("-k", "performance", f"--mlperf-update={update}", "--mlperf-reason=why")
        assert own_project.run("suites", *options).ret == 1

        verdict = newest(own_project, "performance")
        assert verdict.outcome is Outcome.INVALID
        assert sentence(verdict.headline).startswith("not judged: accuracy failed, GATE FAIL top1")
        assert (file.read_bytes() if file.exists() else None) == content


UNET: dict[str, Any] = {"name": "3d-unet-99", "scorer": 'scorer = { use = "own:Dice" }'}
MINE = {"name": "mine", "scorer": "twin_of = 'resnet50'\nreference = { top1 = 100.0 }"}


@pytest.mark.parametrize("changes", [MINE, UNET], ids=["own reference", "larger than MLPerf's"])
def test_a_pass_that_stops_early_says_that_its_gate_is_not_decided(
    own_project: Project, changes: dict[str, Any]
) -> None:
    suite(own_project, **changes, samples=2000, right=2000)
    own_project.run("suites", "-k", "accuracy", *RECORD)
    first = newest(own_project)

    result = own_project.run("suites", "-k", "accuracy")

    assert first.gate == Gate(state=GateState.KEPT, samples=2000, total=2000)
    assert newest(own_project).outcome is Outcome.OK
    assert newest(own_project).gate == Gate(state=GateState.UNDECIDED, samples=1024, total=2000)
    assert "gate not decided on 1,024 of 2,000 samples" in " ".join(section(result))


def test_an_expected_failure_of_the_gate_is_not_recorded(own_project: Project) -> None:
    expected_failure = '[[expected_failures]]\nreason = "issue 812"\nuntil = 2999-01-01\n'
    suite(own_project, more=expected_failure)

    result = own_project.run("suites", "-k", "accuracy", *RECORD)

    assert last_line(result).endswith("1 expected failure")
    assert newest(own_project).gate == Gate(state=GateState.FAILED, samples=400, total=50_000)
    assert baselines(own_project) == []


def test_the_whole_of_a_data_set_keeps_the_gate_where_the_scorer_gives_its_metric(
    own_project: Project,
) -> None:
    """No baseline is needed; a metric that is left out is an error in the official profile."""
    suite(own_project, **UNET, samples=43)
    result = own_project.run("suites", "-k", "accuracy")
    kept = newest(own_project)
    others = {}
    for profile in ("quick", "official"):
        other = {**UNET, "scorer": 'scorer = { use = "own:Dice", named = "iou" }'}
        suite(own_project, **other, samples=43, profile=profile)
        own_project.run("suites", "-k", "accuracy")
        others[profile] = newest(own_project)

    assert (result.ret, kept.outcome) == (0, Outcome.OK)
    assert kept.gate == Gate(state=GateState.KEPT, samples=43, total=43)
    assert sentence(kept.notes[-1]).startswith("only the gate was checked: no accuracy baseline")
    assert others["quick"].outcome is Outcome.NO_BASELINE
    headline = "iou 90.000; gate not decided on 43 samples, without dice"
    assert sentence(others["quick"].headline) == headline
    assert others["official"].outcome is Outcome.ERROR
    assert "MLPerf's gate needs dice" in sentence(others["official"].headline)

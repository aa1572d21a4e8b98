"""The accuracy gate as a user meets it: in every profile, on the whole data set and on parts."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_mlperf.core.verdict import Gate, GateState, Outcome, Verdict
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
def own(project: Project) -> Project:
    (project.path / "own.py").write_text(ENGINE, "utf-8")
    project.pytester.syspathinsert()
    return project


def suite(
    own: Project,
    *,
    name: str = "resnet50",
    samples: int = 400,
    right: int = 0,
    profile: str = "quick",
    scorer: str = "",
    more: str = "",
) -> None:
    path = own.path / SUITE
    path.parent.mkdir(exist_ok=True)
    text = SUITE_TEXT.format(
        name=name, samples=samples, right=right, profile=profile, scorer=scorer, more=more
    )
    path.write_text(text, "utf-8")


def newest(own: Project, kind: str = "accuracy") -> Verdict:
    files = sorted(
        own.path.glob(".mlperf/runs/*/results.json"), key=lambda file: file.stat().st_mtime_ns
    )
    return own.verdicts(str(files[-1]))[kind]


def baselines(own: Project) -> list[str]:
    return [path.name for path in (own.path / "baselines").rglob("*.json")]


def test_an_engine_that_always_answers_class_0_is_neither_green_nor_recorded(
    own: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite(own, samples=50_000)
    monkeypatch.setenv("CI", "true")

    result = own.run("suites", *RECORD)

    assert (result.ret, baselines(own)) == (1, [])
    verdict = newest(own)
    assert verdict.outcome is Outcome.GATE_FAIL
    assert verdict.headline == "top1 0.002 < 75.695, 99 % of MLPerf's reference"
    assert verdict.gate == Gate(state=GateState.FAILED, samples=50_000, total=50_000)
    performance = newest(own, "performance")
    assert performance.outcome is Outcome.INVALID
    assert performance.headline.startswith("not judged: accuracy failed, GATE FAIL top1 0.002")
    assert performance.gate == verdict.gate


@pytest.mark.parametrize(
    ("right", "state", "outcome", "ret"),
    [
        (0, GateState.FAILED, Outcome.GATE_FAIL, 1),
        (400, GateState.UNDECIDED, Outcome.RECORDED, 0),
    ],
)
def test_a_part_of_mlperfs_data_set_may_fail_its_gate_and_never_keeps_it(
    own: Project, right: int, state: GateState, outcome: Outcome, ret: int
) -> None:
    suite(own, right=right)

    assert own.run("suites", *RECORD).ret == ret

    verdict = newest(own)
    assert verdict.outcome is outcome
    assert verdict.gate == Gate(state=state, samples=400, total=50_000)
    assert bool(baselines(own)) is (ret == 0)


def test_what_neither_gate_nor_baseline_vouches_for_is_said_of_the_performance(
    own: Project,
) -> None:
    suite(own, right=400)

    own.run("suites")

    accuracy, performance = newest(own), newest(own, "performance")
    assert accuracy.outcome is Outcome.NO_BASELINE
    assert accuracy.headline == "top1 100.000; gate not decided on 400 of 50,000 samples"
    assert performance.headline.endswith(", accuracy not checked")


def test_a_pass_that_stops_early_says_that_its_gate_is_not_decided(own: Project) -> None:
    reference = "twin_of = 'resnet50'\nreference = { top1 = 100.0 }"
    suite(own, name="mine", samples=2000, right=2000, scorer=reference)
    own.run("suites", "-k", "accuracy", *RECORD)
    first = newest(own)

    result = own.run("suites", "-k", "accuracy")

    assert first.gate == Gate(state=GateState.KEPT, samples=2000, total=2000)
    verdict = newest(own)
    assert verdict.outcome is Outcome.OK
    assert verdict.gate == Gate(state=GateState.UNDECIDED, samples=1024, total=2000)
    assert "gate not decided on 1,024 of 2,000 samples" in " ".join(section(result))


def test_an_expected_failure_of_the_gate_is_not_recorded(own: Project) -> None:
    known = '[[expected_failures]]\nreason = "issue 812"\nuntil = 2999-01-01\n'
    suite(own, more=known)

    result = own.run("suites", "-k", "accuracy", *RECORD)

    assert last_line(result).endswith("1 expected failure")
    assert newest(own).gate == Gate(state=GateState.FAILED, samples=400, total=50_000)
    assert baselines(own) == []


@pytest.mark.parametrize("update", ["missing", "replace", "append"])
def test_speed_is_not_recorded_where_only_it_is_asked_for_and_the_gate_failed(
    own: Project, update: str
) -> None:
    suite(own, right=400)
    own.run("suites", *RECORD)
    before = sorted((own.path / "baselines").rglob("*"))
    content = [path.read_bytes() for path in before if path.is_file()]
    if update == "missing":
        for path in (own.path / "baselines/cpu").rglob("*.json"):
            path.unlink()
        content = content[:0]
    suite(own, right=0)

    result = own.run(
        "suites", "-k", "performance", f"--mlperf-update={update}", "--mlperf-reason=why"
    )

    assert result.ret == 1
    verdict = newest(own, "performance")
    assert verdict.outcome is Outcome.INVALID
    assert verdict.headline.startswith("not judged: accuracy failed, GATE FAIL top1")
    after = [path.read_bytes() for path in before if path.is_file()]
    assert after == content if content else not list((own.path / "baselines/cpu").rglob("*.json"))


UNET: dict[str, Any] = {"name": "3d-unet-99", "samples": 43}


def test_the_whole_of_a_data_set_keeps_the_gate_and_needs_no_baseline(own: Project) -> None:
    suite(own, scorer='scorer = { use = "own:Dice" }', **UNET)

    assert own.run("suites", "-k", "accuracy").ret == 0

    verdict = newest(own)
    assert verdict.outcome is Outcome.OK
    assert verdict.gate == Gate(state=GateState.KEPT, samples=43, total=43)
    assert verdict.notes[-1].startswith("only the gate was checked: no accuracy baseline")


@pytest.mark.parametrize(
    ("profile", "outcome"), [("quick", Outcome.NO_BASELINE), ("official", Outcome.ERROR)]
)
def test_a_score_that_the_scorer_left_out_is_no_error_before_the_official_profile(
    own: Project, profile: str, outcome: Outcome
) -> None:
    scorer = 'scorer = { use = "own:Dice", named = "iou" }'
    suite(own, profile=profile, scorer=scorer, **UNET)

    own.run("suites", "-k", "accuracy")

    verdict = newest(own)
    assert verdict.outcome is outcome
    if profile == "quick":
        assert verdict.headline == "iou 90.000; gate not decided on 43 samples, without dice"
    else:
        assert "MLPerf's gate needs dice" in verdict.headline


def test_a_part_of_a_data_set_larger_than_mlperfs_is_a_part_of_that_one(own: Project) -> None:
    changes = {**UNET, "samples": 2000, "scorer": 'scorer = { use = "own:Dice" }'}
    suite(own, **changes)
    own.run("suites", "-k", "accuracy", *RECORD)

    own.run("suites", "-k", "accuracy")

    assert newest(own).gate == Gate(state=GateState.UNDECIDED, samples=1024, total=2000)

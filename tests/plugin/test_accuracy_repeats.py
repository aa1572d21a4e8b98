"""Test accuracy passes of one build that differ.

Repeats are kept, near gates and outputs reported.
"""

from __future__ import annotations

import pytest

from pytest_mlperf.core.baseline import AccuracyBaseline
from pytest_mlperf.core.notes import Note
from pytest_mlperf.core.verdict import Outcome, Verdict
from pytest_mlperf.reports.sentences import sentence
from pytest_mlperf.stores import accuracy_baselines
from tests.plugin.project import OFFLINE, SUITE, Project, section

ENGINE = """
from pathlib import Path
from pytest_mlperf.core.extension import Engine

HERE = Path(__file__).parent

class Answers(Engine):
    # What it answers is told by files that no fingerprint sees, as rounding in a batch is not.
    def __init__(self, dataset, model, precision, *, options=None):
        self.wrong = range(*map(int, (HERE / "wrong.txt").read_text().split()))
        self.tail = (HERE / "tail.txt").read_bytes()

    def submit(self, ids, indices, sink):
        sink.done(ids, [self.answer(index) + self.tail for index in indices])

    def answer(self, index):
        return (index + (index in self.wrong)).to_bytes(8, "little")

class Prefix:
    # Scores the first eight bytes: what follows them changes no score.
    def __init__(self, *, model): pass
    def score(self, outputs, references):
        from pytest_mlperf.core.extension import Scores
        right = [
            100.0 * (int.from_bytes(output[:8], "little") == reference)
            for output, reference in zip(outputs, references, strict=True)
        ]
        return Scores(per_sample={"top1": right}, aggregate={"top1": sum(right) / len(right)})
"""

BASELINE = "baselines/accuracy/first/Answers.fp32.json"
ACCURACY = ("-k", "accuracy")
RECORD = (*ACCURACY, "--mlperf-update=missing")
APPEND = (*ACCURACY, "--mlperf-update=append", "--mlperf-reason=again")


@pytest.fixture
def own_project(project: Project) -> Project:
    (project.path / "own.py").write_text(ENGINE, "utf-8")
    project.pytester.syspathinsert()
    suite(project)
    answers(project)
    return project


def suite(project: Project, *, reference: str = "", more: str = "") -> None:
    path = project.path / SUITE
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        f"""
schema = 1
round = "v4.1"
[workload]
name = "first"
dataset = {{ use = "synthetic", samples = 400 }}
scorer = {{ use = "own:Prefix" }}
{reference}
[[engines]]
use = "own:Answers"
{OFFLINE}
[limits]
accuracy = {{ margin = "5 points" }}
{more}
""",
        "utf-8",
    )


def answers(project: Project, *, wrong: str = "0 10", tail: bytes = b"") -> None:
    """Say which samples are answered wrongly, as a range, and what follows each answer."""
    (project.path / "wrong.txt").write_text(wrong, "utf-8")
    (project.path / "tail.txt").write_bytes(tail)


def newest(project: Project) -> Verdict:
    files = sorted(
        project.path.glob(".mlperf/runs/*/results.json"), key=lambda file: file.stat().st_mtime_ns
    )
    return project.verdicts(str(files[-1]))["accuracy"]


def kept(project: Project) -> AccuracyBaseline:
    baseline = accuracy_baselines.load(project.path / BASELINE)
    assert baseline is not None
    return baseline[0]


def test_a_pass_is_compared_with_a_baseline_of_one_pass(own_project: Project) -> None:
    """Changed outputs are reported; another build and a drop are not repeats."""
    assert own_project.run("suites", *RECORD).ret == 0
    outputs = accuracy_baselines.load_outputs(own_project.path / BASELINE)
    assert outputs is not None
    assert len(set(outputs)) > 390, "400 outputs, told apart by two bytes"

    own_project.run("suites", *ACCURACY)
    assert newest(own_project).notes == ()

    answers(own_project, tail=b"!")
    result = own_project.run("suites", *ACCURACY)
    assert (result.ret, newest(own_project).outcome) == (0, Outcome.OK)
    note = "400 of 400 outputs changed, no score did"
    assert tuple(map(sentence, newest(own_project).notes)) == (note,)
    assert note in " ".join(" ".join(section(result)).split())

    answers(own_project)
    text = (own_project.path / SUITE).read_text("utf-8")
    other = text.replace('use = "own:Answers"', 'use = "own:Answers"\noptions = { options = 1 }')
    (own_project.path / SUITE).write_text(other, "utf-8")
    own_project.run("suites", *APPEND)
    assert newest(own_project).outcome is Outcome.OK
    assert sentence(newest(own_project).notes[-1]).startswith(
        "not kept as a repeated pass: build or machine differ from the baseline's"
    )

    (own_project.path / SUITE).write_text(text, "utf-8")
    answers(own_project, wrong="0 100")
    assert own_project.run("suites", *APPEND).ret == 1
    assert newest(own_project).outcome is Outcome.ACC_DROP
    assert kept(own_project).rerun == {}


def test_repeats_of_one_build_are_kept_with_a_note_near_the_gate(own_project: Project) -> None:
    own_project.run("suites", *RECORD)
    scores = accuracy_baselines.scores_path(own_project.path / BASELINE).read_bytes()
    baseline = kept(own_project)
    answers(own_project, wrong="1 11")

    first = own_project.run("suites", *APPEND)
    again = kept(own_project)
    near_gate = {}
    suite(own_project, reference="reference = { top1 = 98.383838 }")  # gate 97.4
    for wrong in ("1 11", "1 12"):
        answers(own_project, wrong=wrong)
        result = own_project.run("suites", *ACCURACY)
        near_gate[wrong] = newest(own_project)
        assert "NEAR-GATE: top1 is" in result.stdout.str()
    suite(own_project)
    answers(own_project, wrong="1 11")
    own_project.run("suites", *APPEND)

    for wrong, outcome, side in (
        ("1 11", Outcome.OK, "0.1 points inside"),
        ("1 12", Outcome.GATE_FAIL, "0.15 points short of"),
    ):
        assert near_gate[wrong].outcome is outcome
        assert sentence(near_gate[wrong].notes[0]).startswith(
            f"NEAR-GATE: top1 is {side} its gate, 0."
        )
        assert "re-run standard deviations (0.25 points)" in sentence(near_gate[wrong].notes[0])
    assert (first.ret, newest(own_project).outcome) == (0, Outcome.RECORDED)
    assert sentence(newest(own_project).headline) == f"accuracy run 3 of one build in {BASELINE}"
    # two of 400 samples moved by 100 points, one up and one down
    assert again.rerun["top1"].sd == pytest.approx((2 * 100**2 / 399 / 800) ** 0.5)
    assert again.rerun["top1"].correlation == pytest.approx(0.897, abs=0.001)
    assert (again.rerun["top1"].passes, kept(own_project).rerun["top1"].passes) == (1, 2)
    assert (again.scores, again.history) == (baseline.scores, baseline.history)
    assert accuracy_baselines.scores_path(own_project.path / BASELINE).read_bytes() == scores


def test_accepting_the_same_build_again_counts_as_a_repeat(own_project: Project) -> None:
    own_project.run("suites", *RECORD)
    answers(own_project, wrong="1 11")

    own_project.run("suites", *ACCURACY, "--mlperf-update=replace", "--mlperf-reason=new pass")

    assert kept(own_project).rerun["top1"].passes == 1
    assert kept(own_project).history[-1].action == "replace"


def test_a_failure_that_comes_and_goes_is_not_reported_as_new(own_project: Project) -> None:
    """`strict = false`: the score falls in one session and holds in the next, both pass."""
    own_project.run("suites", *RECORD)
    expected_failure = (
        '[[expected_failures]]\nmetric = "top1"\nreason = "issue 812"\nuntil = 2999-01-01\n'
    )
    reference = "reference = { top1 = 90.0 }"
    suite(own_project, reference=reference, more=f"{expected_failure}strict = false\n")
    answers(own_project, wrong="0 100")

    fell = own_project.run("suites", *ACCURACY)
    there = newest(own_project).outcome
    answers(own_project)
    held = own_project.run("suites", *ACCURACY)
    away = newest(own_project)
    suite(own_project, reference=reference, more=expected_failure)
    strict = own_project.run("suites", *ACCURACY)

    assert (fell.ret, there) == (0, Outcome.EXPECTED)
    assert (held.ret, away.outcome) == (0, Outcome.OK)
    assert isinstance(away.notes[-1], Note)
    assert away.notes[-1].key == "expectation_missed"
    assert (strict.ret, newest(own_project).outcome) == (1, Outcome.UNEXPECTED_PASS)

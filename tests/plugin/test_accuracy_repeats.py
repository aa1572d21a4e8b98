"""Passes of one build that differ: repeats are kept, a near gate is said, outputs are compared."""

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
def own(project: Project) -> Project:
    (project.path / "own.py").write_text(ENGINE, "utf-8")
    project.pytester.syspathinsert()
    suite(project)
    answers(project)
    return project


def suite(own: Project, *, reference: str = "", more: str = "") -> None:
    path = own.path / SUITE
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


def answers(own: Project, *, wrong: str = "0 10", tail: bytes = b"") -> None:
    """Say which samples are answered wrongly, as a range, and what follows each answer."""
    (own.path / "wrong.txt").write_text(wrong, "utf-8")
    (own.path / "tail.txt").write_bytes(tail)


def newest(own: Project) -> Verdict:
    files = sorted(
        own.path.glob(".mlperf/runs/*/results.json"), key=lambda file: file.stat().st_mtime_ns
    )
    return own.verdicts(str(files[-1]))["accuracy"]


def kept(own: Project) -> AccuracyBaseline:
    found = accuracy_baselines.load(own.path / BASELINE)
    assert found is not None
    return found[0]


def test_a_pass_beside_the_baseline_of_one_pass(own: Project) -> None:
    """Changed outputs are said; another build and a drop are no repeat."""
    assert own.run("suites", *RECORD).ret == 0
    outputs = accuracy_baselines.load_outputs(own.path / BASELINE)
    assert outputs is not None
    assert len(set(outputs)) > 390, "400 outputs, told apart by two bytes"

    own.run("suites", *ACCURACY)
    assert newest(own).notes == ()

    answers(own, tail=b"!")
    result = own.run("suites", *ACCURACY)
    assert (result.ret, newest(own).outcome) == (0, Outcome.OK)
    note = "400 of 400 outputs changed, no score did"
    assert tuple(map(sentence, newest(own).notes)) == (note,)
    assert note in " ".join(" ".join(section(result)).split())

    answers(own)
    text = (own.path / SUITE).read_text("utf-8")
    other = text.replace('use = "own:Answers"', 'use = "own:Answers"\noptions = { options = 1 }')
    (own.path / SUITE).write_text(other, "utf-8")
    own.run("suites", *APPEND)
    assert newest(own).outcome is Outcome.OK
    assert sentence(newest(own).notes[-1]).startswith(
        "not kept as a repeat: it is no pass of the baseline's"
    )

    (own.path / SUITE).write_text(text, "utf-8")
    answers(own, wrong="0 100")
    assert own.run("suites", *APPEND).ret == 1
    assert newest(own).outcome is Outcome.ACC_DROP
    assert kept(own).rerun == {}


def test_repeats_of_one_build_are_kept_and_say_what_is_near_the_gate(own: Project) -> None:
    own.run("suites", *RECORD)
    scores = accuracy_baselines.scores_path(own.path / BASELINE).read_bytes()
    before = kept(own)
    answers(own, wrong="1 11")

    first = own.run("suites", *APPEND)
    again = kept(own)
    near_gate = {}
    suite(own, reference="reference = { top1 = 98.383838 }")  # gate 97.4
    for wrong in ("1 11", "1 12"):
        answers(own, wrong=wrong)
        result = own.run("suites", *ACCURACY)
        near_gate[wrong] = newest(own)
        assert "NEAR-GATE: top1 is" in result.stdout.str()
    suite(own)
    answers(own, wrong="1 11")
    own.run("suites", *APPEND)

    for wrong, outcome, side in (
        ("1 11", Outcome.OK, "0.1 inside"),
        ("1 12", Outcome.GATE_FAIL, "0.15 short of"),
    ):
        assert near_gate[wrong].outcome is outcome
        assert sentence(near_gate[wrong].notes[0]).startswith(
            f"NEAR-GATE: top1 is {side} its gate, 0."
        )
        assert "re-run standard deviations (0.25 points)" in sentence(near_gate[wrong].notes[0])
    assert (first.ret, newest(own).outcome) == (0, Outcome.RECORDED)
    assert sentence(newest(own).headline) == f"pass 3 of one build in {BASELINE}"
    # two of 400 samples moved by 100 points, one up and one down
    assert again.rerun["top1"].sd == pytest.approx((2 * 100**2 / 399 / 800) ** 0.5)
    assert again.rerun["top1"].correlation == pytest.approx(0.897, abs=0.001)
    assert (again.rerun["top1"].passes, kept(own).rerun["top1"].passes) == (1, 2)
    assert (again.scores, again.history) == (before.scores, before.history)
    assert accuracy_baselines.scores_path(own.path / BASELINE).read_bytes() == scores


def test_accepting_the_same_build_anew_counts_as_a_repeat(own: Project) -> None:
    own.run("suites", *RECORD)
    answers(own, wrong="1 11")

    own.run("suites", *ACCURACY, "--mlperf-update=replace", "--mlperf-reason=new pass")

    assert kept(own).rerun["top1"].passes == 1
    assert kept(own).history[-1].action == "replace"


def test_a_failure_that_comes_and_goes_is_no_news_either_way(own: Project) -> None:
    """`strict = false`: the score falls in one session and holds in the next, both pass."""
    own.run("suites", *RECORD)
    known = '[[expected_failures]]\nmetric = "top1"\nreason = "issue 812"\nuntil = 2999-01-01\n'
    reference = "reference = { top1 = 90.0 }"
    suite(own, reference=reference, more=f"{known}strict = false\n")
    answers(own, wrong="0 100")

    fell = own.run("suites", *ACCURACY)
    there = newest(own).outcome
    answers(own)
    held = own.run("suites", *ACCURACY)
    away = newest(own)
    suite(own, reference=reference, more=known)
    strict = own.run("suites", *ACCURACY)

    assert (fell.ret, there) == (0, Outcome.EXPECTED)
    assert (held.ret, away.outcome) == (0, Outcome.OK)
    assert isinstance(away.notes[-1], Note)
    assert away.notes[-1].key == "expectation_missed"
    assert (strict.ret, newest(own).outcome) == (1, Outcome.UNEXPECTED_PASS)

"""Accuracy against accepted scores, as a user meets it: kept in git, judged sample by sample."""

from __future__ import annotations

import json
from typing import Any, NoReturn

import pytest

from pytest_mlperf.core.baseline import AccuracyBaseline
from pytest_mlperf.core.results import Results
from pytest_mlperf.core.verdict import Outcome, Verdict
from pytest_mlperf.reports.sentences import sentence
from pytest_mlperf.stores import accuracy_baselines
from pytest_mlperf.stores.results import read_results
from tests.plugin.project import OFFLINE, SERVER, Project, last_line, section

ENGINE = """
import os
import signal
from pytest_mlperf.core.extension import Engine, Scores

class Answers(Engine):
    def __init__(self, dataset, model, precision, *, wrong=0, every=0, dummy=False, length=8):
        self.wrong, self.every, self.dummy, self.length = wrong, every, dummy, length

    def submit(self, ids, indices, sink):
        sink.done(ids, [self.answer(index) for index in indices])

    def answer(self, index):
        wrong = index < self.wrong or (self.every and index % self.every == 0)
        return (index + bool(wrong)).to_bytes(8, "little")

    def describe(self):
        known = {"generation.max_new_tokens": str(self.length)}
        return {**known, "weights": "dummy"} if self.dummy else known

class Crashes:
    def __init__(self, *, model): pass
    def score(self, outputs, references):
        os.kill(os.getpid(), signal.SIGSEGV)

class NotANumber:
    def __init__(self, *, model): pass
    def score(self, outputs, references):
        values = [1.0] * len(outputs)
        values[7] = float("nan")
        return Scores(per_sample={"quality": values}, aggregate={"quality": 1.0})

def right(outputs, references):
    return [int.from_bytes(o, "little") == r for o, r in zip(outputs, references, strict=True)]

class ErrorRate:
    # Better when lower, and defined for the whole data set only.
    def __init__(self, *, model): pass
    def score(self, outputs, references):
        wrong = [0.0 if yes else 100.0 for yes in right(outputs, references)]
        both, rate = frozenset({"error_rate"}), sum(wrong) / len(wrong)
        return Scores(
            per_sample={"error_rate": wrong}, aggregate={"error_rate": rate}, lower=both, whole=both
        )

class Parts:
    # One metric for even samples, one for odd ones.
    def __init__(self, *, model): pass
    def score(self, outputs, references):
        found = list(zip(references, right(outputs, references), strict=True))
        per_sample = {
            name: [100.0 * yes if sample % 2 == part else None for sample, yes in found]
            for part, name in enumerate(("even", "odd"))
        }
        known = {name: [v for v in own if v is not None] for name, own in per_sample.items()}
        means = {name: sum(own) / len(own) for name, own in known.items()}
        return Scores(per_sample=per_sample, aggregate=means)

class NoSamples:
    def __init__(self, *, model): pass
    def score(self, outputs, references):
        return Scores(per_sample={}, aggregate={"quality": 7.0})
"""

BASELINE = "baselines/accuracy/first/Answers.fp32.json"
RECORD = ("-k", "accuracy", "--mlperf-update=missing")
ACCURACY = ("-k", "accuracy")
REFERENCE = "reference = { top1 = 100.0 }"


@pytest.fixture
def own_project(project: Project) -> Project:
    (project.path / "own.py").write_text(ENGINE, "utf-8")
    project.pytester.syspathinsert()
    return project


def suite(
    project: Project,
    *,
    name: str = "first",
    samples: int = 400,
    options: str = "",
    seed: int = 0,
    more: str = "",
    scenarios: str = OFFLINE,
    reference: str = "",
    scorer: str = "top1",
    engines: str = "",
) -> None:
    """Write the suite: an engine that is right in every sample but those its options name."""
    text = f"""
schema = 1
round = "v4.1"
[workload]
name = "{name}"
dataset = {{ use = "synthetic", samples = {samples}, seed = {seed} }}
scorer = {{ use = "{scorer}" }}
{reference}
[[engines]]
use = "own:Answers"
options = {{ {options} }}
{engines}
{scenarios}
[limits]
throughput = {{ max_drop = "99%" }}
{more}
"""
    path = project.path / f"suites/{name}.mlperf.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, "utf-8")


def last(project: Project) -> Results:
    """Return the results of the newest session."""
    files = project.path.glob(".mlperf/runs/*/results.json")
    return read_results(max(files, key=lambda file: file.stat().st_mtime_ns))


def newest(project: Project, kind: str = "accuracy") -> Verdict:
    """Return the last verdict of one kind of the newest session."""
    return [each.verdict for each in last(project).cases if each.verdict.kind == kind][-1]


def accepted(project: Project) -> tuple[AccuracyBaseline, dict[str, Any]]:
    baseline = accuracy_baselines.load(project.path / BASELINE)
    assert baseline is not None
    return baseline[0], dict(baseline[1])


def test_scores_are_accepted_judged_and_replaced(own_project: Project) -> None:
    """Once, and unchanged code is OK; a drop voids performance; replacing keeps the history."""
    suite(own_project)

    first = own_project.run("suites", *RECORD)

    assert "1 recorded" in last_line(first)
    text = " ".join(" ".join(section(first)).split())
    assert f"400 samples in {BASELINE}; commit it with its .scores.npz" in text
    baseline, scores = accepted(own_project)
    assert baseline.scores == {"top1": 100.0}
    assert scores == {"top1": [100.0] * 400}
    written = (own_project.path / BASELINE).read_bytes()

    again = own_project.run("suites", *RECORD)

    assert last_line(again).startswith("1 passed")
    assert sentence(newest(own_project).headline) == (
        "top1 100.000, every sample scored as in the baseline"
    )
    assert (own_project.path / BASELINE).read_bytes() == written

    suite(own_project, options="wrong = 20")
    dropped = own_project.run("suites")

    assert dropped.ret == 1
    verdict = newest(own_project)
    assert verdict.outcome is Outcome.ACC_DROP
    assert sentence(verdict.headline) == "top1 −5.00 points (−7.11 to −2.61); limit −0.50 exceeded"
    (top1,) = verdict.paired
    assert (top1.baseline, top1.now, top1.margin, top1.down) == (100.0, 95.0, 0.5, 20)
    assert verdict.baseline.file == BASELINE
    dropped.stdout.fnmatch_lines(
        [
            "ACC DROP top1 −5.00 points*",
            "likely    options: wrong absent → 20 since the baseline*",
            "metric  baseline     now  points        interval  margin  verdict",
            "top1     100.000  95.000   −5.00  * −0.50  ACC DROP",
            "*400 samples compared in pairs: 20 worse, 0 better*",
            f"baseline  {BASELINE}",
        ]
    )
    performance = newest(own_project, "performance")
    assert performance.outcome is Outcome.INVALID
    assert sentence(performance.headline).startswith("not judged: accuracy failed, ACC DROP top1")

    replace = (*ACCURACY, "--mlperf-update=replace", "--mlperf-reason=smaller model")
    own_project.run("suites", *replace)
    assert sentence(newest(own_project).headline).startswith("nothing recorded: top1 −5.00 points")
    assert [entry.action for entry in accepted(own_project)[0].history] == ["record"]
    suite(own_project, options="wrong = 4")
    own_project.run("suites", *replace)

    baseline, _ = accepted(own_project)
    assert [entry.action for entry in baseline.history] == ["record", "replace"]
    assert (baseline.history[1].old, baseline.history[1].new) == ({"top1": 100.0}, {"top1": 99.0})
    assert baseline.history[1].reason == "smaller model"

    # Damaged scores are an error before anything is measured.
    file = own_project.path / BASELINE
    kept = accuracy_baselines.scores_path(file)
    whole, folders = kept.read_bytes(), len(own_project.run_folders())
    for harm, message in (
        (
            lambda: kept.write_bytes(b"x"),
            "its SHA-256 is not the scores_sha256 in Answers.fp32.json",
        ),
        (kept.unlink, "No such file"),
        (lambda: file.write_text("{"), "is not JSON"),
    ):
        harm()

        assert own_project.run("suites", *ACCURACY).ret == 1
        verdict = newest(own_project)
        assert verdict.outcome is Outcome.ERROR
        assert message in sentence(verdict.headline)
        kept.write_bytes(whole)
    assert len(own_project.run_folders()) == folders


ROWS: dict[str, tuple[dict[str, Any] | None, dict[str, Any], Outcome, str]] = {
    "lower": (
        {"scorer": "own:ErrorRate", "samples": 2000},
        {"options": "every = 20"},
        Outcome.ACC_DROP,
        "error_rate +5.00 points (+",
    ),
    "whole": (
        {"scorer": "own:ErrorRate", "samples": 2000, "options": "every = 50"},
        {},
        Outcome.OK,
        "",
    ),
    "parts": ({"scorer": "own:Parts"}, {"options": "every = 4"}, Outcome.ACC_DROP, ""),
    "gate": ({"reference": REFERENCE}, {"options": "wrong = 20"}, Outcome.GATE_FAIL, "top1 95.000"),
    "margin": (
        {"more": 'accuracy = { margin = "10 points" }'},
        {"options": "wrong = 20"},
        Outcome.OK,
        "",
    ),
    "open": ({}, {"options": "wrong = 3"}, Outcome.INCONCLUSIVE, ""),
    "large": ({"samples": 3000}, {"options": "every = 2"}, Outcome.ACC_DROP, ""),
    "subset": (
        {"samples": 3000, "reference": REFERENCE},
        {},
        Outcome.OK,
        "top1 100.000, every sample of 1,024 scored as in the baseline",
    ),
    "data": (
        {},
        {"seed": 7},
        Outcome.INVALID,
        "data or prompts differ from the baseline's: dataset options "
        '{"samples": 400, "seed": 0} → {"samples": 400, "seed": 7}',
    ),
    "length": (
        {},
        {"options": "length = 16"},
        Outcome.INVALID,
        "generation settings differ from the baseline's: max_new_tokens 8 → 16",
    ),
    "scorer": (
        {},
        {"scorer": 'top1", dtype = "int64'},
        Outcome.INVALID,
        "the scorer differs from the baseline's: ",
    ),
    "no-samples": (
        {"scorer": "own:NoSamples"},
        {},
        Outcome.NO_BASELINE,
        "the baseline has no scores by sample",
    ),
    "not-built": (
        None,
        {"scorer": "own:Crashed"},
        Outcome.ERROR,
        "scorer 'own:Crashed' cannot be imported: own.py has no 'Crashed';",
    ),
    "not-a-number": (None, {"scorer": "own:NotANumber"}, Outcome.ERROR, ""),
}
"""By workload: how it is recorded (None: it is not), what is other then, and what is said."""


def test_scores_of_one_session_are_judged_each_by_its_baseline(own_project: Project) -> None:
    for name, (baseline_row, _, _, _) in ROWS.items():
        if baseline_row is not None:
            suite(own_project, name=name, **baseline_row)
    suite(own_project, name="missed", reference=REFERENCE, options="wrong = 20")
    suite(own_project, name="dummy", options="dummy = true")
    recorded = own_project.run("suites", *RECORD)

    # Scores below the gate are never accepted; those of dummy weights are none.
    assert last_line(recorded).startswith("1 failed")
    kept = {path.parent.name for path in (own_project.path / "baselines").rglob("*.json")}
    assert kept == {name for name, (before, _, _, _) in ROWS.items() if before is not None}
    for name in ("missed", "dummy"):
        (own_project.path / f"suites/{name}.mlperf.toml").unlink()

    for name, (baseline_row, changes, _, _) in ROWS.items():
        suite(own_project, name=name, **{**(baseline_row or {}), **changes})
    result = own_project.run("suites", *ACCURACY)

    verdicts = {each.verdict.case.workload: each.verdict for each in last(own_project).cases}
    assert {name: verdict.outcome for name, verdict in verdicts.items()} == {
        name: outcome for name, (_, _, outcome, _) in ROWS.items()
    }
    assert {
        name: sentence(verdicts[name].headline)[: len(row[3])] for name, row in ROWS.items()
    } == {name: row[3] for name, row in ROWS.items()}
    # What is defined for the whole data set only needs the whole; else the scores decide.
    assert {
        name: (verdict.accuracy.samples, verdict.accuracy.total)
        for name, verdict in verdicts.items()
        if verdict.accuracy and verdict.accuracy.total > 400
    } == {
        "lower": (2000, 2000),
        "whole": (2000, 2000),
        "large": (1024, 3000),
        "subset": (1024, 3000),
    }
    (rate,) = verdicts["lower"].paired
    assert (rate.baseline, rate.now, rate.down) == (0.0, 5.0, 100)
    parts = verdicts["parts"].paired
    assert {paired.metric: (paired.outcome, paired.samples) for paired in parts} == {
        "even": (Outcome.ACC_DROP, 200),
        "odd": (Outcome.OK, 200),
    }
    assert sentence(verdicts["gate"].headline).startswith("top1 95.000 < 99.000")
    note = "against the baseline: ACC DROP top1 −5.00 points"
    assert sentence(verdicts["gate"].notes[0]).startswith(note)
    assert "within limit −10.00" in sentence(verdicts["margin"].headline)
    assert "a drop smaller than the margin is proven" in sentence(verdicts["margin"].notes[0])
    assert verdicts["subset"].metrics == ()
    assert sentence(verdicts["not-a-number"].headline).endswith(
        "nan as quality of sample 7; it must be finite, or None"
    )
    text = " ".join(" ".join(section(result)).split())
    assert "all 400 samples were compared. Use a larger data set or a wider margin" in text

    # A subset claims no gate, and the official profile takes no subset.
    own_project.run("suites/subset.mlperf.toml", *ACCURACY, "--mlperf-profile=official")

    official = newest(own_project)
    assert official.accuracy is not None
    assert (official.accuracy.samples, len(official.metrics)) == (3000, 1)


def test_scores_depend_on_the_data_that_are_scored_alone(own_project: Project) -> None:
    scored = 'accuracy_dataset = { use = "synthetic", samples = 300, seed = SEED }'
    baseline_seeds, timed, both = ((0, 1), (5, 1), (5, 2))
    outcomes = []
    for number, (seed, of_scores) in enumerate([baseline_seeds, timed, both]):
        suite(own_project, seed=seed, reference=scored.replace("SEED", str(of_scores)))
        options = (RECORD, ACCURACY, ())[number]
        assert own_project.run("suites", *options).ret == (number == 2)
        verdict = newest(own_project)
        assert verdict.accuracy is not None
        assert verdict.accuracy.samples == 300
        outcomes.append(verdict.outcome)
    performance = newest(own_project, "performance")

    assert outcomes == [Outcome.RECORDED, Outcome.OK, Outcome.INVALID]
    assert sentence(verdict.headline).startswith("data or prompts differ from the baseline's")
    assert performance.subject is not None
    assert verdict.subject is not None
    assert performance.subject.fingerprint["dataset"] != verdict.subject.fingerprint["dataset"]
    assert json.loads(performance.subject.fingerprint["dataset.options"])["samples"] == 400


LOSSY = """
[[engines]]
use = "own:Answers"
precision = "int8"
options = { wrong = 40 }
"""
AGAINST = 'accuracy = { reference = "Answers-fp32" }'


def test_another_precision_is_judged_against_the_reference_entry(own_project: Project) -> None:
    suite(own_project, engines=LOSSY, more=AGAINST)
    first_run = own_project.run("suites", "-k", "accuracy and int8")
    missing = newest(own_project)
    own_project.run("suites", "-k", "accuracy and fp32", "--mlperf-update=missing")

    after = own_project.run("suites", "-k", "accuracy and int8", "--mlperf-update=missing")

    assert (first_run.ret, missing.outcome) == (0, Outcome.NO_BASELINE)
    assert missing.notes[0] == (
        "the reference engine entry Answers-fp32 has no accuracy baseline: first record it, in "
        "scenario Offline, with --mlperf-update=missing"
    )
    verdict = newest(own_project)
    assert (after.ret, verdict.outcome) == (1, Outcome.ACC_DROP)
    assert verdict.paired[0].down == 40
    assert [path.name for path in (own_project.path / "baselines").rglob("*.json")] == [
        "Answers.fp32.json"
    ]


def test_the_first_scenario_records_and_the_others_are_judged_by_it(own_project: Project) -> None:
    suite(own_project, scenarios=SERVER + OFFLINE)

    own_project.run("suites", "-k", "accuracy and Offline", "--mlperf-update=missing")
    early = newest(own_project)
    own_project.run("suites", "-k", "accuracy", "--mlperf-update=missing")

    assert early.outcome is Outcome.NO_BASELINE
    assert early.notes == (
        "no accuracy baseline: only the test in scenario Server records it, with "
        "--mlperf-update=missing",
    )
    assert accepted(own_project)[0].scenario == "Server"
    assert {
        each.verdict.case.scenario: each.verdict.outcome for each in last(own_project).cases
    } == {
        "Server": Outcome.RECORDED,
        "Offline": Outcome.OK,
    }


def test_dummy_weights_have_no_accuracy(own_project: Project) -> None:
    suite(own_project, options="dummy = true")

    result = own_project.run("suites")

    assert result.ret == 0
    assert "1 not evaluated" in last_line(result)
    assert (
        sentence(newest(own_project).headline)
        == "dummy weights: only speed is judged, not accuracy"
    )
    performance = newest(own_project, "performance")
    assert sentence(performance.headline).endswith(", accuracy not evaluated (dummy weights)")


def test_a_scorer_that_crashes_is_one_error_and_its_run_is_judged_all_the_same(
    own_project: Project,
) -> None:
    suite(own_project, scorer="own:Crashes")

    result = own_project.run("suites")

    verdicts = own_project.verdicts()
    accuracy, performance = verdicts["accuracy"], verdicts["performance"]
    assert (result.ret, accuracy.outcome) == (1, Outcome.ERROR)
    assert sentence(accuracy.headline).startswith("scorer: ")
    assert "killed by SIGSEGV" in sentence(accuracy.headline)
    assert performance.outcome is Outcome.NO_BASELINE
    assert sentence(performance.headline).endswith(", accuracy not checked: the scorer failed")


def test_nothing_is_recorded_that_no_scorer_vouches_for(own_project: Project) -> None:
    suite(own_project, scorer="own:Crashes")

    result = own_project.run("suites", "--mlperf-update=missing", "-omlperf_baseline_runs=2")

    assert result.ret == 1
    assert {verdict.outcome for verdict in own_project.verdicts().values()} == {Outcome.ERROR}
    assert list((own_project.path / "baselines").rglob("*.json")) == []


def test_an_accuracy_pass_waits_for_no_idle_machine(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It measures no time; a timed run in the same session checks the load."""

    def busy() -> NoReturn:
        raise AssertionError("asked")

    monkeypatch.setattr("pytest_mlperf.run.conditions.IdleWait.wait", lambda *_: busy())
    project.suite(top1=100.0)

    result = project.run("suites", "-k", "accuracy")

    assert project.verdicts()["accuracy"].outcome is Outcome.OK, result.stdout.str()

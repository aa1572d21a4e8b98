"""Accuracy against accepted scores, as a user meets it: kept in git, judged sample by sample."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_mlperf.core.verdict import Outcome, Verdict
from pytest_mlperf.stores import accuracy_baselines
from tests.plugin.project import OFFLINE, SERVER, SUITE, Project, last_line, section

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


@pytest.fixture
def own(project: Project) -> Project:
    (project.path / "own.py").write_text(ENGINE, "utf-8")
    project.pytester.syspathinsert()
    return project


def suite(
    own: Project,
    *,
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
name = "first"
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
    path = own.path / SUITE
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, "utf-8")


def newest(own: Project, kind: str = "accuracy") -> Verdict:
    """Return the verdict of one kind of the newest session."""
    files = sorted(
        own.path.glob(".mlperf/runs/*/results.json"), key=lambda file: file.stat().st_mtime_ns
    )
    return own.verdicts(str(files[-1]))[kind]


def recorded(own: Project, **changes: Any) -> None:
    """Accept the scores of a suite's first engine."""
    suite(own, **changes)
    assert own.run("suites", *RECORD).ret == 0


def test_scores_are_accepted_once_and_unchanged_code_is_ok(own: Project) -> None:
    suite(own)

    first = own.run("suites", *RECORD)

    assert "1 recorded" in last_line(first)
    text = " ".join(section(first))
    assert f"400 samples in {BASELINE}; commit it with its .scores.npz" in " ".join(text.split())
    found = accuracy_baselines.load(own.path / BASELINE)
    assert found is not None
    assert found[0].scores == {"top1": 100.0}
    assert found[1] == {"top1": [100.0] * 400}
    written = (own.path / BASELINE).read_bytes()

    again = own.run("suites", *RECORD)

    assert last_line(again).startswith("1 passed")
    assert newest(own).headline == "top1 100.000, every sample scored as in the baseline"
    assert (own.path / BASELINE).read_bytes() == written


def test_scores_depend_on_the_data_that_are_scored_alone(own: Project) -> None:
    scored = 'accuracy_dataset = { use = "synthetic", samples = 300, seed = SEED }'
    before, timed, both = ((0, 1), (5, 1), (5, 2))
    outcomes = []
    for number, (seed, of_scores) in enumerate([before, timed, both]):
        suite(own, seed=seed, reference=scored.replace("SEED", str(of_scores)))
        assert own.run("suites", *(RECORD if not number else ())).ret == (number == 2)
        verdict = newest(own)
        assert verdict.accuracy is not None
        assert verdict.accuracy.samples == 300
        outcomes.append(verdict.outcome)
    performance = newest(own, "performance")

    assert outcomes == [Outcome.RECORDED, Outcome.OK, Outcome.INVALID]
    assert verdict.headline.startswith("data or prompts differ from the baseline's")
    assert performance.subject is not None
    assert verdict.subject is not None
    assert performance.subject.fingerprint["dataset"] != verdict.subject.fingerprint["dataset"]
    assert json.loads(performance.subject.fingerprint["dataset.options"])["samples"] == 400


def test_a_rise_of_a_score_that_is_better_when_lower_fails(own: Project) -> None:
    recorded(own, scorer="own:ErrorRate", samples=2000)
    suite(own, scorer="own:ErrorRate", samples=2000, options="every = 20")

    assert own.run("suites", *ACCURACY).ret == 1

    verdict = newest(own)
    assert verdict.outcome is Outcome.ACC_DROP
    (rate,) = verdict.paired
    assert (rate.baseline, rate.now, rate.down) == (0.0, 5.0, 100)
    assert verdict.headline.startswith("error_rate +5.00 points (+")
    assert verdict.accuracy is not None
    assert verdict.accuracy.samples == 2000, "it is defined for the whole data set only"


def test_an_unchanged_score_of_the_whole_needs_the_whole(own: Project) -> None:
    recorded(own, scorer="own:ErrorRate", samples=2000, options="every = 50")

    assert own.run("suites", *ACCURACY).ret == 0

    verdict = newest(own)
    assert verdict.outcome is Outcome.OK
    assert verdict.accuracy is not None
    assert verdict.accuracy.samples == 2000


def test_metrics_of_parts_of_a_data_set_are_judged_by_their_own_samples(own: Project) -> None:
    recorded(own, scorer="own:Parts")
    suite(own, scorer="own:Parts", options="every = 4")

    assert own.run("suites", *ACCURACY).ret == 1

    verdict = newest(own)
    assert {paired.metric: (paired.outcome, paired.samples) for paired in verdict.paired} == {
        "even": (Outcome.ACC_DROP, 200),
        "odd": (Outcome.OK, 200),
    }


def test_a_drop_fails_with_points_interval_and_margin_and_voids_performance(own: Project) -> None:
    recorded(own)
    suite(own, options="wrong = 20")

    result = own.run("suites")

    assert result.ret == 1
    verdict = newest(own)
    assert verdict.outcome is Outcome.ACC_DROP
    assert verdict.headline == "top1 −5.00 points (−7.11 to −2.61); −0.50 exceeded"
    (top1,) = verdict.paired
    assert (top1.baseline, top1.now, top1.margin, top1.down) == (100.0, 95.0, 0.5, 20)
    assert verdict.baseline_file == BASELINE
    result.stdout.fnmatch_lines(
        [
            "ACC DROP top1 −5.00 points*",
            "metric  baseline     now  points        interval  margin  verdict",
            "top1     100.000  95.000   −5.00  * −0.50  ACC DROP",
            "*400 samples compared one by one, 20 got worse and 0 better*",
            f"baseline  {BASELINE}",
            'changed   options {} → {"wrong": 20}',
        ]
    )
    performance = newest(own, "performance")
    assert performance.outcome is Outcome.INVALID
    assert performance.headline.startswith("not judged: accuracy failed, ACC DROP top1")


def test_the_gate_overrides_the_baseline_and_both_are_reported(own: Project) -> None:
    recorded(own, reference="reference = { top1 = 100.0 }")
    suite(own, options="wrong = 20", reference="reference = { top1 = 100.0 }")

    result = own.run("suites", *ACCURACY)

    verdict = newest(own)
    assert verdict.outcome is Outcome.GATE_FAIL
    assert verdict.headline.startswith("top1 95.000 < 99.000")
    assert verdict.notes[0].startswith("against the baseline: ACC DROP top1 −5.00 points")
    assert result.ret == 1


def test_a_drop_inside_the_margin_is_ok_and_said(own: Project) -> None:
    margin = 'accuracy = { margin = "10 points" }'
    recorded(own, more=margin)
    suite(own, options="wrong = 20", more=margin)

    assert own.run("suites", *ACCURACY).ret == 0
    verdict = newest(own)
    assert verdict.outcome is Outcome.OK
    assert "inside −10.00" in verdict.headline
    assert "a drop smaller than the margin is certain" in verdict.notes[0]


def test_what_would_decide_an_open_question_of_accuracy(own: Project) -> None:
    recorded(own)
    suite(own, options="wrong = 3")

    result = own.run("suites", *ACCURACY)

    assert (result.ret, newest(own).outcome) == (0, Outcome.INCONCLUSIVE)
    text = " ".join(" ".join(section(result)).split())
    assert "all 400 samples were compared: a larger data set or a wider margin" in text


def test_a_large_data_set_is_measured_until_the_scores_decide(own: Project) -> None:
    recorded(own, samples=6000)
    counts = []
    for options in ("", "every = 2"):
        suite(own, samples=6000, options=options)
        own.run("suites", *ACCURACY)
        verdict = newest(own)
        assert verdict.accuracy is not None
        counts.append((verdict.outcome, verdict.accuracy.samples, verdict.accuracy.total))

    assert counts == [(Outcome.OK, 1024, 6000), (Outcome.ACC_DROP, 1024, 6000)]


def test_a_subset_claims_no_gate_and_the_official_profile_takes_no_subset(own: Project) -> None:
    reference = "reference = { top1 = 100.0 }"
    recorded(own, samples=3000, reference=reference)

    own.run("suites", *ACCURACY)
    quick = newest(own)
    own.run("suites", *ACCURACY, "--mlperf-profile=official")
    official = newest(own)

    assert quick.accuracy is not None
    assert official.accuracy is not None
    assert (quick.accuracy.samples, quick.metrics) == (1024, ())
    assert (official.accuracy.samples, len(official.metrics)) == (3000, 1)
    assert quick.headline == "top1 100.000, every sample of 1,024 scored as in the baseline"


def test_what_cannot_be_compared_is_invalid(own: Project) -> None:
    recorded(own)
    for changes, headline in (
        (
            {"seed": 7},
            "data or prompts differ from the baseline's: dataset options "
            '{"samples": 400, "seed": 0} → {"samples": 400, "seed": 7}',
        ),
        (
            {"options": "length = 16"},
            "generation settings differ from the baseline's: max_new_tokens 8 → 16",
        ),
        ({"scorer": 'top1", dtype = "int64'}, "scored otherwise than the baseline: "),
    ):
        suite(own, **changes)

        assert own.run("suites", *ACCURACY).ret == 1
        verdict = newest(own)
        assert verdict.outcome is Outcome.INVALID
        assert verdict.headline.startswith(headline)


LOSSY = """
[[engines]]
use = "own:Answers"
precision = "int8"
options = { wrong = 40 }
"""
AGAINST = 'accuracy = { reference = "Answers-fp32" }'


def test_another_precision_is_judged_against_the_reference_entry(own: Project) -> None:
    suite(own, engines=LOSSY, more=AGAINST)
    before = own.run("suites", "-k", "accuracy and int8")
    missing = newest(own)
    own.run("suites", "-k", "accuracy and fp32", "--mlperf-update=missing")

    after = own.run("suites", "-k", "accuracy and int8", "--mlperf-update=missing")

    assert (before.ret, missing.outcome) == (0, Outcome.NO_BASELINE)
    assert missing.notes[0] == (
        "the reference Answers-fp32 has no accuracy baseline: record it first, in Offline"
    )
    verdict = newest(own)
    assert (after.ret, verdict.outcome) == (1, Outcome.ACC_DROP)
    assert verdict.paired[0].down == 40
    assert [path.name for path in (own.path / "baselines").rglob("*.json")] == ["Answers.fp32.json"]


def test_the_first_scenario_records_and_the_others_are_judged_by_it(own: Project) -> None:
    suite(own, scenarios=SERVER + OFFLINE)

    own.run("suites", "-k", "accuracy and Offline", "--mlperf-update=missing")
    early = newest(own)
    own.run("suites", "-k", "accuracy", "--mlperf-update=missing")

    assert early.outcome is Outcome.NO_BASELINE
    assert early.notes == ("no accuracy baseline: Server records it, with --mlperf-update=missing",)
    found = accuracy_baselines.load(own.path / BASELINE)
    assert found is not None
    assert found[0].scenario == "Server"
    own.run("suites", "-k", "accuracy and Offline")
    assert newest(own).outcome is Outcome.OK


def test_replacing_keeps_the_history(own: Project) -> None:
    recorded(own)
    suite(own, options="wrong = 4")

    own.run("suites", *ACCURACY, "--mlperf-update=replace", "--mlperf-reason=smaller model")

    found = accuracy_baselines.load(own.path / BASELINE)
    assert found is not None
    assert [entry.action for entry in found[0].history] == ["record", "replace"]
    assert (found[0].history[1].old, found[0].history[1].new) == ({"top1": 100.0}, {"top1": 99.0})
    assert found[0].history[1].reason == "smaller model"


def test_scores_below_the_gate_are_never_accepted(own: Project) -> None:
    suite(own, options="wrong = 20", reference="reference = { top1 = 100.0 }")

    assert own.run("suites", *RECORD).ret == 1
    assert not (own.path / "baselines" / "accuracy").exists()


def test_dummy_weights_have_no_accuracy(own: Project) -> None:
    suite(own, options="dummy = true")

    result = own.run("suites")

    assert result.ret == 0
    assert "1 not evaluated" in last_line(result)
    assert newest(own).headline == "the weights are dummy: speed may be judged, accuracy never"
    performance = newest(own, "performance")
    assert performance.headline.endswith(", accuracy not evaluated (dummy weights)")
    assert own.run("suites", *RECORD).ret == 0
    assert not (own.path / BASELINE).exists()


def test_damaged_scores_are_an_error_before_anything_is_measured(own: Project) -> None:
    recorded(own)
    file = own.path / BASELINE
    scores = accuracy_baselines.scores_path(file)
    whole, folders = scores.read_bytes(), len(own.run_folders())
    for harm, message in (
        (lambda: scores.write_bytes(b"x"), "holds other scores than Answers.fp32.json"),
        (scores.unlink, "No such file"),
        (lambda: file.write_text("{"), "is not JSON"),
    ):
        harm()

        assert own.run("suites", *ACCURACY).ret == 1
        verdict = newest(own)
        assert verdict.outcome is Outcome.ERROR
        assert message in verdict.headline
        scores.write_bytes(whole)
    assert len(own.run_folders()) == folders


def test_a_scorer_that_crashes_is_one_error_and_its_run_is_judged_all_the_same(
    own: Project,
) -> None:
    suite(own, scorer="own:Crashes")

    result = own.run("suites")

    verdicts = own.verdicts()
    accuracy, performance = verdicts["accuracy"], verdicts["performance"]
    assert (result.ret, accuracy.outcome) == (1, Outcome.ERROR)
    assert accuracy.headline.startswith("scorer: ")
    assert "killed by SIGSEGV" in accuracy.headline
    assert performance.outcome is Outcome.NO_BASELINE
    assert performance.headline.endswith(", accuracy not checked: the scorer broke")


def test_a_scorer_that_cannot_be_built_is_told_in_its_own_words(own: Project) -> None:
    suite(own, scorer="own:Crashed")

    own.run("suites", *ACCURACY)

    headline = newest(own).headline
    assert headline.startswith("scorer: AttributeError: module 'own' has no attribute 'Crashed' (")


def test_nothing_is_recorded_that_no_scorer_vouches_for(own: Project) -> None:
    suite(own, scorer="own:Crashes")

    result = own.run("suites", "--mlperf-update=missing", "-omlperf_baseline_runs=2")

    assert result.ret == 1
    assert {verdict.outcome for verdict in own.verdicts().values()} == {Outcome.ERROR}
    assert list((own.path / "baselines").rglob("*.json")) == []


def test_a_score_that_is_no_number_is_an_error_that_names_the_sample(own: Project) -> None:
    suite(own, scorer="own:NotANumber")

    own.run("suites", *ACCURACY)

    assert newest(own).headline.endswith("the scorer gave nan as quality of sample 7")


def test_a_metric_without_scores_by_sample_has_no_paired_rule(own: Project) -> None:
    recorded(own, scorer="own:NoSamples")

    own.run("suites", *ACCURACY)

    verdict = newest(own)
    assert verdict.outcome is Outcome.NO_BASELINE
    assert verdict.headline == "the baseline has no scores by sample"

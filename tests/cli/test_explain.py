"""Test that `pytest-mlperf explain` retraces a verdict from the session and the baseline."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pytest_mlperf.bench.interleaved import ratios_of
from pytest_mlperf.bench.policy import rule_for
from pytest_mlperf.cli.explain import (
    explain_analyses,
    explain_pairs,
    interleaved_lines,
    rule_of_pair,
    thresholds,
)
from pytest_mlperf.core.measurement import RunHardware
from pytest_mlperf.core.metrics import METRICS
from pytest_mlperf.core.numbers import change, percent, times
from pytest_mlperf.core.results import CaseResult
from pytest_mlperf.core.rulings.ruling import rule_on
from pytest_mlperf.core.verdict import Confirmation, InterleavedRuns, Outcome, Verdict
from pytest_mlperf.hardware.machine import detect
from pytest_mlperf.judge.decision import Answer
from pytest_mlperf.judge.inputs import Direction
from pytest_mlperf.judge.rule_r import RuleR, Value, judge
from pytest_mlperf.stores.results import write_results
from tests.cli.lab import (
    ACCURACY,
    BASELINE,
    CASE,
    PERFORMANCE,
    SUITE,
    Lab,
    edit_cases,
    performance,
    with_runs,
)
from tests.cli.text import Say, differing, flat, one_line, page, widest
from tests.core.rulings.test_busy import run as busy_run
from tests.core.rulings.test_ruling import OFFLINE, RULE, record
from tests.reports import verdicts
from tests.reports.verdicts import result, session
from tests.stores.calibrated_here import calibrate

FINGERPRINT = """\
engine.acme N engine.engine acme engine acme:Acme options {} dataset HASH
inputs.first HASH inputs.first_16 HASH dataset.options {"samples": N} round v4.1
"""


def test_a_drop_is_retraced_run_by_run_and_look_by_look(lab: Lab, say: Say) -> None:
    """By the numbers of the rule: the bounds of a look are those that the session decided by."""
    output = say.ends(0, "explain", PERFORMANCE)
    # A run more where one of them was disturbed.
    text = re.sub(r"(TIME samples/s: N(, N)* ){4}", "ITS SESSIONS ", flat(output))
    # Whatever else ran beside it.
    text = re.sub(r"note the machine was not idle.*?(?=rule N runs)", "", text)
    # Where the baseline's first runs were slower, on a busy machine.
    text = text.replace("the first run does not count, as in the baseline: N samples/s ", "")
    assert text.startswith(flat(page("explain_drop.txt"))), text
    rest = flat(page("explain_rest.txt"))
    assert rest in text
    causes = text.partition(rest)[2].partition("Measured on and with")[0]
    # The fixed micro-benchmark of that moment may stand below it.
    assert re.match(
        r" (N\. )?engine\.acme N → N since the baseline; no other recorded fact changed ", causes
    )
    assert flat(FINGERPRINT) in text.partition("Measured on and with")[2]
    assert widest(output) <= 80
    verdict = performance(lab.upgraded).verdict
    (metric, *_) = verdict.metrics
    last = next(line for line in output.splitlines() if "drop: whole interval" in line)
    look, *bounds, _ = re.split(r" {2,}", last.strip())
    assert look == str(metric.runs) == "2"
    assert bounds == [change(x or 0.0) for x in (metric.change, metric.low, metric.high)]
    for run in verdict.runs:
        assert run.folder in output


def test_the_causes_are_found_in_the_whole_session(own_lab: Lab, say: Say) -> None:
    session_results = edit_cases(own_lab.upgraded, partial(with_runs, hardware=RunHardware()))
    (drop,) = [one for one in session_results.cases if one.verdict.kind == "performance"]
    moved = [
        other(drop, "bert", "Acme", drop.verdict),
        other(drop, "gptj", "Acme", drop.verdict),
        other(drop, "first", "other", verdicts.OK, engine="other:Other"),
    ]
    write_results(
        own_lab.upgraded, replace(session_results, cases=(*session_results.cases, *moved))
    )
    output = say.ends(0, "explain", PERFORMANCE)
    (fell,) = {abs(m.change or 0.0) for m in drop.verdict.metrics if m.outcome}
    cause_text = (
        "Likely causes, each with its evidence, compared with 3 other tests 1. "
        "engine.acme 1.0 → 2.0 since the baseline; no other recorded fact changed 2. "
        f"acme:Acme got worse in 2 of 2 other models too, by {percent(fell)}; so did 0 "
        "of 1 cases of other engines on cpu"
    )
    assert cause_text in one_line(output)
    assert widest(output) <= 80


def other(
    drop: CaseResult, workload: str, name: str, verdict: Verdict, engine: str = ""
) -> CaseResult:
    """Return the result of another case on the same machine."""
    assert drop.verdict.subject is not None
    subject = drop.verdict.subject
    if engine:
        subject = replace(subject, fingerprint={**subject.fingerprint, "engine": engine})
    case = replace(drop.verdict.case, workload=workload, engine=name)
    return replace(
        drop,
        test=drop.test.replace(CASE, case.id),
        verdict=replace(verdict, case=case, subject=subject),
    )


def test_a_baseline_that_changed_since_is_noticed(own_lab: Lab, say: Say) -> None:
    """One that was replaced gives no evidence; of 10 % more the interval is another; without it."""
    file = own_lab.path / BASELINE
    content = json.loads(file.read_text("utf-8"))
    for run_record in content["records"][0]["runs"]:
        run_record["control"] = {"copy_bytes_per_s": 2e10}
    text = json.dumps(content)
    file.write_text(text, "utf-8")
    control = {"copy_bytes_per_s": 1e10}
    edit_cases(own_lab.upgraded, partial(with_runs, hardware=RunHardware(control=control)))
    speed_note = "the machine's micro-benchmark: copy −50.0 % against the baseline"
    assert speed_note in " ".join(say("explain", PERFORMANCE)[1].split())
    file.write_text(text.replace("first baseline", "another one"), "utf-8")
    assert speed_note not in " ".join(say("explain", PERFORMANCE)[1].split())

    for old in {run["metrics"]["throughput"] for run in content["records"][0]["runs"]}:
        text = text.replace(repr(old), repr(old * 1.1))
    file.write_text(text, "utf-8")
    changed = ("The baseline has changed since the verdict, whose interval was −",)
    assert differing(say, [(("explain", PERFORMANCE), 0, changed)]) == []
    file.unlink()
    rest = (
        "2. Compared with nothing: the baseline file is not here",
        "The baseline's runs are missing, so the interim analyses cannot be repeated.",
    )
    assert differing(say, [(("explain", PERFORMANCE), 0, rest)]) == []


def test_load_widens_the_interval_that_is_explained_as_it_did_the_verdicts() -> None:
    """No change of the baseline is reported where other processes alone made the interval wide."""
    rule, baseline = replace(RULE, tolerated=0.05), record(throughput=100.0)
    for share in (0.0, 0.5):
        loaded_runs = [busy_run(share, throughput=70.0 + 0.5 * (number % 2)) for number in range(5)]
        (metric,) = rule_on(loaded_runs, baseline, OFFLINE, rule).metrics
        text = one_line("\n".join(explain_analyses(metric, loaded_runs, baseline, rule, 80)))
        assert "changed since" not in text, share


def test_other_tests_and_sessions_are_explained(
    lab: Lab, say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An accuracy test, what passed, and results from another folder.

    The baseline is looked for above the results file, where pytest's root folder is.
    """
    accuracy = (
        "Gate: top1 must reach 99.000, 99 % of the reference 100.000; reached by 1.000",
        "top1: 32 samples compared in pairs, 0 of them with another value",
        "p = 1 by the plain paired test",
    )
    passed = ("ok: worst case within the limit −30 %", "At this noise, a change above −")
    rows: list[tuple[tuple[object, ...], int, tuple[str, ...]]] = [
        (("explain", ACCURACY), 0, accuracy),
        (("explain", PERFORMANCE, "--results", lab.unchanged), 0, passed),
    ]
    assert differing(say, rows) == []
    monkeypatch.chdir(tmp_path)
    _, output = say("explain", PERFORMANCE, "--results", lab.upgraded)
    assert re.search(r"Compared with [567] runs in 4 sessions", output)


def test_a_case_is_found_by_a_part_of_its_name_in_the_named_session(lab: Lab, say: Say) -> None:
    output = say.ends(0, "explain", CASE)
    assert [line for line in output.splitlines() if line.startswith(f"{SUITE}::")] == [
        ACCURACY,
        PERFORMANCE,
    ]
    assert f"from {lab.upgraded.relative_to(lab.path)}" in output
    assert output.count("Measured on and with") == 1
    for name in ("first", "offline-acme", f"test_performance[{CASE}]"):
        output = say.ends(0, "explain", name, "--results", lab.recorded)
        assert "Recorded as the baseline, not judged" in output
        assert "samples/s: can prove changes of " in output
        assert (ACCURACY in output.splitlines()) is not name.startswith("test_performance")
    whole = say("explain", CASE, "--results", lab.recorded)
    assert say("explain", lab.recorded) == whole
    assert say("explain", lab.recorded.parent) == whole
    assert say("explain", CASE, lab.recorded.parent) == whole
    assert whole[0] == 0


def test_every_outcome_can_be_explained(here: Path, say: Say) -> None:
    for verdict in verdicts.ALL:
        write_results(Path("r.json"), session(result(verdict)))
        code, output = say("explain", verdict.case.id, "--results", "r.json")
        assert (code, f"{verdict.outcome} " in output) == (0, True), verdict
        assert widest(output) <= 80
        if verdict.kind == "performance" and not verdict.runs:
            assert "1. No run could be judged: the first lines say why." in output


def test_a_case_that_is_not_clear_is_answered_with_the_candidates(here: Path, say: Say) -> None:
    both = " resnet50-Offline-ort-fp16-H200, resnet50-Server-ort-fp16-H200\n"
    ok = "; known: resnet50-Offline-ort-fp16-H200\n"
    rows: list[tuple[str, tuple[Verdict, ...], str]] = [
        ("resnet50", (verdicts.OK, verdicts.INVALID), f"2 cases of r.json match 'resnet50':{both}"),
        ("r.json", (verdicts.OK, verdicts.INVALID), f"2 cases of r.json, name one:{both}"),
        ("", (verdicts.OK, verdicts.INVALID), f"2 cases of r.json, name one:{both}"),
        ("bert", (verdicts.OK,), f"no case 'bert'{ok}"),
        ("x::test_accuracy[resnet50]", (verdicts.OK,), "no case 'x::test_accuracy[resnet50]'"),
        ("x", (), "no results to explain; measure first: pytest suites\n"),
        ("none.json", (), "none.json: cannot be read: No such file or directory\n"),
    ]
    for case, verdicts_of_session, message in rows:
        write_results(Path("r.json"), session(*map(result, verdicts_of_session)))
        results = () if case.endswith(".json") else ("--results", "r.json")
        code, output = say("explain", case, *results)
        assert (code, output.startswith(f"pytest-mlperf: {message}")) == (2, True), output


def test_what_cannot_be_read_is_an_error_and_no_traceback(own_lab: Lab, say: Say) -> None:
    """Values that no run gives, and files that are not results."""
    edit_cases(own_lab.upgraded, partial(with_runs, metrics={"throughput": -1.0}))
    output = say.ends(2, "explain", PERFORMANCE, "--results", own_lab.upgraded)
    assert "metrics.throughput: must be at least 1e-30, not -1.0; use the results.json" in output
    for file in (own_lab.recorded, own_lab.unchanged, own_lab.upgraded):
        file.write_text("[]", "utf-8")
    output = say.ends(2, "explain", "first")
    assert output.count("left out: .mlperf/runs/") == 3


LEANING = {Answer.PASS: "ok", Answer.FAIL: "drop"}

logs = st.lists(st.floats(-0.1, 0.1), min_size=5, max_size=8)


@given(
    baseline_logs=logs,
    new_logs=st.lists(st.floats(-0.1, 0.1), min_size=2, max_size=5),
    metric=st.sampled_from(["throughput", "latency_p90"]),
    limit=st.sampled_from([0.03, 0.1, 0.5]),
)
@settings(max_examples=30)
def test_the_thresholds_are_where_the_rule_changes_its_mind(
    baseline_logs: list[float], new_logs: list[float], metric: str, limit: float
) -> None:
    """Equally noisy runs, shifted just beyond a threshold, pass or are a drop at the last look."""
    direction = METRICS[metric].direction
    rule: RuleR = rule_for("H200", max_runs=len(new_logs))
    baseline = [Value(value=math.exp(x)) for x in baseline_logs]

    def decided(shift: float) -> str | None:
        """Judge only the last look: earlier ones would often have decided already."""
        whole = [Value(value=math.exp(x + shift)) for x in new_logs]
        first = judge(baseline, whole, direction=direction, limit=limit, rule=rule)
        assume(first.runs_used == len(new_logs))
        provisional = first.outcome is Answer.PROVISIONAL
        return first.direction if provisional else LEANING.get(first.outcome)

    base = judge(
        baseline,
        [Value(value=math.exp(x)) for x in new_logs],
        direction=direction,
        limit=limit,
        rule=rule,
    )
    assume(base.runs_used == len(new_logs))
    passes, fails = thresholds(base, metric)
    better = 1e-6 if direction is Direction.HIGHER else -1e-6
    at = math.log1p(passes) - math.log1p(base.change)
    below = math.log1p(fails) - math.log1p(base.change)

    assert decided(at + better) == "ok"
    assert decided(at - better) != "ok"
    assert decided(below - better) == "drop"


def test_a_claim_is_retraced_with_the_noise_of_its_machine(here: Path) -> None:
    """The calibration is found as its session found it: from the suite."""
    (here / "suites").mkdir()
    (here / "suites/a.mlperf.toml").write_text("", "utf-8")
    calibrate(here / "baselines")
    subject = replace(verdicts.SUBJECT, identity=detect(gpus=False).identity("cpu"))
    case = replace(verdicts.CASE, accelerator="cpu")
    case_result = verdicts.result(replace(verdicts.OK, case=case, subject=subject))
    case_result = replace(case_result, test="suites/a.mlperf.toml::test_pair[a-vs-b]")
    assert rule_of_pair(case_result, [here]).prior_sd == 0.06
    assert rule_of_pair(replace(case_result, test="../a::b"), [here]) == rule_for("cpu")


def pair(*rates: float) -> Verdict:
    """Return the verdict of a pair whose runs, a first, gave these rates."""
    made = [
        replace(verdicts.run(1, throughput=rate), folder=f"runs/{'ab'[index % 2]}.{index // 2 + 1}")
        for index, rate in enumerate(rates)
    ]
    assert verdicts.PAIR_FAIL.ratio is not None
    ratio = replace(verdicts.PAIR_FAIL.ratio, pairs=len(rates) // 2)
    return replace(verdicts.PAIR_FAIL, runs=tuple(made), ratio=ratio)


def test_every_pair_is_shown_with_what_it_says() -> None:
    """A claim that stays open says so at the last pair."""
    verdict = pair(2.852, 2.593, 2.850, 2.601)
    assert verdict.ratio is not None
    printed = explain_pairs(verdict, verdict.ratio, RuleR(), 80)
    assert "\n".join(printed) + "\n" == page("explain_pair.txt")
    verdict = pair(*(1.5, 1.0, 1.51, 1.0) * 2, 1.5, 1.0)
    assert verdict.ratio is not None
    rows = [
        line
        for line in explain_pairs(verdict, verdict.ratio, RuleR(), 80)
        if line.split()[0].isdigit()
    ]
    assert [row.split("  ")[-1] for row in rows] == ["another pair"] * 4 + ["undecided"]


def test_pairs_with_another_build_are_judged_as_in_their_session() -> None:
    """The metrics of a curve share the error of its rule; the last row is the verdict's."""
    limits = {"tokens_per_second": 0.03, "tokens_per_second@4": 0.05, "tokens_per_second@16": 0.05}
    new, old = (
        [
            replace(verdicts.run(1), metrics=dict.fromkeys(limits, value * level))
            for value in (1.0, 1.02, 0.99)
        ]
        for level in (99.0, 100.0)
    )
    ratios = ratios_of(new, old, limits, RuleR())
    other = InterleavedRuns(state=Confirmation.UNDECIDED, other_runs=tuple(old))
    compared = replace(verdicts.DROP, runs=tuple(new), interleaved=other)
    for name, ratio in ratios.items():
        metric = verdicts.metric(name, Outcome.INCONCLUSIVE, now=1.0, limit=limits[name], runs=3)
        printed = interleaved_lines(compared, metric, limits, RuleR(), 100)
        (row,) = [line for line in printed if re.match(r" *3 ", line)]
        assert f"{times(ratio.low)} to {times(ratio.high)}" in row
    assert ratios["tokens_per_second@4"].high > ratios["tokens_per_second"].high
    lost = replace(compared, runs=tuple(replace(run, metrics={}) for run in new))
    assert "do not contain the runs" in interleaved_lines(lost, metric, limits, RuleR(), 100)[1]

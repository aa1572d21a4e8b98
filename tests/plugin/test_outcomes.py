"""Every outcome as a user meets it: its word, its exit code, its text."""

from __future__ import annotations

from collections import Counter
from fnmatch import fnmatch
from typing import Any

import pytest

from pytest_mlperf.core.case import Kind
from pytest_mlperf.core.reason import Key
from pytest_mlperf.core.verdict import Outcome, Verdict
from pytest_mlperf.plugin import session
from pytest_mlperf.reports.sentences import sentence
from pytest_mlperf.suite.plan import in_profile, plan_suite
from tests.plugin.project import (
    ACCURACY,
    OPTIONS,
    PERFORMANCE,
    RATE,
    SERVER,
    SUITE,
    Project,
    case,
    last_line,
    literal,
    near,
    scattered,
    section,
)

ID = "first-Offline-null-fp32-cpu"
NOT_CHECKED = ", accuracy not checked"

BROKEN = """
import os
from pathlib import Path
from pytest_mlperf.core.extension import Engine
from pytest_mlperf.builtin.null import NullEngine

class Raises(Engine):
    def __init__(self, dataset, model, precision): pass
    def submit(self, ids, indices, sink):
        raise RuntimeError("the device fell off the bus")

class Unloadable(Raises):
    def __enter__(self):
        raise MemoryError("no room for the weights")

class Dies(Raises):
    def submit(self, ids, indices, sink):
        os._exit(9)

class Lost(NullEngine):
    def __init__(self, dataset, model=None, precision=""):
        super().__init__(dataset, latency_s=0.002, batch_size=16, threads=1)

    def __enter__(self):
        if Path("tried").exists():
            raise RuntimeError("no device")
        Path("tried").touch()
        return super().__enter__()
"""


def failure(result: pytest.RunResult, workload: str = "first") -> list[str]:
    """Return the message of the failed performance test of a workload."""
    start = next(
        n
        for n, line in enumerate(result.outlines)
        if line.startswith("____") and f" test_performance[{workload}-" in line
    )
    rest = result.outlines[start + 1 :]
    return rest[: next(n for n, line in enumerate(rest) if line.startswith(("____", "===")))]


def test_ok_in_any_order_from_one_process(project: Project) -> None:
    project.suite(top1=100.0)
    project.baseline(near(RATE))

    result = project.run("-v", "-W", "error", PERFORMANCE, ACCURACY)

    assert result.ret == pytest.ExitCode.OK
    assert last_line(result) == "2 passed"
    result.stdout.fnmatch_lines_random(
        [literal(ACCURACY) + " ok *", literal(PERFORMANCE) + " ok *"]
    )
    assert len(project.run_folders()) == 1


OVERLOAD = {
    "scenarios": SERVER.replace("= 20\n", "= 1000\n").replace('"1s"', '"1ms"'),
    "options": "{ latency_s = 0.002, threads = 1 }",
}
STREAM = """
[[scenarios]]
name = "SingleStream"
target_qps = 400
min_duration = "25ms"
min_query_count = 10
"""
MISSED = "top1 100.000 < 198.000, 99 % of this suite's own reference"
TOO_FEW = "LoadGen: too few queries for its percentile (early stopping): raise min_query_count"

Suite = dict[str, Any]
Baseline = tuple[list[float], dict[str, Any]] | None
LATENCY = {"metric": "latency_p50", "target_qps": 30}
OTHER = {"cpu": "Other CPU", "cores": 96, "governor": None}

ROWS: dict[str, tuple[Suite, Baseline, Outcome, str, int | None]] = {
    "ok": ({"top1": 100.0}, (near(RATE), {}), Outcome.OK, "*; within limit −40 %", None),
    "improved": ({}, (near(RATE / 2), {}), Outcome.IMPROVED, "samples/s +*", None),
    "dropped": ({}, (near(2 * RATE), {}), Outcome.PERF_DROP, "samples/s −*; limit −40 % *", None),
    "scattered": ({}, (scattered(RATE), {}), Outcome.INCONCLUSIVE, "*", 3),
    "none": ({}, None, Outcome.NO_BASELINE, "*", 1),
    "elsewhere": (
        {},
        (near(RATE), {"identity": OTHER}),
        Outcome.NO_BASELINE,
        "samples/s: baseline of 2026-11-01 is for another machine: cores 96, here *",
        1,
    ),
    "offered": (
        {"scenarios": SERVER},
        (near(0.01), LATENCY),
        Outcome.INVALID,
        "offered rate differs: suite 20/s, baseline 30/s",
        0,
    ),
    "stream": ({"scenarios": STREAM}, None, Outcome.INVALID, "LoadGen: *", 3),
    "missed": (
        OVERLOAD,
        (near(0.0024), {**LATENCY, "target_qps": 1000}),
        Outcome.PERF_DROP,
        "latency limit missed at */s, where the baseline met it: p99 latency *",
        2,
    ),
    "missed-alone": (
        OVERLOAD,
        None,
        Outcome.GATE_FAIL,
        "latency limit missed twice at 1000/s: p99 latency *",
        2,
    ),
    "too-few": (
        {"scenarios": SERVER.replace("= 20\n", "= 2000\nmin_query_count = 100\n")},
        None,
        Outcome.INVALID,
        TOO_FEW,
        3,
    ),
    "gate": (
        {"top1": 200.0},
        (near(RATE), {}),
        Outcome.INVALID,
        f"not judged: accuracy failed, GATE FAIL {MISSED}",
        1,
    ),
}
"""By workload: suite, baseline, verdict, and number of processes (None: as many as decide)."""


def test_every_outcome_has_its_word_and_its_text(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    files = {}
    for name, (changes, baseline_fields, _, _, _) in ROWS.items():
        project.suite(f"suites/{name}.mlperf.toml", name=name, **changes)
        if baseline_fields:
            scenario = "Server" if "metric" in baseline_fields[1] else "Offline"
            of = case(workload=name, scenario=scenario)
            files[name] = project.baseline(baseline_fields[0], of=of, **baseline_fields[1])
    written = {name: file.read_bytes() for name, file in files.items()}

    project.pytester.makeini("[pytest]\nmlperf_max_runs = 3")
    result = project.run("suites", "--tb=long", "-W", "error")

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert last_line(result) == "8 failed, 3 passed, 2 no baseline, 1 inconclusive"
    cases = {
        (each.verdict.case.workload, each.verdict.kind): each for each in project.results().cases
    }
    verdicts = {name: cases[name, Kind.PERFORMANCE].verdict for name in ROWS}
    assert {
        name: (
            verdict.outcome,
            fnmatch(sentence(verdict.headline), ROWS[name][3]) or sentence(verdict.headline),
        )
        for name, verdict in verdicts.items()
    } == {name: (outcome, True) for name, (_, _, outcome, _, _) in ROWS.items()}
    lines = section(result)
    text = " ".join(" ".join(lines).split())
    for name, letter in {"none": "N", "scattered": "?", "dropped": "F"}.items():
        result.stdout.fnmatch_lines([f"suites/{name}.mlperf.toml [{letter}] *"])

    assert sentence(cases["ok", Kind.ACCURACY].verdict.headline) == (
        "top1 100.000 ≥ 99.000, 99 % of this suite's own reference"
    )
    missed = cases["gate", Kind.ACCURACY].verdict
    assert (missed.outcome, sentence(missed.headline)) == (Outcome.GATE_FAIL, MISSED)
    assert {name: file.read_bytes() for name, file in files.items()} == written
    assert "--mlperf-update=replace" in text
    assert "--mlperf-update=missing" in text
    assert "after 3 runs" in text
    assert cases["scattered", Kind.PERFORMANCE].max_runs == 3
    assert "baseline of 2026-11-01 is for another machine: cores 96, here " in text
    assert "; cpu Other CPU, here " in text

    test = "suites/offered.mlperf.toml::test_performance[offered-Server-null-fp32-cpu]"
    assert f"INVALID {test} - INVALID {ROWS['offered'][3]}" in result.outlines
    assert failure(result, "offered")[0] == f"INVALID {ROWS['offered'][3]}"

    dropped = failure(result, "dropped")
    file = "suites/dropped.mlperf.toml"
    test = f"{file}::test_performance[dropped-Offline-null-fp32-cpu]"
    assert dropped[0].startswith("PERF DROP samples/s −")
    assert dropped[1] == f'reproduce pytest "{test}"'
    assert dropped[2].startswith("likely    ")
    assert f"case      dropped-Offline-null-fp32-cpu  {file}:8" in dropped
    assert any(line.split()[:3] == ["metric", "baseline", "now"] for line in dropped)
    options = '--mlperf-update=replace --mlperf-accept-regression --mlperf-reason "..."'
    assert f'accept    pytest "{test}" {options}' in dropped
    for pattern in ("*Traceback*", "*checks.py*", "*outcomes.Failed*"):
        result.stdout.no_fnmatch_line(pattern)

    folders = Counter(folder.name.rpartition(".")[0] for folder in project.run_folders())
    processes = {name: row[4] for name, row in ROWS.items() if row[4] is not None}
    assert {name: folders[verdicts[name].case.id] for name in processes} == processes


def test_a_handicap_makes_a_drop_and_the_message_says_so(project: Project) -> None:
    project.suite()
    project.baseline(near(RATE))

    result = project.run("suites", "--mlperf-handicap", "50%")

    text = failure(result)
    assert text[0].startswith("PERF DROP samples/s −")
    assert "note      work was slowed by --mlperf-handicap 50%" in text
    assert any("the handicap of 50 %: work was slowed on purpose" in line for line in text)
    assert not [line for line in text if line.startswith("accept")]
    case_result = project.cases()["performance"]
    assert (case_result.handicap, case_result.failed) == (0.5, True)
    (metric, *_) = case_result.verdict.metrics
    assert metric.change == pytest.approx(-0.5, abs=0.15)


def test_which_outcomes_fail(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under CI, no baseline fails on named accelerators."""
    no_baseline, inconclusive = Outcome.NO_BASELINE, Outcome.INCONCLUSIVE
    rows = [
        (no_baseline, True, "", "official", "H200", True),
        (no_baseline, True, "", "official", "8xH100", True),
        (no_baseline, True, "", "official", "cpu", False),
        (no_baseline, True, "", "quick", "H200", True),
        (no_baseline, True, "", "quick", "cpu", False),
        (no_baseline, True, "skips,inconclusive", "quick", "H200", True),
        (no_baseline, True, "no:no-baseline", "quick", "H200", False),
        (no_baseline, True, "no:no-baseline,skips", "quick", "H200", False),
        (no_baseline, False, "", "quick", "H200", False),
        (no_baseline, True, "no:no-baseline", "official", "H200", False),
        (no_baseline, False, "", "official", "H200", False),
        (no_baseline, False, "no-baseline", "quick", "cpu", True),
        (no_baseline, False, "inconclusive, no-baseline", "quick", "cpu", True),
        (inconclusive, False, "", "quick", "cpu", False),
        (inconclusive, False, "inconclusive", "quick", "cpu", True),
    ]
    wrong = []
    for outcome, ci, option, profile, accelerator, fails in rows:
        monkeypatch.setenv("CI", "true" if ci else "")
        options = [f"--mlperf-fail-on={option}"] if option else []
        plugin_session = session.session_state(
            pytester.parseconfig(*options, f"--mlperf-profile={profile}")
        )
        suite = Project(pytester).suite(accelerators=[accelerator])
        (planned,) = in_profile(plan_suite(suite), plugin_session.options.profile)
        verdict = Verdict(case=planned.case, kind=Kind.PERFORMANCE, outcome=outcome, headline="")
        if plugin_session.fails(planned, verdict) is not fails:
            wrong.append((outcome, ci, option, profile, accelerator))

    assert wrong == []


def test_a_cpu_without_a_baseline_passes_under_ci_and_says_so(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    project.suite()

    result = project.run("suites")

    assert (result.ret, last_line(result)) == (pytest.ExitCode.OK, "1 no baseline")
    result.stdout.fnmatch_lines([f"{SUITE} [N] *"])
    assert (
        "nothing was compared, so this test passes. To make it fail without a baseline, set "
        "--mlperf-fail-on=no-baseline (the default with --mlperf-accelerator in CI)"
    ) in " ".join(" ".join(section(result)).split())


def test_a_pretended_accelerator_has_no_baseline_to_miss(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    plugin_session = session.session_state(pytester.parseconfig("--mlperf-pretend=H200"))
    (planned,) = plan_suite(Project(pytester).suite(accelerators=["H200"]))

    verdict = Verdict(
        case=planned.case, kind=Kind.PERFORMANCE, outcome=Outcome.NO_BASELINE, headline=""
    )

    assert not plugin_session.fails(planned, verdict)


def test_a_crash_is_an_error_that_names_layer_and_log_and_stops_no_other(
    project: Project,
) -> None:
    """A run that was INVALID before it stays: a GPU that is lost breaks the next process."""
    headlines = {
        "Raises": "engine: RuntimeError: the device fell off the bus*",
        "Unloadable": "engine: MemoryError: no room for the weights*(during load)",
        "Dies": "worker: the worker ended with exit code 9 during *",
        "Missing": "engine 'mine:Missing' cannot be imported: *",
        "Lost": "engine: RuntimeError: no device*",
    }
    project.pytester.makepyfile(mine=BROKEN)
    engines = [f'[[engines]]\nuse = "mine:{name}"\nname = "{name}"\n' for name in headlines]
    engines.append(f'[[engines]]\nuse = "null"\noptions = {OPTIONS}\n')
    project.suite(engines="".join(engines[:4] + engines[5:]))
    project.suite("suites/lost.mlperf.toml", name="lost", engines=engines[4], scenarios=STREAM)

    result = project.run("suites", "-v")

    assert (result.ret, last_line(result)) == (
        pytest.ExitCode.TESTS_FAILED,
        "5 failed, 1 no baseline",
    )
    verdicts = {each.verdict.case.engine: each.verdict for each in project.results().cases}
    assert verdicts.pop("null").outcome is Outcome.NO_BASELINE
    assert {
        name: (verdict.outcome, fnmatch(sentence(verdict.headline), headlines[name]))
        for name, verdict in verdicts.items()
    } == dict.fromkeys(headlines, (Outcome.ERROR, True))
    for name in headlines:
        result.stdout.fnmatch_lines([f"*-{name}-fp32-cpu[]] ERROR *"])
    logs = [line.split()[1] for line in result.outlines if line.startswith("log ")]
    assert len(logs) == len(headlines)
    assert all((project.path / log).is_file() for log in logs)
    invalid_runs = verdicts["Lost"].invalid_runs
    assert [run.invalid[0].key for run in invalid_runs] == [Key.EARLY_STOPPING]
    assert any("1 run INVALID, measured again: LoadGen: " in line for line in result.outlines)


def test_performance_alone_takes_the_accuracy_of_an_earlier_session_with_equal_options(
    project: Project,
) -> None:
    project.suite(top1=100.0)
    project.baseline(near(RATE))

    project.run(ACCURACY, "--mlperf-json", "0.json")
    project.run(PERFORMANCE, "--mlperf-json", "1.json")
    project.suite(top1=100.0, options="{ latency_s = 0.002, batch_size = 8, threads = 1 }")
    project.run(PERFORMANCE, "--mlperf-json", "2.json")

    assert not (project.run_folders()[-1] / "accuracy").exists()
    measured, same, other = (project.verdicts(f"{n}.json") for n in range(3))
    assert measured["accuracy"].accuracy is not None
    assert measured["accuracy"].accuracy.source == "measured"
    assert same["performance"].accuracy is not None
    assert same["performance"].accuracy.source == "stored"
    assert same["performance"].accuracy.scores == measured["accuracy"].accuracy.scores
    assert not sentence(same["performance"].headline).endswith(NOT_CHECKED)
    assert other["performance"].accuracy is None
    assert sentence(other["performance"].headline).endswith(NOT_CHECKED)


def test_a_known_failure_passes_until_its_day_and_must_then_be_removed(project: Project) -> None:
    outcomes = {
        (200.0, "2999-01-01"): Outcome.EXPECTED,
        (200.0, "2001-01-01"): Outcome.GATE_FAIL,
        (100.0, "2999-01-01"): Outcome.UNEXPECTED_PASS,
        (100.0, "2001-01-01"): Outcome.OK,
    }
    for number, (top1, until) in enumerate(outcomes):
        expected_failure = (
            f'[[expected_failures]]\nmetric = "top1"\nreason = "issue 812"\nuntil = {until}\n'
        )
        file = f"suites/known{number}.mlperf.toml"
        project.suite(file, name=f"known{number}", top1=top1, more=expected_failure)

    result = project.run("suites", "-v", "-k", "accuracy")

    assert last_line(result).startswith("2 failed, 1 passed, 4 deselected, 1 expected failure")
    verdicts = [case.verdict for case in project.results().cases]
    assert [verdict.outcome for verdict in verdicts] == list(outcomes.values())
    for verdict in verdicts:
        result.stdout.fnmatch_lines([f"*{verdict.case.id}[]] {verdict.outcome} *"])
        assert "issue 812" in " ".join([sentence(verdict.headline), *map(sentence, verdict.notes)])


def test_a_broken_run_is_never_an_expected_failure(project: Project) -> None:
    project.suite(more='[[expected_failures]]\nreason = "issue 812"\nuntil = 2999-01-01\n')
    project.breaks()

    result = project.run("suites")

    assert last_line(result) == "1 failed"
    assert project.verdicts()["performance"].outcome is Outcome.ERROR


def test_a_missing_model_skips_with_the_remedy_and_fails_if_a_skip_would_hide_it(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = ('"${NO_SUCH_MODELS}/m.onnx"', "${NO_SUCH_MODELS} is not set; set it so that *")
    file = ('"models/m.onnx"', "the model models/m.onnx is not here (looked at *")
    for (model, reason), ci, options in (
        (variable, "", ()),
        (file, "", ()),
        (variable, "true", ()),
        (file, "", ("--mlperf-fail-on=skips",)),
    ):
        monkeypatch.setenv("CI", ci)
        path = project.suite()
        text = path.read_text("utf-8").replace("dataset =", f"model = {model}\ndataset =")
        path.write_text(text, "utf-8")

        result = project.run("suites", "-rs", *options)

        expected = literal(f"{path}:6: {reason}")
        if ci or options:
            assert last_line(result) == "1 failed"
            result.stdout.fnmatch_lines(
                [f"{expected} (skips fail in CI; allow them: --mlperf-fail-on=no:skips)"]
            )
            assert len(failure(result)) == 1
        else:
            assert last_line(result) == "1 skipped"
            result.stdout.fnmatch_lines([f"SKIPPED [[]1[]] {SUITE}:9: {expected}"])
    assert not list(project.path.glob(".mlperf/runs/*/*"))


def test_efficiency_is_skipped_where_no_power_source_is_read(project: Project) -> None:
    project.suite(more='[limits]\nsamples_per_joule = { max_drop = "5%" }\n')

    result = project.run("suites", "-k", "test_efficiency", "-rs")

    assert last_line(result) == "1 skipped, 1 deselected"
    result.stdout.fnmatch_lines(
        [f"SKIPPED [[]1[]] {SUITE}:8: only a wall meter measures the energy of cpu: *"]
    )


def test_an_unknown_option_value_is_exit_4_and_a_broken_suite_exit_2(project: Project) -> None:
    path = project.suite()

    usage = project.run("suites", "--mlperf-profile=fast")
    path.write_text("schema = 2\n", "utf-8")
    broken = project.run("suites")

    assert (usage.ret, broken.ret) == (4, 2)


def test_a_required_accelerator_that_is_not_here_is_exit_3_before_any_test(
    project: Project,
) -> None:
    project.suite(accelerators=["cpu", "H200"])

    for distribution in ((), ("-n", "1")):
        result = project.run_process("suites", "--mlperf-accelerator", "H200", *distribution)

        assert result.ret == 3
        lines = [line for line in result.outlines + result.errlines if line.startswith("Exit: ")]
        (line,) = lines
        assert line.startswith(
            "Exit: mlperf: accelerator H200 is required, but not on this machine; available: cpu ("
        )
        assert "libnvidia-ml" in line
        assert not (project.path / ".mlperf").exists()


def test_power_off_leaves_efficiency_out_even_under_ci(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elsewhere under CI an efficiency that cannot be judged is a failure."""
    monkeypatch.setenv("CI", "true")
    project.suite(more='[limits]\nsamples_per_joule = { max_drop = "5%" }\n')

    missing = project.run(SUITE, "-k", "efficiency")
    left_out = project.run(SUITE, "-k", "efficiency", "-omlperf_power=off")

    missing.assert_outcomes(failed=1, deselected=1)
    left_out.assert_outcomes(skipped=1, deselected=1)
    left_out.stdout.fnmatch_lines(["*efficiency not measured: mlperf_power=off*"])

"""Every outcome as a user meets it: its word, its exit code, its text."""

from __future__ import annotations

from fnmatch import fnmatch

import pytest

from pytest_mlperf.core.reason import Key
from pytest_mlperf.core.verdict import Outcome, Verdict
from pytest_mlperf.plugin import session
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
from pytest_mlperf.core.extension import Engine

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
"""


def failure(result: pytest.RunResult) -> list[str]:
    """Return the message of the only failed test."""
    start = next(n for n, line in enumerate(result.outlines) if line.startswith("____"))
    rest = result.outlines[start + 1 :]
    return rest[: next(n for n, line in enumerate(rest) if line.startswith("==="))]


@pytest.mark.parametrize("named", [["suites"], [PERFORMANCE, ACCURACY]], ids=["file", "reversed"])
def test_ok_in_any_order_from_one_process(project: Project, named: list[str]) -> None:
    project.suite(top1=100.0)
    project.baseline(near(RATE))

    result = project.run("-v", "-W", "error", *named)

    assert result.ret == pytest.ExitCode.OK
    assert last_line(result) == "2 passed"
    result.stdout.fnmatch_lines_random(
        [literal(ACCURACY) + " ok *", literal(PERFORMANCE) + " ok *"]
    )
    assert len(project.run_folders()) == 1
    verdicts = project.verdicts()
    assert verdicts["accuracy"].headline == (
        "top1 100.000 ≥ 99.000, 99 % of this suite's own reference"
    )
    assert verdicts["performance"].headline.endswith("; inside −40 %")


def test_improved_passes_suggests_an_update_and_writes_none(project: Project) -> None:
    project.suite()
    baseline = project.baseline(near(RATE / 2))
    before = baseline.read_bytes()

    result = project.run("suites", "-v")

    result.stdout.fnmatch_lines([literal(PERFORMANCE) + " improved *"])
    assert "--mlperf-update=replace" in " ".join(section(result))
    assert last_line(result) == "1 passed"
    assert baseline.read_bytes() == before


def test_a_drop_fails_with_verdict_table_and_commands_and_no_traceback(project: Project) -> None:
    project.suite()
    project.baseline(near(2 * RATE))

    result = project.run("suites", "-v", "--tb=long")

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines([literal(PERFORMANCE) + " PERF DROP *"])
    text = failure(result)
    assert text[0].startswith("PERF DROP samples/s −")
    assert "; −40 % " in text[0]
    assert text[1] == f"case      {ID}  {SUITE}:8"
    assert any(line.split()[:3] == ["metric", "baseline", "now"] for line in text)
    assert f'reproduce pytest "{PERFORMANCE}"' in text
    accept = f'accept    pytest "{PERFORMANCE}" --mlperf-update=replace --mlperf-reason "..."'
    assert accept in text
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*checks.py*")
    result.stdout.no_fnmatch_line("*outcomes.Failed*")


def test_the_short_summary_says_word_test_and_first_line(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    project.suite(scenarios=SERVER)
    project.baseline(near(0.01), of=case(scenario="Server"), metric="latency_p50", target_qps=30)

    result = project.run("suites")

    line = "INVALID {} - INVALID offered rate differs: suite 20/s, baseline 30/s"
    assert line.format(PERFORMANCE.replace("Offline", "Server")) in result.outlines


def test_a_handicap_makes_a_drop_and_the_message_says_so(project: Project) -> None:
    project.suite()
    project.baseline(near(RATE))

    result = project.run("suites", "--mlperf-handicap", "50%")

    text = failure(result)
    assert text[0].startswith("PERF DROP samples/s −")
    assert "note      work was slowed by --mlperf-handicap 50%" in text
    assert any("the handicap of 50 %: work was slowed on purpose" in line for line in text)
    assert not [line for line in text if line.startswith("accept")]
    found = project.cases()["performance"]
    assert (found.handicap, found.failed) == (0.5, True)
    (metric, *_) = found.verdict.metrics
    assert metric.change == pytest.approx(-0.5, abs=0.15)


def test_inconclusive_is_counted_apart_and_says_what_would_decide(project: Project) -> None:
    project.suite()
    project.baseline(scattered(RATE))

    result = project.run("suites", "--mlperf-max-runs=2", "-W", "error")

    assert (result.ret, last_line(result)) == (pytest.ExitCode.OK, "1 inconclusive")
    result.stdout.fnmatch_lines([f"{SUITE} [?] *"])
    assert "after 2 runs" in " ".join(section(result))
    assert project.verdicts()["performance"].outcome is Outcome.INCONCLUSIVE
    assert project.cases()["performance"].max_runs == 2
    assert len(project.run_folders()) == 2


def test_no_baseline_is_counted_apart_and_fails_if_asked(project: Project) -> None:
    project.suite()

    passed = project.run("suites", "-W", "error")
    failed = project.run("suites", "--mlperf-fail-on=no-baseline")

    assert (passed.ret, last_line(passed)) == (pytest.ExitCode.OK, "1 no baseline")
    assert (failed.ret, last_line(failed)) == (pytest.ExitCode.TESTS_FAILED, "1 failed")
    passed.stdout.fnmatch_lines([f"{SUITE} [N] *"])
    failed.stdout.fnmatch_lines([f"{SUITE} [F] *"])
    assert f"pytest {SUITE} --mlperf-update=missing" in " ".join(section(passed))


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
        own = session.of(pytester.parseconfig(*options, f"--mlperf-profile={profile}"))
        suite = Project(pytester).suite(accelerators=[accelerator])
        (planned,) = in_profile(plan_suite(suite), own.options.profile)
        verdict = Verdict(case=planned.case, kind="performance", outcome=outcome, headline="")
        if own.fails(planned, verdict) is not fails:
            wrong.append((outcome, ci, option, profile, accelerator))

    assert wrong == []


def test_a_cpu_without_a_baseline_passes_under_ci_and_says_so(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    project.suite()

    result = project.run("suites")

    assert (result.ret, last_line(result)) == (pytest.ExitCode.OK, "1 no baseline")
    assert "nothing was compared, and it passes" in " ".join(" ".join(section(result)).split())


def test_a_pretended_accelerator_has_no_baseline_to_miss(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    own = session.of(pytester.parseconfig("--mlperf-pretend=H200"))
    (planned,) = plan_suite(Project(pytester).suite(accelerators=["H200"]))

    verdict = Verdict(
        case=planned.case, kind="performance", outcome=Outcome.NO_BASELINE, headline=""
    )

    assert not own.fails(planned, verdict)


def test_a_baseline_of_another_machine_is_none_and_the_difference_is_named(
    project: Project,
) -> None:
    project.suite()
    project.baseline(near(RATE), identity={"cpu": "Other CPU", "cores": 96, "governor": None})

    result = project.run("suites")

    assert last_line(result) == "1 no baseline"
    shown = " ".join(" ".join(section(result)).split())
    assert "baseline of 2026-11-01 applied to cores 96, here " in shown
    assert "; cpu Other CPU, here " in shown
    headline = project.verdicts()["performance"].headline
    assert headline.startswith("samples/s: baseline of 2026-11-01 applied to cores 96, here ")


def test_another_offered_rate_than_the_baselines_is_invalid_and_costs_no_measurement(
    project: Project,
) -> None:
    project.suite(scenarios=SERVER)
    project.baseline(near(0.01), of=case(scenario="Server"), metric="latency_p50", target_qps=30)

    result = project.run("suites", "-v")

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*::test_performance[[]first-Server-null-fp32-cpu[]] INVALID *"])
    assert failure(result)[0] == "INVALID offered rate differs: suite 20/s, baseline 30/s"
    assert project.run_folders() == []


def test_a_run_that_loadgen_calls_invalid_is_repeated_twice_and_then_not_judged(
    project: Project,
) -> None:
    stream = '[[scenarios]]\nname = "SingleStream"\ntarget_qps = 400\nmin_duration = "25ms"\n'
    project.suite(scenarios=stream + "min_query_count = 10\n")

    result = project.run("suites")

    assert last_line(result) == "1 failed"
    assert failure(result)[0].startswith("INVALID LoadGen: ")
    assert len(project.run_folders()) == 3


def test_an_error_does_not_hide_that_the_run_before_it_was_invalid(project: Project) -> None:
    """As of a GPU that is lost: its run is INVALID, and the next process cannot use it."""
    project.pytester.makepyfile(
        breaks="""
        from pathlib import Path
        from pytest_mlperf.engines.null import NullEngine

        class Breaks(NullEngine):
            def __enter__(self):
                if Path("tried").exists():
                    raise RuntimeError("no device")
                Path("tried").touch()
                return super().__enter__()
        """
    )
    stream = '[[scenarios]]\nname = "SingleStream"\ntarget_qps = 400\nmin_duration = "25ms"\n'
    engine = f'[[engines]]\nuse = "breaks:Breaks"\naccelerators = ["cpu"]\noptions = {OPTIONS}\n'
    project.suite(engines=engine, scenarios=stream + "min_query_count = 10\n")

    result = project.run("suites")

    verdict = project.verdicts()["performance"]
    assert verdict.outcome is Outcome.ERROR
    assert [run.invalid[0].key for run in verdict.invalid_runs] == [Key.EARLY_STOPPING]
    assert any("1 run INVALID, measured again: LoadGen: " in line for line in result.outlines)


@pytest.mark.parametrize(
    ("has_baseline", "first_line"),
    [
        (True, "PERF DROP limit missed at the rate the baseline held: p99 latency *"),
        (False, "GATE FAIL latency limit missed twice at 1000/s: p99 latency *"),
    ],
)
def test_a_latency_limit_missed_twice_is_a_verdict_not_a_defect(
    project: Project, has_baseline: bool, first_line: str
) -> None:
    overload = SERVER.replace("= 20\n", "= 1000\n").replace('"1s"', '"1ms"')
    project.suite(scenarios=overload, options="{ latency_s = 0.002, threads = 1 }")
    if has_baseline:
        server = case(scenario="Server")
        project.baseline(near(0.0024), of=server, metric="latency_p50", target_qps=1000)

    result = project.run("suites")

    assert last_line(result) == "1 failed"
    verdict = project.verdicts()["performance"]
    assert fnmatch(f"{verdict.outcome} {verdict.headline}", first_line)
    assert any(f" {verdict.outcome} " in line for line in section(result))
    assert len(project.run_folders()) == 2


def test_too_few_queries_are_not_a_missed_limit(project: Project) -> None:
    project.suite(scenarios=SERVER.replace("= 20\n", "= 2000\nmin_query_count = 100\n"))

    project.run("suites")

    verdict = project.verdicts()["performance"]
    assert verdict.outcome is Outcome.INVALID
    reason = "too few queries for its percentile (early stopping): raise min_query_count"
    assert verdict.headline == f"LoadGen: {reason}"


def test_what_breaks_is_an_error_that_names_layer_and_log(project: Project) -> None:
    headlines = {
        "Raises": "engine: RuntimeError: the device fell off the bus*",
        "Unloadable": "engine: MemoryError: no room for the weights*(during load)",
        "Dies": "worker: the worker ended with exit code 9 during *",
        "Missing": "engine 'mine:Missing' cannot be imported: *",
    }
    project.pytester.makepyfile(mine=BROKEN)
    engines = [f'[[engines]]\nuse = "mine:{name}"\nname = "{name}"\n' for name in headlines]
    project.suite(engines="".join(engines))

    result = project.run("suites", "-v")

    assert (result.ret, last_line(result)) == (pytest.ExitCode.TESTS_FAILED, "4 failed")
    assert {
        case.verdict.case.engine: (case.verdict.outcome, fnmatch(case.verdict.headline, expected))
        for case, expected in zip(project.results().cases, headlines.values(), strict=True)
    } == dict.fromkeys(headlines, (Outcome.ERROR, True))
    for name in headlines:
        result.stdout.fnmatch_lines([f"*[[]first-Offline-{name}-fp32-cpu[]] ERROR *"])
    logs = [line.split()[1] for line in result.outlines if line.startswith("log ")]
    assert len(logs) == len(headlines)
    assert all((project.path / log).is_file() for log in logs)


def test_a_case_that_breaks_does_not_stop_the_others(project: Project) -> None:
    project.pytester.makepyfile(mine=BROKEN)
    project.suite(
        engines='[[engines]]\nuse = "mine:Dies"\nname = "mine"\n'
        '[[engines]]\nuse = "null"\noptions = { latency_s = 0.002 }\n',
        top1=100.0,
    )

    result = project.run("suites")

    assert last_line(result) == "2 failed, 1 passed, 1 no baseline"
    assert len(project.run_folders()) == 2


def test_a_missed_gate_fails_and_voids_the_performance_verdict(project: Project) -> None:
    project.suite(top1=200.0)
    project.baseline(near(RATE))

    result = project.run("suites")

    assert last_line(result) == "2 failed"
    verdicts = project.verdicts()
    missed = "top1 100.000 < 198.000, 99 % of this suite's own reference"
    assert (verdicts["accuracy"].outcome, verdicts["accuracy"].headline) == (
        Outcome.GATE_FAIL,
        missed,
    )
    assert (verdicts["performance"].outcome, verdicts["performance"].headline) == (
        Outcome.INVALID,
        f"not judged: accuracy failed, GATE FAIL {missed}",
    )
    assert len(project.run_folders()) == 1


def test_performance_alone_says_that_accuracy_was_not_checked(project: Project) -> None:
    project.suite(top1=100.0)
    project.baseline(near(RATE))

    result = project.run(PERFORMANCE)

    assert last_line(result) == "1 passed"
    assert project.verdicts()["performance"].headline.endswith(NOT_CHECKED)
    (folder,) = project.run_folders()
    assert not (folder / "accuracy").exists()


def test_performance_alone_takes_the_accuracy_of_an_earlier_session_with_equal_options(
    project: Project,
) -> None:
    project.suite(top1=100.0)
    project.baseline(near(RATE))

    project.run(ACCURACY, "--mlperf-json", "0.json")
    project.run(PERFORMANCE, "--mlperf-json", "1.json")
    project.suite(top1=100.0, options="{ latency_s = 0.002, batch_size = 8, threads = 1 }")
    project.run(PERFORMANCE, "--mlperf-json", "2.json")

    measured, same, other = (project.verdicts(f"{n}.json") for n in range(3))
    assert measured["accuracy"].accuracy is not None
    assert measured["accuracy"].accuracy.source == "measured"
    assert same["performance"].accuracy is not None
    assert same["performance"].accuracy.source == "stored"
    assert same["performance"].accuracy.scores == measured["accuracy"].accuracy.scores
    assert not same["performance"].headline.endswith(NOT_CHECKED)
    assert other["performance"].accuracy is None
    assert other["performance"].headline.endswith(NOT_CHECKED)


def test_a_known_failure_passes_until_its_day_and_must_then_be_removed(project: Project) -> None:
    outcomes = {
        (200.0, "2999-01-01"): Outcome.EXPECTED,
        (200.0, "2001-01-01"): Outcome.GATE_FAIL,
        (100.0, "2999-01-01"): Outcome.UNEXPECTED_PASS,
        (100.0, "2001-01-01"): Outcome.OK,
    }
    for number, (top1, until) in enumerate(outcomes):
        known = f'[[expected_failures]]\nmetric = "top1"\nreason = "issue 812"\nuntil = {until}\n'
        file = f"suites/known{number}.mlperf.toml"
        project.suite(file, name=f"known{number}", top1=top1, more=known)

    result = project.run("suites", "-v", "-k", "accuracy")

    assert last_line(result).startswith("2 failed, 1 passed, 4 deselected, 1 expected failure")
    verdicts = [case.verdict for case in project.results().cases]
    assert [verdict.outcome for verdict in verdicts] == list(outcomes.values())
    for verdict in verdicts:
        result.stdout.fnmatch_lines([f"*{verdict.case.id}[]] {verdict.outcome} *"])
        assert "issue 812" in " ".join([verdict.headline, *verdict.notes])


def test_a_broken_run_is_never_an_expected_failure(project: Project) -> None:
    project.suite(more='[[expected_failures]]\nreason = "issue 812"\nuntil = 2999-01-01\n')
    project.breaks()

    result = project.run("suites")

    assert last_line(result) == "1 failed"
    assert project.verdicts()["performance"].outcome is Outcome.ERROR


def test_a_missing_model_skips_with_what_to_do_and_fails_where_a_skip_would_hide_it(
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
                [f"{expected} (a skip becomes a failure under CI and --mlperf-fail-on=skips)"]
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
        [f"SKIPPED [[]1[]] {SUITE}:8: cpu has no power source but a wall meter:*"]
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
            "Exit: mlperf: accelerator H200 is required and not here; here: cpu ("
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
    left_out.stdout.fnmatch_lines(["*mlperf_power=off: efficiency is left out*"])

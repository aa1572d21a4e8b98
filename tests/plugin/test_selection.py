"""Cases are chosen with pytest's own options."""

from __future__ import annotations

import pytest

from pytest_mlperf.core.case import Scenario
from pytest_mlperf.reports.sentences import sentence
from tests.plugin.project import OFFLINE, SUITE, Project, case, last_line, literal, section

BOTH = OFFLINE + '[[scenarios]]\nname = "SingleStream"\ntarget_qps = 400\n'
OFFLINE_ID = f"{SUITE}::test_performance[first-Offline-null-fp32-cpu]"
STREAM_ID = f"{SUITE}::test_performance[first-SingleStream-null-fp32-cpu]"
MODEL = ("dataset =", 'model = "not-here.onnx"\ndataset =')


def chosen(result: pytest.RunResult) -> list[str]:
    return [
        line.partition("[")[0].partition("::test_")[2] + "[" + line.partition("[")[2]
        for line in result.outlines
        if "::" in line
    ]


def test_an_expression_chooses_cases(project: Project) -> None:
    project.suite(top1=100.0, scenarios=BOTH)
    offline, stream = "first-Offline-null-fp32-cpu", "first-SingleStream-null-fp32-cpu"
    accuracy = [f"accuracy[{offline}]", f"accuracy[{stream}]"]
    performance = [f"performance[{offline}]", f"performance[{stream}]"]
    marker = (
        "mlperf(workload='first', engine='null', precision='fp32', accelerator='cpu', "
        "scenario='SingleStream', kind='accuracy')"
    )
    rows: list[tuple[tuple[str, ...], list[str]]] = [
        (("-k", "Offline"), [accuracy[0], performance[0]]),
        (("-k", "test_accuracy and not Offline"), accuracy[1:]),
        (("-m", "mlperf(scenario='Offline')"), [accuracy[0], performance[0]]),
        (("-m", "mlperf(kind='performance')"), performance),
        (("-m", marker), accuracy[1:]),
        (("-m", "mlperf(round='v4.1', kind='accuracy')"), accuracy),
        (("-m", "mlperf(round='v6.1')"), []),
        (("-m", "mlperf(scenario='Off')"), []),
        (("-m", "not mlperf"), []),
        (("--deselect", OFFLINE_ID, "-k", "performance"), performance[1:]),
    ]
    quiet = ("--collect-only", "-q", "--strict-markers")
    assert [
        (arguments, chosen(project.run("suites", *quiet, *arguments))) for arguments, _ in rows
    ] == rows
    assert chosen(project.run(STREAM_ID, *quiet)) == performance[1:]


def test_an_unknown_node_id_is_a_usage_error(project: Project) -> None:
    project.suite()

    result = project.run(f"{SUITE}::test_performance[no-such-case]")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: not found: *::test_performance*"])


def two_suites(project: Project) -> None:
    """Write a suite that is skipped, then one that breaks; neither measures."""
    skipped = project.suite("suites/a.mlperf.toml", name="skipped")
    skipped.write_text(skipped.read_text("utf-8").replace(*MODEL), "utf-8")
    project.suite("suites/b.mlperf.toml", name="broken")
    project.breaks(case(workload="broken"))


def run_order(result: pytest.RunResult) -> list[str]:
    return [line.split("[")[1].split("-")[0] for line in result.outlines if "::test_perf" in line]


def test_lf_runs_the_last_failures_and_ff_runs_them_first(project: Project) -> None:
    two_suites(project)

    first = project.run("suites", "-v", "-rN")
    last_failed = project.run("suites", "-v", "-rN", "--lf")
    failed_first = project.run("suites", "-v", "-rN", "--ff")

    assert last_line(first) == "1 failed, 1 skipped"
    assert run_order(first)[:2] == ["skipped", "broken"]
    assert last_line(last_failed) == "1 failed"
    assert run_order(failed_first)[:2] == ["broken", "skipped"]


def test_x_stops_at_a_verdict_that_fails_and_sw_goes_on_there(project: Project) -> None:
    project.suite(scenarios=BOTH)
    project.breaks()
    project.breaks(case(scenario=Scenario.SINGLE_STREAM))

    stopped = project.run("suites", "-x", "-p", "no:cacheprovider")
    results = project.results()
    first = project.run("suites", "--sw", "-v", "-rN")
    project.baseline([1.0]).unlink()
    skipped = project.suite(scenarios=BOTH)
    skipped.write_text(skipped.read_text("utf-8").replace(*MODEL), "utf-8")
    second = project.run("suites", "--sw", "-v", "-rN")

    assert last_line(stopped) == last_line(first) == "1 failed"
    assert [r.verdict.case.scenario for r in results.cases] == ["Offline"]
    first.stdout.fnmatch_lines([literal(OFFLINE_ID) + " ERROR*"])
    second.stdout.no_fnmatch_line(literal(STREAM_ID) + " PASSED*")
    second.stdout.fnmatch_lines([literal(OFFLINE_ID) + " SKIPPED*", literal(STREAM_ID) + " ERROR*"])


def test_cases_on_an_accelerator_that_is_not_here_are_deselected_with_one_notice(
    project: Project,
) -> None:
    project.suite(top1=100.0, accelerators=["cpu", "H200", "8xH100"])
    project.suite("suites/b.mlperf.toml", name="b", accelerators=["H200"])

    for order in ((), ("--ff",), ("--nf",)):
        result = project.run("suites", "--collect-only", "-q", *order)

        assert len(chosen(result)) == 2
        output = " ".join(section(result))
        absent = "5 tests deselected, accelerator not here: 8xH100 (2), H200 (3); here: cpu ("
        assert output.startswith(absent)
        assert output.count("deselected") == 1
        assert "2/7 tests collected (5 deselected)" in result.outlines[-1]

    # Nothing left to run is not a success.
    nothing = project.run("suites/b.mlperf.toml")

    assert nothing.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    deselected = "1 test deselected, accelerator not here: H200 (1); here: cpu ("
    assert " ".join(section(nothing)).startswith(deselected)


def test_a_workload_without_a_score_is_noted_after_collection_in_plan_and_in_the_result(
    project: Project,
) -> None:
    path = project.suite(name="e2e-rag-qna")
    path.write_text(path.read_text("utf-8").replace('"v4.1"', '"v6.1"'), "utf-8")
    gap = (
        "performance only: there is no scorer for e2e-rag-qna of v6.1, "
        "which MLPerf gates by accuracy"
    )

    collected = project.run("suites", "--collect-only")
    planned = project.run("suites", "--mlperf-plan")
    project.run("suites")

    assert f"1 case: {gap}" in " ".join(collected.outlines)
    assert f"1 case: {gap}" in " ".join(section(planned))
    (note,) = (
        n for n in map(sentence, project.verdicts()["performance"].notes) if n.startswith(gap)
    )
    assert note.endswith('add your own: scorer = { use = "package.module:name" }')

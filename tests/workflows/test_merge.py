"""The last job of gpu.yml: one verdict of all machines, and nothing planned is missing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.core.results import CaseResult
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.stores.results import read_results, write_results
from tests.cli.test_merge import plan
from tests.reports.verdicts import CASE, DROP, OK, result, session
from tests.workflows.github import Runner, workflow

pytestmark = pytest.mark.process

GPU = workflow("gpu")
STEPS = [GPU.script("merge", name) for name in ("Merge", "Say what was found")]
VERDICT = GPU.script("merge", "Verdict")

A, B, C = (replace(CASE, accelerator=name) for name in ("B200", "GH200", "H200"))
FINE_A, FINE_B, FINE_C = (result(replace(OK, case=case)) for case in (A, B, C))
FELL_C = result(replace(DROP, case=C))

HOSTILE = result(
    replace(
        OK,
        case=C,
        outcome=Outcome.ERROR,
        headline="::add-mask::x\n::error::y <img src=x onerror=alert(1)> @team $(touch pwned)",
    ),
    failed=True,
)


pytest.importorskip("jinja2", reason="the HTML report needs pytest-mlperf[html]")
pytest.importorskip("vl_convert", reason="the HTML report needs pytest-mlperf[html]")


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    """Return the job after its downloads: the plan of three machines, and no part yet."""
    fake_runner = Runner(tmp_path)
    fake_runner.scripts_of_ours()
    plan(fake_runner.workspace / "merged/plan.json", FINE_A, FINE_B, FINE_C)
    return fake_runner


def part(runner: Runner, case_result: CaseResult) -> None:
    name = f"mlperf-{case_result.verdict.case.accelerator}-rn"
    write_results(runner.workspace / "parts" / name / "results.json", session(case_result))


def merged(runner: Runner) -> tuple[int, str]:
    """Run the job; return the exit code that decides, and the output."""
    code, output = 0, ""
    for script in STEPS:
        done = runner.run(script)
        code, output = code or done.returncode, output + done.stdout + done.stderr
    assert code == 0, output
    done = runner.run(VERDICT, CODE=runner.outputs()["exit-code"])
    return done.returncode, output


def test_three_machines_that_found_nothing_pass(runner: Runner) -> None:
    for case_result in (FINE_A, FINE_B, FINE_C):
        part(runner, case_result)
        case = case_result.verdict.case
        folder = f"parts/mlperf-{case.accelerator}-rn/runs/20261120-ab12/{case.id}.1/performance"
        (runner.workspace / folder).mkdir(parents=True)

    code, output = merged(runner)

    assert code == 0
    assert "::error" not in output
    run_folders = (runner.workspace / "page").glob("runs/20261120-ab12/*/performance")
    assert {path.parent.name.partition(".")[0] for path in run_folders} == {A.id, B.id, C.id}
    assert runner.summary().startswith("## mlperf: no drop proven in 3 tests\n")
    names = {path.name for path in (runner.workspace / "merged").iterdir()}
    assert names == {"plan.json", "results.json", "junit.xml", "report.html"}
    page = (runner.workspace / "merged" / "report.html").read_text("utf-8")
    assert page.lower().startswith("<!doctype html>")
    assert len(read_results(runner.workspace / "merged" / "results.json").cases) == 3


def test_an_invalid_results_file_of_a_part_fails(runner: Runner) -> None:
    part(runner, FINE_A)
    bad = runner.workspace / "parts" / "mlperf-H200-rn" / "results.json"
    bad.parent.mkdir()
    for content, message in (
        ("{", "not a results file"),
        ('{"schema": 99}', "written by a newer pytest-mlperf"),
        ("[" * 100_000, "not a results file"),
        ('{"schema": 1, "cases": [{"__reduce__": "os.system"}]}', "not a results file"),
    ):
        bad.write_text(content, "utf-8")

        done = runner.run(STEPS[0])

        assert (done.returncode, runner.outputs()) == (0, {"exit-code": "2"})
        assert message in done.stderr
        assert not (runner.workspace / "merged" / "results.json").exists()
    runner.ends(3, VERDICT, CODE="3")


def test_a_machine_that_fails_or_gave_nothing_back_is_the_verdict_of_all(runner: Runner) -> None:
    """Texts of a machine never act as commands or markup."""
    drop = f"::error file=suites/rn.mlperf.toml,line=14,title={C.id}::PERF DROP"
    for parts, message, summary in (
        ([], "::error::no machine gave a result", "**mlperf: failed: no result**"),
        (
            [FINE_A, FINE_B],
            f"::error::1 planned test without a result; the first: {FINE_C.test}",
            "## mlperf: failed: 1 planned test without a result\n",
        ),
        ([FELL_C], drop, "## mlperf: failed: 1 PERF DROP\n"),
        ([HOSTILE], "::error file=suites/rn.mlperf.toml,line=14,", "## mlperf: failed: 1 ERROR\n"),
    ):
        for case_result in parts:
            part(runner, case_result)
        (runner.folder / "summary").unlink(missing_ok=True)

        code, output = merged(runner)

        commands = [line for line in output.splitlines() if line.startswith("::")]
        assert code == 1
        assert [line[: len(message)] for line in commands][-1:] == [message]
        assert len(commands) == 1 or parts in ([], [FINE_A, FINE_B])
        assert runner.summary().startswith(summary)
        assert [text for text in ("<img", "@team") if text in runner.summary()] == []
        if parts == [FINE_A, FINE_B]:
            assert "INCOMPLETE: 1 of 3 planned tests have no result" in output
            assert FINE_C.test in runner.summary()
    assert list(runner.folder.rglob("pwned")) == []


def test_one_artifact_alone_has_no_folder_and_a_name_is_a_word(runner: Runner) -> None:
    """A plan of one job, as the download unpacks it; an artifact that is named like a command."""
    part(runner, FELL_C)
    parts = runner.workspace / "parts"
    (parts / "mlperf-H200-rn").rename(runner.folder / "alone")
    parts.rmdir()
    (runner.folder / "alone").rename(parts)

    done = runner.ends(0, STEPS[0])
    assert runner.outputs() == {"exit-code": "1"}
    assert "PERF DROP" in done.stdout
    assert "INCOMPLETE: 2 of 3" in done.stdout

    (parts / "results.json").unlink()
    for case_result in (FINE_A, FINE_B, FINE_C):
        part(runner, case_result)
    (parts / "mlperf-H200-rn").rename(parts / "-o $(touch pwned); x")

    done = runner.run(STEPS[0])

    assert runner.outputs() == {"exit-code": "0"}
    assert list(runner.folder.rglob("pwned")) == []


def test_results_are_merged_by_the_branchs_code_even_when_machines_fail() -> None:
    """And a run that is started again finds the artifact of its first merger among all others."""
    job: dict[str, Any] = GPU.jobs["merge"]
    taken = [step["with"]["pattern"] for step in job["steps"] if "pattern" in step.get("with", {})]
    left = [step["with"]["name"] for step in job["steps"] if "upload" in str(step.get("uses"))]

    assert job["needs"] == ["plan", "run"]
    assert job["if"].startswith("always()")
    assert "VERDICT" not in job["steps"][-1].get("env", {})
    assert job["steps"][-1]["name"] == "Verdict"
    assert (taken, left) == (["mlperf-*"], ["merged-results"])

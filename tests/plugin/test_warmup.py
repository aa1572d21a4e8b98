"""Test that a session's first run on an accelerator is warmed up, or carries a note."""

from __future__ import annotations

from tests.plugin.project import Project


def test_a_warm_up_does_not_count_and_a_first_run_without_one_is_noted(project: Project) -> None:
    """The record keeps which it was; a later session that does otherwise shows it as changed."""
    suite = project.suite()
    recorded = project.run(
        suite,
        "-omlperf_warmup=always",
        "--mlperf-update=missing",
        "-omlperf_baseline_runs=2",
    )

    assert recorded.ret == 0
    names = [folder.name for folder in project.run_folders()]
    case = "first-Offline-null-fp32-cpu"
    assert names == [f"{case}.warm-up.1", f"{case}.1", f"{case}.2"]
    assert [run.warmed for run in project.recorded().runs] == [True, True]
    (file,) = project.path.glob(".mlperf/runs/*/results.json")
    file.unlink()

    project.run(suite, "-omlperf_warmup=never", "--mlperf-max-runs=2")

    (case_result,) = project.results().cases
    assert [run.hardware.warmed for run in case_result.verdict.runs] == [
        False,
        *[True] * (len(case_result.verdict.runs) - 1),
    ]
    assert (
        "machine.first_run after other tests → at session start"
        in case_result.verdict.baseline.changed
    )

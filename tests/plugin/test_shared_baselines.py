"""Two suites never share a baseline without knowing."""

from __future__ import annotations

import re

import pytest

from tests.plugin.project import Project


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_one_case_in_two_suites_is_an_error_of_the_second(
    project: Project, options: tuple[str, ...]
) -> None:
    """Both files and the case are named; without xdist nothing runs, as with any such error."""
    project.suite("suites/a.mlperf.toml")
    project.suite("suites/b.mlperf.toml")

    run = project.run_process if options else project.run
    done = run("suites", *options)

    text = done.stdout.str()
    assert re.search(r"b\.mlperf\.toml:\d+: first-Offline-null-fp32-cpu is described by", text)
    assert "a.mlperf.toml too, and both would share one baseline" in text
    assert done.ret != 0
    assert len(project.run_folders()) == (1 if options else 0)


def test_separate_baseline_folders_keep_equal_cases_apart(project: Project) -> None:
    """The nearest `baselines/` above each suite decides."""
    for name in ("x", "y"):
        (project.path / name / "baselines").mkdir(parents=True)
        project.suite(f"{name}/s.mlperf.toml")

    done = project.run("x", "y", "--mlperf-plan")

    assert done.ret == 0

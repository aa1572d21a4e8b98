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
    assert re.search(r"b\.mlperf\.toml:\d+: first-Offline-null-fp32-cpu is also in", text)
    assert "a.mlperf.toml, and both would share one baseline" in text
    assert done.ret != 0
    assert len(project.run_folders()) == (1 if options else 0)


def test_separate_baseline_folders_keep_equal_cases_apart(project: Project) -> None:
    """The nearest `baselines/` above each suite decides."""
    for name in ("x", "y"):
        (project.path / name / "baselines").mkdir(parents=True)
        project.suite(f"{name}/s.mlperf.toml")

    done = project.run("x", "y", "--mlperf-plan")

    assert done.ret == 0


TWO_ENGINES = """
[[engines]]
use = "null"
name = "Fast"

[[engines]]
use = "null"
name = "fast"
"""


def test_cases_whose_files_differ_by_case_alone_are_an_error_on_every_system(
    project: Project,
) -> None:
    """In one suite or in two, before anything is measured; benchmarks too."""
    project.suite("one/s.mlperf.toml", engines=TWO_ENGINES)
    project.suite("two/a.mlperf.toml", name="Words")
    project.suite("two/b.mlperf.toml", name="words")
    benchmarks = "def test_Fast(benchmark):\n    benchmark(len, [])\n"
    (project.path / "test_bench.py").write_text(benchmarks + benchmarks.replace("Fast", "fast"))

    for arguments, names in (
        (("one",), "first-Offline-fast-fp32-cpu and first-Offline-Fast-fp32-cpu of "),
        (("two",), "words-Offline-null-fp32-cpu and Words-Offline-null-fp32-cpu of "),
    ):
        done = project.run(*arguments)
        text = " ".join(done.stdout.str().split())
        assert names in text
        assert "differ only in upper and lower case, and would share one baseline file" in text
        assert done.ret != 0
    judged = project.run("test_bench.py", "--mlperf-judge-benchmarks")
    text = judged.stdout.str() + judged.stderr.str()
    assert "test_fast and test_bench.py::test_Fast would share a baseline; rename one" in text
    assert project.run_folders() == []

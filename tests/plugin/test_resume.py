"""A session that was interrupted goes on; what sessions write names no place of the machine."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from pytest_mlperf.core.results import Results
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.stores.journal import JOURNAL_FILE
from pytest_mlperf.stores.results import read_results
from tests.plugin.project import OPTIONS, SUITE, Project, newest_results

TWO = "\n".join(
    f'[[engines]]\nuse = "null"\nname = "{name}"\naccelerators = ["cpu"]\noptions = {OPTIONS}\n'
    for name in ("one", "two")
)

PLAIN = ("-p", "no:benchmark")

STOPS = """
from pathlib import Path

def pytest_runtest_setup(item):
    if "two" in item.nodeid and Path("stop").exists():
        raise KeyboardInterrupt
"""


@pytest.fixture
def interrupted(project: Project) -> Project:
    """Return a project whose session was stopped before the second of its two cases."""
    project.suite(engines=TWO)
    project.pytester.makeconftest(STOPS)
    (project.path / "stop").touch()
    result = project.run_process("suites", *PLAIN)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(
        ["interrupted; to continue, repeat the command with --mlperf-resume"]
    )
    (project.path / "stop").unlink()
    return project


def last_results(project: Project) -> Results:
    return read_results(newest_results(project.path))


def test_decided_cases_are_reported_and_not_measured_again(
    interrupted: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies that setuptools brings into Python's path do not count as other packages.

    They are imported in one session and not in the other. Another suite or another option
    is another session.
    """
    (first,) = interrupted.path.glob(f".mlperf/runs/*/{JOURNAL_FILE}")

    refused = interrupted.run("suites", *PLAIN, "--mlperf-resume", "--mlperf-max-runs=3")
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    refused.stderr.fnmatch_lines(
        [f"*session {first.parent.name} cannot be resumed: --mlperf-max-runs was 5, is 3; *"]
    )

    suite = interrupted.path / SUITE
    text = suite.read_text("utf-8")
    suite.write_text(f"{text}# changed\n", "utf-8")
    refused = interrupted.run("suites", *PLAIN, "--mlperf-resume")
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    refused.stderr.fnmatch_lines(["*cannot be resumed: suites/first.mlperf.toml was changed; *"])
    suite.write_text(text, "utf-8")

    for name in ("numpy", "vendored"):
        about = tmp_path / "_vendor" / f"{name}-0.1.dist-info" / "METADATA"
        about.parent.mkdir(parents=True)
        about.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n", "utf-8")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "_vendor")])
    result = interrupted.run("suites", *PLAIN, "--mlperf-resume")

    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines([f"continues interrupted session {first.parent.name}"])
    results = last_results(interrupted)
    first_case, two = results.cases
    assert results.resumes == first.parent.name
    assert first_case.verdict.outcome is two.verdict.outcome is Outcome.NO_BASELINE
    assert [
        run.session == first.parent.name for run in (*first_case.verdict.runs, *two.verdict.runs)
    ] == [
        True,
        False,
    ]
    assert not list(interrupted.path.glob(f".mlperf/runs/*/{JOURNAL_FILE}"))
    again = interrupted.run("suites", *PLAIN, "--mlperf-resume")
    again.stderr.fnmatch_lines(["*--mlperf-resume: no interrupted session in **"])


def test_workers_of_xdist_know_the_decided_cases(interrupted: Project) -> None:
    result = interrupted.run_process("suites", "-n2", *PLAIN, "--mlperf-resume")

    assert result.ret == pytest.ExitCode.OK
    sessions = {run.session for one in last_results(interrupted).cases for run in one.verdict.runs}
    assert len(sessions) == 2


ABSOLUTE = re.compile(r"(?<![\w.~…/:<\\-])/(?:home|root|tmp|usr|opt|srv|work|var|Users)\b[^\s]*")


def test_nothing_that_is_stored_names_a_place_of_this_machine(
    project: Project, tmp_path: Path
) -> None:
    """Also where runs and baselines lie outside the project, and what fails quotes its files."""
    outside = tmp_path / "outside"
    project.suite(top1=100.0)
    broken = case_that_quotes(project)
    reports = ("html=page.html", "markdown=page.md", "junit=ours.xml")
    result = project.run(
        *(
            "suites",
            broken,
            "-p",
            "no:benchmark",
            "--mlperf-update=missing",
            "--mlperf-json=r.json",
        ),
        *(f"--mlperf-report={one}" for one in reports),
        *(f"--mlperf-runs-dir={outside / 'runs'}", f"--mlperf-baselines={outside / 'baselines'}"),
        *("--junit-xml=pytests.xml", "-omlperf_baseline_runs=5"),
    )
    assert result.ret == pytest.ExitCode.TESTS_FAILED, result.stdout.str()

    written = [
        *project.path.glob("*.json"),
        *project.path.glob("page.*"),
        project.path / "ours.xml",
        *outside.glob("baselines/**/*.json"),
        *outside.glob("runs/accuracy/*.json"),
        *outside.glob("runs/runs/*/results.json"),
    ]

    assert len(written) >= 8
    for file in written:
        text = file.read_text("utf-8")
        assert str(project.path) not in text, file
        assert str(tmp_path) not in text, file
        assert not ABSOLUTE.findall(text), file


def case_that_quotes(project: Project) -> Path:
    """Write a Python test whose engine quotes its own path, and one of the system's."""
    project.pytester.makepyfile(
        quoting=(
            "import json\nfrom pytest_mlperf.core.extension import Engine\n"
            "class Quotes(Engine):\n    def __init__(self, dataset, model, precision):\n"
            "        raise ValueError(f'{__file__} and {json.__file__} are odd')\n"
        )
    )
    return project.suite(
        "suites/c.mlperf.toml", name="quotes", engines='[[engines]]\nuse = "quoting:Quotes"\n'
    )

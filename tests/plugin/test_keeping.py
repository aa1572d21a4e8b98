"""What a session keeps at its end is written each by itself."""

from __future__ import annotations

import contextlib
import importlib
import sys
from pathlib import Path

import pytest

from pytest_mlperf.core.results import Suspect
from pytest_mlperf.plugin.options import read_options
from pytest_mlperf.stores import foreign, suspects
from pytest_mlperf.stores.atomic import WriteMessages
from pytest_mlperf.stores.results import read_results
from tests.plugin.project import RATE, Project, near
from tests.plugin.simulated import null_engine, simulate

# pytester forgets what a run imported: what is slow, or cannot be imported twice, stays here.
with contextlib.suppress(ImportError):
    importlib.import_module("jinja2")
    importlib.import_module("vl_convert")

ONE = Suspect(test="a", metrics=("throughput",), date="2026-11-22", profile="quick", identity={})


def test_one_that_fails_keeps_no_other_from_being_written(tmp_path: Path) -> None:
    keeping = WriteMessages()
    (tmp_path / "folder").mkdir()

    def breaks() -> None:
        raise UnicodeError("odd \x1b[2J")

    kept = [
        keeping.try_write(
            "the suspects", lambda: suspects.update(tmp_path / "folder", lambda _: [ONE])
        ),
        keeping.try_write("the results", breaks, "results: never"),
        keeping.try_write(
            "the results", lambda: suspects.update(tmp_path / "file", lambda _: [ONE]), "results: f"
        ),
    ]

    assert kept == [False, False, True]
    assert keeping.lines == [
        f"ERROR {tmp_path}/folder: the suspects cannot be written: Is a directory",
        "ERROR the results could not be written: UnicodeError: odd \\x1b[2J; please report this",
        "results: f",
    ]


def test_a_session_that_fails_writes_every_report_that_was_asked_for(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Into folders that are not there yet, and each with the test that failed."""
    simulate(monkeypatch, null_engine(*near(RATE)))
    project.suite()
    project.baseline(near(RATE))
    reports = (
        "html=out/page.html",
        "markdown=out/summary.md",
        "junit=mlperf.xml",
        "csv=out/all.csv",
    )

    result = project.run(
        "suites", "--mlperf-handicap=60%", *(f"--mlperf-report={one}" for one in reports)
    )

    assert result.ret == 1
    result.stdout.fnmatch_lines(["html: out/page.html", "markdown: out/summary.md"])
    for report in reports:
        text = (project.path / report.partition("=")[2]).read_text("utf-8")
        assert "PERF DROP" in text
    page = (project.path / "out/page.html").read_text("utf-8")
    assert '"plot":"latency"' in page or '"plot":"history"' in page  # baselines were read


def test_results_too_large_to_be_read_are_written_all_the_same(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are nowhere else; a store, which could not give them back, refuses them."""
    simulate(monkeypatch, null_engine(*near(RATE)))
    project.suite()
    project.baseline(near(RATE))
    monkeypatch.setattr(foreign, "MAX_FILE_BYTES", 1024)

    result = project.run("suites", "--mlperf-json=out.json", "--mlperf-store=s.db")

    size = (project.path / "out.json").stat().st_size
    reason = f"{size:,} bytes; at most 1 KiB can be read"
    result.stdout.fnmatch_lines(
        [
            f"WARNING out.json is complete, but commands will not read it: {reason}; measure "
            "fewer*",
            "results: out.json",
            "store: results not sent: s.db: session * is not stored: *",
        ]
    )
    assert result.ret == 0
    monkeypatch.undo()
    assert len(read_results(project.path / "out.json").cases) == 1


def test_a_file_that_cannot_be_written_costs_no_other_and_no_results(project: Project) -> None:
    project.suite()
    for name in ("folder.md", "folder.json"):
        (project.path / name).mkdir()
    options = ("json=folder.json", "report=markdown=folder.md", "report=csv=all.csv")

    result = project.run("suites", *(f"--mlperf-{option}" for option in options))

    assert result.ret == 3
    assert len(project.results().cases) == 1
    assert (project.path / "all.csv").read_text("utf-8").count("\n") > 1
    unwritten = "ERROR *folder.json: the results cannot be written: Is a directory*"
    result.stdout.fnmatch_lines([unwritten])
    report = "ERROR *folder.md cannot be written: Is a directory"
    result.stdout.fnmatch_lines([report, "csv: all.csv"])


def test_a_session_that_measured_nothing_has_its_report_and_a_plan_has_none(
    project: Project,
) -> None:
    """As `--html` and `--junitxml` have it: a CI that uploads the file does not fail for it."""
    project.suite(accelerators=["H200"])

    reports = ("--mlperf-report=html=page.html", "--mlperf-report=text=all.txt")
    result = project.run("suites", *reports)
    project.suite()
    plan = project.run("suites", "--mlperf-plan", "--mlperf-report=csv=all.csv")

    assert result.ret == 5
    assert "<html" in (project.path / "page.html").read_text("utf-8")
    assert (project.path / "all.txt").exists()
    assert "csv:" not in plan.stdout.str()
    assert not (project.path / "all.csv").exists()


def test_an_impossible_report_is_refused_before_anything_is_measured(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.suite()
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    rows = [
        (["htlm=x.html"], "'htlm=x.html' is not *did you mean 'html'*"),
        (["html"], "'html' is not FORMAT=FILE with one of annotations, comment, *"),
        (["text=a", "csv=./a"], "text and csv have the same file *"),
        (["html=page.html"], "* pip install 'pytest-mlperf[[]html[]]'*"),
    ]
    for reports, expected in rows:
        result = project.run("suites", *(f"--mlperf-report={report}" for report in reports))

        assert result.ret == 4
        result.stderr.fnmatch_lines([f"*--mlperf-report: {expected}"])
    assert not (project.path / ".mlperf").exists()


def test_an_ini_file_may_ask_for_reports(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmlperf_report =\n    csv=out/all.csv\n    markdown=b.md\n")

    by_ini = read_options(pytester.parseconfig()).report
    by_option = read_options(pytester.parseconfig("--mlperf-report", "json=c.json")).report

    assert by_ini == (
        ("csv", pytester.path / "out/all.csv"),
        ("markdown", pytester.path / "b.md"),
    )
    assert by_option == (("json", pytester.path / "c.json"),)

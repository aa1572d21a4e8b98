"""Report formats of another package: whatever one of them does, it spoils no other report."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_mlperf import registry
from pytest_mlperf.cli import main
from pytest_mlperf.reports.formats import formats
from pytest_mlperf.stores.results import write_results
from tests.plugin.project import RATE, Project, near
from tests.plugin.simulated import null_engine, simulate
from tests.reports.verdicts import OK, result, session

MODULES = {
    "__init__": "",
    "fine": """
from pytest_mlperf.extension import Format
print("loading")
FINE = Format(module="acme.fine")
NONE = Format(module="acme.none")
ENDING = Format(module="acme.ending")
FAILING = Format(module="acme.failing")
MISSING = Format(module="acme.missing")
OTHER = "no format"
def report(session):
    print("reporting")
    return f"{len(session.results.cases)} cases\\n"
""",
    "none": "def report(session): pass\n",
    "ending": "raise SystemExit(5)\n",
    "failing": "def report(session): return 1 / len(session.absent)\n",
    "broken": "print('half')\nraise RuntimeError('no licence')\n",
}

ENTRIES = """\
[pytest_mlperf.formats]
fine = acme.fine:FINE
none = acme.fine:NONE
ending = acme.fine:ENDING
failing = acme.fine:FAILING
missing = acme.fine:MISSING
other = acme.fine:OTHER
broken = acme.broken:BROKEN
csv = acme.fine:FINE
"""

FAULTS = {
    "none": "cannot be used: TypeError: report returns no str",
    "ending": "cannot be used: SystemExit: 5",
    "failing": "cannot be used: ZeroDivisionError: division by zero",
    "missing": "cannot be used: ModuleNotFoundError: No module named 'acme.missing'",
    "other": "cannot be loaded: it is no Format",
    "broken": "cannot be loaded: no licence",
}
"""What is said of each format, after its name and its distribution."""


@pytest.fixture
def acme(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("acme")
    (folder / "acme").mkdir()
    for name, text in MODULES.items():
        (folder / "acme" / f"{name}.py").write_text(text, "utf-8")
    about = folder / "acme_formats-1.2.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-formats\nVersion: 1.2\n")
    (about / "entry_points.txt").write_text(ENTRIES)
    monkeypatch.syspath_prepend(folder)
    registry.registered.cache_clear()
    registry.all_registered.cache_clear()
    formats.cache_clear()
    yield
    monkeypatch.undo()
    registry.registered.cache_clear()
    registry.all_registered.cache_clear()
    formats.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "acme"]:
        del sys.modules[name]


@pytest.mark.usefixtures("acme")
def test_a_fault_of_a_format_is_one_line_and_its_prints_stay_out_of_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its distribution is named; a name of ours stays ours."""
    monkeypatch.chdir(tmp_path)
    write_results(Path("r.json"), session(result(OK)))

    assert main(["report", "r.json", "--format", "fine"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "1 cases\n"
    assert captured.err.split() == ["loading", "half", "reporting"]
    for form, fault in FAULTS.items():
        assert main(["report", "r.json", "--format", form]) == 3
        captured = capsys.readouterr()
        line = f"pytest-mlperf: format {form} (acme-formats 1.2) {fault}"
        assert (captured.out, captured.err.splitlines()[-1]) == ("", line)
        assert "Traceback" not in captured.err
    assert main(["report", "r.json", "--format", "csv"]) == 0
    assert capsys.readouterr().out.startswith("test,case,")
    assert formats()["csv"].module == "pytest_mlperf.addons.exports.csv_table"


@pytest.mark.usefixtures("acme")
def test_a_format_that_fails_in_a_session_costs_no_other_report(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that cannot be loaded is refused before anything is measured."""
    simulate(monkeypatch, null_engine(*near(RATE)))
    project.suite()
    reports = ("failing=failing.txt", "ending=ending.txt", "fine=fine.txt", "csv=all.csv")

    ran = project.run("suites", *(f"--mlperf-report={report}" for report in reports))
    refused = project.run("suites", "--mlperf-report=broken=x")

    assert ran.ret == 3
    ran.stdout.fnmatch_lines(
        [
            f"ERROR format failing (acme-formats 1.2) {FAULTS['failing']}",
            f"ERROR format ending (acme-formats 1.2) {FAULTS['ending']}",
            "fine: fine.txt",
            "csv: all.csv",
        ]
    )
    assert "reporting" not in ran.stdout.str()
    assert "Traceback" not in ran.stdout.str() + ran.stderr.str()
    assert (project.path / "fine.txt").read_text("utf-8") == "1 cases\n"
    assert (project.path / "all.csv").read_text("utf-8").count("\n") > 1
    assert refused.ret == 4
    fault = f"format broken (acme-formats 1.2) {FAULTS['broken']}"
    refused.stderr.fnmatch_lines([f"*--mlperf-report: {fault}"])

"""`pytest-mlperf report`: the same session in every form, also in those of other packages."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_mlperf.reports.terminal import text
from pytest_mlperf.stores.results import read_results, write_results
from tests.cli.lab import Lab
from tests.cli.text import Say, differing
from tests.reports import verdicts
from tests.reports.verdicts import result, run, session


def test_a_report_is_the_summary_or_the_file(lab: Lab, say: Say, tmp_path: Path) -> None:
    """With foreign text escaped, or a comment with links to the run and the page."""
    output = say.ends(0, "report", lab.upgraded)
    assert output.splitlines() == text.summary(read_results(lab.upgraded), 80, colour=False)
    assert "PERF DROP  samples/s" in output
    assert say("report", lab.upgraded, "--format", "json") == (0, lab.upgraded.read_text("utf-8"))
    file = tmp_path / "new" / "r.txt"
    assert say("report", lab.upgraded, "-o", file) == (0, f"wrote {file}\n")
    assert file.read_text("utf-8") == say("report", lab.upgraded)[1]
    links = ("--run-url", "https://ci.example/run/7", "--report-url", "https://ci.example/page")
    _, output = say("report", lab.unchanged, "--format", "comment", *links)
    assert "https://ci.example/run/7" in output
    assert "https://ci.example/page" in output
    forged = replace(verdicts.ERROR, headline="engine: \x1b[2J\x1b[32mall ok")
    write_results(tmp_path / "r.json", session(result(forged)))
    _, output = say("report", tmp_path / "r.json")
    assert "\x1b" not in output
    assert "\\x1b[2J" in output


def test_files_that_the_branch_does_not_have_are_first(lab: Lab, say: Say, tmp_path: Path) -> None:
    """Only in a comment: other forms have no place for it and report that."""
    (case,) = read_results(lab.unchanged).cases[:1]
    code, output = say("report", lab.unchanged, "--format", "comment", "--branch", tmp_path)
    assert (code, case.suite in output.partition("**mlperf: ")[0]) == (0, True)
    code, output = say("report", lab.unchanged, "--branch", tmp_path)
    assert (code, output) == (
        2,
        "pytest-mlperf: --branch and --judged-by need --format comment\n",
    )


def test_planned_tests_without_a_result_are_listed(lab: Lab, say: Say, tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    pytest.importorskip("vl_convert")
    lost = "suites/lost.mlperf.toml::test_performance[lost-Offline-null-fp32-H200]"
    planned = {"test": lost, "kind": "performance", "case": "lost", "accelerator": "H200"}
    manifest = tmp_path / "plan.json"
    whole = {"schema": 1, "kind": "pytest-mlperf plan", "tests": [planned]}
    manifest.write_text(json.dumps(whole), "utf-8")
    for form in ("html", "markdown", "comment", "annotations"):
        _, alone = say("report", lab.unchanged, "--format", form)
        code, output = say("report", lab.unchanged, "--format", form, "--manifest", manifest)
        assert (code, lost in alone, lost in output) == (0, False, True), form


def test_files_that_cannot_be_read_or_written_are_named(here: Path, say: Say) -> None:
    """And a value that no run gives is an error and no traceback."""
    write_results(Path("r.json"), session())
    rows = [
        (("report", "gone.json"), 2, ("gone.json: cannot be read: No such file or directory",)),
        (("report", "r.json", "-o", "r.json/x"), 2, ("r.json/x cannot be written: ",)),
    ]
    assert differing(say, rows) == []
    for value in (0.0, -1.0):
        forged = replace(verdicts.OK, runs=(run(throughput=value),))
        write_results(Path("r.json"), session(result(forged)))
        line = ("report", "r.json", "--format", "pytest-benchmark")
        assert differing(say, [(line, 2, ("pytest-mlperf: r.json: ",))]) == []

"""`pytest-mlperf merge`: the parts of a plan as one, and nothing that was planned is missing."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.cli import main
from pytest_mlperf.core.results import CaseResult
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.stores import foreign
from pytest_mlperf.stores.results import read_results, write_results
from tests.cli.text import Say, differing
from tests.reports.verdicts import CASE, DROP, OK, result, session

H100 = replace(CASE, accelerator="H100")
FINE = result(replace(OK, case=H100))
FELL = result(DROP)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working folder, with the results of two machines and the plan of both."""
    monkeypatch.chdir(tmp_path)
    write_results(tmp_path / "h100.json", session(FINE))
    write_results(tmp_path / "h200.json", session(FELL))
    plan(tmp_path / "plan.json", FINE, FELL)
    return tmp_path


def plan(path: Path, *planned: CaseResult, **changes: Any) -> None:
    tests = [
        {
            "test": one.test,
            "kind": one.verdict.kind,
            "case": one.verdict.case.id,
            "accelerator": one.verdict.case.accelerator,
            "pairs": 1,
        }
        for one in planned
    ]
    document = {"schema": 1, "kind": "pytest-mlperf plan", "tests": tests, **changes}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(document), "utf-8")


def test_all_parts_of_a_plan_give_its_verdict(here: Path, say: Say) -> None:
    """The failure as its machine printed it, the table, the exit code; missing results first."""
    output = say.ends(
        1, "merge", "h100.json", "h200.json", "--manifest", "plan.json", "-o", "all.json"
    )
    assert output.startswith("PERF DROP samples/s −6.3 % (−6.9 to −5.7 %); limit −3 % exceeded\n")
    assert "INCOMPLETE" not in output
    assert "results: all.json" in output
    merged = read_results(here / "all.json")
    assert [c.verdict.outcome for c in merged.cases] == [Outcome.OK, Outcome.PERF_DROP]
    output = say.ends(1, "merge", "h100.json", "--manifest", "plan.json")
    assert output.splitlines()[0] == "INCOMPLETE: 1 of 2 planned tests have no result"
    assert FELL.test in output.replace("\n    ", "")
    newest = here / ".mlperf/runs/20261121-000000-abcd/results.json"
    newest.parent.mkdir(parents=True)
    newest.write_bytes((here / "h100.json").read_bytes())
    of_newest = (("merge",), ("merge", "20261121"), ("merge", newest.parent))
    alone = say.ends(0, "merge", "h100.json")
    assert [say.ends(0, *line) for line in of_newest] == [alone] * 3


def test_results_that_could_not_be_read_back_are_not_written(
    here: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parts can be read, the whole could not; what else was asked for is written."""
    whole = ("merge", "h100.json", "h200.json", "-o", "all.json", "--junit", "all.xml")
    say.ends(1, *whole)
    size = (here / "all.json").stat().st_size
    written = (here / "all.json").read_bytes()
    for name, limit, reason in (
        ("MAX_FILE_BYTES", 8 * 1024, f"{size:,} bytes; at most 8 KiB can be read"),
        ("MAX_FILE_VALUES", 300, "more than 300 values, which cannot be read"),
    ):
        (here / "all.xml").unlink()
        with monkeypatch.context() as limited:
            limited.setattr(foreign, name, limit)
            output = say.ends(2, *whole)
        refusal = f"all.json: not written: {reason}; merge or import fewer files at a time\n"
        assert output.endswith(f"JUnit: all.xml\npytest-mlperf: {refusal}")
        assert (here / "all.json").read_bytes() == written


def test_a_skipped_test_is_missing_with_its_reason(here: Path, say: Say) -> None:
    """Without a manifest nothing is missing; a folder stands for its files without a manifest."""
    plan(here / "parts/own.json", FINE)
    rows: list[tuple[tuple[object, ...], int, tuple[str, ...]]] = [
        (("merge", "h100.json"), 0, ()),
        (("merge", "h100.json", "--manifest", "parts/own.json"), 0, ()),
    ]
    assert differing(say, rows) == []
    assert "INCOMPLETE" not in say.ends(1, "merge", ".", "--manifest", "plan.json")
    skipping = replace(session(FINE), skipped={FELL.test: "Skipped: MLPERF_MODELS is not set"})
    write_results(here / "h100.json", skipping)
    line = ("merge", "h100.json", "--manifest", "plan.json")
    assert differing(say, [(line, 1, ("MLPERF_MODELS is not set",))]) == []


def test_junit_has_the_ids_failures_and_what_is_missing(here: Path, say: Say) -> None:
    say("merge", "h200.json", "--manifest", "plan.json", "--junit", "out/all.xml")
    (suite,) = ET.parse(here / "out/all.xml").iter("testsuite")
    tests_by_name = {test.get("name"): test for test in suite.iter("testcase")}
    assert {k: suite.get(k) for k in ("tests", "failures", "errors", "skipped")} == {
        "tests": "2",
        "failures": "1",
        "errors": "1",
        "skipped": "0",
    }
    fell = tests_by_name[FELL.test.partition("::")[2]]
    assert fell.get("classname") == "suites.rn.mlperf.toml"
    failure = fell.find("failure")
    assert failure is not None
    assert str(failure.get("message")).startswith("PERF DROP samples/s −6.3 %")
    assert "baseline" in str(failure.text)
    values = {p.get("name"): p.get("value") for p in fell.iter("property")}
    assert values["mlperf.verdict"] == "PERF DROP"
    assert tests_by_name[FINE.test.partition("::")[2]].find("error") is not None


def test_hostile_text_makes_neither_broken_xml_nor_commands(here: Path, say: Say) -> None:
    """Results are data from elsewhere: control characters and workflow commands stay inert."""
    nasty = "::error::\x1b[31m<script>\x00</script>"
    write_results(here / "h200.json", session(replace(FELL, verdict=replace(DROP, headline=nasty))))
    _, output = say("merge", "h200.json", "--junit", "all.xml")
    assert "\x1b" not in output
    assert not [line for line in output.splitlines() if line.startswith("::")]
    (failure,) = ET.parse(here / "all.xml").iter("failure")
    assert "\\x1b[31m<script>" in str(failure.get("message"))


MANIFESTS = {
    "{": "not a manifest of a plan",
    "[]": "not a manifest of a plan; create one: pytest-mlperf plan --format json",
    '{"schema": 1}': "not a manifest of a plan; create one",
    '{"schema": 9, "kind": "pytest-mlperf plan"}': "written by a newer pytest-mlperf",
    '{"schema": 1, "kind": "pytest-mlperf plan", "tests": [{}]}': (
        "not a manifest of a plan: tests[0].test: is missing; create one"
    ),
}


def test_what_is_no_manifest_no_results_or_no_report_is_refused(
    here: Path, say: Say, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for content, message in MANIFESTS.items():
        (here / "plan.json").write_text(content, "utf-8")
        line = ("merge", "h100.json", "--manifest", "plan.json")
        assert differing(say, [(line, 2, (message,))]) == []
    (here / "empty").mkdir()
    assert say("merge", "empty") == (
        2,
        "pytest-mlperf: no *.json in empty; name results files or another folder\n",
    )
    with monkeypatch.context() as patch:
        patch.setattr(foreign, "MAX_FILE_BYTES", 100)
        assert differing(say, [(("merge", "h100.json"), 2, ("larger than",))]) == []
    for option_value in ("pdf=x.pdf", "html", "html="):
        with pytest.raises(SystemExit, match="2"):
            main(["merge", "h200.json", "--report", option_value])
        assert (
            f"{option_value!r} is not FORMAT=FILE with one of annotations, comment, "
            in capsys.readouterr().err
        )


def test_every_report_of_the_whole_is_written(here: Path, say: Say) -> None:
    """One that fails costs neither the results nor the others."""
    pytest.importorskip("jinja2")
    pytest.importorskip("vl_convert")
    reports = ("--report", "html=out/page.html", "--report", "comment=out/comment.md")
    output = say.ends(1, "merge", "h200.json", "--manifest", "plan.json", *reports)
    assert output.endswith("html: out/page.html\ncomment: out/comment.md\n")
    for file in ("out/page.html", "out/comment.md"):
        text = Path(file).read_text("utf-8")
        assert FINE.test in text
        assert "PERF DROP" in text
    (here / "folder.html").mkdir()
    output = say.ends(
        2,
        *("merge", "h100.json", "-o", "all.json", "--report", "html=folder.html"),
        *("--report", "csv=all.csv", "--junit", "all.xml"),
    )
    assert "folder.html cannot be written" in output
    assert {one.name for one in here.glob("all.*")} == {"all.json", "all.csv", "all.xml"}

"""The parts of a plan on several machines: each judges among all, and merged they agree."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest

from pytest_mlperf.cli import main
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.stores.results import read_results
from tests.plugin.project import Project, last_line
from tests.plugin.test_many import many, of, test_id, words

pytestmark = pytest.mark.quiet

__all__ = ["many"]  # the fixture


@pytest.fixture
def plan(
    many: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Project:
    """Return the project of 25 pairs with its manifest."""
    monkeypatch.chdir(many.path)
    assert main(["plan", "suites", "--format", "json"]) == 0
    manifest = capsys.readouterr().out
    assert sum(test["pairs"] for test in json.loads(manifest)["tests"]) == 25
    (many.path / "plan.json").write_text(manifest, "utf-8")
    return many


def test_parts_and_their_merger_agree(plan: Project, capsys: pytest.CaptureFixture[str]) -> None:
    part = ("suites", "--mlperf-manifest", "plan.json")
    first = plan.run_process(*part, "-k", "doubt or fine", "--mlperf-json=first.json")
    assert first.ret == pytest.ExitCode.OK
    assert words(plan) == {"fine": Outcome.OK, "doubt": Outcome.SUSPECT}
    assert of(plan, "doubt").pairs == 25
    second = plan.run_process(*part, "-k", "clear", "--mlperf-json=second.json")
    clear = dict.fromkeys(("clear1", "clear2", "clear3"), Outcome.PERF_DROP)
    assert second.ret == pytest.ExitCode.TESTS_FAILED
    assert words(plan) == clear
    capsys.readouterr()

    code = main(["merge", "first.json", "--manifest", "plan.json"])

    assert code == 1
    assert "INCOMPLETE: 23 of 25 planned tests have no result" in capsys.readouterr().out

    third = plan.run_process(*part, "-k", "absent", "--mlperf-json=third.json")
    assert last_line(third) == "20 skipped, 5 deselected"
    parts = ["first.json", "second.json", "third.json"]
    code = main(["merge", *parts, "--manifest", "plan.json", "-o", "all.json", "--junit", "a.xml"])

    output = capsys.readouterr().out
    assert code == 1
    assert "INCOMPLETE: 20 of 25 planned tests have no result" in output
    assert "25 pairs judged together: 3 PERF DROP, 1 PROVISIONAL drop" in output.replace(
        "\u00a0", " "
    )
    merged = read_results(plan.path / "all.json")
    assert {r.verdict.case.engine: r.verdict.outcome for r in merged.cases} == {
        "fine": Outcome.OK,
        "doubt": Outcome.PROVISIONAL,
        **clear,
    }
    failed = {test.get("name") for test in ET.parse("a.xml").iter("testcase") if list(test)}
    assert test_id("doubt").partition("::")[2] in failed


def test_a_test_that_is_not_planned_and_a_manifest_that_is_none_are_refused(
    plan: Project,
) -> None:
    plan.suite("suites/late.mlperf.toml", name="late")
    late = plan.run_process("suites", "--mlperf-manifest", "plan.json")
    (plan.path / "plan.json").write_text("[]", "utf-8")
    none = plan.run_process("suites", "--mlperf-manifest", "plan.json")

    assert late.ret == none.ret == pytest.ExitCode.USAGE_ERROR
    late.stderr.fnmatch_lines(["*--mlperf-manifest: *plan.json does not contain suites/late*"])
    none.stderr.fnmatch_lines(["*--mlperf-manifest: *not a manifest of a plan; create one:*"])

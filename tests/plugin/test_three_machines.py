"""One plan on three machines, as a CI runs it: their results are joined, and every report made.

One of them has a GPU, a simulated one, on which the engine is slowed down.
"""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from pytest_mlperf.cli import main
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.stores.results import read_results
from tests.nvml.library import Fake, scenario
from tests.plugin.project import OPTIONS, Project
from tests.plugin.test_efficiency import WORKING

pytestmark = pytest.mark.quiet

FIRST, SECOND = "suites/first.mlperf.toml", "suites/second.mlperf.toml"

H200 = scenario("wave const 500")

ENGINES = f"""
[[engines]]
use = "working:Working"
name = "working"
accelerators = ["H200"]
options = {OPTIONS}

[[engines]]
use = "null"
accelerators = ["cpu"]
options = {OPTIONS}
"""

MACHINES = {
    "gpu": [FIRST, "--mlperf-accelerator=H200"],
    "left": [FIRST, "--mlperf-accelerator=cpu"],
    "right": [SECOND],
}

SLOWED = f"{FIRST}::test_performance[first-Offline-working-fp32-H200]"


@pytest.fixture
def machines(tmp_path: Path, project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Suites for three machines, whose baselines are recorded."""
    fake = Fake(tmp_path)
    fake.write(*H200)
    for name in ("LD_LIBRARY_PATH", "FAKE_NVML_SCENARIO"):
        monkeypatch.setenv(name, fake.environment[name])
    monkeypatch.chdir(project.path)
    project.pytester.makepyfile(working=WORKING)
    project.suite(FIRST, engines=ENGINES, top1=100.0)
    project.suite(SECOND, name="second", top1=100.0)
    recorded = project.record("suites", own_process=True)
    assert recorded.ret == pytest.ExitCode.OK
    project.over_days()
    return project


def report(form: str, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(["report", "all.json", "--format", form]) == 0
    return capsys.readouterr().out


def test_three_machines_are_judged_as_one(
    machines: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "--format", "json"]) == 0
    Path("plan.json").write_text(capsys.readouterr().out, "utf-8")
    planned = [test["test"] for test in json.loads(Path("plan.json").read_text("utf-8"))["tests"]]
    assert len(planned) == 6, "accuracy and performance on each"
    for name, options in MACHINES.items():
        slow = ["--mlperf-handicap=0.7"] if name == "gpu" else []
        out = f"--mlperf-json=parts/{name}.json"
        done = machines.run_process(*options, "--mlperf-manifest=plan.json", out, *slow)
        assert done.ret == len(slow), done.stdout.str()

    # The last machine gave nothing back.
    late = Path("parts/right.json").rename("late.json")
    refused = main(["merge", "parts", "--manifest", "plan.json", "-o", "all.json"])
    output = capsys.readouterr().out
    assert refused == 1
    assert "INCOMPLETE: 2 of 6 planned tests have no result" in output
    assert all(test in output for test in planned if test.startswith(SECOND))
    assert report("markdown", capsys)

    late.rename("parts/right.json")
    merge = ["merge", "parts", "--manifest", "plan.json", "-o", "all.json", "--junit", "all.xml"]
    assert main(merge) == 1
    output = capsys.readouterr().out
    assert "INCOMPLETE" not in output
    merged = read_results(Path("all.json"))
    assert [r.test for r in merged.cases if r.failed] == [SLOWED]
    outcomes = {r.test: r.verdict.outcome for r in merged.cases}
    assert outcomes.pop(SLOWED) is Outcome.PERF_DROP
    assert set(outcomes) == {*planned} - {SLOWED}
    assert set(outcomes.values()) == {Outcome.OK}
    failed = [
        test for test in ET.parse("all.xml").iter("testcase") if test.find("failure") is not None
    ]
    assert [test.get("name") for test in failed] == [SLOWED.partition("::")[2]]

    for form in ("markdown", "comment"):
        first, *rest = [line for line in report(form, capsys).splitlines() if "<!--" not in line]
        assert "mlperf: failed: 1 PERF DROP" in first
        assert any("H200" in line for line in rest)
    (annotation,) = report("annotations", capsys).splitlines()
    assert annotation.startswith(f"::error file={FIRST},line=")
    assert "PERF DROP" in annotation

    pytest.importorskip("jinja2")
    pytest.importorskip("vl_convert")
    page = report("html", capsys)
    assert len(page) < 5_000_000
    assert SLOWED in page
    assert "1 PERF DROP" in page

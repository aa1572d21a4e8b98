"""`pytest-mlperf report`: the same session as text, JSON, or a file of pytest-benchmark."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.core.measurement import Run
from pytest_mlperf.core.verdict import Verdict
from pytest_mlperf.reports.export.exports import ROUNDS, commit_info, document, entry
from pytest_mlperf.reports.formats import machine_info
from pytest_mlperf.reports.terminal import text
from pytest_mlperf.stores.results import read_results, write_results
from tests.cli.lab import CASE, PERFORMANCE, Lab, performance
from tests.cli.text import Say, differing
from tests.reports import verdicts
from tests.reports.verdicts import result, run, session


def test_a_report_is_the_summary_or_the_file(lab: Lab, say: Say, tmp_path: Path) -> None:
    """With foreign text escaped, or a comment with links to the run and the page."""
    shown = say.ends(0, "report", lab.upgraded)
    assert shown.splitlines() == text.summary(read_results(lab.upgraded), 80, colour=False)
    assert "PERF DROP  samples/s" in shown
    assert say("report", lab.upgraded, "--format", "json") == (0, lab.upgraded.read_text("utf-8"))
    file = tmp_path / "new" / "r.txt"
    assert say("report", lab.upgraded, "-o", file) == (0, f"wrote {file}\n")
    assert file.read_text("utf-8") == say("report", lab.upgraded)[1]
    links = ("--run-url", "https://ci.example/run/7", "--report-url", "https://ci.example/page")
    _, shown = say("report", lab.unchanged, "--format", "comment", *links)
    assert "https://ci.example/run/7" in shown
    assert "https://ci.example/page" in shown
    forged = replace(verdicts.ERROR, headline="engine: \x1b[2J\x1b[32mall ok")
    write_results(tmp_path / "r.json", session(result(forged)))
    _, shown = say("report", tmp_path / "r.json")
    assert "\x1b" not in shown
    assert "\\x1b[2J" in shown


def test_files_that_the_branch_does_not_have_are_first(lab: Lab, say: Say, tmp_path: Path) -> None:
    """Of a comment: other forms have no place for it and say so."""
    (case,) = read_results(lab.unchanged).cases[:1]
    code, shown = say("report", lab.unchanged, "--format", "comment", "--branch", tmp_path)
    assert (code, case.suite in shown.partition("**mlperf: ")[0]) == (0, True)
    code, shown = say("report", lab.unchanged, "--branch", tmp_path)
    assert (code, shown) == (
        2,
        "pytest-mlperf: --branch and --judged-by are for --format comment\n",
    )


def test_planned_tests_without_a_result_are_told(lab: Lab, say: Say, tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    pytest.importorskip("vl_convert")
    lost = "suites/lost.mlperf.toml::test_performance[lost-Offline-null-fp32-H200]"
    planned = {"test": lost, "kind": "performance", "case": "lost", "accelerator": "H200"}
    manifest = tmp_path / "plan.json"
    whole = {"schema": 1, "kind": "pytest-mlperf plan", "tests": [planned]}
    manifest.write_text(json.dumps(whole), "utf-8")
    for form in ("html", "markdown", "comment", "annotations"):
        _, alone = say("report", lab.unchanged, "--format", form)
        code, shown = say("report", lab.unchanged, "--format", form, "--manifest", manifest)
        assert (code, lost in alone, lost in shown) == (0, False, True), form


def test_what_cannot_be_read_or_written_is_named(here: Path, say: Say) -> None:
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


def benchmarks(say: Say, results: Path) -> list[dict[str, Any]]:
    shown = say.ends(0, "report", results, "--format", "pytest-benchmark")
    found: list[dict[str, Any]] = json.loads(shown)["benchmarks"]
    return found


def test_a_case_is_one_benchmark_with_a_round_per_run(lab: Lab, say: Say) -> None:
    """The baseline stands beside the values; a test that failed is no benchmark."""
    (found,) = benchmarks(say, lab.recorded)
    verdict = performance(lab.recorded).verdict
    rates = [one.metrics["throughput"] for one in verdict.runs]
    assert found["fullname"] == PERFORMANCE
    assert found["name"] == f"test_performance[{CASE}]"
    assert (found["group"], found["param"], found["params"]) == ("first", CASE, {"case": CASE})
    assert found["stats"]["data"] == [1 / rate for rate in rates]
    assert found["stats"]["rounds"] == len(rates) >= 5
    about = found["extra_info"]["mlperf"]
    assert about["round"] == "seconds per sample: 1 / throughput of a run"
    assert (about["case"], about["outcome"], about["runs"]) == (CASE, "recorded", len(rates))
    assert about["accuracy"] == {"top1": 100.0}
    assert about["metrics"]["throughput"] == {
        "last": rates[-1],
        "mean": pytest.approx(math.prod(rates) ** (1 / len(rates))),
        "unit": "1/s",
    }
    (found,) = benchmarks(say, lab.unchanged)
    judged = performance(lab.unchanged).verdict.metrics
    assert found["extra_info"]["mlperf"]["baseline"] == {
        one.metric: one.baseline for one in judged if one.baseline is not None
    }
    assert "throughput" in found["extra_info"]["mlperf"]["baseline"]
    assert performance(lab.upgraded).failed
    assert benchmarks(say, lab.upgraded) == []


def with_runs(scenario: str, *metrics: dict[str, float], **fields: Any) -> Verdict:
    case = replace(verdicts.CASE, scenario=scenario)  # type: ignore[arg-type]
    found: tuple[Run, ...] = tuple(run(n, case=case, **m) for n, m in enumerate(metrics, start=1))
    return replace(verdicts.OK, case=case, runs=found, **fields)


def test_what_a_round_is_in_every_scenario() -> None:
    """Without a time in every run there is no benchmark."""
    rows: list[tuple[str, list[dict[str, float]], str, list[float]]] = [
        ("Offline", [{"throughput": 4.0}, {"throughput": 5.0}], "throughput", [0.25, 0.2]),
        ("Server", [{"latency_p50": 0.02, "ttft_p50": 0.01}], "latency_p50", [0.02]),
        ("Interactive", [{"throughput": 9.0, "ttft_p50": 0.5}], "ttft_p50", [0.5]),
        ("SingleStream", [{"latency_p50": 0.001}], "latency_p50", [0.001]),
        ("MultiStream", [{"latency_p50": 0.008}], "latency_p50", [0.008]),
    ]
    for scenario, metrics, metric, rounds in rows:
        found = entry(with_runs(scenario, *metrics))
        assert found is not None
        about = found[1]["extra_info"]["mlperf"]["round"]
        assert (found[0], about) == (rounds, ROUNDS[metric])
    without_times = [
        *(verdicts.ERROR, verdicts.INVALID, verdicts.UNGATED),
        with_runs("Server", {"throughput": 9.0}),
        with_runs("SingleStream", {"latency_p50": 1.0}, {"latency_p90": 1.0}),
    ]
    assert list(map(entry, without_times)) == [None] * 5


@pytest.mark.process
def test_the_machine_and_the_commit_are_described_as_pytest_benchmark_does(lab: Lab) -> None:
    """Then `--benchmark-compare` finds the same machine, and does not warn."""
    found = machine_info(session(result(verdicts.OK)))
    assert found == {"H200": verdicts.SUBJECT.identity}
    found = machine_info(read_results(lab.recorded))
    assert {"node", "machine", "python_version", "cpu"} <= set(found)
    nothing = document(session(), machine_info={}, commit_info={})
    assert nothing["benchmarks"] == []
    assert set(nothing) == {"machine_info", "commit_info", "benchmarks", "datetime", "version"}
    for commit, known, dirty in (("9d0e77a+", "9d0e77a", True), ("9d0e77a", "9d0e77a", False)):
        info = commit_info(replace(session(), commit=commit))
        assert (info["id"], info["dirty"]) == (known, dirty)
    assert commit_info(replace(session(), commit=None))["id"] == "unversioned"


def test_pytest_benchmark_compares_two_reports(
    lab: Lab,
    say: Say,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from pytest_benchmark.cli import main

    files = {"old.json": lab.recorded, "new.json": lab.unchanged}
    for file, results in files.items():
        say("report", results, "--format", "pytest-benchmark", "-o", tmp_path / file)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["pytest-benchmark", "compare", *files])
    main()  # type: ignore[no-untyped-call]
    shown = capsys.readouterr().out
    lines = [line for line in shown.splitlines() if line.startswith("test_performance")]
    assert {line.partition(" (")[2][:3] for line in lines} == {"new", "old"}

"""Test `pytest-mlperf report --format html`: a real session's page, and the files that it reads."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_mlperf.addons.html.report import (
    folder_below,
    moments_of,
    page_of,
    percentiles_of,
    power_of,
    spent_of,
)
from pytest_mlperf.core.case import Scenario
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.notes import Note
from pytest_mlperf.core.verdict import Verdict
from pytest_mlperf.reports.sentences import sentence
from pytest_mlperf.stores.results import read_results, write_results
from tests.addons.html.test_page import data_of
from tests.addons.html.test_power import CAP, sampled
from tests.cli.lab import BASELINE, Lab, git, performance
from tests.cli.text import Say
from tests.reports.verdicts import run

pytest.importorskip("jinja2", reason="the HTML report needs pytest-mlperf[html]")
pytest.importorskip("vl_convert", reason="the HTML report needs pytest-mlperf[html]")


def is_first_skipped(verdict: Verdict) -> bool:
    """Whether the first run, with the accuracy pass, does not count, as on a busy machine."""
    return any(isinstance(n, Note) and n.key == "first_run_skipped" for n in verdict.notes)


def test_the_page_of_a_real_drop(lab: Lab, say: Say, tmp_path: Path) -> None:
    """It has the baseline from git's folder, its runs, and where the time went by the logs."""
    file = tmp_path / "report.html"
    code, output = say("report", lab.upgraded, "--format", "html", "-o", file)
    data = data_of(file.read_text("utf-8"))
    verdict = performance(lab.upgraded).verdict
    assert (code, output) == (0, f"wrote {file}\n")
    (history,) = [one for one in data["drawn"][0] if one["plot"] == "history"]
    (record,) = json.loads((lab.path / BASELINE).read_text("utf-8"))["records"]
    assert len(history["base"]) == len(record["runs"]) >= 5
    assert len(history["now"]) == len(verdict.runs)
    assert [text for _, text in history["marks"]] == ["acme 1.0", "engine.acme 1.0 → 2.0"]
    parts = {row[3] for row in data["figures"]["spent"]["rows"]}
    assert {"before", "measured"} <= parts
    assert ("accuracy pass" in parts) is not is_first_skipped(verdict)
    (change,) = [row for row in data["figures"]["forest"]["rows"] if row[1] == "samples/s"]
    assert change[data["figures"]["forest"]["fields"].index("change")] in sentence(verdict.headline)


def test_runs_and_baselines_are_read_only_from_where_they_belong(lab: Lab, tmp_path: Path) -> None:
    """A file from elsewhere may name any path; a damaged log costs its part of the page."""
    alone = tmp_path / "results.json"
    shutil.copy(lab.upgraded, alone)
    page = page_of(read_results(alone), alone)
    assert {row[3] for row in data_of(page)["figures"]["spent"]["rows"]} == {"measured"}
    assert "logs are not here" in page
    results = read_results(lab.upgraded)
    file = tmp_path / "r.json"
    for name in ("/etc/passwd", "../../x.json", "baselines/other.json"):
        cases = [
            replace(
                one, verdict=replace(one.verdict, baseline=replace(one.verdict.baseline, file=name))
            )
            for one in results.cases
        ]
        write_results(file, replace(results, cases=tuple(cases)))
        assert data_of(page_of(read_results(file), file))["drawn"][0][0]["base"] == []
    moved = shutil.copytree(lab.upgraded.parent, tmp_path / "artifact") / "results.json"
    whole = data_of(page_of(read_results(moved), moved))
    assert ("accuracy pass" in json.dumps(whole["figures"])) is not is_first_skipped(
        performance(moved).verdict
    )
    for log in moved.parent.rglob("mlperf_log_detail.txt"):
        log.write_text("".join(log.read_text("utf-8").splitlines(keepends=True)[:9]), "utf-8")
    page = page_of(read_results(moved), moved)
    assert "not read: " in page
    assert "is truncated: LoadGen ends it with" in page


def test_git_knows_when_each_engine_version_was_accepted(own_lab: Lab) -> None:
    """The record in the file has the last version only; a later one is mentioned and not drawn."""
    (file,) = Path("baselines").rglob("Offline.*.json")
    document = json.loads(file.read_text("utf-8"))
    (record,) = document["records"]
    first = record["history"][0]
    record["fingerprint"]["engine.acme"] = "1.5"
    for run_record in record["runs"]:
        run_record |= {"session": "another", "started": f"2031{run_record['started'][4:]}"}
    record["history"].append({**first, "date": "2031-02-03", "reason": "acme 1.5"})
    file.write_text(json.dumps(document), "utf-8")
    git(own_lab.path, "commit", "-qam", "acme 1.5")
    results = read_results(own_lab.upgraded)
    at = f" at {first['commit']}" if first["commit"] else ""
    set_by = f'set 2031-02-03{at}: "acme 1.5"'
    cases = tuple(
        replace(
            one, verdict=replace(one.verdict, baseline=replace(one.verdict.baseline, source=set_by))
        )
        for one in results.cases
    )
    page = page_of(replace(results, cases=cases), own_lab.upgraded)
    marks = [text for _, text in data_of(page)["drawn"][0][0]["marks"]]
    assert marks == ["acme 1.0", "acme 1.5", "engine.acme 1.0 → 2.0"]

    document["records"][0]["history"][-1]["reason"] = "another one"
    file.write_text(json.dumps(document), "utf-8")
    page = page_of(read_results(own_lab.upgraded), own_lab.upgraded)
    assert "was replaced after this session, so its runs are not shown" in page
    assert data_of(page)["drawn"][0][0]["base"] == []


def test_a_missing_library_is_a_fault_of_the_environment(
    lab: Lab, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    output = say.ends(3, "report", lab.upgraded, "--format", "html")
    assert "pip install 'pytest-mlperf[html]'" in output


def test_folders_and_logs_are_found_by_the_end_of_their_path_and_links_are_not_read(
    tmp_path: Path,
) -> None:
    root = tmp_path.resolve() / "artifact"
    for inside in ("s1/case.1/performance", "case.1/performance"):
        (root / inside).mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    (root / "case.1/linked").symlink_to(tmp_path / "secret")
    folders = {
        "/elsewhere/.mlperf/runs/s1/case.1/performance": root / "s1/case.1/performance",
        "case.1/performance": root / "case.1/performance",
        **dict.fromkeys(("../../../etc", "/", "", "case.1/linked", "a\0b", "x" * 5000)),
    }
    assert {name: folder_below(root, name) for name in folders} == folders

    sampled(tmp_path / "real")
    folder = tmp_path / "run" / "performance"
    folder.mkdir(parents=True)
    (folder / "mlperf_log_detail.txt").symlink_to(
        tmp_path / "real/performance/mlperf_log_detail.txt"
    )
    assert spent_of(folder, run()) == {}
    assert percentiles_of(folder, Scenario.SERVER) == []


def test_power_is_that_of_the_window_with_the_clock_limiters(tmp_path: Path) -> None:
    sampled(tmp_path, gpus=2, reasons=({2.0: CAP, 6.0: 0},))
    trace = power_of(tmp_path / "performance")
    assert trace is not None
    assert trace["window"] == 10.0
    assert [gpu["name"] for gpu in trace["gpus"]] == ["GPU 0", "GPU 1"]
    assert set(trace["gpus"][1]["power"][1]) == {651.0}
    assert all(-6 < time_s < 16 for time_s in trace["gpus"][0]["power"][0])
    ((label, tone, spans),) = trace["held"]
    assert (label, tone) == ("power cap 40 %, GPU 0", "open")
    assert list(spans[0]) == pytest.approx([2.0, 6.0], abs=0.2)


def test_loading_and_warm_up_are_separated_if_the_worker_kept_them(tmp_path: Path) -> None:
    """Time before the window counts from the start of the run; latencies over time are read too."""
    sampled(tmp_path)
    began = replace(run(), started="2025-11-20T11:59:53+00:00")
    seconds_by_part = spent_of(tmp_path / "performance", began)
    assert list(seconds_by_part.values()) == [7.0, 0.0, 0.0, 10.0, 0.0]
    content = {"settings": {}, "spent": {"load_s": 4.0, "warmup_s": 1.0}}
    (tmp_path / "performance" / "run.json").write_text(json.dumps(content))
    seconds_by_part = spent_of(tmp_path / "performance", began)
    assert [seconds_by_part[part] for part in ("before", "load", "warm-up")] == [2.0, 4.0, 1.0]

    (tmp_path / "latencies.json").write_text(
        json.dumps({"moments": [[0.5, 0.01, 0.02, 3], [1.5, 0.011, float("inf"), 0]]})
    )
    assert moments_of(tmp_path) == [[0.5, 0.01, 0.02, 3]]
    assert moments_of(tmp_path / "none") == []
    for text in ("{", "[]", '{"moments": [[1]]}', '{"moments": 3}'):
        (tmp_path / "latencies.json").write_text(text)
        with pytest.raises(MlperfError, match=r"latencies.json: no latencies over time"):
            moments_of(tmp_path)

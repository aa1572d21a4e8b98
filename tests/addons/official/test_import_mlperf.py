"""Test imports of MLPerf submissions and LoadGen's logs: read unchanged, refused if impossible.

tests/data/submissions.tar.xz has results of MLPerf Inference v4.1 and v5.1, and a run of 2019, as
their submitters published them (Apache 2.0, github.com/mlcommons/inference_results_v4.1, _v5.1 and
_v0.5): logs of LoadGen .5a1, 4.0, 4.1, 5.0 and 5.1, one of them a summary alone.
"""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.addons.official.published_table import results_in
from pytest_mlperf.rounds.published import OfficialResult, official_results
from pytest_mlperf.run.logs import DETAIL
from pytest_mlperf.stores.results import read_results
from tests.cli.text import Say, one_line

ARCHIVE = Path(__file__).parents[2] / "data" / "submissions.tar.xz"

H200 = "v4.1/closed/NVIDIA/results/H200-SXM-141GBx8_TRT"
SERVER, OFFLINE, GPTJ = (
    f"{H200}/{name}"
    for name in ("llama2-70b-99.9/Server", "llama2-70b-99.9/Offline", "gptj-99/Offline")
)
MI300X = "v5.1/closed/AMD/results/8xMI300X_2xEPYC_9575F/llama2-70b-99.9"
LOG = f"performance/run_1/{DETAIL}"
NAMES = ("--workload", "resnet50", "--precision", "int8", "--accelerator", "8xH200")


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("submissions")
    with tarfile.open(ARCHIVE) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # since 3.11.4
        archive.extractall(folder)
    return folder


@pytest.fixture
def tree(unpacked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of the archive's folders, to be changed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    return Path(shutil.copytree(unpacked, tmp_path / "tree"))


def rows(say: Say, *folders: Path, code: int = 0) -> list[OfficialResult]:
    """Import folders; return their rows."""
    returned, output = say("import", "mlperf", *folders, "-o", "s.json", "--rows", "r.json")
    assert returned == code, output
    results_in.cache_clear()
    return list(results_in(Path("r.json").absolute()))


def refused(say: Say, *arguments: Any) -> str:
    output = say.ends(2, "import", "mlperf", *arguments, "-o", "s.json")
    assert not Path("s.json").exists()
    assert len(output.splitlines()) == 1
    return output


def edit(folder: Path, change: Callable[[list[str]], list[str]]) -> None:
    path = folder / LOG
    lines = path.read_text("utf-8").splitlines(keepends=True)
    path.write_text("".join(change(lines)), "utf-8")


@pytest.mark.parametrize("name", ["v4.1", "v5.1"])
def test_every_result_is_as_its_round_published_it(say: Say, tree: Path, name: str) -> None:
    """Offline and Server, tokens counted and inferred, early stopping, power, made of another."""
    published = {
        (row.submitter, row.system, row.used_model or row.benchmark, row.scenario): row
        for row in official_results(name)
    }
    read = rows(say, tree / name)
    assert len(read) == {"v4.1": 6, "v5.1": 7}[name]
    for row in read:
        table = published[row.submitter, row.system, row.used_model or row.benchmark, row.scenario]
        assert row.value == pytest.approx(table.value, rel=1e-9)
        assert (row.power or 0) == pytest.approx(table.power or 0, rel=1e-9)
        for column in (
            *("round", "division", "availability", "accelerator", "count", "unit", "inferred"),
            *("harness", "power_unit"),
        ):
            assert getattr(row, column) == getattr(table, column), (column, row)
        assert row.is_latency == bool(row.statistic) or "tokens a sample" in row.statistic


def test_a_session_has_measured_results_and_no_derived_ones(say: Say, tree: Path) -> None:
    output = say.ends(0, "import", "mlperf", tree / "v4.1", tree / "v5.1", "-o", "s.json")
    assert "not in the session: 2 results derived from another scenario's run" in output
    assert "not in the session: 1 result read from summaries" in output
    by_id = {one.verdict.case.id: one for one in read_results(Path("s.json")).cases}
    assert len(by_id) == 10
    server = by_id["llama2-70b-99.9-Server-tensorrt-fp16-8xH200"]
    (run,) = server.verdict.runs
    assert run.metrics["tokens_per_second"] == 29228.2
    assert run.metrics["ttft_p99"] == 0.452744202
    assert (server.round, server.profile, server.division) == ("v4.1", "official", "closed")
    subject = server.verdict.subject
    assert subject is not None
    assert subject.identity == {
        "harness": "MLPerf submission",
        "gpu": "NVIDIA H200-SXM-141GB",
        "submitter": "NVIDIA",
        "system": "H200-SXM-141GBx8_TRT",
    }
    (opened,) = [one for one in by_id.values() if one.division == "open"]
    assert opened.verdict.case.workload == "mobilenet-v1-precision_float-1.0-224"


def test_a_part_of_a_tree_is_read_alike_and_listed_alike(say: Say, tree: Path) -> None:
    """Further runs of a result belong to its session; a derived result is skipped."""
    for part in ("", "closed", "closed/NVIDIA", "closed/NVIDIA/results"):
        read = rows(say, tree / "v4.1" / part)
        assert [row.value for row in read if row.scenario == "Server"] == [29228.2], part
    rows(say, tree / "v4.1")
    output = say.ends(0, "published", "--from", "r.json", "llama2-70b", "--accelerator", "H200")
    assert "29,228.2" in output
    assert "r.json: Result not verified by MLCommons Association." in one_line(output)
    assert say("published", "--from", "s.json")[0] == 2
    result = tree / SERVER
    for name in ("accuracy", "TEST06/performance/run_1", "performance/ranging"):
        shutil.copytree(result / "performance" / "run_1", result / name)
    compliance = tree / "v4.1/closed/NVIDIA/compliance/S/llama2-70b-99.9/Server/TEST06"
    shutil.copytree(result / "performance", compliance / "performance")
    assert len(rows(say, tree / "v4.1")) == 6
    shutil.copytree(result / "performance/run_1", result / "performance/run_2")
    edit(tree / SERVER, lambda lines: [line.replace("07-1", "07-2") for line in lines])
    assert len(rows(say, tree / SERVER)) == 1
    (case,) = read_results(Path("s.json")).cases
    assert len(case.verdict.runs) == 2


def test_logs_on_their_own_are_read_of_any_release(say: Say, tree: Path) -> None:
    """The detail log of 2019 is not JSON.

    Figures come from the summary, times from the detail log.
    """
    output = say.ends(
        0, *("import", "mlperf", tree / "v0.5", *NAMES, "-o", "s.json", "--rows", "r.json")
    )
    assert "of an unknown round" in output
    (row,) = results_in(Path("r.json").absolute())
    assert (row.scenario, row.value, row.unit, row.round) == ("Server", 296.14, "queries/s", "")
    (case,) = read_results(Path("s.json")).cases
    (run,) = case.verdict.runs
    assert run.started == "2019-10-16T03:56:33+00:00"
    assert run.metrics["latency_p99"] == 0.070438339


def test_a_log_that_lacks_its_end_is_cut_in_every_release(say: Say, tree: Path) -> None:
    """A warning after the last key, from a thread that ended early, does not count as a cut."""
    last = json.loads((tree / MI300X / "Offline" / LOG).read_text("utf-8").splitlines()[-1][9:])
    assert last["key"] == "warning_generic_message"
    assert rows(say, tree / MI300X / "Offline")[0].unit == "tokens/s"
    for name in ("s.json", "r.json"):
        Path(name).unlink()
    for folder in (SERVER, OFFLINE, GPTJ, f"{MI300X}/Interactive"):
        edit(tree / folder, lambda lines: lines[:-2])
        assert "is truncated: LoadGen" in refused(say, tree / folder)


def test_invalid_runs_are_left_out_with_a_reason(say: Say, tree: Path) -> None:
    valid, invalid = (f'"result_validity", "value": "{name}"' for name in ("VALID", "INVALID"))
    edit(tree / SERVER, lambda lines: [line.replace(valid, invalid) for line in lines])
    output = ("-o", "s.json", "--rows", "r.json")
    printed = say.ends(1, "import", "mlperf", tree / SERVER, tree / OFFLINE, *output)
    assert "llama2-70b-99.9/Server: LoadGen reports INVALID" in printed
    assert [row.scenario for row in results_in(Path("r.json").absolute())] == ["Offline"]
    failed = {one.verdict.case.scenario: one.failed for one in read_results(Path("s.json")).cases}
    assert failed == {"Server": True, "Offline": False}


def test_a_missing_file_is_one_error(
    say: Say, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So are a pipe and an endless folder; the readable parts are read."""
    _system(tree).rename("system.json")
    assert "it must say which accelerators were used" in refused(say, tree / SERVER)
    Path("system.json").rename(_system(tree))
    (tree / SERVER / LOG).unlink()
    neither = "neither mlperf_log_detail.txt nor mlperf_log_summary.txt"
    assert neither in refused(say, tree / SERVER)
    assert len(rows(say, tree / "v4.1", code=1)) == 5
    for name in ("s.json", "r.json"):
        Path(name).unlink()
    os.mkfifo(tree / SERVER / LOG)
    assert "a pipe" in refused(say, tree / SERVER)
    (tmp_path / "deep" / "/".join("d" * 30)).mkdir(parents=True)
    assert "levels of folders" in refused(say, tmp_path / "deep")
    monkeypatch.chdir(tree)
    (tree / "empty").mkdir()
    for line in ("nowhere", "empty", "v0.5", "v0.5 --workload x", "v0.5 --started 1"):
        refused(say, *line.split())


def _system(tree: Path) -> Path:
    return tree / "v4.1/closed/NVIDIA/systems/H200-SXM-141GBx8_TRT.json"


def test_a_description_that_is_hostile_or_a_link_that_leads_out_is_refused(
    say: Say, tree: Path, tmp_path: Path
) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text('{"accelerator_model_name": "s3cret"}', "utf-8")
    _system(tree).unlink()
    _system(tree).symlink_to(secret)
    (tree / "v4.1" / "again").symlink_to(tree / "v4.1")
    output = refused(say, tree / SERVER)
    assert "a link that leads out of" in output
    assert "s3cret" not in output
    _system(tree).unlink()
    escapes = '{"accelerators_per_node": "\\u001b[2Jmany"}'
    for content in ("", "[]", "[" * 100_000, " " * 2**21, escapes):  # what can be read is kept
        _system(tree).write_text(content, "utf-8")
        output = refused(say, tree / SERVER)
        assert "H200-SXM-141GBx8_TRT.json" in output
        assert "\x1b" not in output


def test_hostile_names_reach_no_terminal(say: Say, tree: Path) -> None:
    described = json.loads(_system(tree).read_text("utf-8"))
    described["accelerator_model_name"] = "\x1b[2J=cmd|H200"
    described["framework"] = "\x1b]0;x\x07::error::"
    _system(tree).write_text(json.dumps(described), "utf-8")
    output = ("-o", "s.json", "--rows", "r.json")
    printed = say.ends(0, "import", "mlperf", tree / SERVER, *output)
    listed = say("published", "--from", "r.json")[1]
    assert "\x1b" not in printed + listed + Path("r.json").read_text("utf-8")

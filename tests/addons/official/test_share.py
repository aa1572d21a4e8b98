"""Test that `pytest-mlperf share` compares a session with the best official results."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_mlperf.core.case import Scenario
from pytest_mlperf.core.results import CaseResult
from pytest_mlperf.rounds.published import official_results
from pytest_mlperf.stores.results import write_results
from tests.cli.test_across import on
from tests.cli.text import Say, one_line, widest
from tests.reports.verdicts import CASE, session


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


BEST = max(
    each.value / each.count
    for each in official_results("v4.1")
    if each.benchmark == "resnet" and each.scenario == "Offline" and each.division == "closed"
    if each.accelerator.startswith("NVIDIA H200-SXM")
)


def placed(say: Say, *results: CaseResult, of: str = "v4.1") -> tuple[int, str]:
    write_results(Path("a.json"), session(*results))
    return say("share", "a.json", *(("--of", of) if of else ()))


def test_a_share_is_of_one_gpu_and_of_the_asked_round(say: Say) -> None:
    eight = replace(CASE, accelerator="8xH200")
    single = replace(CASE, scenario=Scenario.SINGLE_STREAM)
    code, output = placed(
        say, on("NVIDIA H200", BEST / 2, case=eight), on("NVIDIA H200", 1.0, case=single)
    )
    joined = one_line(output)
    assert code == 0
    assert widest(output) <= 80
    assert "published v4.1 " in joined
    assert " 6.25 % samples/s v4.1 " in joined
    assert f"unlike {single.id}: SingleStream reports a latency" in joined
    assert "No verdict: nothing is judged here" in joined
    assert "Result not verified by MLCommons Association." in joined
    Path(".mlperf/runs/20261121-000000-abcd").mkdir(parents=True)
    Path(".mlperf/runs/20261121-000000-abcd/results.json").write_bytes(Path("a.json").read_bytes())
    newest = one_line(say.ends(0, "share", "--of", "v4.1"))
    assert newest.partition("published")[2] == joined.partition("published")[2]
    of_all = placed(say, on("NVIDIA H200", BEST / 2, case=eight), of="")[1]
    assert "published v4.1, v5.1, v6.0, v6.1 " in one_line(of_all)


def test_unknown_rounds_tables_and_incomparable_cases_are_refused(say: Say) -> None:
    none = "neither a file nor a round with official results; did you mean 'v4.1'?"
    rows = [
        (CASE, "v4.2", none),
        (CASE, "a.json", "a.json: not a table of published results"),
        (replace(CASE, workload="mine"), "v4.1", "no case is comparable with an official result\n"),
    ]
    for case, round_asked, message in rows:
        code, output = placed(say, on("NVIDIA H200", 5.0, case=case), of=round_asked)
        assert (code, message in output) == (2, True)

"""`compare A --published` sets a side beside the best official results, and judges nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_mlperf.core.results import CaseResult
from pytest_mlperf.rounds.published import official_results
from pytest_mlperf.stores.results import write_results
from tests.cli.test_across import on
from tests.cli.text import Say, one_line, widest
from tests.reports.verdicts import CASE, session

BEST = max(
    each.value / each.count
    for each in official_results("v4.1")
    if each.benchmark == "resnet" and each.scenario == "Offline" and each.division == "closed"
    if each.accelerator.startswith("NVIDIA H200-SXM")
)


pytestmark = pytest.mark.usefixtures("here")


def compared(say: Say, *results: CaseResult, published: str = "v4.1") -> tuple[int, str]:
    write_results(Path("a.json"), session(*results))
    return say("compare", "a.json", "--published", published)


def test_a_share_is_of_one_gpu_and_of_the_asked_round(say: Say) -> None:
    eight = replace(CASE, accelerator="8xH200")
    single = replace(CASE, scenario="SingleStream")
    code, shown = compared(
        say, on("NVIDIA H200", BEST / 2, case=eight), on("NVIDIA H200", 1.0, case=single)
    )
    joined = one_line(shown)
    assert code == 0
    assert widest(shown) <= 80
    assert "published v4.1 " in joined
    assert " 6.25 % samples/s v4.1 " in joined
    assert f"unlike {single.id}: the value of SingleStream is a latency" in joined
    assert "No verdict: nothing is judged here" in joined
    assert "Result not verified by MLCommons Association." in joined


def test_what_is_no_round_no_table_or_nothing_alike_is_refused(say: Say) -> None:
    none = "no file, and no round that has official results; did you mean 'v4.1'?"
    rows = [
        (CASE, "v4.2", none),
        (CASE, "a.json", "a.json: not a table of published results"),
        (replace(CASE, workload="mine"), "v4.1", "nothing is like a published result\n"),
    ]
    for case, published, message in rows:
        code, shown = compared(say, on("NVIDIA H200", 5.0, case=case), published=published)
        assert (code, message in shown) == (2, True)


def test_it_takes_one_side_alone(say: Say, capsys: pytest.CaptureFixture[str]) -> None:
    for more in ("b.json", "--across-accelerators", "--prices p.toml"):
        with pytest.raises(SystemExit, match="2"):
            say("compare", "a.json", *more.split(), "--published", "v4.1")

        message = "--published takes A alone: compare a.json --published v4.1"
        assert message in capsys.readouterr().err

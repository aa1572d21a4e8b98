"""`pytest-mlperf doctor` names result files of known tools and checks judged baselines."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_mlperf.addons.judge import doctor
from pytest_mlperf.cli.doctor import DEFECT_EXIT_CODE, exit_code
from pytest_mlperf.cli.doctor._machine import Check, of_addons
from pytest_mlperf.core.addons import Command
from tests.addons.judge.files import DATA, write
from tests.addons.judge.recorded import serving
from tests.cli.text import Say


def named() -> dict[str, Check]:
    return {check.name: check for check in of_addons()}


@pytest.mark.usefixtures("here")
def test_a_folder_without_result_files_has_no_line() -> None:
    assert named() == {}


def test_tools_are_counted_and_other_files_left_out(here: Path) -> None:
    serving(here / "results", side=0, slower=1.0, first_day=1)
    write(here / "bench.json", (DATA / "pytest-benchmark.json").read_text("utf-8"))
    write(here / "package.json", {"name": "x"})
    write(here / "cut.json", '{"a": ')
    for folder in (".venv", "a/b/c/d/e"):
        write(here / folder / "bench.json", (DATA / "hyperfine.json").read_text("utf-8"))
    check = named()["result files"]

    assert check.text == "1 of pytest-benchmark, 5 of vllm bench serve"
    assert (check.state, check.do) == ("ok", "pytest-mlperf judge NEW... --against OLD...")


def test_judged_baselines_are_checked(say: Say, here: Path) -> None:
    old = serving(here / "old", side=0, slower=1.0, first_day=1)
    say.ends(0, "judge", old, "--baseline", "llama", "--update", "missing", "--reason", "first")
    write(here / "baselines" / "judged" / "bad.json", "{")
    checks = named()

    assert checks["llama"].text == "judged baseline: 5 runs of 5 sessions"
    assert checks["bad"].state == "defective"
    assert "git checkout" in checks["bad"].text
    assert exit_code(list(checks.values()), []) == DEFECT_EXIT_CODE


def test_a_search_is_bounded(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "MAX_SEARCHED", 3)
    serving(here / "results", side=0, slower=1.0, first_day=1)

    assert named()["result files"].text == "3 of vllm bench serve"


def test_an_add_on_that_raises_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_mlperf import registry

    broken = {"mine": Command("x", "mine", doctor="gone_module")}
    monkeypatch.setattr(registry, "declared", lambda *_: broken)

    assert [(check.name, check.state) for check in of_addons()] == [("mine", "note")]

"""`pytest-mlperf init` writes a first suite that works, or nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_mlperf.cli.init import ENGINES
from pytest_mlperf.datasets.user_prompts import UserPromptsDataset
from pytest_mlperf.suite.plan import plan_suite
from pytest_mlperf.suite.resolve import dataset_of
from tests.cli.text import Say

pytestmark = pytest.mark.usefixtures("here")


def tree(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


def test_the_suite_runs_anywhere_as_written(here: Path, say: Say) -> None:
    assert say.ends(0, "init") == (
        "wrote suites/demo.mlperf.toml\n"
        "wrote baselines/README.md\n"
        "next: pytest suites                            measure; there is no baseline yet\n"
        "      pytest suites --mlperf-update=missing    record, commit; on 3 days more\n"
        "      pytest suites --mlperf-handicap 50%      see what a failure looks like\n"
    )
    assert tree(here) == {"suites/demo.mlperf.toml", "baselines/README.md"}

    (planned,) = plan_suite(here / "suites" / "demo.mlperf.toml")

    assert planned.case.id == "demo-Offline-null-fp32-cpu"
    assert (here / "suites" / "demo.mlperf.toml").read_text("utf-8").count("# edit") == 3


def test_every_engine_has_a_first_suite_that_marks_what_to_edit(here: Path, say: Say) -> None:
    expected = {
        "null": ["demo-Offline-null-fp32-cpu"],
        "onnxruntime": [
            "my-resnet50-Offline-onnxruntime-fp32-cpu",
            "my-resnet50-SingleStream-onnxruntime-fp32-cpu",
        ],
        "torch": ["my-llm-Offline-torch-bf16-cpu"],
        "openai": ["my-server-Concurrency-my-server-fp32-cpu"],
        "vllm": ["my-llm-Concurrency-vllm-bf16-H200"],
        "tensorrt_llm": ["my-llm-Concurrency-tensorrt_llm-bf16-H200"],
    }
    assert set(expected) == set(ENGINES)
    for engine, cases in expected.items():
        say.ends(0, "init", engine, "--engine", engine)

        suite = here / engine / "suites" / "demo.mlperf.toml"
        assert [planned.case.id for planned in plan_suite(suite)] == cases
        assert suite.read_text("utf-8").count("# edit") >= 3
        assert max(map(len, suite.read_text("utf-8").splitlines())) <= 100


def test_a_form_says_what_to_edit_and_who_checks_it(say: Say) -> None:
    for engine in ("onnxruntime", "torch"):
        assert re.search(
            rf"next: edit {engine}/suites/demo.mlperf.toml +model, data, accelerator\n"
            rf" +pytest-mlperf doctor {engine}/suites +what is still missing\n"
            rf" +pytest {engine}/suites +measure; there is no baseline yet\n$",
            say.ends(0, "init", engine, "--engine", engine),
        )


@pytest.mark.parametrize("engine", ["vllm", "tensorrt_llm", "openai"])
def test_a_curve_draws_answers_that_its_engine_may_give(here: Path, engine: str, say: Say) -> None:
    say.ends(0, "init", "--engine", engine)
    suite = here / "suites" / "demo.mlperf.toml"
    (planned,) = plan_suite(suite)
    dataset = UserPromptsDataset(**dataset_of(planned).options)

    lengths = [dataset.output_tokens(index) or 0 for index in range(len(dataset))]

    most = planned.engine.options["max_new_tokens"]
    assert most / 2 < max(lengths) <= most
    assert planned.engine.options["ignore_eos"]
    assert len(set(lengths)) > 100


def test_another_folder_may_be_named(here: Path, say: Say) -> None:
    shown = say.ends(0, "init", "sub/project")

    names = {"suites/demo.mlperf.toml", "baselines/README.md"}
    assert tree(here / "sub/project") == names
    assert "next: pytest sub/project/suites " in shown
    say.ends(0, "init", here / "x")
    assert tree(here / "x") == names


@pytest.mark.parametrize("existing", ["suites/demo.mlperf.toml", "baselines/README.md"])
def test_nothing_is_overwritten_and_nothing_half_written(
    here: Path, existing: str, say: Say
) -> None:
    (here / existing).parent.mkdir()
    (here / existing).write_text("mine")

    assert say("init") == (
        2,
        f"pytest-mlperf: {existing} exists; nothing was written. "
        "Another place: pytest-mlperf init FOLDER\n",
    )
    assert tree(here) == {existing}
    assert (here / existing).read_text() == "mine"


def test_a_link_to_nowhere_is_not_written_through(here: Path, say: Say) -> None:
    (here / "suites").mkdir()
    (here / "suites" / "demo.mlperf.toml").symlink_to(here / "elsewhere")

    say.ends(2, "init")
    assert not (here / "elsewhere").exists()


@pytest.mark.parametrize("blocked", ["suites", "baselines"])
def test_all_files_are_written_or_none(here: Path, blocked: str, say: Say) -> None:
    (here / blocked).write_text("a file where a folder should be")

    assert "cannot be written: " in say.ends(2, "init")
    assert tree(here) == {blocked}

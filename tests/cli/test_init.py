"""`pytest-mlperf init` writes a first suite that works, or nothing."""

from __future__ import annotations

import re
import tomllib
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from pytest_mlperf.adapters.datasets.user_prompts import UserPromptsDataset
from pytest_mlperf.registry import first_suites
from pytest_mlperf.suite.plan import plan_suite
from pytest_mlperf.suite.resolve import dataset_of
from tests.cli.text import Say
from tests.exporters import exporting

pytestmark = pytest.mark.usefixtures("here")


def tree(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


def test_the_suite_runs_anywhere_as_written(here: Path, say: Say) -> None:
    assert say.ends(0, "init") == (
        "wrote suites/demo.mlperf.toml\n"
        "wrote baselines/README.md\n"
        "next: pytest suites                            measure, without a baseline\n"
        "      pytest suites --mlperf-update=missing    record; repeat on 3 other days\n"
        "      pytest suites --mlperf-handicap 50%      see what a failure looks like\n"
    )
    assert tree(here) == {"suites/demo.mlperf.toml", "baselines/README.md"}
    (planned,) = plan_suite(here / "suites" / "demo.mlperf.toml")
    assert planned.case.id == "demo-Offline-null-fp32-cpu"
    assert (here / "suites" / "demo.mlperf.toml").read_text("utf-8").count("# edit") == 3


def test_every_engine_has_a_first_suite_that_marks_what_to_edit(here: Path, say: Say) -> None:
    """A form names the parts to edit and the checks for them."""
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
    assert set(expected) == set(first_suites())
    outputs_by_engine = {
        engine: say.ends(0, "init", engine, "--engine", engine) for engine in expected
    }
    for engine, cases in expected.items():
        suite = here / engine / "suites" / "demo.mlperf.toml"
        assert [planned.case.id for planned in plan_suite(suite)] == cases
        assert suite.read_text("utf-8").count("# edit") >= 3
        assert max(map(len, suite.read_text("utf-8").splitlines())) <= 100

    for engine in ("onnxruntime", "torch"):
        assert re.search(
            rf"next: edit {engine}/suites/demo.mlperf.toml +model, data, accelerator\n"
            rf" +pytest-mlperf doctor {engine}/suites +check what is missing\n"
            rf" +pytest {engine}/suites +measure, without a baseline\n$",
            outputs_by_engine[engine],
        )


def test_a_curve_draws_answers_that_its_engine_may_give(here: Path, say: Say) -> None:
    for engine in ("vllm", "tensorrt_llm", "openai"):
        say.ends(0, "init", engine, "--engine", engine)
        (planned,) = plan_suite(here / engine / "suites" / "demo.mlperf.toml")
        dataset = UserPromptsDataset(**dataset_of(planned).options)
        lengths = [dataset.output_tokens(index) or 0 for index in range(len(dataset))]
        most = planned.engine.options["max_new_tokens"]
        assert most / 2 < max(lengths) <= most
        assert planned.engine.options["ignore_eos"]
        assert len(set(lengths)) > 100


def test_another_folder_may_be_named_and_a_link_to_nowhere_is_not_written_through(
    here: Path, say: Say
) -> None:
    output = say.ends(0, "init", "sub/project")
    names = {"suites/demo.mlperf.toml", "baselines/README.md"}
    assert tree(here / "sub/project") == names
    assert "next: pytest sub/project/suites " in output
    say.ends(0, "init", here / "x")
    assert tree(here / "x") == names
    (here / "suites").mkdir()
    (here / "suites" / "demo.mlperf.toml").symlink_to(here / "elsewhere")
    say.ends(2, "init")
    assert not (here / "elsewhere").exists()


def test_nothing_is_overwritten_and_nothing_half_written(here: Path, say: Say) -> None:
    """An existing file, and a file where a folder should be, leave nothing else behind."""
    for name in ("suites/demo.mlperf.toml", "baselines/README.md", "suites", "baselines"):
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).write_text("mine")
        exists = (
            f"{name} exists; nothing was written. Name another folder: pytest-mlperf init FOLDER"
        )
        output = say.ends(2, "init")
        assert (exists if "/" in name else "cannot be written: ") in output
        assert tree(here) == {name}
        assert (here / name).read_text() == "mine"
        (here / name).unlink()
        if "/" in name:
            (here / name).parent.rmdir()


LINE = '{"prompt": "1 + 1 =", "reference": "2"}\n'


@pytest.mark.parametrize("engine", ["openai", "vllm", "tensorrt_llm"])
def test_a_server_is_scored_over_prompts_with_references(
    engine: str, here: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both phases take them, and answers end where the model ends them."""
    (here / "my prompts.jsonl").write_text(LINE)
    say.ends(0, "init", "sub", "--engine", engine, "--accuracy", "my prompts.jsonl")
    suite = here / "sub/suites/demo.mlperf.toml"
    (planned,) = plan_suite(suite)
    assert (planned.scorer_name, *planned.kinds) == ("exact_match", "accuracy", "performance")
    assert ("tokenizer =" in suite.read_text("utf-8")) == (engine == "openai")
    assert planned.data.shared
    assert "ignore_eos" not in planned.engine.options
    dataset = UserPromptsDataset(**dataset_of(planned).options)
    assert (dataset.input(0), dataset.reference(0)) == ("1 + 1 =", "2")
    say.ends(0, "plan", suite)


def test_prompts_that_cannot_be_scored_are_refused_before_anything_is_written(
    here: Path, say: Say
) -> None:
    needs = 'each line must be {"prompt": "…", "reference": "…"}; nothing was written'
    for content, problem in {
        '{"prompt": "1 + 1 =", "answer": "2"}\n': "no column 'reference', the nearest is",
        f'{LINE}{{"prompt": "", "reference": "2"}}\n': "line 2",
        f'{LINE}{{"prompt": "a", "reference": 2}}\n': "line 2",
        f"{LINE}text\n": "line 2",
        "": "p.jsonl",
    }.items():
        (here / "p.jsonl").write_text(content)
        output = say.ends(2, "init", "--engine", "openai", "--accuracy", "p.jsonl")
        assert problem in output, output
        assert needs in output
        assert tree(here) == {"p.jsonl"}
    assert needs in say.ends(2, "init", "--engine", "openai", "--accuracy", "gone.jsonl")
    output = say.ends(2, "init", "--engine", "torch", "--accuracy", "p.jsonl")
    assert "--accuracy needs an engine of openai, tensorrt_llm, vllm, not torch" in output


def test_a_missing_library_is_named_with_what_installs_it(
    here: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_mlperf.cli.init.is_here", lambda _: False)
    line = "engine onnxruntime needs: pip install 'pytest-mlperf[onnx]'\n"
    assert line in say.ends(0, "init", "a", "--engine", "onnxruntime")
    assert "needs:" not in say.ends(0, "init", "b")


@pytest.mark.process
def test_a_servers_address_and_hardware_are_written_into_its_suite(
    here: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TGI names its GPUs in a header; the pages here are behind a tunnel."""

    def show(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("X-Compute-Type", "2-nvidia-h100-80gb-hbm3")
        handler.send_header("Content-Length", "2")
        handler.end_headers()
        handler.wfile.write(b"{}")

    monkeypatch.setattr("pytest_mlperf.run.server_hardware.listeners", lambda *_: set())
    with exporting(show) as server:
        url = server.url.removesuffix("/metrics")
        printed = say.ends(0, "init", "--engine", "openai", "--url", url)
    text = (here / "suites" / "demo.mlperf.toml").read_text("utf-8")
    (entry,) = tomllib.loads(text)["engines"]
    assert entry["accelerators"] == ["2xH100"]
    assert entry["options"]["url"] == url
    assert f"{url} runs on 2 x NVIDIA H100 80GB HBM3 (server)" in printed
    refused = say.ends(2, "init", "other", "--engine", "null", "--url", url)
    assert "--url needs an engine that measures a server, not null" in refused

"""Rules of every tiny twin: its baseline holds on any CPU, damage is found, its files are small."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf import registry
from pytest_mlperf.core.case import Scenario
from tests.suites.tiny_twin import LANGUAGE, TINY, UNETS, Twin, ask, load_tool, missing

pytestmark = [pytest.mark.process, pytest.mark.slow]

VISION = ("onnxruntime", "onnx")


@dataclass(frozen=True, kw_only=True)
class Row:
    """A suite of suites/tiny and how its accuracy is tested.

    Attributes:
        shared: The folder with the model, if it is another suite's.
        baseline: Name of the baseline file without its suffix.
        judged: The metric that damage moves, in the note of the verdict.
        libraries: What the suite imports; the test is skipped without them.
        file: The file of a model in a folder whose weights are damaged.
        damaged: Whether the suite's test of damaged weights is here.
        trained: The table of training.json that has the scores, if it is not the whole.
    """

    suite: str
    baseline: str = "torch.fp32"
    judged: str = ""
    libraries: tuple[str, ...] = LANGUAGE
    shared: str | None = None
    scenario: str = "Offline"
    file: str = "model.safetensors"
    damaged: bool = True
    trained: str = "scores"


ROWS = (
    Row(suite="3d-unet", baseline="onnxruntime.fp32", judged="dice", libraries=VISION),
    Row(suite="bert", baseline="onnxruntime.fp32", libraries=VISION, trained="onnxruntime"),
    Row(suite="deepseek-r1", judged="exact_match", libraries=(*LANGUAGE, "sympy", "pylatexenc")),
    Row(suite="dlrm-v2", baseline="dlrm.fp32", judged="auc", libraries=("torch",)),
    Row(suite="dlrm-v3", baseline="hstu.fp32", libraries=("torch",)),
    Row(
        suite="gpt-oss-120b",
        baseline="torch.mxfp4",
        libraries=(*LANGUAGE[:2], "sympy", "pyarrow"),
    ),
    Row(suite="gptj", judged="rouge1"),
    Row(suite="llama2-70b", judged="rouge1"),
    Row(suite="llama3.1-405b", judged="rougeL"),
    Row(suite="llama3.1-8b", judged="rouge1"),
    Row(suite="llama3.1-8b-edge", shared="llama3.1-8b", judged="rouge1", trained="edge"),
    Row(suite="mixtral-8x7b"),
    Row(
        suite="perplexity",
        shared="llama2-70b",
        judged="perplexity",
        libraries=LANGUAGE[:2],
        trained="perplexity",
    ),
    Row(suite="qwen3-vl", libraries=("torch", "transformers", "PIL")),
    Row(suite="qwen3.6", libraries=LANGUAGE[:2], scenario=Scenario.SINGLE_STREAM),
    Row(suite="resnet50", baseline="onnxruntime.fp32", judged="top1", libraries=VISION),
    Row(
        suite="retinanet",
        baseline="onnxruntime.fp32",
        judged="map",
        libraries=(*VISION, "pycocotools", "PIL"),
    ),
    Row(suite="rgat", baseline="rgat.fp32", libraries=("torch",)),
    Row(
        suite="stable-diffusion-xl",
        baseline="torch-diffusion.fp32",
        libraries=UNETS,
        damaged=False,  # test_tiny_sdxl.py damages two shares of its UNet
    ),
    Row(
        suite="wan-2.2",
        baseline="torch-video.fp32",
        libraries=UNETS,
        file="transformer_2/diffusion_pytorch_model.safetensors",
    ),
    Row(
        suite="whisper",
        baseline="torch-whisper.fp32",
        judged="accuracy",
        libraries=("torch", "transformers", "whisper_normalizer"),
    ),
    Row(
        suite="yolo",
        baseline="onnxruntime.fp32",
        judged="map",
        libraries=(*VISION, "pycocotools", "PIL"),
    ),
)


QUICK = "resnet50"
"""The twin that runs in every `make test`; of others a few samples do in testing/test_ours.py."""


def rows_of(*suites: str) -> pytest.MarkDecorator:
    """Run a test with every suite; nightly but for those that are named."""
    parameters = [
        pytest.param(row, id=row.suite, marks=[] if row.suite in suites else pytest.mark.nightly)
        for row in ROWS
    ]
    return pytest.mark.parametrize("row", parameters)


@pytest.fixture(autouse=True)
def prepared(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Skip a suite whose libraries are missing, and prepare the folder in which it runs."""
    if "row" not in request.fixturenames:
        return
    if lacking := missing(request.getfixturevalue("row").libraries):
        pytest.skip(f"needs {', '.join(lacking)}")
    # The scorers of some suites are modules beside them, which this file makes importable.
    (tmp_path / "conftest.py").symlink_to(TINY.parent / "conftest.py")


def test_the_table_has_every_suite_and_files_are_small() -> None:
    suites = {file.name.removesuffix(".mlperf.toml") for file in TINY.glob("*.mlperf.toml")}
    assert {row.suite for row in ROWS} == suites - {"llama2-70b-interactive"}
    folders = [folder for folder in TINY.iterdir() if folder.is_dir()]
    sizes = {
        folder.name: [file.stat().st_size for file in folder.rglob("*") if file.is_file()]
        for folder in folders
    }
    assert {name: sum(each) for name, each in sizes.items() if sum(each) > 5e6} == {}
    assert {name: max(each) for name, each in sizes.items() if max(each) > 4.3e6} == {}


def test_references_and_data_are_those_that_the_trainers_wrote_down() -> None:
    wrong: list[tuple[object, ...]] = []
    for row in ROWS:
        workload = tomllib.loads((TINY / f"{row.suite}.mlperf.toml").read_text("utf-8"))["workload"]
        twin = None if missing(row.libraries) else Twin(row.suite, shared=row.shared)
        training = json.loads((TINY / (row.shared or row.suite) / "training.json").read_text())
        figures = {**training, **training.get(row.trained, {})}
        for metric, reference in workload["reference"].items():
            # "map" is map_onnxruntime; tokens with the end token are rounded in the suite.
            reached = [figures[name] for name in figures if name.startswith(metric)]
            if reference not in [*reached, *(round(figure, 1) for figure in reached)]:
                wrong.append((row.suite, metric, reference, reached))
        if twin and not row.shared and "dataset_digest" in training:
            wrong += [(row.suite, "digest")] * (twin.dataset.digest != training["dataset_digest"])
        bounds = twin.planned.bounds(()) if twin else None
        for metric, bound in (bounds or {}).items():
            chance = chance_of(training, metric)
            if chance is not None and bound.missed(chance) is None:
                wrong.append((row.suite, metric, "chance", chance))

    assert wrong == []


def chance_of(training: dict[str, Any], metric: str) -> float | None:
    """Return what guesses score, if the trainer measured it; a guess is of the usual length."""
    guessed = training.get("chance")
    if metric == "tokens_per_sample":
        return None
    if isinstance(guessed, dict):
        of_metric: float | None = guessed.get(metric)
        return of_metric
    return training.get(f"chance_{metric}", guessed)


@rows_of(QUICK)
def test_the_committed_baseline_holds_here(row: Row, tmp_path: Path) -> None:
    verdict = Twin(row.suite, shared=row.shared).verdict(tmp_path, scenario=row.scenario)

    assert verdict["outcome"] == "ok", verdict["headline"]
    assert verdict["baseline"]["file"].endswith(f"tiny-{row.suite}/{row.baseline}.json")
    judged = {metric["metric"] for metric in verdict["paired"] if metric["outcome"]}
    assert row.judged in judged or not row.judged


def test_damaged_weights_score_less_than_the_gate(tmp_path: Path) -> None:
    if lacking := missing(VISION):
        pytest.skip(f"needs {', '.join(lacking)}")
    twin = Twin(QUICK)
    load_tool("damage_onnx").damage(twin.model, tmp_path / "damaged.onnx")

    scores = twin.score(twin.answers(tmp_path / "damaged.onnx")).aggregate

    assert scores["top1"] < twin.gate("top1")


@rows_of()
def test_damaged_weights_fail_the_gate_and_the_baseline(row: Row, tmp_path: Path) -> None:
    if not row.damaged:
        pytest.skip("its own file has this test")
    twin, parameters = Twin(row.suite, shared=row.shared), None
    if twin.model.is_dir():
        copy = tmp_path / "damaged" / "model"
        copy.parent.mkdir()
        count = load_tool("damage_weights").damage(twin.model, copy, file=row.file)
    else:
        copy = tmp_path / "damaged.onnx"
        count = load_tool("damage_onnx").damage(twin.model, copy)
    parameters = twin.training.get("parameters", count / 0.01)
    if isinstance(parameters, dict):
        parameters = parameters[row.file.partition("/")[0]]

    verdict = twin.verdict(tmp_path, model=copy, scenario=row.scenario)

    assert count == pytest.approx(0.01 * parameters, rel=0.2)
    assert verdict["outcome"] == "GATE FAIL"
    drop = f"against the baseline: ACC DROP {row.judged}".strip()
    assert any(note.startswith(drop) for note in verdict["notes"]), verdict["notes"]


@pytest.mark.nightly
@pytest.mark.parametrize("suite", ["qwen3-vl", "qwen3.6"])
def test_samples_that_come_one_by_one_are_answered_alike(suite: str) -> None:
    """As Server and Interactive send them; those that wait share a batch."""
    if lacking := missing(next(row.libraries for row in ROWS if row.suite == suite)):
        pytest.skip(f"needs {', '.join(lacking)}")
    twin, count = Twin(suite), 24
    build = registry.resolve(twin.engine.target)

    alone = ask(build(**twin.engine_options(twin.dataset)), count, one_by_one=True)

    assert sum(map(bytes.__eq__, alone, twin.answers())) >= count - 1

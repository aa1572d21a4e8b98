"""Our own engines, data sets, scorers and builders keep the contracts that others' are checked by.

The tiny suites have one of each: a trained model, data in the form of MLPerf's, and a scorer.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf import Dataset, registry
from pytest_mlperf.builders import llmcompressor, modelopt, torchao, torchao_unet
from pytest_mlperf.testing import check_builder, check_dataset, check_engine, check_scorer

pytestmark = pytest.mark.process

TINY = Path(__file__).resolve().parents[2] / "suites" / "tiny"

SCORERS = {
    "3d-unet": "dice",
    "bert": "squad",
    "dlrm-v2": "auc",
    "dlrm-v3": "ranking",
    "gptj": "rouge",
    "llama2-70b": "rouge",
    "mixtral-8x7b": "mixtral",
    "qwen3-vl": "category_f1",
    "resnet50": "top1",
    "retinanet": "map",
    "rgat": "top1",
    "stable-diffusion-xl": "clip_fid",
    "whisper": "word_accuracy",
    "yolo": "map",
}
"""Of each suite its scorer: its own, or the one of its round."""

LANGUAGE = {"gptj", "llama2-70b", "mixtral-8x7b", "qwen3-vl"}
"""Suites of language models, whose tokens are counted."""

SAMPLES = 6

ELSEWHERE: dict[str, dict[str, str]] = {
    "datasets": {
        "bfcl": "datasets/test_bfcl.py",
        "conversations": "datasets/test_conversations.py",
        "frames": "datasets/test_frames_questions.py",
        "frames-pages": "datasets/test_frames_questions.py",
        "graded": "datasets/test_graded.py",
        "prompts": "datasets/test_user_prompts.py",
        "synthetic": "datasets/test_synthetic.py",
        "vbench": "datasets/test_vbench.py",
        "waymo": "datasets/test_waymo.py",
    },
    "engines": {
        "endpoints": "engines/openai/test_endpoints.py",
        "null": "engines/test_null.py",
        "openai": "engines/openai/test_answers.py",
        "recorded": "engines/test_recorded.py",
        "tensorrt": "engines/onnxruntime/test_tensorrt.py",
        "tensorrt_llm": "engines/tensorrt_llm/test_answers.py",
        "torch-video": "engines/torch/test_video.py",
        "triton": "engines/triton/test_answers.py",
        "vllm": "engines/vllm/test_answers.py",
    },
    "scorers": {
        "deepseek_r1": "scorers/test_reasoning.py",
        "evaluate": "scorers/evaluate_driver.py",
        "gpt_oss": "scorers/test_reasoning.py",
        "gsm8k": "scorers/test_gsm8k.py",
        "long_context": "scorers/test_long_context.py",
        "mbxp": "scorers/test_mbxp.py",
        "function_calls": "scorers/test_function_calls.py",
        "ingestion": "scorers/test_ingestion.py",
        "judged": "scorers/test_judged.py",
        "pointpainting": "scorers/test_boxes3d.py",
        "ranking": "scorers/test_ranking.py",
        "vbench": "scorers/test_vbench.py",
    },
    "builders": {},
}
"""What no tiny suite uses: where below tests/ it is checked, by a server, a stand-in or alone."""


def read(name: str) -> dict[str, Any]:
    suite: dict[str, Any] = tomllib.loads((TINY / f"{name}.mlperf.toml").read_text("utf-8"))
    return suite


def options_of(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a table of a suite, with paths as the plan gives them."""
    return {
        key: str(TINY / value) if key in {"path", "statistics"} else value
        for key, value in table.items()
        if key != "use"
    }


def factory(group: registry.Group, use: str) -> Any:
    return registry.resolve(registry.target(group, use))


@cache
def data_of(name: str) -> Dataset:
    table = read(name)["workload"]["dataset"]
    options = options_of(table)
    return check_dataset(factory("datasets", table["use"]), options=options, samples=SAMPLES)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:`upcast_vae` is deprecated:FutureWarning")
@pytest.mark.parametrize("name", sorted(SCORERS))
def test_data_engines_and_scorers_of_the_tiny_suites(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = read(name)
    entry, scorer = suite["engines"][0], suite["workload"].get("scorer", {"use": SCORERS[name]})
    for library in factory("engines", entry["use"]).libraries:
        pytest.importorskip(library)
    for library in getattr(factory("scorers", scorer["use"]), "libraries", ()):
        pytest.importorskip(library)
    monkeypatch.syspath_prepend(str(TINY / "stable-diffusion-xl"))
    model = str(TINY / suite["workload"]["model"])

    answers = check_engine(
        factory("engines", entry["use"]),
        data_of(name),
        model=model,
        precision=entry["precision"],
        options=entry["options"],
        tokens=name in LANGUAGE,
        samples=SAMPLES,
        same_answers=name not in SCATTERED,
    )
    scores = check_scorer(
        factory("scorers", scorer["use"]),
        [answers[index] for index in range(SAMPLES)],
        [data_of(name).reference(index) for index in range(SAMPLES)],
        model=model,
        options=options_of(scorer),
        any_order=name not in IN_ORDER,
    )

    assert len(data_of(name)) >= SAMPLES
    assert set(suite["workload"]["reference"]) <= set(scores.aggregate)
    sys.modules.pop("coloured_digits", None)


IN_ORDER = {"bert", "stable-diffusion-xl"}
"""Windows of one question share its score; FID of few images has few digits that are no chance."""

SCATTERED = {"3d-unet", "dlrm-v2", "dlrm-v3", "stable-diffusion-xl"}
"""Answers are sums of floats, whose last bits depend on what is computed together."""


def test_builders_say_what_they_make() -> None:
    for module in (torchao, torchao_unet, modelopt, llmcompressor):
        name = module.__name__.rpartition(".")[2].replace("_", "-")
        for recipe in module.RECIPES:
            check_builder(factory("builders", name), recipe=recipe)


def test_every_extension_is_checked_here_or_elsewhere() -> None:
    suites = [read(name) for name in SCORERS]
    used = {
        "datasets": {suite["workload"]["dataset"]["use"] for suite in suites},
        "engines": {suite["engines"][0]["use"] for suite in suites},
        "scorers": {*SCORERS.values()},
        "builders": {"torchao", "torchao-unet", "modelopt", "llmcompressor"},
    }
    groups: tuple[registry.Group, ...] = ("datasets", "engines", "scorers", "builders")
    ours = {
        group: {
            name
            for name, entry in registry.registered(group).items()
            if entry.value.startswith("pytest_mlperf.")
        }
        for group in groups
    }

    assert ours == {group: used[group] | set(ELSEWHERE[group]) for group in groups}


def test_what_no_suite_uses_is_checked_where_that_is_said() -> None:
    """The file hands the class to the check of its kind."""
    unchecked = []
    for group, files in ELSEWHERE.items():
        for name, file in files.items():
            tree = ast.parse((TINY.parents[1] / "tests" / file).read_text("utf-8"))
            checked = {
                call.args[0].id
                for call in ast.walk(tree)
                if isinstance(call, ast.Call)
                and isinstance(call.func, ast.Name)
                and call.func.id == f"check_{group[:-1]}"
                and isinstance(call.args[0], ast.Name)
            }
            if registry.target(group, name).partition(":")[2] not in checked:  # type: ignore[arg-type]
                unchecked.append((group, name, file))

    assert unchecked == []

"""README and docs name only what exists."""

from __future__ import annotations

import json
import re
import tomllib
from functools import reduce
from operator import getitem
from typing import Any

from pytest_mlperf.core.case import TECHNIQUES
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.suite.claims import claim_defects
from pytest_mlperf.suite.model import Suite
from pytest_mlperf.suite.tables import EngineEntry
from tests.docs.pages import PAGES, ROOT


def test_every_option_and_make_target_that_is_named_exists(reference: Any) -> None:
    options = {option.name for option in reference("options").options()}
    options.add("--mlperf-contract")  # which readers of docs/extending.md write
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    absent: list[str] = []
    for page in PAGES:
        if page.name == "CHANGELOG.md":  # names what is gone as well
            continue
        text = page.read_text("utf-8")
        absent += set(re.findall(r"--mlperf-[a-z][a-z-]*", text)) - options
        absent += set(re.findall(r"^\$ make ([a-z-]+)", text, re.MULTILINE)) - targets

    assert absent == []


def test_every_included_suite_is_in_the_table_with_its_cases() -> None:
    """docs/suites.md has a row for each: its engines, their precisions, the accelerators."""
    rows = re.findall(
        r"^\| \[(\S+)\]\(\.\./suites/\1\) \| (.+) \| (.+) \|$",
        (ROOT / "docs/suites.md").read_text("utf-8"),
        re.MULTILINE,
    )
    listed = {}
    for file, engines, accelerators in rows:
        words = [part.split(": ") for part in engines.split("; ")]
        runs = {(use, each) for use, precisions in words for each in precisions.split(", ")}
        listed[file] = (runs, set(accelerators.split(", ")))

    here = {}
    for path in sorted((ROOT / "suites").rglob("*.mlperf.toml")):
        entries = tomllib.loads(path.read_text("utf-8"))["engines"]
        runs = {(one["use"], one.get("precision", "fp32")) for one in entries}
        accelerators = {each for one in entries for each in one["accelerators"]}
        here[path.relative_to(ROOT / "suites").as_posix()] = (runs, accelerators)
    assert len(here) > 40
    assert listed == here


def test_every_outcome_is_explained_and_the_lack_of_verification_is_stated() -> None:
    """docs/outcomes.md has a row for each word a verdict can end in."""
    text = (ROOT / "docs" / "outcomes.md").read_text("utf-8")
    readme = " ".join((ROOT / "README.md").read_text("utf-8").split())

    assert [o for o in Outcome if f"| {o} |" not in text] == []
    assert "not affiliated" in readme
    assert "not verified by MLCommons Association" in readme


def test_the_examples_of_suites_and_of_the_open_division_are_suites() -> None:
    """They are accepted as they stand, and the table of techniques is the code's."""
    text = (ROOT / "docs" / "suites.md").read_text("utf-8")
    first, phases, on, second = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    head = 'schema = 1\nround = "v4.1"\n'

    suite = Suite.model_validate(tomllib.loads(first))
    assert suite.workload.name == "tiny-resnet50"
    engine = '[[engines]]\nuse = "null"\n'
    newest = head.replace("v4.1", "v6.1")
    by_phase = Suite.model_validate(tomllib.loads(newest + phases + engine))
    assert by_phase.workload.accuracy_dataset is not None
    (entry,) = tomllib.loads(on)["engines"]
    both = EngineEntry.model_validate(entry)
    assert (both.replicas_on("2xH100"), both.replicas_on("8xH100")) == (1, 4)
    assert Suite.model_validate(tomllib.loads(head + second)).workload.name == "llama2-70b-99.9"
    text = (ROOT / "docs" / "open-division.md").read_text("utf-8")
    first, second = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    head = 'schema = 1\nround = "v4.1"\n'
    assert Suite.model_validate(tomllib.loads(head + first)).reference_engine is not None
    open_ = Suite.model_validate(tomllib.loads(head + second))
    assert list(claim_defects(open_)) == []
    assert dict(re.findall(r"^\| `(.*?)` \| (.*) \|$", text, re.MULTILINE)).items() >= (
        TECHNIQUES.items()
    )


TWINS = {
    "resnet50": {"top-1": "top1_onnxruntime_percent/"},
    "yolo": {"mAP": "map_onnxruntime/map_of_another_image"},
    "retinanet": {"mAP": "map_onnxruntime/map_of_another_image"},
    "3d-unet": {"Dice": "dice/dice_of_shuffled_voxels"},
    "bert": {"F1": "onnxruntime.f1/chance.any_fact.f1"},
    "dlrm-v2": {"AUC": "auc/chance_auc"},
    "dlrm-v3": {
        "NE": "normalized_entropy/chance_normalized_entropy",
        "accuracy": "accuracy/chance_accuracy",
        "GAUC": "gauc/chance_gauc",
    },
    "gptj": {"ROUGE-1": "rouge1"},
    "llama2-70b": {"ROUGE-1": "rouge1/chance.rouge1"},
    "deepseek-r1": {"exact_match": "exact_match"},
    "llama3.1-405b": {"rougeL": "rougeL", "exact_match": "exact_match"},
    "llama3.1-8b": {"ROUGE-1": "rouge1"},
    "gpt-oss-120b": {"exact_match": "exact_match"},
    "mixtral-8x7b": {"ROUGE-1": "rouge1", "GSM8K": "gsm8k", "MBXP": "mbxp"},
    "qwen3-vl": {"hF1": "f1"},
    "qwen3.6": {"accuracy": "accuracy", "normalized": "normalized"},
    "whisper": {"accuracy": "accuracy/chance"},
    "rgat": {"top-1": "top1/chance"},
    "stable-diffusion-xl": {"CLIP": "clip/of_other_captions.clip", "FID": "fid/of_noise.fid"},
    "wan-2.2": {"moving_digits": "moving_digits/of_other_prompts"},
}
"""Where training.json has the scores of docs/tiny.md, and those of chance: `scores.X/chance.X`
unless both are named."""


def test_the_page_of_the_tiny_twins_has_the_figures_of_their_trainers() -> None:
    """Every model of suites/tiny is on it, with its scores and those of chance to three digits."""
    page = (ROOT / "docs" / "tiny.md").read_text("utf-8")
    rows = re.findall(r"\| ([\w-]+) ([\d.]+) \| ([\d.]+) \|$", page, re.MULTILINE)
    expected = []
    for name, scores in TWINS.items():
        training = json.loads((ROOT / "suites/tiny" / name / "training.json").read_text("utf-8"))
        for score, keys in scores.items():
            both = keys.split("/") if "/" in keys else [f"scores.{keys}", f"chance.{keys}"]
            values = [reduce(getitem, key.split("."), training) if key else 10.0 for key in both]
            expected.append((score, *(f"{value:.3f}" for value in values)))

    assert sorted(rows) == sorted(expected)
    suites = (ROOT / "suites/tiny").glob("*.toml")
    models = {tomllib.loads(one.read_text("utf-8"))["workload"]["model"] for one in suites}
    assert {model.split("/")[0] for model in models} == set(TWINS)

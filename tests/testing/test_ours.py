"""Our own engines, data sets, scorers and builders keep the contracts that others' are checked by.

The tiny suites have one of each: a trained model, data in the form of MLPerf's, and a scorer.
"""

from __future__ import annotations

import importlib
import re
import sys
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf import Dataset, registry
from pytest_mlperf.testing import check_builder, check_dataset, check_engine, check_scorer
from tests.adapters.datasets.test_files import WITHOUT_SUITE

pytestmark = [pytest.mark.process, pytest.mark.torch]

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

QUICK = {"3d-unet", "bert", "dlrm-v3", "gptj", "resnet50", "rgat", "yolo"}
"""Suites that run in every `make test`: each with another engine or another kind of scorer."""

SAMPLES = 3

OWN_BUILDERS = {
    name: entry
    for name, entry in registry.registered("builders").items()
    if entry.module.startswith("pytest_mlperf.")
}
"""All of this package: each lists its recipes in RECIPES of its module."""


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
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in QUICK else pytest.mark.nightly)
        for name in sorted(SCORERS)
    ],
)
def test_data_engines_and_scorers_of_the_tiny_suites(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(data_of(name)) >= SAMPLES
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

    assert set(suite["workload"]["reference"]) <= set(scores.aggregate)
    sys.modules.pop("coloured_digits", None)


IN_ORDER = {"bert", "stable-diffusion-xl"}
"""Windows of one question share its score; FID of few images has few digits that are no chance."""

SCATTERED = {"3d-unet", "dlrm-v2", "dlrm-v3", "stable-diffusion-xl"}
"""Answers are sums of floats, whose last bits depend on what is computed together."""


def test_builders_describe_their_output() -> None:
    for name, entry in OWN_BUILDERS.items():
        for recipe in importlib.import_module(entry.module).RECIPES:
            check_builder(factory("builders", name), recipe=recipe)


def test_every_extension_is_checked_here_or_in_a_test_of_its_own() -> None:
    """Some file below tests/ hands the class to the check of its kind: `check_engine(Engine`."""
    suites = [read(name) for name in SCORERS]
    used = {
        "datasets": {suite["workload"]["dataset"]["use"] for suite in suites} | {*WITHOUT_SUITE},
        "engines": {suite["engines"][0]["use"] for suite in suites},
        "scorers": {*SCORERS.values()},
        "builders": {*OWN_BUILDERS},
    }
    texts = [file.read_text("utf-8") for file in Path(__file__).parents[1].rglob("*.py")]
    checked = {call for text in texts for call in re.findall(r"check_\w+\(\s*\w+", text)}
    calls = {re.sub(r"\s", "", call) for call in checked}
    groups: tuple[registry.Group, ...] = ("datasets", "engines", "scorers", "builders")
    unchecked = [
        (group, name)
        for group in groups
        for name, entry in registry.registered(group).items()
        if entry.value.startswith("pytest_mlperf.") and name not in used[group]
        if f"check_{group[:-1]}({entry.value.partition(':')[2]}" not in calls
    ]

    assert unchecked == []

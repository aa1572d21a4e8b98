"""Which engine loads what which recipe makes: docs, builders, engines and limits say the same."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.builders import llmcompressor, modelopt, torchao
from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.core.roofline.precision import PRECISIONS
from pytest_mlperf.engines import tasks
from pytest_mlperf.engines.onnxruntime import tensorrt_options
from pytest_mlperf.engines.tensorrt_llm import quantisation as tensorrt_llm
from pytest_mlperf.engines.torch import options as torch
from pytest_mlperf.engines.vllm import quantisation as vllm
from pytest_mlperf.registry import registered, resolve
from pytest_mlperf.suite.plan import plan_suite

PAGE = Path(__file__).parents[2] / "docs/quantised-builds.md"

RECIPES: dict[str, Mapping[str, Any]] = {
    "torchao": torchao.RECIPES,
    "llmcompressor": llmcompressor.RECIPES,
    "modelopt": modelopt.RECIPES,
}

WORDS = {
    "torch": torch.PRECISIONS,
    "vllm": (*vllm.DTYPES, *vllm.QUANTISED),
    "tensorrt_llm": tensorrt_llm.PRECISIONS,
}
"""Of the engines that load checkpoints of language models: what they call precisions."""

OTHER_WORDS = {*tasks.PRECISIONS, *tensorrt_options.PRECISIONS} - {"fp64"}
"""fp64 is no precision of inference, and no data sheet's peak here."""

SUITE = """\
schema = 1
round = "v4.1"
[workload]
name = "mine"
model = "m"
dataset = {{ use = "synthetic", samples = 32 }}
[[engines]]
use = "{engine}"
precision = "{precision}"
build = {{ use = "{builder}", recipe = "{recipe}"{calibration} }}
[[scenarios]]
name = "Offline"
"""


@dataclass(frozen=True, kw_only=True)
class Row:
    """What the page says of a recipe."""

    precision: str
    engines: frozenset[str]
    calibrates: bool


def rows() -> Iterator[tuple[tuple[str, str], Row]]:
    """Yield the rows of the page's table by builder and recipe."""
    builder = ""
    for line in PAGE.read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) != 5 or cells[4] not in {"none", "yes"}:
            continue
        builder = cells[0].strip("`") or builder
        (precision,) = re.findall(r"`([^`]+)`", cells[2])
        engines = frozenset(cells[3].split(", ")) - {"none of these"}
        row = Row(precision=precision, engines=engines, calibrates=cells[4] == "yes")
        for recipe in re.findall(r"`([^`]+)`", cells[1]):
            yield (builder, recipe), row


TABLE = dict(rows())


def complaint(folder: Path, engine: str, builder: str, recipe: str, precision: str) -> str:
    """Return what is said of a suite when it is read; "" where nothing is wrong."""
    calibration = ", calibration = 16" if TABLE[builder, recipe].calibrates else ""
    given: dict[str, Any] = {"engine": engine, "builder": builder, "recipe": recipe}
    text = SUITE.format(**given, precision=precision, calibration=calibration)
    file = folder / "s.mlperf.toml"
    file.write_text(text, "utf-8")
    try:
        plan_suite(file)
    except SuiteError as error:
        return str(error)
    return ""


def test_the_page_names_every_recipe_and_no_other() -> None:
    made = {
        (builder, name): recipe
        for builder, recipes in RECIPES.items()
        for name, recipe in recipes.items()
    }

    assert {key: row.precision for key, row in TABLE.items()} == {
        key: recipe.precision for key, recipe in made.items()
    }
    assert {row.precision for row in TABLE.values()} <= set(PRECISIONS)


@pytest.mark.parametrize(("builder", "recipe"), TABLE)
def test_a_pair_is_accepted_by_both_sides_or_by_neither(
    builder: str, recipe: str, tmp_path: Path
) -> None:
    """What is refused says which engines do, which word it is, or which there are."""
    row = TABLE[builder, recipe]
    for engine, precision in itertools.product(WORDS, sorted(PRECISIONS)):
        said = complaint(tmp_path, engine, builder, recipe, precision)

        if precision == row.precision and engine in row.engines:
            assert said == "", (engine, precision)
        elif precision == row.precision:
            assert all(other in said for other in row.engines), (engine, precision, said)
            assert "does not load" in said, (engine, precision, said)
        else:
            assert f'write precision = "{row.precision}"' in said, (engine, precision, said)


def test_engines_load_only_what_they_have_a_word_for() -> None:
    for name, entry in registered("engines").items():
        loads = getattr(resolve(entry.value), "checkpoints", {})
        if entry.value.startswith("pytest_mlperf."):
            assert {word for words in loads.values() for word in words} <= set(WORDS.get(name, ()))


@pytest.mark.parametrize("word", sorted({*OTHER_WORDS, *itertools.chain(*WORDS.values())}))
def test_every_word_of_an_engine_has_a_physical_limit(word: str) -> None:
    """Else a run in this precision could never be called impossible."""
    assert word in PRECISIONS

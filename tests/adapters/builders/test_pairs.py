"""Which engine loads what which recipe makes: docs, builders, engines and limits say the same."""

from __future__ import annotations

import importlib.util
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_mlperf.adapters.builders import llmcompressor, modelopt, torchao, torchao_unet
from pytest_mlperf.adapters.engines import tasks, tensorrt_llm, vllm
from pytest_mlperf.adapters.engines.llm.model_folder import quantisation_of, read_config
from pytest_mlperf.adapters.engines.onnxruntime import tensorrt as tensorrt_options
from pytest_mlperf.adapters.engines.torch import _base as torch
from pytest_mlperf.adapters.engines.torch._base import FORMAT_LIBRARIES, check_quantised
from pytest_mlperf.core.case import PRECISION_NAMES, path_part
from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.core.roofline.gpu import PRECISIONS
from pytest_mlperf.registry import registered, resolve
from pytest_mlperf.suite.plan import plan_suite

PAGE = Path(__file__).parents[3] / "docs/quantised-builds.md"

RECIPES: dict[str, Mapping[str, Any]] = {
    "torchao": torchao.RECIPES,
    "torchao-unet": torchao_unet.RECIPES,
    "llmcompressor": llmcompressor.RECIPES,
    "modelopt": modelopt.RECIPES,
}

WORDS = {
    "torch": (*torch.PRECISIONS, torch.STORED),
    "torch-diffusion": torch.PRECISIONS,
    "vllm": vllm.PRECISIONS,
    "tensorrt_llm": tensorrt_llm.PRECISIONS,
}
"""Of the engines that load checkpoints: what they call precisions."""

OTHER_WORDS = {*tasks.PRECISIONS, *tensorrt_options.PRECISIONS}

WRITTEN: dict[tuple[str, str], dict[str, Any]] = {
    **{
        ("modelopt", recipe): {"quant_method": "modelopt", "quant_algo": algorithm}
        for recipe, algorithm in {
            "fp8": "FP8",
            "int8-smoothquant": "W8A8_SQ_PER_CHANNEL",
            "int4-awq": "W4A16_AWQ",
            "w4a8-awq": "W4A8_AWQ",
            "nvfp4": "NVFP4",
        }.items()
    },
    **{
        ("llmcompressor", recipe): {
            "quant_method": "compressed-tensors",
            "config_groups": {"group_0": {"weights": {"type": kind, "num_bits": bits}}},
        }
        for kind, bits, recipes in (
            ("int", 8, ("int8", "int8-gptq", "int8-smoothquant")),
            ("int", 4, ("int4", "int4-gptq", "int4-awq")),
            ("float", 8, ("fp8", "fp8-static")),
            ("float", 4, ("nvfp4",)),
        )
        for recipe in recipes
    },
    **{
        (builder, recipe): {
            "quant_method": "torchao",
            "quant_type": {"default": {"_type": configuration, "_data": data}},
        }
        for builder, recipe, configuration, data in (
            ("torchao", "int8", "Int8WeightOnlyConfig", {}),
            ("torchao", "int8-dynamic", "Int8DynamicActivationInt8WeightConfig", {}),
            ("torchao", "int4", "IntxWeightOnlyConfig", {"weight_dtype": {"_data": "torch.int4"}}),
            ("torchao", "fp8", "Float8WeightOnlyConfig", {}),
            ("torchao", "fp8-dynamic", "Float8DynamicActivationFloat8WeightConfig", {}),
            ("torchao-unet", "int8-smoothquant", "Int8StaticActivationInt8WeightConfig", {}),
            ("torchao-unet", "fp8-static", "Float8DynamicActivationFloat8WeightConfig", {}),
        )
    },
}
"""quantization_config of what each recipe makes, as its library writes it."""

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
    """A row of the page's table of recipes."""

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
    """Return the error message of reading a suite, or "" if it is valid."""
    calibration = ", calibration = 16" if TABLE[builder, recipe].calibrates else ""
    fields: dict[str, Any] = {"engine": engine, "builder": builder, "recipe": recipe}
    text = SUITE.format(**fields, precision=precision, calibration=calibration)
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


def test_a_pair_is_accepted_by_both_sides_or_by_neither(tmp_path: Path) -> None:
    """A wrong precision is tried with each recipe, and with the first recipe each of them."""
    failures = []
    others = itertools.cycle(itertools.product(WORDS, sorted(PRECISIONS)))
    for number, ((builder, recipe), row) in enumerate(TABLE.items()):
        tried = [(engine, row.precision) for engine in WORDS]
        tried += itertools.islice(others, len(WORDS) * len(PRECISIONS) if number == 0 else 3)
        for engine, precision in tried:
            text = complaint(tmp_path, engine, builder, recipe, precision)
            if precision != row.precision:
                expected = f'write precision = "{row.precision}"' in text
            elif engine in row.engines:
                expected = text == ""
            else:
                expected = "does not load" in text and all(each in text for each in row.engines)
            if not expected:
                failures.append((builder, recipe, engine, precision, text))

    assert failures == []


def test_engines_load_only_precisions_that_they_declare() -> None:
    for name, entry in registered("engines").items():
        loads = getattr(resolve(entry.value), "checkpoints", {})
        if entry.value.startswith("pytest_mlperf."):
            assert {word for words in loads.values() for word in words} <= set(WORDS.get(name, ()))


def test_there_is_one_list_of_words_each_with_a_physical_limit() -> None:
    """Recipes, engines and limits take theirs of it; a baseline's file can be named by each."""
    recipes = {recipe.precision for group in RECIPES.values() for recipe in group.values()}

    assert set(PRECISIONS) == set(PRECISION_NAMES)
    assert recipes | OTHER_WORDS | set(itertools.chain(*WORDS.values())) <= set(PRECISION_NAMES)
    assert [path_part("precision", word) for word in PRECISION_NAMES] == list(PRECISION_NAMES)


def test_a_recipes_checkpoint_is_read_as_its_precision(tmp_path: Path) -> None:
    """The builder demands a word of the suite; the engine finds the same in the checkpoint."""
    for (builder, recipe), row in TABLE.items():
        (tmp_path / "config.json").write_text(
            json.dumps({"quantization_config": WRITTEN[builder, recipe]}), "utf-8"
        )
        config = read_config(tmp_path)
        assert row.precision in quantisation_of(config.quantization).names
        for engine in row.engines & set(WORDS):
            if engine == "vllm":
                vllm.check_agrees(tmp_path, row.precision, None, config)
            elif engine == "tensorrt_llm":
                tensorrt_llm.read_weights(tmp_path, row.precision, config)
            elif importlib.util.find_spec(
                FORMAT_LIBRARIES[str(config.quantization["quant_method"])]
            ):
                check_quantised(tmp_path, config.quantization, row.precision)

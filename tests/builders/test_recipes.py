"""What a suite may say to builders, and how a recipe names a case; nothing is built."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.builders import llmcompressor, modelopt, torchao, torchao_unet
from pytest_mlperf.builders.llmcompressor import LlmCompressorBuilder
from pytest_mlperf.builders.modelopt import ModelOptBuilder
from pytest_mlperf.builders.torchao import TorchAoBuilder
from pytest_mlperf.builders.torchao_unet import TorchAoUnetBuilder
from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.core.extension import Builder
from pytest_mlperf.registry import registered
from pytest_mlperf.suite.plan import plan_suite
from pytest_mlperf.suite.tables import EngineEntry

BUILDERS: dict[str, tuple[type[Any], Mapping[str, Any]]] = {
    "torchao": (TorchAoBuilder, torchao.RECIPES),
    "torchao-unet": (TorchAoUnetBuilder, torchao_unet.RECIPES),
    "modelopt": (ModelOptBuilder, modelopt.RECIPES),
    "llmcompressor": (LlmCompressorBuilder, llmcompressor.RECIPES),
}

SUITE = """\
schema = 1
round = "v4.1"
[workload]
name = "mine"
dataset = {{ use = "synthetic", samples = 32 }}
{model}
{engines}
[[scenarios]]
name = "Offline"
"""


def suite(folder: Path, *builds: str, precision: str = "int8", model: str = "m") -> Path:
    """Write a suite with an engine entry for each build."""
    path = folder / "s.mlperf.toml"
    entry = f'[[engines]]\nuse = "null"\nprecision = "{precision}"\nbuild = {{ BUILD }}\n'
    engines = "".join(entry.replace("BUILD", build) for build in builds)
    path.write_text(SUITE.format(model=f'model = "{model}"' if model else "", engines=engines))
    return path


def ids(path: Path) -> list[str]:
    return [planned.case.id for planned in plan_suite(path)]


def test_the_builders_are_registered() -> None:
    assert set(BUILDERS) <= set(registered("builders"))


@pytest.mark.parametrize("name", sorted(BUILDERS))
def test_every_recipe_says_what_it_makes(name: str) -> None:
    factory, recipes = BUILDERS[name]
    for recipe in recipes:
        built: Builder = factory(recipe=recipe)

        assert built.precision
        assert recipe.startswith(built.precision)
    assert factory.libraries[1:3] == ("torch", "transformers")


@pytest.mark.parametrize(
    ("factory", "options", "message"),
    [
        (TorchAoBuilder, {"recipe": "int3"}, "recipe = 'int3' is not one of int8, int8-dynamic,"),
        (
            TorchAoBuilder,
            {"recipe": "int4", "group_size": 7},
            "group_size = 7 is not one of 16, 32",
        ),
        (TorchAoBuilder, {"recipe": "int8", "device": "gpu"}, "device = 'gpu' is not cpu, cuda or"),
        (
            ModelOptBuilder,
            {"recipe": "int8"},
            "recipe = 'int8' is not one of fp8, int8-smoothquant",
        ),
        (ModelOptBuilder, {"recipe": "fp8", "kv_cache": "int8"}, "kv_cache = 'int8' is not fp8 or"),
        (
            LlmCompressorBuilder,
            {"recipe": "int8", "max_prompt_tokens": 0},
            "max_prompt_tokens = 0 is not at least 1",
        ),
        (LlmCompressorBuilder, {"recipe": "fp4"}, "recipe = 'fp4' is not one of int8, int8-gptq"),
    ],
)
def test_what_means_nothing_is_refused(
    factory: type[Builder], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SuiteError, match="^builder .*" + message):
        factory(**options)


@pytest.mark.process
def test_no_library_is_imported_to_read_a_suite() -> None:
    code = (
        "import sys, pytest_mlperf.builders.torchao, pytest_mlperf.builders.modelopt, "
        "pytest_mlperf.builders.llmcompressor as l; l.LlmCompressorBuilder(recipe='int8'); "
        "heavy = {'torch', 'transformers', 'numpy', 'pydantic', 'pytest'} & set(sys.modules); "
        "sys.exit(str(heavy) if heavy else 0)"
    )

    subprocess.run([sys.executable, "-c", code], check=True)


# --- names -----------------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "int8", "int4", "a-b", "int8-b", "b-int8", "a-int8"])


@given(
    st.one_of(st.none(), NAMES),
    st.sampled_from(["int8", "fp8", "b"]),
    st.lists(NAMES, min_size=2, max_size=2, unique=True),
)
def test_another_recipe_is_another_case(
    name: str | None, precision: str, recipes: list[str]
) -> None:
    """Whatever an entry is called: with its precision, two recipes never make one test id."""
    entries = [
        EngineEntry.model_validate(
            {
                "use": "torch",
                "name": name,
                "precision": precision,
                "build": {"use": "torchao", "recipe": recipe},
            }
        )
        for recipe in recipes
    ]

    assert entries[0].full_label != entries[1].full_label


def test_the_recipe_is_part_of_the_test_id(tmp_path: Path) -> None:
    path = suite(
        tmp_path,
        'use = "torchao", recipe = "int8"',
        'use = "torchao", recipe = "int8-dynamic"',
        'use = "llmcompressor", recipe = "int8-gptq", calibration = 8',
    )

    assert ids(path) == [
        "mine-Offline-null-torchao-int8-cpu",
        "mine-Offline-null-torchao-int8-dynamic-int8-cpu",
        "mine-Offline-null-llmcompressor-int8-gptq-int8-cpu",
    ]


def test_two_entries_that_differ_in_an_option_alone_need_names(tmp_path: Path) -> None:
    path = suite(
        tmp_path,
        'use = "torchao", recipe = "int4"',
        'use = "torchao", recipe = "int4", group_size = 16',
        precision="int4",
    )

    with pytest.raises(SuiteError, match="duplicate case null-torchao-int4-cpu"):
        plan_suite(path)


# --- suites ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "message"),
    [
        ('use = "torchao"', ":10: engines[0].build.recipe: is missing"),
        ('use = "torchoa", recipe = "int8"', "build.use: no builder 'torchoa' is installed; did"),
        ('use = "torchao", recipe = "int88"', "build.recipe: builder torchao: recipe = 'int88' is"),
        ('use = "torchao", recipe = "int8", groups = 3', "has no option 'groups'; did you mean"),
        (
            'use = "torchao", recipe = "int8", group_size = "3"',
            "build.group_size: group_size is '3'; a whole number is needed",
        ),
        (
            'use = "torchao", recipe = "fp8"',
            "build.recipe: recipe = 'fp8' makes weights of fp8: write precision = \"fp8\" in the "
            'engine entry, not "int8"',
        ),
        (
            'use = "torchao", recipe = "int8", calibration = 8',
            "build.calibration: recipe = 'int8' looks at no samples: leave it out",
        ),
        (
            'use = "llmcompressor", recipe = "int8-gptq"',
            "build.recipe: recipe = 'int8-gptq' needs samples to look at: write calibration = 64",
        ),
        (
            'use = "llmcompressor", recipe = "int8-gptq", calibration = "all"',
            "build.calibration: 'all' is no calibration: write a number of samples",
        ),
        (
            'use = "llmcompressor", recipe = "int8-gptq", calibration = 0',
            "build.calibration: 0 is no calibration",
        ),
        (
            'use = "llmcompressor", recipe = "int8-gptq", calibration = { path = "x" }',
            'build.calibration: a calibration needs use = "..."',
        ),
        (
            'use = "llmcompressor", recipe = "int8-gptq", calibration = { use = "openorka" }',
            "build.calibration.use: no dataset 'openorka' is installed; did you mean 'openorca'?",
        ),
        (
            'use = "llmcompressor", recipe = "int8-gptq", '
            'calibration = { use = "openorca", path = "x", counts = 3 }',
            "build.calibration.counts: dataset 'openorca' has no option 'counts'; did you mean",
        ),
    ],
)
def test_a_wrong_build_is_told_when_the_suite_is_read(
    tmp_path: Path, build: str, message: str
) -> None:
    """With its line and key: nothing is built to find out."""
    with pytest.raises(SuiteError) as caught:
        plan_suite(suite(tmp_path, build))

    assert message in str(caught.value)


def test_a_build_needs_a_model(tmp_path: Path) -> None:
    path = suite(tmp_path, 'use = "torchao", recipe = "int8"', model="")

    with pytest.raises(SuiteError, match=r"build: there is nothing to quantise: set workload\.mo"):
        plan_suite(path)


def test_code_of_ones_own_is_not_looked_at(tmp_path: Path) -> None:
    """A builder of the tested project is imported when it builds, and no sooner."""
    path = suite(tmp_path, 'use = "not_there:Mine", recipe = "any", depth = 3')

    assert ids(path) == ["mine-Offline-null-Mine-any-int8-cpu"]

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

from pytest_mlperf.adapters.builders import llmcompressor, modelopt, torchao, torchao_unet
from pytest_mlperf.adapters.builders.llmcompressor import LlmCompressorBuilder
from pytest_mlperf.adapters.builders.modelopt import ModelOptBuilder
from pytest_mlperf.adapters.builders.torchao import TorchAoBuilder
from pytest_mlperf.adapters.builders.torchao_unet import TorchAoUnetBuilder
from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.registry import registered
from pytest_mlperf.suite.plan import plan_suite
from pytest_mlperf.suite.tables import EngineEntry
from tests.refusals import unrefused

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


def test_every_builder_is_registered_and_every_recipe_says_what_it_makes() -> None:
    assert set(BUILDERS) <= set(registered("builders"))
    for factory, recipes in BUILDERS.values():
        made = {recipe: factory(recipe=recipe).precision for recipe in recipes}

        assert all(made.values())
        assert [recipe for recipe in made if not recipe.startswith(made[recipe])] == []
        assert factory.libraries[1:3] == ("torch", "transformers")


def test_options_that_mean_nothing_are_refused() -> None:
    rows = [
        ("torchao", {"recipe": "int3"}, "recipe = 'int3' is not one of int8, int8-dynamic,"),
        ("torchao", {"recipe": "int4", "group_size": 7}, "group_size = 7 is not one of 16, 32"),
        ("torchao", {"recipe": "int8", "device": "gpu"}, "device = 'gpu' is not cpu, cuda or"),
        ("modelopt", {"recipe": "int8"}, "recipe = 'int8' is not one of fp8, int8-smoothquant"),
        ("modelopt", {"kv_cache": "int8"}, "kv_cache = 'int8' is not fp8 or"),
        ("llmcompressor", {"max_prompt_tokens": 0}, "max_prompt_tokens = 0 is not at least 1"),
        ("llmcompressor", {"recipe": "fp4"}, "recipe = 'fp4' is not one of int8, int8-gptq"),
        ("torchao-unet", {"recipe": "int8"}, "recipe = 'int8' is not one of int8-smoothquant, fp8"),
        ("torchao-unet", {"steps": 0}, "steps = 0 is not at least 1"),
        ("torchao-unet", {"calibrated_steps": 21}, "calibrated_steps = 21 is not 1 to steps, 20"),
        ("torchao-unet", {"smoothing": 1.5}, "smoothing = 1.5 is not a number from 0 to 1"),
    ]

    def make(builder: str, options: dict[str, Any]) -> None:
        factory, _ = BUILDERS[builder]
        factory(**{"recipe": "fp8-static" if builder == "torchao-unet" else "fp8", **options})

    rows = [(name, options, f"^builder {name}: {message}") for name, options, message in rows]
    assert unrefused(make, SuiteError, rows) == []


@pytest.mark.process
def test_no_library_is_imported_to_read_a_suite() -> None:
    code = (
        "import sys, pytest_mlperf.adapters.builders.torchao; "
        "import pytest_mlperf.adapters.builders.modelopt; "
        "import pytest_mlperf.adapters.builders.llmcompressor as l; "
        " l.LlmCompressorBuilder(recipe='int8'); "
        "heavy = {'torch', 'transformers', 'numpy', 'pydantic', 'pytest'} & set(sys.modules); "
        "sys.exit(str(heavy) if heavy else 0)"
    )

    subprocess.run([sys.executable, "-c", code], check=True)


NAMES = st.sampled_from(["a", "b", "int8", "int4", "a-b", "int8-b", "b-int8", "a-int8"])


@given(
    st.one_of(st.none(), NAMES),
    st.sampled_from(["int8", "fp8", "b"]),
    st.lists(NAMES, min_size=2, max_size=2, unique=True),
)
def test_another_recipe_is_another_id(name: str | None, precision: str, recipes: list[str]) -> None:
    """Whatever an entry is called: with its precision, two recipes never make one test id."""
    entry = {"use": "torch", "name": name, "precision": precision}
    labels = {
        EngineEntry.model_validate(
            {**entry, "build": {"use": "torchao", "recipe": recipe}}
        ).full_label
        for recipe in recipes
    }

    assert len(labels) == 2


def test_the_recipe_but_no_other_option_is_part_of_the_test_id(tmp_path: Path) -> None:
    """A builder of the tested project is imported when it builds, and no sooner."""
    path = suite(
        tmp_path,
        'use = "torchao", recipe = "int8"',
        'use = "torchao", recipe = "int8-dynamic"',
        'use = "llmcompressor", recipe = "int8-gptq", calibration = 8',
        'use = "not_there:Mine", recipe = "any", depth = 3',
    )

    assert [planned.case.id for planned in plan_suite(path)] == [
        "mine-Offline-null-torchao-int8-cpu",
        "mine-Offline-null-torchao-int8-dynamic-int8-cpu",
        "mine-Offline-null-llmcompressor-int8-gptq-int8-cpu",
        "mine-Offline-null-Mine-any-int8-cpu",
    ]
    build = 'use = "torchao", recipe = "int4"'
    path = suite(tmp_path, build, f"{build}, group_size = 16", precision="int4")

    with pytest.raises(SuiteError, match="duplicate case null-torchao-int4-cpu"):
        plan_suite(path)


def test_a_wrong_build_is_refused_when_the_suite_is_read(tmp_path: Path) -> None:
    """With its line and key: nothing is built to find out."""
    int8, gptq = 'use = "torchao", recipe = "int8"', 'use = "llmcompressor", recipe = "int8-gptq"'
    rows = [
        ('use = "torchao"', "recipe: is missing"),
        ('use = "torchoa", recipe = "int8"', "use: no builder 'torchoa' is installed; did"),
        ('use = "torchao", recipe = "int88"', "recipe: builder torchao: recipe = 'int88' is"),
        (f"{int8}, groups = 3", "groups: builder 'torchao' has no option 'groups'; did you mean"),
        (f'{int8}, group_size = "3"', "group_size: group_size is '3'; a whole number is needed"),
        (
            'use = "torchao", recipe = "fp8"',
            "recipe: recipe = 'fp8' makes weights of fp8: write precision = \"fp8\" in the engine "
            'entry, not "int8"',
        ),
        (
            f"{int8}, calibration = 8",
            "calibration: recipe = 'int8' uses no samples: remove it",
        ),
        (gptq, "recipe: recipe = 'int8-gptq' needs samples: write calibration = 64"),
        (
            f'{gptq}, calibration = "all"',
            "calibration: 'all' is not a calibration; write a number of samples",
        ),
        (f"{gptq}, calibration = 0", "calibration: 0 is not a calibration"),
        (f'{gptq}, calibration = {{ path = "x" }}', 'calibration: a calibration needs use = "..."'),
        (
            f'{gptq}, calibration = {{ use = "openorka" }}',
            "calibration.use: no dataset 'openorka' is installed; did you mean 'openorca'?",
        ),
        (
            f'{gptq}, calibration = {{ use = "openorca", path = "x", counts = 3 }}',
            "calibration.counts: dataset 'openorca' has no option 'counts'; did you mean",
        ),
        (
            f'{gptq}, calibration = {{ use = "openorca", path = "x", count = "3" }}',
            "calibration.count: count is '3'; a whole number is needed",
        ),
    ]
    rows = [(build, f":10: engines[0].build.{message}") for build, message in rows]

    assert unrefused(lambda build: plan_suite(suite(tmp_path, build)), SuiteError, rows) == []
    with pytest.raises(SuiteError, match=r"build: no model to quantise; set workload\.mo"):
        plan_suite(suite(tmp_path, int8, model=""))

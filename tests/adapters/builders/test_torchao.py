"""torchao's checkpoints: safetensors that the torch engine loads and answers from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from pytest_mlperf.adapters.builders.torchao import TorchAoBuilder
from pytest_mlperf.core.errors import RunError
from pytest_mlperf.run.checkpoints.child import sort_metadata
from tests.adapters.engines.torch import models
from tests.adapters.engines.torch.models import answers, describe
from tests.refusals import unrefused

PROMPTS = [[5, 9, 20], [30, 31, 32, 33], [7]]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama whose answers are easy to tell apart in any precision: it counts down."""
    return models.chain_model(tmp_path_factory.mktemp("source"), models.countdown)


@pytest.fixture(scope="module")
def expected(source: Path) -> list[list[int]]:
    return answers(source, PROMPTS)


@pytest.fixture(scope="module")
def int8(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("targets") / "int8"
    build(source, target, "int8")
    return target


def build(source: Path, target: Path, recipe: str, **options: Any) -> dict[str, str]:
    target.mkdir()
    builder = TorchAoBuilder(recipe=recipe, **options)
    return dict(builder.build(source, target, [], lambda *_: None))


@pytest.mark.parametrize("recipe", ["int8", "int8-dynamic", "int4"])
def test_what_is_built_is_loaded_and_answers(
    source: Path, expected: list[list[int]], tmp_path: Path, recipe: str
) -> None:
    """The same answers as of the model, from weights that are as they were written."""
    precision, target = recipe.partition("-")[0], tmp_path / recipe
    assert build(source, target, recipe)["quantised"] == "7 of 7 linear layers"

    assert {path.suffix for path in target.iterdir()} == {".json", ".safetensors"}
    assert answers(target, PROMPTS, precision=precision) == expected
    facts = describe(target, precision=precision)
    assert facts["quantised"] == "7 of 8 matrices"
    assert facts["quantisation"] == "by the checkpoint, run as such"
    assert "torchao" in facts


def test_weights_are_the_models_own_up_to_rounding(tmp_path: Path) -> None:
    """Read again from the files, each linear layer but the last is near its source, not equal."""
    source = models.random_model(tmp_path / "source")
    load = transformers.AutoModelForCausalLM.from_pretrained
    source_weights = dict(load(source).requires_grad_(False).named_parameters())

    for recipe, rounding in (("int8", 0.01), ("int8-dynamic", 0.01), ("int4", 0.15), ("fp8", 0.04)):
        build(source, tmp_path / recipe, recipe)
        built = dict(load(tmp_path / recipe).requires_grad_(False).named_parameters())
        for name, weight in source_weights.items():
            small = hasattr(built[name], "dequantize") and "proj" in name
            weight_built = built[name].dequantize() if small else built[name]
            error = float((weight_built - weight).norm() / weight.norm())
            assert small is name.endswith("proj.weight")
            assert 0 < error < rounding if small else error == 0, (recipe, name)


def test_the_same_build_gives_the_same_bytes(source: Path, int8: Path, tmp_path: Path) -> None:
    build(source, tmp_path / "int8", "int8")

    files = [folder / "model.safetensors" for folder in (int8, tmp_path / "int8")]
    for file in files:
        sort_metadata(file)
    assert files[0].read_bytes() == files[1].read_bytes()


def test_unfit_layers_stay_plain(source: Path, expected: list[list[int]], tmp_path: Path) -> None:
    """Groups of 128 are wider than this model; of 64 they fit its inputs of 64 and of 128."""
    for size, quantised in ((64, "7 of 7"), (128, "1 of 7")):
        facts = build(source, tmp_path / str(size), "int4", group_size=size)
        assert facts["quantised"].startswith(quantised)
    assert answers(tmp_path / "128", PROMPTS, precision="int4") == expected
    with pytest.raises(RunError, match="layers whose inputs are a multiple of group_size = 256"):
        build(source, tmp_path / "256", "int4", group_size=256)


def test_unfit_checkpoints_are_refused(source: Path, int8: Path, tmp_path: Path) -> None:
    """Formats too, instead of random weights, which is what transformers would go on with."""
    config = json.loads((source / "config.json").read_text("utf-8"))
    for method, details in (("modelopt", {"quant_algo": "FP8"}), ("gptq", {"bits": 4})):
        changed = {**config, "quantization_config": {"quant_method": method, **details}}
        (tmp_path / method).mkdir()
        (tmp_path / method / "config.json").write_text(json.dumps(changed), "utf-8")

    def load(folder: Path, options: dict[str, Any]) -> None:
        describe(folder, **{"precision": "int4", **options})

    write = 'write precision = "int8"'
    rows = [
        (int8, {"precision": "fp32"}, f'but the suite has precision = "fp32"; {write}'),
        (int8, {}, f'{int8}: config.json says int8 weights, but the suite has precision = "int4"'),
        (int8, {"precision": "int8", "weights": "dummy"}, 'weights = "dummy" makes unquan'),
        (tmp_path / "modelopt", {}, "in the format 'modelopt'; this engine takes unq"),
        (tmp_path / "gptq", {}, "in the format 'gptq'; this engine takes unquant"),
    ]
    assert unrefused(load, RunError, rows) == []
    with pytest.raises(
        RunError, match="the weights are already quantised; set model to a checkpoint with"
    ):
        build(int8, tmp_path / "again", "int8")

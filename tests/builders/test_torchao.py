"""torchao's checkpoints: safetensors that the torch engine loads and answers from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchao")
transformers = pytest.importorskip("transformers")

from pytest_mlperf.builders.torchao import TorchAoBuilder  # noqa: E402
from pytest_mlperf.core.errors import RunError  # noqa: E402
from pytest_mlperf.run.checkpoints.child import settle_header  # noqa: E402
from tests.engines.torch import models  # noqa: E402
from tests.engines.torch.models import answers, open_engine  # noqa: E402

PROMPTS = [[5, 9, 20], [30, 31, 32, 33], [7]]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama whose answers are easy to tell apart in any precision: it counts down."""
    return models.chain_model(tmp_path_factory.mktemp("source"), models.countdown)


def build(source: Path, target: Path, recipe: str, **options: Any) -> dict[str, str]:
    target.mkdir()
    builder = TorchAoBuilder(recipe=recipe, **options)
    return dict(builder.build(source, target, [], lambda *_: None))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "precision"),
    [("int8", "int8"), ("int8-dynamic", "int8"), ("int4", "int4")],
)
def test_what_is_built_is_loaded_and_answers(
    source: Path, tmp_path: Path, recipe: str, precision: str
) -> None:
    """The same answers as of the model, from weights that are as they were written."""
    target = tmp_path / recipe
    facts = build(source, target, recipe)

    assert {path.suffix for path in target.iterdir()} == {".json", ".safetensors"}
    assert facts["quantised"] == "7 of 7 linear layers"
    assert answers(target, PROMPTS, precision=precision) == answers(source, PROMPTS)
    with open_engine(target, PROMPTS, precision=precision) as engine:
        described = engine.describe()
    assert described["quantised"] == "7 of 8 matrices"
    assert described["quantisation"] == "by the checkpoint, run as such"
    assert "torchao" in described


@pytest.mark.parametrize(
    ("recipe", "rounding"),
    [("int8", 0.01), ("int8-dynamic", 0.01), ("int4", 0.15), ("fp8", 0.04)],
)
def test_weights_are_the_models_own_up_to_rounding(
    tmp_path: Path, recipe: str, rounding: float
) -> None:
    """Read again from the files, each linear layer but the last is near its source, not equal."""
    target = tmp_path / recipe
    source = models.random_model(tmp_path / "source")
    build(source, target, recipe)

    load = transformers.AutoModelForCausalLM.from_pretrained
    own, built = (
        dict(load(folder).requires_grad_(False).named_parameters()) for folder in (source, target)
    )
    for name, weight in own.items():
        small = hasattr(built[name], "dequantize") and "proj" in name
        found = built[name].dequantize() if small else built[name]
        error = float((found - weight).norm() / weight.norm())
        assert small is name.endswith("proj.weight")
        assert 0 < error < rounding if small else error == 0


@pytest.mark.slow
def test_the_same_build_gives_the_same_bytes(source: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        build(source, tmp_path / name, "int8")
        settle_header(tmp_path / name / "model.safetensors")

    one, two = (tmp_path / name / "model.safetensors" for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()
    assert answers(tmp_path / "one", PROMPTS, precision="int8") == answers(source, PROMPTS)


@pytest.mark.slow
def test_layers_that_do_not_fit_stay_as_they_are(source: Path, tmp_path: Path) -> None:
    """Groups of 128 are wider than this model; of 64 they fit its inputs of 64 and of 128."""
    assert build(source, tmp_path / "64", "int4", group_size=64)["quantised"].startswith("7 of 7")
    assert build(source, tmp_path / "128", "int4", group_size=128)["quantised"].startswith("1 of 7")
    assert answers(tmp_path / "128", PROMPTS, precision="int4") == answers(source, PROMPTS)
    with pytest.raises(RunError, match="no linear layer that int4 can quantise"):
        build(source, tmp_path / "256", "int4", group_size=256)


def test_what_is_quantised_is_not_quantised_again(source: Path, tmp_path: Path) -> None:
    build(source, tmp_path / "int8", "int8")

    with pytest.raises(RunError, match="the weights are quantised already; name plain ones"):
        build(tmp_path / "int8", tmp_path / "again", "int8")


@pytest.mark.parametrize("precision", ["fp32", "int4"])
def test_the_precision_must_be_what_the_checkpoint_says(
    source: Path, tmp_path: Path, precision: str
) -> None:
    build(source, tmp_path / "int8", "int8")

    with pytest.raises(RunError) as caught, open_engine(tmp_path / "int8", [], precision=precision):
        pass
    assert str(caught.value) == (
        f'{tmp_path / "int8"}: config.json says int8 weights, and the suite "{precision}"; write '
        'precision = "int8"'
    )


def test_random_weights_are_not_quantised_ones(source: Path, tmp_path: Path) -> None:
    build(source, tmp_path / "int8", "int8")

    with (
        pytest.raises(RunError, match='weights = "dummy" makes plain ones'),
        open_engine(tmp_path / "int8", [], precision="int8", weights="dummy"),
    ):
        pass


@pytest.mark.parametrize(
    ("quantization", "message"),
    [
        (
            {"quant_method": "modelopt", "quant_algo": "FP8"},
            "in the format 'modelopt'; this engine",
        ),
        ({"quant_method": "gptq", "bits": 4}, "in the format 'gptq'; this engine takes plain"),
    ],
)
def test_formats_that_cannot_be_loaded_are_refused(
    source: Path, tmp_path: Path, quantization: dict[str, Any], message: str
) -> None:
    """Instead of random weights, which is what transformers would go on with."""
    config = json.loads((source / "config.json").read_text("utf-8"))
    config["quantization_config"] = quantization
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")

    with pytest.raises(RunError, match=message), open_engine(tmp_path, [], precision="int4"):
        pass

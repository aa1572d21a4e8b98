"""The UNet of Stable Diffusion XL in eight bits: ranges of the first steps, and what is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchao")

from pytest_mlperf.builders.torchao_unet import (  # noqa: E402
    TorchAoUnetBuilder,
    as_matrix,
    open_pipeline,
    quantised_layers,
    ranges_of,
)
from pytest_mlperf.core.errors import EnvironmentFault, RunError  # noqa: E402
from pytest_mlperf.engines.torch.diffusion._convolutions import MatrixConvolution  # noqa: E402
from pytest_mlperf.run.checkpoints.child import captions  # noqa: E402
from tests.engines.torch.models import exact_int8  # noqa: E402
from tests.engines.torch.pipelines import (  # noqa: E402
    PROMPTS,
    Captions,
    ask,
    latents,
    open_engine,
    paint,
    write_pipeline,
)

# diffusers 0.42 hands tensors to NumPy in a way that it will not take for ever.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

STEPS, CALIBRATED = 20, 8
SHORT = {"steps": 4, "calibrated_steps": 2}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pipeline(tmp_path_factory.mktemp("pipeline"))


def build(source: Path, target: Path, recipe: str, **options: Any) -> dict[str, str]:
    builder = TorchAoUnetBuilder(recipe=recipe, **options)
    return dict(builder.build(source, target, PROMPTS[:2], lambda *_: None))


@pytest.fixture(scope="module")
def int8(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("int8")
    build(source, target, "int8-smoothquant", **SHORT)
    return target


@pytest.mark.slow
def test_calibration_sees_the_first_8_of_20_steps_and_no_other(source: Path) -> None:
    """By the times that the UNet is asked for, and by the ranges: later steps would widen some."""
    pipe = open_pipeline(source, "cpu")
    layers = quantised_layers(pipe.unet)
    times: list[float] = []
    pipe.unet.register_forward_pre_hook(lambda _, arguments: times.append(float(arguments[1])))

    def look(calibrated_steps: int) -> dict[str, Any]:
        times.clear()
        builder = TorchAoUnetBuilder(
            recipe="int8-smoothquant", steps=STEPS, calibrated_steps=calibrated_steps
        )
        with ranges_of(layers) as ranges:
            builder.look(pipe, PROMPTS[:1], lambda *_: None)
        return ranges

    first = look(CALIBRATED)
    pipe.scheduler.set_timesteps(STEPS)
    expected = [float(time) for time in pipe.scheduler.timesteps[:CALIBRATED]]
    assert times == expected
    every = look(STEPS)
    assert len(times) == STEPS
    assert set(first) == set(every) == set(layers)
    assert all(bool((first[name] <= every[name]).all()) for name in layers)
    assert any(bool((first[name] < every[name]).any()) for name in layers)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "precision", "kind"),
    [
        pytest.param("int8-smoothquant", "int8", "Int8Tensor", marks=exact_int8),
        ("fp8-static", "fp8", "Float8Tensor"),
    ],
)
def test_what_is_built_is_loaded_and_paints_nearly_the_same(
    source: Path, tmp_path: Path, recipe: str, precision: str, kind: str
) -> None:
    """Weights and inputs are multiplied as they were written, with the ranges that were seen."""
    facts = build(source, tmp_path, recipe, **SHORT)
    dataset = Captions(PROMPTS[:2], latents())

    assert facts["quantised"] == "88 of 153 linear layers and 38 of 51 convolutions of the UNet"
    assert facts["ranges"] == "of the first 2 of 4 steps"
    plain = paint(source, dataset).astype(int)
    with open_engine(tmp_path, dataset, precision=precision) as engine:
        described, unet = engine.describe(), engine._samples._pipe.unet
        kinds = {each: type(getattr(each, "weight", None)).__name__ for each in unet.modules()}
        quantised = [each for each, weight in kinds.items() if weight == kind]
        assert sum(isinstance(each, MatrixConvolution) for each in quantised) == 38
        images = ask(engine, len(dataset)).astype(int)
    assert described["quantisation"] == "by the checkpoint, run as such"
    assert described["quantised"] == "126 of 191 matrices"
    apart = float(np.abs(images - plain).mean())
    assert 0 < apart < 6


@exact_int8
def test_the_range_of_int8_inputs_is_that_of_the_calibrated_ones(source: Path) -> None:
    """Divided by SmoothQuant's factors, by which weights are multiplied: the product stays."""
    layer = torch.nn.Linear(16, 32, bias=False).requires_grad_(False)
    inputs = torch.randn(2, 8, 16) * torch.logspace(-1, 1, 16)
    exact = layer(inputs)
    with ranges_of({"layer": layer}) as ranges:
        layer(inputs)

    TorchAoUnetBuilder(recipe="int8-smoothquant")._quantise(layer, ranges["layer"])

    weight = layer.weight
    smoothed = inputs * weight.act_pre_scale
    assert torch.allclose(ranges["layer"], inputs.abs().amax(dim=(0, 1)))
    assert torch.allclose(weight.act_quant_scale, smoothed.abs().amax() / 127)
    assert float((layer(inputs) - exact).norm() / exact.norm()) < 0.02


CONVOLUTIONS: list[dict[str, Any]] = [
    {"in_channels": 16, "out_channels": 32, "kernel_size": 3, "padding": 1},
    {"in_channels": 16, "out_channels": 16, "kernel_size": 3, "stride": 2, "bias": False},
    {"in_channels": 32, "out_channels": 16, "kernel_size": (1, 3), "padding": (0, 1)},
]


@pytest.mark.parametrize(
    "recipe", [pytest.param("int8-smoothquant", marks=exact_int8), "fp8-static"]
)
@pytest.mark.parametrize("shape", CONVOLUTIONS, ids=["plain", "halves", "wide"])
def test_a_convolution_is_the_product_of_what_was_rounded(
    recipe: str, shape: dict[str, Any]
) -> None:
    """As torch's own convolution of the same weights and inputs, rounded and seen as floats."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        convolution = torch.nn.Conv2d(**shape).requires_grad_(False)
        inputs = torch.randn(2, shape["in_channels"], 6, 8)
        inputs *= torch.logspace(-1, 1, shape["in_channels"])[:, None, None]
    with ranges_of({"one": convolution}) as ranges:
        exact = convolution(inputs)
    matrix, product = as_matrix(convolution), MatrixConvolution(convolution)
    TorchAoUnetBuilder(recipe=recipe)._quantise(matrix, ranges["one"], smooth=False)
    product.weight, product.bias = matrix.weight, matrix.bias

    with torch.inference_mode():
        found = product(inputs)

    kernel = convolution.kernel_size
    weights = matrix.weight.dequantize().unflatten(1, (*kernel, -1)).permute(0, 3, 1, 2)
    rounded = torch.nn.functional.conv2d(
        seen_as_floats(matrix.weight, inputs), weights, convolution.bias,
        convolution.stride, convolution.padding,
    )  # fmt: skip
    assert torch.allclose(found, rounded, rtol=1e-4, atol=1e-4)
    assert 0 < float((found - exact).norm() / exact.norm()) < 0.05


def seen_as_floats(weight: Any, inputs: Any) -> Any:
    """Return inputs as eight bits show them, by torchao's scales."""
    if weight.qdata.dtype == torch.int8:
        scale = weight.act_quant_scale.item()
        return (inputs / scale).round().clamp(-128, 127) * scale
    scale = weight.act_quant_kwargs.hp_value_ub / 448
    return (inputs / scale).to(weight.qdata.dtype).float() * scale


@pytest.mark.parametrize(
    "changes",
    [{"groups": 2}, {"dilation": 2}, {"out_channels": 24}, {"in_channels": 3}, {"padding": "same"}],
    ids=str,
)
def test_a_convolution_that_is_no_such_product_is_left(changes: dict[str, Any]) -> None:
    block = torch.nn.Module()
    block.add_module("conv1", torch.nn.Conv2d(**{**CONVOLUTIONS[0], **changes}))
    unet = torch.nn.Module()
    unet.add_module("block", block)

    assert quantised_layers(unet) == {}


def test_a_plain_pipeline_in_fp8_is_refused_on_cpus(source: Path) -> None:
    """What is not calibrated has inputs quantised as they come, which torch does on GPUs alone."""
    with (
        pytest.raises(EnvironmentFault, match=r"compute capability 8\.9 or later"),
        open_engine(source, Captions(PROMPTS[:1]), precision="fp8"),
    ):
        pass


@pytest.mark.slow
def test_wrong_int8_products_are_refused(int8: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "_int_mm", lambda *_: torch.full((32, 32), 8160))
    with (
        pytest.raises(EnvironmentFault, match=r"sum to 8,160, not to 1,032,256; unset ONEDNN"),
        open_engine(int8, Captions(PROMPTS[:1]), precision="int8"),
    ):
        pass


def test_the_precision_must_be_what_the_unet_says(int8: Path) -> None:
    with (
        pytest.raises(RunError, match='says int8 weights, and the suite "fp16"; write precision'),
        open_engine(int8, Captions(PROMPTS[:1]), precision="fp16"),
    ):
        pass


@pytest.mark.slow
def test_what_is_quantised_is_not_quantised_again(int8: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="the weights are quantised already; name plain ones"):
        build(int8, tmp_path, "fp8-static")


def test_captions_are_what_a_pipeline_looks_at() -> None:
    assert captions(Path(), Captions(PROMPTS, latents()), [0, 2]) == [PROMPTS[0], PROMPTS[2]]
    with pytest.raises(RunError, match=r'sample 1 is no text and has no "caption"'):
        captions(Path(), Captions(["a", [1, 2]]), [0, 1])


def test_the_index_says_which_scheduler_it_is(int8: Path) -> None:
    """The one that the engine takes, so that steps are the same."""
    index = json.loads((int8 / "model_index.json").read_text("utf-8"))

    assert index["scheduler"] == ["diffusers", "EulerDiscreteScheduler"]

"""Test the UNet of Stable Diffusion XL in eight bits: input ranges and loading."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pytest_mlperf.adapters.builders.prompts import captions
from pytest_mlperf.adapters.builders.torchao_unet import (
    TorchAoUnetBuilder,
    as_matrix,
    open_pipeline,
    quantised_layers,
    ranges_of,
)
from pytest_mlperf.adapters.engines.torch.diffusion._convolutions import MatrixConvolution
from pytest_mlperf.core.errors import EnvironmentFault, RunError
from tests.adapters.engines.torch.models import exact_int8
from tests.adapters.engines.torch.pipelines import (
    PROMPTS,
    Captions,
    ask,
    latents,
    open_engine,
    paint,
    write_pipeline,
)
from tests.refusals import unrefused

# diffusers 0.42 hands tensors to NumPy in a way that it will not take for ever.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

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
    check_facts(build(source, target, "int8-smoothquant", **SHORT))
    return target


def check_facts(facts: dict[str, str]) -> None:
    assert facts["quantised"] == "56 of 99 linear layers and 26 of 36 convolutions of the UNet"
    assert facts["ranges"] == "of the first 2 of 4 steps"


def test_calibration_sees_the_first_steps_and_no_other(source: Path) -> None:
    """By the times that the UNet is asked for, and by the ranges: later steps would widen some."""
    pipe = open_pipeline(source, "cpu")
    layers = quantised_layers(pipe.unet)
    times: list[float] = []
    pipe.unet.register_forward_pre_hook(lambda _, arguments: times.append(float(arguments[1])))

    def look(calibrated_steps: int) -> dict[str, Any]:
        times.clear()
        options: dict[str, Any] = {"steps": 4, "calibrated_steps": calibrated_steps}
        with ranges_of(layers) as ranges:
            TorchAoUnetBuilder(recipe="int8-smoothquant", **options).calibrate(
                pipe, PROMPTS[:1], lambda *_: None
            )
        return ranges

    first = look(2)
    pipe.scheduler.set_timesteps(4)
    assert times == [float(time) for time in pipe.scheduler.timesteps[:2]]
    every = look(4)
    assert len(times) == 4
    assert set(first) == set(every) == set(layers)
    assert all(bool((first[name] <= every[name]).all()) for name in layers)
    assert any(bool((first[name] < every[name]).any()) for name in layers)
    usual = inspect.signature(TorchAoUnetBuilder).parameters
    assert (usual["steps"].default, usual["calibrated_steps"].default) == (20, 8)


def paints_nearly_the_same(source: Path, built: Path, precision: str, kind: str) -> None:
    """Check that weights and inputs are multiplied as they were written."""
    dataset = Captions(PROMPTS[:1], latents())
    plain = paint(source, dataset, steps=1).astype(int)
    with open_engine(built, dataset, precision=precision, steps=1) as engine:
        facts, unet = engine.describe(), engine._samples._pipe.unet
        kinds = {each: type(getattr(each, "weight", None)).__name__ for each in unet.modules()}
        quantised = [each for each, weight in kinds.items() if weight == kind]
        assert sum(isinstance(each, MatrixConvolution) for each in quantised) == 26
        images = ask(engine, len(dataset)).astype(int)
    assert facts["quantisation"] == "by the checkpoint, run as such"
    assert facts["quantised"] == f"{56 + 26} of 125 matrices"
    assert 0 < float(np.abs(images - plain).mean()) < 6


@exact_int8
def test_int8_is_loaded_and_paints_nearly_the_same(source: Path, int8: Path) -> None:
    paints_nearly_the_same(source, int8, "int8", "Int8Tensor")
    index = json.loads((int8 / "model_index.json").read_text("utf-8"))
    assert index["scheduler"] == ["diffusers", "EulerDiscreteScheduler"]  # the engine's own
    with pytest.raises(
        RunError, match="the weights are already quantised; set model to a checkpoint with"
    ):
        build(int8, int8, "fp8-static")


@pytest.mark.nightly
def test_fp8_is_loaded_and_paints_nearly_the_same(source: Path, tmp_path: Path) -> None:
    check_facts(build(source, tmp_path, "fp8-static", **SHORT))
    paints_nearly_the_same(source, tmp_path, "fp8", "Float8Tensor")


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
def test_a_convolution_is_the_product_of_rounded_values(recipe: str) -> None:
    """As torch's own convolution of the same weights and inputs, rounded and seen as floats."""
    for shape in CONVOLUTIONS:
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
            outputs = product(inputs)

        kernel = convolution.kernel_size
        weights = matrix.weight.dequantize().unflatten(1, (*kernel, -1)).permute(0, 3, 1, 2)
        rounded = torch.nn.functional.conv2d(
            seen_as_floats(matrix.weight, inputs), weights, convolution.bias,
            convolution.stride, convolution.padding,
        )  # fmt: skip
        assert torch.allclose(outputs, rounded, rtol=1e-4, atol=1e-4), shape
        assert 0 < float((outputs - exact).norm() / exact.norm()) < 0.05, shape


def seen_as_floats(weight: Any, inputs: Any) -> Any:
    """Return inputs as eight bits show them, by torchao's scales."""
    if weight.qdata.dtype == torch.int8:
        scale = weight.act_quant_scale.item()
        return (inputs / scale).round().clamp(-128, 127) * scale
    scale = weight.act_quant_kwargs.hp_value_ub / 448
    return (inputs / scale).to(weight.qdata.dtype).float() * scale


def test_convolutions_without_such_a_product_stay_unquantised() -> None:
    unet = torch.nn.Module()
    table: list[dict[str, Any]] = [
        {"groups": 2}, {"dilation": 2}, {"out_channels": 24}, {"in_channels": 3},
        {"padding": "same"},
    ]  # fmt: skip
    for index, changes in enumerate(table):
        block = torch.nn.Module()
        block.add_module("conv1", torch.nn.Conv2d(**{**CONVOLUTIONS[0], **changes}))
        unet.add_module(f"block{index}", block)

    assert quantised_layers(unet) == {}


def test_misfits_are_refused(source: Path, int8: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uncalibrated inputs are quantised as they come, which torch does on GPUs alone."""

    def load(folder: Path, precision: str) -> None:
        with open_engine(folder, Captions(PROMPTS[:1]), precision=precision):
            pass

    monkeypatch.setattr(torch, "_int_mm", lambda *_: torch.full((32, 32), 8160))
    rows = [
        (source, "fp8", r"compute capability 8\.9 or later"),
        (int8, "int8", r"sum to 8,160, not to 1,032,256; unset ONEDNN"),
    ]
    assert unrefused(load, EnvironmentFault, rows) == []
    with pytest.raises(RunError, match='says int8 weights, but the suite has precision = "fp16"'):
        load(int8, "fp16")


def test_captions_are_what_a_pipeline_looks_at() -> None:
    assert captions(Path(), Captions(PROMPTS, latents()), [0, 2]) == [PROMPTS[0], PROMPTS[2]]
    with pytest.raises(RunError, match=r'sample 1 is not text and has no "caption"'):
        captions(Path(), Captions(["a", [1, 2]]), [0, 1])

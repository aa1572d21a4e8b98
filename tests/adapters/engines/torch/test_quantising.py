"""Weights in eight and four bits: which are quantised, what that changes, and who cannot."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
)

from pytest_mlperf.adapters.engines.torch import _base as options
from pytest_mlperf.adapters.engines.torch import _devices as devices
from pytest_mlperf.core.errors import EnvironmentFault, RunError
from tests.adapters.engines.torch import models
from tests.adapters.engines.torch.models import answers, describe
from tests.refusals import unrefused

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
SIZES = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@pytest.fixture(scope="session")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mixture of experts with random weights."""
    torch.manual_seed(5)
    model = MixtralForCausalLM(MixtralConfig(**SIZES))
    return models.save(model, tmp_path_factory.mktemp("mixture"))


def logits(model: Any) -> Any:
    """Return a model's scores of a fixed text."""
    with torch.inference_mode():
        return model(input_ids=torch.arange(3, 40)[None]).logits


def share(described: Any) -> float:
    """Return the share of parameters that a description says is quantised."""
    match = re.search(r"matrices, ([\d.]+)% of all parameters", described["quantised"])
    assert match is not None
    return float(match[1]) / 100


def values_of(weight: Any) -> Any:
    """Return a weight as plain numbers."""
    return weight.detach().dequantize()


@pytest.mark.parametrize(
    ("precision", "least", "most"), [("int8", 1e-4, 0.03), ("int4", 0.03, 0.3)]
)
def test_experts_are_quantised(mixture: Path, precision: str, least: float, most: float) -> None:
    """transformers keeps them as one parameter of three dimensions, no linear layer."""
    model = AutoModelForCausalLM.from_pretrained(mixture).eval()
    exact, total = logits(model), sum(each.numel() for each in model.parameters())
    fused = model.model.layers[1].mlp.experts.down_proj.detach()

    facts = devices.quantise(model, precision, device=CPU)

    error = (logits(model) - exact).norm() / exact.norm()
    assert least < float(error) < most
    experts = model.model.layers[1].mlp.experts
    apart = (values_of(experts.down_proj[2]) - fused[2]).abs().max() / fused[2].abs().max()
    assert least < float(apart) < most
    # Four layers of attention and two matrices of each expert in each block, and the head.
    assert facts["quantised"].startswith(f"{2 * (4 + 2 * 4) + 1} of {2 * (4 + 2 * 4) + 1} ")
    plain = sum(
        parameter.numel()
        for name, parameter in model.named_parameters()
        if "norm" in name or "embed" in name or "mlp.gate" in name
    )
    assert share(facts) == pytest.approx(1 - plain / total, abs=5e-4)


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_a_mixture_of_experts_generates_in_both_ways(mixture: Path, precision: str) -> None:
    """Static and continuous batches give the same tokens, and the description says how much."""
    options: dict[str, Any] = {"precision": precision, "max_new_tokens": 5}
    static, continuous = (
        answers(mixture, [[5, 9], [40, 3, 7]], batching=batching, **options)
        for batching in ("static", "continuous")
    )
    assert static == continuous
    facts = describe(mixture, **options)
    assert facts["quantised"] == "25 of 25 matrices, 97.3% of all parameters"
    assert facts["quantisation"].startswith(precision)
    assert "torchao" in facts


def test_experts_that_are_stored_otherwise_stay_and_are_counted() -> None:
    torch.manual_seed(5)
    attention_options = {"layer_types": ["full_attention"] * 2, "attn_implementation": "eager"}
    model = GptOssForCausalLM(GptOssConfig(**SIZES, **attention_options)).eval()
    exact = logits(model)

    facts = devices.quantise(model, "int8", device=CPU)

    assert model.model.layers[0].mlp.experts.down_proj.ndim == 3
    assert facts["quantised"].startswith(f"{2 * 4 + 1} of {2 * (4 + 2 * 4) + 1} matrices, ")
    assert share(facts) < 0.3
    assert not torch.equal(logits(model), exact)


def test_int4_keeps_sixteen_values_per_group() -> None:
    """Of 32 weights, of 16 where 32 do not divide the inputs, else the layer stays as it is."""
    torch.manual_seed(5)
    layers = [torch.nn.Linear(width, 48) for width in (128, 80, 40)]
    weights_before = [layer.weight.detach().clone() for layer in layers]
    model = torch.nn.Sequential(*layers, torch.nn.Conv1d(4, 4, 3))

    facts = devices.quantise(model, "int4", device=CPU)

    for layer, weight, group in zip(layers, weights_before, (32, 16), strict=False):
        groups = values_of(layer.weight).unflatten(1, (-1, group))
        assert max(len(each.unique()) for each in groups.flatten(0, 1)) <= 16
        apart = (groups.flatten(1) - weight).abs().unflatten(1, (-1, group))
        low, high = weight.unflatten(1, (-1, group)).aminmax(dim=2, keepdim=True)
        assert bool((apart < (high.clamp(min=0) - low.clamp(max=0)) / 15).all())
    assert torch.equal(layers[2].weight, weights_before[2])
    parameters = 48 * (128 + 80 + 40 + 3) + 4 * 4 * 3 + 4
    assert facts["quantised"] == (
        f"2 of 3 matrices, {48 * (128 + 80) / parameters:.1%} of all parameters"
    )


def test_a_model_without_layers_to_quantise_is_refused() -> None:
    table = [
        (torch.nn.Conv1d(4, 4, 3), "int8", "linear layers, but"),
        (torch.nn.Linear(40, 32), "int4", "linear layers whose inputs are a multiple of 16, but"),
    ]
    rows = [
        (*row, f"precision {row[1]!r} quantises {needs} this model has none; use another")
        for *row, needs in table
    ]

    def quantise(model: Any, precision: str) -> None:
        devices.quantise(model, precision, device=CPU)

    assert unrefused(quantise, RunError, rows) == []


def test_gpus_without_kernels_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(precision: str, capability: tuple[int, int]) -> None:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        devices.require_kernels(precision, GPU)

    for precision, capability in (
        ("bf16", (7, 0)), ("int8", (7, 0)), ("int4", (8, 0)), ("fp8", (8, 9)), ("fp8", (9, 0)),
    ):  # fmt: skip
        check(precision, capability)
    rows = [
        ("int4", (7, 5), "8.0 or later for its kernels, but this GPU's is 7.5; use another"),
        ("fp8", (8, 6), "8.9 or later for its kernels, but this GPU's is 8.6; use another"),
    ]
    assert unrefused(check, EnvironmentFault, rows) == []


def test_layers_that_are_not_quantised_have_a_type_of_the_kernels() -> None:
    """Else that of the checkpoint, here float16."""
    expected = {
        ("fp32", CPU): torch.float32,
        ("bf16", CPU): torch.bfloat16,
        ("int8", CPU): torch.float16,
        ("int4", CPU): torch.float16,
        ("int4", GPU): torch.bfloat16,
        ("int8", GPU): torch.float16,
        ("fp8", GPU): torch.bfloat16,
    }
    assert {
        (name, device): devices.base_dtype(name, torch.float16, device) for name, device in expected
    } == expected


def test_torchao_has_the_configurations_for_gpus() -> None:
    """They can be made without one; a weight has a step, or none."""
    weights = [torch.empty(shape, device="meta") for shape in ((48, 128), (48, 40), (7, 128))]
    steps = {"int8": [1, 1, 1], "int4": [1, 0, 1], "fp8": [1, 0, 0]}
    assert set(steps) == set(options.QUANTISED_PRECISIONS)
    for precision, expected in steps.items():
        plan = devices._plan(precision, GPU)
        assert [sum(fits(weight) for _, fits in plan.steps) for weight in weights] == expected
        assert precision in plan.how

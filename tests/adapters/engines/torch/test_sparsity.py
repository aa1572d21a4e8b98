"""Test that loading fails unless weights are 2:4 sparse; dense kernels are not called sparse."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

from pytest_mlperf.adapters.engines.torch._devices import (
    check_layers,
    compress,
    no_kernels,
    sparse_layers,
)
from pytest_mlperf.core.errors import EnvironmentFault, RunError, SuiteError
from tests.adapters.engines.torch.models import answers, change_weights, describe, open_engine, save
from tests.refusals import unrefused

PROMPTS = [[5, 9, 33], [7, 100], [250, 3, 17, 40]]
BROKEN = "model.layers.1.mlp.down_proj"


def prune(weights: torch.Tensor) -> torch.Tensor:
    """Keep the first and the last of each four."""
    kept = torch.tensor([1.0, 0.0, 0.0, 1.0]).repeat(weights.shape[1] // 4)
    return weights * kept


@pytest.fixture
def sparse(random: Path, tmp_path: Path) -> Path:
    """A copy of the random model whose layers are 2:4 sparse; embeddings and head are dense."""
    folder = Path(shutil.copytree(random, tmp_path / "sparse"))
    tensors = load_file(folder / "model.safetensors")
    pruned = {
        name: prune(weights) if ".layers." in name and weights.ndim == 2 else weights
        for name, weights in tensors.items()
    }
    save_file(pruned, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def change(folder: Path, name: str, change: Callable[[Any], object]) -> None:
    """Change one weight of a checkpoint."""
    change_weights(folder / "model.safetensors", lambda tensors: change(tensors[name]))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_cpu_checks_it_and_runs_dense_kernels(sparse: Path, precision: str) -> None:
    options: dict[str, Any] = {"max_new_tokens": 12, "precision": precision}
    plain, facts = (describe(sparse, **options, **more) for more in ({}, {"sparsity": "2:4"}))

    assert "sparsity" not in plain
    assert facts.pop("sparsity") == "2:4, dense kernels: a CPU has none for it"
    assert facts.pop("zeros") == "50.00% of the weights of 14 linear layers"
    assert facts == plain
    unchecked = answers(sparse, PROMPTS, **options)
    assert answers(sparse, PROMPTS, sparsity="2:4", **options) == unchecked


def test_a_weight_too_many_is_found_with_its_place(random: Path, sparse: Path) -> None:
    """Output 37, inputs 20 to 23: three of them are non-zero then, however small.

    Two of four along the outputs, as a matrix that was transposed has them, are not 2:4 either.
    """

    def load(folder: Path) -> None:
        describe(folder, sparsity="2:4")

    change(sparse, f"{BROKEN}.weight", lambda weights: weights[37, 22].fill_(1e-30))
    assert "sparsity" not in describe(sparse)
    message = (
        f"{BROKEN} is not 2:4 sparse: 1 of its 2048 groups of four have more than two non-zero "
        "weights, the first at output 37, inputs 20 to 23; prune the model to 2:4, or leave"
    )
    dense = r"model\.layers\.0\.self_attn\.q_proj is not 2:4 sparse"
    assert unrefused(load, RunError, [(sparse, message), (random, dense)]) == []
    rows = torch.tensor([1.0, 0.0]).repeat(32)[:, None].expand(64, 64)
    change(sparse, "model.layers.0.self_attn.o_proj.weight", lambda weights: weights.copy_(rows))
    turned = "o_proj is not 2:4 sparse: 512 of its 1024 groups"
    assert unrefused(load, RunError, [(sparse, turned)]) == []


def test_more_zeros_than_needed_are_sparse_too(sparse: Path) -> None:
    change(sparse, f"{BROKEN}.weight", lambda weights: weights[:64, :4].zero_())

    weights = 2 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 128)
    expected = f"{0.5 + 128 / weights:.2%} of the weights of 14 linear layers"
    assert describe(sparse, sparsity="2:4")["zeros"] == expected


def test_models_that_cannot_be_sparse_are_refused_before_loading(sparse: Path) -> None:
    rows = [
        ({"sparsity": "1:4"}, "sparsity = '1:4' is not one of 2:4"),
        ({"precision": "int8"}, 'needs precision = fp32 or bf16 or fp16, not "int8"'),
        ({"weights": "dummy"}, 'excludes weights = "dummy", as random weights are not'),
    ]

    def make(options: dict[str, Any]) -> None:
        open_engine(sparse, PROMPTS, **{"sparsity": "2:4", **options})

    assert unrefused(make, SuiteError, rows) == []


def test_experts_that_cannot_be_checked_are_refused(tmp_path: Path) -> None:
    """They are one matrix of three dimensions, not linear layers: half of them in zeros would not
    be seen, and no kernel would use it."""
    sizes = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_local_experts": 2}
    heads = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    save(MixtralForCausalLM(MixtralConfig(**sizes, **heads)), tmp_path)

    expected = r"needs all weights in linear layers, but model\.layers\.0\.mlp"
    with pytest.raises(RunError, match=expected):
        describe(tmp_path, sparsity="2:4")


@given(
    st.integers(1, 5).flatmap(
        lambda groups: st.lists(
            st.lists(
                st.sampled_from([0.0, -0.0, 1.0, -2.0]), min_size=4 * groups, max_size=4 * groups
            ),
            min_size=1,
            max_size=4,
        )
    )
)
def test_the_check_is_the_rule_written_down(rows: list[list[float]]) -> None:
    """No group of four along the inputs has more than two weights that are not zero."""
    layer = torch.nn.Linear(len(rows[0]), len(rows), bias=False)
    layer.weight = torch.nn.Parameter(torch.tensor(rows))
    worst = max(
        sum(weight != 0 for weight in row[start : start + 4])
        for row in rows
        for start in range(0, len(row), 4)
    )
    zeros = sum(weight == 0 for row in rows for weight in row) / (len(rows) * len(rows[0]))

    if worst <= 2:
        report = check_layers({"only": layer}, Path("model"))
        assert report == f"{zeros:.2%} of the weights of 1 linear layers"
    else:
        with pytest.raises(RunError, match="model: only is not 2:4 sparse"):
            check_layers({"only": layer}, Path("model"))


def test_inputs_that_are_no_groups_of_four_cannot_be_sparse() -> None:
    with pytest.raises(RunError, match="odd has 6 inputs, which is not a multiple of four"):
        check_layers({"odd": torch.nn.Linear(6, 4)}, Path("model"))


def test_where_torch_cannot_compress_it_says_which_layer_and_why(sparse: Path) -> None:
    layers = dict(sparse_layers(model := LlamaForCausalLM.from_pretrained(sparse), sparse))

    expected = r"cannot compress model\.layers\.0\.self_attn\.q_proj on cpu: .*CUDA"
    with pytest.raises(EnvironmentFault, match=expected):
        compress(model, layers, device=torch.device("cpu"))
    assert all(layer.weight is None for layer in layers.values())


def test_which_devices_and_types_have_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    for device, dtype, capability, expected in (
        ("cpu", torch.float16, None, "a CPU has none for it"),
        ("cuda", torch.float32, (9, 0), "there are none for float32; fp16 and bf16 have them"),
        ("cuda", torch.float16, (7, 5), "compute capability 7.5 has none, 8.0 and later have"),
        ("cuda", torch.float16, (8, 0), None),
        ("cuda", torch.bfloat16, (8, 9), None),
        ("cuda", torch.bfloat16, (9, 0), None),
    ):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, at=capability: at)
        assert no_kernels(torch.device(device), dtype) == expected

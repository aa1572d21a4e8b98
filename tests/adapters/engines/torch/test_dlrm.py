"""Test DLRM-DCNv2 against the same computation in plain NumPy, pair by pair, in float64."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from pytest_mlperf.adapters.engines.torch.module.dlrm import (
    BLOCK_ROWS,
    Dlrm,
    EmbeddingTable,
    EmbeddingTables,
    LayerSizes,
    dlrm_v2,
    drawn_table,
    kept_table,
)
from pytest_mlperf.core.errors import RunError, SuiteError
from tests.adapters.engines.torch.models import (
    Change,
    broken_but_accepted,
    text_of,
    weights_with,
    without,
)
from tests.adapters.engines.torch.modules import answer, describe, load
from tests.refusals import unrefused

SIZES = {
    "num_embeddings_per_feature": [50, 7, 400],
    "embedding_dim": 8,
    "hotness": [3, 1, 12],
    "dense_features": 5,
    "dense_arch_layer_sizes": [16, 12, 8],
    "dcn_num_layers": 2,
    "dcn_low_rank_dim": 6,
    "over_arch_layer_sizes": [20, 10, 1],
}
WIDTH = 32

Floats = NDArray[np.float64]


BAGS = "sparse_arch.embedding_bag_collection.embedding_bags"


def shapes() -> dict[str, tuple[int, ...]]:
    """Return every tensor by TorchRec's name."""
    shapes_by_name: dict[str, tuple[int, ...]] = {
        f"{BAGS}.t_cat_{n}.weight": (rows, 8) for n, rows in enumerate((50, 7, 400))
    }
    for n in range(2):
        shapes_by_name[f"inter_arch.crossnet.V_kernels.{n}"] = (6, WIDTH)
        shapes_by_name[f"inter_arch.crossnet.W_kernels.{n}"] = (WIDTH, 6)
        shapes_by_name[f"inter_arch.crossnet.bias.{n}"] = (WIDTH, 1)
    for name, inputs, outputs in (
        ("dense_arch.model._mlp.0._linear", 5, 16),
        ("dense_arch.model._mlp.1._linear", 16, 12),
        ("dense_arch.model._mlp.2._linear", 12, 8),
        ("over_arch.model.0._mlp.0._linear", WIDTH, 20),
        ("over_arch.model.0._mlp.1._linear", 20, 10),
        ("over_arch.model.1", 10, 1),
    ):
        shapes_by_name |= {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}
    return shapes_by_name


@pytest.fixture
def written(tmp_path: Path) -> dict[str, Floats]:
    """Weights of the model in `tmp_path`."""
    rng = np.random.default_rng(4)
    weights = {
        name: rng.normal(0, 0.4, shape).astype(np.float32) for name, shape in shapes().items()
    }
    (tmp_path / "config.json").write_text(json.dumps(SIZES), "utf-8")
    tensors = {name: torch.tensor(array) for name, array in weights.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    return {name: array.astype(np.float64) for name, array in weights.items()}


def samples(*counts: int) -> list[dict[str, Any]]:
    """Return samples as the data set criteo gives them."""
    rng = np.random.default_rng(6)
    return [
        {
            "dense": rng.normal(size=(count, 5)).astype(np.float32),
            "sparse": [
                rng.integers(0, rows, (count, lookups), np.int32)
                for rows, lookups in zip((50, 7, 400), (3, 1, 12), strict=True)
            ],
        }
        for count in counts
    ]


def by_hand(weights: dict[str, Floats], sample: dict[str, Any]) -> Floats:
    """Return the probability of each pair, one after the other."""

    def layer(x: Floats, name: str) -> Floats:
        return np.asarray(weights[f"{name}.weight"] @ x + weights[f"{name}.bias"])

    probability_list = []
    for pair, dense in enumerate(sample["dense"].astype(np.float64)):
        x = dense
        for n in range(3):
            x = np.maximum(layer(x, f"dense_arch.model._mlp.{n}._linear"), 0)
        parts = [x]
        for n, lookups in enumerate(sample["sparse"]):
            parts.append(sum(weights[f"{BAGS}.t_cat_{n}.weight"][row] for row in lookups[pair]))
        first = x = np.concatenate(parts)
        for n in range(2):
            narrow = weights[f"inter_arch.crossnet.V_kernels.{n}"] @ x
            wide = weights[f"inter_arch.crossnet.W_kernels.{n}"] @ narrow
            x = first * (wide + weights[f"inter_arch.crossnet.bias.{n}"][:, 0]) + x
        for n in range(2):
            x = np.maximum(layer(x, f"over_arch.model.0._mlp.{n}._linear"), 0)
        (score,) = layer(x, "over_arch.model.1")
        probability_list.append(1 / (1 + np.exp(-score)))
    return np.array(probability_list)


def probabilities(folder: Path, requests: list[dict[str, Any]], **options: Any) -> list[Any]:
    return answer(requests, "dlrm-v2", model=str(folder), **options)


def test_probabilities_are_those_of_formulas(tmp_path: Path, written: dict[str, Floats]) -> None:
    """Samples of different numbers of pairs share batches; names may begin with "model."."""
    requests = samples(4, 1, 9, 3, 2)
    expected = np.concatenate([by_hand(written, sample) for sample in requests])
    assert expected.std() > 0.1
    for _prefix in ("", "model."):
        for batch_size in (1, 2, 8):
            outputs = probabilities(tmp_path, requests, batch_size=batch_size)
            assert [len(each) for each in outputs] == [4, 1, 9, 3, 2]
            np.testing.assert_allclose(np.concatenate(outputs), expected, atol=1e-5)
        file = tmp_path / "model.safetensors"
        save_file({f"model.{name}": array for name, array in load_file(file).items()}, file)


def test_in_float64_only_rounding_is_left(tmp_path: Path, written: dict[str, Floats]) -> None:
    """The module itself, but for the last step, which is float32 in any precision."""
    (sample,) = samples(40)
    module = dlrm_v2(model=str(tmp_path)).double()
    module.tables._tables = [
        EmbeddingTable(rows=each.rows.double()) for each in module.tables._tables
    ]
    prepared = module.prepare(sample)

    with torch.no_grad():
        output = module(torch.tensor(prepared["dense"]).double(), torch.tensor(prepared["sparse"]))

    np.testing.assert_allclose(output.numpy(), by_hand(written, sample), atol=1e-7)


def test_narrow_tables_and_layers_stay_near(tmp_path: Path, written: dict[str, Floats]) -> None:
    requests = samples(30, 30)
    expected = np.concatenate([by_hand(written, sample) for sample in requests])
    for tables, precision, most in (
        ("fp16", "fp32", 0.02),
        ("int8", "fp32", 0.05),
        ("checkpoint", "bf16", 0.15),
        ("checkpoint", "int8", 0.05),
        ("int8", "fp16", 0.05),
    ):
        options: dict[str, Any] = {"precision": precision, "arguments": {"tables": tables}}
        outputs = np.concatenate(probabilities(tmp_path, requests, **options))
        assert 0 < np.abs(outputs - expected).mean() < most, (tables, precision)
        facts = describe(requests, "dlrm-v2", model=str(tmp_path), **options)
        assert (facts["tables"], facts["batching"]) == (tables, "concat")
        assert len(facts["weights_sha256"]) == 16


@pytest.mark.usefixtures("written")
def test_tables_stay_as_they_are_in_the_file(tmp_path: Path) -> None:
    module = dlrm_v2(model=str(tmp_path))
    addresses = [each.rows.data_ptr() for each in module.tables._tables]

    module.to(torch.bfloat16)

    assert [each.rows.data_ptr() for each in module.tables._tables] == addresses
    assert {each.rows.dtype for each in module.tables._tables} == {torch.float32}
    assert {each.dtype for each in module.parameters()} == {torch.bfloat16}


def test_tables_move_with_the_module_unless_they_stay_on_the_cpu() -> None:
    table = drawn_table(10, 4, "int8", 1)

    moved, kept = (EmbeddingTables([table], on_cpu=on_cpu).to("meta") for on_cpu in (False, True))

    assert {each.rows.device.type for each in moved._tables} == {"meta"}
    assert {each.scales.device.type for each in moved._tables} == {"meta"}
    assert {each.rows.device.type for each in kept._tables} == {"cpu"}


@pytest.mark.usefixtures("written")
def test_lookups_stay_with_tables_on_the_cpu(tmp_path: Path) -> None:
    together, apart = (
        np.concatenate(probabilities(tmp_path, samples(3, 5), arguments=arguments))
        for arguments in ({}, {"tables_on_cpu": True})
    )
    np.testing.assert_array_equal(together, apart)
    assert dlrm_v2(model=str(tmp_path), tables_on_cpu=True).host_inputs == {"sparse"}


def test_int8_rows_lose_at_most_half_a_step() -> None:
    """Each row has a scale of its own; a row of zeros stays one."""
    for count in (3, BLOCK_ROWS + 5):
        rows = torch.randn((count, 4), generator=torch.Generator().manual_seed(2))
        rows[1] = 0
        rows[2] *= 1e-6

        table = kept_table(rows, "int8")

        assert table.rows.dtype == torch.int8
        restored = table.rows * table.scales
        assert bool(((restored - rows).abs() <= table.scales * 0.5001).all())
        assert [bool(restored[row].any()) for row in (1, 2)] == [False, True]


def test_dummy_weights_are_the_same_every_time(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SIZES), "utf-8")

    first, again = (probabilities(tmp_path, samples(20), weights="dummy")[0] for _ in range(2))

    np.testing.assert_array_equal(first, again)
    assert first.std() > 0
    facts = describe([], "dlrm-v2", model=str(tmp_path), weights="dummy")
    assert facts["weights"] == "dummy"


def test_the_default_sizes_are_those_of_mlperf() -> None:
    """204,184,588 rows, 214 lookups and 16,044,545 weights besides the tables."""
    sizes = LayerSizes()
    with torch.device("meta"):
        module = Dlrm(sizes, EmbeddingTables([], on_cpu=True), {})

    assert sum(sizes.num_embeddings_per_feature) == 204_184_588
    assert sum(sizes.hotness) == 214
    assert len(sizes.hotness) == len(sizes.num_embeddings_per_feature) == 26
    assert sum(each.numel() for each in module.parameters()) == 16_044_545
    assert dataclasses.replace(sizes, embedding_dim=8).width == 27 * 8


def config(**changes: Any) -> Change:
    return text_of("config.json", json.dumps({**SIZES, **changes}))


LAST = "over_arch.model.1.weight"

BROKEN = [
    (text_of("config.json", "{"), "is not a JSON object: Expecting"),
    (text_of("config.json", "[]"), "is not a JSON object"),
    (config(model_type="bert"), "has model_type 'bert', but this factory"),
    (config(rows=[1]), "key 'rows' is unknown; valid are num_embeddings_per_feature, "),
    (config(hotness=3), "hotness = 3 is not a list of whole numbers of at least"),
    (config(hotness=[3, 1, 0]), r"hotness = \[3, 1, 0\] is not a list of whole numbers"),
    (config(embedding_dim=[8]), r"embedding_dim = \[8\] is not a whole number of at"),
    (config(hotness=[3, 1]), "hotness has 2 features and num_embeddings_per_feature 3"),
    (config(embedding_dim=4), "last of dense_arch_layer_sizes is 8 and should be embedding_dim"),
    (config(over_arch_layer_sizes=[20, 2]), "last of over_arch_layer_sizes is 2 and should be 1"),
    (config(over_arch_layer_sizes=[1]), "over_arch_layer_sizes needs two or more"),
    (
        config(num_embeddings_per_feature=[50, 8, 400]),
        r"t_cat_1\.weight is torch.float32 \[7, 8\] ",
    ),
    (
        weights_with(lambda all_: all_.pop(LAST)),
        r"the checkpoint lacks over_arch\.model\.1\.weight; it has dense_arch",
    ),
    (
        weights_with(lambda all_: all_.update({LAST: torch.zeros((1, 10), dtype=torch.int32)})),
        f"{LAST} is torch.int32 [1, 10] and should be floats [1, 10]",
    ),
    (
        weights_with(lambda all_: all_[LAST].fill_(float("inf"))),
        f"{LAST} has a weight that is NaN or infinite",
    ),
    (without("model.safetensors"), "has no model.safetensors"),
]


@pytest.mark.usefixtures("written")
def test_misfits_are_refused(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    def enter(folder: Path, **options: Any) -> None:
        load([], "dlrm-v2", model=str(folder), **options)

    assert broken_but_accepted(tmp_path, tmp_path_factory.mktemp("broken"), enter, BROKEN) == []
    expected = "tables = 'fp8' is not one of checkpoint, fp16, int8|tables_on_cpu = 1 is not true"
    for arguments in ({"tables": "fp8"}, {"tables_on_cpu": 1}):
        with pytest.raises(SuiteError, match=expected):
            enter(tmp_path, arguments=arguments)


@pytest.mark.usefixtures("written")
def test_a_sample_that_the_model_cannot_take_is_named(tmp_path: Path) -> None:
    sample = samples(2)[0]
    first, second, third = sample["sparse"]
    table: list[tuple[dict[str, Any], str]] = [
        ({"dense": np.ones((2, 13))}, r"has dense features of shape \(2, 13\), but the mo"),
        (
            {"sparse": [first, second]},
            r"has \[3, 1\] lookups per sparse feature, but the model takes \[3, 1, 12\]",
        ),
        (
            {"sparse": [first, np.full((2, 1), 7), third]},
            "looks up row 7 of sparse feature 1, but the model's table has 7 rows",
        ),
        ({"sparse": [first - 99, second, third]}, "looks up row -.* of sparse feature 0"),
    ]
    lacking = ({"dense": np.ones((1, 5))}, 'must be a dict with "dense" and "sparse"')
    rows = [
        ([samples(1)[0], changed], f"sample 1 of the data set {text}")
        for changed, text in [lacking, *((sample | changes, text) for changes, text in table)]
    ]

    def enter(requests: list[Any]) -> None:
        load(requests, "dlrm-v2", model=str(tmp_path))

    assert unrefused(enter, RunError, rows) == []

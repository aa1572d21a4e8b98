"""DLRM-DCNv2, the recommendation model of MLPerf: embedding bags, a low-rank cross net, two MLPs.

The model and its sizes: recommendation/dlrm_v2 of https://github.com/mlcommons/inference; the
cross net is equation 2 of https://arxiv.org/abs/2008.13535.

A model is a folder with config.json and safetensors files. Sizes in config.json, each with
MLPerf's as its default, are named as the reference's: see `Sizes`. Tensors have the names of
TorchRec's DLRM_DCN, also behind a "model." as DLRMTrain writes them, for table, layer or cross
layer N:

- sparse_arch.embedding_bag_collection.embedding_bags.t_cat_N.weight (rows, embedding_dim)
- dense_arch.model._mlp.N._linear.weight, .bias
- inter_arch.crossnet.V_kernels.N (rank, width), .W_kernels.N (width, rank), .bias.N (width, 1)
- over_arch.model.0._mlp.N._linear.weight, .bias; the last layer: over_arch.model.1.weight, .bias
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.engines.files import broken, sha256, weight_files
from pytest_mlperf.engines.torch.dlrm_files import SEED, Sizes, Weights, read_sizes
from pytest_mlperf.engines.torch.dlrm_tables import KINDS, Tables, drawn_table, kept_table
from pytest_mlperf.engines.torch.module_batches import Mismatch

BAGS = "sparse_arch.embedding_bag_collection.embedding_bags.t_cat_{}.weight"


class Dlrm(torch.nn.Module):
    """Gives the probability of a click for each user-item pair.

    Samples are runs of pairs; those of a batch are joined along the pairs.
    """

    batching = "concat"

    def __init__(self, sizes: Sizes, tables: Tables, facts: dict[str, str]) -> None:
        """Make the dense part with random weights.

        Args:
            sizes: Of all layers.
            tables: One embedding table per sparse feature.
            facts: What belongs to the fingerprint.
        """
        super().__init__()
        self.facts = facts
        self.host_inputs = frozenset({"sparse"} if tables.on_cpu else ())
        self._sizes = sizes
        width = sizes.width
        self.tables = tables
        self.bottom = _layers((sizes.dense_features, *sizes.dense_arch_layer_sizes))
        self.narrow = torch.nn.ModuleList(
            torch.nn.Linear(width, sizes.dcn_low_rank_dim, bias=False)
            for _ in range(sizes.dcn_num_layers)
        )
        self.wide = torch.nn.ModuleList(
            torch.nn.Linear(sizes.dcn_low_rank_dim, width) for _ in range(sizes.dcn_num_layers)
        )
        self.top = _layers((width, *sizes.over_arch_layer_sizes))

    def prepare(self, sample: Any) -> dict[str, Any]:
        """Return a sample as two arrays.

        Args:
            sample: "dense" (pairs, 13) and "sparse", a list of arrays (pairs, lookups), as the
                data set criteo gives them.

        Returns:
            "dense" as it is, and "sparse" (pairs, all lookups), int32.

        Raises:
            Mismatch: It is something else, or looks up a row that a table does not have.
        """
        import numpy as np

        sizes = self._sizes
        if not isinstance(sample, dict) or not {"dense", "sparse"} <= sample.keys():
            raise Mismatch("lacks dense or sparse; use the data set criteo")
        dense, sparse = sample["dense"], sample["sparse"]
        if dense.ndim != 2 or dense.shape[1] != sizes.dense_features:
            raise Mismatch(
                f"has dense features of shape {dense.shape}, but the model takes "
                f"{sizes.dense_features} per pair"
            )
        widths = tuple(lookups.shape[1] for lookups in sparse)
        if widths != sizes.hotness:
            raise Mismatch(
                f"has {list(widths)} lookups per sparse feature, but the model takes "
                f"{list(sizes.hotness)}; set hotness in config.json or in the data set"
            )
        for feature, (lookups, rows) in enumerate(
            zip(sparse, sizes.num_embeddings_per_feature, strict=True)
        ):
            if lookups.size and (lookups.min() < 0 or lookups.max() >= rows):
                wrong = lookups.min() if lookups.min() < 0 else lookups.max()
                raise Mismatch(
                    f"looks up row {wrong} of sparse feature {feature}, but the model's table has "
                    f"{rows} rows; use the data set that the model is made for"
                )
        return {"dense": dense, "sparse": np.concatenate(sparse, axis=1).astype(np.int32)}

    def forward(self, dense: Any, sparse: Any) -> Any:
        """Return probabilities.

        Args:
            dense: Shape (pairs, 13).
            sparse: Rows to look up, the features side by side; shape (pairs, all lookups).

        Returns:
            Shape (pairs,), float32.
        """
        bottom = torch.relu(self.bottom(dense))
        pooled = self.tables(sparse, self._sizes.hotness, bottom.dtype).to(bottom.device)
        first = crossed = torch.cat((bottom, pooled), dim=1)
        for narrow, wide in zip(self.narrow, self.wide, strict=True):
            crossed = first * wide(narrow(crossed)) + crossed
        # In a narrower type, close probabilities would become ties.
        return self.top(crossed).squeeze(1).float().sigmoid()


def dlrm_v2(
    *,
    model: str,
    weights: str = "checkpoint",
    tables: str = "checkpoint",
    tables_on_cpu: bool = False,
) -> Dlrm:
    """Load DLRM-DCNv2 from a folder.

    Args:
        model: Folder with config.json and, unless `weights` is "dummy", safetensors files. Tables
            are mapped from the file, not read, while they stay as they are on the CPU.
        weights: "checkpoint"; or "dummy": random weights of the sizes of config.json, the same
            every time.
        tables: "checkpoint": as in the file, whatever the engine's precision is; "fp16"; or
            "int8": a scale per row, the largest absolute value over 127.
        tables_on_cpu: Look up on the CPU, whatever device runs the rest.

    Raises:
        SuiteError: An argument is wrong.
        RunError: config.json is wrong, or weights are missing or of another shape.
    """
    if tables not in KINDS or type(tables_on_cpu) is not bool:
        raise SuiteError(
            f"engine torch-module: arguments: tables = {tables!r} should be one of "
            f"{', '.join(KINDS)}, and tables_on_cpu = {tables_on_cpu!r} true or false"
        )
    folder = Path(model)
    sizes = read_sizes(folder)
    rows, dim = sizes.num_embeddings_per_feature, sizes.embedding_dim
    facts = {"tables": tables, "tables_on_cpu": str(tables_on_cpu).lower()}
    if weights == "dummy":
        facts["weights"] = "dummy"
        drawn = [drawn_table(count, dim, tables, SEED + n) for n, count in enumerate(rows)]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            return Dlrm(sizes, Tables(drawn, on_cpu=tables_on_cpu), facts)
    files = weight_files(folder)
    facts["weights_sha256"] = sha256(files)[:16]
    found = Weights(folder, files)
    kept = [
        kept_table(found.take(BAGS.format(number), (count, dim)), tables)
        for number, count in enumerate(rows)
    ]
    made = Dlrm(sizes, Tables(kept, on_cpu=tables_on_cpu), facts)
    for name, parameter in _names(made):
        tensor = found.take(name, _shape(name, parameter)).reshape(parameter.shape)
        parameter.data.copy_(tensor)
        if not bool(parameter.isfinite().all()):
            raise broken(folder, f"{name} has a weight that is not a number")
    return made


def _layers(widths: Sequence[int]) -> torch.nn.Sequential:
    """Return linear layers with a ReLU between each two."""
    parts: list[torch.nn.Module] = []
    for taken, given in pairwise(widths):
        parts += [torch.nn.Linear(taken, given), torch.nn.ReLU()]
    return torch.nn.Sequential(*parts[:-1])


def _names(module: Dlrm) -> Iterator[tuple[str, Any]]:
    """Yield the dense part's parameters with their names in the files."""
    bottom = [each for each in module.bottom if isinstance(each, torch.nn.Linear)]
    *top, last = [each for each in module.top if isinstance(each, torch.nn.Linear)]
    linear = [(f"dense_arch.model._mlp.{n}._linear", each) for n, each in enumerate(bottom)]
    linear += [(f"over_arch.model.0._mlp.{n}._linear", each) for n, each in enumerate(top)]
    for name, layer in [*linear, ("over_arch.model.1", last)]:
        yield f"{name}.weight", layer.weight
        yield f"{name}.bias", layer.bias
    for number, (narrow, wide) in enumerate(zip(module.narrow, module.wide, strict=True)):
        yield f"inter_arch.crossnet.V_kernels.{number}", narrow.weight
        yield f"inter_arch.crossnet.W_kernels.{number}", wide.weight
        yield f"inter_arch.crossnet.bias.{number}", wide.bias


def _shape(name: str, parameter: Any) -> tuple[int, ...]:
    """Return what a parameter has in the files: TorchRec's cross net keeps its bias as a column."""
    shape = tuple(parameter.shape)
    return (*shape, 1) if ".crossnet.bias." in name else shape

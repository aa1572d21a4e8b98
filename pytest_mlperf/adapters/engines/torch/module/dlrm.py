"""Run DLRM-DCNv2, MLPerf's recommendation model: embedding bags, a low-rank cross net, two MLPs.

Source of the model and its dimensions: recommendation/dlrm_v2 of
https://github.com/mlcommons/inference; the cross net is equation 2 of
https://arxiv.org/abs/2008.13535.

A model is a folder with config.json and safetensors files. The keys of config.json are the
attributes of `LayerSizes`; missing ones have MLPerf's values. Tensors are named as in TorchRec's
DLRM_DCN, or with DLRMTrain's prefix "model."; N is the number of a table, layer or cross layer:

- sparse_arch.embedding_bag_collection.embedding_bags.t_cat_N.weight (rows, embedding_dim)
- dense_arch.model._mlp.N._linear.weight, .bias
- inter_arch.crossnet.V_kernels.N (rank, width), .W_kernels.N (width, rank), .bias.N (width, 1)
- over_arch.model.0._mlp.N._linear.weight, .bias; the last layer: over_arch.model.1.weight, .bias
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from pytest_mlperf import SuiteError
from pytest_mlperf.adapters.engines import broken, weight_files
from pytest_mlperf.adapters.engines.torch.module._folder import WEIGHTS_SEED, Weights, sizes_in
from pytest_mlperf.adapters.engines.torch.module._runner import Mismatch
from pytest_mlperf.adapters.lazy import np
from pytest_mlperf.extension import sha256


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerSizes:
    """Define the dimensions of all layers; the defaults are MLPerf's.

    Attributes:
        num_embeddings_per_feature: Number of rows of each embedding table.
        embedding_dim: Length of an embedding vector.
        hotness: Number of lookups of each sparse feature.
        dense_features: Number of dense features of a user-item pair.
        dense_arch_layer_sizes: Output sizes of the layers for dense features; the last one is
            `embedding_dim`.
        dcn_num_layers: Number of layers of the cross net.
        dcn_low_rank_dim: Rank of the cross net's kernels.
        over_arch_layer_sizes: Output sizes of the final layers; the last one is 1.
    """

    num_embeddings_per_feature: tuple[int, ...] = (
        *(40_000_000, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63),
        *(40_000_000, 3_067_956, 405_282, 10, 2_209, 11_938, 155, 4, 976),
        *(14, 40_000_000, 40_000_000, 40_000_000, 590_152, 12_973, 108, 36),
    )
    embedding_dim: int = 128
    hotness: tuple[int, ...] = (
        *(3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1),
        *(6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1),
    )
    dense_features: int = 13
    dense_arch_layer_sizes: tuple[int, ...] = (512, 256, 128)
    dcn_num_layers: int = 3
    dcn_low_rank_dim: int = 512
    over_arch_layer_sizes: tuple[int, ...] = (1024, 1024, 512, 256, 1)

    @property
    def width(self) -> int:
        return self.embedding_dim * (1 + len(self.num_embeddings_per_feature))


def read_sizes(folder: Path) -> LayerSizes:
    """Read the layer sizes from config.json; raise an error if they do not fit together."""
    file = folder / "config.json"
    sizes = sizes_in(folder, LayerSizes, "dlrm-v2")
    for is_invalid, problem in (
        (
            len(sizes.hotness) != len(sizes.num_embeddings_per_feature),
            f"hotness has {len(sizes.hotness)} features and num_embeddings_per_feature "
            f"{len(sizes.num_embeddings_per_feature)}; both need the same number",
        ),
        (
            sizes.dense_arch_layer_sizes[-1] != sizes.embedding_dim,
            f"the last of dense_arch_layer_sizes is {sizes.dense_arch_layer_sizes[-1]} and should "
            f"be embedding_dim = {sizes.embedding_dim}",
        ),
        (
            sizes.over_arch_layer_sizes[-1] != 1,
            f"the last of over_arch_layer_sizes is {sizes.over_arch_layer_sizes[-1]} and should "
            "be 1",
        ),
        (len(sizes.over_arch_layer_sizes) < 2, "over_arch_layer_sizes needs two or more sizes"),
    ):
        if is_invalid:
            raise broken(file, problem)
    return sizes


TABLE_KINDS = ("checkpoint", "fp16", "int8")

BLOCK_ROWS = 1 << 18
"""Rows converted or drawn at a time, so that a table is never in memory twice."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbeddingTable:
    """Hold the embedding table of one sparse feature, shape (rows, dim).

    An int8 table has one scale per row, shape (rows, 1); `scales` is None for floats.
    """

    rows: Any
    scales: Any = None

    def to(self, device: Any) -> EmbeddingTable:
        scales = None if self.scales is None else self.scales.to(device)
        return EmbeddingTable(rows=self.rows.to(device), scales=scales)

    def sums(self, lookups: Any, dtype: Any) -> Any:
        """Return each pair's summed vectors, (pairs, dim), for row numbers, (pairs, lookups)."""
        if self.scales is None:
            sums = torch.nn.functional.embedding_bag(lookups.contiguous(), self.rows, mode="sum")
            return sums.to(dtype)
        scales = self.scales[lookups].transpose(1, 2)
        return torch.bmm(scales, self.rows[lookups].to(scales.dtype)).squeeze(1).to(dtype)


class EmbeddingTables(torch.nn.Module):
    """Hold one embedding table per sparse feature.

    Moving the module to another device moves the tables, unless `on_cpu`; their dtype never
    changes.
    """

    def __init__(self, tables: Sequence[EmbeddingTable], *, on_cpu: bool) -> None:
        super().__init__()
        # Not parameters, since `to(dtype)` would copy tables that are mapped from a file.
        self._tables = list(tables)
        self.on_cpu = on_cpu

    def forward(self, lookups: Any, hotness: Sequence[int], dtype: Any) -> Any:
        """Return each pair's summed embeddings of all features, shape (pairs, features x dim).

        `lookups` are row numbers, shape (pairs, total lookups); `hotness` counts them per feature.
        """
        parts = lookups.split(list(hotness), dim=1)
        return torch.cat(
            [table.sums(part, dtype) for table, part in zip(self._tables, parts, strict=True)],
            dim=1,
        )

    def _apply(self, fn: Callable[[Any], Any], recurse: bool = True) -> EmbeddingTables:  # noqa: ARG002
        if not self.on_cpu and self._tables:
            device = fn(torch.empty(0, device=self._tables[0].rows.device)).device
            self._tables = [table.to(device) for table in self._tables]
        return self


def kept_table(rows: Any, kind: str) -> EmbeddingTable:
    """Convert a checkpoint's embedding table, shape (rows, dim), to `kind` of `TABLE_KINDS`."""
    if kind == "checkpoint":
        return EmbeddingTable(rows=rows)
    return _fill(len(rows), rows.shape[1], kind, lambda start, stop: rows[start:stop].float())


def drawn_table(count: int, dim: int, kind: str, seed: int) -> EmbeddingTable:
    """Return a table of random numbers, uniform within ±1/sqrt(count) as in the reference.

    The same seed gives the same table; `kind` is one of `TABLE_KINDS`.
    """
    drawing = torch.Generator().manual_seed(seed)
    bound = count**-0.5

    def draw(start: int, stop: int) -> Any:
        return torch.empty(stop - start, dim).uniform_(-bound, bound, generator=drawing)

    return _fill(count, dim, kind, draw)


def _fill(count: int, dim: int, kind: str, block: Callable[[int, int], Any]) -> EmbeddingTable:
    dtype = {"checkpoint": torch.float32, "fp16": torch.float16, "int8": torch.int8}[kind]
    rows = torch.empty(count, dim, dtype=dtype)
    scales = torch.empty(count, 1) if kind == "int8" else None
    for start in range(0, count, BLOCK_ROWS):
        stop = min(start + BLOCK_ROWS, count)
        values = block(start, stop)
        if scales is not None:
            largest = values.abs().amax(dim=1, keepdim=True)
            scales[start:stop] = largest / 127
            # A row of zeros has the scale 0.
            values = (values * (127 / largest.where(largest > 0, 1))).round()
        rows[start:stop] = values
    return EmbeddingTable(rows=rows, scales=scales)


TABLE_WEIGHT_NAME = "sparse_arch.embedding_bag_collection.embedding_bags.t_cat_{}.weight"


class Dlrm(torch.nn.Module):
    """Compute the probability of a click for each user-item pair."""

    batching = "concat"

    def __init__(self, sizes: LayerSizes, tables: EmbeddingTables, facts: dict[str, str]) -> None:
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
        """Convert a sample of data set criteo to the arguments of `forward`, after checking it.

        Returns "dense", the dense features, and "sparse", row numbers, int32, (pairs, total
        lookups).
        """
        sizes = self._sizes
        if not isinstance(sample, dict) or not {"dense", "sparse"} <= sample.keys():
            raise Mismatch('must be a dict with "dense" and "sparse"; use the data set criteo')
        dense, sparse = sample["dense"], sample["sparse"]
        if dense.ndim != 2 or dense.shape[1] != sizes.dense_features:
            raise Mismatch(
                f"has dense features of shape {dense.shape}, but the model takes the shape (pairs, "
                f"{sizes.dense_features}); use the data set that the model is made for"
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
                row = lookups.min() if lookups.min() < 0 else lookups.max()
                raise Mismatch(
                    f"looks up row {row} of sparse feature {feature}, but the model's table has "
                    f"{rows} rows; use the data set that the model is made for"
                )
        return {"dense": dense, "sparse": np.concatenate(sparse, axis=1).astype(np.int32)}

    def forward(self, dense: Any, sparse: Any) -> Any:
        """Return each pair's click probability, float32, shape (pairs,).

        `dense` are dense features, (pairs, 13); `sparse` are row numbers, (pairs, total lookups).
        """
        bottom = torch.relu(self.bottom(dense))
        pooled = self.tables(sparse, self._sizes.hotness, bottom.dtype).to(bottom.device)
        first = crossed = torch.cat((bottom, pooled), dim=1)
        for narrow, wide in zip(self.narrow, self.wide, strict=True):
            crossed = first * wide(narrow(crossed)) + crossed
        # In float32, since close probabilities would become ties in a narrower type.
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
            on the CPU with tables = "checkpoint" stay memory-mapped.
        weights: "checkpoint"; or "dummy" for reproducible random weights with the dimensions in
            config.json.
        tables: Type of the embedding tables: "checkpoint" keeps the file's type at any precision of
            the engine; "fp16"; or "int8" with one scale per row, its largest absolute value / 127.
        tables_on_cpu: Keep the tables and look up rows on the CPU, whatever the device of the other
            layers.
    """
    fault = f"tables = {tables!r} is not one of {', '.join(TABLE_KINDS)}"
    if tables in TABLE_KINDS:
        fault = f"tables_on_cpu = {tables_on_cpu!r} is not true or false"
    if tables not in TABLE_KINDS or type(tables_on_cpu) is not bool:
        raise SuiteError(f"engine torch-module: arguments: {fault}", option="arguments")
    folder = Path(model)
    sizes = read_sizes(folder)
    rows, dim = sizes.num_embeddings_per_feature, sizes.embedding_dim
    facts = {"tables": tables, "tables_on_cpu": str(tables_on_cpu).lower()}
    if weights == "dummy":
        facts["weights"] = "dummy"
        random_tables = [
            drawn_table(count, dim, tables, WEIGHTS_SEED + n) for n, count in enumerate(rows)
        ]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(WEIGHTS_SEED)
            return Dlrm(sizes, EmbeddingTables(random_tables, on_cpu=tables_on_cpu), facts)
    files = weight_files(folder)
    facts["weights_sha256"] = sha256(files)[:16]
    checkpoint = Weights(folder, files)
    kept = [
        kept_table(checkpoint.take(TABLE_WEIGHT_NAME.format(number), (count, dim)), tables)
        for number, count in enumerate(rows)
    ]
    module = Dlrm(sizes, EmbeddingTables(kept, on_cpu=tables_on_cpu), facts)
    for name, parameter in _names(module):
        tensor = checkpoint.take(name, _shape(name, parameter)).reshape(parameter.shape)
        parameter.data.copy_(tensor)
        if not bool(parameter.isfinite().all()):
            raise broken(folder, f"{name} has a weight that is NaN or infinite")
    return module


def _layers(widths: Sequence[int]) -> torch.nn.Sequential:
    parts: list[torch.nn.Module] = []
    for inputs, outputs in pairwise(widths):
        parts += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
    return torch.nn.Sequential(*parts[:-1])


def _names(module: Dlrm) -> Iterator[tuple[str, Any]]:
    bottom = [layer for layer in module.bottom if isinstance(layer, torch.nn.Linear)]
    *top, last = [layer for layer in module.top if isinstance(layer, torch.nn.Linear)]
    linear = [(f"dense_arch.model._mlp.{n}._linear", layer) for n, layer in enumerate(bottom)]
    linear += [(f"over_arch.model.0._mlp.{n}._linear", layer) for n, layer in enumerate(top)]
    for name, layer in [*linear, ("over_arch.model.1", last)]:
        yield f"{name}.weight", layer.weight
        yield f"{name}.bias", layer.bias
    for number, (narrow, wide) in enumerate(zip(module.narrow, module.wide, strict=True)):
        yield f"inter_arch.crossnet.V_kernels.{number}", narrow.weight
        yield f"inter_arch.crossnet.W_kernels.{number}", wide.weight
        yield f"inter_arch.crossnet.bias.{number}", wide.bias


def _shape(name: str, parameter: Any) -> tuple[int, ...]:
    """Return a parameter's shape in the checkpoint; biases of the cross net are (width, 1)."""
    shape = tuple(parameter.shape)
    return (*shape, 1) if ".crossnet.bias." in name else shape

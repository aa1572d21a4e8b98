"""Run R-GAT, MLPerf's graph model: separate graph attention for each relation between nodes.

A layer's output for a node is the sum, over relations, of the graph attention
(https://arxiv.org/abs/1710.10903) over the node's neighbours; a paper counts as its own neighbour.
As in MLPerf's reference, a layer computes only the nodes that later layers need, and neighbours are
sampled for every query. In the reference, the nodes of a batch share sampled neighbours; here each
queried node has its own sample, so that answers do not depend on the batch.

A model is a folder with config.json and safetensors files. The keys of config.json are the
attributes of `RgatSizes`; missing ones have MLPerf's values. Tensors are named like the parameters
of `Rgat`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import leaky_relu

from pytest_mlperf.adapters.engines import broken, engine_error
from pytest_mlperf.adapters.engines.torch.module._folder import module_with_weights, sizes_in
from pytest_mlperf.adapters.engines.torch.module._runner import Mismatch

Ints = NDArray[np.int64]
Relation = tuple[str, str, str]
"""Kind of the neighbour, name, and kind of the node."""

CITATION_EDGE = ("paper", "cites", "paper")


@dataclass(frozen=True, kw_only=True, slots=True)
class Level:
    """Hold the nodes that are a given number of hops from the queried nodes (roots).

    A node that is reached by several paths is listed once per path.

    Attributes:
        nodes: Node numbers, by kind of node.
        roots: Root of each node, by kind of node.
        parents: For each sampled neighbour, the index of its parent in the previous level, by
            relation. Neighbours of the same kind are stored in the order of these relations.
    """

    nodes: Mapping[str, Ints]
    roots: Mapping[str, Ints]
    parents: Mapping[Relation, Ints] = field(default_factory=dict)


class Neighbours:
    """Sample neighbours of nodes, along the edges in both directions.

    If a node has more neighbours than the fan-out of the hop, an equidistant sample of its
    neighbour list is used. Its start is a hash of seed, root, hop and node. All neighbours are
    equally likely, and none occurs twice. The sample of a root does not depend on the batch or the
    run.
    """

    def __init__(self, edges: Mapping[Relation, NDArray[Any]], counts: Mapping[str, int]) -> None:
        """Sort edges by target node, once, as it is slow; `counts`: number of nodes by type."""
        self._rows: dict[Relation, tuple[Ints, NDArray[Any]]] = {}
        for (first, name, second), pairs in edges.items():
            ends = pairs[:, 0], pairs[:, 1]
            if (first, name, second) == CITATION_EDGE:
                apart = ends[0] != ends[1]
                both = [np.concatenate([ends[n][apart], ends[1 - n][apart]]) for n in (0, 1)]
                self._rows[CITATION_EDGE] = _sorted(both[0], both[1], counts[second])
                continue
            self._rows[first, name, second] = _sorted(*ends, counts[second])
            self._rows[second, f"rev_{name}", first] = _sorted(*ends[::-1], counts[first])

    def sampled_levels(self, papers: Ints, fan_outs: Sequence[int], seed: int) -> list[Level]:
        """Sample the nodes around queried papers; return one level per hop, after the papers' own.

        `fan_outs` has the maximum number of neighbours per relation for each hop.
        """
        levels = [Level(nodes={"paper": papers}, roots={"paper": papers})]
        for hop, count in enumerate(fan_outs):
            previous, parts, parents = levels[-1], dict[str, list[tuple[Ints, Ints]]](), {}
            for relation in self._rows:
                source, _, target = relation
                if target in previous.nodes:
                    positions, nodes = self._sampled(relation, previous, count, (seed, hop))
                    parents[relation] = positions
                    parts.setdefault(source, []).append((nodes, previous.roots[target][positions]))
            joined = [
                {kind: np.concatenate([part[n] for part in each]) for kind, each in parts.items()}
                for n in (0, 1)
            ]
            levels.append(Level(nodes=joined[0], roots=joined[1], parents=parents))
        return levels

    def _sampled(
        self, relation: Relation, level: Level, limit: int, salt: tuple[int, int]
    ) -> tuple[Ints, Ints]:
        """Sample up to `limit` neighbours per node of a level in a relation; `salt`: (seed, hop).

        Returns, for each neighbour, the index of its parent in the level, and its node number.
        """
        starts, sources = self._rows[relation]
        nodes, roots = level.nodes[relation[2]], level.roots[relation[2]]
        begin = starts[nodes]
        degree = starts[nodes + 1] - begin
        counts = np.minimum(degree, limit)
        positions = np.repeat(np.arange(len(nodes)), counts)
        turn = np.arange(len(positions)) - np.repeat(np.cumsum(counts) - counts, counts)
        chance = _chance(*salt, len(relation[1]), roots[positions], nodes[positions])
        part = (turn + np.where(degree[positions] > limit, chance, 0.0)) / counts[positions]
        chosen = np.minimum((part * degree[positions]).astype(np.int64), degree[positions] - 1)
        return positions, sources[begin[positions] + chosen].astype(np.int64)


def _sorted(sources: Any, targets: Any, count: int) -> tuple[Ints, NDArray[Any]]:
    """Return a compressed adjacency list: start offsets per target node, and sorted sources."""
    order = np.argsort(targets, kind="stable")
    starts = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(targets, minlength=count), out=starts[1:])
    return starts, np.ascontiguousarray(np.asarray(sources)[order])


def _chance(*parts: Any) -> NDArray[np.float64]:
    """Return pseudo-random numbers in [0, 1): the SplitMix64 hash of the integers `parts`."""
    mixed = np.zeros(1, np.uint64)
    with np.errstate(over="ignore"):
        for part in parts:
            mixed = mixed + np.asarray(part).astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            mixed = mixed ^ (mixed >> np.uint64(31))
    return np.asarray((mixed >> np.uint64(11)) / float(1 << 53))


FORWARD: tuple[Relation, ...] = (
    ("paper", "written_by", "author"),
    ("author", "affiliated_to", "institute"),
    ("paper", "topic", "fos"),
    ("paper", "published", "journal"),
    ("paper", "venue", "conference"),
)

RELATIONS: tuple[Relation, ...] = (
    CITATION_EDGE,
    *FORWARD,
    *((target, f"rev_{name}", source) for source, name, target in FORWARD),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class RgatSizes:
    """Define the dimensions of the model; the defaults are MLPerf's.

    Attributes:
        features: Number of input features of a node.
        hidden: Number of hidden features of a node, over all heads.
        heads: Number of attention heads.
        classes: Number of classes.
        fan_outs: Maximum neighbours of a node per relation, one number per layer; the last one is
            for the queried papers.
    """

    features: int = 1024
    hidden: int = 512
    heads: int = 4
    classes: int = 2983
    fan_outs: tuple[int, ...] = (5, 10, 15)


class Attention(torch.nn.Module):
    """Compute graph attention over the neighbours of one relation."""

    def __init__(self, inputs: int, hidden: int, heads: int) -> None:
        super().__init__()
        self._shape = (heads, hidden // heads)
        self.linear = torch.nn.Linear(inputs, hidden, bias=False)
        self.source = torch.nn.Parameter(torch.randn(self._shape) * self._shape[1] ** -0.5)
        self.target = torch.nn.Parameter(torch.randn(self._shape) * self._shape[1] ** -0.5)
        self.bias = torch.nn.Parameter(torch.zeros(hidden))

    def forward(self, nodes: Any, neighbours: Any, parents: Any) -> Any:
        """Return the attention output of each node, from its neighbours in one relation.

        `parents` has, for each row of `neighbours`, the index of its node in `nodes`.
        """
        sources, targets = (
            self.linear(rows).unflatten(-1, self._shape) for rows in (neighbours, nodes)
        )
        scores = leaky_relu(
            (sources * self.source).sum(-1) + (targets * self.target).sum(-1)[parents], 0.2
        )
        positions = parents.unsqueeze(-1).expand_as(scores)
        maxima = scores.new_full((len(nodes), scores.shape[1]), -torch.inf)
        maxima = maxima.scatter_reduce(0, positions, scores, "amax")
        weights = (scores - maxima[parents]).exp()
        totals = weights.new_zeros(maxima.shape).scatter_add(0, positions, weights)
        shares = weights / totals[parents].clamp(min=1e-9)
        sums = sources.new_zeros(len(nodes), *self._shape)
        sums = sums.index_add(0, parents, sources * shares.unsqueeze(-1))
        return sums.flatten(1) + self.bias


class Rgat(torch.nn.Module):
    """Predict classes of papers in a citation graph, by a relational graph attention network."""

    host_inputs = frozenset({"paper"})

    def __init__(self, sizes: RgatSizes, seed: int = 0) -> None:
        super().__init__()
        self.facts: dict[str, str] = {}
        self._sizes, self.seed = sizes, seed
        widths = [sizes.features] + [sizes.hidden] * (len(sizes.fan_outs) - 1)
        self.layers = torch.nn.ModuleList(
            torch.nn.ModuleDict(
                {"__".join(r): Attention(width, sizes.hidden, sizes.heads) for r in RELATIONS}
            )
            for width in widths
        )
        self.head = torch.nn.Linear(sizes.hidden, sizes.classes)

    def bind(self, dataset: Any) -> None:
        """Sort the edges of data set igbh for sampling; its features stay memory-mapped."""
        features, edges = getattr(dataset, "features", None), getattr(dataset, "edges", None)
        if not isinstance(features, Mapping) or not isinstance(edges, Mapping):
            raise engine_error("the data set has no graph; use the data set igbh")
        for kind, rows in features.items():
            if rows.shape[1] != self._sizes.features:
                raise engine_error(
                    f"nodes of kind {kind} have {rows.shape[1]} features, but the model takes "
                    f"{self._sizes.features}; use the data that the model is made for, or set "
                    "features of the data set and in config.json to the same number"
                )
        self._features = features
        self._neighbours = Neighbours(edges, {kind: len(rows) for kind, rows in features.items()})

    def prepare(self, sample: Any) -> dict[str, Any]:
        if not isinstance(sample, Mapping) or "paper" not in sample:
            raise Mismatch("is not a paper; use the data set igbh")
        return {"paper": np.int64(sample["paper"])}

    def forward(self, paper: Any) -> Any:
        """Sample neighbours; return the predicted class of each paper, int64, (papers,)."""
        return self.scores(paper).argmax(-1)

    def scores(self, paper: Any) -> Any:
        """Return the score of every class for each paper, shape (papers, classes)."""
        levels = self._neighbours.sampled_levels(
            paper.numpy(), self._sizes.fan_outs[::-1], self.seed
        )
        hidden = [
            {kind: self._loaded(kind, nodes) for kind, nodes in level.nodes.items()}
            for level in levels
        ]
        for number, layer in enumerate(self.layers):
            last = number + 1 == len(self.layers)
            hidden = [
                self._layer(layer, hidden[depth], hidden[depth + 1], levels[depth + 1], last)
                for depth in range(len(hidden) - 1)
            ]
        return self.head(hidden[0]["paper"])

    def _loaded(self, kind: str, nodes: Any) -> Any:
        weight = self.head.weight
        rows = np.asarray(self._features[kind][nodes], np.float32)
        return torch.from_numpy(rows).to(weight.device, weight.dtype)

    def _layer(
        self,
        layer: Any,
        nodes: Mapping[str, Any],
        neighbours: Mapping[str, Any],
        level: Level,
        last: bool,
    ) -> dict[str, Any]:
        sums: dict[str, Any] = {}
        begins = dict.fromkeys(neighbours, 0)
        for relation, positions in level.parents.items():
            source, _, target = relation
            begin = begins[source]
            begins[source] = end = begin + len(positions)
            rows = neighbours[source][begin:end]
            parents = torch.from_numpy(positions).to(rows.device)
            if relation == CITATION_EDGE:
                itself = torch.arange(len(nodes[target]), device=rows.device)
                rows, parents = torch.cat([rows, nodes[target]]), torch.cat([parents, itself])
            part = layer["__".join(relation)](nodes[target], rows, parents)
            sums[target] = sums[target] + part if target in sums else part
        return {kind: rows if last else leaky_relu(rows) for kind, rows in sums.items()}


def rgat(*, model: str, weights: str = "checkpoint", seed: int = 0) -> Rgat:
    """Load a graph model from a folder.

    Args:
        model: Folder with config.json and, unless `weights` is "dummy", safetensors files.
        weights: "checkpoint"; or "dummy" for reproducible random weights with the dimensions in
            config.json.
        seed: Seed for sampling neighbours.
    """
    folder = Path(model)
    sizes = sizes_in(folder, RgatSizes, "rgat")
    if sizes.hidden % sizes.heads:
        raise broken(
            folder / "config.json",
            f"hidden = {sizes.hidden} is not a multiple of heads = {sizes.heads}; correct one",
        )
    module: Rgat = module_with_weights(folder, weights, lambda: Rgat(sizes, seed))
    module.facts |= {"fan_outs": str(list(sizes.fan_outs)), "sampling_seed": str(seed)}
    return module

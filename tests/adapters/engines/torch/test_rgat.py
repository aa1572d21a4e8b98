"""Test that R-GAT samples neighbours while it answers, equally for a paper in any batch."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pytest_mlperf.adapters.engines.torch.module.rgat import (
    CITATION_EDGE,
    Attention,
    Neighbours,
    Rgat,
    RgatSizes,
)
from pytest_mlperf.core.errors import RunError
from tests.adapters.engines.recording import Samples
from tests.adapters.engines.torch import modules
from tests.adapters.engines.torch.models import change_json
from tests.refusals import unrefused

COUNTS = {"paper": 60, "author": 30, "institute": 4, "fos": 9, "journal": 3, "conference": 3}
EDGES = {
    CITATION_EDGE: 5,
    ("paper", "written_by", "author"): 3,
    ("author", "affiliated_to", "institute"): 1,
    ("paper", "topic", "fos"): 2,
    ("paper", "published", "journal"): 1,
    ("paper", "venue", "conference"): 1,
}
SIZES = RgatSizes(features=6, hidden=8, heads=2, classes=300, fan_outs=(2, 2, 3))


class Graph:
    """A small graph, as data set igbh has it."""

    digest = "0" * 64

    def __init__(self) -> None:
        drawing = np.random.RandomState(0)
        self.features = {
            kind: drawing.normal(size=(count, 6)).astype("f4") for kind, count in COUNTS.items()
        }
        self.edges = {}
        for (source, name, target), degree in EDGES.items():
            begins = np.repeat(np.arange(COUNTS[source]), degree)
            ends = drawing.randint(0, COUNTS[target], len(begins))
            self.edges[source, name, target] = np.stack([begins, ends], axis=1)

    def __len__(self) -> int:
        return COUNTS["paper"]

    def input(self, index: int) -> dict[str, int]:
        return {"paper": index}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    torch.manual_seed(3)
    return modules.write_model(tmp_path, "rgat", SIZES, Rgat(SIZES))


def classes(model: Path, dataset: Any, **options: Any) -> list[int]:
    outputs = modules.answer(range(60), "rgat", "<i8", model=str(model), dataset=dataset, **options)
    return [int(number) for (number,) in outputs]


def test_classes_are_int64_and_independent_of_the_batch(model: Path) -> None:
    """A byte would not hold them, as in the log of MLPerf's reference."""
    together, single = (classes(model, Graph(), batch_size=size) for size in (60, 1))

    assert together == single
    assert max(together) > 255
    assert len(set(together)) > 5
    assert classes(model, Graph(), batch_size=7, arguments={"seed": 5}) != together


def test_neighbours_are_real_ones_distinct_and_as_many_as_asked() -> None:
    graph = Graph()
    neighbours = Neighbours(graph.edges, COUNTS)
    papers = np.arange(60)
    roots, first, *_ = neighbours.sampled_levels(papers, (3, 2), 0)

    position = dict.fromkeys(first.nodes, 0)
    for relation, parents in first.parents.items():
        source, name, target = relation
        begin = position[source]
        position[source] = end = begin + len(parents)
        pairs: Counter[tuple[int, int]] = Counter()
        for (first_kind, stored, second_kind), edges in graph.edges.items():
            if name == stored:
                pairs.update((b, a) for a, b in edges.tolist())
            if name == f"rev_{stored}" or (name == stored and first_kind == second_kind == "paper"):
                pairs.update((a, b) for a, b in edges.tolist())
        ends = roots.nodes[target][parents], first.nodes[source][begin:end]
        sampled = Counter(zip(*(each.tolist() for each in ends), strict=True))
        degrees: Counter[int] = Counter()
        for (node, neighbour), times in pairs.items():
            if source != target or node != neighbour:
                degrees[node] += times
        assert all(times <= pairs[pair] for pair, times in sampled.items())
        taken = Counter(node for node, _ in sampled.elements())
        assert taken == {node: min(3, degree) for node, degree in degrees.items()}


def test_every_neighbour_is_sampled_as_often() -> None:
    """Of 10 neighbours 3 are taken; over 1,500 seeds each comes in about three of ten."""
    edges = {("paper", "topic", "fos"): np.stack([np.zeros(10, int), np.arange(10)], axis=1)}
    neighbours = Neighbours(edges, {"paper": 1, "fos": 10})
    node_counts: Counter[int] = Counter()
    for seed in range(1500):
        _, level = neighbours.sampled_levels(np.array([0]), (3,), seed)
        assert len(set(level.nodes["fos"].tolist())) == 3
        node_counts.update(level.nodes["fos"].tolist())

    assert all(abs(node_counts[node] - 450) < 5 * (1500 * 0.3 * 0.7) ** 0.5 for node in range(10))


def test_attention_is_that_of_the_paper() -> None:
    """Written out once more, node by node and head by head."""
    torch.manual_seed(1)
    layer = Attention(5, 6, 2)
    nodes, neighbours = torch.randn(3, 5), torch.randn(4, 5)
    parents = torch.tensor([0, 2, 0, 0])
    with torch.no_grad():
        computed = layer(nodes, neighbours, parents)
        for node in range(3):
            mine = [n for n in range(4) if parents[n] == node]
            for head, part in enumerate((slice(0, 3), slice(3, 6))):
                own_features = layer.linear(nodes[node])[part]
                theirs = [layer.linear(neighbours[n])[part] for n in mine]
                scores = [
                    torch.nn.functional.leaky_relu(
                        each @ layer.source[head] + own_features @ layer.target[head], 0.2
                    )
                    for each in theirs
                ]
                expected = layer.bias[part].clone()
                for weight, their_features in zip(
                    torch.softmax(torch.stack(scores), 0) if mine else [], theirs, strict=True
                ):
                    expected += weight * their_features
                torch.testing.assert_close(computed[node][part], expected)


def test_data_and_models_that_do_not_fit_are_named(model: Path) -> None:
    narrow = Graph()
    narrow.features["fos"] = narrow.features["fos"][:, :5]
    rows: list[tuple[Any, str]] = [
        (narrow, "nodes of kind fos have 5 features, but the model takes 6"),
        (Samples([{"paper": 1}]), "the data set has no graph; use the data set igbh"),
    ]
    assert unrefused(lambda dataset: classes(model, dataset), RunError, rows) == []
    change_json(model / "config.json", heads=3)
    with pytest.raises(RunError, match=r"hidden = \d+ is not a multiple of heads"):
        classes(model, Graph())
